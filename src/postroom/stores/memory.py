"""A room in the memory of one process: plain Python, and the reference for every other store.

Everything happens under one lock, so each method is one step, and a message is kept while somebody has the room open.
Ready messages stand in sorted lists, one list for each recipient and channel. What waits for a moment (a delay, the
end of a lease, an expiry) stands in one more list, sorted by that moment. A claim looks at the heads of a few such
lists and never at the messages that are finished.
"""

from __future__ import annotations

import os
import threading
from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Any, ClassVar, Final

import msgspec

from .. import store as contract
from ..clock import Clock
from ..config import Config
from ..errors import Fault, InvalidMessage, RoomClosed
from ..message import Draft, Message, decode_payload, payload_text
from ..platform import process_alive, this_process
from ..states import ASKER_GONE, LEASE_ENDED, NOT_IN_TIME, NOTES, OWNER_GONE, PUBLIC_NAME, PUBLIC_STATES, State
from ..store import (
    Cell,
    Change,
    Claimed,
    Delivery,
    Page,
    Query,
    Settled,
    Stats,
    Subscription,
    Swept,
    Ticket,
    Want,
    Work,
)
from .memory_room import FAILED, PROCESSED, MemoryWaiter, Row, Tables, later_ms

LEDGER_BYTES: Final = 64 * 1024

#: What a message has from its draft, unchanged.
_ENVELOPE: Final = sorted({*Draft.__struct_fields__} & {*Message.__struct_fields__} - {"payload", "waiter"})


_named_rooms: dict[str, Tables] = {}
_naming = threading.Lock()


