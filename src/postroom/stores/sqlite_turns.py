"""Waiting for SQLite's write lock while somebody else has it.

That lock has no queue: whoever finds it taken tries again and again, and eight who do so on two cores spend more time on
trying than on writing. Here they take turns: one tries, the others sleep in the kernel, in the order in which they came.

A turn is a courtesy. The lock alone keeps writers apart, so whoever cannot have a turn (another system, a neighbour that was
stopped while it had one) goes on without.
"""

from __future__ import annotations

import errno
import os
import threading
from pathlib import Path
from typing import Final

from ..clock import SYSTEM
from ..platform import SharedLock

#: Where others wait for their turn, so does who tried twice. Where nobody does, trying more often gets it sooner: two who
#: write beside each other need no queue.
_TRIES: Final = 1
_TRIES_ALONE: Final = 24
#: Between tries others may run, so often in a row: the lock is mostly free again within 30 µs. Then naps, longer and longer;
#: with a turn they begin short and stay shorter, for nobody else tries (docs/design.md has what else was tried).
_YIELDS: Final = 100
_YIELDS_IN_TURN: Final = 30
_NAP_CAP_S: Final = 0.01
_NAP_IN_TURN_S: Final = 0.00003
_NAP_IN_TURN_CAP_S: Final = 0.001
#: What loads with the first turn takes some milliseconds: programs that were in nobody's way until now go without.
_TURNS_FROM: Final = 8
#: Who does not get its turn in this time goes without one, and asks for none for a while: perhaps somebody was stopped.
_TURN_MOST_S: Final = 0.05
_WITHOUT_NS: Final = 100_000_000
#: Where there are no turns to be had at all, nobody asks again so soon.
_NONE_HERE_NS: Final = 60_000_000_000


class _Mine(threading.local):
    """What a thread has: its turn, while it has one."""

    turn: SharedLock | None = None


class Turns:
    """The turns of one room, as this process sees them. Safe to use from all its threads."""

    def __init__(self, path: Path) -> None:
        # Not with the connection: a subclass of apsw's crashes when it is collected in a ring (tests/test_sqlite_turns.py).
        self.mine = _Mine()
        self._path = path
        self._making = threading.Lock()
        self._lock: SharedLock | None = None
        self._closed = False
        self._in_the_way = 0  # how often somebody was
        self._not_before_ns = 0

    def worth_taking(self, tries: int) -> bool:
        """Whether somebody who tried so often should wait for its turn now: early where others do, late where nobody does."""
        lock = self._lock  # once: another thread may close the room meanwhile
        return tries == _TRIES_ALONE or (tries == _TRIES and lock is not None and lock.is_held())

    def take(self, most_s: float = _TURN_MOST_S) -> bool:
        """Wait for this thread's turn, a moment and `most_s` at most; whether it has it. Then `end` ends it."""
        self._in_the_way += 1
        if self._in_the_way < _TURNS_FROM or SYSTEM.steady_ns() < self._not_before_ns:
            return False
        pause_ns = _WITHOUT_NS
        try:
            self.mine.turn = self._open()  # before it is had: an interrupt may come at any moment, and `end` is safe
            if self.mine.turn.acquire(max(0.0, min(most_s, _TURN_MOST_S))):
                return True
        except OSError as error:
            if error.errno in (errno.ENOSYS, errno.ENOTSUP):
                pause_ns = _NONE_HERE_NS
        self.mine.turn = None
        self._not_before_ns = SYSTEM.steady_ns() + pause_ns
        return False

    def end(self) -> None:
        """This thread's turn is over, if it has one: it got the lock, or gave up. The next one may try."""
        lock, self.mine.turn = self.mine.turn, None
        if lock is not None:
            lock.release()

    def _open(self) -> SharedLock:
        with self._making:
            if self._closed:
                raise OSError(errno.EBADF, "the room is closed")
            if self._lock is None:
                self._lock = SharedLock(self._path)
            return self._lock

    def close(self) -> None:
        """Nobody of this process takes a turn any more. Who has one, or waits for it in another thread, ends it as ever."""
        with self._making:
            self._closed, self._lock = True, None


class Patience:
    """What a connection does when it finds the lock taken: it is called by SQLite until it has the lock, or gives up.

    It may take a turn. Whoever got the lock, or gave up, ends that (`Turns.end`).
    """

    __slots__ = ("_timeout_ns", "_turns", "_until_ns")

    def __init__(self, timeout_s: float, turns: Turns | None = None) -> None:
        self._timeout_ns = int(timeout_s * 1e9)
        self._turns = turns
        self._until_ns = 0

    def __call__(self, count: int) -> bool:
        """Wait a moment. False when there was no getting in for too long. `count` says how often it was called before."""
        if count == 0:
            self._until_ns = SYSTEM.steady_ns() + self._timeout_ns
        in_turn = self._turns is not None and self._turns.mine.turn is not None
        if self._turns is not None and not in_turn and self._turns.worth_taking(count):
            self._turns.take((self._until_ns - SYSTEM.steady_ns()) / 1e9)
            return True
        if count < (_YIELDS_IN_TURN if in_turn else _YIELDS):
            os.sched_yield()
            return True
        if SYSTEM.steady_ns() >= self._until_ns:
            return False
        if in_turn:
            SYSTEM.sleep(min(_NAP_IN_TURN_CAP_S, _NAP_IN_TURN_S * 1.05 ** min(100, count - _YIELDS_IN_TURN)))
        else:
            nap_s = min(_NAP_CAP_S, 0.0002 * 1.3 ** min(40, count - _YIELDS))
            SYSTEM.sleep(nap_s * (0.5 + SYSTEM.random()))
        return True
