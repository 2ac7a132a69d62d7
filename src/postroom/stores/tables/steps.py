"""The operations on a room's tables: put, claim, settle, let go, look for.

One thread at a time, in a room that is open.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Container, Iterable, Iterator, Sequence
from heapq import merge
from typing import Final

from postroom.core.clock import sooner
from postroom.core.message import Draft, Message, MessageT, MessageWithLedger, draft_of
from postroom.core.states import ASKER_GONE, FINISHED, LEASE_ENDED, NOT_IN_TIME, OWNER_GONE, WITHDRAWABLE, State
from postroom.errors import InvalidMessage
from postroom.stores import contract
from postroom.stores.contract import Claimed, Delivery, Query, Ticket, Want
from postroom.stores.gates import Gates, Limits
from postroom.stores.rules import check_word, later_ms, matches, no_longer_kept

from .limiting import group_of
from .tables import Row, Tables

#: The fields that a message has from its draft, unchanged.
_ENVELOPE: Final = sorted({*Draft.__struct_fields__} & {*Message.__struct_fields__} - {"payload", "waiter"})


def put(room: Tables, drafts: Sequence[Draft]) -> list[str]:
    """Store messages, all or none: what may be refused is looked at first."""
    first_of: dict[tuple[str, str], Draft] = {}
    for draft in drafts:
        if draft.idempotency_key is not None:
            name = (draft.from_agent, draft.idempotency_key)
            known = room.named("sent", name)
            if known:
                first_of[name] = room.rows[known[0]].draft
            first = first_of.setdefault(name, draft)
            same_receiver = draft.publish or first.to_agent == draft.to_agent  # of a moved one nobody knows whether
            if not same_receiver or _content(room, first) != _content(room, draft):
                problem = f"{draft.idempotency_key!r} was used by {draft.from_agent!r} before, for another message"
                raise InvalidMessage("idempotency_key", problem)
    return [id for draft in drafts for id in _put_one(room, draft)]


def restore(room: Tables, messages: Sequence[MessageWithLedger]) -> int:
    """Take over messages of another room; see `Store.restore`."""
    new = [message for message in messages if room.row_of(message.id) is None]
    rows = [room.restore(message, draft_of(message)) for message in new]
    if not all(row.moved for row in rows):  # one that was here before has its old place
        room.sort_rows()
    return len(rows)


def _content(room: Tables, draft: Draft) -> tuple[object, ...]:
    """Everything that must be the same when a sender repeats an idempotency key.

    A draft that is kept has no payload of its own.
    """
    body = draft.payload_json if draft.payload is None else room.body_of(draft)
    return draft.channel, draft.type, body


def sent_before(room: Tables, draft: Draft) -> Sequence[int]:
    """The keys of what was sent under a draft's idempotency key."""
    return room.named("sent", (draft.from_agent, draft.idempotency_key)) if draft.idempotency_key is not None else ()


def _put_one(room: Tables, draft: Draft) -> list[str]:
    known = sent_before(room, draft)
    if known:
        return [room.rows[key].id for key in known]
    if not draft.publish:
        return [_put_copy(room, draft, draft.to_agent)]
    agents = sorted(agent for channel, agent in room.subscribers if channel == draft.channel)
    return [_put_copy(room, draft, agent) for agent in agents]


def _put_copy(room: Tables, draft: Draft, to_agent: str | None) -> str:
    """Store one message, and withdraw those that it replaces."""
    if draft.replaces is None and not draft.debounce:
        _check_space(room, draft, to_agent)
        return room.insert(draft, to_agent).id
    old = [room.row_of(draft.replaces)] if draft.replaces is not None else []
    if draft.debounce:
        line = room.ordered.get((to_agent, draft.channel, draft.order_key or ""), ())
        old += [room.rows[key] for key in line]
    end_gone_processes(room)
    wind(room)
    replaced = {row.key: row for row in old if row is not None and may_withdraw(row, draft.from_agent)}
    if not replaced:
        _check_space(room, draft, to_agent)
    id = room.insert(draft, to_agent).id
    for row in replaced.values():
        withdraw(room, row, draft.from_agent, f"replaced by {id}")
    return id


def _check_space(room: Tables, draft: Draft, to_agent: str | None) -> None:
    """Raise MailboxFull where there is no room for a message. Before it is stored: a files room that took something back
    is read anew.
    """
    if room.limits.is_full(draft, to_agent):
        wind(room)  # what has expired waits no more
        room.limits.check_space(draft, to_agent)


def may_withdraw(row: Row, agent: str) -> bool:
    """Whether a message is its sender's to take back: no receiver has it, and no asker waits for it."""
    return row.draft.from_agent == agent and row.state in WITHDRAWABLE


