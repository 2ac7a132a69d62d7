"""Single messages, and what happens to them: everything about one, the log of all, and deleting them."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from typing import Any, Final

from postroom.cli import output
from postroom.cli.call import ID_HELP, Invocation
from postroom.core.clock import iso
from postroom.core.message import Message, MessageWithLedger
from postroom.mail import attachments
from postroom.mail.handles import handle_of
from postroom.mail.receipts import attempts_of, events_of
from postroom.stores.contract import Query

#: The recipient of a message that names none.
ANYBODY: Final = "(anybody)"
#: A question may have been answered more than once, when it was delivered more than once.
_MAX_ANSWERS: Final = 100


def moment(ms: int | None) -> str | None:
    """A time of a message as text; None stays None."""
    return None if ms is None else iso(ms)


def show_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("id", metavar="ID", help=ID_HELP)


def show(call: Invocation) -> None:
    room = call.room
    message = room.get(call.message_id(call.args.id))
    why = room.why(message)
    answers = room.store.find(Query(answer_to=message.id, limit=_MAX_ANSWERS)).messages
    if call.json:
        output.document(_whole(message) | {"why": why._asdict(), "answers": [each.id for each in answers]})
        return
    output.say(f"{message.id} is {message.state}")
    output.words_of(message)
    output.write(output.visible(why.text))
    for name, value in (*_facts(message), *_thread(call, message, answers)):
        if value is not None:
            output.write(f"  {name:<14} {output.visible(str(value))}")
    for line in output.payload_lines(message.payload):
        output.write(line)
    output.table(("event", "time", "agent", "detail"), events_of(message))


def _whole(message: MessageWithLedger) -> dict[str, Any]:
    return message.to_dict() | {
        "handle": handle_of(message.id),
        "due_at": moment(message.due_ms),
        "claimed_by": message.claimed_by,
        "lease_until": moment(message.lease_until_ms),
        "max_deliveries": message.max_deliveries,
        "idempotency_key": message.idempotency_key,
        "answer_to": message.answer_to,
        "replay_of": message.replay_of,
        "artifacts": list(attachments.references(message.payload)),
        "events": [event._asdict() for event in events_of(message)],
        "attempts": [attempt._asdict() for attempt in attempts_of(message)],
    }


def _facts(message: Message) -> Iterator[tuple[str, object]]:
    yield "handle", handle_of(message.id)
    yield "from", message.from_agent
    yield "to", message.to_agent or ANYBODY
    yield "channel", message.channel
    yield "type", message.type
    yield "priority", message.priority
    yield "sent", message.timestamp
    yield "due", moment(message.due_ms)
    yield "expires", message.expires_at
    yield "deliveries", f"{message.delivery_count} of {message.max_deliveries}"
    yield "error", message.error
    yield "correlation id", message.correlation_id
    yield "key", message.idempotency_key
    for file in attachments.references(message.payload):
        yield "file", f"{file.get('name')}, {file.get('bytes')} bytes, {file['artifact']}"


def _thread(call: Invocation, message: Message, answers: list[Message]) -> Iterator[tuple[str, object]]:
    """What it answers, what answered it, and what it repeats, each on one line."""
    for name, id in (("answers", message.answer_to), ("replay of", message.replay_of)):
        if id is not None:
            before = call.room.store.get(id)
            yield name, f"{id} (no longer kept)" if before is None else _line(before)
    for answer in answers:
        yield "answered by", _line(answer)


def _line(message: Message) -> str:
    return f"{handle_of(message.id)}  {message.from_agent} → {message.to_agent or ANYBODY}: {short(message, 60)}"


def short(message: Message, width: int) -> str:
    """The payload in a list: on one line, cut at that width."""
    text = output.payload_line(message.payload)
    return text if len(text) <= width else text[: width - 1] + "…"
