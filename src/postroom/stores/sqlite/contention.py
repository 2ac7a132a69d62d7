"""The busy handler: waiting for SQLite's write lock while another process has it, and backing off where many write.

That lock has no queue: a writer that finds it taken tries again. Two writers beside each other do best to try again at
once, for the lock is mostly free within 30 µs. Where several write all the time that is the worst they can do: the lock
changes hands with every message, each writer finds its caches full of what the others did, and half of the time goes
into trying. There, a process that has written many messages in a row and finds the lock taken rests for some
milliseconds, while the others do the same. A process that writes only now and then does not rest: it gets in between.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Final

from postroom.core.clock import SYSTEM
from postroom.core.system.files import map_part

#: Between tries others may run, so often in a row. Then naps, longer and longer.
_YIELDS: Final = 100
_NAP_S: Final = 0.0002
_NAP_CAP_S: Final = 0.01
#: How long somebody rests in a crowd, from half of it to half as much again (docs/design/sqlite.md has what else was tried);
#: and how many others make one.
_REST_S: Final = 0.008
_CROWD: Final = 2
#: A process that found the lock taken, or meant to rest until, less than this ago counts as being here.
_HERE_MS: Final = 24
#: How often the others are counted, at most.
_COUNT_MS: Final = 4
#: A process that found the lock taken fewer times than this does not count the others.
_ASK_FROM: Final = 8
_NEVER: Final = -(2**62)
_PLACES: Final = 64
_WORD: Final = 0xFFFF_FFFF


class Crowd:
    """Which processes found the lock taken lately: a table that they share, with the moment for each of them.

    It is a courtesy, and may be wrong: two processes may have the same place, and where there is no such table every
    process believes to be alone. A process that is gone is forgotten by itself.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._table: memoryview | None = None
        self._place = os.getpid() % _PLACES
        self._asked = 0  # how often
        self._count_at_ms = 0
        self._others = 0

    def others(self) -> int:
        """How many others are here. The process that asks is here, too, from now on."""
        self._asked += 1
        if self._asked < _ASK_FROM:
            return 0
        now_ms = SYSTEM.steady_ns() // 1_000_000
        table = self._here_until(now_ms)
        if table is not None and now_ms >= self._count_at_ms:
            self._count_at_ms = now_ms + _COUNT_MS
            self._others = sum((now_ms + _HERE_MS - then) & _WORD < 2 * _HERE_MS for then in table) - 1
        return self._others

    def rest(self, seconds: float) -> None:
        """Let the others write for so long."""
        self._here_until(SYSTEM.steady_ns() // 1_000_000 + int(seconds * 1000))
        SYSTEM.sleep(seconds)

    def close(self) -> None:
        """Leave. A thread of this process that still writes believes to be alone."""
        self._asked, self._others, self._table = _NEVER, 0, None

    def _here_until(self, moment_ms: int) -> memoryview | None:
        table = self._table
        if table is None:
            try:
                table = self._table = _map(self._path)
            except OSError:
                self._asked = _NEVER
                return None
        table[self._place] = moment_ms & _WORD
        return table


def _map(path: Path) -> memoryview:
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        return memoryview(map_part(descriptor, 0, 4 * _PLACES)).cast("I")
    finally:
        os.close(descriptor)


class Patience:
    """What a connection does when it finds the lock taken: it is called by SQLite until it has the lock, or gives up.

    With a crowd it rests where there is one, if its own process writes all the time: `writes_much` says so.
    """

    __slots__ = ("_crowd", "_timeout_ns", "_until_ns", "_writes_much")

    def __init__(
        self, timeout_s: float, crowd: Crowd | None = None, writes_much: Callable[[], bool] = lambda: False
    ) -> None:
        self._timeout_ns = int(timeout_s * 1e9)
        self._crowd = crowd
        self._writes_much = writes_much
        self._until_ns = 0

    def __call__(self, count: int) -> bool:
        """Wait a moment.

        False when there was no getting in for too long. `count` says how often it was called before.
        """
        if count == 0:
            self._until_ns = SYSTEM.steady_ns() + self._timeout_ns
            if self._crowd is not None and self._crowd.others() >= _CROWD and self._writes_much():
                self._crowd.rest(min(_REST_S * (0.5 + SYSTEM.random()), self._timeout_ns / 1e9))
                return True
        if count < _YIELDS:
            os.sched_yield()
            return True
        if SYSTEM.steady_ns() >= self._until_ns:
            return False
        nap_s = min(_NAP_CAP_S, _NAP_S * 1.3 ** min(40, count - _YIELDS))
        SYSTEM.sleep(nap_s * (0.5 + SYSTEM.random()))
        return True
