"""Taking and settling messages on NATS: choose from what is known here, replace exactly that entry, or look again."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Final, NamedTuple

from msgspec.structs import replace

from postroom.core.message import Draft
from postroom.core.states import State
from postroom.core.system.process import process_alive, this_process
from postroom.errors import OutcomeUnknown, RoomError, RoomUnreachable
from postroom.stores.contract import Claimed, Delivery, Settled, Ticket, Want

from .entries import Entry, Kept, LedgerLine, WriteTime, claimed, counts, extended, judged, pattern_to, wound
from .entries import settled as _ended
from .putting import WritePlan
from .room import NatsRoom
from .tables import Chosen
from .wire import Changed, Committed, Write

#: Entries of claimed messages that are remembered; who settles an older one has to look it up.
MAX_REMEMBERED: Final = 10_000
#: What ends a message: nobody can claim it afterwards.
_ENDINGS: Final = ("acked", "answered", "refused", "dead")


def claim(room: NatsRoom, want: Want) -> Claimed:
    """Take messages; see the contract."""
    if want.owner == this_process():
        room.lives.beat()
    deliveries = _claim_best(room, want) if want.ids is None else _claim_named(room, want)
    return Claimed(deliveries, None if deliveries else _next_due_s(room, want))


def _next_due_s(room: NatsRoom, want: Want) -> float | None:
    """Only who got nothing needs to know: it is a search."""
    with room.follower.lock:
        due_ms = room.tables.next_due_ms(want)
    return None if due_ms is None else max(0, due_ms - room.now_ms()) / 1000


def patterns_of(want: Want) -> list[str]:
    """The subjects of everything that a receiver may take."""
    if want.channels is None:
        return [pattern_to(want.agent)]
    return [pattern_to(agent, channel) for channel in dict.fromkeys(want.channels) for agent in (want.agent, None)]


def _claim_best(room: NatsRoom, want: Want) -> list[Delivery]:
    patterns = patterns_of(want)
    room.follower.follow(patterns)
    room.follower.look_if_lost(patterns)
    taken: list[Kept] = []
    while len(taken) < want.limit:
        # not the same one twice in one claim, should its owner be gone already (tests/stores/test_model.py)
        with _picked(room, want, want.limit - len(taken), {kept.entry.id for kept in taken}) as picked:
            if picked.best or picked.ended:
                taken += _take(room, picked, want, raises=not taken)
                continue
        if taken or not room.follower.look_if_late(patterns):
            break
    return _deliver(room, taken, want)


class _Picked(NamedTuple):
    """The best that may be claimed, what the clock has ended, and the moment at which both were judged so."""

    best: list[Chosen]
    ended: list[Chosen]
    moment: WriteTime


@contextmanager
def _picked(room: NatsRoom, want: Want, count: int, taken: set[str], write: str | None = None) -> Iterator[_Picked]:
    """What to claim, which no other thread of this process picks meanwhile."""
    room.bury_the_gone()
    tables = room.tables
    ids: set[str] = set()
    try:
        with room.follower.lock:
            moment = room.moment(
                write
            )  # under the lock: what was judged by a later clock must not be claimed by an earlier one
            tables.wind(moment.room_ms)
            best = tables.best(want, count, tables.picked | taken)
            ended = tables.overdue_for(want)
            ids.update(each.kept.entry.id for each in (*best, *ended))
            tables.picked |= ids
        yield _Picked(best, ended, moment)
    finally:
        tables.picked.difference_update(ids)  # without the lock: an interrupt while it waits would leave them picked


def _take(room: NatsRoom, picked: _Picked, want: Want, *, raises: bool) -> list[Kept]:
    """Claim these, and write down what the clock did to the others; all at once. Those that were claimed, in their order.

    Whatever somebody else changed first is read anew, and is not claimed here.
    """
    return _make(room, _steps(picked, want), picked.moment, raises=raises)


#: A message, what becomes of it, and whether it is claimed by that.
_Step = tuple[Kept, Entry, bool]


def _steps(picked: _Picked, want: Want) -> list[_Step]:
    moment = picked.moment
    steps = [(each.kept, claimed(each.kept, want, moment, gone=each.gone), True) for each in picked.best]
    for each in picked.ended:
        entry = wound(each.kept, moment, gone=each.gone)
        if entry is not None:
            steps.append((each.kept, entry, False))
    return steps


def _make(room: NatsRoom, steps: Sequence[_Step], moment: WriteTime, *, raises: bool) -> list[Kept]:
    writes = [room.write_of(entry, kept.seq) for kept, entry, _ in steps]
    ends = room.commit_each(writes, moment.write)
    return _taken(room, steps, writes, ends, raises=raises)


def _taken(
    room: NatsRoom,
    steps: Sequence[_Step],
    writes: Sequence[Write],
    ends: Sequence[Committed | BaseException],
    *,
    raises: bool,
) -> list[Kept]:
    """What was claimed by these steps, as their writes ended."""
    taken: list[Kept] = []
    trouble: BaseException | None = None
    for (kept, entry, is_claim), write, end in zip(steps, writes, ends, strict=True):
        if isinstance(end, Changed):
            now = room.read(kept.entry.id)
            if now is None or now.entry.archived:
                room.follower.gone(kept.entry.id, kept.seq)
        elif isinstance(end, BaseException):
            trouble = end
        else:
            written = _as_written(room, write, entry, end)
            if is_claim and written is not None:
                taken.append(written)
    if trouble is not None and (raises or not isinstance(trouble, RoomError)) and not taken:
        raise trouble
    return taken


def _as_written(room: NatsRoom, write: Write, entry: Entry, end: Committed) -> Kept | None:
    """A claim that was made; None when its reply was lost and it has been taken from us since."""
    (seq,) = room.note_written([write], end)
    if end.found is None:
        return Kept(seq, entry)
    now = room.kept_of(end.found)
    if now is None or now.entry.claimed_by != entry.claimed_by or now.entry.deliveries != entry.deliveries:
        return None
    return now


def _claim_named(room: NatsRoom, want: Want) -> list[Delivery]:
    """Of the messages asked for by id those that the agent may have, best first."""
    if not want.ids:  # who asks for nothing wants to know who is gone (tests/aio/test_waiting.py)
        room.bury_the_gone()
    moment = room.moment()
    free: list[tuple[Kept, bool]] = []
    for kept in room.read_open(want.ids or ()):
        entry = kept.entry
        process = entry.waiter if kept.state is State.AWAITED else entry.owner
        gone = process is not None and process_alive(process) is False
        may_have = kept.state is State.AWAITED or judged(entry, moment.room_ms, gone=gone) is State.READY
        if entry.to_agent in (want.agent, None) and may_have:
            free.append((kept, gone and kept.state is not State.AWAITED))
    free.sort(key=lambda each: (-each[0].entry.priority, each[0].first))
    steps = [(kept, claimed(kept, want, moment, gone=gone), True) for kept, gone in free]
    return _deliver(room, _make(room, steps, moment, raises=True), want)


def _deliver(room: NatsRoom, taken: Sequence[Kept], want: Want) -> list[Delivery]:
    if not want.settle:
        for kept in taken:
            room.mine[kept.entry.id] = kept
        while len(room.mine) > MAX_REMEMBERED:  # those that were never settled
            with suppress(KeyError, StopIteration, RuntimeError):  # another thread settled it first
                room.mine.pop(next(iter(room.mine)))
    tickets = [Ticket(kept.entry.id, kept.token, want.agent) for kept in taken]
    return [Delivery(message, ticket) for message, ticket in zip(room.show(taken), tickets, strict=True)]


# Settling


def settle(
    room: NatsRoom,
    ticket: Ticket,
    outcome: str,
    detail: str | None,
    delay_s: float,
    puts: Sequence[Draft],
    claim_next: Want | None,
) -> Settled:
    """Say what became of a message, with the answer; then claim the next."""
    before = room.unsure.settling(ticket, outcome)
    write = before or room.moment().write
    try:
        return _settle_and_claim(room, ticket, outcome, detail, delay_s, puts, claim_next, write)
    except OutcomeUnknown:
        room.unsure.remember_settling(ticket, outcome, write)
        raise
    except RoomUnreachable as error:
        if before is None:
            raise
        raise OutcomeUnknown(str(error)) from error  # this try changed nothing, but the one before may have
    except RoomError:
        raise
    except BaseException:  # interrupted: should it be said again, it may have been said already
        room.unsure.remember_settling(ticket, outcome, write)
        raise


def _settle_and_claim(
    room: NatsRoom,
    ticket: Ticket,
    outcome: str,
    detail: str | None,
    delay_s: float,
    puts: Sequence[Draft],
    claim_next: Want | None,
    write: str,
) -> Settled:
    if claim_next is not None and claim_next.ids is None and outcome in _ENDINGS and not puts:
        settled = _settle_and_take(room, ticket, outcome, detail, claim_next, write)
        if settled is not None:
            return settled
    held, state, ids = _settle(room, ticket, outcome, detail, delay_s, puts, write)
    if claim_next is None:
        return Settled(held, state, ids, None)
    try:
        return Settled(held, state, ids, claim(room, claim_next))
    except RoomError:
        if not held:
            raise
        return Settled(held, state, ids, Claimed([], 0))  # it is settled, and that must be told; the next look will say


def _settle_and_take(
    room: NatsRoom, ticket: Ticket, outcome: str, detail: str | None, want: Want, write: str
) -> Settled | None:
    """Both at once, two writes on their way together; None when there is nothing to take, and nothing was done."""
    kept = _newest_known(room, ticket)
    if kept is None or not counts(kept, ticket.token):
        return None
    if want.owner == this_process():
        room.lives.beat()
    patterns = patterns_of(want)
    room.follower.follow(patterns)
    if room.follower.may_lack(
        patterns
    ):  # one after the other: what is to be told of the first must not wait for a look
        return None
    with _picked(room, want, want.limit, {ticket.id}, write) as picked:
        if not picked.best:
            return None
        entry = _ended(kept, outcome, ticket.agent, detail, 0, picked.moment)
        steps = _steps(picked, want)
        writes = [room.write_of(entry, kept.seq), *(room.write_of(each, old.seq) for old, each, _ in steps)]
        first, *ends = room.wire.run_all([room.commit_one(each, write) for each in writes])
        taken = _taken(room, steps, writes[1:], ends, raises=False)
    state: State | None = State(entry.state)
    held = True
    if isinstance(first, Committed):
        room.note_written(writes[:1], first)
        room.mine.pop(ticket.id, None)
    elif isinstance(first, Changed):
        held, state, _ = _settle(room, ticket, outcome, detail, 0, (), write)
    else:  # what was taken goes back: its receiver is told of the trouble, not of the message
        for each in taken:
            with suppress(RoomError):
                _settle(
                    room, Ticket(each.entry.id, each.token, want.agent), "returned", None, 0, (), room.moment().write
                )
        raise first
    return Settled(held, state, [], Claimed(_deliver(room, taken, want), None if taken else 0))


def _settle(
    room: NatsRoom, ticket: Ticket, outcome: str, detail: str | None, delay_s: float, puts: Sequence[Draft], write: str
) -> tuple[bool, State | None, list[str]]:
    moment = room.moment(write)
    kept = _newest_known(room, ticket)
    if kept is None or not counts(kept, ticket.token):
        kept = room.read(ticket.id)
    ids: list[str] = []
    while counts(kept, ticket.token):
        assert kept is not None
        moment = room.moment(moment.write)
        plan = WritePlan(room, moment, {ticket.id: kept})
        plan.add(puts)
        ids = plan.ids
        said = ids[0] if outcome == "answered" and ids else detail
        entry = _ended(kept, outcome, ticket.agent, said, delay_s, moment)
        held = plan.held.get(ticket.id)
        if held:
            entry = replace(entry, held=(*entry.held, *held))
        writes = [room.write_of(entry, kept.seq), *plan.writes]
        try:
            found = room.make(writes, moment.write).found
        except Changed:
            kept = room.read(ticket.id)
            continue
        if found is not None:  # looked up: it may be what an earlier call wrote, with another answer
            kept = room.kept_of(found)
            break
        room.mine.pop(ticket.id, None)
        return True, State(entry.state), ids
    room.mine.pop(ticket.id, None)
    for line in () if kept is None else kept.entry.ledger:
        if line.write == write:  # our own doing, whose reply was lost
            assert kept is not None
            return True, kept.state, _stored_with(line, ids)
    return False, None, []


def _stored_with(line: LedgerLine, ids: list[str]) -> list[str]:
    """The answer that was stored with an end, which an earlier call may have given another id."""
    return [line.detail] if line.event == "answered" and line.detail and line.detail not in ids else ids


def _newest_known(room: NatsRoom, ticket: Ticket) -> Kept | None:
    with room.follower.lock:
        row = room.tables.rows.get(ticket.id)
        known = [kept for kept in (room.mine.get(ticket.id), row.kept if row is not None else None) if kept is not None]
    return max(known, default=None, key=lambda kept: kept.seq)


def extend(room: NatsRoom, ticket: Ticket, lease_s: float) -> bool:
    """Let a lease end that much later than now; False when the ticket no longer counts."""
    moment = room.moment()
    kept = _newest_known(room, ticket)
    if kept is None or not counts(kept, ticket.token):
        kept = room.read(ticket.id)
    while counts(kept, ticket.token):
        assert kept is not None
        if any(line.write == moment.write for line in kept.entry.ledger):
            return True
        moment = room.moment(moment.write)
        entry = extended(kept, ticket.agent, lease_s, moment)
        try:
            (seq,) = room.commit([room.write_of(entry, kept.seq)], moment.write)
        except Changed:
            kept = room.read(ticket.id)
            continue
        if seq:
            room.mine[ticket.id] = Kept(seq, entry)
        return True
    return False
