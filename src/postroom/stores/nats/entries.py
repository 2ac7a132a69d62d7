"""What a room on NATS keeps: one entry for each message, under a subject that its id tells.

    pr.<room>.m.o.<to>.<channel>.<priority>.<id>   a message: envelope, state, ledger and, when it is small, its payload;
                                                   a question that was answered carries its answer here (`Entry.answer`)
    pr.<room>.m.f.<state>.<id>                     a message that was finished a while ago: receivers need not pass it
    pr.<room>.b.<id>.<n>                           a large payload, in parts
    pr.<room>.k.<hash>                             an idempotency key, and the ids that it gave
    pr.<room>.q.<hash>.<id>                        the place of a message in the line of its order key; the first may be claimed
    pr.<room>.s.<hash>                             the subscribers of a channel
    pr.<room>.c.<hash>.<hash>                      a cell; the first part is that of its name before the slash
    pr.<room>.w.<hash>                             what an agent did with messages that were put away
    pr.<room>.a.all                                how many messages were put away, and how large they are
    pr.<room>.t.<hash>                             how one boot of one machine counts the room's time
    pr.<room>.p.<hash>                             a process that holds claims; gone a while after the process
    pr.<room>.g.<hash>                             the gate of a channel that may have so many claimed at once: its last claims

The stream keeps the newest entry of each subject. Every change replaces it, if it is still the one that was read: the
sequence of an entry is its version, and the sequence of a claim is its fencing token.

Everything in this module is pure: an entry, a moment and a wish give the next entry.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from hashlib import blake2b
from typing import Any, Final, NamedTuple, TypeGuard

import msgspec
from msgspec.structs import replace

from postroom.core.message import Draft, LedgerEntry, Message, MessageT, MessageWithLedger, decode_payload, id_of
from postroom.core.states import FINISHED, LEASE_ENDED, NOT_IN_TIME, OWNER_GONE, WITHDRAWABLE, State, judge
from postroom.stores.contract import Want
from postroom.stores.rules import LEDGER_BYTES, later_ms

#: Payloads up to this size travel with their entry; larger ones lie beside it, and are not written again at each step.
INLINE_BYTES: Final = 4096
#: A part of a large payload. The servers take 1 MiB at once unless told otherwise.
PART_BYTES: Final = 512 * 1024
#: An entry's token that is its own sequence, which it cannot know before it is written.
OWN: Final = -1
#: The mark in place of an entry that stands elsewhere now. (The mark of a deleted one is empty.)
MOVED: Final = b"moved"
#: So begins an entry that carries another one: a program that does not know of that cannot read it, and so never writes
#: it again without the answer.
_CARRIES: Final = b"with its answer "
#: Steps that are no line in the ledger.
_UNSEEN: Final = frozenset({"unheld"})


class LedgerLine(msgspec.Struct, frozen=True, array_like=True, omit_defaults=True):
    """A line of the ledger, with the name of the write that made it: after a lost reply, that tells whose it was."""

    event: str
    time_ms: int
    agent: str | None = None
    detail: str | None = None
    write: str = ""


class Entry(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """A message as it is kept.

    `expires_ms`, `wake_ms` and `finished_ms` are room time; other times are the wall clock's.
    """

    id: str
    from_agent: str
    to_agent: str | None = None
    channel: str
    type: str
    version: str = "1.0"
    priority: int
    payload: msgspec.Raw = msgspec.Raw(b"")
    parts: int = 0
    size: int = 0
    timestamp_ms: int
    ttl_ms: int = 0
    correlation_id: str | None = None
    idempotency_key: str | None = None
    chain_id: str | None = None
    hop_count: int = 0
    lane: str = "agent"
    trace: str | None = None
    max_deliveries: int = 3
    waiter: str | None = None
    answer_to: str | None = None
    replay_of: str | None = None
    order_key: str | None = None
    replaces: str | None = None
    #: Answers that were held for the asker that waits for them.
    held: tuple[str, ...] = ()
    #: Whether its asker looks for the answer in this entry: a program of a layout before `ANSWER_LAYOUT` does not.
    asks: bool = False
    #: The answer, which stands here until it is put somewhere else: with the end of the question it is one write.
    answer: Entry | None = None
    state: int = State.READY
    #: When its lease or its delay ends.
    wake_ms: int | None = None
    expires_ms: int | None = None
    finished_ms: int = 0
    deliveries: int = 0
    claimed_by: str | None = None
    owner: str | None = None
    #: Whether its owner, and its waiter, say again and again that they are alive (`p.` entries): where their
    #: pids cannot be seen, their silence tells.
    owner_beats: bool = False
    waiter_beats: bool = False
    last_delivered_ms: int | None = None
    error: str | None = None
    ledger: tuple[LedgerLine, ...] = ()
    #: Sequences that came before: of its first entry (its place in the order of the room), of the claim that counts,
    #: and of its last change that the feed tells of. 0: this very entry's (`token`: OWN).
    first: int = 0
    token: int = 0
    number: int = 0
    #: The sequence of the entry with which it was put back into the line of its order key (OWN: this very entry's); 0:
    #: it stands where it was stored.
    queued: int = 0
    #: The token that it brought along from another room: those that sequences give here are counted from it.
    token_base: int = 0
    #: The highest key that its writer had given out or seen.
    top_key: int = 0
    #: Put away: it stands among the finished messages, not in its box.
    archived: bool = False

    def judged(self, now_ms: int, *, gone: bool = False) -> State:
        """The state as a reader sees it, see `states.judge`.

        `gone`: the process that holds it, or waits for it, is gone.
        """
        state, wake_ms = self.state, self.wake_ms
        if gone and state == State.CLAIMED:
            wake_ms = now_ms  # its lease ends with its process
        elif gone and state == State.AWAITED:
            state = State.READY
        return judge(state, wake_ms, self.expires_ms, self.deliveries >= self.max_deliveries, now_ms)

    def timer_ms(self) -> int | None:
        """When the clock changes its state next."""
        if self.state == State.CLAIMED:
            return self.wake_ms
        if self.state in (State.READY, State.DELAYED):
            return min((ms for ms in (self.wake_ms, self.expires_ms) if ms is not None), default=None)
        return None


class CellDoc(msgspec.Struct, frozen=True):
    """A cell as it is kept, with the name of the write that made it."""

    name: str
    value: msgspec.Raw
    write: str


class GateClaim(msgspec.Struct, frozen=True, array_like=True):
    """A claim that was made through a gate: its entry is newer than the sequence `after`."""

    id: str
    after: int
    gate: int  # the sequence of the gate's entry that this claim's replaced


class GateDoc(msgspec.Struct, frozen=True, omit_defaults=True):
    """A gate as it is kept: claims that were made through it, and may still be held.

    Claims that the gate no longer lists were made before the gate's entry `since`: what a process knows that has passed
    there lacks none of them, and any other has to look at the whole channel.
    """

    channel: str
    claims: tuple[GateClaim, ...] = ()
    since: int = 0


decode_cell: Final = msgspec.json.Decoder(CellDoc).decode
decode_gate: Final = msgspec.json.Decoder(GateDoc).decode

#: An entry as it is written, that carries no other.
pack: Final = msgspec.json.Encoder().encode
_decode_alone = msgspec.json.Decoder(Entry).decode


def packed(entry: Entry) -> bytes:
    """An entry as it is written."""
    return pack(entry) if entry.answer is None else _CARRIES + pack(entry)


def _decode(data: bytes) -> Entry:
    return _decode_alone(data.removeprefix(_CARRIES))


class Kept(NamedTuple):
    """An entry with the sequence under which it is kept; of an answer within its question's entry, that entry."""

    seq: int
    entry: Entry
    host: Entry | None = None

    @property
    def first(self) -> int:
        return self.entry.first or self.seq

    @property
    def token(self) -> int:
        return self.entry.token_base + self.seq if self.entry.token == OWN else self.entry.token

    @property
    def queued(self) -> int:
        """Its place among the messages of its order key."""
        return self.seq if self.entry.queued == OWN else self.entry.queued or self.first

    @property
    def state(self) -> State:
        return State(self.entry.state)

    @property
    def answer(self) -> Kept | None:
        """The answer that stands within this entry."""
        return None if self.entry.answer is None else Kept(self.seq, self.entry.answer, self.entry)

    def carried(self) -> dict[str, Any]:
        """The sequences that its next entry has from this one, also those of the answer that it carries."""
        sequences = {"first": self.first, "token": self.token, "queued": self.queued if self.entry.queued else 0}
        return sequences if self.answer is None else {**sequences, "answer": _silently(self.answer)}

    def line_of(self, write: str) -> LedgerLine | None:
        """The line of its ledger that a write made."""
        return next((line for line in self.entry.ledger if line.write == write), None)


