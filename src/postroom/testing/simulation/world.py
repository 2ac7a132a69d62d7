"""The world of one schedule: its clock, its processes, what goes wrong in it, and the choice of who goes on."""

from __future__ import annotations

import select
import tempfile
import threading
from asyncio import AbstractEventLoop
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from itertools import count
from pathlib import Path
from typing import Any, Final, NoReturn, Protocol, TypeVar, cast, runtime_checkable

from postroom.core.clock import Alarm, Chance, Clock
from postroom.core.config import Config
from postroom.core.system.children import ForkServer
from postroom.core.system.process import Threads
from postroom.errors import RoomUnreachable
from postroom.mail.gateway import Gateway
from postroom.stores.contract import Store

from . import plans
from .broken import Broken
from .cuts import CutSteps, StoreStep
from .disk import SimulatedDisk
from .judges import ScheduleJudge
from .plans import Plan, PlannedFault
from .process import Hinted, Process, Trap
from .stage import NEVER_NS, Killed, SimulatedThread, Stage, ThreadOwner
from .store import SimulatedStore

T = TypeVar("T")
_SECOND_NS: Final = 1_000_000_000
#: A pick below this lets the running actor go on, where it can: so most runs are a few steps long.
_GO_ON: Final = 100
#: So many steps in a row are no schedule any more: somebody runs in a circle. The same for so long a time of waiting.
_MOST_STEPS: Final = 6_000
_LONGEST_CALM_NS: Final = 3600 * _SECOND_NS
_WHOLE: Final = nullcontext()
#: A receiver whose hint was lost looks at the latest then.
_LATEST_LOOK_NS: Final = 2 * _SECOND_NS


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


class SimulatedClock(Clock):
    """The world's clock: time stands still while somebody can go on."""

    def __init__(self, world: World, seed: int) -> None:
        self._world = world
        self._random = Chance(seed)
        self.now_ns = 1_000 * _SECOND_NS
        self.wall_offset_ns = 1_790_000_000 * _SECOND_NS
        self.boots = 1
        #: The latest wall time that anybody has read.
        self.highest_wall_ms = 0

    def wall_ms(self) -> int:
        wall_ms = (self.now_ns + self.wall_offset_ns) // 1_000_000
        self.highest_wall_ms = max(self.highest_wall_ms, wall_ms)
        return wall_ms

    def steady_ns(self) -> int:
        return self.now_ns

    def boot_id(self) -> str:
        return f"simulated {self.boots}"

    def random(self) -> float:
        return self._random.random()

    def sleep(self, seconds: float) -> None:
        self._world.wait((), seconds)

    def wait_readable(self, fds: Sequence[int], timeout_s: float | None) -> list[int]:
        return self._world.wait(fds, timeout_s)

    def call_later(self, loop: AbstractEventLoop, seconds: float, call: Callable[[], None]) -> Alarm:
        raise NotImplementedError("a simulated world has no event loop")


