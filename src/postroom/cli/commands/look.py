"""Looking at a room. Nothing here changes anything: reading never consumes."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from postroom.cli import options, output
from postroom.cli.call import ID_HELP, Invocation
from postroom.core.clock import from_iso, span_text
from postroom.core.message import Message
from postroom.core.states import State
from postroom.errors import PostroomError, RoomError
from postroom.mail import presence
from postroom.mail.handles import handle_of
from postroom.mail.presence import STATUSES, AgentInfo
from postroom.stores.contract import MailboxFigures, Query

from .limits import show_limits
from .messages import ANYBODY, STATE_HELP, STATES, moment, short

if TYPE_CHECKING:
    from postroom.room import Room

#: The columns of a table, its rows, and what is said when there are none.
TableParts = tuple[tuple[str, ...], Iterable[Sequence[object]], str]
#: So many agents and mailboxes `status` shows to people; scripts get all.
AT_A_GLANCE: Final = 50
#: Of an agent's status, beside the words of presence.
OWN_WORD: Final = "any other word is a status that the agent gave itself"


def status(call: Invocation) -> None:
    room = call.room
    stats, waits = room.stats(), room.waits()
    agents = presence.agents(room.gateway, stats.mailboxes)
    limits, schedules = room.limits(), room.schedules()
    next_tick = min((each.next_tick for each in schedules if each.next_tick is not None), default=None)
    questions = len(room.people.open())
    boxes = _with_later(room, stats.mailboxes)
    if call.json:
        output.document(
            {
                "room": str(room.url),
                "states": stats.states,
                "agents": [agent._asdict() for agent in agents],
                "mailboxes": list(map(_mailbox_dict, boxes)),
                "waiting": [wait._asdict() for wait in waits],
                "limits": limits.to_dict(),
                "questions": questions,
                "schedules": {"count": len(schedules), "next_tick": next_tick},
                "store": stats.store,
            }
        )
        return
    counts = ", ".join(f"{number} {state}" for state, number in stats.states.items() if number)
    # all that the store keeps: of the states, the line above it tells
    store = {"kept" if name == "messages" else name: value for name, value in stats.store.items()}
    facts = {"room": room.url, "messages": counts or "none yet", **store}
    if questions:
        facts["questions"] = f"{questions} for a person; `postroom questions` lists them"
    if schedules:
        facts["schedules"] = f"{len(schedules)}, the next tick at {next_tick or 'no time'}"
    width = max(map(len, facts))
    for name, value in facts.items():
        output.write(f"{name:<{width}}  {output.visible(str(value))}")
    output.table(*_agents_table(agents[:AT_A_GLANCE], room.clock.wall_ms()))
    _tell_more("agents", len(agents))
    output.table(*_mailboxes_table(boxes[:AT_A_GLANCE], room.clock.wall_ms()))
    _tell_more("mailboxes", len(boxes))
    if waits:
        asked = [(wait.asker, wait.peer or ANYBODY, handle_of(wait.question_id)) for wait in waits]
        output.table(("asker", "waits for", "question"), asked)
    show_limits(limits, room.clock.wall_ms())
    if stats.states.get("dead"):
        output.write(f"{stats.states['dead']} dead: `postroom dead` shows them, `postroom requeue ID` puts one back")


def _tell_more(command: str, total: int) -> None:
    """Say how many the table above leaves out, and which command lists all."""
    if total > AT_A_GLANCE:
        output.write(f"{total - AT_A_GLANCE:,} more {command}: `postroom {command}` lists all {total:,}")


def agents_options(parser: argparse.ArgumentParser) -> None:
    words = "\n".join(f"  {word:<8} {meaning}" for word, meaning in STATUSES.items())
    parser.description = f"{parser.description}\n\nstatus:\n{words}\n  {OWN_WORD}"
    options.listing(parser, None)


def agents(call: Invocation) -> None:
    found = call.room.agents()
    shown = found[: call.args.limit]
    call.tell_rows((agent._asdict() for agent in shown), *_agents_table(shown, call.room.clock.wall_ms()))
    call.tell_count(len(shown), len(found))


def _agents_table(agents: list[AgentInfo], now_ms: int) -> TableParts:
    rows = (
        (a.name, a.status, output.ago(from_iso(a.last_heartbeat), now_ms), a.pending, a.current_task) for a in agents
    )
    return ("agent", "status", "last seen", "waiting", "task"), rows, "no agents yet"


def mailboxes_options(parser: argparse.ArgumentParser) -> None:
    options.listing(parser, None)


def mailboxes(call: Invocation) -> None:
    found = _with_later(call.room, call.room.stats().mailboxes)
    shown = found[: call.args.limit]
    call.tell_rows(map(_mailbox_dict, shown), *_mailboxes_table(shown, call.room.clock.wall_ms()))
    call.tell_count(len(shown), len(found))


class Box(NamedTuple):
    """A mailbox: what waits in it to be taken, and what is not due yet."""

    to_agent: str | None
    channel: str
    depth: int = 0
    oldest_ms: int | None = None
    delayed: int = 0
    next_due_ms: int | None = None


def _with_later(room: Room, figures: list[MailboxFigures]) -> list[Box]:
    """The mailboxes, with what is delayed: all of that is read."""
    boxes = {(box.to_agent, box.channel): Box(*box) for box in figures}
    for message in room.store.find_all(Query(states=frozenset({State.DELAYED}), limit=500)):
        name = message.to_agent, message.channel
        box = boxes.get(name) or Box(*name)
        due_ms = min(due for due in (box.next_due_ms, message.due_ms) if due is not None)
        boxes[name] = box._replace(delayed=box.delayed + 1, next_due_ms=due_ms)
    return sorted(boxes.values(), key=lambda box: (box.to_agent or "", box.channel))


def _mailbox_dict(box: Box) -> dict[str, object]:
    return {
        "to_agent": box.to_agent,
        "channel": box.channel,
        "depth": box.depth,
        "oldest": moment(box.oldest_ms),
        "delayed": box.delayed,
        "next_due": moment(box.next_due_ms),
    }


def _mailboxes_table(boxes: list[Box], now_ms: int) -> TableParts:
    rows = (
        (
            box.to_agent or ANYBODY,
            box.channel,
            box.depth,
            None if box.oldest_ms is None else output.ago(box.oldest_ms, now_ms),
            _later(box, now_ms),
        )
        for box in boxes
    )
    return ("mailbox", "channel", "waiting", "oldest", "later"), rows, "no mail is waiting"


def _later(box: Box, now_ms: int) -> str | None:
    if box.next_due_ms is None:
        return None
    return f"{box.delayed} due{', the first' * (box.delayed > 1)} in {span_text(box.next_due_ms - now_ms)}"


def peek_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--agent", metavar="NAME", help="the mail this agent would get (default: that of --as, or all mail)"
    )
    parser.add_argument(
        "--channel", action="append", metavar="C", help="only messages in this channel; may be repeated"
    )
    states = f"{STATE_HELP} (default: pending; with --text: all)"
    parser.add_argument("--state", choices=STATES, metavar="WORD", help=states)
    parser.add_argument("--from", dest="from_agent", metavar="NAME", help="only messages from this agent")
    parser.add_argument("--to", metavar="NAME", help="only messages to this agent")
    parser.add_argument("--type", metavar="T", help="only messages of this type")
    parser.add_argument("--correlation-id", metavar="ID", help="only messages with this correlation id")
    parser.add_argument("--answer-to", metavar="ID", help="only answers to this message")
    parser.add_argument("--since", metavar="WHEN", help="sent since a time (2026-11-15T06:00:00Z) or in a span (2h)")
    parser.add_argument("--until", metavar="WHEN", help="sent before that")
    text = "only messages whose payload contains this text, ignoring case; searches all messages that match the other options"
    parser.add_argument("--text", metavar="TEXT", help=text)
    options.listing(parser, 10)


def peek(call: Invocation) -> None:
    room, wanted, limit = call.room, _wanted(call), call.args.limit or options.NO_LIMIT
    found = room.peek(**wanted, limit=limit)
    now_ms = room.clock.wall_ms()
    rows = ((*_from_to(m), m.channel, m.priority, _state(m, now_ms), short(m, 60)) for m in found)
    columns = ("handle", "from", "to", "channel", "prio", "state", "payload")
    call.tell_rows(map(listed, found), columns, rows, empty="nothing there")
    call.tell_count(len(found), len(found) if len(found) < limit else room.count(**wanted))
    if call.args.text is not None:
        output.note("all matching messages were searched, each with its whole payload")


def _wanted(call: Invocation) -> dict[str, Any]:
    """What `peek` looks for, as `Room.peek` takes it."""
    args = call.args
    names = ("from_agent", "to", "type", "correlation_id", "since", "until", "text")
    state = args.state or ("pending" if args.text is None else "all")
    return {name: getattr(args, name) for name in names} | {
        "channels": args.channel,
        "agent": args.agent or args.name,
        "state": None if state == "all" else state,
        "answer_to": args.answer_to and call.message_id(args.answer_to),
    }


def listed(message: Message) -> dict[str, object]:
    """A message in a list, as JSON."""
    return {**message.to_dict(), "handle": handle_of(message.id), "due_at": moment(message.due_ms)}


def _state(message: Message, now_ms: int) -> str:
    """The state in a list: of what waits for its time, when that is."""
    if message.due_ms is None:
        return message.state
    return f"{'again' if message.delivery_count else 'due'} in {span_text(message.due_ms - now_ms)}"


def _from_to(message: Message) -> tuple[str, str, str]:
    return handle_of(message.id), message.from_agent, message.to_agent or ANYBODY


def receipt_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("id", metavar="ID", help=ID_HELP)


def receipt(call: Invocation) -> None:
    found = call.room.receipt(call.message_id(call.args.id))
    why = call.room.why(found.message)
    if call.json:
        about = {"id": found.id, "handle": handle_of(found.id), "state": found.state}
        more = {"recipient_known": found.recipient_known, "why": why._asdict()}
        output.document(about | more | {"events": [event._asdict() for event in found.events]})
        return
    output.say(f"{found.id} is {found.state}")
    if not found.recipient_known and why.kind != "unknown_recipient":
        output.say("its recipient has not joined this room yet")
    output.write(output.visible(why.text))
    output.table(("event", "time", "agent", "detail"), found.events)


def dead_options(parser: argparse.ArgumentParser) -> None:
    options.listing(parser, 100)


def dead(call: Invocation) -> None:
    room, limit = call.room, call.args.limit or options.NO_LIMIT
    letters = room.dead_letters(limit=limit)
    whole = ({**listed(each.message), "attempts": [tried._asdict() for tried in each.attempts]} for each in letters)
    rows = ((*_from_to(m := d.message), m.delivery_count, d.error, short(m, 40)) for d in letters)
    call.tell_rows(whole, ("handle", "from", "to", "tries", "error", "payload"), rows, empty="no dead letters")
    call.tell_count(len(letters), len(letters) if len(letters) < limit else room.count(state="dead"))


class QueryFailed(PostroomError):
    """The query does not work here."""


def sql_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("query", metavar="QUERY", help="one statement; the room is opened read-only")


def sql(call: Invocation) -> None:
    read_only = getattr(call.room.store, "read_only", None)
    if read_only is None:
        raise QueryFailed(f"the room {call.room.url} has no tables to read; only SQLite rooms do")
    try:
        columns, rows = read_only(call.args.query)
    except RoomError as error:
        if type(error) is RoomError:  # about the query, not about the room
            raise QueryFailed(str(error)) from None
        raise
    plain = ([value.hex() if isinstance(value, bytes) else value for value in row] for row in rows)
    call.tell_rows((dict(zip(columns, row, strict=True)) for row in plain), columns, rows, "no rows")
    call.tell_count(len(rows), len(rows))
