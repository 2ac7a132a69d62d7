"""Exports, backups, restores and moves of open rooms."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from postroom.core.config import RoomUrl
from postroom.errors import RoomError, RoomUnreachable
from postroom.room import Room
from postroom.stores import open_store

from . import move as moves
from .dump import Dump, Part, Told, parts_of, write_backup, write_parts
from .filling import Filling, check_fillable
from .rest import RESTORED

OTHER_WAYS = "choose another room, or use --merge to add what it lacks"


def nobody(kind: str, count: int) -> None:
    """Progress that nobody wants to see."""


def export(room: Room, file: IO[bytes], told: Told = nobody) -> dict[str, int]:
    """Write everything in a room as JSON lines. Returns how many of each kind there were.

    Each message is whole; a room that is in use may change between two of them. Nothing of it is changed.
    """
    return write_parts(file, str(room.url), room.clock.wall_ms(), parts_of(room.store, room.folder), told)


def backup(room: Room, path: Path, told: Told = nobody) -> dict[str, int]:
    """Write a room to one file, while it is used. Returns how many of each kind there are.

    After: the file is whole and on the disk. If it raised: a file of that name is as it was. A SQLite room is written as
    it was at one moment; of others each message is whole, and nothing that was there when the backup began is missed.
    """
    with _still(room, path.parent) as parts:
        return write_backup(path, str(room.url), room.clock.wall_ms(), parts, told)


@contextmanager
def _still(room: Room, place: Path) -> Iterator[Iterator[Part]]:
    """The parts of a room as they are at one moment, where its store can copy itself."""
    copy_to = getattr(room.store, "copy_to", None)
    if copy_to is None:
        yield parts_of(room.store, room.folder)
        return
    try:
        scratch = tempfile.TemporaryDirectory(dir=place, prefix=".backup-")
    except OSError as error:
        raise RoomUnreachable(f"{place} cannot be written: {error.strerror}") from error
    with scratch as folder:
        copy_to(Path(folder))
        store = open_store(RoomUrl("sqlite", folder, {}), room.config, room.clock)
        try:
            yield parts_of(store, room.folder)
        finally:
            store.close()


def restore(room: Room, dump: Dump, told: Told = nobody, *, merge: bool = False) -> Filling:
    """Fill a room from an export or a backup that is whole. Returns what was put in.

    Raises RoomError, and changes nothing, when the room has messages and this is no `merge`. What a room has already stays as it
    is, so that a restore that was interrupted can be done again with `merge`. Tokens are larger than any that the room
    of the backup can have given since.
    """
    check_fillable(room.store, str(room.url), used=merge, needs_ways=OTHER_WAYS)
    filling = Filling(room.store, room.folder, RESTORED, told, least_token=room.clock.wall_ms())
    filling.add_all(dump.parts())
    return filling


def move(old: Room, new: Room, told: Told = nobody, **settle: Any) -> moves.Moved:
    """Move a room to another store; see `move.move`. Both were opened by `open_even_if_moved`."""
    if str(old.url) == str(new.url):
        raise RoomError(f"{old.url} is the room itself; name another address to move it to")
    return moves.move(
        moves.End(old.store, old.folder, str(old.url)), moves.End(new.store, new.folder, str(new.url)), told, **settle
    )