def withdraw(room: Tables, row: Row, agent: str, reason: str | None) -> None:
    """Take one message back; its late holder's ticket no longer counts."""
    room.before_change(row)
    row.token += 1
    room.move(row, State.WITHDRAWN, "withdrawn", agent, reason)


def claim(room: Tables, want: Want) -> Claimed:
    """Take messages; see `Store.claim`."""
    end_gone_processes(room)
    wind(room)
    limits, opens_s = room.limits.read(), None
    if limits:
        deliveries, opens_s = _deliver_limited(room, want, limits)
    elif want.ids is None:
        deliveries = _deliver_best(room, want)
    else:
        deliveries = [_deliver(room, row, want) for row in _rows_named(room, want)]
    next_due_s = max(0, room.timers[0][0] - room.now_ms()) / 1000 if room.timers else None
    return Claimed(deliveries, sooner(next_due_s, opens_s))


def _deliver_limited(room: Tables, want: Want, limits: Limits) -> tuple[list[Delivery], float | None]:
    """Deliver what the limits let pass, and tell in how many seconds a rate will let pass more."""
    # the ledger tells the moment by which a rate is kept: reading a message from its file may take a while
    # (test_memory.py: test_a_claim_that_takes_long_stands_in_the_ledger_at_the_moment_its_rate_was_judged)
    gates, wall_ms = room.limits.gates(limits, room.now_ms()), room.clock.wall_ms()
    rows: Iterable[Row] = _rows_named(room, want) if want.ids is not None else _rows_ready(room, want, gates)
    if want.agent in limits.agents:
        rows = (row for row in rows if row.state is State.AWAITED)
    picked: list[Row] = []
    for row in rows:
        channel, group = row.draft.channel, group_of(row.draft)
        if row.state is not State.AWAITED:  # an answer, which its asker gets all the same
            if not gates.lets_pass(channel, group):
                continue
            if row.draft.answer_to is None:
                gates.take(channel, group)
        picked.append(row)
        if want.ids is None and len(picked) >= want.limit:
            break
    for name, full_ms in gates.taken.items():
        room.set_cell(name, f"{full_ms!r}")
    deliveries = [_deliver(room, row, want, wall_ms) for row in picked if room.at_hand(row)]
    return deliveries, gates.opens_s()


def _rows_ready(room: Tables, want: Want, gates: Gates) -> Iterator[Row]:
    """What the agent may have of the channels that are not shut, best first."""
    boxes = [box for name, box in _boxes(room, want) if not gates.is_shut(name)]
    return (room.rows[key] for _, key in merge(*boxes)) if want.limit else iter(())


def _boxes(room: Tables, want: Want) -> list[tuple[str, list[tuple[int, int]]]]:
    """The boxes that the agent takes from, each with its channel."""
    own, anyones = room.boxes.get(want.agent, {}), room.boxes.get(None, {})
    names = own if want.channels is None else dict.fromkeys(want.channels)
    sources = (own,) if want.channels is None else (own, anyones)
    return [(name, box[name]) for name in names for box in sources if name in box]


def end_gone_processes(room: Tables) -> list[str]:
    """End the claims and the waits of processes that are gone. Returns the events of the ledgers."""
    done: list[str] = []
    for process in dict.fromkeys((*room.owners, *room.waits)):  # in one order, so that a simulated run can be repeated
        if room.process_alive(process) is False:
            done += [_let_go(room, room.rows[key], OWNER_GONE) for key in sorted(room.owners.get(process, ()))]
            for key in sorted(room.waits.get(process, ())):
                stop_waiting(room, room.rows[key], ASKER_GONE)
    return done


def wind(room: Tables) -> list[str]:
    """Act on every timer that has run out: what is due is ready, what expired is expired, ended leases end.

    Returns the events of the ledgers.
    """
    now_ms = room.now_ms()
    done: list[str] = []
    while room.timers and room.timers[0][0] <= now_ms:
        row = room.rows[room.timers[0][1]]
        if row.state is State.CLAIMED:
            done.append(_let_go(room, row, LEASE_ENDED))
        elif row.expired(now_ms):
            done.append(_expire(room, row))
        elif row.state is State.BLOCKED:
            room.change(row, State.BLOCKED)  # its delay is over, and it is still behind another
        else:
            room.change(row, State.READY)
            room.ring_mail(row)
    return done


def _expire(room: Tables, row: Row) -> str:
    room.before_change(row)
    row.error = NOT_IN_TIME
    return room.move(row, State.EXPIRED, "expired", None, NOT_IN_TIME)


