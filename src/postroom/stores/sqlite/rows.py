"""Rows of the SQLite store as messages, and queries as SQL. Pure: no connection here."""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence
from typing import Any, Final

import msgspec

from postroom.core.clock import from_iso
from postroom.core.message import (
    FRACTION_BITS,
    Draft,
    LedgerEntry,
    MessageT,
    MessageWithLedger,
    decode_payload,
    id_of,
    key_of,
)
from postroom.core.states import OPEN, WITHDRAWABLE, State, judge
from postroom.stores.contract import Query, Subscription, topic_channel, topic_to

Row = tuple[Any, ...]
#: What is read of a message, in the order in which `Rows.message` takes it.
COLUMNS: Final = (
    "key, state, token, change, wake_at, priority, to_agent, channel, from_agent, type, version, delivery_count, "
    "max_deliveries, sent_ms, expires, last_delivered_ms, claimed_by, owner, waiter, own_id, expires_at_ms, "
    "correlation_id, chain_id, hop_count, lane, trace, error, idempotency_key, answer_to, order_key, replaces, replay_of, "
    "implied, ended_ms, payload"
)
#: Where some of them stand.
(
    STATE, TOKEN, CHANGE, WAKE_AT, PRIORITY, TO_AGENT, CHANNEL, FROM_AGENT, DELIVERY_COUNT, SENT_MS, LAST_DELIVERED_MS,
    CLAIMED_BY, OWNER, WAITER, OWN_ID, ANSWER_TO, ORDER_KEY, REPLAY_OF, PAYLOAD,
) = (
    COLUMNS.split(", ").index(name)
    for name in (
        "state", "token", "change", "wake_at", "priority", "to_agent", "channel", "from_agent", "delivery_count", "sent_ms",
        "last_delivered_ms", "claimed_by", "owner", "waiter", "own_id", "answer_to", "order_key", "replay_of", "payload",
    )
)  # fmt: skip

_COLUMN_COUNT: Final = PAYLOAD + 1
#: In `meta`: up to which key messages are in the index of words; without one, there is none (search.py).
SEARCH_MARK: Final = "search mark"
#: What waits, but is not ready: the statements that find it.
SOURCES: Final = {State.DELAYED: "delayed", State.AWAITED: "awaited", State.BLOCKED: "blocked"}
_GONE: Final = "/*gone*/"
_decode_ledger = msgspec.json.Decoder(list[LedgerEntry]).decode
_quote = msgspec.json.Encoder().encode


def ledger_text(event: str, wall_ms: int, agent: str | None, detail: str | None = None) -> str:
    """One entry, as it is appended to the ledger's text."""
    return _quote((event, wall_ms, agent, detail)).decode() + ","


def ledger_entries(text: str) -> list[LedgerEntry]:
    """The entries of a ledger's text."""
    return _decode_ledger("[" + text.rstrip(",") + "]")


def implied_entries(implied: int, delivered_ms: int, ended_ms: int, agent: str | None) -> list[LedgerEntry]:
    """The last entries of a ledger that stand in no text; the same rule as `told` in schema.sql."""
    entries = [LedgerEntry("claimed", delivered_ms, agent), LedgerEntry("acked", ended_ms, agent)]
    return entries[:implied]


def naming(gone: Iterable[int], sql: str) -> str:
    """A statement that judges states, with the numbers of the processes that are gone; `late_claims` in schema.sql."""
    return sql.replace(_GONE, ", ".join(map(str, gone)))


def claim_order(row: Row) -> tuple[int, int]:
    """Sorts what may be claimed: what is more urgent first, then what came first."""
    return -row[PRIORITY], row[0]


def first_timer(now: int, delay_s: float, expires: int | None) -> int:
    """When a delayed message changes first: it is due, or it expires. All in room ms."""
    due = now + max(1, round(delay_s * 1000))
    return due if expires is None else min(due, expires)


class StepTime(msgspec.Struct, gc=False):
    """The times of one step, and the topics to ring when it is committed."""

    now: int
    wall_ms: int
    everyone: set[str]
    one_each: list[str]

    def wake_receiver(self, to_agent: str | None, channel: str) -> None:
        if to_agent is None:
            self.one_each.append(topic_channel(channel))
        else:
            self.everyone.add(topic_to(to_agent))


def lease_end(moment: StepTime, lease_s: float) -> int:
    """When a lease ends that begins now, in room milliseconds."""
    return moment.now + max(1, round(lease_s * 1000))


class Taken(msgspec.Struct, frozen=True, gc=False):
    """What a claim makes of a row: `take` in schema.sql, or `take_and_ack` where it ends with the claim."""

    state: State
    lease_ends: int | None  # room ms
    agent: str
    owner: int | None