class MemoryStore(contract.Store):
    """The reference store. A room with a name is shared by all who open that name in this process, while one does."""

    durable: ClassVar[bool] = False
    shared: ClassVar[bool] = False

    def __init__(self, config: Config, clock: Clock, name: str = "") -> None:
        with _naming:
            room = _named_rooms.get(name) or Tables(config, clock, name)
            if name:
                _named_rooms[name] = room
            room.users += 1
        self._room = room
        self.clock = room.clock
        self.waiters: set[MemoryWaiter] = set()
        self._pid = os.getpid()
        self._open = True

    def enter(self) -> Tables:
        """The room, for one step; RoomClosed when it may not be used any more, or not from here."""
        if self._pid != os.getpid():  # before its lock, which a fork may have copied while it was held
            raise RoomClosed("this memory room belongs to the process before the fork; no other process can reach it")
        if not self._open:
            raise RoomClosed
        return self._room

    # Putting

    def put(self, drafts: Sequence[Draft]) -> list[str]:
        with self.enter() as room:
            return _put(room, drafts)

    def subscribe(self, channel: str, agent: str) -> None:
        with self.enter() as room:
            room.subscribers.setdefault((channel, agent), self.clock.wall_ms())

    def unsubscribe(self, channel: str, agent: str) -> bool:
        with self.enter() as room:
            return room.subscribers.pop((channel, agent), None) is not None

    def subscriptions(self) -> list[Subscription]:
        with self.enter() as room:
            return [Subscription(*name, since_ms) for name, since_ms in sorted(room.subscribers.items())]

    # Taking

    def claim(self, want: Want) -> Claimed:
        with self.enter() as room:
            return _claim(room, want)

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
        if outcome not in contract.OUTCOMES:
            raise InvalidMessage("outcome", f"must be one of {', '.join(contract.OUTCOMES)}, not {outcome!r}")
        with self.enter() as room:
            row = _row_held_by(room, ticket)
            state, ids = None, []
            if row is not None:
                ids = _put(room, puts)  # before the question ends, so that its answer still finds the waiter
                said = ids[0] if outcome == "answered" and ids else detail
                state = _settle(room, row, outcome, ticket.agent, said, delay_s)
            claimed = None if claim_next is None else _claim(room, claim_next)
            return Settled(row is not None, state, ids, claimed)

    def extend(self, ticket: Ticket, lease_s: float) -> bool:
        with self.enter() as room:
            row = _row_held_by(room, ticket)
            if row is not None:
                room.change(row, State.CLAIMED, until_ms=later_ms(room.now_ms(), lease_s), owner=row.owner)
                room.write(row, "extended", ticket.agent, f"{lease_s:g} s")
            return row is not None

    def note(self, id: str, event: str, agent: str | None, detail: str | None = None) -> bool:
        if event not in NOTES:
            raise InvalidMessage("event", f"must be one of {', '.join(NOTES)}, not {event!r}")
        with self.enter() as room:
            row = room.row_of(id)
            if row is not None and len(msgspec.json.encode(row.ledger)) < LEDGER_BYTES:
                room.write(row, event, agent, detail)
            return row is not None

    def abandon(self, id: str) -> None:
        with self.enter() as room:
            question = room.row_of(id)
            if question is not None and question.waiter is not None and question.state is not State.HELD:
                _stop_waiting(room, question, "the asker no longer waits")
            for key in room.answers.get(id, ()):
                if room.rows[key].state is State.HELD:
                    _stop_waiting(room, room.rows[key], None)

    def requeue(self, ids: Iterable[str]) -> list[str]:
        with self.enter() as room:
            _wind(room)
            return [id for id in ids if _requeue(room, room.row_of(id))]

    # Reading

    def get(self, id: str) -> Message | None:
        with self.enter() as room:
            row = room.row_of(id)
            return None if row is None else msgspec.structs.replace(_show(room, row), ledger=tuple(row.ledger))

    def find(self, query: Query, cursor: int | None = None) -> Page:
        with self.enter() as room:
            rows = list(islice(_matching(room, query, cursor), query.limit + 1))
            more = len(rows) > query.limit > 0 and query.order != "claim"
            rows = rows[: query.limit]
            return Page([_show(room, row) for row in rows], rows[-1].key if more else None)

    def events(self, after: int = 0, limit: int = 1000) -> list[Change]:
        with self.enter() as room:
            return [
                Change(number, entry.event, entry.time_ms, entry.agent, entry.detail, _show(room, room.rows[key]))
                for number, key, entry in islice(room.written_after(after), limit)
            ]

    def number_at(self, wall_ms: int | None = None) -> int:
        with self.enter() as room:
            if wall_ms is None:
                return room.last_number
            # Up to the first later change, not to the last earlier one: a wall clock that was set back shows the same
            # hour twice, and a feed that is read from too early misses nothing.
            later = (number for number, _, entry in room.feed if entry.time_ms > wall_ms)
            return next(later, room.last_number + 1) - 1

    def stats(self) -> Stats:
        with self.enter() as room:
            now_ms = room.now_ms()
            states = dict.fromkeys(PUBLIC_STATES, 0)
            sent_ms: defaultdict[tuple[str | None, str], list[int]] = defaultdict(list)
            for row in room.rows.values():
                state = row.judged(now_ms)
                states[PUBLIC_NAME[state]] += 1
                if state is State.READY:
                    sent_ms[row.draft.to_agent, row.draft.channel].append(row.timestamp_ms)
            names = sorted(sent_ms, key=lambda name: (name[0] or "", name[1]))
            mailboxes = [contract.Mailbox(*name, len(sent_ms[name]), min(sent_ms[name])) for name in names]
            about = {"kind": "memory", "name": room.name, "messages": len(room.rows), "changes": room.last_number}
            return Stats(states=states, mailboxes=mailboxes, store=about)

    # Small values

    def cell_read(self, name: str) -> Cell | None:
        with self.enter() as room:
            found = room.cells.get(name)
            return None if found is None else Cell(name, found[0], decode_payload(found[1]))

    def cell_write(self, name: str, value: Any, expect: int = contract.ANY) -> int | None:
        faults: list[Fault] = []
        text = payload_text(value, faults)
        if faults:
            raise InvalidMessage(faults)
        with self.enter() as room:
            version, _ = room.cells.get(name, (0, ""))
            if expect not in (contract.ANY, version):
                return None
            room.ring(contract.topic_cells(name))
            if value is None:
                room.cells.pop(name, None)
                return 0
            room.last_version += 1
            room.cells[name] = (room.last_version, text)
            return room.last_version

    def cell_scan(self, prefix: str) -> list[Cell]:
        with self.enter() as room:
            found = sorted((name, *cell) for name, cell in room.cells.items() if name.startswith(prefix))
            return [Cell(name, version, decode_payload(text)) for name, version, text in found]

    # Waiting, housekeeping, the end

    def listen(self, topics: Iterable[str]) -> contract.Waiter:
        with self.enter() as room:
            waiter = MemoryWaiter(room, topics, self.enter, self.waiters.discard)
            self.waiters.add(waiter)
            return waiter

    def sweep(self) -> Swept:
        with self.enter() as room:
            before = room.last_number
            _end_gone_processes(room)
            _wind(room)
            done = [entry.event for _, _, entry in room.written_after(before)]
            return Swept(done.count("expired"), done.count("released"), done.count("dead"), _forget_finished(room))

    def purge(self, query: Query) -> int:
        with self.enter() as room:
            _wind(room)
            rows = (row for row in _matching(room, query, None) if row.state is not State.CLAIMED)
            return room.delete(list(islice(rows, query.limit)))

    def work_of(self, agent: str) -> Work:
        with self.enter() as room:
            kept = [row.state for row in room.rows.values() if row.claimed_by == agent]
            processed = sum(state in PROCESSED for state in kept) + room.tally[agent, True]
            return Work(processed, sum(state in FAILED for state in kept) + room.tally[agent, False])

    def close(self) -> None:
        if self._pid != os.getpid():
            return
        with _naming, self._room as room:
            if self._open:
                self._open = False
                room.users -= 1
                if room.users == 0 and room.name:
                    del _named_rooms[room.name]
                for waiter in self.waiters:  # whoever waits in another thread comes back, and is told
                    waiter.ring()


