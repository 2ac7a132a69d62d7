"""A room in memory: its tables under one lock, and those who wait for a change of them."""

from __future__ import annotations

import os
import threading
from collections import defaultdict
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from typing import Self

from .. import store as contract
from ..clock import Clock
from ..config import Config
from ..errors import RoomClosed
from ..message import room_start_ms
from .tables import Tables, discard


class MemoryTables(Tables):
    """The tables of one room, entered (`with`) for each step."""

    def __init__(self, config: Config, clock: Clock, name: str) -> None:
        # Room time begins as the wall clock's and from then on follows the steady clock alone.
        base_ns = room_start_ms(clock) * 1_000_000 - clock.steady_ns()
        super().__init__(config, clock, int(clock.random() * 2**53), base_ns)
        self.name = name
        self.users = 0
        self._lock = threading.RLock()
        self.waiters: defaultdict[str, list[MemoryWaiter]] = defaultdict(list)  # topic -> who listens

    def __enter__(self) -> Self:
        self._lock.acquire()
        return self

    def __exit__(self, *_: object) -> None:
        self._lock.release()

    def ring(self, topic: str) -> None:
        for waiter in self.waiters.get(topic, ()):
            waiter.ring()

    def ring_one(self, topic: str) -> None:
        waiters = self.waiters.get(topic)
        if waiters:
            waiters.append(waiters.pop(0))
            waiters[-1].ring(alone_for=topic)


class MemoryWaiter(contract.Waiter):
    """A waiter with a pipe of its own: a byte lies in it while there is a hint that nobody has taken."""

    def __init__(
        self,
        room: MemoryTables,
        topics: Iterable[str],
        enter: Callable[[], AbstractContextManager[object]],
        forget: Callable[[MemoryWaiter], None],
    ) -> None:
        self._room = room
        self._enter = enter  # raises when the store that listens was closed
        self._forget = forget
        self._topics = tuple(dict.fromkeys(topics))
        self._reader, self._writer = os.pipe()
        self._rung = False
        self._alone_for: list[str] = []  # for these messages nobody else was woken
        self._closed = False
        for topic in self._topics:
            room.waiters[topic].append(self)

    def ring(self, alone_for: str | None = None) -> None:
        """Leave a hint. The caller has entered the room."""
        if alone_for is not None:
            self._alone_for.append(alone_for)
        if not self._rung:
            self._rung = True
            os.write(self._writer, b"!")

    def wait(self, timeout_s: float | None) -> bool:
        if self._take():
            return True
        self._room.clock.wait_readable([self._reader], timeout_s)
        return self._take()

    def _take(self) -> bool:
        with self._enter():
            if self._closed:
                raise RoomClosed("this waiter is closed")
            if self._rung:
                self._rung = False
                self._alone_for.clear()
                os.read(self._reader, 1)
                return True
            return False

    def fileno(self) -> int:
        return self._reader

    def close(self) -> None:
        with self._room:
            if self._closed:
                return
            self._closed = True
            for topic in self._topics:
                discard(self._room.waiters, topic, self)
            # A hint that this waiter alone was given, and did not take, would be lost with it: somebody else gets it
            # (tests/test_memory_store.py).
            for topic in self._alone_for:
                self._room.ring_one(topic)
            self._forget(self)
            os.close(self._reader)
            os.close(self._writer)