class WriteTime(NamedTuple):
    """When, by which write and by which process something is done."""

    room_ms: int
    wall_ms: int
    write: str
    process: str = ""


def unpack(seq: int, data: bytes) -> Kept:
    """An entry as it was read."""
    return Kept(seq, _decode(data))


def is_there(data: bytes) -> bool:
    """Whether an entry was read, and not what stands in its place when it was deleted or put elsewhere."""
    return bool(data) and data != MOVED


def makes_space(data: bytes) -> bool:
    """Whether a message with this entry, or with this mark in its place, does not wait in its mailbox."""
    return not is_there(data) or _decode(data).state not in WITHDRAWABLE


def written_by(write: str, data: bytes) -> bool:
    """Whether a message's entry, or that of the answer in it, has a line of that write."""
    if not is_there(data):
        return False
    kept = unpack(0, data)
    return any(each is not None and each.line_of(write) is not None for each in (kept, kept.answer))


# Names and subjects


def name_hash(name: str, bits: int = 128) -> int:
    """A number for a name, never 0."""
    return int.from_bytes(blake2b(name.encode(), digest_size=16).digest()) >> (128 - bits) or 1


def hex_of(name: str) -> str:
    """A name as one part of a subject. Names may hold anything; subjects may not."""
    return f"{name_hash(name):032x}"


