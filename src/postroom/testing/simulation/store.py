"""A store as one simulated process has it: the real one, with the world between every step and its caller.

Before each step the world may let others go first, end the process, or let the step fail; after it, it judges what was
done, and takes hints away or holds them back. What a store does inside a step is its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, ParamSpec, TypeVar

from postroom.core.message import Draft, MessageWithLedger
from postroom.core.states import State
from postroom.errors import MailboxFull, RoomBusy, RoomClosed
from postroom.stores import contract
from postroom.stores.contract import (
    Cell,
    Change,
    Claimed,
    Delivery,
    Page,
    Query,
    Settled,
    Stats,
    Ticket,
    Want,
    topic_channel,
)

from .judges import ScheduleJudge
from .process import Around, Hinted, Process
from .stage import Killed

P = ParamSpec("P")
T = TypeVar("T")


class SimulatedStore(contract.Store):
    """A real store in the hands of a simulated process."""

    durable = True
    shared = True

    def __init__(self, world: Around, judge: ScheduleJudge, process: Process, inner: contract.Store) -> None:
        self._world = world
        self._judge = judge
        self._process = process
        self._inner = inner
        self._open = True
        self.clock = world.clock
        self._point = world.point
        self._has_disk = world.has_disk

    @property
    def process(self) -> str:
        return self._process.name

    def process_alive(self, process: str) -> bool | None:
        return self._world.is_alive(process)

    def room_ms(self) -> int:
        return self._inner.room_ms()

    # A step

    def _begin(self, step: str, *, writes: bool) -> None:
        world, process = self._world, self._process
        if not process.alive:
            raise Killed
        if not self._open:
            raise RoomClosed
        called_at = world.step
        self._point()
        process.called_at = called_at  # after the point: other threads of the process may have called meanwhile
        if self._has_disk:
            world.settle_cuts()
        if writes and process.fails:
            process.fails -= 1
            process.failed += 1
            world.happened("a write failed")
            world.tell(process, f"{step}: fails")
            raise RoomBusy("simulated: others held the write lock for too long")

    def _end(self, *, rings: bool = True) -> None:
        world, process = self._world, self._process
        if rings and world.hints_go_astray():
            world.take_hints(process)
        if process.dies_after is not None:
            process.dies_after -= 1
            process.dies_in_step = process.dies_in_step or process.dies_after < 0
        if process.dies_in_step:
            world.happened("died after a write, before it heard of it")
            world.kill(process)
            raise Killed

    def _do(self, name: str, method: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """The step itself."""
        if self._has_disk:
            return self._world.step_on_disk(self._process, name, method, args, kwargs)
        return method(*args, **kwargs)

    def _read(self, name: str, method: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        self._begin(name, writes=False)
        return self._do(name, method, *args, **kwargs)

    def _write(self, name: str, method: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        self._begin(name, writes=True)
        done = self._do(name, method, *args, **kwargs)
        self._end()
        return done

    # The way of a message, judged

    def put(self, drafts: Sequence[Draft]) -> list[str]:
        self._begin("put", writes=True)
        before = self._hints_at(drafts)
        try:
            with self._world.break_write(self._process):
                ids = self._do("put", self._inner.put, drafts)
        except MailboxFull:
            self._judge.limits.refused(self._process, drafts, self._judge.now_ms())
            raise
        self._judge.put(self._process, drafts, ids, self._state_of)
        self._judge.judge_freed()
        for topic, hints in before.items():
            self._judge.hinted_alone(topic, hints)
        self._end()
        return ids

    def _state_of(self, id: str) -> State | None:
        """How a message stands, without a step."""
        message = self._inner.get(id)
        return None if message is None else message.exact_state

    @property
    def keeps_limits(self) -> bool:
        """Whether the room goes by the cell LIMITS."""
        return type(self._inner).limits

    def _hints_at(self, drafts: Sequence[Draft]) -> dict[str, dict[Hinted, bool]]:
        """Which waiters have a hint already, at the channels that these drafts are about to come to."""
        topics = {topic_channel(draft.channel) for draft in drafts if draft.to_agent is None and not draft.publish}
        waiters = list(self._world.waiters()) if topics else ()
        return {topic: {w: w.is_rung() for w in waiters if topic in w.topics} for topic in topics}

    def claim(self, want: Want) -> Claimed:
        self._begin("claim", writes=True)
        self._process.claimed_at, self._process.last_want = self._world.step, want
        with self._world.break_write(self._process):
            claimed = self._do("claim", self._inner.claim, want)
        self._judge.claimed(self._process, want, claimed.deliveries)
        self._judge.judge_empty(self._process, want, claimed)
        self._end(rings=bool(claimed.deliveries))
        return claimed

    def claim_answer(self, question: str, want: Want) -> Delivery | None:
        self._begin("claim answer", writes=True)
        delivery = self._do("claim_answer", self._inner.claim_answer, question, want)
        if delivery is not None:
            self._judge.claimed(self._process, want, [delivery])
        self._end(rings=delivery is not None)
        return delivery

    def settle(
        self,
        ticket: Ticket,
        outcome: str,
        *,
        detail: str | None = None,
        delay_s: float = 0,
        puts: Sequence[Draft] = (),
        claim_next: Want | None = None,
    ) -> Settled:
        self._begin("settle", writes=True)
        terms: dict[str, Any] = {"detail": detail, "delay_s": delay_s, "puts": puts, "claim_next": claim_next}
        with self._world.break_write(self._process):
            settled = self._do("settle", self._inner.settle, ticket, outcome, **terms)
        self._judge.settled(self._process, ticket, outcome, puts, settled)
        if claim_next is not None and settled.claimed is not None:
            self._judge.claimed(self._process, claim_next, settled.claimed.deliveries)
            self._judge.judge_empty(self._process, claim_next, settled.claimed)
        self._judge.judge_freed()
        self._end()
        return settled

    def extend(self, ticket: Ticket, lease_s: float) -> bool:
        self._begin("extend", writes=True)
        held = self._do("extend", self._inner.extend, ticket, lease_s)
        self._judge.extended(self._process, ticket, lease_s, held=held, beat=False)
        self._end()
        return held

    def heartbeat(self, tickets: Sequence[Ticket], lease_s: float) -> list[Ticket]:
        self._begin("heartbeat", writes=True)
        lost = self._do("heartbeat", self._inner.heartbeat, tickets, lease_s)
        for ticket in tickets:
            self._judge.extended(self._process, ticket, lease_s, held=ticket not in lost, beat=True)
            if ticket not in lost:
                self._judge.is_leased(ticket, self._inner.get(ticket.id))
        self._end(rings=False)
        return lost

    def abandon(self, *ids: str) -> None:
        self._begin("abandon", writes=True)
        self._do("abandon", self._inner.abandon, *ids)
        for id in ids:
            self._judge.abandoned(self._process, id)
        self._end()

    def sweep(self) -> contract.Swept:
        return self._write("sweep", self._inner.sweep)

    # Everything else

    def note(self, id: str, event: str, agent: str | None, detail: str | None = None) -> bool:
        return self._write("note", self._inner.note, id, event, agent, detail)

    def get(self, id: str) -> MessageWithLedger | None:
        return self._read("get", self._inner.get, id)

    def find(self, query: Query, cursor: int | None = None) -> Page:
        return self._read("find", self._inner.find, query, cursor)

    def events(self, after: int = 0, limit: int = 1000) -> list[Change]:
        return self._read("events", self._inner.events, after, limit)

    def number_at(self, wall_ms: int | None = None) -> int:
        return self._read("number at", self._inner.number_at, wall_ms)

    def withdraw(self, ids: Iterable[str], agent: str, reason: str | None = None) -> list[str]:
        self._begin("withdraw", writes=True)
        ids = list(ids)
        done = self._do("withdraw", self._inner.withdraw, ids, agent, reason)
        self._judge.withdrawn(self._process, done)
        self._judge.not_withdrawn(self._process, set(ids) - set(done), agent)
        self._judge.judge_freed()
        self._end()
        return done

    def requeue(self, ids: Iterable[str]) -> list[str]:
        self._begin("requeue", writes=True)
        done = self._do("requeue", self._inner.requeue, ids)
        self._judge.requeued(self._process, done)
        self._end()
        return done

    def purge(self, query: Query) -> int:
        return self._write("purge", self._inner.purge, query)

    def subscribe(self, channel: str, agent: str) -> None:
        self._begin("subscribe", writes=True)
        self._do("subscribe", self._inner.subscribe, channel, agent)
        self._judge.subscribers.setdefault(channel, set()).add(agent)
        self._end()

    def unsubscribe(self, channel: str, agent: str) -> bool:
        self._begin("unsubscribe", writes=True)
        done = self._do("unsubscribe", self._inner.unsubscribe, channel, agent)
        self._judge.subscribers.get(channel, set()).discard(agent)
        self._end()
        return done

    def subscriptions(self) -> list[contract.Subscription]:
        return self._read("subscriptions", self._inner.subscriptions)

    def cell_read(self, name: str) -> Cell | None:
        self._begin("read cell", writes=False)
        self._judge.presence_read(self._process, name)
        return self._do("read cell", self._inner.cell_read, name)

    def cell_write(self, name: str, value: Any, expect: int = contract.ANY) -> int | None:
        self._begin("write cell", writes=True)
        version = self._do("cell_write", self._inner.cell_write, name, value, expect)
        self._judge.cell_written(self._process, name, value, expect, version)
        self._end()
        return version

    def put_with_cell(self, drafts: Sequence[Draft], name: str, value: Any, expect: int) -> list[str] | None:
        self._begin("put with cell", writes=True)
        before = self._hints_at(drafts)
        with self._world.break_write(self._process):
            ids, version = self._do("put_with_cell", self._put_with_cell, drafts, name, value, expect)
        if ids is not None:
            self._judge.put(self._process, drafts, ids)
        self._judge.cell_written(self._process, name, value, expect, version)
        for topic, hints in before.items() if ids is not None else ():
            self._judge.hinted_alone(topic, hints)
        self._end()
        return ids

    def _put_with_cell(
        self, drafts: Sequence[Draft], name: str, value: Any, expect: int
    ) -> tuple[list[str] | None, int | None]:
        """The ids, and the cell's new version, which the judge is to know."""
        ids = self._inner.put_with_cell(drafts, name, value, expect)
        cell = None if ids is None else self._inner.cell_read(name)
        return ids, None if cell is None else cell.version

    def cell_scan(self, prefix: str) -> list[Cell]:
        return self._read("scan cells", self._inner.cell_scan, prefix)

    def stats(self) -> Stats:
        return self._read("stats", self._inner.stats)

    def work_of(self, agent: str) -> contract.WorkDone:
        return self._read("work of", self._inner.work_of, agent)

    def listen(self, topics: Iterable[str]) -> contract.Waiter:
        if not self._process.alive:
            raise Killed
        if not self._open:
            raise RoomClosed
        self._point()  # something may come between a look and this
        topics = tuple(topics)
        waiter = SimulatedWaiter(self._world, self._judge, self._process, self._inner.listen(topics), topics)
        self._process.waiters[waiter] = None
        return waiter

    def close(self) -> None:
        self._open = False
        self._world.closed(self._process, self._inner)


