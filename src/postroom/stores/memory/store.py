"""A room in the memory of one process: plain Python, and the reference for every other store.

Everything happens under one lock, so each method is one step, and a message is kept while somebody has the room open.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Iterable
from contextlib import suppress
from typing import Any, ClassVar

from postroom.core.clock import Clock
from postroom.core.config import Config
from postroom.errors import RoomClosed
from postroom.stores import contract
from postroom.stores.pipes import PipeWaiter
from postroom.stores.rules import discard
from postroom.stores.tables.store import TableStore, whole

from .room import MemoryTables

_named_rooms: dict[str, MemoryTables] = {}
_naming = threading.RLock()  # a signal's handler may open a room, too


class MemoryStore(TableStore):
    """The reference store. A room with a name is shared by all that open that name in this process, while one does."""

    durable: ClassVar[bool] = False
    shared: ClassVar[bool] = False

    def __init__(self, config: Config, clock: Clock, name: str = "") -> None:
        with _naming:
            room = _named_rooms.get(name) or MemoryTables(config, clock, name)
            if name:
                room = _named_rooms.setdefault(name, room)
            room.users += 1
        self._room = room
        self.turn = room.turn
        self.clock = room.clock
        self.waiters: weakref.WeakSet[MemoryWaiter] = weakref.WeakSet()
        self._pid = os.getpid()
        self._open = True

    def check(self) -> None:
        if self._pid != os.getpid():
            raise RoomClosed("this memory room belongs to the process before the fork; no other process can reach it")
        if not self._open:
            raise RoomClosed

    def undo(self) -> None:
        self._room.undo()

    def enter(self) -> MemoryTables:
        """The room, for one step of the one whose turn it is."""
        return self._room

    reading = step = enter

    def room_ms(self) -> int:
        return self._room.now_ms()

    def about(self) -> dict[str, Any]:
        return {"kind": "memory", "name": self._room.name}

    @whole
    def listen(self, topics: Iterable[str]) -> contract.Waiter:
        waiter = MemoryWaiter(self, self._room, topics)
        self.waiters.add(waiter)
        return waiter

    def close(self) -> None:
        if self._pid != os.getpid():
            return
        with _naming, self.turn.lock:
            room = self._room
            if self._open:
                self._open = False
                room.users -= 1
                if room.users == 0 and room.name:
                    del _named_rooms[room.name]
                for waiter in tuple(self.waiters):  # a waiter in another thread comes back, and is told
                    waiter.ring()


class MemoryWaiter(PipeWaiter[str]):
    """A waiter for topics of a room in memory."""

    def __init__(self, store: MemoryStore, room: MemoryTables, topics: Iterable[str]) -> None:
        self._store = store
        self._room = room
        self._topics = tuple(dict.fromkeys(topics))
        super().__init__(room.clock)
        for topic in self._topics:
            room.waiters[topic].append(self.known)

    def take(self) -> bool:
        self._store.check()
        with self._room.turn.lock:
            self._store.check()
            return self.take_hint()

    def close(self) -> None:
        with self._room.turn.lock:
            if self._reader < 0:
                return
            self.is_closed = True
            for topic in self._topics:
                with suppress(ValueError, KeyError):  # interrupted before it was there, or after it was taken out
                    discard(self._room.waiters, topic, self.known)
            # A hint that this waiter alone was given, and did not take, would be lost with it: somebody else gets it
            # (tests/stores/test_memory.py).
            for topic in self.alone_for:
                self._room.ring_one(topic)
            self._store.waiters.discard(self)
            self.let_go()

    def __del__(self) -> None:
        try:  # noqa: SIM105  suppress is gone by then
            self.close()
        except (AttributeError, TypeError):  # it was interrupted while it was made; or Python ends
            pass
