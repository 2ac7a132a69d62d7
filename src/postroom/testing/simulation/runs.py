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
from postroom.mail.gateway import Gateway
from postroom.stores.contract import Store, Want

from . import plans
from .judges import Broken
from .plans import CHANNEL, Plan, PlannedProcess
from .process import Process
from .programs import SimulatedProgram
from .rooms import MemoryRoom, SqliteRoom
from .world import Rooms, World

#: The kinds of rooms that can be simulated.
STORES: Final[dict[str, Callable[[World], Rooms]]] = {"memory": MemoryRoom, "sqlite": SqliteRoom}
DEFAULT_STEPS: Final = 50
#: Rare states that a few thousand schedules must have reached, each of them: else they do not try what they should.
RARE: Final = (
    "a claim was taken over after a death",
    "a claim was taken over after its lease ended",
    "a compare-and-set was lost",
    "a heartbeat kept a message",
    "a late word counted: nobody had taken the message",
    "a late word on a task was refused",
    "a late word was refused",
    "a lease was extended",
    "a deadlock was found",
    "a lost hint was covered by a look",
    "a member was told: Deadlock",
    "a member was told: SessionEnded",
    "a member was told: SessionFailed",
    "a message died with its last receiver",
    "a message expired",
    "a question ended without an answer",
    "a repeated key stored nothing",
    "a sender was told that its message was acked",
    "a task was done",
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
    "the last delivery failed",
)
#: After so many schedules what they left is collected: descriptors among it.
_COLLECT_EVERY: Final = 4
_ALL: Final = 1000
#: What is addressed to each agent, and what is addressed to nobody.
_MAILBOXES: Final = (*((agent, None) for agent in plans.AGENTS), (plans.AGENTS[0], (CHANNEL,)))
_SECOND_NS: Final = 1_000_000_000
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


def simulate(seed: int, *, store: str = "memory", steps: int = DEFAULT_STEPS, traced: bool = False) -> ScheduleOutcome:
    """Run the schedule of a seed."""
    return run(plans.draw(seed, steps), store=store, traced=traced)


def run(plan: Plan, *, store: str = "memory", traced: bool = False) -> ScheduleOutcome:
    """Run a plan; the same plan is the same run."""
    with _quiet() as complaints:
        world = World(plan, STORES[store], traced=traced)
        complaints.fail = world.fail
        before = play_threads(world)
        LISTENER.on_file = _watch_nothing  # type: ignore[method-assign, assignment]  # for this schedule
        try:
            world.run(lambda process: SimulatedProgram(world, process).run())
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
        _receive_all(store)
        if world.judge.tasks:
            _claim_all_tasks(world, world.new_store(last))
        world.judge.nothing_is_held_by_the_dead(store)
        world.clock.now_ns += round(2 * AGENT_LEASE_S * _SECOND_NS)
        if world.judge.has_open():
            _receive_all(store)
        world.judge.at_the_end(store)

    world.run_last(last, look)


def _claim_all_tasks(world: World, store: Store) -> None:
    gateway = Gateway(store, world.config, world.clock)
    board = Board(gateway)
    while board.claim("last", transient=True) is not None:
        pass
    gateway.close()


def _receive_all(store: Store) -> None:
    for agent, channels in _MAILBOXES:
        store.claim(Want(agent=agent, lease_s=AGENT_LEASE_S, channels=channels, limit=_ALL, settle=True))


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