class Rows:
    """Makes messages of rows, for the room with this salt."""

    def __init__(self, salt: int) -> None:
        self._salt = salt

    def id(self, key: int, own_id: str | None) -> str:
        return id_of(key, self._salt) if own_id is None else own_id

    def reference(self, id: str | None) -> int | str | None:
        """How a row refers to another message: by its key; by its id, where that came from another room."""
        if id is None:
            return None
        key = key_of(id, self._salt)
        return id if key is None else key

    def referred(self, reference: int | str) -> str:
        """The id of the message that a row refers to."""
        return id_of(reference, self._salt) if isinstance(reference, int) else reference

    def to_insert(
        self, key: int | None, draft: Draft, moment: StepTime, state: State, to_agent: str | None, waiter: int | None
    ) -> Row:
        """What `insert` in schema.sql takes."""
        wake_at = expires = None if draft.ttl_s is None else moment.now + round(draft.ttl_s * 1000)
        if state is State.AWAITED:
            wake_at = None
        elif draft.delay_s:
            wake_at = first_timer(moment.now, draft.delay_s, expires)
            state = State.DELAYED if state is State.READY else state
        return (
            key, int(state), wake_at, draft.priority, to_agent, draft.channel, draft.from_agent, draft.type, draft.version,
            draft.max_deliveries, moment.wall_ms, expires, waiter, draft.correlation_id, draft.chain_id, draft.hop_count,
            draft.lane, draft.trace, draft.idempotency_key,
            None if draft.answer_to is None else self.reference(draft.answer_to),
            None if draft.replay_of is None else self.reference(draft.replay_of), draft.order_key,
            None if draft.replaces is None else self.reference(draft.replaces), draft.payload_json,
        )  # fmt: skip

    @staticmethod
    def to_insert_plain(key: int, draft: Draft, moment: StepTime) -> Row:
        """What `insert_plain` in schema.sql takes, which costs a message of a batch a tenth less."""
        return (
            key, draft.priority, draft.to_agent, draft.channel, draft.from_agent, draft.type, draft.max_deliveries,
            moment.wall_ms, draft.payload_json,
        )  # fmt: skip

    def to_restore(self, message: MessageWithLedger, ticks: Sequence[int], moment: StepTime, *, is_behind: bool) -> Row:
        """What `restore` in schema.sql takes; `ticks` are two numbers of the room.

        `is_behind`: another message of its order key has not ended.
        """
        later_ms = moment.now - moment.wall_ms
        expires = None if message.expires_at_ms is None else message.expires_at_ms + later_ms
        state = message.exact_state
        if state in WITHDRAWABLE:
            waits = State.READY if message.due_ms is None else State.DELAYED
            state = State.BLOCKED if is_behind else waits
        due = expires if state in (State.READY, State.BLOCKED) else None
        if message.due_ms is not None:
            due = message.due_ms + later_ms if expires is None else min(message.due_ms + later_ms, expires)
        is_new = state in WITHDRAWABLE and len(message.ledger) == 1
        key = key_of(message.id, self._salt)
        return (
            ticks[0] if key is None else key, int(state), message.token, None if is_new else ticks[1], due,
            message.priority, message.to_agent, message.channel, message.from_agent, message.type, message.version,
            message.delivery_count, message.max_deliveries, message.timestamp_ms, expires, message.last_delivered_ms,
            message.claimed_by, message.correlation_id, message.chain_id, message.hop_count, message.lane, message.trace,
            message.error, message.idempotency_key, self.reference(message.answer_to), self.reference(message.replay_of),
            message.order_key, self.reference(message.replaces),
            "".join(_quote(line).decode() + "," for line in message.ledger), _quote(message.payload).decode(), message.id,
            message.expires_at_ms,
        )  # fmt: skip

    def message(
        self,
        make: type[MessageT],
        row: Row,
        moment: StepTime,
        names: dict[int, str],
        taken: Taken | None = None,
        gone: Container[int] = (),
    ) -> MessageT:
        """The message of a row read with COLUMNS (the ledger's text may follow), as the clock sees it at that moment.

        With `taken`, as it is after a claim: the row was read before it. The leases of `gone` processes have ended.
        """
        (key, state, token, _, wake_at, priority, to_agent, channel, from_agent, type_, version, delivery_count,
         max_deliveries, sent_ms, expires, last_delivered_ms, claimed_by, owner, waiter, own_id, expires_at_ms,
         correlation_id, chain_id, hop_count, lane, trace, error, idempotency_key, answer_to, order_key, replaces, replay_of,
         _implied, _ended_ms, payload,
         ) = row[:_COLUMN_COUNT]  # fmt: skip
        now, wall_ms = moment.now, moment.wall_ms
        if taken is None:
            ends = now if state == State.CLAIMED and owner in gone else wake_at
            seen = judge(state, ends, expires, delivery_count >= max_deliveries, now)
        else:
            if state == State.AWAITED or taken.state is State.ACKED:
                waiter = None
            state = seen = taken.state
            token, delivery_count, last_delivered_ms = token + 1, delivery_count + 1, wall_ms
            wake_at, claimed_by, owner = taken.lease_ends, taken.agent, taken.owner
        wake_wall_ms = None if wake_at is None else wake_at - now + wall_ms
        # Not by their names: a dict of so many is a tenth of receiving a message (testing/putting.py compares all fields).
        return make(
            id_of(key, self._salt) if own_id is None else own_id, type_, version, decode_payload(payload), from_agent, to_agent,
            channel, priority, sent_ms, correlation_id,
            None if expires is None else expires_at_ms or expires - (key >> FRACTION_BITS) + sent_ms,
            delivery_count, chain_id, hop_count, lane, trace, seen, max_deliveries, error, idempotency_key, claimed_by,
            names.get(owner) if owner is not None and seen is State.CLAIMED else None,
            token, wake_wall_ms if seen is State.CLAIMED else None, last_delivered_ms,
            wake_wall_ms if state == State.DELAYED or (state == State.BLOCKED and wake_at != expires) else None,
            None if waiter is None else names.get(waiter),
            None if answer_to is None else self.referred(answer_to),
            None if replay_of is None else self.referred(replay_of),
            order_key,
            None if replaces is None else self.referred(replaces),
        )  # fmt: skip

    def ledger(self, row: Row) -> tuple[LedgerEntry, ...]:
        """The ledger of a row read with COLUMNS and the ledger's text."""
        replay_of, implied, ended_ms, _, text = row[REPLAY_OF:]
        entries = ledger_entries(text)
        entries += implied_entries(implied, row[LAST_DELIVERED_MS], ended_ms, row[CLAIMED_BY])
        if row[OWN_ID] is None:
            detail = None if replay_of is None else f"replay of {self.referred(replay_of)}"
            entries.insert(0, LedgerEntry("stored", row[SENT_MS], row[FROM_AGENT], detail))
        return tuple(entries)


