"""Single messages, and what happens to them: everything about one, the log of all, and deleting them."""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from functools import partial
from typing import Any, Final

from msgspec.structs import replace

from postroom.cli import exit_codes, options, output
from postroom.cli.call import ID_HELP, Invocation
from postroom.cli.exit_codes import UsageError
from postroom.core.clock import iso
from postroom.core.message import Message, MessageWithLedger
from postroom.core.moments import moment_ms
from postroom.core.states import FINISHED, MOVES, NOTES, PUBLIC_STATES, STATUS_WORD, State, states_named
from postroom.core.untrusted import quoted
from postroom.errors import UnknownMessage
from postroom.mail import attachments
from postroom.mail.handles import handle_of
from postroom.mail.history import History, LoggedStep
from postroom.mail.receipts import attempts_of, events_of
from postroom.room import Room
from postroom.stores.contract import Query

#: The recipient of a message that names none.
ANYBODY: Final = "(anybody)"
#: Words for --state: those of receipts, and those of the table of messages.
STATES: Final = ("all", *dict.fromkeys((*STATUS_WORD.values(), *PUBLIC_STATES)))
STATE_HELP: Final = f"one of {', '.join(STATES)}"
_PAGE: Final = 500
#: A message that is being archived (on NATS) is not deleted at the first try.
_TRIES: Final = 3
#: What a ledger can say.
EVENTS: Final = ("stored", *(move.event for move in MOVES if move.event not in ("due", "unheld", "unblocked")), *NOTES)
#: A question may have been answered more than once, when it was delivered more than once.
_MAX_ANSWERS: Final = 100


def moment(ms: int | None) -> str | None:
    """A time of a message as text; None stays None."""
    return None if ms is None else iso(ms)


def show_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("id", metavar="ID", help=ID_HELP)


def thread_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("id", metavar="ID", help=ID_HELP)
    options.listing(parser, None)


def thread(call: Invocation) -> None:
    """The newest part of it, where not all is wanted: that is where it goes on."""
    found = call.room.thread(call.message_id(call.args.id))
    shown = found[-(call.args.limit or len(found)) :]
    if call.json:
        output.document(
            [message.to_dict() | {"handle": handle_of(message.id), "answer_to": message.answer_to} for message in shown]
        )
    else:
        for message in shown:
            names = output.name(message.from_agent), output.name(message.to_agent or message.channel)
            output.say(f"{handle_of(message.id)}  {message.timestamp}  {names[0]} -> {names[1]}  {message.state}")
            output.words_of(message)
            for line in output.payload_lines(message.payload):
                output.write(line)
    output.end_words()
    call.tell_count(len(shown), len(found))


def show(call: Invocation) -> None:
    room = call.room
    message = room.get(call.message_id(call.args.id))
    why = room.why(message)
    answers = room.store.find(Query(answer_to=message.id, limit=_MAX_ANSWERS)).messages
    if call.json:
        output.document(_whole(call.room, message) | {"why": why._asdict(), "answers": [each.id for each in answers]})
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


def _whole(room: Room, message: MessageWithLedger) -> dict[str, Any]:
    return message.to_dict() | {
        "handle": handle_of(message.id),
        "due_at": moment(message.due_ms),
        "claimed_by": message.claimed_by,
        "lease_until": moment(message.lease_until_ms),
        "max_deliveries": message.max_deliveries,
        "idempotency_key": message.idempotency_key,
        "answer_to": message.answer_to,
        "replay_of": message.replay_of,
        "artifacts": [{**file, "path": _place(room, file)} for file in attachments.references(message.payload)],
        "events": [event._asdict() for event in events_of(message)],
        "attempts": [attempt._asdict() for attempt in attempts_of(message)],
    }


def _place(room: Room, file: Mapping[str, Any]) -> str | None:
    """Where an attached file lies, whatever its sender wrote there; None when it is not kept here."""
    with suppress(UnknownMessage):
        return None if room.folder is None else str(room.artifact(file))
    return None


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
    return cut(output.payload_line(message.payload), width)


def cut(text: str, width: int) -> str:
    """A text in a list, cut at that width."""
    return text if len(text) <= width else text[: width - 1] + "…"


# --- log ---------------------------------------------------------------------------------------------------------


def log_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("-f", "--follow", action="store_true", help="keep printing events as they happen")
    parser.add_argument("--agent", metavar="NAME", help="only what this agent did, and what became of its messages")
    parser.add_argument(
        "--channel", action="append", metavar="C", help="only messages in this channel; may be repeated"
    )
    parser.add_argument("--type", metavar="T", help="only messages of this type")
    parser.add_argument("--event", action="append", choices=EVENTS, help="only these events; may be repeated")
    parser.add_argument("--since", metavar="WHEN", help="since a time (2026-11-15T06:00:00Z) or for a span (2h)")
    options.listing(parser, 50, "only the last N (default: 50)")


def log(call: Invocation) -> None:
    args, history = call.args, History(call.room.gateway)
    since_ms = None if args.since is None else moment_ms(call.room.clock, "since", args.since)
    steps, more = history.past(since_ms, args.limit, partial(_is_wanted, args))
    for step in steps:
        _tell_step(call, step)
    if more:
        output.note(f"only the last {args.limit} are shown; use --all, or a larger --limit N, for more")
    if not args.follow:
        if not steps and not call.json:
            output.remark("no events match")
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


