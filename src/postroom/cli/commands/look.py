"""Looking at a room. Nothing here changes anything: reading never consumes."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from postroom.cli import exit_codes, options, output
from postroom.core.clock import from_iso, iso
from postroom.errors import PostroomError, RoomError

if TYPE_CHECKING:
    from postroom.cli.call import Invocation
    from postroom.core.message import Message
    from postroom.mail.presence import AgentInfo
    from postroom.stores.contract import MailboxFigures


def status_options(_: argparse.ArgumentParser) -> None:
    pass


def status(call: Invocation) -> int:
    room = call.room
    stats, agents, waits = room.stats(), room.agents(), room.waits()
    if call.json:
        output.document(
            {
                "room": str(room.url),
                "states": stats.states,
                "agents": [agent._asdict() for agent in agents],
                "mailboxes": [_mailbox_dict(box) for box in stats.mailboxes],
                "waiting": [wait._asdict() for wait in waits],
                "store": stats.store,
            }
        )
        return exit_codes.DONE
    output.write(f"room      {output.visible(str(room.url))}")
    counts = ", ".join(f"{number} {state}" for state, number in stats.states.items() if number)
    output.write(f"messages  {counts or 'none yet'}")
    for name, value in stats.store.items():
        output.write(f"{name:<9} {output.visible(str(value))}")
    _show_agents(agents, room.clock.wall_ms())
    _show_mailboxes(stats.mailboxes, room.clock.wall_ms())
    if waits:
        output.table(
            ("asker", "waits for", "question"), [(w.asker, w.peer or "(anybody)", w.question_id) for w in waits]
        )
    if stats.states.get("dead"):
        output.write(f"{stats.states['dead']} dead: `postroom dead` shows them, `postroom requeue ID` puts one back")
    return exit_codes.DONE


def agents_options(_: argparse.ArgumentParser) -> None:
    pass


def agents(call: Invocation) -> int:
    found = call.room.agents()
    if call.json:
        output.document([agent._asdict() for agent in found])
    else:
        _show_agents(found, call.room.clock.wall_ms())
    return exit_codes.DONE


def _show_agents(agents: list[AgentInfo], now_ms: int) -> None:
    rows = [
        (a.name, a.status, output.ago(from_iso(a.last_heartbeat), now_ms), a.pending, a.current_task) for a in agents
    ]
    output.table(("agent", "status", "last seen", "waiting", "task"), rows, empty="no agents yet")


def mailboxes_options(_: argparse.ArgumentParser) -> None:
    pass


def mailboxes(call: Invocation) -> int:
    boxes = call.room.stats().mailboxes
    if call.json:
        output.document([_mailbox_dict(box) for box in boxes])
    else:
        _show_mailboxes(boxes, call.room.clock.wall_ms())
    return exit_codes.DONE


def _mailbox_dict(box: MailboxFigures) -> dict[str, object]:
    return {"to_agent": box.to_agent, "channel": box.channel, "depth": box.depth, "oldest": iso(box.oldest_ms)}


def _show_mailboxes(boxes: list[MailboxFigures], now_ms: int) -> None:
    rows = [(box.to_agent or "(anybody)", box.channel, box.depth, output.ago(box.oldest_ms, now_ms)) for box in boxes]
    output.table(("mailbox", "channel", "waiting", "oldest"), rows, empty="no mail is waiting")


def peek_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--agent", metavar="NAME", help="what this agent would get (default: the one of --as, or all)")
    parser.add_argument("--channel", action="append", metavar="C", help="only in this channel; may be repeated")
    parser.add_argument(
        "--state", default="pending", metavar="WORD", help="pending, claimed, acked, dead, … (default: pending)"
    )
    parser.add_argument("--limit", type=options.count, default=10, metavar="N", help="at most so many (default: 10)")


def peek(call: Invocation) -> int:
    args = call.args
    agent = args.agent or args.name
    _show_messages(call, call.room.peek(channels=args.channel, agent=agent, state=args.state, limit=args.limit))
    return exit_codes.DONE


def _show_messages(call: Invocation, messages: list[Message]) -> None:
    if call.json:
        output.document([message.to_dict() for message in messages])
        return
    rows = [
        (
            m.id,
            m.from_agent,
            m.to_agent or "(anybody)",
            m.channel,
            m.priority,
            m.state_name,
            _short(output.payload_line(m.payload)),
        )
        for m in messages
    ]
    output.table(("id", "from", "to", "channel", "prio", "state", "payload"), rows, empty="nothing there")


def _short(text: str, width: int = 60) -> str:
    return text if len(text) <= width else text[: width - 1] + "…"


def receipt_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("id", metavar="ID")


def receipt(call: Invocation) -> int:
    found = call.room.receipt(call.args.id)
    if call.json:
        events = [event._asdict() for event in found.events]
        output.document(
            {"id": found.id, "state": found.state, "recipient_known": found.recipient_known, "events": events}
        )
        return exit_codes.DONE
    output.say(f"{found.id} is {found.state}")
    if not found.recipient_known:
        output.say("its recipient was never seen in this room")
    output.table(("event", "time", "agent", "detail"), found.events)
    return exit_codes.DONE


def dead_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--limit", type=options.count, default=100, metavar="N", help="at most so many (default: 100)")


def dead(call: Invocation) -> int:
    letters = call.room.dead_letters(limit=call.args.limit)
    if call.json:
        attempts = [[attempt._asdict() for attempt in letter.attempts] for letter in letters]
        output.document(
            [{**d.message.to_dict(), "attempts": tried} for d, tried in zip(letters, attempts, strict=True)]
        )
        return exit_codes.DONE
    rows = [
        (
            d.id,
            m.from_agent,
            m.to_agent or "(anybody)",
            m.delivery_count,
            d.error,
            _short(output.payload_line(m.payload), 40),
        )
        for d, m in ((letter, letter.message) for letter in letters)
    ]
    output.table(("id", "from", "to", "tries", "error", "payload"), rows, empty="no dead letters")
    return exit_codes.DONE


class QueryFailed(PostroomError):
    """The query does not work here."""


def sql_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("query", metavar="QUERY", help="one statement; the room is opened for reading only")


def sql(call: Invocation) -> int:
    read_only = getattr(call.room.store, "read_only", None)
    if read_only is None:
        raise QueryFailed(f"the room {call.room.url} has no tables to read; only SQLite rooms have")
    try:
        columns, rows = read_only(call.args.query)
    except RoomError as error:
        if type(error) is RoomError:  # about the query, not about the room
            raise QueryFailed(str(error)) from None
        raise
    if call.json:
        output.document([dict(zip(columns, map(_json_value, row), strict=True)) for row in rows])
    else:
        output.table(columns, rows, empty="no rows")
    return exit_codes.DONE


def _json_value(value: object) -> object:
    return value.hex() if isinstance(value, bytes) else value