# The steps of the methods above. Their caller has entered the room.


def _put(room: Tables, drafts: Sequence[Draft]) -> list[str]:
    """Store messages, all or none: what may be refused is looked at first."""
    first_of: dict[tuple[str, str], Draft] = {}
    for draft in drafts:
        if draft.idempotency_key is not None:
            name = (draft.from_agent, draft.idempotency_key)
            if name in room.sent:
                first_of[name] = room.rows[room.sent[name][0]].draft
            if _content(first_of.setdefault(name, draft)) != _content(draft):
                problem = f"{draft.idempotency_key!r} was used by {draft.from_agent!r} before, for another message"
                raise InvalidMessage("idempotency_key", problem)
    return [id for draft in drafts for id in _put_one(room, draft)]


def _content(draft: Draft) -> tuple[object, ...]:
    """What must be the same when a sender repeats an idempotency key."""
    return draft.publish, None if draft.publish else draft.to_agent, draft.channel, draft.type, draft.payload_json


def _put_one(room: Tables, draft: Draft) -> list[str]:
    known = room.sent.get((draft.from_agent, draft.idempotency_key)) if draft.idempotency_key is not None else None
    if known is not None:
        return [room.rows[key].id for key in known]
    if not draft.publish:
        return [room.insert(draft, draft.to_agent).id]
    agents = sorted(agent for channel, agent in room.subscribers if channel == draft.channel)
    return [room.insert(draft, agent).id for agent in agents]


def _claim(room: Tables, want: Want) -> Claimed:
    _end_gone_processes(room)
    _wind(room)
    if want.ids is None:
        deliveries = _deliver_best(room, want)
    else:
        deliveries = [_deliver(room, row, want) for row in _rows_named(room, want)]
    next_due_s = max(0, room.timers[0][0] - room.now_ms()) / 1000 if room.timers else None
    return Claimed(deliveries, next_due_s)


def _end_gone_processes(room: Tables) -> None:
    """What a process held or waited for ends with it."""
    for process in {*room.owners, *room.waits} - {this_process()}:
        if process_alive(process) is False:
            for key in sorted(room.owners.get(process, ())):
                _let_go(room, room.rows[key], OWNER_GONE)
            for key in sorted(room.waits.get(process, ())):
                _stop_waiting(room, room.rows[key], ASKER_GONE)


def _wind(room: Tables) -> None:
    """Act on every timer that has run out: what is due is ready, what expired is expired, ended leases end."""
    now_ms = room.now_ms()
    while room.timers and room.timers[0][0] <= now_ms:
        row = room.rows[room.timers[0][1]]
        if row.state is State.CLAIMED:
            _let_go(room, row, LEASE_ENDED)
        elif row.expired(now_ms):
            _expire(room, row)
        else:
            room.change(row, State.READY)
            room.ring_mail(row)


