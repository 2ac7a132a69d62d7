"""Named points in the way of a message.

Two kinds, both free while nobody uses them:

- `Hooks`: a room tells listeners before and after each step (spans, metrics, events).
- test points: `reached("sqlite.put.written")` does nothing, unless a fault test in this process said
  `die_at("sqlite.put.written")`: then the process ends there by SIGKILL, as if the power of that process was cut.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Callable, Mapping
from typing import Any, Final

Listener = Callable[[str, Mapping[str, Any]], None]

#: What a room tells: the step, with `before_` or `after_` in front of it. Messages are claimed, tasks of the board taken.
STEPS: Final = ("send", "claim", "settle", "sweep", "take")


class Hooks:
    """Listeners of one room, called in the thread that takes the step; what one raises reaches that caller."""

    def __init__(self) -> None:
        #: By event; empty as long as nobody ever listened: who looks first need not gather what there is to tell.
        self.listeners: dict[str, list[Listener]] = defaultdict(list)

    def on(self, event: str, listener: Listener) -> Callable[[], None]:
        """Call `listener(event, detail)` at every such event. Returns a function that ends it."""
        self.listeners[event].append(listener)
        return lambda: self.listeners[event].remove(listener)

    def tell(self, event: str, **detail: Any) -> None:
        """Tell those who listen to the event, in the order in which they came."""
        for listener in tuple(self.listeners.get(event, ())):
            listener(event, detail)


_actions: dict[str, Callable[[], None]] | None = None


def reached(point: str) -> None:
    """The running code has come to a named test point. Costs one comparison in production."""
    if _actions is not None and point in _actions:
        _actions[point]()


def at(point: str, action: Callable[[], None]) -> None:
    """For tests: do something whenever this process comes to the point."""
    global _actions  # noqa: PLW0603  (one process, one set of test points)
    _actions = {**(_actions or {}), point: action}


def die_at(point: str, times_passed: int = 0) -> None:
    """For tests: kill this process with SIGKILL at the point, after it was passed that many times."""
    import signal  # here, not at the point itself: nothing may happen there but the end

    left = [times_passed]

    def die() -> None:
        if left[0] == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        left[0] -= 1

    at(point, die)


def forget() -> None:
    """For tests: disarm all test points."""
    global _actions  # noqa: PLW0603  (one process, one set of test points)
    _actions = None
