"""The envelope: what a message is, which ones are valid, and how ids are made."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Any, Final, Self, TypeVar

import msgspec

from postroom.errors import Fault, InvalidMessage, RoomError, raise_faults

from .clock import Clock, iso
from .states import PUBLIC_NAME, STATUS_WORD, State

VERSION: Final = "1.0"
DEFAULT_TYPE: Final = "message"
DEFAULT_CHANNEL: Final = "general"
DEFAULT_PRIORITY: Final = 5
LANES: Final = ("agent", "human")

#: Names of agents, channels and types, and correlation ids: at most this many bytes of UTF-8.
MAX_NAME_BYTES: Final = 255
#: Objects and lists inside each other.
MAX_DEPTH: Final = 64
#: Begins the address of a group ("@reviewers"), and no agent's name.
GROUP_SIGN: Final = "@"
#: Larger things go by `room.attach`.
MAX_PAYLOAD_BYTES: Final = 1024 * 1024
#: No delay and no time to live is longer than this (a hundred years).
MAX_SPAN_S: Final = 100 * 366 * 86400.0

#: The fields of a message as others read it: in JSON, on the page, at every door.
ENVELOPE: Final = (
    "id", "type", "version", "payload", "from_agent", "to_agent", "channel", "priority", "timestamp", "correlation_id",
    "expires_at", "delivery_count", "chain_id", "hop_count", "lane", "trace", "state", "error", "order_key", "replaces",
)  # fmt: skip


class LedgerEntry(msgspec.Struct, frozen=True, array_like=True):
    """One line of a message's ledger: what happened, when (wall clock), through whom, and what was said."""

    event: str
    time_ms: int
    agent: str | None = None
    detail: str | None = None


class Message(msgspec.Struct, frozen=True):
    """A message as it is kept, without its ledger (`MessageWithLedger`).

    Its state is judged at the moment of reading: an ended lease or an expiry counts at once.
    Programs should name its fields, whose order may change.
    """

    id: str  # a UUID of version 7: ids sort as the messages were sent
    type: str = DEFAULT_TYPE  # what kind of message it is
    version: str = VERSION  # of the envelope's format
    payload: dict[str, Any] = {}  # the content: a JSON object
    from_agent: str = ""  # who sent it
    to_agent: str | None = None  # the recipient; None: the first agent to claim it in its channel
    channel: str = DEFAULT_CHANNEL  # where it was sent
    priority: int = DEFAULT_PRIORITY  # from 1 to 10; 10 comes first
    timestamp_ms: int = 0  # when it was sent, by the wall clock
    correlation_id: str | None = None  # the conversation it belongs to, as the sender gave it
    expires_at_ms: int | None = None  # when it expires, by the wall clock; None: never
    delivery_count: int = 0  # how many times it was delivered
    chain_id: str | None = None  # the message that started the chain of causes; None: this one did
    hop_count: int = 0  # how many messages caused each other before it
    lane: str = "agent"  # "agent", or "human" when a person's token sent it
    trace: str | None = None  # the sender's trace context
    #: Where it stands, as stores tell it; `state` is the word for it.
    exact_state: State = State.READY
    max_deliveries: int = 3  # after this many failed deliveries it is dead
    error: str | None = None  # why it ended badly, or its last delivery did
    idempotency_key: str | None = None  # the sender's: a repeat with the same key is not stored again
    claimed_by: str | None = None  # the agent that claimed it last
    owner: str | None = None  # the process with which the last claim ends; None: by time alone
    token: int = 0  # the fencing token of the last claim
    lease_until_ms: int | None = None  # when the claim ends, by the wall clock, while it is claimed
    last_delivered_ms: int | None = None  # when it was claimed last, by the wall clock
    #: When a delayed message becomes claimable (wall clock, while delayed).
    due_ms: int | None = None
    #: The process that waits for the answer to this question, while it does.
    waiter: str | None = None
    answer_to: str | None = None  # the id of the question that this answers
    replay_of: str | None = None  # the id of the message that this is a replay of
    order_key: str | None = None  # messages of one key in one mailbox are delivered one at a time, in order
    replaces: str | None = None  # the id of the message that the sender wanted to replace with this one

    @property
    def timestamp(self) -> str:
        """When it was sent, as ISO 8601 text."""
        return iso(self.timestamp_ms)

    @property
    def expires_at(self) -> str | None:
        """When it expires, as ISO 8601 text; None when it never does."""
        return None if self.expires_at_ms is None else iso(self.expires_at_ms)

    @property
    def state(self) -> str:
        """The word of receipts, the page and the command line: stored, claimed, acked, answered, refused, expired, dead or withdrawn."""
        return PUBLIC_NAME[self.exact_state]

    @property
    def status(self) -> str:
        """The source document's word: pending, processing, done or failed."""
        return STATUS_WORD[self.exact_state]

    def to_dict(self) -> dict[str, Any]:
        """The envelope as plain data, with the fixed names."""
        return {name: getattr(self, name) for name in ENVELOPE}


