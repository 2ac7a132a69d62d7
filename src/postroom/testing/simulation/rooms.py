"""The rooms of simulated worlds: one for each kind of store."""

from __future__ import annotations

from itertools import count
from typing import Final

from postroom.stores.contract import Store
from postroom.stores.memory.store import MemoryStore

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