def subscription(row: tuple[Any, ...]) -> Subscription:
    """A row of channel_subscriptions."""
    return Subscription(row[0], row[1], from_iso(row[2]))


#: Parts of a query that are one comparison each.
_COMPARED: Final = {
    "to_agent": "to_agent = :to_agent",
    "from_agent": "from_agent = :from_agent",
    "type": "type = :type",
    "correlation_id": "correlation_id = :correlation_id",
    "claimed_by": "claimed_by = :claimed_by",
    "order_key": "order_key = :order_key",
    "concerns": "(from_agent = :concerns OR to_agent = :concerns OR claimed_by = :concerns)",
    "sent_after_ms": "sent_ms >= :sent_after_ms",
    "sent_before_ms": "sent_ms < :sent_before_ms",
}


def where(
    query: Query, statements: Mapping[str, str], answer_to: int | str | None, keys: str | None, chain: int | None
) -> tuple[str, dict[str, Any]]:
    """The condition of a query as SQL, and its bindings but for `:now`; `keys` are those of `query.ids`, as JSON.

    `answer_to` and `chain` are the keys of the messages that the query names.
    """
    parts = _states_part(query, statements)
    values = {name: getattr(query, name) for name in _COMPARED if getattr(query, name) is not None}
    parts += [_COMPARED[name] for name in values]
    if query.channels is not None:
        named = {f"channel{i}": name for i, name in enumerate(query.channels)}
        parts.append(f"channel IN ({', '.join(':' + mark for mark in named)})")
        values |= named
    if query.visible_to is not None:
        anyone = " OR to_agent IS NULL" if query.channels is not None else ""
        parts.append(f"(to_agent = :visible_to{anyone})")
        values["visible_to"] = query.visible_to
    if query.answer_to is not None:
        parts.append("answer_to = :answer_to")
        values["answer_to"] = answer_to
    if query.chain_id is not None:
        parts.append(f"key IN ({statements['in_chain']}) AND chain_id = :chain_id")
        values |= {"chain_id": query.chain_id, "chain": chain}
    if keys is not None:
        parts.append("key IN (SELECT value FROM json_each(:keys))")
        values["keys"] = keys
    if query.waiting:
        parts.append(f"key IN ({statements['asked']}) AND state IN (0, 1, 7, 9)")
    return " AND ".join(parts) or "1", values


def _states_part(query: Query, statements: Mapping[str, str]) -> list[str]:
    if query.states is None:
        return []
    wanted = ", ".join(str(int(state)) for state in sorted(query.states))
    parts = [f"{statements['judged']} IN ({wanted})"]
    # few among many: begin with their index (tests/stores/test_sqlite.py looks at the plans)
    if query.states == frozenset({State.DEAD}):
        parts.insert(0, f"key IN ({statements['set_aside']})")
    elif query.states == frozenset({State.CLAIMED}):
        held = "" if query.claimed_by is None else " AND claimed_by = :claimed_by"
        parts.insert(0, f"key IN ({statements['claimed']}{held})")
    elif query.states <= SOURCES.keys():
        sources = " UNION ALL ".join(statements[SOURCES[state]] for state in query.states) or "NULL"
        parts.insert(0, f"key IN ({sources})")
    elif query.order_key is not None and query.states <= OPEN:
        parts.insert(0, statements["in_order"])  # an answer, which is kept for its asker, has no order key
    return parts
