"""Commands for a room as a whole: making one, putting dead messages back, sending kept ones again."""

from __future__ import annotations

import argparse
import os
import signal
import sys
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final, Self

from postroom.cli import exit_codes, options, output
from postroom.cli.call import ID_HELP, Invocation
from postroom.cli.exit_codes import UsageError
from postroom.core import trust
from postroom.core.clock import from_iso, iso
from postroom.core.config import FOLDER, URL_VARIABLE, RoomUrl, address_of, is_new, parse_url, place_of, room_folder
from postroom.errors import RoomNotAllowed, RoomUnreachable, UnknownMessage

from .allow import check_untracked

if TYPE_CHECKING:
    from postroom.cli.layouts.layout import Layout, Step

#: A replay of more than so many messages has to be asked for.
MANY: Final = 1000
#: A dry run shows so many messages to a person.
SHOWN: Final = 20


def init_options(parser: argparse.ArgumentParser) -> None:
    folder = "where to make .postroom (default: $POSTROOM_URL, or here)"
    parser.add_argument("folder", metavar="FOLDER", nargs="?", help=folder)
    options.flag(parser, "--anew", "start an empty room in place of one whose messages were lost")
    layout = "windsurf: a lead and workers, each with a mailbox of files and instructions"
    parser.add_argument("--layout", metavar="NAME", help=layout)
    parser.add_argument(
        "--workers", type=options.count, metavar="N", help="with --layout: how many workers (default: 3)"
    )
    options.flag(parser, "--worktrees", "with --layout: a git worktree for each worker")
    options.flag(parser, "--dry-run", "with --layout: only show what would be done")


def init(call: Invocation) -> None:
    args = call.args
    if args.layout is not None:
        _init_layout(call)
        return
    if args.workers is not None or args.worktrees or args.dry_run:
        raise UsageError("--workers, --worktrees and --dry-run need --layout")
    address = args.room or _address(args.folder)
    aside, trusted = _set_aside(address) if args.anew else ([], False)
    new = is_new(parse_url(address))
    room = call.make_room(address)
    place = place_of(room.url)
    _keep_out_of_git(place)
    if new and trust.judge_url(room.url).why:
        where = trust.config_folder() or "a home folder, which you do not have"
        output.note(
            f"that you made this room cannot be kept in {where}, so no search finds it: name it with --room or "
            f"{URL_VARIABLE}={room.url}"
        )
    if trusted and place is not None:
        with suppress(OSError):  # also where mail in mailboxes made of files was left, and the room is not new
            trust.allow_place(place, how="made", group=room.config.group)
    if room_folder(room.url) is None:
        with suppress(OSError):  # the user that makes a room on servers by name may use it by name
            trust.allow_address(room.url, how="made")
    left = [f"the remains of the old room were kept: {path}" for path in aside]
    call.tell({"room": str(room.url), "kept": list(map(str, aside))}, f"the room is ready: {room.url}", *left)


def _set_aside(address: str) -> tuple[list[Path], bool]:
    """Make way for an empty room, where the messages of the one that was there are lost. Else nothing is changed.

    Returns what is kept of it, and whether its folder was trusted and is to be again.
    """
    url = parse_url(address)
    folder = room_folder(url)
    if folder is None or trust.lost_part(url) is None:
        return [], False
    trusted = not trust.judge_url(url).why
    try:
        return trust.set_aside(url), trusted
    except OSError as error:
        raise RoomUnreachable(f"the remains of the room in {folder} cannot be moved aside: {error}") from error


def _init_layout(call: Invocation) -> None:
    from postroom.cli.layouts.layout import LAYOUTS, MAX_WORKERS, Layout  # most rooms are made without

    args = call.args
    workers = args.workers or 3
    if args.layout not in LAYOUTS:
        raise UsageError(f"there is no layout {args.layout!r}; choose from {', '.join(LAYOUTS)}")
    if workers > MAX_WORKERS:
        raise UsageError(f"--workers must be at most {MAX_WORKERS}, not {workers}")
    root = Path(args.folder or ".").absolute()
    _own_address(root / FOLDER)
    url = args.room or os.environ.get(URL_VARIABLE) or address_of(root / ".windsurf" / "mailbox", "files")
    layout = Layout(root, url, workers, worktrees=args.worktrees)
    if layout.folder is not None:
        check_untracked(root / FOLDER, layout.address)
    if args.worktrees:
        layout.check_git()
    steps = [step for step in layout.steps() if step.word]
    new = [] if args.dry_run else _made(call, layout, steps)
    would = "would " if args.dry_run else ""
    lines = [f"{would}{step.word:<6} {step.path}" for step in steps]
    if not steps and not new:
        lines.append("everything is already there; nothing to do")
    if not args.dry_run:
        lines.append(f"the room is ready: {layout.url}")
        lines.append("start a session in its role: postroom as worker-1 -- COMMAND...")
    done = [{"do": step.word, "path": step.path} for step in steps]
    agents = ["lead", *layout.names]
    call.tell({"room": layout.url, "dry_run": args.dry_run, "steps": done, "agents": agents}, *lines)