class World(Threads):
    """One schedule. `run` takes it to its end; then `failure` says what went wrong, or is None."""

    def __init__(self, plan: Plan, make_rooms: Callable[[World], Rooms], *, traced: bool = False) -> None:
        self.plan = plan
        # twice, so that some messages are delivered for the last time
        self.config = Config(max_deliveries=2, sync="full" if plan.seed % 2 else "normal")
        self.clock = SimulatedClock(self, plan.seed)
        self.stage = Stage(self)
        self.point = self.stage.point
        self.judge = ScheduleJudge(self)
        self.failure: BaseException | None = None
        #: What happened, line by line; None unless it is to be told.
        self.trace: list[str] | None = [] if traced else None
        #: How often each rare state was reached.
        self.reached: Counter[str] = Counter()
        self.waiters_by_fd: dict[int, Hinted] = {}
        self.step = 0
        self.stood_ns = 0  # for how long nobody ran, because a fault let time pass
        self._processes: dict[str, Process] = {}
        self._latest: list[Process] = []  # of each part of the plan
        self._steps = len(plan.picks)
        self._faults = sorted(plan.faults, reverse=True)
        self._restarts: list[tuple[int, Process]] = []
        self._busy: dict[Process, None] = {}  # those whose programs are not at their end
        self._calm_ns: int | None = None
        self._hints_lost_ns = self._hints_late_ns = 0
        self._late_by_ns = 0
        self._lost = False  # whether a hint ever was
        self._opened: dict[str, dict[Process, None]] = {}
        self._left_ns: dict[str, int] = {}
        self._since_ns: dict[str, int] = {}
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        self._playing: dict[threading.Thread, SimulatedThread] = {}
        self._ends: list[Callable[[], None]] = []
        self.fork_server: ForkServer | None = None  # of the pools, if there are any
        self._waited: dict[int, int] = {}  # the descriptors that somebody waits for: how many do
        self._poll = select.poll()  # of all these
        self._work: Callable[[Process], None]
        self.turns: list[ThreadlessTurn] = []
        self._in_turn = False
        self.rooms = make_rooms(self)
        #: Only where there is a disk: it, and the steps that were cut.
        self.disk = self.rooms.disk if isinstance(self.rooms, DiskRooms) else None
        self.cuts = CutSteps(self, self.judge, full_sync=self.config.sync == "full")

    # The run

    def run(self, work: Callable[[Process], None]) -> None:
        """Let every process do its part of the plan by this work, until all are done."""
        self._work = work
        for place, part in enumerate(self.plan.parts):
            self._start(Process(place, 0, part))
        self.stage.run()

    def _start(self, process: Process) -> None:
        self._processes[process.name] = process
        self._latest[process.place : process.place + 1] = [process]
        self._busy[process] = None
        self.stage.add(process, "program", lambda: self._live(process))

    def run_last(self, process: Process, work: Callable[[], None]) -> None:
        """When the schedule is over, let one more process do this."""
        self._work = lambda _: work()
        self._start(process)
        self.stage.run()

    def _live(self, process: Process) -> None:
        try:
            self._work(process)
        except Killed:
            pass
        except BaseException as error:
            self.fail(error)
        self._busy.pop(process, None)

    def fail(self, error: BaseException) -> None:
        """The schedule has failed; of several failures the first counts."""
        if self.failure is None:
            self.failure = error
            self.tell(None, f"FAILS: {type(error).__name__}: {error}")

    def tell(self, process: Process | None, what: str) -> None:
        """Write a line of the trace."""
        if self.trace is not None:
            time_s = self.clock.now_ns / _SECOND_NS - 1000
            self.trace.append(f"{self.step:5} {time_s:9.3f}  {'' if process is None else f'{process!r} '}{what}")

    def happened(self, what: str) -> None:
        """A rare state was reached."""
        self.reached[what] += 1

    def new_store(self, process: Process) -> SimulatedStore:
        """The room's store, opened by a process."""
        inner = self.at_the_disk(process, lambda: self.rooms.open(process.name))
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
                self.at_the_disk(process, inner.close)

    def at_the_disk(self, process: Process, act: Callable[[], T]) -> T:
        """Do something in which a process may die, or its disk may fail."""
        disk = self.disk
        if disk is None:
            return act()
        disk.running = process
        try:
            done = act()
        except BaseException:
            disk.running = None
            self.end_if_cut(process)
            raise
        disk.running = None
        self.end_if_cut(process)
        return done

    @property
    def has_disk(self) -> bool:
        """Whether a step can be cut in the middle."""
        return self.disk is not None

    def settle_cuts(self) -> None:
        """Somebody is about to look at the room: find out which steps that were cut have happened."""
        if self.cuts.open and isinstance(self.rooms, DiskRooms):
            with self.rooms.look() as store:
                self.cuts.settle(store)

    def step_on_disk(
        self, process: Process, name: str, method: Callable[..., T], args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> T:
        """Do a step, which may be cut, or fail with the disk."""
        assert self.disk is not None
        step = StoreStep(process, name, args, kwargs, self.room_ms())
        changes = self.disk.changes
        self.disk.running = process
        try:
            result = method(*args, **kwargs)
        except BaseException as error:
            self.disk.running = None
            self._cut_or_failed(step, error)
            raise
        self.disk.running = None
        if self.disk.is_cut(process):
            self.cuts.open.append(step)
            self.end_if_cut(process)
        self.cuts.done(step, result, wrote=self.disk.changes > changes)
        return result

    def _cut_or_failed(self, step: StoreStep, error: BaseException) -> None:
        """A step raised. Where its process died, nobody knows what became of it; else nothing was changed."""
        process = step.process
        assert self.disk is not None
        if self.disk.is_cut(process):
            self.cuts.open.append(step)
            self.end_if_cut(process)
        if isinstance(error, RoomUnreachable) and isinstance(self.rooms, DiskRooms):
            self.happened("the disk failed, and the caller was told")
            self.tell(process, f"{step.name}: {type(error).__name__}")
            process.failed += 1
            with self.rooms.look() as store:
                self.cuts.failed(step, error, store)

    def end_if_cut(self, process: Process) -> None:
        """If a process died in what it has just done, end it; and all others, if the power was cut."""
        if self.disk is None or not self.disk.is_cut(process):
            return
        if self.disk.is_off:
            self.cut_power(process)
        elif process.alive:
            self.happened("died inside a step")
            self.kill(process)
        raise Killed

    def folder(self) -> Path:
        """The folder of the sessions, which is gone after the schedule."""
        if self._folder is None:
            self._folder = tempfile.TemporaryDirectory(prefix="postroom-simulated-")
        return Path(self._folder.name)

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

    def room_ms(self) -> int:
        return self.rooms.room_ms()

    def highest_wall_ms(self) -> int:
        return self.clock.highest_wall_ms

    def process(self, name: str) -> Process:
        """The process of that name."""
        return self._processes[name]

    def is_alive(self, name: str) -> bool | None:
        """Whether the process of that name lives; None when it is none of this world."""
        process = self._processes.get(name)
        return None if process is None else process.alive

    # Agents

    def agent_is_open(self, process: Process) -> None:
        """A process has its agent open."""
        opened = self._opened.setdefault(process.part.agent, {})
        if not opened:
            self._since_ns[process.part.agent] = self.clock.now_ns
        opened[process] = None

    def agent_is_left(self, process: Process) -> None:
        """A process has closed its agent, or died."""
        opened = self._opened.get(process.part.agent, {})
        if process in opened:
            del opened[process]
            self._left_ns[process.part.agent] = self.clock.now_ns

    def open_since_ns(self, agent: str) -> int:
        """Since when one process or another has had an agent open, or had when the last one left."""
        return self._since_ns[agent]

    def left_ns(self, agent: str) -> int | None:
        """Since when no process has had an agent open; None while one has."""
        return None if self._opened.get(agent) else self._left_ns.get(agent, 0)

    # Threads and waits

    def start(self, thread: threading.Thread) -> None:
        me = self.stage.current
        if me is None or me.killed:
            raise Killed
        self._playing[thread] = self.stage.add(me.process, thread.name, lambda: self._play(thread))

    def _play(self, thread: threading.Thread) -> None:
        try:
            thread.run()
        except (Exception, Broken) as error:
            self.fail(error)

    def join(self, thread: threading.Thread, timeout_s: float | None) -> None:
        actor = self._playing.get(thread)
        if actor is not None and actor is not self.stage.current:
            self.wait_until(lambda: actor.over, timeout_s)

    def wait_for(self, event: threading.Event, timeout_s: float | None) -> bool:
        return self.wait_until(event.is_set, timeout_s)

    def acquire(self, lock: threading.Lock, timeout_s: float | None) -> bool:
        return self.wait_until(lambda: not lock.locked(), timeout_s) and lock.acquire(blocking=False)

    def wait(self, fds: Sequence[int], timeout_s: float | None) -> list[int]:
        """Let others go on until one of the descriptors can be read, or time is over."""
        me = self.stage.current
        if me is None or timeout_s == 0:
            return self.readable(fds)
        if me.killed:
            raise Killed
        me.fds, me.waits, me.ready_fds = fds, True, []
        me.until_ns = NEVER_NS if timeout_s is None else self.clock.now_ns + max(1, round(timeout_s * _SECOND_NS))
        waited, since_ns = self._waited, self.clock.now_ns
        for fd in fds:
            waited[fd] = waited.get(fd, 0) + 1
            self._poll.register(fd, select.POLLIN)
            waiter = self.waiters_by_fd.get(fd)
            if waiter is not None and isinstance(me.process, Process):
                self.judge.waits_unseen(me.process, waiter)
        try:
            self.stage.point()
            if self._lost:
                self._judge_looks(me.process, fds, since_ns)
        finally:
            me.waits = False
            for fd in fds:
                waited[fd] -= 1
                if not waited[fd]:
                    del waited[fd]
                    self._poll.unregister(fd)
        return me.ready_fds

    def wait_until(self, is_so: Callable[[], bool], timeout_s: float | None) -> bool:
        """Let others go on until that is so, or time is over. Returns whether it is so."""
        me = self.stage.current
        if me is None or is_so():
            return is_so()
        me.wakes = is_so
        try:
            self.wait((), timeout_s)
        finally:
            me.wakes = None
        return is_so()

    def take_turns(self, turn: ThreadlessTurn, is_so: Callable[[], bool]) -> None:
        """Let nobody but this go on until that is so, or it has nothing to do."""
        while not is_so() and turn.next_ns() <= self.clock.now_ns:
            self._take(turn)

    def point_if(self, is_so: Callable[[], bool]) -> None:
        """Others may go on here, where that is so and no turn is being taken."""
        if not self._in_turn and self.stage.current is not None and not self.stage.current.killed and is_so():
            self.stage.point()

    def _judge_looks(self, owner: ThreadOwner, fds: Sequence[int], since_ns: int) -> None:
        """A wait since then is over. A hint that was lost in it cost a second or two, while the process could run."""
        for fd in fds:
            waiter = self.waiters_by_fd.get(fd)
            if waiter is not None and waiter.lost_ns is not None:
                lost_ns, stood_ns = waiter.lost_ns
                waiter.lost_ns = None
                late_ns = self.clock.now_ns - max(lost_ns, since_ns)
                if late_ns > _LATEST_LOOK_NS and stood_ns == self.stood_ns + owner.stood_ns:
                    self.fail(Broken(f"{owner!r} lost a hint, and looked only {late_ns / _SECOND_NS:.1f} s later"))

    def readable(self, fds: Sequence[int]) -> list[int]:
        """Those of these descriptors that can be read."""
        poll = select.poll()
        for fd in fds:
            poll.register(fd, select.POLLIN)
        ready = [fd for fd, _ in poll.poll(0)]
        return ready + self._late(fds) if self._late_by_ns else ready

    def _late(self, fds: Iterable[int]) -> list[int]:
        """Those of these descriptors at which a hint lies that was held back until now."""
        now_ns, by_fd = self.clock.now_ns, self.waiters_by_fd
        waiters = ((fd, by_fd.get(fd)) for fd in fds)
        return [fd for fd, w in waiters if w is not None and w.late_ns is not None and w.late_ns <= now_ns]

    # Choosing

    def decide(self) -> SimulatedThread | None:
        """The thread that goes on now; None when the schedule is over."""
        following = self._next(self.stage.current)
        while isinstance(following, ThreadlessTurn):
            self._take(following)
            following = self._next(following)
        return following

    def _take(self, turn: ThreadlessTurn) -> None:
        self._in_turn = True
        try:
            turn.take()
        except Exception as error:
            self.fail(error)
        finally:
            self._in_turn = False

    def _next(self, me: SimulatedThread | ThreadlessTurn | None) -> SimulatedThread | ThreadlessTurn | None:
        """The thread or turn after that one."""
        step, self.step = self.step, self.step + 1
        try:
            while self._faults and self._faults[-1].step <= step:
                self._do(self._faults.pop())
            pick = self.plan.picks[step] if step < self._steps else self._calm_pick(step)
            if self.failure is not None:
                return None
            if pick < _GO_ON and isinstance(me, SimulatedThread) and not (me.waits or me.over):
                process = me.process
                if process.alive and process.frozen_ns is None:
                    return me
            return self._choose(step, pick, me)
        except Killed:
            raise
        except (Exception, Broken) as error:
            self.fail(error)
            return None

    def _calm_pick(self, step: int) -> int:
        if self._calm_ns is None:
            self._calm()
        if step > _MOST_STEPS:
            self._stuck(f"after {step} steps")
        return 0

    def _choose(
        self, step: int, pick: int, me: SimulatedThread | ThreadlessTurn | None
    ) -> SimulatedThread | ThreadlessTurn | None:
        if not (self._busy or self._restarts) and not self._all_again(step):
            return None
        able = self._able()
        while not able:
            self._pass_time()
            able = self._able()
        if step < self._steps:
            return able[pick % len(able)]
        after = -1 if me is None else me.number
        return next((each for each in able if each.number > after), able[0])

    def _all_again(self, step: int) -> bool:
        """Where all died before the calm, all start again. Whether they did."""
        if step >= self._steps:
            return False
        for process in tuple(self._latest):
            self._restart(process)
        return True

    def is_calm(self) -> bool:
        """Whether the faults have stopped."""
        return self.step >= self._steps

    def _able(self) -> list[SimulatedThread | ThreadlessTurn]:
        """The actors that can go on now, in the order in which they came."""
        now_ns = self.clock.now_ns
        for process in self._latest:
            if process.frozen_ns is not None and process.frozen_ns <= now_ns:
                self._thaw(process)
        while self._restarts and self._restarts[0][0] <= now_ns:
            self._restart(self._restarts.pop(0)[1])
        ready = [fd for fd, _ in self._poll.poll(0)]
        if self._late_by_ns:
            ready += self._late(self._waited)
        able: list[SimulatedThread | ThreadlessTurn] = []
        for actor in self.stage.actors:
            if actor.waits:
                actor.ready_fds = [fd for fd in actor.fds if fd in ready] if ready and actor.fds else []
                is_woken = actor.ready_fds or (actor.wakes is not None and actor.wakes())
                if not is_woken and actor.until_ns > now_ns:
                    continue
            if actor.process.frozen_ns is None:
                able.append(actor)
        able += (turn for turn in self._turns() if turn.next_ns() <= now_ns)
        return able

    def _turns(self) -> Iterator[ThreadlessTurn]:
        """Those whose process can run."""
        for turn in self.turns:
            if turn.process is None or (turn.process.alive and turn.process.frozen_ns is None):
                yield turn

    def _pass_time(self) -> None:
        """Nobody can go on: let time pass until somebody can."""
        moments = [at_ns for at_ns, _ in self._restarts]
        moments += [process.frozen_ns for process in self._latest if process.frozen_ns is not None]
        moments += [waiter.late_ns for waiter in self.waiters_by_fd.values() if waiter.late_ns is not None]
        moments += [turn.next_ns() for turn in self._turns()]
        for actor in self.stage.actors:
            if actor.waits:
                moments.append(actor.until_ns)
        later = [moment for moment in moments if self.clock.now_ns < moment < NEVER_NS]
        if not later or (self._calm_ns is not None and min(later) - self._calm_ns > _LONGEST_CALM_NS):
            self._stuck("for an hour" if later else "for ever")
        self.clock.now_ns = min(later)

    def _stuck(self, how: str) -> NoReturn:
        left = [f"{actor.process!r} {actor.name}" for actor in self.stage.actors]
        raise Broken(f"these wait {how}: {', '.join(left)}")

    # What goes wrong

    def _do(self, fault: PlannedFault) -> None:
        self.tell(None, f"fault: {fault}")
        span_ns = round(fault.span_s * _SECOND_NS)
        if fault.kind in plans.WIRE:
            if isinstance(self.rooms, FaultyRooms):
                self.rooms.suffer(fault.kind, self._latest[fault.part], span_ns)
        elif fault.kind in plans.NOBODYS:
            self._do_to_all(fault.kind, span_ns)
        elif self._latest[fault.part].alive:
            self._do_to_one(fault.kind, self._latest[fault.part], span_ns)

    def _do_to_all(self, kind: str, span_ns: int) -> None:
        if kind == plans.TIME:
            self.clock.now_ns += span_ns
            self.stood_ns += span_ns
        elif kind == plans.WALL:
            self.clock.wall_offset_ns += span_ns
        elif kind == plans.LOSE_HINTS:
            self._hints_lost_ns = self.clock.now_ns + span_ns
        else:
            self._hints_late_ns, self._late_by_ns = self.clock.now_ns + span_ns, span_ns // 2

    def _do_to_one(self, kind: str, process: Process, span_ns: int) -> None:
        if kind == plans.FREEZE:
            self._freeze(process, span_ns)
        elif kind == plans.BREAK:
            process.breaks_after = int(span_ns // _SECOND_NS)
        elif kind in plans.INSIDE and self.disk is not None:
            if kind == plans.POWER_CUT and not isinstance(self.rooms, PowerRooms):
                kind = plans.KILL_INSIDE  # the nearest that there is
            process.trap = Trap(kind, round(span_ns / _SECOND_NS))
        elif kind in (plans.FAIL, plans.FAIL_DISK):
            process.fails += 1
        elif kind in (plans.KILL_IN_STEP, *plans.INSIDE):
            process.dies_in_step = True
        else:
            if kind == plans.KILL_AND_RESTART:
                self._restarts = sorted([*self._restarts, (self.clock.now_ns + span_ns, process)], key=lambda r: r[0])
            self.kill(process)

    def die(self, process: Process) -> None:
        """End the process that runs now, unless the faults have stopped."""
        if not self.is_calm():
            self.kill(process)
            raise Killed

    def freeze(self, process: Process, span_s: float) -> None:
        """Let a process stand still for so long, unless the faults have stopped."""
        if not self.is_calm():
            self.tell(process, f"stands still for {span_s:g} s")
            self._freeze(process, round(span_s * _SECOND_NS))

    def _freeze(self, process: Process, span_ns: int) -> None:
        if process.frozen_ns is None:
            process.frozen_ns, process.stood_ns = self.clock.now_ns + span_ns, process.stood_ns + span_ns

    def break_write(self, process: Process) -> AbstractContextManager[None]:
        if process.breaks_after is None:
            return _WHOLE
        after, process.breaks_after = process.breaks_after, None
        breaking: Callable[[Process, int], AbstractContextManager[None]] | None
        breaking = getattr(self.rooms, "break_write", None)  # of a room in memory alone
        return _WHOLE if breaking is None else breaking(process, after)

    def kill(self, process: Process) -> None:
        """End a process here and now: nothing of it runs any more, and nothing that it was about to do is done."""
        self.tell(process, "dies")
        process.alive, process.frozen_ns, process.dies_in_step, process.dies_after = False, None, False, None
        self._busy.pop(process, None)
        self.agent_is_left(process)
        for actor in tuple(self.stage.actors):
            if actor.process is process:
                self.stage.take_down(actor)
        if isinstance(self.rooms, DiskRooms):
            self.rooms.drop(process)
        for waiter in tuple(process.waiters):
            waiter.close()

    def cut_power(self, process: Process) -> None:
        """End all processes here and now, while this one runs, and lose what was not synced. Then they start again."""
        rooms = cast("PowerRooms", self.rooms)
        self.tell(None, "the power is cut")
        self.happened("the power was cut inside a step")
        for each in tuple(self._latest):
            if each.alive:
                self.kill(each)
        self._restarts = [(self.clock.now_ns + _SECOND_NS, each) for each in self._latest]
        self.clock.boots += 1
        rooms.cut_power(Chance(f"power {self.plan.seed} {self.step}"))
        try:
            with rooms.look() as store:
                faults = rooms.faults(store)
                if faults:
                    raise Broken(f"a power cut has damaged the room: {faults[0]}")
                self.cuts.after_power_cut(store)
        except Exception as error:
            self.fail(error)

    def running(self) -> Process | None:
        """The process that runs now."""
        actor = self.stage.current
        return actor.process if actor is not None and isinstance(actor.process, Process) else None

    def _restart(self, before: Process) -> None:
        process = Process(before.place, before.life + 1, before.part)
        process.next_op = before.next_op
        self.tell(process, "starts")
        self._start(process)

    def _thaw(self, process: Process) -> None:
        process.frozen_ns = None
        self.tell(process, "goes on")

    def _calm(self) -> None:
        """The faults have stopped."""
        self._calm_ns = self.clock.now_ns
        self._hints_lost_ns = self._hints_late_ns = 0
        self.tell(None, "calm")
        if isinstance(self.rooms, FaultyRooms):
            self.rooms.heal()
        for process in self._latest:
            process.dies_in_step, process.fails, process.dies_after, process.breaks_after = False, 0, None, None
            process.trap = None
            if process.frozen_ns is not None:
                self._thaw(process)

    def waiters(self) -> Iterator[Hinted]:
        """The waiters of all processes that live."""
        for process in self._processes.values():
            if process.alive:
                yield from process.waiters

    def hints_go_astray(self) -> bool:
        """Whether hints are lost or held back just now."""
        return self.clock.now_ns < max(self._hints_lost_ns, self._hints_late_ns)

    def take_hints(self, ringer: Process) -> None:
        """Lose the hints that a step of this process gave, or hold them back."""
        for process in self._latest:
            for waiter in process.waiters if process is not ringer else ():
                if waiter.take_hint():
                    if self.clock.now_ns < self._hints_lost_ns:
                        waiter.missed = self._lost = True
                        if waiter.lost_ns is None and process.frozen_ns is None:
                            waiter.lost_ns = self.clock.now_ns, self.stood_ns + process.stood_ns
                        self.happened("a hint was lost")
                    else:
                        waiter.late_ns = self.clock.now_ns + self._late_by_ns
                        self.happened("a hint was late")