_force = msgspec.structs.force_setattr


class MessageWithLedger(Message, kw_only=True, frozen=True):
    """One message that was asked for by its id, with all that happened to it so far.

    Messages that are listed, claimed or in the feed are plain ones: reading two hundred ledgers would cost more than
    reading two hundred messages, and few readers look at them.
    """

    ledger: tuple[LedgerEntry, ...] = ()  # every step so far, each with `event`, `time_ms`, `agent` and `detail`

    def fill(self, ledger: tuple[LedgerEntry, ...]) -> Self:
        """For stores, which make all messages in one way: put the ledger into a message that nobody has seen yet."""
        _force(self, "ledger", ledger)
        return self


MessageT = TypeVar("MessageT", bound=Message)


class Draft(msgspec.Struct):
    """A message on its way into a store: checked by `check`, not yet numbered.

    Calls with more than 15 names cost Python a dict for each, a twelfth of a send: two of its fields have none there.
    """

    from_agent: str
    payload: Any
    to_agent: str | None = None
    channel: str = DEFAULT_CHANNEL
    type: str = DEFAULT_TYPE
    version: str = VERSION
    priority: int = DEFAULT_PRIORITY
    ttl_s: float | None = None
    delay_s: float = 0
    correlation_id: str | None = None
    idempotency_key: str | None = None
    chain_id: str | None = None
    hop_count: int = 0
    lane: str = "agent"
    trace: str | None = None
    max_deliveries: int = 3
    #: A copy for every subscriber of the channel, instead of one message.
    publish: bool = False
    #: The process (see `core.system.process.this_process`) that waits for an answer to this.
    waiter: str | None = None
    answer_to: str | None = None
    replay_of: str | None = None
    #: The payload as JSON text, made by `check`.
    payload_json: str = ""
    # From here on what came with later layouts: rooms in files keep drafts by the order of these fields.
    order_key: str | None = None
    #: The id of a message of the same sender that is withdrawn with this, if no receiver has it.
    replaces: str | None = None
    #: Withdraw, with this, all messages of the same sender and order key that wait in the same mailbox.
    debounce: bool = False


#: The fields that a message has from its draft, unchanged.
_SENT: Final = sorted({*Draft.__struct_fields__} & {*Message.__struct_fields__} - {"waiter"})

_encode = msgspec.json.Encoder().encode
_encode_lines = msgspec.json.Encoder().encode_lines
_decode = msgspec.json.Decoder().decode
_decode_lines = msgspec.json.Decoder().decode_lines
decode_payload: Final = _decode


def draft_of(message: Message) -> Draft:
    """What a kept message was sent as, as far as a message tells; neither its delay nor its waiter."""
    ttl_s = None if message.expires_at_ms is None else (message.expires_at_ms - message.timestamp_ms) / 1000
    sent = {name: getattr(message, name) for name in _SENT}
    return Draft(**sent, ttl_s=ttl_s, payload_json=_encode(message.payload).decode())


def check(draft: Draft, max_payload_bytes: int = MAX_PAYLOAD_BYTES) -> Draft:
    """Return the draft, ready for a store, or raise InvalidMessage with every fault found."""
    faults: list[Fault] = []
    if not is_usual(draft):
        _check_fields(draft, faults)
    if not isinstance(draft.payload, dict):
        faults.append(Fault("payload", "Payload must be dict"))
    else:
        draft.payload_json = payload_text(draft.payload, faults, max_payload_bytes)
    if faults:
        raise InvalidMessage(faults)
    return draft