def _made(call: Invocation, layout: Layout, steps: list[Step]) -> list[str]:
    """Make what is missing; returns the agents that are new. A room with tokens takes them in from a person alone."""
    room = call.make_room(layout.address.with_secrets())
    call.must_be_person("add agents to the room")
    new = layout.enter(room)
    for step in steps:
        step.make()
    place = layout.root / FOLDER
    if place.is_dir() and trust.judge_place(place).why:
        with suppress(OSError):
            trust.allow_place(place, how="made")
    return new


def _address(folder: str | None) -> str:
    """Where a room is made: in the folder that was named, else where commands look first. Raises RoomNotAllowed."""
    named = os.environ.get(URL_VARIABLE)
    return named if named and folder is None else _own_address(Path(folder or ".").absolute() / FOLDER)


def _keep_out_of_git(place: Path | None) -> None:
    """A folder that was there before, for a room alone, gets the `.gitignore` that a new one has."""
    if place is not None and place.name == FOLDER and not os.path.lexists(place / ".gitignore"):
        with suppress(OSError):
            (place / ".gitignore").write_text("*\n", encoding="ascii")


def _own_address(place: Path) -> str:
    """The address of the room to be made in a folder, or that is there already and may be opened.

    A room that came with a clone is not taken over by `init`: a folder that holds a room must be in the list.
    """
    check_untracked(place)
    new = is_new(
        RoomUrl("sqlite", str(place), {})
    )  # asked first: a room that is made meanwhile is trusted before it is one
    verdict = trust.judge_place(place)
    if not verdict.why:
        return verdict.address
    if os.path.islink(place) or not new:
        raise RoomNotAllowed(trust.not_allowed(place, verdict.why))
    return address_of(place)


def requeue_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("id", metavar="ID", nargs="*", help=ID_HELP)
    options.flag(parser, "--all", "every dead message in the room")


def requeue(call: Invocation) -> int:
    args, room = call.args, call.room
    if bool(args.id) == args.all:
        raise UsageError("name the messages to put back, or use --all")
    call.must_be_person("put messages back")
    ids = (
        [letter.id for letter in room.peek(state="dead", limit=options.NO_LIMIT, order="oldest")]
        if args.all
        else args.id
    )
    done, unknown = [], 0
    for given in ids:
        id = given
        try:
            id = call.message_id(given)
            if room.requeue(id):
                done.append(id)
                if call.maybe_name is not None:
                    room.store.note(id, "by_hand", call.maybe_name, "put back")
                continue
            problem = f"{id} is {room.receipt(id).state}, so it cannot be put back"
        except UnknownMessage as error:
            if len(ids) == 1:
                raise
            problem, unknown = str(error), unknown + 1
        output.note(problem)
    call.tell({"ids": done}, *(f"{id} is back, with its delivery count reset" for id in done))
    if args.all and not ids:
        output.note("there are no dead letters")
        return exit_codes.NOTHING
    if args.all:
        output.note(f"{len(done)} of {len(ids)} put back")
    failed = len(ids) - len(done)
    return exit_codes.DONE if not failed else exit_codes.NOTHING if failed == unknown else exit_codes.FAILED


def replay_options(parser: argparse.ArgumentParser) -> None:
    since = "a time (2026-11-15T06:00:00Z), a span (2h) or a position in the feed"
    parser.add_argument("--since", required=True, metavar="WHEN", help=since)
    parser.add_argument("--channel", metavar="C", help="only messages that were in this channel")
    parser.add_argument("--to", metavar="NAME", help="only messages that were sent to this agent")
    many = parser.add_mutually_exclusive_group()
    many.add_argument("--limit", type=options.count, metavar="N", help="only the oldest N")
    options.flag(many, "--all", f"allow more than {MANY}; without it, none is sent when there are more")
    options.flag(parser, "--dry-run", "send nothing; print the ids of the messages that would be sent again")


