"""Crash points: named places in the code where a fault test ends the process, or does something of its own.

`reached("sqlite.written")` does nothing, unless a test in this process said `die_at("sqlite.written")`: then the
process ends there by SIGKILL, as if its power was cut.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Final

_SIGKILL: Final = 9  # everywhere; the module `signal` takes a millisecond to load
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
    left = [times_passed]

    def die() -> None:
        if left[0] == 0:
            os.kill(os.getpid(), _SIGKILL)
        left[0] -= 1

    at(point, die)


def forget() -> None:
    """For tests: disarm all test points."""
    global _actions  # noqa: PLW0603  (one process, one set of test points)
    _actions = None