def check_all(drafts: Sequence[Draft], max_payload_bytes: int = MAX_PAYLOAD_BYTES) -> None:
    """Make the drafts ready for a store, as `check` does with each, or raise InvalidMessage with the faults of all."""
    texts = _payload_texts([draft.payload for draft in drafts], max_payload_bytes)
    faults: list[Fault] = []
    for index, draft in enumerate(drafts):
        if texts and is_usual(draft):
            draft.payload_json = texts[index]
            continue
        try:
            check(draft, max_payload_bytes)
        except InvalidMessage as error:
            faults += [Fault(f"messages[{index}].{field}", problem) for field, problem in error.faults]
    raise_faults(faults)


def _check_fields(draft: Draft, faults: list[Fault]) -> None:
    check_name("from_agent", draft.from_agent, faults)
    if draft.to_agent is not None:
        _check_recipient(draft.to_agent, faults)
    check_name("channel", draft.channel, faults)
    check_name("type", draft.type, faults)
    if type(draft.priority) is not int or not 1 <= draft.priority <= 10:
        faults.append(Fault("priority", "Priority must be 1-10"))
    if draft.version != VERSION:
        faults.append(Fault("version", f"Unsupported version: {draft.version}"))
    if draft.ttl_s is not None:
        check_span("ttl_s", draft.ttl_s, faults, zero=False)
    if draft.delay_s:
        check_span("delay_s", draft.delay_s, faults)
    for field in ("correlation_id", "idempotency_key", "chain_id", "trace", "order_key", "replaces"):
        value = getattr(draft, field)
        if value is not None:
            check_name(field, value, faults, kept=False)  # new with each conversation: they would fill what is kept
    if draft.lane not in LANES:
        faults.append(Fault("lane", f"must be one of {', '.join(LANES)}, not {draft.lane!r}"))
    _check_replacing(draft, faults)


def _is_longer(delay_s: object, ttl_s: object) -> bool:
    """Whether both are numbers, and the delay ends with the time to live or after it."""
    return isinstance(delay_s, int | float) and isinstance(ttl_s, int | float) and 0 < ttl_s <= delay_s


def _check_replacing(draft: Draft, faults: list[Fault]) -> None:
    if draft.debounce and draft.order_key is None:
        faults.append(Fault("order_key", "must be given with debounce_s: messages of one key replace each other"))
    if draft.order_key is not None and draft.answer_to is not None:
        faults.append(Fault("order_key", "cannot be given to an answer"))
    if draft.order_key is not None and draft.ttl_s is not None and _is_longer(draft.delay_s, draft.ttl_s):
        faults.append(Fault("ttl_s", "must be longer than delay_s: the message would expire before it is due"))
    if draft.replaces is not None and draft.publish:
        faults.append(Fault("replaces", "cannot be combined with publish, which makes several messages"))


def _check_recipient(name: object, faults: list[Fault]) -> None:
    check_name("to_agent", name, faults)
    if str(name).startswith(GROUP_SIGN):
        faults.append(Fault("to_agent", f"names a group; send to a list, [{name!r}]: each member gets a message"))


_good_names: set[str] = set()


def is_usual(draft: Draft) -> bool:
    """Whether its names were found good before and its sender asks for nothing special: most do not."""
    try:
        return (
            draft.from_agent in _good_names
            and (draft.to_agent is None or draft.to_agent in _good_names)
            and draft.channel in _good_names
            and draft.type in _good_names
            and type(draft.priority) is int
            and 1 <= draft.priority <= 10
            and draft.lane == "agent"
            and draft.ttl_s is None
            and draft.correlation_id is None
            and draft.idempotency_key is None
            and draft.chain_id is None
            and draft.trace is None
            and draft.order_key is None
            and draft.replaces is None
            and not draft.debounce
            and not draft.delay_s
            and draft.version == VERSION
        )
    except TypeError:  # a list, say, cannot be looked up
        return False


def check_name(field: str, value: object, faults: list[Fault], *, kept: bool = True) -> None:
    """Names are text of 1 to 255 bytes without control characters; anything else, slashes and emoji too, is fine.

    `kept`: it may come again, and is known then.
    """
    if type(value) is str and value in _good_names:
        return
    if not isinstance(value, str):
        faults.append(Fault(field, f"must be text, not {type(value).__name__}"))
        return
    problem = _name_problem(value)
    if problem:
        faults.append(Fault(field, problem))
    elif (
        kept and len(_good_names) < 10_000 and value[0] != GROUP_SIGN
    ):  # which no draft may pass by unseen (`is_usual`)
        _good_names.add(str(value))


