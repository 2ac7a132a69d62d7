"""The rooms of simulated worlds: one for each kind of store."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Final

from postroom.stores.bells import spinning
from postroom.stores.contract import Store
from postroom.stores.liveness import Attendance
from postroom.stores.memory.store import MemoryStore
from postroom.stores.sqlite.store import SqliteStore

from .world import World

_numbers: Final = count(1)


class MemoryRoom:
    """A room in memory that all processes of a world share, as if they had memory in common."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._name = f"simulated-{next(_numbers)}"
        self._stores = [self._make()]
        self._stores[0].enter().process_alive = world.is_alive

    def _make(self) -> MemoryStore:
        return MemoryStore(self._world.config, self._world.clock, self._name)

    def open(self, process: str) -> Store:
        self._stores.append(self._make())
        return self._stores[-1]

    def room_ms(self) -> int:
        return self._stores[0].room_ms()

    def close(self) -> None:
        for store in self._stores:
            store.close()


class SqliteRoom:
    """A room in a file, which each process of a world opens for itself, with connections and bells of its own."""

    def __init__(self, world: World) -> None:
        self._world = world
        memory = Path("/dev/shm")
        self._folder = Path(tempfile.mkdtemp(prefix="postroom-", dir=memory if memory.is_dir() else None))
        self._spins = os.environ.get(spinning.VARIABLE)
        os.environ[spinning.VARIABLE] = "0"  # nobody else runs while one does
        self._stores: list[SqliteStore] = []
        self.open("simulated:room")

    def open(self, process: str) -> Store:
        store = SqliteStore(self._folder, self._world.config, self._world.clock)
        file = store._file
        file.attendance = _Attendance(file.attendance, process, self._world.is_alive)
        self._stores.append(store)
        return store

    def room_ms(self) -> int:
        return self._stores[0].room_ms()

    def close(self) -> None:
        for store in self._stores:
            store.close()
        if self._spins is None:
            del os.environ[spinning.VARIABLE]
        else:
            os.environ[spinning.VARIABLE] = self._spins
        shutil.rmtree(self._folder, ignore_errors=True)


class _Attendance(Attendance):
    """A process's lock in a room, and the world's word on the lives of others."""

    def __init__(self, real: Attendance, process: str, is_alive: Callable[[str], bool | None]) -> None:
        vars(self).update(vars(real))
        self.process = process
        self._lives = is_alive

    def is_alive(self, process: str) -> bool | None:
        return self._lives(process)
