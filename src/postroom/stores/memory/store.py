"""A room in the memory of one process: plain Python, and the reference for every other store.

Everything happens under one lock, so each method is one step, and a message is kept while somebody has the room open.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Iterable
from typing import Any, ClassVar

from postroom.core.clock import Clock
from postroom.core.config import Config
from postroom.errors import RoomClosed
from postroom.stores import contract
from postroom.stores.tables.store import TableStore, whole

from .room import MemoryTables, MemoryWaiter

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

    def about(self) -> dict[str, Any]:
        return {"kind": "memory", "name": self._room.name}

    @whole
    def listen(self, topics: Iterable[str]) -> contract.Waiter:
        waiter = MemoryWaiter(self._room, topics, self.check, self.waiters.discard)
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
