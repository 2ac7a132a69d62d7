"""The seams of the world: what a store must offer to be simulated, and turns that are taken without a thread."""

from __future__ import annotations

from contextlib import AbstractContextManager
from itertools import count
from typing import Final, Protocol, runtime_checkable

from postroom.core.clock import Chance
from postroom.stores.contract import Store

from .disk import SimulatedDisk
from .process import Process
from .store import SimulatedStore

_FIRST_TURN: Final = 1 << 40
_turns: Final = count()


class Rooms(Protocol):
    """The seam for stores: one room, which each simulated process opens for itself."""

    def open(self, process: str) -> Store:
        """The room, opened by the process of that name."""

    def room_ms(self) -> int:
        """Room time, without a step."""

    def close(self) -> None:
        """The schedule is over."""


@runtime_checkable
class FaultyRooms(Rooms, Protocol):
    """Rooms with faults of their own, and with more of their steps to be judged."""

    #: How a process has such a store.
    store: type[SimulatedStore]

    def suffer(self, kind: str, process: Process, span_ns: int) -> None:
        """A planned fault of the wire comes, here to that process."""

    def heal(self) -> None:
        """The faults have stopped."""


@runtime_checkable
class DiskRooms(Rooms, Protocol):
    """Rooms on a simulated disk: steps can be cut in the middle, and processes leave their files as they are."""

    disk: SimulatedDisk

    def drop(self, process: Process) -> None:
        """A process is dead: what it had open is closed, as the system does it."""

    def look(self) -> AbstractContextManager[Store]:
        """The room, as one more process would find it now. Nothing is changed by that."""


@runtime_checkable
class PowerRooms(DiskRooms, Protocol):
    """Rooms whose disk forgets what was not synced."""

    def cut_power(self, chance: Chance) -> None:
        """All processes are dead, and were dropped: of what was not synced, any part is lost."""

    def faults(self, store: Store) -> list[str]:
        """What is wrong with the files that a look has open."""


class ThreadlessTurn:
    """Something that takes turns without a thread of its own: the world does them in whichever thread asks it."""

    def __init__(self, process: Process | None) -> None:
        #: The process with which it lives and stands still; None for what does neither.
        self.process = process
        #: After all threads.
        self.number = _FIRST_TURN + next(_turns)

    def next_ns(self) -> int:
        """From when on it has something to do."""
        raise NotImplementedError

    def take(self) -> None:
        """Do it. Never waits."""
        raise NotImplementedError
