"""What is done to a room as a whole: making one, putting dead messages back, sending kept ones again."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from postroom.clock import from_iso, iso
from postroom.config import FOLDER, URL_VARIABLE

from . import exits, options, show

if TYPE_CHECKING:
    from .call import Call


def init_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "folder", metavar="FOLDER", nargs="?", help="where to make .postroom (default: $POSTROOM_URL, or here)"
    )


def init(call: Call) -> int:
    room = call.make_room(call.args.room or _address(call.args.folder))
    if call.json:
        show.document({"room": str(room.url)})
    else:
        show.write(f"the room is ready: {show.visible(str(room.url))}")
    return exits.DONE


def _address(folder: str | None) -> str:
    """Where a room is made: in the folder that was named, else where commands look first."""
    named = os.environ.get(URL_VARIABLE)
    return named if named and folder is None else f"sqlite:{Path(folder or '.').absolute() / FOLDER}"


def requeue_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("id", metavar="ID", nargs="*")
    parser.add_argument("--all", action="store_true", help="every dead message of the room")


def requeue(call: Call) -> int:
    args, room = call.args, call.room
    if bool(args.id) == args.all:
        raise exits.UsageError("name the messages to put back, or say --all")
    ids = [letter.id for letter in room.dead_letters(limit=1_000_000)] if args.all else args.id
    done = []
    for id in ids:
        if room.requeue(id):
            done.append(id)
        else:
            state = room.receipt(id).state  # UnknownMessage when there is no such one
            print(f"postroom: {id} is {state}, so it cannot be put back", file=sys.stderr)
    if call.json:
        show.document({"ids": done})
    else:
        for id in done:
            show.write(f"{id} is back, with all its deliveries anew")
    if args.all and not ids:
        print("postroom: there are no dead letters", file=sys.stderr)
        return exits.NOTHING
    return exits.DONE if len(done) == len(ids) else exits.FAILED


def replay_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--since",
        required=True,
        metavar="WHEN",
        help="a time (2026-11-15T06:00:00Z), a span (2h) or a number of the feed",
    )
    parser.add_argument("--channel", metavar="C", help="only what lay there")
    parser.add_argument("--to", metavar="NAME", help="only what was addressed to this agent")


def replay(call: Call) -> int:
    args, room = call.args, call.room
    ids = room.replay(since=_since(args.since, room.clock.wall_ms()), channel=args.channel, to=args.to)
    if call.json:
        show.document({"ids": ids})
    else:
        for id in ids:
            show.write(id)
    if not ids:
        print("postroom: nothing was kept since then that fits", file=sys.stderr)
    return exits.DONE if ids else exits.NOTHING


def _since(text: str, now_ms: int) -> int | str:
    """A number of the feed, or a time as text."""
    if text.isdecimal():
        return int(text)
    try:
        return iso(from_iso(text))
    except ValueError:
        pass
    try:
        return iso(now_ms - round(options.seconds(text) * 1000))
    except argparse.ArgumentTypeError:
        raise exits.UsageError(
            f"--since {text!r} is neither a time (2026-11-15T06:00:00Z), a span (10s, 5m, 2h, 1d) nor a number"
        ) from None
