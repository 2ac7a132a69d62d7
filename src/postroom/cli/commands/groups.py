"""Groups of agents: add, remove, list."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Final

from postroom.cli import exit_codes, options
from postroom.cli.call import Invocation
from postroom.cli.exit_codes import UsageError
from postroom.core.message import GROUP_SIGN
from postroom.mail import presence

from .mail import must_be_known

ACTIONS: Final = ("add", "remove", "list")


def group_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("action", metavar="ACTION", choices=ACTIONS, help="add, remove or list")
    parser.add_argument("group", metavar="GROUP", nargs="?", help="the group's name, with or without its @")
    parser.add_argument("members", metavar="NAME", nargs="*", help="agents; remove without any removes the group")
    options.flag(parser, "--new", "for add: allow agents that this room does not know yet")


def group(call: Invocation) -> int | None:
    args = call.args
    if args.group is None and args.action != "list":
        raise UsageError(f"`postroom group {args.action}` needs the name of a GROUP")
    if args.action == "add" and not args.members:
        raise UsageError("`postroom group add GROUP` needs the names of agents")
    if args.action == "list" and args.members:
        raise UsageError("`postroom group list` takes the name of one GROUP, or none")
    if args.new and args.action != "add":
        raise UsageError("--new is for `postroom group add`")
    step: Callable[[Invocation], int | None] = globals()[f"_{args.action}"]
    return step(call)


def _add(call: Invocation) -> None:
    call.must_be_person("change a group")
    for member in call.args.members:
        if not member.startswith(GROUP_SIGN):  # which is told for what it is
            must_be_known(call, member, presence.is_addressee)
    _tell(call, call.room.groups.add(call.args.group, call.args.members))


def _remove(call: Invocation) -> None:
    call.must_be_person("change a group")
    _tell(call, call.room.groups.remove(call.args.group, call.args.members or None))


def _tell(call: Invocation, members: list[str]) -> None:
    name = call.args.group.removeprefix(GROUP_SIGN)
    left = f"{GROUP_SIGN}{name}: {', '.join(members)}" if members else f"{GROUP_SIGN}{name} is removed"
    call.tell({"group": name, "members": members}, left)


def _list(call: Invocation) -> int:
    groups, name = call.room.groups, call.args.group
    found = groups.all() if name is None else {name.removeprefix(GROUP_SIGN): groups.members(name)}
    call.tell_rows(
        ({"group": each, "members": members} for each, members in found.items()),
        ("group", "members"),
        ((GROUP_SIGN + each, ", ".join(members)) for each, members in found.items()),
        "this room has no groups; `postroom group add GROUP NAME...` makes one",
    )
    return exit_codes.DONE