_TO_BITS: Final = 24
_CHANNEL_BITS: Final = 20


def make_id(key: int, to_agent: str | None, channel: str, priority: int, chance: float) -> str:
    """A message's id: a UUIDv7 of its key that tells its subject too, and so where to find it by one look.

    Two names may have the same hash there; readers of an entry compare the names themselves.
    """
    to = 0 if to_agent is None else name_hash(to_agent, _TO_BITS)
    salt = (int(chance * 32) << 48) | (to << 24) | (name_hash(channel, _CHANNEL_BITS) << 4) | priority
    return id_of(key, salt)


#: The bit of an id that tells an answer from its question, of which it is the last of the key: questions have even keys
#: (`NatsRoom.next_key`), so no other message has that id.
_ANSWER_BIT: Final = 0x20


def answer_id(question: str) -> str | None:
    """The id of the answer that a question carries; None where the question has an id of an older kind.

    Each of the two ids tells the other: so the answer is found by its id, wherever it stands.
    """
    return _turned(question, is_answer=False)


def question_id(answer: str) -> str | None:
    """The id of the question that may carry the answer with this id; None when that is no such id."""
    return _turned(answer, is_answer=True)


def _turned(id: str, *, is_answer: bool) -> str | None:
    if _ID.fullmatch(id) is None:
        return None
    bits = int(id[19:23], 16)
    return f"{id[:19]}{bits ^ _ANSWER_BIT:04x}{id[23:]}" if bool(bits & _ANSWER_BIT) == is_answer else None


_ID: Final = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[89ab][0-9a-f]{3}-([0-9a-f]{6})([0-9a-f]{5})([0-9a-f])")


def subject_of(id: str) -> str | None:
    """The subject of a message's entry; None when that is no id of any room on NATS."""
    parts = _ID.fullmatch(id)
    return None if parts is None else f"m.o.{parts[1]}.{parts[2]}.{parts[3]}.{id}"


def archive_subject(state: int, id: str) -> str:
    """The subject of a message that was put away."""
    return f"m.f.{int(state)}.{id}"


def place_of(entry: Entry) -> str:
    """The subject under which an entry is kept."""
    return archive_subject(entry.state, entry.id) if entry.archived else box_subject(entry)


def box_subject(entry: Entry) -> str:
    """The subject of an entry in its box. The id of a message that came from another room does not tell it."""
    to = 0 if entry.to_agent is None else name_hash(entry.to_agent, _TO_BITS)
    return f"m.o.{to:06x}.{name_hash(entry.channel, _CHANNEL_BITS):05x}.{entry.priority:x}.{entry.id}"


def subject_in_any_box(id: str) -> str:
    """A pattern that fits the subject of a message in its box, wherever that is."""
    return f"m.o.*.*.*.{id}"


