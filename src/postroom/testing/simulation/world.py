"""The world of one schedule: its clock, its processes, its rooms, and the parts that let them run, wait and fail."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path

from postroom.core.config import Config
from postroom.core.system.children import ForkServer
from postroom.mail.gateway import Gateway
from postroom.stores.contract import Store

from .disk_steps import DiskSteps
from .faults import ScheduleFaults
from .hints import HintFaults
from .judges import ScheduleJudge
from .open_agents import OpenAgents
from .plans import Plan
from .process import Process
from .processes import SimulatedProcesses
from .scheduling import Scheduler
from .seams import FaultyRooms, Rooms
from .simulated_clock import SimulatedClock
from .stage import Stage
from .store import SimulatedStore
from .tracing import ScheduleTrace
from .waits import SimulatedWaits


class World:
    """One schedule. `run` takes it to its end; then `trace.failure` says what went wrong, or is None."""

    def __init__(self, plan: Plan, make_rooms: Callable[[World], Rooms], *, traced: bool = False) -> None:
        self.plan = plan
        # twice, so that some messages are delivered for the last time
        self.config = Config(max_deliveries=2, sync="full" if plan.seed % 2 else "normal")
        self.waits = SimulatedWaits(self)
        self.clock = SimulatedClock(plan.seed, self.waits.wait)
        self.trace = ScheduleTrace(self, kept=traced)
        self.tell, self.happened, self.fail = self.trace.tell, self.trace.happened, self.trace.fail
        self.scheduler = Scheduler(self)
        self.stage = Stage(self.scheduler)
        self.point = self.stage.point
        self.judge: ScheduleJudge = ScheduleJudge(self)
        self.agents = OpenAgents(self.clock)
        self.hints = HintFaults(self)
        self.processes = SimulatedProcesses(self)
        self.faults = ScheduleFaults(self)
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        self._ends: list[Callable[[], None]] = []
        self.fork_server: ForkServer | None = None  # of the pools, if there are any
        self.rooms: Rooms = make_rooms(self)
        self.disk_steps = DiskSteps(self)

    # The run

    def run(self, work: Callable[[Process], None]) -> None:
        """Let every process do its part of the plan by this work, until all are done."""
        self.processes.work = work
        for place, part in enumerate(self.plan.parts):
            self.processes.start(Process(place, 0, part))
        self.stage.run()

    def run_last(self, process: Process, work: Callable[[], None]) -> None:
        """When the schedule is over, let one more process do this."""
        self.processes.work = lambda _: work()
        self.processes.start(process)
        self.stage.run()

    def running(self) -> Process | None:
        """The process that runs now."""
        actor = self.stage.current
        return actor.process if actor is not None and isinstance(actor.process, Process) else None

    @property
    def step(self) -> int:
        """How many steps were taken."""
        return self.scheduler.step

    @property
    def stood_ns(self) -> int:
        """For how long nobody ran, because a fault let time pass."""
        return self.clock.stood_ns

    def at_end(self, call: Callable[[], None]) -> None:
        """Make a call when the schedule is over."""
        self._ends.append(call)

    def close(self) -> None:
        """The schedule is over."""
        for end in reversed(self._ends):
            end()
        self.rooms.close()
        if self._folder is not None:
            self._folder.cleanup()

    # Its rooms

    def new_store(self, process: Process) -> SimulatedStore:
        """The room's store, opened by a process."""
        inner = self.disk_steps.act(process, lambda: self.rooms.open(process.name))
        process.stores.append(inner)
        make = self.rooms.store if isinstance(self.rooms, FaultyRooms) else SimulatedStore
        return make(self, self.judge, process, inner)

    def new_gateway(self, store: Store) -> Gateway:
        """A gateway that ends with the schedule, wherever that fails: nobody closes what a dead process had open."""
        made = Gateway(store, self.config, self.clock)
        self._ends.append(lambda: setattr(made, "_closed", True))
        return made

    def closed(self, process: Process, inner: Store) -> None:
        """A process has closed its store."""
        if inner in process.stores:
            process.stores.remove(inner)
            if process.alive:
                self.disk_steps.act(process, inner.close)

    def room_ms(self) -> int:
        """Room time, without a step."""
        return self.rooms.room_ms()

    def folder(self) -> Path:
        """The folder of the sessions, which is gone after the schedule."""
        if self._folder is None:
            self._folder = tempfile.TemporaryDirectory(prefix="postroom-simulated-")
        return Path(self._folder.name)
