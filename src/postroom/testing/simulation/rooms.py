"""The room in memory of simulated worlds, and what the rooms on disks have in common."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Final

from postroom.errors import RoomBusy
from postroom.stores.bells import spinning
from postroom.stores.bells.bells import Bells
from postroom.stores.contract import Store
from postroom.stores.liveness import Attendance
from postroom.stores.memory.store import MemoryStore
from postroom.stores.tables.tables import Row

from . import plans
from .plans import Plan
from .process import Process
from .world import World

_numbers: Final = count(1)
#: Where rooms on disks lie: in memory, if there is such a folder.
MEMORY: Final = "/dev/shm" if Path("/dev/shm").is_dir() else None


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

    @contextmanager
    def break_write(self, process: Process, after: int) -> Iterator[None]:
        """Let the step that is taken meanwhile fail when it is about to change another row, after so many."""
        tables, left = self._stores[0].enter(), [after]
        change = tables.before_change

        def break_it(row: Row) -> None:
            left[0] -= 1
            if left[0] < 0:
                process.failed += 1
                self._world.happened("a step broke in its middle")
                self._world.tell(process, "fails in the middle of a step")
                raise RoomBusy("simulated: the step was interrupted in its middle")
            change(row)

        tables.before_change = break_it  # type: ignore[method-assign]  # for one step
        try:
            yield
        finally:
            del tables.before_change

    def room_ms(self) -> int:
        return self._stores[0].room_ms()

    def close(self) -> None:
        for store in self._stores:
            store.close()


class SimulatedAttendance(Attendance):
    """A process's lock in a room, and the world's word on the lives of others."""

    def __init__(self, real: Attendance, process: str, is_alive: Callable[[str], bool | None]) -> None:
        vars(self).update(vars(real))
        self.process = process
        self._lives = is_alive

    def is_alive(self, process: str) -> bool | None:
        return self._lives(process)


def abandon_bells(bells: Bells | None) -> None:
    """Let the bells of a dead process go as the system does: its sockets are closed, and its flags stay on the page."""
    if bells is not None:
        bells.sockets._close_all()


def without_spinning() -> Callable[[], None]:
    """Let no waiter spin: nobody else runs while one does. Returns what puts that back."""
    before = os.environ.get(spinning.VARIABLE)
    os.environ[spinning.VARIABLE] = "0"

    def put_back() -> None:
        if before is None:
            del os.environ[spinning.VARIABLE]
        else:
            os.environ[spinning.VARIABLE] = before

    return put_back


def may_cut_power(plan: Plan) -> bool:
    """Whether the power is cut in a schedule."""
    return any(fault.kind == plans.POWER_CUT for fault in plan.faults)
