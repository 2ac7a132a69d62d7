"""Keeping SQLite's write-ahead log short, beside the calls that make it long.

Left to itself SQLite folds the log back into the file in whichever commit made it too long. That call then waits for the
disk, a tenth of a second for 32 MB; and where others keep writing the log does not get short by it, so that the next call
waits again, and the next. Here a thread does it, once at a time, and asks the writers to begin the log anew at its end.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from enum import Enum
from typing import Final

from postroom.core.clock import SYSTEM, Clock
from postroom.core.system.process import start_thread

#: The log is folded back when it has so many pages (20 MB). More often means more work, less often a longer recovery.
LONG_PAGES: Final = 10_000
#: A log as long as this (50 MB) is folded back by who made it so, or who made it so waits for the one that does.
TOO_LONG_PAGES: Final = 25_000
#: After a fold that did not end well, because somebody reads, the next is no sooner than this.
_PAUSE_NS: Final = 200_000_000
_HOLD_UP_S: Final = 0.01
#: With sync=full the log is made longer ahead of what is written to it, by so much (2 MB), once it has some pages: a disk syncs
#: what is overwritten faster than what makes a file longer (bench/README.md).
AHEAD_FROM_PAGES: Final = 48
AHEAD_PAGES: Final = 1000


class Fold(Enum):
    """How folding the log back went."""

    DONE = "writers begin it anew"
    PINNED = "somebody reads what lies in it"
    ELSEWHERE = "somebody else is at it"


class Checkpointer:
    """Calls `fold` in a thread when the log is long. Safe to use from all threads of the process that made it.

    `fold` folds the log back, over a connection of its own.
    """

    def __init__(self, fold: Callable[[], Fold], clock: Clock, *, beside: bool = True) -> None:
        self._fold = fold
        self._clock = clock
        self._beside = beside
        self._lock = threading.RLock()  # a signal's handler may come in the middle of what it guards
        self._thread: threading.Thread | None = None
        self._not_before_ns = 0
        self._closed = False

    def has_pages(self, pages: int, long_pages: int = LONG_PAGES) -> None:
        """A commit left the log this long."""
        if pages < long_pages or self._clock.steady_ns() < self._not_before_ns:
            return
        if not self._beside or pages >= TOO_LONG_PAGES:
            if self._fold_once() is Fold.ELSEWHERE and self._beside:
                SYSTEM.sleep(_HOLD_UP_S)  # else writers would outrun the disk, and the log would grow without end
        else:
            self.beside(self._fold_once)

    def _fold_once(self) -> Fold:
        fold = self._fold()
        if fold is Fold.PINNED:
            self._not_before_ns = self._clock.steady_ns() + _PAUSE_NS
        return fold

    def beside(self, work: Callable[[], object]) -> None:
        """Do something to the log in a thread, if nothing is done to it just now."""
        with self._lock:
            if self._thread is not None or self._closed:
                return
            self._thread = thread = threading.Thread(target=self._run, args=(work,), name="postroom log", daemon=True)
        try:
            start_thread(thread)
        except RuntimeError:  # the interpreter is about to end, or the system has no thread to give
            self._thread = None
        except BaseException:  # interrupted: it may run, or never will
            if not thread.is_alive():
                self._thread = None
            raise

    def _run(self, work: Callable[[], object]) -> None:
        try:
            work()
        finally:
            self._thread = None

    def close(self) -> None:
        """Fold no more. A fold under way is over when this returns."""
        with self._lock:
            self._closed = True
            thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join()
