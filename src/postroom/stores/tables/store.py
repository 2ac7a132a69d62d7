"""A store whose room lies in tables of this process: what all such stores have in common.

Every method is one step on the tables. Where the tables come from, and what makes a step last, is each store's own.
Ready messages stand in sorted lists, one list for each recipient and channel. What waits for a moment (a delay, the
end of a lease, an expiry) stands in one more list, sorted by that moment. A claim looks at the heads of a few such
lists and never at the messages that are finished.
"""

from __future__ import annotations

import threading
from abc import abstractmethod
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from functools import wraps
from itertools import islice
from typing import Any, ClassVar, Concatenate, ParamSpec, TypeVar

import msgspec

from postroom.core.message import Draft, Message, MessageWithLedger, decode_payload, payload_text
from postroom.core.states import NOTES, State
from postroom.errors import Fault, raise_faults
from postroom.stores import contract
from postroom.stores.contract import Cell, Change, Claimed, Page, Query, Settled, Stats, Subscription, Ticket, Want
from postroom.stores.rules import LEDGER_BYTES, check_word, figures, work_done

from . import steps
from .tables import Tables

_S = TypeVar("_S", bound="TableStore")
_P = ParamSpec("_P")
_T = TypeVar("_T")


class Turn:
    """Whose turn it is to use a room's tables: one thread's, for one step.

    A signal's handler may run in the middle of a step, in the same thread, where a lock that may be entered twice would
    let it in, and one that may not would stop it for ever. So it is refused. The lock is entered by `with` alone:
    Python looks for signals before that, and after it, but not between.
    """

    __slots__ = ("afterwards", "lock", "taken")

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.taken = False
        #: What is to be done when the step is over: the end of the store, where a handler came with it in the middle of
        #: a step.
        self.afterwards: Callable[[], None] | None = None

    def check(self) -> None:
        """Raise RoomBusy in the middle of a step. The caller has the lock."""
        if self.taken:
            raise contract.in_the_middle()


def whole(method: Callable[Concatenate[_S, _P], _T]) -> Callable[Concatenate[_S, _P], _T]:
    """Make a method one step: nobody else is in the tables meanwhile, and when it raises nothing of it is left.

    tests/faults/test_interrupts.py interrupts steps at every moment at which they can be.
    """

    @wraps(method)
    def run(self: _S, /, *args: _P.args, **kwargs: _P.kwargs) -> _T:
        self.check()  # before the lock, which a fork may have copied while it was held
        turn = self.turn
        with turn.lock:
            turn.check()
            turn.taken = True
            try:
                return method(self, *args, **kwargs)
            except BaseException:
                self.undo()
                raise
            finally:
                turn.taken = False
                if turn.afterwards is not None:
                    turn.afterwards()

    return run


