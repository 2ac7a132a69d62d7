"""The thread that lets the files of a large board follow when nothing else comes (`board.py` says when they are due)."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from functools import partial
from typing import Final

from postroom.core.chore import Chore
from postroom.core.clock import Clock

from .board import LATE_S

#: What is nudged when there is something to do need not look by itself.
NEVER_S: Final = 24 * 3600.0


class LateBoard:
    """Calls `write` when it is due, which tells in how many seconds to call it again."""

    def __init__(self, write: Callable[[], float], clock: Clock) -> None:
        """`write` is a method of an object that may go all the same."""
        self._step = partial(_round, weakref.WeakMethod(write))
        self._clock = clock
        self._chore: Chore | None = None
        #: Whether it was told, and the files have not followed yet.
        self.knows = False

    def follow(self, due_ns: int | None) -> None:
        """The files lie behind, and are to be written by then; None: they do not."""
        if due_ns is None or self.knows:
            return
        self.knows = True
        if self._chore is None:
            self._chore = Chore("postroom board files", self._step, self._clock, every_s=LATE_S)
        self._chore.nudge()

    def close(self, timeout_s: float | None) -> bool:
        """Write nothing more. Returns whether it ever had to."""
        chore, self._chore = self._chore, None
        if chore is not None:
            chore.close(timeout_s)
        return chore is not None


def _round(known: weakref.WeakMethod[Callable[[], float]]) -> float:
    write = known()
    return NEVER_S if write is None else write()
