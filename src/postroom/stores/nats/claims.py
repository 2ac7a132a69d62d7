"""Claims and settling on NATS: choose from the cache, replace exactly that entry (compare-and-set), or look again."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Final, NamedTuple

from msgspec.structs import replace

from postroom.core.clock import sooner
from postroom.core.message import Draft, Message
from postroom.core.states import MOVES, NOTES, State
from postroom.errors import OutcomeUnknown, RoomError, RoomUnreachable
from postroom.stores.contract import OUTCOMES, Claimed, Delivery, Query, Settled, Ticket, Want
from postroom.stores.rules import check_word

from . import entries
from .entries import OWN, Entry, Kept, LedgerLine, WriteTime, counts, is_there, question_id
from .following import SAFETY_LOOK_S, UNTIL_LOST
from .gated import Passage, must_pass, patterns_of, take_back
from .lines import is_first
from .putting import WritePlan
from .reading import find
from .room import ANSWER_LAYOUT, ORDER_LAYOUT, NatsRoom, Replaced
from .tables import IndexedEntry
from .wire import Changed, Write

#: Entries of claimed messages that are remembered; the receiver of an older one has to look it up to settle it.
MAX_REMEMBERED: Final = 10_000
#: Outcomes that end a message: nobody can claim it afterwards.
_ENDINGS: Final = ("acked", "answered", "refused", "dead")


def claim(room: NatsRoom, want: Want) -> Claimed:
    """Take messages; see the contract."""
    if want.owner == room.lives.process:
        room.lives.beat()
    room.follower.know_limits()
    if room.limits.concern(want):
        return _claim_limited(room, want)
    deliveries = _claim_best(room, want) if want.ids is None else _claim_named(room, want)
    if deliveries:
        return Claimed(deliveries, None)
    with room.follower.lock:
        due_ms = room.tables.next_due_ms(want)  # a search, which only a receiver that got nothing needs
    return Claimed([], None if due_ms is None else max(0, due_ms - room.now_ms()) / 1000)


def _claim_limited(room: NatsRoom, want: Want) -> Claimed:
    """The same where limits hold."""
    if want.ids is not None and not want.ids:
        room.bury_the_gone()
    while True:
        passage = Passage(room, want)
        passage.take()
        deliveries = _deliver(room, passage.taken, want)
        if deliveries:
            return Claimed(deliveries, None)
        if not passage.taken:
            break
    with room.follower.lock:
        due_ms = room.tables.next_due_ms(want, room.limits.gated(want))
    due_s = None if due_ms is None else max(0, due_ms - room.now_ms()) / 1000
    return Claimed([], sooner(due_s, passage.opens_s))


def _claim_best(room: NatsRoom, want: Want) -> list[Delivery]:
    while True:
        taken = _take_best(room, want)
        deliveries = _deliver(room, taken, want)
        if deliveries or not taken:
            return deliveries
        # all of them were set aside: there may be very many (tests/stores/test_nats_lost.py)


def _take_best(room: NatsRoom, want: Want) -> list[Kept]:
    patterns = patterns_of(want)
    room.follower.follow(patterns)
    room.follower.look(patterns, UNTIL_LOST)
    taken: list[Kept] = []
    blocked: set[str] = set()
    while len(taken) < want.limit:
        # not the same one twice in one claim, should its owner be gone already (tests/stores/test_model.py)
        left_out = blocked | {kept.entry.id for kept in taken}
        with _picked(room, want, want.limit - len(taken), left_out) as found:
            picked = _without_blocked(room, found)
            blocked |= {each.kept.entry.id for each in found.best if each not in picked.best}
            # of a question that is claimed and whose asker is gone there is nothing to write here: that is a sweep's
            if steps := _steps(picked, want):
                taken += _taken(steps, room.replace_each(steps, picked.moment.write), raises=not taken)
                continue
        if found.best and not picked.best:
            continue  # all of them were behind others: there may be more
        if taken or not room.follower.look(patterns, SAFETY_LOOK_S):
            break
    return taken


class _Picked(NamedTuple):
    """The best that may be claimed, what the clock has ended, and the moment at which both were judged so."""

    best: list[IndexedEntry]
    ended: list[IndexedEntry]
    moment: WriteTime


@contextmanager
def _picked(room: NatsRoom, want: Want, count: int, taken: set[str], write: str | None = None) -> Iterator[_Picked]:
    """Messages to claim; no other thread of this process picks them meanwhile."""
    room.bury_the_gone()
    tables = room.tables
    ids: set[str] = set()
    try:
        with room.follower.lock:
            # under the lock: what was judged by a later clock must not be claimed by an earlier one
            moment = room.moment(write)
            tables.wind(moment.room_ms)
            best = tables.best(want, count, tables.picked | taken)
            ended = tables.overdue_for(want)
            ids.update(each.kept.entry.id for each in (*best, *ended))
            tables.picked |= ids
        yield _Picked(best, ended, moment)
    finally:
        tables.picked.difference_update(ids)  # without the lock: an interrupt while it waits would leave them picked


def _without_blocked(room: NatsRoom, picked: _Picked) -> _Picked:
    """The same without messages that are not the first of their order key, as the leader knows it.

    What is known here may lack an earlier one: hints can be lost. It is known here afterwards.
    """
    if all(each.kept.entry.order_key is None for each in picked.best):
        return picked
    return picked._replace(best=[each for each in picked.best if is_first(room, each.kept)])


#: A message, and what becomes of it.
_Step = tuple[Kept, Entry]


def _steps(picked: _Picked, want: Want) -> list[_Step]:
    moment = picked.moment
    steps = [(each.kept, entries.claimed(each.kept, want, moment, gone=each.gone)) for each in picked.best]
    for each in picked.ended:
        entry = entries.wound(each.kept, moment, gone=each.gone)
        if entry is not None:
            steps.append((each.kept, entry))
    return steps


def _taken(steps: Sequence[_Step], ends: Sequence[Replaced], *, raises: bool) -> list[Kept]:
    """The messages that these steps claimed, in their order, as their writes ended.

    A message that somebody else changed first was read anew, and is not claimed here.
    """
    taken: list[Kept] = []
    trouble: BaseException | None = None
    for (_, entry), end in zip(steps, ends, strict=True):
        if isinstance(end, Kept):
            now = end.entry  # another one when the reply was lost, and the claim has been taken from us since
            if entry.token == OWN and (now.claimed_by, now.deliveries) == (entry.claimed_by, entry.deliveries):
                taken.append(end)
        elif end is not None and not isinstance(end, Changed):
            trouble = end
    if trouble is not None and (raises or not isinstance(trouble, RoomError)) and not taken:
        raise trouble
    return taken


def _claim_named(room: NatsRoom, want: Want) -> list[Delivery]:
    """The messages asked for by id, as far as the agent may have them, best first."""
    if not want.ids:  # a claim of nothing asks which processes are gone (tests/aio/test_waiting.py)
        room.bury_the_gone()
    elif len(want.ids) == 1 and (delivery := claim_answer(room, question_id(want.ids[0]) or "", want)) is not None:
        return [delivery]
    moment = room.moment()
    free: list[tuple[Kept, bool]] = []
    for kept in room.read_open(want.ids or ()):
        entry = kept.entry
        is_awaited = kept.state is State.AWAITED
        gone = not is_awaited and entry.owner is not None and room.lives.seen_here(entry.owner) is False
        may_have = is_awaited or entry.judged(moment.room_ms, gone=gone) is State.READY
        if entry.to_agent in (want.agent, None) and may_have and is_first(room, kept):
            free.append((kept, gone))
    free.sort(key=lambda each: (-each[0].entry.priority, each[0].first))
    steps = [(kept, entries.claimed(kept, want, moment, gone=gone)) for kept, gone in free]
    return _deliver(room, _taken(steps, room.replace_each(steps, moment.write), raises=True), want)


def claim_answer(room: NatsRoom, question: str, want: Want) -> Delivery | None:
    """Take the answer that a question is known to carry, which somebody here waits for."""
    heard = room.follower.news.get(question)
    host = None if heard is None or not is_there(heard.data) else entries.unpack(heard.seq, heard.data)
    answer = None if host is None else host.answer
    if answer is None or answer.state is not State.AWAITED or answer.entry.to_agent != want.agent:
        return None
    if want.owner == room.lives.process:
        room.lives.beat()
    moment = room.moment()
    steps = [(answer, entries.claimed(answer, want, moment))]
    taken = _taken(steps, room.replace_each(steps, moment.write), raises=True)
    return next(iter(_deliver(room, taken, want)), None)


def _deliver(room: NatsRoom, taken: Sequence[Kept], want: Want) -> list[Delivery]:
    if not want.settle:
        room.mine.update({kept.entry.id: kept for kept in taken})
        while len(room.mine) > MAX_REMEMBERED:  # by messages that were never settled
            with suppress(KeyError, StopIteration, RuntimeError):  # another thread settled it first
                room.mine.pop(next(iter(room.mine)))
    tickets = [Ticket(kept.entry.id, kept.token, want.agent) for kept in taken]
    messages = room.show(Message, taken)
    lost = {
        kept.entry.id for kept, message in zip(taken, messages, strict=True) if kept.entry.parts and not message.payload
    }
    if lost:
        _set_aside(room, [kept for kept in taken if kept.entry.id in lost], want)
    found = zip(messages, tickets, strict=True)
    return [Delivery(message, ticket) for message, ticket in found if ticket.id not in lost]


def _set_aside(room: NatsRoom, lost: Sequence[Kept], want: Want) -> None:
    """The servers do not have the whole payload of these any more, as after a power cut without `sync_interval: always`:
    nobody gets half of one (tests/faults/test_power_cut_nats.py).
    """
    for kept in lost:
        token, said = kept.token, f"its payload of {kept.entry.size} bytes was lost on the servers"

        def dead(now: Kept, moment: WriteTime, token: int = token, said: str = said) -> Entry | None:
            return entries.settled(now, "dead", want.agent, said, 0, moment) if now.token == token else None

        room.mine.pop(kept.entry.id, None)
        room.change(kept.entry.id, dead, kept)


# Settling


class _Settling(NamedTuple):
    """An outcome that a receiver tells of a message, and the name of the write by which it does."""

    ticket: Ticket
    outcome: str
    detail: str | None
    delay_s: float
    puts: Sequence[Draft]
    write: str


def settle(
    room: NatsRoom,
    ticket: Ticket,
    outcome: str,
    *,
    detail: str | None = None,
    delay_s: float = 0,
    puts: Sequence[Draft] = (),
    claim_next: Want | None = None,
) -> Settled:
    """Say what became of a message, with the answer; then claim the next."""
    check_word("outcome", outcome, OUTCOMES)
    before = room.unsure.settling(ticket, outcome)
    said = _Settling(ticket, outcome, detail, delay_s, puts, before or room.moment().write)
    try:
        return _settle_and_claim(room, said, claim_next)
    except BaseException as error:
        if isinstance(error, OutcomeUnknown) or not isinstance(error, RoomError):  # no reply, or an interrupt
            room.unsure.remember_settling(ticket, outcome, said.write)
        elif before is not None and isinstance(error, RoomUnreachable):
            raise OutcomeUnknown(str(error)) from error  # this try changed nothing, but the one before may have
        raise


def _settle_and_claim(room: NatsRoom, said: _Settling, claim_next: Want | None) -> Settled:
    if claim_next is not None and claim_next.ids is None and said.outcome in _ENDINGS and not said.puts:
        settled = _settle_and_take(room, said, claim_next)
        if settled is not None:
            return settled
    settled = _settle(room, said)
    if claim_next is None:
        return settled
    try:
        return settled._replace(claimed=claim(room, claim_next))
    except RoomError:
        if not settled.held:
            raise
        return settled._replace(claimed=Claimed([], 0))  # it is settled, and that must be told; the next look will say


def _settle_and_take(room: NatsRoom, said: _Settling, want: Want) -> Settled | None:
    """Both at once, two writes on their way together; None when there is nothing to take, and nothing was done."""
    ticket = said.ticket
    if room.limits.is_due(room.clock.steady_ns()) or room.limits.concern(want):
        return None  # one after the other: a place that the first leaves is free for the second
    kept = _newest_known(room, ticket)
    if not counts(kept, ticket.token):
        return None
    if want.owner == room.lives.process:
        room.lives.beat()
    patterns = patterns_of(want)
    room.follower.follow(patterns)
    if room.follower.due(patterns, UNTIL_LOST):
        return None  # one after the other: the result of the first must not wait for a look
    with _picked(room, want, want.limit, {ticket.id}, said.write) as found:
        picked = _without_blocked(room, found)
        if not picked.best:
            return None
        entry = entries.settled(kept, said.outcome, ticket.agent, said.detail, 0, picked.moment)
        steps = _steps(picked, want)
        first, *ends = room.replace_each([(kept, entry), *steps], said.write)
        taken = _taken(steps, ends, raises=False)
    settled = Settled(True, State(entry.state), [], None)
    if isinstance(first, Changed):
        settled = _settle(room, said)
    elif isinstance(first, BaseException):  # what was taken goes back: its receiver is told of the trouble alone
        for each in taken:
            back = Ticket(each.entry.id, each.token, want.agent)
            with suppress(RoomError):
                _settle(room, _Settling(back, "returned", None, 0, (), room.moment().write))
        raise first
    room.mine.pop(ticket.id, None)
    deliveries = _deliver(room, taken, want)
    return settled._replace(claimed=Claimed(deliveries, None if deliveries else 0))


def _settle(room: NatsRoom, said: _Settling) -> Settled:
    ticket = said.ticket
    kept = _newest_known(room, ticket)
    if not counts(kept, ticket.token):
        kept = room.read(ticket.id)
    ids: list[str] = []
    while counts(kept, ticket.token):
        entry, writes, ids = _end(room, said, kept)
        try:
            found = room.commit(writes, said.write).found
        except Changed:
            kept = room.read(ticket.id)
            continue
        if found is not None:  # looked up: it may be what an earlier call wrote, with another answer
            kept = room.kept_of(found)
            break
        room.mine.pop(ticket.id, None)
        return Settled(True, State(entry.state), ids, None)
    room.mine.pop(ticket.id, None)
    line = None if kept is None else kept.line_of(said.write)
    if kept is None or line is None:
        return Settled(False, None, [], None)
    # our own doing, whose reply was lost: others may have gone on with the message since
    return Settled(True, _state_after(line, said.delay_s), _stored_with(line, ids), None)


def _end(room: NatsRoom, said: _Settling, kept: Kept) -> tuple[Entry, list[Write], list[str]]:
    """The entry of a message after what its holder says of it, the writes that make it, and the ids that these store.

    An answer whose asker waits stands in the entry of its question: several entries in one step cost a single server
    about twenty times as much as one (docs/design/nats.md).
    """
    agent, moment = said.ticket.agent, room.moment(said.write)
    if said.outcome == "answered" and len(said.puts) == 1 and not _is_given_up(room, kept):
        entry = entries.answered(kept, said.puts[0], agent, moment)
        if entry is not None and entry.answer is not None:
            room.announce_layout(ANSWER_LAYOUT)
            return entry, [room.write_of(entry, kept.seq)], [entry.answer.id]
    plan = WritePlan(room, moment, {kept.entry.id: kept})
    plan.add(said.puts)
    detail = plan.ids[0] if said.outcome == "answered" and plan.ids else said.detail
    entry = entries.settled(kept, said.outcome, agent, detail, said.delay_s, moment)
    held = plan.held.get(kept.entry.id)
    if held:
        entry = replace(entry, held=(*entry.held, *held))
    return entry, [room.write_of(entry, kept.seq), *plan.writes], plan.ids


def _is_given_up(room: NatsRoom, kept: Kept) -> bool:
    """Whether nobody waits for the answer to a question any more, as far as can be seen on this machine.

    Then the answer lies in its recipient's box from the beginning: other processes of it find it there at once.
    """
    waiter = kept.entry.waiter
    return waiter is None or (waiter != room.lives.process and room.lives.seen_here(waiter) is False)


def _state_after(line: LedgerLine, delay_s: float) -> State:
    """The state into which a line of the ledger that settled a message has brought it."""
    if line.event == "retried" and delay_s <= 0:
        return State.READY
    return next(move.target for move in MOVES if move.event == line.event)


def _stored_with(line: LedgerLine, ids: list[str]) -> list[str]:
    """The answer that was stored with an end, which an earlier call may have given another id."""
    return [line.detail] if line.event == "answered" and line.detail and line.detail not in ids else ids


def _newest_known(room: NatsRoom, ticket: Ticket) -> Kept | None:
    with room.follower.lock:
        row = room.tables.rows.get(ticket.id)
        known = [kept for kept in (room.mine.get(ticket.id), row.kept if row is not None else None) if kept is not None]
    return max(known, default=None, key=lambda kept: kept.seq)


def extend(room: NatsRoom, ticket: Ticket, lease_s: float) -> bool:
    """Let a lease end that much later than now; False when the ticket no longer counts, or a limit is in the way."""
    is_late = False

    def step(kept: Kept, moment: WriteTime) -> Entry | None:
        nonlocal is_late
        is_late = counts(kept, ticket.token) and must_pass(room, kept)
        may_extend = counts(kept, ticket.token) and not is_late
        return entries.extended(kept, ticket.agent, lease_s, moment) if may_extend else None

    known = _newest_known(room, ticket)
    kept = room.change(ticket.id, step, known if counts(known, ticket.token) else None)
    if is_late:
        kept = take_back(room, ticket, lease_s)
    if not counts(kept, ticket.token):
        return False
    room.mine[ticket.id] = kept
    return True


def heartbeat(room: NatsRoom, tickets: Sequence[Ticket], lease_s: float) -> list[Ticket]:
    """Let leases end no sooner than that; the tickets that no longer count. All are written at once, each for itself."""
    lost: list[Ticket] = []
    left = {ticket: _newest_known(room, ticket) for ticket in tickets}
    while left:
        steps: dict[Ticket, tuple[Kept, Entry]] = {}
        moment = room.moment()
        for ticket, known in left.items():
            kept = known if counts(known, ticket.token) else room.read(ticket.id)
            if counts(kept, ticket.token) and must_pass(room, kept):
                kept = take_back(room, ticket, lease_s)
                if kept is None:
                    lost.append(ticket)
                else:
                    room.mine[ticket.id] = kept
            elif counts(kept, ticket.token):
                steps[ticket] = (kept, entries.kept_up(kept, ticket.agent, lease_s, moment))
            else:
                lost.append(ticket)
        left = {}
        for ticket, end in zip(steps, room.replace_each(list(steps.values()), moment.write), strict=True):
            if isinstance(end, Kept):
                room.mine[ticket.id] = end
            elif end is None or isinstance(end, Changed):
                left[ticket] = None  # somebody was first: look at what it is now
            else:
                raise end
    return lost


# Withdrawing


def withdraw(room: NatsRoom, ids: Iterable[str], agent: str, reason: str | None = None) -> list[str]:
    """Take back messages of a sender that no receiver has; those that were taken back."""

    def step(kept: Kept, moment: WriteTime) -> Entry | None:
        return entries.withdrawn(kept, agent, reason, moment, gone=bool(room.gone_owners([kept])))

    wanted = list(dict.fromkeys(ids))
    room.announce_layout(ORDER_LAYOUT)
    moment, kepts = room.moment(), room.read_open(wanted)
    steps = [(kept, entry) for kept in kepts if (entry := step(kept, moment)) is not None]
    done = set()
    for (kept, _), end in zip(steps, room.replace_each(steps, moment.write), strict=True):  # all at once
        if isinstance(end, BaseException) and not isinstance(end, Changed):
            raise end
        if isinstance(end, Kept) or room.change(kept.entry.id, step) is not None:  # or somebody changed it first
            done.add(kept.entry.id)
    return [id for id in wanted if id in done]


# Notes, and questions that are given up


def note(room: NatsRoom, id: str, event: str, agent: str | None, detail: str | None = None) -> bool:
    """Add a line to the ledger of a message; False when there is none."""
    check_word("event", event, NOTES)
    there = []

    def step(kept: Kept, moment: WriteTime) -> Entry | None:
        there.append(True)
        return entries.noted(kept, event, agent, detail, moment)

    room.change(id, step)
    return bool(there)


def abandon(room: NatsRoom, *ids: str) -> None:
    """Nobody waits for the answers to these questions any more: what is held for their asker becomes ordinary mail.

    Several are written at once, each for itself; those that somebody else changed meanwhile, one after the other.
    """
    done: set[str] = set()
    if len(ids) > 1:
        moment = room.moment()
        waited = [kept for kept in room.read_open(ids) if _is_waited_for(kept) and not kept.entry.held]
        steps = [(kept, entries.abandoned(kept, moment)) for kept in waited]
        ends = room.replace_each(steps, moment.write)
        done = {kept.entry.id for kept, end in zip(waited, ends, strict=True) if isinstance(end, Kept)}
    for id in ids:
        if id not in done:
            _abandon_one(room, id)


def _is_waited_for(kept: Kept) -> bool:
    return kept.entry.waiter is not None and kept.state is not State.AWAITED


def _abandon_one(room: NatsRoom, id: str) -> None:
    held: list[str] | None = None

    def step(kept: Kept, moment: WriteTime) -> Entry | None:
        nonlocal held  # of the very entry that is replaced: an answer may come at this moment
        held = [*kept.entry.held]
        return entries.abandoned(kept, moment) if _is_waited_for(kept) else None

    room.change(id, step)
    if held is None:  # it was deleted; its answers know what they answer
        held = [answer.id for answer in find(room, Query(answer_to=id)).messages]
    for answer in held:
        room.change(answer, lambda kept, moment: entries.unheld(kept, moment) if kept.state is State.AWAITED else None)
