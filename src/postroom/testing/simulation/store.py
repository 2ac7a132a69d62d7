"""A store as one simulated process has it: the real one, with the world between every step and its caller.

Before each step the world may let others go first, end the process, or let the step fail; after it, it judges what was
done, and takes hints away or holds them back. What a store does inside a step is its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, ParamSpec, TypeVar

from postroom.core.message import Draft, MessageWithLedger
from postroom.errors import RoomBusy, RoomClosed
from postroom.stores import contract
from postroom.stores.contract import Cell, Change, Claimed, Delivery, Page, Query, Settled, Stats, Ticket, Want

from .judges import ScheduleJudge
from .process import Around, Process
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
        self._point()
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
        if process.dies_in_step:
            world.happened("died after a write, before it heard of it")
            world.kill(process)
            raise Killed

    def _read(self, name: str, method: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        self._begin(name, writes=False)
        return method(*args, **kwargs)

    def _write(self, name: str, method: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        self._begin(name, writes=True)
        done = method(*args, **kwargs)
        self._end()
        return done

    # The way of a message, judged

    def put(self, drafts: Sequence[Draft]) -> list[str]:
        self._begin("put", writes=True)
        ids = self._inner.put(drafts)
        self._judge.put(self._process, drafts, ids)
        self._end()
        return ids

    def claim(self, want: Want) -> Claimed:
        self._begin("claim", writes=True)
        claimed = self._inner.claim(want)
        self._judge.claimed(self._process, want, claimed.deliveries)
        self._end(rings=bool(claimed.deliveries))
        return claimed

    def claim_answer(self, question: str, want: Want) -> Delivery | None:
        self._begin("claim answer", writes=True)
        delivery = self._inner.claim_answer(question, want)
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
        settled = self._inner.settle(ticket, outcome, detail=detail, delay_s=delay_s, puts=puts, claim_next=claim_next)
        self._judge.settled(self._process, ticket, outcome, puts, settled)
        if claim_next is not None and settled.claimed is not None:
            self._judge.claimed(self._process, claim_next, settled.claimed.deliveries)
        self._end()
        return settled

    def extend(self, ticket: Ticket, lease_s: float) -> bool:
        self._begin("extend", writes=True)
        held = self._inner.extend(ticket, lease_s)
        self._judge.extended(self._process, ticket, lease_s, held=held, beat=False)
        self._end()
        return held

    def heartbeat(self, tickets: Sequence[Ticket], lease_s: float) -> list[Ticket]:
        self._begin("heartbeat", writes=True)
        lost = self._inner.heartbeat(tickets, lease_s)
        for ticket in tickets:
            self._judge.extended(self._process, ticket, lease_s, held=ticket not in lost, beat=True)
        self._end(rings=False)
        return lost

    def abandon(self, id: str) -> None:
        self._begin("abandon", writes=True)
        self._inner.abandon(id)
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

    def requeue(self, ids: Iterable[str]) -> list[str]:
        return self._write("requeue", self._inner.requeue, ids)

    def purge(self, query: Query) -> int:
        return self._write("purge", self._inner.purge, query)

    def subscribe(self, channel: str, agent: str) -> None:
        self._write("subscribe", self._inner.subscribe, channel, agent)

    def unsubscribe(self, channel: str, agent: str) -> bool:
        return self._write("unsubscribe", self._inner.unsubscribe, channel, agent)

    def subscriptions(self) -> list[contract.Subscription]:
        return self._read("subscriptions", self._inner.subscriptions)

    def cell_read(self, name: str) -> Cell | None:
        return self._read("read cell", self._inner.cell_read, name)

    def cell_write(self, name: str, value: Any, expect: int = contract.ANY) -> int | None:
        self._begin("write cell", writes=True)
        version = self._inner.cell_write(name, value, expect)
        self._judge.cell_written(self._process, name, value, expect, version)
        self._end()
        return version

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
        topics = tuple(topics)
        waiter = SimulatedWaiter(self._world, self._process, self._inner.listen(topics), topics)
        self._process.waiters[waiter] = None
        return waiter

    def close(self) -> None:
        self._open = False
        self._world.closed(self._process, self._inner)


class SimulatedWaiter(contract.Waiter):
    """A waiter whose hints the world may lose or hold back."""

    def __init__(self, world: Around, process: Process, inner: contract.Waiter, topics: tuple[str, ...]) -> None:
        self._world = world
        self._process = process
        self._inner = inner
        self.topics = topics
        self._closed = False
        self._number = -1
        #: A hint that is held back until that moment; whether one was lost since the last look.
        self.late_ns: int | None = None
        self.missed = False
        self.lost_ns: tuple[int, int] | None = None

    def wait(self, timeout_s: float | None) -> bool:
        late = self.late_ns is not None and self.late_ns <= self._world.clock.steady_ns()
        if late:
            self.late_ns = None
        return self._inner.wait(timeout_s) or late

    def fileno(self) -> int:
        self._number = number = self._inner.fileno()
        self._world.waiters_by_fd[number] = self
        return number

    def has_hint(self) -> bool:
        """Whether a hint lies there."""
        return self._closed or bool(self._world.readable((self._inner.fileno(),)))

    def take_hint(self) -> bool:
        """Take away the hint that lies there; whether one did."""
        return not self._closed and self._inner.wait(0)

    def close(self) -> None:
        if self._closed:
            return
        if not self._process.alive:
            self._inner.wait(0)  # a dead process passes nothing on
        self._closed, self.late_ns = True, None
        self._process.waiters.pop(self, None)
        if self._world.waiters_by_fd.get(self._number) is self:  # the number may be given to another file from here on
            del self._world.waiters_by_fd[self._number]
        self._inner.close()
