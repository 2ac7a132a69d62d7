"""Steps of stores on a simulated disk: cut in the middle, failed with the disk, lost in a power cut."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final, TypeVar, cast

from postroom.core.clock import Chance
from postroom.errors import RoomUnreachable

from .broken import Broken
from .cuts import CutSteps, StoreStep
from .process import Process
from .seams import DiskRooms, PowerRooms
from .stage import Killed

if TYPE_CHECKING:
    from .world import World

T = TypeVar("T")
_SECOND_NS: Final = 1_000_000_000


class DiskSteps:
    """The steps of one schedule at its disk, if its rooms have one."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._disk = world.rooms.disk if isinstance(world.rooms, DiskRooms) else None
        #: Whether there is a disk: a step can be cut in the middle.
        self.exist: bool = self._disk is not None
        self._cuts = CutSteps(world, world.judge, full_sync=world.config.sync == "full")

    def settle_cuts(self) -> None:
        """Somebody is about to look at the room: find out which steps that were cut have happened."""
        rooms = self._world.rooms
        if self._cuts.open and isinstance(rooms, DiskRooms):
            with rooms.look() as store:
                self._cuts.settle(store)

    def act(self, process: Process, act: Callable[[], T]) -> T:
        """Do something in which a process may die, or its disk may fail."""
        disk = self._disk
        if disk is None:
            return act()
        disk.running = process
        try:
            done = act()
        except BaseException:
            disk.running = None
            self._end_if_cut(process)
            raise
        disk.running = None
        self._end_if_cut(process)
        return done

    def step(
        self, process: Process, name: str, method: Callable[..., T], args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> T:
        """Do a step, which may be cut, or fail with the disk."""
        disk = self._disk
        assert disk is not None
        step = StoreStep(process, name, args, kwargs, self._world.room_ms())
        changes = disk.changes
        disk.running = process
        try:
            result = method(*args, **kwargs)
        except BaseException as error:
            disk.running = None
            self._cut_or_failed(step, error)
            raise
        disk.running = None
        if disk.is_cut(process):
            self._cuts.open.append(step)
            self._end_if_cut(process)
        self._cuts.done(step, result, wrote=disk.changes > changes)
        return result

    def _cut_or_failed(self, step: StoreStep, error: BaseException) -> None:
        """A step raised. Where its process died, nobody knows what became of it; else nothing was changed."""
        world, process = self._world, step.process
        assert self._disk is not None
        if self._disk.is_cut(process):
            self._cuts.open.append(step)
            self._end_if_cut(process)
        if isinstance(error, RoomUnreachable) and isinstance(world.rooms, DiskRooms):
            world.happened("the disk failed, and the caller was told")
            world.tell(process, f"{step.name}: {type(error).__name__}")
            process.failed += 1
            with world.rooms.look() as store:
                self._cuts.failed(step, error, store)

    def _end_if_cut(self, process: Process) -> None:
        """If a process died in what it has just done, end it; and all others, if the power was cut."""
        if self._disk is None or not self._disk.is_cut(process):
            return
        if self._disk.is_off:
            self._cut_power()
        elif process.alive:
            self._world.happened("died inside a step")
            self._world.processes.kill(process)
        raise Killed

    def _cut_power(self) -> None:
        """End all processes here and now, and lose what was not synced. Then they start again."""
        world = self._world
        rooms = cast("PowerRooms", world.rooms)
        world.tell(None, "the power is cut")
        world.happened("the power was cut inside a step")
        world.processes.kill_all(_SECOND_NS)
        world.clock.boots += 1
        rooms.cut_power(Chance(f"power {world.plan.seed} {world.step}"))
        try:
            with rooms.look() as store:
                faults = rooms.faults(store)
                if faults:
                    raise Broken(f"a power cut has damaged the room: {faults[0]}")
                self._cuts.after_power_cut(store)
        except Exception as error:
            world.fail(error)