class TableStore(contract.Store):
    """The methods of a store, each as one step on its tables."""

    restores: ClassVar[bool] = True

    turn: Turn

    @abstractmethod
    def check(self) -> None:
        """Raise RoomClosed when the tables may not be used any more, or not from here."""

    @abstractmethod
    def undo(self) -> None:
        """Leave nothing of a step that raised. Where this is interrupted itself, the next step does it first."""

    @abstractmethod
    def reading(self) -> AbstractContextManager[Tables]:
        """The tables as they are now, to be read; RoomClosed when they may not be used any more, or not from here."""

    @abstractmethod
    def step(self) -> AbstractContextManager[Tables]:
        """The tables for one step, which is done as a whole when the block ends, and not at all when it raises."""

    def sync_what_is_there(self) -> None:
        """For a repeat that changes nothing, inside its step: what others wrote without waiting for the disk is on it."""

    @abstractmethod
    def about(self) -> dict[str, Any]:
        """The store's own part of its figures."""

    # Putting

    @whole
    def put(self, drafts: Sequence[Draft]) -> list[str]:
        with self.step() as room:
            return steps.put(room, drafts)

    @whole
    def subscribe(self, channel: str, agent: str) -> None:
        with self.step() as room:
            if (channel, agent) in room.subscribers:
                self.sync_what_is_there()
            else:
                room.set_subscriber(channel, agent, self.clock.wall_ms())

    @whole
    def unsubscribe(self, channel: str, agent: str) -> bool:
        with self.step() as room:
            known = (channel, agent) in room.subscribers
            if known:
                room.set_subscriber(channel, agent, None)
            else:
                self.sync_what_is_there()
            return known

    @whole
    def subscriptions(self) -> list[Subscription]:
        with self.reading() as room:
            return [Subscription(*name, since_ms) for name, since_ms in sorted(room.subscribers.items())]

    @whole
    def restore(self, messages: Sequence[MessageWithLedger]) -> int:
        with self.step() as room:
            return steps.restore(room, messages)

    # Taking

    @whole
    def claim(self, want: Want) -> Claimed:
        with self.step() as room:
            return steps.claim(room, want)

    @whole
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
        check_word("outcome", outcome, contract.OUTCOMES)
        with self.step() as room:
            row = steps.row_held_by(room, ticket)
            state, ids = None, []
            if row is not None:
                ids = steps.put(room, puts)  # before the question ends, so that its answer still finds the waiter
                said = ids[0] if outcome == "answered" and ids else detail
                state = steps.settle(room, row, outcome, ticket.agent, said, delay_s)
            claimed = None if claim_next is None else steps.claim(room, claim_next)
            return Settled(row is not None, state, ids, claimed)

    @whole
    def extend(self, ticket: Ticket, lease_s: float) -> bool:
        with self.step() as room:
            steps.end_leases(room, [ticket])
            row = steps.row_held_by(room, ticket)
            return row is not None and steps.extend(room, row, ticket.agent, lease_s)

    def quiet_step(self) -> AbstractContextManager[Tables]:
        """A step that need not wait for the disk, nor take in what others left."""
        return self.step()

    @whole
    def heartbeat(self, tickets: Sequence[Ticket], lease_s: float) -> list[Ticket]:
        with self.quiet_step() as room:
            steps.end_leases(room, tickets)
            return [ticket for ticket in tickets if not steps.heartbeat(room, ticket, lease_s)]

    @whole
    def note(self, id: str, event: str, agent: str | None, detail: str | None = None) -> bool:
        check_word("event", event, NOTES)
        with self.step() as room:
            row = room.row_of(id)
            if row is not None and len(msgspec.json.encode(row.ledger)) < LEDGER_BYTES:
                room.write(row, event, agent, detail)
            return row is not None

    @whole
    def abandon(self, *ids: str) -> None:
        with self.step() as room:
            for id in ids:
                question = room.row_of(id)
                if question is not None and question.waiter is not None and question.state is not State.AWAITED:
                    steps.stop_waiting(room, question, "the asker no longer waits")
                for key in room.named("answers", id):
                    if room.rows[key].state is State.AWAITED:
                        steps.stop_waiting(room, room.rows[key], None)

    @whole
    def withdraw(self, ids: Iterable[str], agent: str, reason: str | None = None) -> list[str]:
        with self.step() as room:
            steps.end_gone_processes(room)
            steps.wind(room)
            done = []
            for id in dict.fromkeys(ids):
                row = room.row_of(id)
                if row is not None and steps.may_withdraw(row, agent):
                    steps.withdraw(room, row, agent, reason)
                    done.append(id)
            return done

    @whole
    def requeue(self, ids: Iterable[str]) -> list[str]:
        with self.step() as room:
            steps.end_gone_processes(room)
            steps.wind(room)
            return [id for id in ids if steps.requeue(room, room.row_of(id))]

    # Reading

    @whole
    def get(self, id: str) -> MessageWithLedger | None:
        with self.reading() as room:
            row = room.row_of(id)
            if row is None:
                return None
            gone = steps.gone_owners(room, row) if row.state is State.CLAIMED else ()
            return steps.show(MessageWithLedger, room, row, gone).fill(tuple(row.ledger))

    @whole
    def find(self, query: Query, cursor: int | None = None) -> Page:
        with self.reading() as room:
            gone = steps.gone_owners(room)
            rows = list(islice(steps.matching(room, query, cursor, gone), query.limit + 1))
            more = len(rows) > query.limit > 0 and query.order != "claim"
            rows = rows[: query.limit]
            return Page([steps.show(Message, room, row, gone) for row in rows], rows[-1].key if more else None)

    @whole
    def events(self, after: int = 0, limit: int = 1000) -> list[Change]:
        with self.reading() as room:
            gone = steps.gone_owners(room)
            return [
                Change(
                    number,
                    entry.event,
                    entry.time_ms,
                    entry.agent,
                    entry.detail,
                    steps.show(Message, room, room.rows[key], gone),
                )
                for number, key, entry in room.news_after(after, limit)
            ]

    @whole
    def number_at(self, wall_ms: int | None = None) -> int:
        with self.reading() as room:
            if wall_ms is None:
                return room.last_number
            # Up to the first later change, not to the last earlier one: a wall clock that was set back shows the same
            # hour twice, and a feed that is read from too early misses nothing.
            later = (number for number, _, entry in room.news_after(0) if entry.time_ms > wall_ms)
            return next(later, room.last_number + 1) - 1

    @whole
    def stats(self) -> Stats:
        with self.reading() as room:
            now_ms, gone = room.now_ms(), steps.gone_owners(room)
            rows = (
                (row.judged(now_ms, gone), row.draft.to_agent, row.draft.channel, row.timestamp_ms)
                for row in room.rows.values()
            )
            about = self.about() | {"messages": room.count(), "changes": room.last_number}
            return figures(rows, about, ((state, count) for (_, state), count in room.ended.items()))

    # Small values

    @whole
    def cell_read(self, name: str) -> Cell | None:
        with self.reading() as room:
            found = room.cells.get(name)
            return None if found is None else Cell(name, found[0], decode_payload(found[1]))

    @whole
    def cell_write(self, name: str, value: Any, expect: int = contract.ANY) -> int | None:
        faults: list[Fault] = []
        text = payload_text(value, faults)
        raise_faults(faults)
        with self.step() as room:
            version, _ = room.cells.get(name, (0, ""))
            if expect not in (contract.ANY, version):
                return None
            return room.set_cell(name, None if value is None else text)

    @whole
    def put_with_cell(self, drafts: Sequence[Draft], name: str, value: Any, expect: int) -> list[str] | None:
        faults: list[Fault] = []
        text = payload_text(value, faults)
        raise_faults(faults)
        with self.step() as room:
            if room.cells.get(name, (0, ""))[0] != expect:
                return None
            ids = steps.put(room, drafts)
            room.set_cell(name, text)
            return ids

    @whole
    def cell_scan(self, prefix: str) -> list[Cell]:
        with self.reading() as room:
            found = [(name, *room.cells[name]) for name in room.cells.starting(prefix)]
            return [Cell(name, version, decode_payload(text)) for name, version, text in found]

    # Housekeeping

    @whole
    def sweep(self) -> contract.Swept:
        with self.step() as room:
            done = [*steps.end_gone_processes(room), *steps.wind(room)]
            return contract.Swept(
                done.count("expired"), done.count("released"), done.count("dead"), steps.forget_finished(room)
            )

    @whole
    def purge(self, query: Query) -> int:
        with self.step() as room:
            steps.end_gone_processes(room)
            steps.wind(room)
            rows = (row for row in steps.matching(room, query, None) if row.state is not State.CLAIMED)
            return steps.forget(room, list(islice(rows, query.limit)))

    @whole
    def work_of(self, agent: str) -> contract.WorkDone:
        with self.reading() as room:
            kept = [row.state for row in room.rows.values() if row.claimed_by == agent]
            kept += [state for (last, state), count in room.ended.items() if last == agent for _ in range(count)]
            return work_done(kept, contract.WorkDone(room.tally[agent, True], room.tally[agent, False]))
