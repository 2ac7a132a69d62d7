"""What goes wrong in a schedule, each fault at its step."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Final

from . import plans
from .plans import PlannedFault
from .process import Process, Trap
from .seams import FaultyRooms, PowerRooms
from .stage import Killed

if TYPE_CHECKING:
    from .world import World

_SECOND_NS: Final = 1_000_000_000
_WHOLE: Final = nullcontext()


class ScheduleFaults:
    """The faults of one schedule: those of its plan, and those that programs ask for."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._clock = world.clock
        #: Those that have not come yet, the next one last.
        self.left = sorted(world.plan.faults, reverse=True)

    def do_up_to(self, step: int) -> None:
        """Let those come whose step is reached."""
        while self.left and self.left[-1].step <= step:
            self._do(self.left.pop())

    def stop(self) -> None:
        """From now on nothing goes wrong, and what was about to does not."""
        world = self._world
        world.hints.stop()
        world.tell(None, "calm")
        if isinstance(world.rooms, FaultyRooms):
            world.rooms.heal()
        for process in world.processes.latest:
            process.dies_in_step, process.fails, process.dies_after, process.breaks_after = False, 0, None, None
            process.trap = None
            if process.frozen_ns is not None:
                world.processes.thaw(process)

    # The plan's

    def _do(self, fault: PlannedFault) -> None:
        world = self._world
        world.tell(None, f"fault: {fault}")
        span_ns = round(fault.span_s * _SECOND_NS)
        if fault.kind in plans.WIRE:
            if isinstance(world.rooms, FaultyRooms):
                world.rooms.suffer(fault.kind, world.processes.latest[fault.part], span_ns)
        elif fault.kind in plans.NOBODYS:
            self._do_to_all(fault.kind, span_ns)
        elif world.processes.latest[fault.part].alive:
            self._do_to_one(fault.kind, world.processes.latest[fault.part], span_ns)

    def _do_to_all(self, kind: str, span_ns: int) -> None:
        if kind == plans.TIME:
            self._clock.stand_still(span_ns)
        elif kind == plans.WALL:
            self._clock.wall_offset_ns += span_ns
        elif kind == plans.LOSE_HINTS:
            self._world.hints.lose(span_ns)
        else:
            self._world.hints.hold_back(span_ns)

    def _do_to_one(self, kind: str, process: Process, span_ns: int) -> None:
        world = self._world
        if kind == plans.FREEZE:
            world.processes.freeze(process, span_ns)
        elif kind == plans.BREAK:
            process.breaks_after = int(span_ns // _SECOND_NS)
        elif kind in plans.INSIDE and world.disk_steps.exist:
            if kind == plans.POWER_CUT and not isinstance(world.rooms, PowerRooms):
                kind = plans.KILL_INSIDE  # the nearest that there is
            process.trap = Trap(kind, round(span_ns / _SECOND_NS))
        elif kind in (plans.FAIL, plans.FAIL_DISK):
            process.fails += 1
        elif kind in (plans.KILL_IN_STEP, *plans.INSIDE):
            process.dies_in_step = True
        else:
            if kind == plans.KILL_AND_RESTART:
                world.processes.restart_later(process, span_ns)
            world.processes.kill(process)

    # The programs'

    def die(self, process: Process) -> None:
        """End the process that runs now, unless the faults have stopped."""
        if not self._world.scheduler.is_calm():
            self._world.processes.kill(process)
            raise Killed

    def freeze(self, process: Process, span_s: float) -> None:
        """Let a process stand still for so long, unless the faults have stopped."""
        if not self._world.scheduler.is_calm():
            self._world.tell(process, f"stands still for {span_s:g} s")
            self._world.processes.freeze(process, round(span_s * _SECOND_NS))

    def break_write(self, process: Process) -> AbstractContextManager[None]:
        """While this is open, a write fails in its middle, if a fault asks for that."""
        if process.breaks_after is None:
            return _WHOLE
        after, process.breaks_after = process.breaks_after, None
        breaking: Callable[[Process, int], AbstractContextManager[None]] | None
        breaking = getattr(self._world.rooms, "break_write", None)  # of a room in memory alone
        return _WHOLE if breaking is None else breaking(process, after)
