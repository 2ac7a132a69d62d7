"""A schedule from its seed to its verdict."""

from __future__ import annotations

import gc
import logging
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final, NamedTuple

from postroom.board.board import Board
from postroom.core.config import AGENT_LEASE_S
from postroom.core.system.process import play_threads
from postroom.core.system.watch import LISTENER
from postroom.stores.contract import Store, Want

from . import plans
from .broken import Broken
from .files_room import FilesRoom
from .nats_room import SimulatedNatsRoom
from .plans import CHANNEL, Plan, PlannedProcess
from .process import Process
from .programs import run_program
from .programs.decisions import consider
from .programs.limits import resume
from .programs.program import Program
from .rooms import MemoryRoom
from .sqlite_room import SqliteRoom
from .world import Rooms, World

#: The kinds of rooms that can be simulated.
STORES: Final[dict[str, Callable[[World], Rooms]]] = {
    "memory": MemoryRoom,
    "sqlite": SqliteRoom,
    "files": FilesRoom,
    "nats": SimulatedNatsRoom,
}
#: Those whose steps can be cut in the middle, by a death or by a disk that fails.
ON_DISK: Final = ("sqlite", "files")
DEFAULT_STEPS: Final = 50
#: On NATS a step of the store is about so many of the schedule: each request, and each answer, is one.
NATS_STEPS: Final = 4
#: Rare states that a few thousand schedules must have reached, each of them: else they do not try what they should.
RARE: Final = (
    "a claim was taken over after a death",
    "a claim was taken over after its lease ended",
    "a compare-and-set was lost",
    "a heartbeat kept a message",
    "a late word counted: nobody had taken the message",
    "a late word on a task counted",
    "a late word on a task was refused",
    "a late word was refused",
    "a lease was extended",
    "a deadlock was found",
    "a decision of another was found",
    "a decision was made",
    "a decision was taken over",
    "a limit was reached: so many a second",
    "a limit was reached: so many at once",
    "a lost hint was covered by a look",
    "a mailbox was full",
    "a member was told: Deadlock",
    "a member was told: SessionEnded",
    "a member was told: SessionFailed",
    "a message could not be withdrawn",
    "a message died with its last receiver",
    "a message expired",
    "a message was put back",
    "a message was replaced",
    "a message was withdrawn",
    "a question ended without an answer",
    "a repeated key stored nothing",
    "a request was done",
    "a request: WorkerDied",
    "a request: WorkerTimeout",
    "a sender was told that its message was acked",
    "a step broke in its middle",
    "a task was done",
    "a tick was missed, and the policy decided",
    "a tick was sent",
    "a task was taken over",
    "a write failed",
    "an answer came to a dead asker",
    "an answer came when nobody waited for it any more",
    "an asker got its answer",
    "an asker ran out of time",
    "an asker was refused",
    "an asker was told that its peer is gone",
    "an unseen message went back",
    "died after a write, before it heard of it",
    "something was paused",
    "the next of its order key came",
    "the last delivery failed",
)
_ON_ANY_DISK: Final = (
    "a write was torn",
    "died inside a step",
    "died inside a step, which was done",
    "the disk failed, and the caller was told",
)
_ON_A_DISK_THAT_FORGETS: Final = (
    "a log that nobody had closed was recovered",
    "a power cut took what had returned",
    "the log was folded back into the file",
    "the power was cut inside a step",
)
#: The same for each store: rooms on disks have further states. A fault that comes in between may keep others away.
RARE_ON: Final = {
    "memory": RARE,
    "sqlite": (*RARE, *_ON_ANY_DISK, *_ON_A_DISK_THAT_FORGETS),
    "files": (*RARE, *_ON_ANY_DISK),
}
#: After so many schedules what they left is collected: descriptors among it.
_COLLECT_EVERY: Final = 4
_ALL: Final = 1000
#: What is addressed to each agent, and what is addressed to nobody.
_MAILBOXES: Final = (*((agent, None) for agent in (*plans.AGENTS, plans.LEAD)), (plans.AGENTS[0], (CHANNEL,)))
_SECOND_NS: Final = 1_000_000_000
#: So many looks are enough for everything that a schedule sends, at the slowest rate.
_ROUNDS: Final = 1000
#: Every process that has the room open has sent by then what was due.
_OPENED_S: Final = 0.2
_runs = [0]


class ScheduleOutcome(NamedTuple):
    """What became of a schedule."""

    plan: Plan
    #: What broke; None when every promise held.
    failure: BaseException | None
    #: How often each rare state was reached.
    reached: Counter[str]
    #: How many steps it took, the calm included.
    steps: int
    #: What happened, line by line; empty unless it was asked for.
    trace: list[str]

    def report(self) -> list[str]:
        """The schedule in words: its seed, what each process does, what went wrong, and what happened."""
        lines = [f"seed {self.plan.seed}: {self.failure or 'every promise held'}", *self.plan.lines(), *self.trace]
        if self.failure is not None and not isinstance(self.failure, Broken):
            lines += traceback.format_exception(self.failure)
        return lines


def simulate(
    seed: int,
    *,
    store: str = "memory",
    steps: int = DEFAULT_STEPS,
    traced: bool = False,
    theme: str | None = None,
) -> ScheduleOutcome:
    """Run the schedule of a seed; with `theme` (one of `plans.THEMES`), its programs do that and nothing else."""
    if store == "nats":
        return run(plans.draw(seed, steps * NATS_STEPS, wire=True, theme=theme), store=store, traced=traced)
    plan = plans.draw(seed, steps, theme=theme)
    return run(plans.with_disk_faults(plan) if store in ON_DISK else plan, store=store, traced=traced)