def _name_problem(value: str) -> str | None:
    if value.isascii() and value.isprintable() and 0 < len(value) <= MAX_NAME_BYTES:
        return None  # most, and an id of a conversation is new each time
    if not value:
        return "must not be empty"
    try:
        size = len(value.encode())
    except UnicodeEncodeError:
        return "contains a lone surrogate, which is not text"
    if size > MAX_NAME_BYTES:
        return f"must be at most {MAX_NAME_BYTES} bytes long, and is {size}"
    bad = next((c for c in value if c < " " or c == "\x7f"), None)
    return None if bad is None else f"must not contain control characters ({bad!r})"


def check_span(field: str, value: object, faults: list[Fault], *, zero: bool = True) -> None:
    """Spans of time are finite numbers of seconds, not negative."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        faults.append(Fault(field, f"must be a number of seconds, not {type(value).__name__}"))
    elif not math.isfinite(value) or value < 0 or value > MAX_SPAN_S or (value == 0 and not zero):
        least = "0" if zero else "more than 0"
        faults.append(Fault(field, f"must be {least} to {MAX_SPAN_S:.0f} seconds, not {value!r}"))


def payload_text(payload: object, faults: list[Fault], max_bytes: int = MAX_PAYLOAD_BYTES) -> str:
    """The payload as JSON text; faults are added to the list, each with its place ("payload.a[2]").

    The encoder makes silent substitutions (NaN becomes null, a key 1 becomes "1", bytes become base64), so the
    text is decoded again and compared; only when that differs is the payload walked to name the place.
    """
    try:
        raw = _encode(payload)
        same = _decode(raw) == payload
    except (TypeError, ValueError, OverflowError, RecursionError, msgspec.MsgspecError):
        raw, same = b"", False
    if not same or (len(raw) > 2 * MAX_DEPTH and raw.replace(b"{", b"[").count(b"[") > MAX_DEPTH):
        before = len(faults)
        _walk(payload, "payload", 1, faults)
        if len(faults) > before:
            return ""
        if not raw:
            faults.append(Fault("payload", "cannot be written as JSON"))
            return ""
    if len(raw) > max_bytes:
        faults.append(
            Fault("payload", f"is {len(raw)} bytes as JSON; the limit is {max_bytes} (put large things in room.attach)")
        )
    return raw.decode()


def _payload_texts(payloads: list[Any], max_bytes: int) -> list[str]:
    """The payloads of a batch as JSON texts, made at once; [] when one of them needs the closer look of `payload_text`.

    One call for a hundred payloads instead of three for each: a tenth of what a message of a batch costs
    (tests/core/test_message.py compares the two).
    """
    try:
        raw = _encode_lines(payloads)
        if len(raw) > max_bytes or _decode_lines(raw) != payloads:
            return []
    except (TypeError, ValueError, OverflowError, RecursionError, msgspec.MsgspecError):
        return []
    texts = raw.decode().split("\n")  # a line feed inside JSON is escaped
    for payload, text in zip(payloads, texts, strict=False):  # the last line has its end, too
        is_deep = len(text) > 2 * MAX_DEPTH and text.count("{") + text.count("[") > MAX_DEPTH
        if is_deep or not isinstance(payload, dict):
            return []
    return texts


def readable(payload: dict[str, Any], indent: int = 0) -> str:
    """A payload as people read it: its text when it is nothing but text, else JSON; on one line, or indented."""
    if payload.keys() == {"text"} and isinstance(payload["text"], str):
        return payload["text"]
    raw = _encode(payload)
    return (msgspec.json.format(raw, indent=indent) if indent else raw).decode()


_MAX_WALK_FAULTS: Final = 20
#: Python itself writes no longer ones as text.
_MAX_INTEGER_BITS: Final = 14_284


def _walk(value: object, place: str, depth: int, faults: list[Fault]) -> None:
    """Find what JSON cannot carry. Stops after a score of faults, and below the depth limit (so cycles end)."""
    if len(faults) >= _MAX_WALK_FAULTS:
        return
    if not isinstance(value, dict | list | tuple):
        _check_scalar(value, place, faults)
    elif depth > MAX_DEPTH:
        faults.append(Fault(place, f"is nested deeper than {MAX_DEPTH} levels, or contains itself"))
    elif isinstance(value, dict):
        for key, item in value.items():
            if not isinstance(key, str):
                faults.append(Fault(place, f"keys must be text, not {type(key).__name__} ({key!r})"))
            else:
                _check_text(key, f"{place} key", faults)
            _walk(item, f"{place}.{key}", depth + 1, faults)
    else:
        for index, item in enumerate(value):
            _walk(item, f"{place}[{index}]", depth + 1, faults)


def _check_scalar(value: object, place: str, faults: list[Fault]) -> None:
    if isinstance(value, str):
        _check_text(value, place, faults)
    elif isinstance(value, bool | None):
        return
    elif isinstance(value, int):
        if value.bit_length() > _MAX_INTEGER_BITS:
            faults.append(Fault(place, "whole numbers must have at most 4,300 digits"))
    elif isinstance(value, float):
        if not math.isfinite(value):
            faults.append(Fault(place, f"{value} is not a JSON number"))
    else:
        faults.append(Fault(place, f"must be JSON, not {type(value).__name__}"))


def _check_text(value: str, place: str, faults: list[Fault]) -> None:
    try:
        value.encode()
    except UnicodeEncodeError:
        faults.append(Fault(place, "contains a lone surrogate, which is not text"))


# Ids. A message's place in the order of its room is its *key*: 42 bits of milliseconds and 21 bits of fraction, which
# only grow. Its id is a UUIDv7 made of the key and 53 bits that belong to the room, so that neither has to be looked
# up from the other. Ids can be guessed; they are names, not secrets.

FRACTION_BITS: Final = 21
SALT_BITS: Final = 53


def new_salt() -> int:
    """The bits of a new room: by chance, so that no other room has them."""
    return int.from_bytes(os.urandom(7)) >> (56 - SALT_BITS)


#: A key has 63 bits, so a room's time ends in May 2109. It begins a hundred days before that at the latest.
LAST_START_MS: Final = (1 << (63 - FRACTION_BITS)) - 100 * 86_400_000
_YEAR_MS: Final = 31_556_952_000


def room_start_ms(clock: Clock, least_ms: int = 0) -> int:
    """Where a room's time begins, or goes on after a boot: at the wall clock's, but never before `least_ms`.

    Raises RoomError when the clock is beyond what messages can be numbered by; nothing was changed.
    """
    wall_ms = clock.wall_ms()
    if wall_ms > LAST_START_MS:
        year = 1970 + wall_ms // _YEAR_MS
        raise RoomError(
            f"this machine's clock is in the year {year}, and a room cannot count beyond 2109; set the clock"
        )
    return max(wall_ms, least_ms)


def key_at(room_ns: int) -> int:
    """The key of a moment, in nanoseconds of the room's time."""
    return (room_ns << FRACTION_BITS) // 1_000_000


