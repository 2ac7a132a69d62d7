"""Single messages, and what happens to them: everything about one, the log of all, and deleting them."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from functools import partial
from typing import Any, Final

from postroom.cli import options, output
from postroom.cli.call import ID_HELP, Invocation
from postroom.core.clock import iso
from postroom.core.message import Message, MessageWithLedger
from postroom.core.states import MOVES, NOTES
from postroom.mail import attachments
from postroom.mail.handles import handle_of
from postroom.mail.history import History, Step
from postroom.mail.receipts import attempts_of, events_of
from postroom.room import moment_ms
from postroom.stores.contract import Query

#: The recipient of a message that names none.
ANYBODY: Final = "(anybody)"
#: What a ledger can say.
EVENTS: Final = ("stored", *(move.event for move in MOVES if move.event not in ("due", "unheld")), *NOTES)
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


# --- log ---------------------------------------------------------------------------------------------------------


def log_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("-f", "--follow", action="store_true", help="go on with what happens from now on")
    parser.add_argument("--agent", metavar="NAME", help="only what this agent did, and what became of its messages")
    parser.add_argument("--channel", action="append", metavar="C", help="only of messages there; may be repeated")
    parser.add_argument("--type", metavar="T", help="only of messages of this type")
    parser.add_argument("--event", action="append", choices=EVENTS, help="only these steps; may be repeated")
    parser.add_argument("--since", metavar="WHEN", help="from a time (2026-11-15T06:00:00Z) or a span (2h) on")
    parser.add_argument("--limit", type=options.count, default=50, metavar="N", help="the last so many (default: 50)")
    options.flag(parser, "--all", "everything, however much it is")


def log(call: Invocation) -> None:
    args, history = call.args, History(call.room.gateway)
    since_ms = None if args.since is None else moment_ms(call.room.clock, "since", args.since)
    limit = None if args.all else args.limit
    steps, more = history.past(since_ms, limit, partial(_is_wanted, args))
    for step in steps:
        _tell_step(call, step)
    if more:
        output.note(f"the last {limit} steps; --limit N or --all shows more")
    if not args.follow:
        if not steps and not call.json:
            output.remark("nothing happened, of messages that are kept and fit")
        return
    _let_out()
    for change in call.room.watch(after=history.number):
        for step in history.after(change):
            if _is_wanted(args, step):
                _tell_step(call, step)
                _let_out()


def _let_out() -> None:
    output.end_words()
    sys.stdout.flush()


def _is_wanted(args: Any, step: Step) -> bool:
    message, entry = step
    return (
        args.agent in (None, entry.agent, message.from_agent, message.to_agent)
        and (args.channel is None or message.channel in args.channel)
        and args.type in (None, message.type)
        and (args.event is None or entry.event in args.event)
    )


def _tell_step(call: Invocation, step: Step) -> None:
    message, entry = step
    time = iso(entry.time_ms)
    if call.json:
        about = {"time": time, "event": entry.event, "agent": entry.agent, "detail": entry.detail}
        names = ("id", "type", "from_agent", "to_agent", "channel", "state", "payload")
        output.document(about | {"handle": handle_of(message.id)} | {name: getattr(message, name) for name in names})
        return
    if entry.event == "stored":
        said = f"{message.from_agent} → {message.to_agent or ANYBODY}  {message.channel}  {message.type}: {short(message, 60)}"
    else:
        said = ": ".join(part for part in (entry.agent, entry.detail) if part)
    output.write(output.visible(f"{time}  {handle_of(message.id)}  {entry.event:<8}  {said}").rstrip())