def pattern_to(agent: str | None, channel: str | None = None) -> str:
    """The subjects of all messages to an agent (or to nobody), in one channel or in all."""
    to = 0 if agent is None else name_hash(agent, _TO_BITS)
    if channel is None:
        return f"m.o.{to:06x}.>"
    return f"m.o.{to:06x}.{name_hash(channel, _CHANNEL_BITS):05x}.>"


def pattern_in(channel: str) -> str:
    """The subjects of all messages in a channel, whoever they are for."""
    return f"m.o.*.{name_hash(channel, _CHANNEL_BITS):05x}.>"


def is_whole_channel(pattern: str) -> bool:
    """Whether that is such a pattern."""
    return pattern.startswith("m.o.*.") and pattern.endswith(".>")


def patterns_around(subject: str) -> tuple[str, ...]:
    """The patterns that somebody may follow and that fit this subject."""
    parts = subject.split(".")
    if subject.startswith("m.o."):
        to, channel = parts[2], parts[3]
        boxes = (f"m.o.{to}.{channel}.>", f"m.o.{to}.>", f"m.o.*.{channel}.>")
        return (subject_in_any_box(parts[5]), *boxes, "m.o.>", "m.>", ">")
    if subject.startswith("m.f."):
        return (subject, "m.f.>", "m.>", ">")
    return (subject, f"{parts[0]}.{parts[1]}.>", ">")


def line_of(entry: Entry) -> str | None:
    """The subject of the places of all messages of an entry's order key in its mailbox; None when it has no key."""
    return None if entry.order_key is None else line_subject(entry.to_agent, entry.channel, entry.order_key)


def line_subject(to_agent: str | None, channel: str, order_key: str) -> str:
    """The same, by the names."""
    return f"q.{hex_of(pack([to_agent, channel, order_key]).decode())}"


def cell_subject(name: str) -> str:
    """The subject of a cell."""
    return f"c.{hex_of(name.partition('/')[0])}.{hex_of(name)}"


def gate_subject(channel: str) -> str:
    """The subject of the gate of a channel."""
    return f"g.{hex_of(channel)}"


# The life of a message

#: The fields that an entry has from its draft, unchanged.
_OF_DRAFT: Final = sorted({*Entry.__struct_fields__} & {*Draft.__struct_fields__} - {"payload", "to_agent", "waiter"})