def _let_go(room: Tables, row: Row, why: str) -> str:
    """End a claim whose holder is late or gone: the message is ready again, or has had its chances.

    The token stays: until somebody else takes the message, its late holder may still settle it.
    """
    most = row.draft.max_deliveries
    if row.deliveries >= most:
        room.before_change(row)
        row.error = f"{why} (delivery {row.deliveries} of {most})"
        return room.move(row, State.DEAD, "dead", row.claimed_by, row.error)
    if row.expired(room.now_ms()):
        return _expire(room, row)
    owner = row.owner
    event = room.move(row, State.READY, "released", row.claimed_by, why)
    if why is LEASE_ENDED:
        row.owner = owner  # it stays with the message, for it may still extend the lease
    return event


def stop_waiting(room: Tables, row: Row, why: str | None) -> None:
    """Nobody waits any more for this question's answer, or for this answer: that is ordinary mail from now on."""
    if row.state is State.AWAITED:
        room.change(row, State.READY)
        room.write(row, "unheld", None, None, in_ledger=False)  # both count as "stored": no line for it in the ledger
        room.ring_mail(row)
    else:
        room.set_waiter(row, None)
        room.write(row, "abandoned", row.draft.from_agent, why)


def _deliver_best(room: Tables, want: Want) -> list[Delivery]:
    """Deliver the best of what is ready in the boxes that the agent takes from; each delivery leaves its box."""
    boxes = [box for _, box in _boxes(room, want)]
    deliveries: list[Delivery] = []
    while len(deliveries) < want.limit and (heads := [box[0] for box in boxes if box]):
        _, key = min(heads)
        if room.at_hand(row := room.rows[key]):
            deliveries.append(_deliver(room, row, want))
    return deliveries


def _rows_named(room: Tables, want: Want) -> list[Row]:
    """The messages asked for by id, as far as the agent may have them, best first."""
    rows = {row.key: row for row in map(room.row_of, want.ids or ()) if row is not None}.values()
    mine = [row for row in rows if row.draft.to_agent in (want.agent, None)]
    free = [row for row in mine if row.state in (State.READY, State.AWAITED) and room.at_hand(row)]
    return sorted(free, key=lambda row: (-row.draft.priority, row.key))


def _deliver(room: Tables, row: Row, want: Want, wall_ms: int | None = None) -> Delivery:
    wall_ms = room.clock.wall_ms() if wall_ms is None else wall_ms
    room.before_change(row)
    row.token += 1
    row.deliveries += 1
    row.claimed_by = want.agent
    row.last_delivered_ms = wall_ms
    room.change(row, State.CLAIMED, until_ms=later_ms(room.now_ms(), want.lease_s), owner=want.owner)
    room.write(row, "claimed", want.agent, None, wall_ms=wall_ms)
    ticket = Ticket(row.id, row.token, want.agent)
    if want.settle:
        settle(room, row, "acked", want.agent, None, 0)
    return Delivery(show(Message, room, row), ticket)


def row_held_by(room: Tables, ticket: Ticket) -> Row | None:
    """The message that a ticket speaks for, or None when it no longer counts.

    Every claim, retry and requeue makes a new token, so a ready message with the ticket's own token was let go and not
    taken since: its late holder may still settle it.
    """
    row = room.row_of(ticket.id)
    counts = row is not None and row.token == ticket.token and row.state in (State.CLAIMED, State.READY)
    return row if counts else None


def extend(room: Tables, row: Row, agent: str, lease_s: float) -> bool:
    """Let the lease of a message that is held end that much later than now; False when a limit is in the way."""
    if row.state is State.READY and not room.limits.may_run_again(row.draft, room.now_ms()):
        return False
    room.change(row, State.CLAIMED, until_ms=later_ms(room.now_ms(), lease_s), owner=row.owner)
    room.write(row, "extended", agent, f"{lease_s:g} s")
    return True


def end_leases(room: Tables, tickets: Iterable[Ticket]) -> None:
    """Where so many may run at once, leases that have ended leave their places before a late holder is given one.

    (testing/limiting.py: test_of_two_late_holders_one_finds_its_place_taken)
    """
    if room.limits.read():
        rows = [room.row_of(ticket.id) for ticket in tickets]
        if any(row is not None and room.limits.is_concurrent(row.draft.channel) for row in rows):
            wind(room)


def heartbeat(room: Tables, ticket: Ticket, lease_s: float) -> bool:
    """Let the lease end no sooner than that, without a word; False when the ticket no longer counts."""
    row = row_held_by(room, ticket)
    if row is None:
        return False
    if row.state is State.CLAIMED:
        until_ms = max(row.wake_ms or 0, later_ms(room.now_ms(), lease_s))
        room.change(row, State.CLAIMED, until_ms=until_ms, owner=row.owner)
        return True
    return extend(room, row, ticket.agent, lease_s)