def run(plan: Plan, *, store: str = "memory", traced: bool = False) -> ScheduleOutcome:
    """Run a plan; the same plan is the same run."""
    with _quiet() as complaints:
        world = World(plan, STORES[store], traced=traced)
        complaints.fail = world.fail
        before = play_threads(world)
        LISTENER.on_file = _watch_nothing  # type: ignore[method-assign, assignment]  # for this schedule
        try:
            world.run(lambda process: run_program(world, process))
            if world.failure is None:
                _judge_the_end(world)
        finally:
            del LISTENER.on_file
            play_threads(before)
            world.close()
    return ScheduleOutcome(plan, world.failure, world.reached, world.step, world.trace or [])


def _watch_nothing(*_: object) -> Callable[[], None]:
    """Folders of sessions are not watched: that is a thread of the whole real process."""
    return lambda: None


def _judge_the_end(world: World) -> None:
    """Receive what is left: first what the dead held, then, when every lease is over, the rest. Nothing may stay."""
    last = Process(len(world.plan.parts), 0, PlannedProcess("last", ()))

    def look() -> None:
        store = world.new_store(last)
        world.settle_cuts()
        if world.judge.limits:
            _resume_all(world, last)
        _receive_all(world, store)
        if world.judge.tasks:
            _look_at_the_board(world, world.new_store(last))
            _receive_all(world, store)
        if world.judge.decisions.considered:
            _decide_all(world, last)
        if world.judge.ticks:
            _fire_all(world, last)
            _receive_all(world, store)
        world.judge.nothing_is_held_by_the_dead(store)
        if not world.judge.sees_deaths:
            _bury_the_silent(world, store)
            if world.judge.tasks:
                _look_at_the_board(world, world.new_store(last))
        world.clock.now_ns += round(2 * AGENT_LEASE_S * _SECOND_NS)
        if world.judge.has_open():
            _receive_all(world, store)
        world.judge.at_the_end(store)

    world.run_last(last, look)


def _bury_the_silent(world: World, store: Store) -> None:
    """Of processes on other machines their silence tells, when somebody looks twice."""
    for _ in range(2):
        world.clock.now_ns += round(AGENT_LEASE_S * _SECOND_NS)
        store.sweep()


def _look_at_the_board(world: World, store: Store) -> None:
    """A look at the board frees what the dead held, and tells the leads what they must know. Then claim what is left."""
    gateway = world.new_gateway(store)
    board = Board(gateway)
    noted = world.judge.tasks.noted()
    board.tasks()
    if world.judge.sees_deaths:
        world.judge.tasks.nothing_is_held_by_the_dead(noted)
    world.judge.tasks.leads_were_told()
    while board.claim("last", transient=True) is not None:
        pass
    gateway.close()


def _decide_all(world: World, last: Process) -> None:
    """Whatever became of the coordinators that considered them, every message gets its decision."""
    program = Program(world, last)
    for id in sorted(world.judge.decisions.considered):
        consider(program, id, (0.0,))
    program.close()


def _fire_all(world: World, last: Process) -> None:
    """The next one that opens the room sends what is due. Then, with nobody there, time may pass."""
    program = Program(world, last)
    program.room.stats()
    program.clock.sleep(_OPENED_S)
    world.judge.ticks.at_the_end()
    program.close()


def _receive_all(world: World, store: Store) -> None:
    """Take everything: of an order key one after the other, and under limits as soon as they let it pass."""
    for _ in range(_ROUNDS):
        claims = [
            store.claim(Want(agent=agent, lease_s=AGENT_LEASE_S, channels=channels, limit=_ALL, settle=True))
            for agent, channels in _MAILBOXES
        ]
        came = any(claimed.deliveries for claimed in claims)
        if not (world.judge.limits or (world.judge.orders and came)) or not world.judge.has_open():
            return
        if not came:
            due_s = min((claimed.next_due_s for claimed in claims if claimed.next_due_s is not None), default=None)
            if due_s is None:
                return  # what is open then, the judge tells
            world.clock.now_ns += max(1, round(due_s * _SECOND_NS))
    raise Broken("with limits, and without pauses, mail does not come to an end")


def _resume_all(world: World, last: Process) -> None:
    """Pauses end; the rules stay."""
    program = Program(world, last)
    resume(program)
    program.close()


class _Complaints(logging.Handler):
    """Errors that the product only logs are failures here."""

    fail: Callable[[BaseException], None]

    def emit(self, record: logging.LogRecord) -> None:
        error = record.exc_info[1] if record.exc_info else None
        self.fail(error or Broken(f"an error was logged: {record.getMessage()}"))


@contextmanager
def _quiet() -> Iterator[_Complaints]:
    """Keep warnings and the log of the product to ourselves, and the collector of garbage out of the schedules."""
    log, complaints = logging.getLogger("postroom"), _Complaints(logging.ERROR)
    level, propagate = log.level, log.propagate
    _runs[0] += 1
    if _runs[0] % _COLLECT_EVERY == 0:
        gc.collect(0)  # what was made since the last time is all young: no collection ran meanwhile
    gc.disable()
    log.addHandler(complaints)
    log.setLevel(logging.ERROR)
    log.propagate = False
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            yield complaints
        finally:
            gc.enable()
            log.setLevel(level)
            log.propagate = propagate
            log.removeHandler(complaints)