def first_entry(draft: Draft, id: str, to_agent: str | None, moment: WriteTime, *, held_for: Entry | None) -> Entry:
    """A message that is stored. `held_for` is the question whose asker waits for this answer."""
    payload = draft.payload_json.encode()
    inline = len(payload) <= INLINE_BYTES
    state, wake_ms = State.READY, None
    if held_for is not None:
        state = State.AWAITED
    elif draft.delay_s:
        state, wake_ms = State.DELAYED, later_ms(moment.room_ms, draft.delay_s)
    ttl_ms = 0 if draft.ttl_s is None else max(1, round(draft.ttl_s * 1000))
    return Entry(
        **{name: getattr(draft, name) for name in _OF_DRAFT},
        id=id,
        to_agent=to_agent,
        payload=msgspec.Raw(payload if inline else b"{}"),
        parts=0 if inline else -(-len(payload) // PART_BYTES),
        size=len(payload),
        timestamp_ms=moment.wall_ms,
        ttl_ms=ttl_ms,
        waiter=draft.waiter if held_for is None else held_for.waiter,
        waiter_beats=draft.waiter == moment.process if held_for is None else held_for.waiter_beats,
        asks=draft.waiter is not None,
        state=state,
        wake_ms=wake_ms,
        expires_ms=moment.room_ms + ttl_ms if ttl_ms else None,
        ledger=(LedgerLine("stored", moment.wall_ms, draft.from_agent, None, moment.write),),
    )


def parts_of(draft: Draft) -> list[bytes]:
    """A large payload in parts; none when it is small."""
    payload = draft.payload_json.encode()
    if len(payload) <= INLINE_BYTES:
        return []
    return [payload[start : start + PART_BYTES] for start in range(0, len(payload), PART_BYTES)]


def _next(kept: Kept, moment: WriteTime, event: str, agent: str | None, detail: str | None, **changes: Any) -> Entry:
    """The entry after one step: what went before is carried along, and the step is a line in the ledger."""
    entry = kept.entry
    state = changes.get("state", entry.state)
    if (entry.state == State.AWAITED and state != State.AWAITED) or state in FINISHED:
        changes.setdefault("waiter", None)
    if state in FINISHED and entry.state not in FINISHED:
        changes["finished_ms"] = moment.room_ms
    if "state" in changes:
        changes = {"wake_ms": None, "owner": None, "owner_beats": False, **changes}
    return replace(
        entry,
        **{**kept.carried(), "number": 0, **changes},
        ledger=(*entry.ledger, LedgerLine(event, moment.wall_ms, agent, detail, moment.write)),
    )


def wound(kept: Kept, moment: WriteTime, *, gone: bool = False) -> Entry | None:
    """The entry with what the clock, or the end of a process, did to it; None when there is nothing to write down.

    The token stays: until somebody else takes the message, its late holder may still settle it.
    """
    entry = kept.entry
    seen = entry.judged(moment.room_ms, gone=gone)
    if seen is State.EXPIRED and entry.state != seen:
        return _next(kept, moment, "expired", None, NOT_IN_TIME, state=seen, error=NOT_IN_TIME)
    if entry.state == State.AWAITED and gone:
        return _next(kept, moment, "unheld", None, None, state=State.READY)
    if entry.state != State.CLAIMED or seen is State.CLAIMED:
        return None
    over = entry.wake_ms is not None and entry.wake_ms <= moment.room_ms
    why = LEASE_ENDED if over else OWNER_GONE
    if seen is State.DEAD:
        said = f"{why} (delivery {entry.deliveries} of {entry.max_deliveries})"
        return _next(kept, moment, "dead", entry.claimed_by, said, state=seen, error=said)
    # the owner stays with a message whose lease has ended, for it may still extend it
    owner: dict[str, Any] = {"owner": entry.owner, "owner_beats": entry.owner_beats} if over else {}
    return _next(kept, moment, "released", entry.claimed_by, why, state=State.READY, **owner)


def _let_go(kept: Kept, moment: WriteTime, *, gone: bool = False) -> Kept:
    """A message with what the clock, or the end of a process, did to it."""
    entry = wound(kept, moment, gone=gone)
    return kept if entry is None else Kept(kept.seq, entry)


def claimed(kept: Kept, want: Want, moment: WriteTime, *, gone: bool = False) -> Entry:
    """The entry when a receiver takes the message; it must be judged READY, or AWAITED and asked for by its id."""
    kept = _let_go(kept, moment, gone=gone)
    taken = _next(
        kept, moment, "claimed", want.agent, None,
        state=State.CLAIMED, token=OWN, deliveries=kept.entry.deliveries + 1, claimed_by=want.agent, owner=want.owner,
        owner_beats=want.owner == moment.process,
        wake_ms=later_ms(moment.room_ms, want.lease_s), last_delivered_ms=moment.wall_ms,
    )  # fmt: skip
    if not want.settle:
        return taken
    return _next(Kept(kept.seq, taken), moment, "acked", want.agent, None, state=State.ACKED, token=OWN)


def settled(kept: Kept, outcome: str, agent: str, detail: str | None, delay_s: float, moment: WriteTime) -> Entry:
    """The entry after what its holder said of it."""
    entry = kept.entry
    if outcome == "retry" and entry.deliveries < entry.max_deliveries:
        wake_ms = later_ms(moment.room_ms, delay_s) if delay_s > 0 else None
        state = State.READY if wake_ms is None else State.DELAYED
        return _next(kept, moment, "retried", agent, detail, state=state, wake_ms=wake_ms, token=OWN, error=detail)
    if outcome == "returned":
        back: dict[str, Any] = {"deliveries": entry.deliveries - 1, "claimed_by": None}
        return _next(kept, moment, outcome, agent, detail, state=State.READY, token=OWN, **back)
    if outcome == "retry":
        outcome, detail = "dead", detail or "no reason given"
    error = (detail or entry.error) if outcome in ("refused", "dead") else entry.error
    return _next(kept, moment, outcome, agent, detail, state=State[outcome.upper()], error=error)


def answered(kept: Kept, draft: Draft, agent: str, moment: WriteTime) -> Entry | None:
    """The question that ends with this answer, which stands in its entry.

    None where the answer needs entries of its own at once: it is large or in a line, or nobody waits for it there.
    """
    id, question = answer_id(kept.entry.id), kept.entry
    is_plain = draft.waiter is draft.idempotency_key is draft.order_key is draft.replaces is None and not draft.publish
    if id is None or not (question.asks and question.waiter and is_plain and draft.answer_to == question.id):
        return None
    if len(draft.payload_json.encode()) > INLINE_BYTES:
        return None
    entry = settled(kept, "answered", agent, id, 0, moment)
    return replace(
        entry, held=(*entry.held, id), answer=first_entry(draft, id, draft.to_agent, moment, held_for=question)
    )


def extended(kept: Kept, agent: str, lease_s: float, moment: WriteTime) -> Entry:
    """The entry with a lease that ends that much later than now.

    Of several extensions in a row the ledger keeps the last, whose write may still be looked for. Each stands in the
    entry that is written at every step: with a line for each, the work of some hours grew beyond what the servers take,
    and nobody could settle it (tests/stores/test_nats.py: test_a_lease_can_be_extended_for_ever).
    """
    if kept.entry.ledger[-1].event == "extended":
        kept = Kept(kept.seq, replace(kept.entry, ledger=kept.entry.ledger[:-1]))
    until_ms = later_ms(moment.room_ms, lease_s)
    lease = {"state": State.CLAIMED, "owner": kept.entry.owner, "owner_beats": kept.entry.owner_beats}
    return _next(kept, moment, "extended", agent, f"{lease_s:g} s", **lease, wake_ms=until_ms)


def kept_up(kept: Kept, agent: str, lease_s: float, moment: WriteTime) -> Entry:
    """The entry after a heartbeat of its holder: no step, so neither ledger nor feed has anything to tell of it."""
    entry = kept.entry
    if entry.state != State.CLAIMED:
        return extended(kept, agent, lease_s, moment)
    until_ms = max(entry.wake_ms or 0, later_ms(moment.room_ms, lease_s))
    return replace(entry, **kept.carried(), number=entry.number or kept.seq, wake_ms=until_ms)


def is_heartbeat(kept: Kept) -> bool:
    """Whether this entry is a heartbeat's: of a claimed message, and the feed tells of an earlier one."""
    return kept.entry.number != 0 and kept.entry.state == State.CLAIMED


def noted(kept: Kept, event: str, agent: str | None, detail: str | None, moment: WriteTime) -> Entry | None:
    """The entry with a note; None when its ledger is full."""
    if len(pack(kept.entry.ledger)) >= LEDGER_BYTES:
        return None
    return _next(kept, moment, event, agent, detail)


def abandoned(kept: Kept, moment: WriteTime, why: str = "the asker no longer waits") -> Entry:
    """The question when nobody waits for its answer any more.

    It still knows the answers that were held: an asker that could not let go of them at once does so at the next try
    (tests/stores/test_nats.py: test_who_gave_up_and_could_not_let_go_of_the_answer_does_so_at_the_next_try).
    """
    return _next(kept, moment, "abandoned", kept.entry.from_agent, why, waiter=None)


def unheld(kept: Kept, moment: WriteTime) -> Entry:
    """An answer that becomes ordinary mail."""
    return _next(kept, moment, "unheld", None, None, state=State.READY)


def _silently(kept: Kept, **changes: Any) -> Entry:
    """The entry with a change that the feed does not tell of."""
    number = kept.entry.number or kept.seq
    return replace(kept.entry, **{**kept.carried(), "number": number, **changes})


def with_answers(kept: Kept, ids: Sequence[str]) -> Entry:
    """The question, which knows now of answers that are held."""
    return _silently(kept, held=(*kept.entry.held, *ids))


def as_it_is(kept: Kept) -> Entry:
    """The same, to stand elsewhere."""
    return _silently(kept)


def put_away(kept: Kept) -> Entry:
    """The entry of a finished message among the finished ones. An answer that it carries is put away for itself."""
    return _silently(kept, archived=True, answer=None)


def with_answer(kept: Kept, answer: Entry | None) -> Entry:
    """The entry of the question around an answer that stands in it, with that as it is now; None: it stands elsewhere."""
    assert kept.host is not None
    return _silently(Kept(kept.seq, kept.host), answer=answer)


def requeued(kept: Kept, moment: WriteTime, *, gone: bool = False) -> Entry | None:
    """The message put back; None when it did not end badly."""
    kept = _let_go(kept, moment, gone=gone)
    if kept.state not in (State.DEAD, State.REFUSED, State.EXPIRED):
        return None
    expires_ms = kept.entry.expires_ms
    if expires_ms is not None and expires_ms <= moment.room_ms:
        expires_ms = None
    return _next(
        kept, moment, "requeued", None, None,
        state=State.READY, token=OWN, deliveries=0, error=None, claimed_by=None, expires_ms=expires_ms, finished_ms=0,
        archived=False, queued=0 if kept.entry.order_key is None else OWN,
    )  # fmt: skip


def withdrawn(kept: Kept, agent: str, reason: str | None, moment: WriteTime, *, gone: bool = False) -> Entry | None:
    """The message that its sender took back; None when it is another's, or not (or no longer) to be had."""
    kept = _let_go(kept, moment, gone=gone)
    if kept.entry.from_agent != agent or kept.entry.judged(moment.room_ms) not in WITHDRAWABLE:
        return None
    return _next(kept, moment, "withdrawn", agent, reason, state=State.WITHDRAWN, token=OWN)


def counts(kept: Kept | None, token: int) -> TypeGuard[Kept]:
    """Whether a ticket still counts: a ready message with its own token was let go, and not taken since."""
    return kept is not None and kept.token == token and kept.state in (State.CLAIMED, State.READY)


# Showing

_ENVELOPE: Final = sorted(
    {*Entry.__struct_fields__} & {*Message.__struct_fields__} - {"payload", "token", "waiter", "owner"}
)


def shown(
    make: type[MessageT],
    kept: Kept,
    now_ms: int,
    wall_ms: int,
    payload: bytes | None = None,
    *,
    owner_gone: bool = False,
) -> MessageT:
    """An entry as a message of its own, judged by the clock and the life of its owner, without its ledger."""
    entry = kept.entry
    state = entry.judged(now_ms, gone=owner_gone and entry.state == State.CLAIMED)
    wake_ms = entry.timer_ms()
    wake_wall_ms = None if wake_ms is None else wake_ms - now_ms + wall_ms
    return make(
        **{name: getattr(entry, name) for name in _ENVELOPE},
        payload=decode_payload(bytes(entry.payload) if payload is None else payload),
        expires_at_ms=None if entry.expires_ms is None else entry.timestamp_ms + entry.ttl_ms,
        delivery_count=entry.deliveries,
        exact_state=state,
        owner=entry.owner if state is State.CLAIMED else None,
        token=kept.token,
        lease_until_ms=wake_wall_ms if state is State.CLAIMED else None,
        due_ms=wake_wall_ms if state is State.DELAYED else None,
        waiter=entry.waiter,
    )


def restored(message: MessageWithLedger, draft: Draft, moment: WriteTime) -> Entry:
    """A message of another room as it stands; `draft` is what it was sent as."""
    payload = draft.payload_json.encode()
    inline = len(payload) <= INLINE_BYTES
    expires_at_ms, due_ms = message.expires_at_ms, message.due_ms
    lines = [LedgerLine(line.event, line.time_ms, line.agent, line.detail) for line in message.ledger]
    state = message.exact_state
    if state is State.BLOCKED:  # here its place in the line says so
        state = State.READY if due_ms is None else State.DELAYED
    return Entry(
        **{name: getattr(message, name) for name in _ENVELOPE},
        payload=msgspec.Raw(payload if inline else b"{}"),
        parts=0 if inline else -(-len(payload) // PART_BYTES),
        size=len(payload),
        ttl_ms=0 if expires_at_ms is None else expires_at_ms - message.timestamp_ms,
        expires_ms=None if expires_at_ms is None else expires_at_ms - moment.wall_ms + moment.room_ms,
        state=state,
        wake_ms=None if due_ms is None else due_ms - moment.wall_ms + moment.room_ms,
        finished_ms=moment.room_ms if message.exact_state in FINISHED else 0,
        deliveries=message.delivery_count,
        token=message.token,
        token_base=message.token,
        ledger=(*lines[:-1], replace(lines[-1], write=moment.write)),
    )


def ledger_of(entry: Entry) -> tuple[LedgerEntry, ...]:
    """The ledger, as readers see it."""
    seen = (line for line in entry.ledger if line.event not in _UNSEEN)
    return tuple(LedgerEntry(line.event, line.time_ms, line.agent, line.detail) for line in seen)