def _expire(room: Tables, row: Row) -> None:
    row.error = NOT_IN_TIME
    room.move(row, State.EXPIRED, "expired", None, NOT_IN_TIME)


def _let_go(room: Tables, row: Row, why: str) -> None:
    """End a claim whose holder is late or gone: the message is ready again, or has had its chances.

    The token stays: until somebody else takes the message, its late holder may still settle it.
    """
    most = row.draft.max_deliveries
    if row.deliveries >= most:
        row.error = f"{why} (delivery {row.deliveries} of {most})"
        room.move(row, State.DEAD, "dead", row.claimed_by, row.error)
    elif row.expired(room.now_ms()):
        _expire(room, row)
    else:
        room.move(row, State.READY, "released", row.claimed_by, why)


def _stop_waiting(room: Tables, row: Row, why: str | None) -> None:
    """Nobody waits any more for this question's answer, or for this answer: that is ordinary mail from now on."""
    if row.state is State.HELD:
        room.change(row, State.READY)
        room.write(row, "unheld", None, None, in_ledger=False)  # both count as "stored": no line for it in the ledger
        room.ring_mail(row)
    else:
        room.set_waiter(row, None)
        room.write(row, "abandoned", row.draft.from_agent, why)


def _deliver_best(room: Tables, want: Want) -> list[Delivery]:
    """Deliver the best of what is ready in the boxes that the agent takes from; each delivery leaves its box."""
    own, anyones = room.boxes.get(want.agent, {}), room.boxes.get(None, {})
    names = own if want.channels is None else dict.fromkeys(want.channels)
    sources = (own,) if want.channels is None else (own, anyones)
    boxes = [box[name] for name in names for box in sources if name in box]
    deliveries: list[Delivery] = []
    while len(deliveries) < want.limit and (heads := [box[0] for box in boxes if box]):
        _, key = min(heads)
        deliveries.append(_deliver(room, room.rows[key], want))
    return deliveries


def _rows_named(room: Tables, want: Want) -> list[Row]:
    """Of the messages asked for by id those that the agent may have, best first."""
    rows = {row.key: row for row in map(room.row_of, want.ids or ()) if row is not None}.values()
    mine = [row for row in rows if row.draft.to_agent in (want.agent, None)]
    free = [row for row in mine if row.state in (State.READY, State.HELD)]
    return sorted(free, key=lambda row: (-row.draft.priority, row.key))


def _deliver(room: Tables, row: Row, want: Want) -> Delivery:
    row.token += 1
    row.deliveries += 1
    row.claimed_by = want.agent
    row.last_delivered_ms = room.clock.wall_ms()
    room.change(row, State.CLAIMED, until_ms=later_ms(room.now_ms(), want.lease_s), owner=want.owner)
    room.write(row, "claimed", want.agent, None)
    ticket = Ticket(row.id, row.token, want.agent)
    if want.settle:
        _settle(room, row, "acked", want.agent, None, 0)
    return Delivery(_show(room, row), ticket)


def _row_held_by(room: Tables, ticket: Ticket) -> Row | None:
    """The message that a ticket speaks for, or None when it no longer counts.

    Every claim, retry and requeue makes a new token, so a ready message with the ticket's own token was let go and not
    taken since: its late holder may still settle it.
    """
    row = room.row_of(ticket.id)
    counts = row is not None and row.token == ticket.token and row.state in (State.CLAIMED, State.READY)
    return row if counts else None


def _settle(room: Tables, row: Row, outcome: str, agent: str, detail: str | None, delay_s: float) -> State:
    if outcome == "retry" and row.deliveries < row.draft.max_deliveries:
        row.token += 1
        row.error = detail
        until_ms = later_ms(room.now_ms(), delay_s) if delay_s > 0 else None
        room.change(row, State.READY if until_ms is None else State.DELAYED, until_ms=until_ms)
        room.write(row, "retried", agent, detail)
        room.ring_mail(row)
        return row.state
    if outcome == "returned":
        row.token += 1
        row.deliveries -= 1
        row.claimed_by = None
        room.move(row, State.READY, "returned", agent, detail)
        return row.state
    if outcome == "retry":
        outcome, detail = "dead", detail or "no reason given"
    if outcome in ("refused", "dead"):
        row.error = detail or row.error
    room.move(row, State[outcome.upper()], outcome, agent, detail)
    return row.state


