"""Event listeners of a room: a function is called before and after each step (spans, metrics, events).

Free while nobody listens.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping
from typing import Any

Listener = Callable[[str, Mapping[str, Any]], None]


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
