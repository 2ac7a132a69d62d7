"""Messages as the page draws them: one short line for each, without its payload.

How a message looks is decided here and nowhere else; the page gets the table with the rest (`about`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

import msgspec

from postroom.core.message import Message, MessageWithLedger
from postroom.core.states import State
from postroom.stores.contract import Change

#: The looks of a message, in the order of its life; the style sheet has a colour for each (test_lines.py).
LOOKS: Final = (
    *("stored", "delayed", "notified", "claimed", "retried"),
    *("acked", "answered", "refused", "expired", "dead", "withdrawn"),
)

#: How a message looks after each event of its ledger; others change nothing to the eye.
LOOK_AFTER: Final = (
    {look: look for look in LOOKS if look != "delayed"}
    | {"shown": "notified", "released": "retried"}
    | dict.fromkeys(("returned", "requeued", "unheld", "due", "unblocked"), "stored")
)

#: Of a message's text, a line shows so many characters.
PREVIEW: Final = 160


class MessageLine(msgspec.Struct, omit_defaults=True, kw_only=True):
    """A message as the page knows it without asking. Ids sort in the order of the room."""

    id: str
    look: str
    type: str
    from_agent: str
    to_agent: str | None = None
    channel: str
    sent_ms: int
    text: str = ""
    priority: int = 5
    lane: str = "agent"
    deliveries: int = 0
    claimed_by: str | None = None
    answer_to: str | None = None
    correlation_id: str | None = None
    #: The id of the message that began its chain of causes; None when this one did.
    chain_id: str | None = None
    error: str | None = None
    #: When it may be claimed, while it is delayed: a delayed send, or the next try.
    due_ms: int | None = None
    #: The event that made it look so, when that is known, and its moment.
    event: str = ""
    time_ms: int = 0
    #: Its whole ledger, where the past is shown: [event, time_ms, agent].
    ledger: list[tuple[str, int, str | None]] | None = None


def look_of(message: Message, event: str = "") -> str:
    """How a message looks, given the last event that is known of it."""
    state = message.exact_state
    if state is State.DELAYED:
        return "retried" if message.delivery_count else "delayed"
    if state is State.READY:
        if event in ("notified", "shown"):
            return "notified"
        return "retried" if message.delivery_count else "stored"
    return message.state


def line_of(message: Message, event: str = "", time_ms: int = 0) -> MessageLine:
    """The line of a message."""
    return MessageLine(
        id=message.id,
        look=look_of(message, event),
        type=message.type,
        from_agent=message.from_agent,
        to_agent=message.to_agent,
        channel=message.channel,
        sent_ms=message.timestamp_ms,
        text=text_of(message.payload),
        priority=message.priority,
        lane=message.lane,
        deliveries=message.delivery_count,
        claimed_by=message.claimed_by,
        answer_to=message.answer_to,
        correlation_id=message.correlation_id,
        chain_id=message.chain_id,
        error=None if message.error is None else message.error[:PREVIEW],
        due_ms=message.due_ms if message.exact_state is State.DELAYED else None,
        event=event,
        time_ms=time_ms,
    )


def line_with_ledger(message: MessageWithLedger) -> MessageLine:
    """The line of a message that was read with its ledger."""
    last = message.ledger[-1] if message.ledger else None
    line = line_of(message, "" if last is None else last.event, 0 if last is None else last.time_ms)
    line.ledger = [(entry.event, entry.time_ms, entry.agent) for entry in message.ledger]
    return line


def folded(changes: Iterable[Change]) -> list[MessageLine]:
    """One line for each message that changed, however often it did: as it stands now, the earliest change first."""
    last: dict[str, Change] = {}
    for change in changes:
        last[change.message.id] = change
    return [line_of(change.message, change.event, change.time_ms) for change in last.values()]


#: A payload's text under one of these names is shown without the name, and before the rest.
_TEXT: Final = ("text", "content", "message")
_ALONE: Final = (*_TEXT, "value")


def text_of(payload: Mapping[str, Any], most: int | None = PREVIEW) -> str:
    """The text of a payload as a row shows it, or its beginning. Does not go through a large one to show little of it."""
    pieces = _payload_pieces(payload, most)
    if most is None:
        return "".join(pieces)
    text = ""
    for part in pieces:
        text += part
        if len(text) >= most:
            break
    return text[:most]


def _payload_pieces(payload: Mapping[str, Any], most: int | None) -> Iterator[str]:
    if len(payload) == 1 and (name := next(iter(payload))) in _ALONE:
        yield from _pieces(payload[name], most)
        return
    said = next((name for name in _TEXT if isinstance(payload.get(name), str)), None)
    if said is None:
        yield from _pieces(payload, most)
        return
    yield from _pieces(payload[said], most)
    for name, item in payload.items():
        if name != said:
            yield f" \u00b7 {name[:most]}: "
            yield from _pieces(item, most, inner=True)


def _pieces(value: object, most: int | None, *, inner: bool = False) -> Iterator[str]:
    """JSON without its outermost braces and without quotes, piece by piece; nobody need ask for all of them."""
    if isinstance(value, str):
        yield value[:most]
    elif isinstance(value, Mapping):
        yield "{" if inner else ""
        for number, (name, item) in enumerate(value.items()):
            yield f"{', ' if number else ''}{name[:most]}: "
            yield from _pieces(item, most, inner=True)
        yield "}" if inner else ""
    elif isinstance(value, list | tuple):
        yield "["
        for number, item in enumerate(value):
            yield ", " if number else ""
            yield from _pieces(item, most, inner=True)
        yield "]"
    else:
        yield {True: "true", False: "false", None: "null"}[value] if isinstance(value, bool | None) else str(value)
