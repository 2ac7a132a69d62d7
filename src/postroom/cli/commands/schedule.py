"""`postroom schedule add | list | remove`: messages that a room sends by the clock."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from typing import Final

from postroom.cli import exit_codes, options, output
from postroom.cli.call import Invocation
from postroom.cli.exit_codes import UsageError
from postroom.core.message import readable
from postroom.errors import PostroomError
from postroom.mail import presence
from postroom.mail.schedule import POLICIES, Schedule

from .mail import UnknownRecipient

#: The actions of `postroom schedule`, each with its arguments.
ACTIONS: Final = {"add": "NAME [PAYLOAD] --every S | --cron EXPR", "list": "", "remove": "NAME"}
ANYBODY: Final = "*"


class NoSuchSchedule(PostroomError):
    """The room has no schedule of that name."""


def schedule_options(parser: argparse.ArgumentParser) -> None:
    actions = "one of (default: list): " + "; ".join(
        f"`{f'{name} {takes}'.strip()}`" for name, takes in ACTIONS.items()
    )
    parser.add_argument("action", metavar="ACTION", nargs="?", default="list", choices=list(ACTIONS), help=actions)
    parser.add_argument("schedule", metavar="NAME", nargs="?", help="the schedule")
    payload = 'add: what each message says; a JSON object, `-` for stdin, or text, which becomes {"text": ...}'
    parser.add_argument("payload", metavar="PAYLOAD", nargs="?", help=payload)
    options.flag(parser, "--text", "add: PAYLOAD is plain text, even if it looks like JSON")
    options.span(parser, "--every", "add: send one this often: 90, 10s, 5m, 2h, 1d")
    cron = "add: send one at these times: five fields (minute, hour, day of month, month, day of week)"
    parser.add_argument("--cron", metavar="EXPR", help=cron)
    parser.add_argument("--zone", default="UTC", metavar="ZONE", help="add: the time zone of --cron (default: UTC)")
    missed = "add: of ticks that were missed send none (skip), one message for all (one, the default) or each (all)"
    parser.add_argument("--missed", choices=POLICIES, default="one", help=missed)
    parser.add_argument(
        "--to", default=ANYBODY, metavar="AGENT", help="add: who gets the messages (default: the first to claim one)"
    )
    options.flag(parser, "--new", "add: allow a recipient that this room does not know yet")
    parser.add_argument("--channel", default="general", metavar="C", help="add: the channel (default: general)")
    parser.add_argument("--type", default="tick", metavar="T", help="add: what kind of message it is (default: tick)")
    parser.add_argument("--priority", type=options.whole, default=5, metavar="1-10", help="add: 10 comes first")
    options.span(parser, "--ttl", "add: each expires if it is not received within this time")


def schedule(call: Invocation) -> int:
    args = call.args
    if (args.schedule is None) != (args.action == "list"):
        needs = "needs the NAME of a schedule" if args.schedule is None else "takes no NAME"
        raise UsageError(f"`postroom schedule {args.action}` {needs}; `postroom schedule list` shows them")
    if args.payload is not None and args.action != "add":
        raise UsageError(f"{args.payload!r} is one argument too many: postroom schedule {args.action} NAME")
    step: Callable[[Invocation], int] = globals()[f"_{args.action}"]
    return step(call)


def _add(call: Invocation) -> int:
    args = call.args
    if (args.every is None) == (args.cron is None):
        raise UsageError("say when: either --every 10m or --cron '0 9 * * 1-5'")
    _must_be_ours(call)
    to = None if args.to == ANYBODY else args.to
    _must_be_known(call, to)
    made = call.room.schedule(
        args.schedule,
        every_s=args.every,
        cron=args.cron,
        zone=args.zone,
        missed=args.missed,
        to=to,
        channel=args.channel,
        type=args.type,
        priority=args.priority,
        ttl_s=args.ttl,
        payload={} if args.payload is None else options.payload_of(args.payload, plain=args.text),
        **({} if call.maybe_name is None else {"by": call.maybe_name}),
    )
    return call.tell(
        made.to_dict(), f"{made.name}: {_when(made)}; the next one is due at {made.next_tick}", write=output.say
    )


def _must_be_ours(call: Invocation) -> None:
    """In a room with tokens, a schedule is changed by the agent in whose name it sends, or by a person."""
    found = next((each for each in call.room.schedules() if each.name == call.args.schedule), None)
    if found is not None:
        call.must_be_person("change the schedules of others", unless=[found.by])


def _must_be_known(call: Invocation, to: str | None) -> None:
    gateway = call.room.gateway
    if to is None or call.args.new or to == call.maybe_name or presence.is_addressee(gateway, to):
        return
    from postroom.doors.strangers import never_seen

    names = presence.addressees(gateway)
    raise UnknownRecipient(never_seen(to, names, "--new if it is new", any_name=sys.stderr.isatty()))


def _list(call: Invocation) -> int:
    found = call.room.schedules()
    rows = (
        (
            each.name,
            _when(each),
            _where(each),
            each.missed,
            each.next_tick or "never",
            each.sent,
            readable(each.payload),
        )
        for each in found
    )
    columns = ("schedule", "when", "to", "missed", "next", "sent", "payload")
    call.tell_rows((each.to_dict() for each in found), columns, rows, empty="no schedules")
    call.tell_count(len(found), len(found))
    return exit_codes.DONE


def _when(each: Schedule) -> str:
    if each.every_s is not None:
        return f"every {each.every_s:g} s"
    return f"{each.cron} ({each.zone})"


def _where(each: Schedule) -> str:
    return each.to or f"#{each.channel}"


def _remove(call: Invocation) -> int:
    _must_be_ours(call)
    name = call.args.schedule
    if not call.room.unschedule(name):
        raise NoSuchSchedule(f"this room has no schedule {name!r}; `postroom schedule list` shows them")
    return call.tell({"name": name, "removed": True}, f"removed: {name}", write=output.say)