def _requeue(room: Tables, row: Row | None) -> bool:
    if row is None or row.state not in (State.DEAD, State.REFUSED, State.EXPIRED):
        return False
    row.token += 1
    row.deliveries, row.error, row.claimed_by = 0, None, None
    if row.expired(room.now_ms()):
        row.expires_ms = None
    room.move(row, State.READY, "requeued", None)
    return True


def _matching(room: Tables, query: Query, cursor: int | None) -> Iterator[Row]:
    """The rows that a query asks for, in its order, after (or, newest first, before) the cursor."""
    if query.answer_to is not None:
        keys = room.answers.get(query.answer_to, [])
    elif query.correlation_id is not None:
        keys = room.correlated.get(query.correlation_id, [])
    else:
        keys = list(room.rows)
    if query.order == "newest":
        keys = keys[: None if cursor is None else bisect_left(keys, cursor)][::-1]
    elif query.order == "oldest":
        keys = keys[0 if cursor is None else bisect_right(keys, cursor) :]
    elif query.order == "claim":
        keys = sorted(keys, key=lambda key: (-room.rows[key].draft.priority, key))
    else:
        raise InvalidMessage("order", f"must be one of {', '.join(contract.ORDERS)}, not {query.order!r}")
    now_ms = room.now_ms()
    return (row for row in map(room.rows.__getitem__, keys) if _matches(query, row, now_ms))


def _matches(query: Query, row: Row, now_ms: int) -> bool:
    draft, sent_ms = row.draft, row.timestamp_ms
    seen_by = (query.visible_to,) if query.channels is None else (query.visible_to, None)
    return (
        (query.states is None or row.judged(now_ms) in query.states)
        and (query.channels is None or draft.channel in query.channels)
        and (query.visible_to is None or draft.to_agent in seen_by)
        and query.to_agent in (None, draft.to_agent)
        and query.from_agent in (None, draft.from_agent)
        and query.type in (None, draft.type)
        and query.correlation_id in (None, draft.correlation_id)
        and query.answer_to in (None, draft.answer_to)
        and not (query.waiting and (row.waiter is None or row.state is State.HELD))
        and (query.sent_after_ms is None or sent_ms >= query.sent_after_ms)
        and (query.sent_before_ms is None or sent_ms < query.sent_before_ms)
    )


def _show(room: Tables, row: Row) -> Message:
    """A row as a message of its own, judged by the clock, without its ledger."""
    draft, now_ms = row.draft, room.now_ms()
    state = row.judged(now_ms)
    wake_wall_ms = None if row.wake_ms is None else row.wake_ms - now_ms + room.clock.wall_ms()
    return Message(
        **{name: getattr(draft, name) for name in _ENVELOPE},
        id=row.id,
        payload=decode_payload(draft.payload_json),
        timestamp_ms=row.timestamp_ms,
        expires_at_ms=None if row.expires_ms is None else row.timestamp_ms + round((draft.ttl_s or 0) * 1000),
        delivery_count=row.deliveries,
        state=state,
        error=row.error,
        claimed_by=row.claimed_by,
        owner=row.owner if state is State.CLAIMED else None,
        token=row.token,
        lease_until_ms=wake_wall_ms if state is State.CLAIMED else None,
        last_delivered_ms=row.last_delivered_ms,
        due_ms=wake_wall_ms if state is State.DELAYED else None,
        waiter=row.waiter,
    )


def _forget_finished(room: Tables) -> int:
    """Keep what the settings allow of the finished messages, the latest; forget the others."""
    keep = room.config
    rows: list[Row] = []
    count, size = len(room.finished), room.finished_bytes
    for key, finished_ms in room.finished.items():
        too_old = finished_ms + keep.keep_s * 1000 <= room.now_ms()
        if not too_old and count <= keep.keep_count and size <= keep.keep_bytes:
            break
        rows.append(room.rows[key])
        count -= 1
        size -= len(rows[-1].draft.payload_json)
    return room.delete(rows)