class SimulatedWaiter(contract.Waiter):
    """A waiter whose hints the world may lose or hold back."""

    def __init__(
        self,
        world: Around,
        judge: ScheduleJudge,
        process: Process,
        inner: contract.Waiter,
        topics: tuple[str, ...],
    ) -> None:
        self._world = world
        self._judge = judge
        self._process = process
        self._inner = inner
        self.topics = topics
        self._closed = False
        self._number = -1
        #: A hint that is held back until that moment; whether one was lost since the last look.
        self.late_ns: int | None = None
        self.missed = False
        self.lost_ns: tuple[int, int] | None = None
        self.armed_at = world.step
        self.alone_for: set[str] = set()

    def wait(self, timeout_s: float | None) -> bool:
        late = self.late_ns is not None and self.late_ns <= self._world.clock.steady_ns()
        if late:
            self.late_ns = None
        hinted = self._inner.wait(timeout_s)
        if hinted:
            self.alone_for.clear()
        return hinted or late

    def fileno(self) -> int:
        self._number = number = self._inner.fileno()
        self._world.waiters_by_fd[number] = self
        return number

    def has_hint(self) -> bool:
        """Whether a hint lies there."""
        return self._closed or bool(self._world.readable((self._inner.fileno(),)))

    def is_rung(self) -> bool:
        """Whether it was rung. A watch over a room's folders, which wakes everybody that looks there, is no bell."""
        bell = getattr(self._inner, "_bell", self._inner)
        return self._closed or bool(self._world.readable((bell.fileno(),)))

    def take_hint(self) -> bool:
        """Take away the hint that lies there; whether one did."""
        self.alone_for.clear()
        late_ns, self.late_ns = self.late_ns, None  # it would seem to lie there
        taken = not self._closed and self._inner.wait(0)
        self.late_ns = late_ns
        return taken

    def close(self) -> None:
        if self._closed:
            return
        dropped = not self._process.alive and self._world.has_disk  # then it went with its process
        if not (self._process.alive or dropped):
            self._inner.wait(0)  # a dead process passes nothing on
        self._closed, self.late_ns = True, None
        self._process.waiters.pop(self, None)
        if self._world.waiters_by_fd.get(self._number) is self:  # the number may be given to another file from here on
            del self._world.waiters_by_fd[self._number]
        if not dropped:
            self._inner.close()
        if self.alone_for and self._process.alive:
            self._judge.left_with_a_hint(self)