def replay(call: Invocation) -> int:
    """The ids are those of the copies; of a dry run, those of the kept messages."""
    args, room = call.args, call.room
    since = _since(args.since, room.clock.wall_ms())
    call.must_be_person("replay messages")
    with _Progress(call) as progress:
        told = progress.told
        wanted = {"since": since, "channel": args.channel, "to": args.to, "limit": args.limit}
        ids = room.replay(**wanted, by=call.maybe_name, dry_run=args.dry_run, told=told, _lane=call.lane)
        if args.dry_run:
            progress.ids = ids
    ids, found = progress.ids, progress.found
    sent = 0 if args.dry_run else len(ids)
    if args.dry_run and not call.json and sys.stdout.isatty():
        _show_kept(call, ids)
    else:
        call.tell({"ids": ids, "found": found, "sent": sent, "dry_run": args.dry_run}, *ids)
    if not found:
        output.note("no messages kept since then match")
    elif progress.interrupted:
        output.note(f"interrupted: {sent} of {found} sent again")
    else:
        output.note(f"{len(ids)} of {found} {'would be ' * args.dry_run}sent again")
    return exit_codes.INTERRUPTED if progress.interrupted else exit_codes.DONE if found else exit_codes.NOTHING


def _show_kept(call: Invocation, ids: list[str]) -> None:
    """What a replay would send, for a person: the first of them."""
    kept = [call.room.get(id) for id in ids[:SHOWN]]
    rows = ((m.id, m.from_agent, m.to_agent or "(anybody)", m.channel, m.timestamp, m.type) for m in kept)
    output.table(("id", "from", "to", "channel", "sent", "type"), rows, empty="nothing")
    if len(ids) > SHOWN:
        output.write(f"and {len(ids) - SHOWN} more")


class _Progress:
    """How far a replay is, which a person at a terminal gets to see. Ctrl-C ends it after the page under way."""

    def __init__(self, call: Invocation) -> None:
        self._args = call.args
        self._shown = False
        self.ids: list[str] = []
        self.found = 0
        self.interrupted = False

    def told(self, ids: list[str], found: int) -> None:
        """See `Room.replay`."""
        args = self._args
        if found > MANY and not (args.limit or args.all or args.dry_run):
            raise UsageError(
                f"{found} messages match; to send so many again, add --all, or --limit N for the oldest; "
                "nothing was sent (--dry-run shows which they are)"
            )
        self.found = found
        self.ids += ids
        if ids and sys.stderr.isatty() and not args.dry_run:
            self._shown = True
            sys.stderr.write(f"\r{len(self.ids)} of {min(found, args.limit or found)} sent again")
            sys.stderr.flush()
        if self.interrupted:
            raise _Interrupted

    def _interrupt(self, *_: object) -> None:
        if self.interrupted:  # a second Ctrl-C does not wait for the page
            raise KeyboardInterrupt
        self.interrupted = True

    def __enter__(self) -> Self:
        self._before = signal.signal(signal.SIGINT, self._interrupt)
        return self

    def __exit__(self, kind: object, *_: object) -> bool:
        signal.signal(signal.SIGINT, self._before)
        if self._shown:
            sys.stderr.write("\r\x1b[K")
        return kind is _Interrupted


class _Interrupted(Exception):
    """Ends a replay between two pages."""


def _since(text: str, now_ms: int) -> int | str:
    """A number of the feed, or a time as text."""
    if text.isdecimal():
        if len(text) > options.MAX_DIGITS:
            most = options.MAX_DIGITS
            raise UsageError(f"--since {text!r} is not a position in the feed: those have at most {most} digits")
        return int(text)
    with suppress(ValueError):
        return iso(from_iso(text))
    try:
        return iso(now_ms - round(options.seconds(text) * 1000))
    except argparse.ArgumentTypeError:
        raise UsageError(
            f"--since {text!r} is neither a time (2026-11-15T06:00:00Z), a span (10s, 5m, 2h, 1d) nor a number"
        ) from None
    except (ValueError, OverflowError):
        raise UsageError(f"--since {text!r} is too long ago") from None