def settle(room: Tables, row: Row, outcome: str, agent: str, detail: str | None, delay_s: float) -> State:
    """Say what became of a message that is held; returns its state after."""
    room.before_change(row)
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


def requeue(room: Tables, row: Row | None) -> bool:
    """Put one message back; see `Store.requeue`."""
    if row is None or row.state not in (State.DEAD, State.REFUSED, State.EXPIRED):
        return False
    room.before_change(row)
    row.token += 1
    row.deliveries, row.error, row.claimed_by = 0, None, None
    if row.expired(room.now_ms()):
        row.expires_ms = None
    room.move(row, State.BLOCKED if room.is_behind(row) else State.READY, "requeued", None)
    return True


def matching(room: Tables, query: Query, cursor: int | None, gone: Container[str | None] = ()) -> Iterator[Row]:
    """The rows that a query asks for, in its order, after (or, newest first, before) the cursor."""
    check_word("order", query.order, contract.ORDERS)
    keys: Sequence[int]
    if query.answer_to is not None:
        keys = room.named("answers", query.answer_to)
    elif query.chain_id is not None:
        keys = room.named("chains", query.chain_id)
    elif query.correlation_id is not None:
        keys = room.named("correlated", query.correlation_id)
    elif query.ids is not None:
        keys = sorted({row.key for row in map(room.row_of, query.ids) if row is not None})
    elif query.states is not None and not query.states & FINISHED:
        keys = room.unfinished(_receivers(query), query.channels)
    else:
        keys = room.keys(query.states)
    if query.order == "newest":
        keys = keys[: None if cursor is None else bisect_left(keys, cursor)][::-1]
    elif query.order == "oldest":
        keys = keys[0 if cursor is None else bisect_right(keys, cursor) :]
    else:
        keys = sorted(keys, key=lambda key: (-room.rows[key].draft.priority, key))
    now_ms = room.now_ms()
    rows = map(room.rows.__getitem__, keys)
    return (row for row in rows if matches(query, row.draft, row, lambda row: row.judged(now_ms, gone)))


def _receivers(query: Query) -> tuple[str | None, ...] | None:
    """The agents to whom the messages of a query are addressed (None: to nobody); None where it says nothing of that."""
    if query.to_agent is not None:
        return (query.to_agent,)
    if query.visible_to is not None:
        return (query.visible_to,) if query.channels is None else (query.visible_to, None)
    return None


def gone_owners(room: Tables, row: Row | None = None) -> frozenset[str]:
    """Of the processes that hold messages (or that one message), those that are gone: for a look, each asked once."""
    owners = [*room.owners] if row is None else [row.owner] if row.owner is not None else []
    return frozenset(process for process in owners if room.process_alive(process) is False)


def show(make: type[MessageT], room: Tables, row: Row, gone: Container[str | None] = ()) -> MessageT:
    """A row as a message of its own, judged by the clock and the lives of owners, without its ledger."""
    draft, now_ms = row.draft, room.now_ms()
    state = row.judged(now_ms, gone)
    wake_wall_ms = None if row.wake_ms is None else row.wake_ms - now_ms + room.clock.wall_ms()
    return make(
        **{name: getattr(draft, name) for name in _ENVELOPE},
        id=row.id,
        payload=room.payload_of(row),
        timestamp_ms=row.timestamp_ms,
        expires_at_ms=None if row.expires_ms is None else row.timestamp_ms + round((draft.ttl_s or 0) * 1000),
        delivery_count=row.deliveries,
        exact_state=state,
        error=row.error,
        claimed_by=row.claimed_by,
        owner=row.owner if state is State.CLAIMED else None,
        token=row.token,
        lease_until_ms=wake_wall_ms if state is State.CLAIMED else None,
        last_delivered_ms=row.last_delivered_ms,
        due_ms=wake_wall_ms
        if state is State.DELAYED or (state is State.BLOCKED and row.wake_ms != row.expires_ms)
        else None,
        waiter=row.waiter,
    )


def forget_finished(room: Tables) -> int:
    """Keep what the settings allow of the finished messages, the latest; forget the others."""
    count, size = room.finished_count(), room.finished_bytes
    keys = list(no_longer_kept(room.finished_first(), room.config, room.now_ms(), count, size))
    return forget(room, [room.rows[key] for key in keys])


def forget(room: Tables, rows: Sequence[Row]) -> int:
    """Delete messages for good, and write down up to where the feed has gaps from now on. Returns how many."""
    if rows:
        before = int(room.cells.get(contract.FORGOTTEN, (0, "0"))[1])
        room.set_cell(contract.FORGOTTEN, str(max(before, room.last_change(rows))))
    return room.delete(rows)
