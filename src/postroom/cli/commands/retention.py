"""`postroom retention set | list | remove | apply`: limits of single channels."""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable
from typing import Final

from msgspec.structs import asdict

from postroom.cli import exit_codes, options, output
from postroom.cli.call import Invocation
from postroom.cli.exit_codes import UsageError
from postroom.mail import retaining

ACTIONS: Final = ("set", "list", "remove", "apply")
_UNITS: Final = {"": 1, "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "KIB": 2**10, "MIB": 2**20, "GIB": 2**30}
_SIZE: Final = re.compile(r"([0-9]{1,15})\s{0,2}([A-Za-z]{0,3})")
_ABOUT = """
set CHANNEL     give a channel limits, instead of those it had
list            list the channels that have limits
remove CHANNEL  remove the limits of a channel
apply           delete now what the limits no longer keep; otherwise a process does it once a minute

Only finished messages are deleted: not those that wait, are claimed or are dead."""


def retention_options(parser: argparse.ArgumentParser) -> None:
    parser.description = f"{parser.description}\n{_ABOUT}"
    parser.add_argument("action", metavar="ACTION", choices=ACTIONS, help="set, list, remove or apply")
    parser.add_argument("channel", metavar="CHANNEL", nargs="?", help="for set and remove")
    options.span(parser, "--age", "for set: delete messages sent longer ago than this (2d)", metavar="SPAN")
    parser.add_argument("--count", type=options.count, metavar="N", help="for set: keep the newest N")
    size = "for set: keep the newest that have so many bytes of payload (10MB)"
    parser.add_argument("--bytes", type=_size, metavar="SIZE", help=size)


def _size(text: str) -> int:
    found = _SIZE.fullmatch(text.strip())
    if found is None or found[2].upper() not in _UNITS:
        raise argparse.ArgumentTypeError(f"{text!r} is not a size; write bytes, or 500KB, 10MB, 2GB, 64MiB")
    return int(found[1]) * _UNITS[found[2].upper()]


def retention(call: Invocation) -> int | None:
    args = call.args
    takes_channel = args.action in ("set", "remove")
    if takes_channel != (args.channel is not None):
        raise UsageError(f"`postroom retention {args.action}` {'needs a' if takes_channel else 'takes no'} CHANNEL")
    limits = (args.age, args.count, args.bytes)
    if (args.action == "set") != any(limit is not None for limit in limits):
        needs = "needs --age, --count or --bytes" if args.action == "set" else "takes no limits"
        raise UsageError(f"`postroom retention {args.action}` {needs}")
    step: Callable[[Invocation], int | None] = globals()[f"_{args.action}"]
    return step(call)


def _set(call: Invocation) -> None:
    call.must_be_person("change how long messages are kept")
    args = call.args
    found = call.room.retention(args.channel, age_s=args.age, count=args.count, bytes=args.bytes)
    _tell(call, found)


def _list(call: Invocation) -> None:
    _tell(call, call.room.retention())


def _tell(call: Invocation, found: dict[str, retaining.Retention]) -> None:
    rows = [(channel, limits.age_s, limits.count, limits.bytes) for channel, limits in found.items()]
    documents = [{"channel": channel, **asdict(limits)} for channel, limits in found.items()]
    call.tell_rows(documents, ("channel", "age (s)", "count", "bytes"), rows, empty="no channel has limits of its own")


def _remove(call: Invocation) -> int:
    call.must_be_person("change how long messages are kept")
    if call.args.channel not in call.room.retention():
        output.note(f"the channel {call.args.channel!r} has no limits of its own")
        return exit_codes.NOTHING
    call.room.retention(call.args.channel)
    return call.tell({"removed": call.args.channel}, f"{call.args.channel!r} has no limits of its own any more")


def _apply(call: Invocation) -> None:
    call.must_be_person("delete messages")
    deleted = retaining.apply(call.room.store)
    call.tell({"deleted": deleted}, f"{deleted} message{'' if deleted == 1 else 's'} deleted")
