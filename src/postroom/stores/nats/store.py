"""A room on NATS JetStream: the same promises for programs on many machines.

One stream for each room, in which every message has one entry; every change replaces that entry if it is still the one that
was read (nats_entries.py). A claim is chosen from what this process knows of the room (nats_tables.py, nats_following.py) and
made by such a replacement, so that of several claimers one wins; the sequence of the entry is its fencing token.
Leases are only a time in the entry, honoured by whoever claims next: nothing on the servers ends them, so nothing can
happen there between the end of a lease and an ack.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterable, Sequence
from contextlib import suppress
from queue import Empty, SimpleQueue
from types import FrameType
from typing import Any, ClassVar, Final

from postroom.core.clock import SYSTEM, Clock
from postroom.core.config import Config, RoomUrl
from postroom.core.message import Draft, Message
from postroom.core.states import NOTES, State
from postroom.errors import InvalidMessage, RoomClosed
from postroom.stores import contract
from postroom.stores.contract import (
    Cell,
    Change,
    Claimed,
    Page,
    Query,
    Settled,
    Stats,
    Subscription,
    Swept,
    Ticket,
    Waiter,
    Want,
    WorkDone,
)

from . import cells, claims, housekeeping, putting, reading
from .access import access_of
from .entries import Entry, Kept, WriteTime, abandoned, noted, unheld
from .link import forget_loop_after_fork
from .room import NatsRoom

#: Closing waits so long for what other threads do, in seconds.
CLOSE_S: Final = 2.0

os.register_at_fork(after_in_child=forget_loop_after_fork)


class _ThreadStep(threading.local):
    """The method that is in the middle of a step in this thread."""

    step: FrameType | None = None


class _Step:
    """One step: `with` this. Should an interrupt keep it from its end, the next step of the thread sees that it is over."""

    __slots__ = ("_store",)

    def __init__(self, store: NatsStore) -> None:
        self._store = store

    def __enter__(self) -> NatsRoom:
        return self._store.begin(sys._getframe(1))  # noqa: SLF001  (inspect, which has the same, takes long to load)

    def __exit__(self, *_: object) -> None:
        self._store.end()


def is_around(step: FrameType | None, frame: FrameType | None) -> bool:
    """Whether a call is made within that step."""
    while step is not None and frame is not None:
        if frame is step:
            return True
        frame = frame.f_back
    return False


class NatsStore(contract.Store):
    """A room that many machines share."""

    durable: ClassVar[bool] = True
    shared: ClassVar[bool] = True
    exact_fifo: ClassVar[bool] = False

    def __init__(self, url: RoomUrl, config: Config, clock: Clock, *, create: bool = True) -> None:
        access, name = access_of(url, config)
        self.clock = clock
        self._pid = os.getpid()
        self._open = True
        self._inside: set[int] = set()  # the threads that are in the middle of a step
        self._mine = _ThreadStep()
        self._ended: SimpleQueue[None] = SimpleQueue()  # a word for each step that ends after the room is closed
        self._room = NatsRoom(access, name, config, clock, create=create)

    def _enter(self) -> _Step:
        """The room, for one step; RoomClosed when it may not be used any more, or not from here."""
        if self._pid != os.getpid():
            raise RoomClosed(
                "this room was opened before the process forked; fork first, or start processes with spawn"
            )
        return _Step(self)

    def begin(self, caller: FrameType) -> NatsRoom:
        """That method begins a step in this thread. Raises RoomBusy in the middle of another one."""
        if is_around(self._mine.step, caller):
            raise contract.in_the_middle()
        # No lock, which an interrupt could leave taken: who closes the room says so first, and then looks who is inside.
        self._inside.add(threading.get_ident())
        if not self._open:
            self.end()
            raise RoomClosed
        self._mine.step = caller
        return self._room

    def end(self) -> None:
        """The step of this thread is over."""
        self._mine.step = None
        self._inside.discard(threading.get_ident())
        if not self._open:
            self._ended.put(None)

    # Putting

    def put(self, drafts: Sequence[Draft]) -> list[str]:
        with self._enter() as room:
            return putting.put(room, drafts) if drafts else []

    def subscribe(self, channel: str, agent: str) -> None:
        with self._enter() as room:
            cells.subscribe(room, channel, agent)

    def unsubscribe(self, channel: str, agent: str) -> bool:
        with self._enter() as room:
            return cells.unsubscribe(room, channel, agent)

    def subscriptions(self) -> list[Subscription]:
        with self._enter() as room:
            return cells.subscriptions(room)

    # Taking

    def claim(self, want: Want) -> Claimed:
        with self._enter() as room:
            return claims.claim(room, want)

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
        with self._enter() as room:
            if outcome not in contract.OUTCOMES:
                raise InvalidMessage("outcome", f"must be one of {', '.join(contract.OUTCOMES)}, not {outcome!r}")
            return claims.settle(room, ticket, outcome, detail, delay_s, puts, claim_next)

    def extend(self, ticket: Ticket, lease_s: float) -> bool:
        with self._enter() as room:
            return claims.extend(room, ticket, lease_s)

    def note(self, id: str, event: str, agent: str | None, detail: str | None = None) -> bool:
        with self._enter() as room:
            if event not in NOTES:
                raise InvalidMessage("event", f"must be one of {', '.join(NOTES)}, not {event!r}")
            there = []

            def step(kept: Kept, moment: WriteTime) -> Entry | None:
                there.append(True)
                return noted(kept, event, agent, detail, moment)

            room.change(id, step)
            return bool(there)

    def abandon(self, id: str) -> None:
        with self._enter() as room:
            held: list[str] | None = None

            def step(kept: Kept, moment: WriteTime) -> Entry | None:
                nonlocal held  # of the very entry that is replaced: an answer may come at this moment (tests/stores/test_nats.py)
                held = [*kept.entry.held]
                waits = kept.entry.waiter is not None and kept.state is not State.AWAITED
                return abandoned(kept, moment) if waits else None

            room.change(id, step)
            if held is None:  # it was deleted; its answers know what they answer
                held = [answer.id for answer in reading.find(room, Query(answer_to=id), None).messages]
            for answer in held:
                room.change(answer, lambda kept, moment: unheld(kept, moment) if kept.state is State.AWAITED else None)

    def requeue(self, ids: Iterable[str]) -> list[str]:
        with self._enter() as room:
            return [id for id in dict.fromkeys(ids) if housekeeping.requeue(room, id)]

    # Reading

    def get(self, id: str) -> Message | None:
        with self._enter() as room:
            return reading.get(room, id)

    def find(self, query: Query, cursor: int | None = None) -> Page:
        with self._enter() as room:
            return reading.find(room, query, cursor)

    def events(self, after: int = 0, limit: int = 1000) -> list[Change]:
        with self._enter() as room:
            return reading.events(room, after, limit)

    def number_at(self, wall_ms: int | None = None) -> int:
        with self._enter() as room:
            return reading.number_at(room, wall_ms)

    def stats(self) -> Stats:
        with self._enter() as room:
            return reading.stats(room)

    def work_of(self, agent: str) -> WorkDone:
        with self._enter() as room:
            return reading.work_of(room, agent)

    # Small values

    def cell_read(self, name: str) -> Cell | None:
        with self._enter() as room:
            return cells.cell_read(room, name)

    def cell_write(self, name: str, value: Any, expect: int = contract.ANY) -> int | None:
        with self._enter() as room:
            return cells.cell_write(room, name, value, expect)

    def cell_scan(self, prefix: str) -> list[Cell]:
        with self._enter() as room:
            return cells.cell_scan(room, prefix)

    def servers_report(self) -> dict[str, Any]:
        """What the servers tell of this room and of themselves, for `postroom doctor`."""
        with self._enter() as room:
            return reading.servers_report(room)

    # Waiting, housekeeping, the end

    def process_alive(self, process: str) -> bool | None:
        with self._enter() as room:
            return room.lives.is_alive(process)

    def listen(self, topics: Iterable[str]) -> Waiter:
        with self._enter() as room:
            return room.follower.listen(topics, self._enter)

    def sweep(self) -> Swept:
        with self._enter() as room:
            return housekeeping.sweep(room)

    def purge(self, query: Query) -> int:
        with self._enter() as room:
            return housekeeping.purge(room, query)

    def close(self) -> None:
        if self._pid != os.getpid():
            return
        self._open = False
        # what other threads have begun (giving up a question, an ack) is finished first, if the servers answer
        until_ns = SYSTEM.steady_ns() + int(CLOSE_S * 1e9)
        me = threading.get_ident()  # in a signal's handler, this thread may be in the middle of a step
        with suppress(Empty):
            while not self._inside <= {me}:
                self._ended.get(timeout=max(0, until_ns - SYSTEM.steady_ns()) / 1e9)
        self._room.close()
