"""The processes of a schedule: which live, stand still, or start again later."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from .process import Hinted, Process
from .seams import DiskRooms
from .stage import Killed

if TYPE_CHECKING:
    from .world import World


class SimulatedProcesses:
    """All processes of one schedule, and their ends."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._clock = world.clock
        self._by_name: dict[str, Process] = {}
        #: The last process of each part of the plan.
        self.latest: list[Process] = []
        self._busy: dict[Process, None] = {}  # those whose programs are not at their end
        self._restarts: list[tuple[int, Process]] = []
        #: The program of every process.
        self.work: Callable[[Process], None]

    # Lives

    def start(self, process: Process) -> None:
        """Let a process do its work, from its first turn on."""
        self._by_name[process.name] = process
        self.latest[process.place : process.place + 1] = [process]
        self._busy[process] = None
        self._world.stage.add(process, "program", lambda: self._live(process))

    def _live(self, process: Process) -> None:
        try:
            self.work(process)
        except Killed:
            pass
        except BaseException as error:
            self._world.fail(error)
        self._busy.pop(process, None)

    def kill(self, process: Process) -> None:
        """End a process here and now: nothing of it runs any more, and nothing that it was about to do is done."""
        world = self._world
        world.tell(process, "dies")
        process.alive, process.frozen_ns, process.dies_in_step, process.dies_after = False, None, False, None
        self._busy.pop(process, None)
        world.agents.left(process)
        for actor in tuple(world.stage.actors):
            if actor.process is process:
                world.stage.take_down(actor)
        if isinstance(world.rooms, DiskRooms):
            world.rooms.drop(process)
        for waiter in tuple(process.waiters):
            waiter.close()

    def kill_all(self, back_after_ns: int) -> None:
        """End all processes; they start again after that time, and nothing else does."""
        for each in tuple(self.latest):
            if each.alive:
                self.kill(each)
        self._restarts = [(self._clock.now_ns + back_after_ns, each) for each in self.latest]

    def restart_later(self, process: Process, span_ns: int) -> None:
        """Start a process again after that time."""
        self._restarts = sorted([*self._restarts, (self._clock.now_ns + span_ns, process)], key=lambda r: r[0])

    def restart_all(self) -> None:
        """Start all of them again."""
        for process in tuple(self.latest):
            self._restart(process)

    def _restart(self, before: Process) -> None:
        process = Process(before.place, before.life + 1, before.part)
        process.next_op = before.next_op
        self._world.tell(process, "starts")
        self.start(process)

    # Standing still

    def freeze(self, process: Process, span_ns: int) -> None:
        """Let a process stand still for so long; one that does so already goes on when it would have."""
        if process.frozen_ns is None:
            process.frozen_ns, process.stood_ns = self._clock.now_ns + span_ns, process.stood_ns + span_ns

    def thaw(self, process: Process) -> None:
        """Let a process go on."""
        process.frozen_ns = None
        self._world.tell(process, "goes on")

    def do_what_is_due(self, now_ns: int) -> None:
        """Let those go on and start whose time has come."""
        for process in self.latest:
            if process.frozen_ns is not None and process.frozen_ns <= now_ns:
                self.thaw(process)
        while self._restarts and self._restarts[0][0] <= now_ns:
            self._restart(self._restarts.pop(0)[1])

    def moments_ns(self) -> list[int]:
        """When processes will start or go on by themselves."""
        moments = [at_ns for at_ns, _ in self._restarts]
        return moments + [process.frozen_ns for process in self.latest if process.frozen_ns is not None]

    # Looks

    def named(self, name: str) -> Process:
        """The process of that name."""
        return self._by_name[name]

    def is_alive(self, name: str) -> bool | None:
        """Whether the process of that name lives; None when it is none of this world."""
        process = self._by_name.get(name)
        return None if process is None else process.alive

    def are_over(self) -> bool:
        """Whether all programs are at their end, and none starts again."""
        return not (self._busy or self._restarts)

    def waiters(self) -> Iterator[Hinted]:
        """The waiters of all processes that live."""
        for process in self._by_name.values():
            if process.alive:
                yield from process.waiters