def _is_wanted(args: Any, step: LoggedStep) -> bool:
    message, entry = step
    return (
        args.agent in (None, entry.agent, message.from_agent, message.to_agent)
        and (args.channel is None or message.channel in args.channel)
        and args.type in (None, message.type)
        and (args.event is None or entry.event in args.event)
    )


def _tell_step(call: Invocation, step: LoggedStep) -> None:
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


# --- purge -------------------------------------------------------------------------------------------------------


def purge_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("id", metavar="ID", nargs="*", help=f"{ID_HELP}; also one that still waits, to withdraw it")
    parser.add_argument("--before", metavar="WHEN", help="sent before a time (2026-11-15T06:00:00Z) or a span ago (1h)")
    parser.add_argument("--state", choices=STATES, metavar="WORD", help=f"{STATE_HELP} (default: finished ones)")
    parser.add_argument("--to", metavar="NAME", help="only messages to this agent")
    parser.add_argument(
        "--channel", action="append", metavar="C", help="only messages in this channel; may be repeated"
    )
    options.flag(parser, "--all", "all finished messages")
    options.flag(parser, "--dry-run", "only count what would be deleted")
    options.flag(parser, "--yes", "also delete unfinished messages, without asking")


def purge(call: Invocation) -> int:
    args, room = call.args, call.room
    query = _to_purge(call)
    missing = dict.fromkeys(query.ids or ())
    states, senders, waiting, held, files = Counter[str](), set[str](), 0, 0, False
    for message in room.store.find_all(query):
        if message.exact_state is State.CLAIMED:
            held += 1
        else:
            states[message.state] += 1
            senders.add(message.from_agent)
            missing.pop(message.id, None)
            waiting += message.exact_state not in FINISHED
            files = files or any(True for _ in attachments.references(message.payload))
    if len(senders) == 1:  # an agent may delete its own, and no other's that come meanwhile
        query = replace(query, from_agent=next(iter(senders)))
    call.must_be_person("delete messages", unless=senders if len(senders) == 1 else ())
    if waiting and not (args.yes or args.dry_run) and not _agreed(waiting):
        output.note("nothing was deleted")
        return exit_codes.FAILED
    deleted = states.total() if args.dry_run else _delete(call, query, states.total())
    if files and not args.dry_run and room.folder is not None:
        attachments.tidy(room.store, attachments.folder_for(room.folder))
    counts = ", ".join(f"{number} {state}" for state, number in states.items())
    would = "would be " if args.dry_run else ""
    text = f"{deleted} message{'' if deleted == 1 else 's'} {would}deleted{f' ({counts})' if counts else ''}"
    call.tell({"deleted": 0 if args.dry_run else deleted, "states": states, "dry_run": args.dry_run}, text)
    if held and not missing:
        output.note(f"{held} held by a receiver {'was' if held == 1 else 'were'} kept")
    stays = _tell_missing(call, missing)
    return exit_codes.NOTHING if not (states or stays) else exit_codes.FAILED if missing else exit_codes.DONE


def _to_purge(call: Invocation) -> Query:
    args = call.args
    filters = (args.before, args.state, args.to, args.channel)
    if args.id and (args.all or any(filters)):
        raise UsageError("name messages by their ids, or by --before, --state, --to and --channel, not both")
    if not args.id and not args.all and not any(filters):
        raise UsageError("say which messages: ids, --before, --state, --to, --channel, or --all for all finished ones")
    if args.id:
        return Query(ids=tuple(call.message_id(each) for each in args.id), limit=_PAGE)
    return Query(
        states=FINISHED if args.state is None else None if args.state == "all" else states_named(args.state),
        channels=None if args.channel is None else tuple(args.channel),
        to_agent=args.to,
        sent_before_ms=None if args.before is None else moment_ms(call.room.clock, "before", args.before),
        limit=_PAGE,
    )


def _agreed(waiting: int) -> bool:
    """Whether the person at the terminal agrees; where there is none, --yes is needed."""
    number = f"{waiting} of these messages {'is' if waiting == 1 else 'are'} not finished: no agent will get"
    number += f" {'it' if waiting == 1 else 'them'} any more"
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise UsageError(f"{number}; add --yes to confirm")
    print(f"postroom: {number}. Delete? [y/N] ", end="", file=sys.stderr, flush=True)
    return sys.stdin.readline().strip().lower() in ("y", "yes")


def _delete(call: Invocation, query: Query, most: int) -> int:
    """Delete messages for good. Returns how many; what somebody has claimed meanwhile stays."""
    deleted = 0
    for _ in range(_TRIES):
        if deleted < most:
            deleted += call.room.store.purge(replace(query, limit=most - deleted))
    return deleted


def _tell_missing(call: Invocation, ids: Iterable[str]) -> bool:
    """Say of each of these why it was not deleted. Returns whether somebody holds one."""
    kept = {id: call.room.store.get(id) for id in ids}
    for id, message in kept.items():
        held = message is not None and f"message {id} is held by {quoted(str(message.claimed_by))}, and was kept"
        output.note(held or f"this room has no message {id}")
    return any(message is not None for message in kept.values())