@lru_cache(maxsize=64)
def _room_part(salt: int) -> tuple[int, str]:
    """What all ids of a room have in common: bits among the first ten bytes (version and variant, too), and the end."""
    return 0x7000_8000 | (salt >> 48), f"-{salt & 0xFFFF_FFFF_FFFF:012x}"


def id_of(key: int, salt: int) -> str:
    """The UUIDv7 of a key in the room with that salt."""
    bits, end = _room_part(salt)
    number = (key >> 21) << 32 | (key & 0x1F_FE00) << 7 | (key & 0x1FF) << 5 | bits
    text = number.to_bytes(10, "big").hex("-", 2)  # half of what formatting five numbers takes, at every send and claim
    return text[:4] + text[5:] + end


@lru_cache(maxsize=64)
def _fourth_groups(salt: int) -> list[str]:
    """The fourth group of digits in the ids of a room, by the last nine bits of a key."""
    return [f"{0x8000 | low << 5 | salt >> 48:04x}" for low in range(512)]


def ids_of(keys: Iterable[int], salt: int) -> list[str]:
    """The UUIDv7s of keys: for keys in a row, in a quarter of the time."""
    ids, fourth_groups, block, start, end = [], _fourth_groups(salt), -1, "", ""
    for key in keys:
        if key >> 9 != block:  # all but nine bits of a key stand in the first half of its id
            block, id = key >> 9, id_of(key, salt)
            start, end = id[:19], id[23:]
        ids.append(start + fourth_groups[key & 0x1FF] + end)
    return ids


def key_of(id: str, salt: int) -> int | None:
    """The key behind an id, or None when the id is not of the room with that salt."""
    try:
        high, low = int(id[:8] + id[9:13] + id[15:18], 16), int(id[19:23], 16)
    except ValueError:
        return None
    key = (high << 9) | ((low >> 5) & 0x1FF)
    return key if key < 2**63 and id_of(key, salt) == id else None
