"""`postroom reserve` and `postroom unreserve`: files that an agent works on, and the guard that reminds at a commit."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from typing import Final

from postroom.board import recent_edits
from postroom.cli import exit_codes, options, output
from postroom.cli.call import Invocation
from postroom.cli.exit_codes import UsageError
from postroom.core.checkout import top_of
from postroom.core.untrusted import wrap
from postroom.doors import edits
from postroom.errors import PostroomError

from . import guard

TTL_S: Final = 600.0


class NothingReserved(PostroomError):
    """The agent has reserved nothing of that."""


def reserve_options(parser: argparse.ArgumentParser) -> None:
    globs = "files, such as 'src/api/**'; without one: list all reservations and recent edits"
    parser.add_argument("globs", metavar="GLOB", nargs="*", help=globs)
    options.span(parser, "--ttl", f"how long the reservation lasts (default: {TTL_S:.0f})", TTL_S)
    options.flag(parser, "--shared", "let others reserve the same files, also as shared")
    parser.add_argument("--why", metavar="TEXT", help="what you are working on; shown to agents that it keeps out")
    options.flag(parser, "--guard", "install a git pre-commit hook that stops commits to files reserved by others")
    options.flag(
        parser, "--check", "for the hook: check whether others have reserved the files on stdin (separated by NUL)"
    )


def reserve(call: Invocation) -> int:
    args = call.args
    if args.guard + args.check + bool(args.globs) > 1:
        raise UsageError("use only one of GLOB, --guard and --check")
    if args.guard:
        return _say_guard(call, *guard.install(Path.cwd()))
    if args.check:
        return _check(call)
    if not args.globs:
        _list(call)
        return exit_codes.DONE
    call.agent()
    made = call.room.reserve(
        from_top(args.globs, Path.cwd()),
        call.name,
        args.ttl,
        exclusive=not args.shared,
        why=args.why,
        transient=True,
        process=call.owner,
    )
    (shown,) = [each for each in call.room.reservations() if each.id == made.id]
    kind = "shared" if args.shared else "reserved"
    said = f"{kind} for {call.name} until {shown.until}: {', '.join(made.globs)}"
    return call.tell(shown.to_dict(), said, write=output.say)  # a sentence of our own: it needs no fence


def _say_guard(call: Invocation, path: Path, done: str) -> int:
    return call.tell({"hook": str(path), "done": done}, f"{done}: {path}", write=output.say)


def _list(call: Invocation) -> None:
    found, edited = call.room.reservations(), recent_edits.all_edits(call.room.gateway)
    rows = [(e.agent, ", ".join(e.globs), "" if e.exclusive else "shared", e.until, e.why) for e in found]
    told = [each.to_dict() for each in edited]
    rows += [(each["agent"], each["edited"], "edited", each["until"], None) for each in told]
    columns = ("agent", "files", "", "until", "why")
    call.tell_rows([*(each.to_dict() for each in found), *told], columns, rows, empty="nothing is reserved")
    call.tell_count(len(rows), len(rows))


def _check(call: Invocation) -> int:
    """For the hook: 0 when the commit may go on, RESERVED when it touches what others have reserved for themselves.

    No error ends with that code: a room that is busy, or a Postroom that is gone, is no reason to stop a commit
    (tests/cli/test_reserve.py).
    """
    paths = [os.fsdecode(path) for path in sys.stdin.buffer.read().split(b"\0") if path]
    me = call.said_name  # it only looks, so nothing has to be proved
    found = call.room.reserved_by_others(paths, me)
    if call.json:
        output.document(found)
    if not found:
        return exit_codes.DONE
    held = [f"  {path}: {whose}" for path, whose in found.items()]
    fenced = not sys.stderr.isatty() and not call.args.plain
    lines = ["postroom: this commit touches files that others have reserved:"]
    lines += wrap("\n".join(map(output.visible, held)), None).split("\n") if fenced else held
    who = (
        f"You commit as {me}."
        if me
        else "The committing agent is unknown; with POSTROOM_AGENT=NAME your own files are let through."
    )
    lines += [f"{who} `postroom reserve` lists what is reserved.", "To commit anyway: git commit --no-verify"]
    print("\n".join(map(output.visible, lines)), file=sys.stderr)
    return exit_codes.RESERVED


def unreserve_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("globs", metavar="GLOB", nargs="*", help="the files, as they were reserved")
    options.flag(parser, "--all", "everything you have reserved, and the files you have edited")
    options.flag(parser, "--guard", "remove the git hook")


def unreserve(call: Invocation) -> int:
    args = call.args
    if bool(args.globs) + args.all + args.guard != 1:
        raise UsageError("name the files as they were reserved, or use --all or --guard")
    if args.guard:
        return _say_guard(call, *guard.remove(Path.cwd()))
    dropped = call.room.unreserve(call.name, None if args.all else from_top(args.globs, Path.cwd()))
    if args.all:
        edits.ended(call.room.gateway, call.name)
    code = call.tell({"agent": call.name, "globs": dropped}, *(f"released: {glob}" for glob in dropped))
    if not dropped and not args.all:
        missing = ", ".join(args.globs)
        raise NothingReserved(f"{call.name} has no reservation {missing}; `postroom reserve` lists all")
    return code


def from_top(globs: list[str], here: Path) -> list[str]:
    """Patterns as they are kept: from the top of the checkout, also when written in a folder below it."""
    top = Path(top_of(str(here)) or here)
    return [os.path.relpath(os.path.join(here, glob), top) if _is_below(here, glob, top) else glob for glob in globs]


def _is_below(here: Path, glob: str, top: Path) -> bool:
    return Path(os.path.normpath(os.path.join(here, glob))).is_relative_to(top) and bool(glob.strip("/"))
