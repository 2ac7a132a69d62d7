"""`postroom export | import | backup | restore | move`: a room as a whole."""

from __future__ import annotations

import argparse
import os
import sys
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO, Final

from postroom.cli import options, output
from postroom.cli.call import Invocation
from postroom.cli.exit_codes import UsageError
from postroom.core import trust
from postroom.core.clock import SYSTEM
from postroom.core.config import room_folder
from postroom.mail.gateway import Gateway
from postroom.moving import rooms
from postroom.moving.dump import Dump
from postroom.room import Room, open_even_if_moved

#: Progress is written once for so many.
_EVERY: Final = 100
_MERGE: Final = "also into a room that has messages; what it has already stays as it is"


class _Counting:
    """Shows a person at a terminal how far it is."""

    def __init__(self, call: Invocation) -> None:
        self._shows = sys.stderr.isatty() and not call.json
        self._shown = False

    def told(self, kind: str, count: int) -> None:
        if self._shows and count % _EVERY == 0:
            self._shown = True
            sys.stderr.write(f"\r\x1b[K{count} {kind}")
            sys.stderr.flush()

    def over(self) -> None:
        if self._shown:
            sys.stderr.write("\r\x1b[K")


def export_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", metavar="FILE", help="a new file for the JSON lines; - for standard output")


def export(call: Invocation) -> None:
    room, progress = call.room, _Counting(call)
    call.must_be_person("export the room")
    if call.args.file == "-":
        rooms.export(room, sys.stdout.buffer)
        return
    path = options.path_of(call.args.file)
    with _new_file(path) as file:
        try:
            counts = rooms.export(room, file, progress.told)
        except BaseException:
            path.unlink(missing_ok=True)
            raise
    progress.over()
    call.tell({"file": str(path), **counts}, f"{_listed(counts)} exported to {path}")


def _new_file(path: Path) -> BinaryIO:
    try:
        return os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600), "wb")
    except FileExistsError:
        raise UsageError(f"{path} already exists; name a new file") from None
    except OSError as error:
        raise UsageError(f"{path} cannot be made: {error.strerror}") from None


def import_room_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", metavar="FILE", help="an export or a backup")
    options.flag(parser, "--merge", _MERGE)


def import_room(call: Invocation) -> None:
    dump = Dump(options.path_of(call.args.file))
    call.must_be_person("import into the room")
    _fill(call, call.room, dump)


def backup_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", metavar="FILE", help="where to write the backup; a backup of that name is replaced")


def backup(call: Invocation) -> None:
    room, progress, path = call.room, _Counting(call), options.path_of(call.args.file)
    call.must_be_person("back up the room")
    counts = rooms.backup(room, path, progress.told)
    progress.over()
    size = path.stat().st_size
    call.tell({"file": str(path), "bytes": size, **counts}, f"{_listed(counts)} in {path} ({size} bytes)")


def restore_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", metavar="FILE", help="a backup or an export")
    parser.add_argument("to", metavar="ROOM", help="the room to make: an address, or a folder")
    options.flag(parser, "--merge", _MERGE)


def restore(call: Invocation) -> None:
    dump = Dump(options.path_of(call.args.file))
    room = call.make_room(call.args.to)
    call.must_be_person("restore into the room")
    _allow_made(room)
    _fill(call, room, dump)


def _fill(call: Invocation, room: Room, dump: Dump) -> None:
    progress = _Counting(call)
    filling = rooms.restore(room, dump, progress.told, merge=call.args.merge)
    progress.over()
    told = {"room": str(room.url), **filling.counts, "files_left_out": filling.left_out}
    call.tell(told, f"{_listed(filling.counts)} are in {room.url}")
    _tell_left_out(filling.left_out)


def _allow_made(room: Room) -> None:
    """A room on servers that this user makes by name may be used by name, as after `postroom init`."""
    if room_folder(room.url) is None:
        with suppress(OSError):
            trust.allow_address(room.url, how="made")


def move_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("source", metavar="FROM", help="the room to move: an address, or a folder")
    parser.add_argument("to", metavar="TO", help="the new room, which has no messages yet")


def move(call: Invocation) -> None:
    source, to = call.args.source, call.args.to
    old = call.take_room(open_even_if_moved(Gateway, source, False, SYSTEM, {}))
    call.must_be_person("move the room")
    progress = _Counting(call)
    with open_even_if_moved(Gateway, to, True, SYSTEM, {}) as new:
        if not new.store.shared:
            raise UsageError(f"{new.url} exists only while this command runs; move to a lasting room")
        _allow_made(new)
        moved = rooms.move(old, new, progress.told)
        progress.over()
        told = {"from": str(old.url), "to": str(new.url), "resumed": moved.resumed, "files_left_out": moved.left_out}
        call.tell({**told, **moved.counts}, f"{old.url} was moved to {new.url}: {_listed(moved.counts)}")
    _tell_left_out(moved.left_out)
    if not call.json:
        output.note(
            "the old room is left as it is, and tells programs the new address; delete it when you no longer need it"
        )


def _tell_left_out(count: int) -> None:
    if count:
        output.note(
            f"{count} files were left out: this room has no folder for them, or they are not what their names say"
        )


def _listed(counts: dict[str, int]) -> str:
    return ", ".join(f"{count} {kind}" for kind, count in counts.items())
