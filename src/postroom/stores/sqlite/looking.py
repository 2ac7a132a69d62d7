"""Looking at a room that cannot be written: on a read-only or full disk, or without the right to write there.

Such a room is opened without its lock, and without being made, upgraded or rung. SQLite itself writes for a reader: it
keeps the index of the log in the -shm file. Where others have the room open that file is there, and a reader shares it.
Where nobody has, and the log is empty, the file is all there is, and is read as it lies (`immutable`): without a lock, so
that somebody who can write it may do so meanwhile. What was read then is not told, nor is damage that was seen in it.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any, Final, NamedTuple

import apsw

from postroom.core.clock import Clock
from postroom.core.system.files import why_unwritable
from postroom.errors import RoomUnreachable
from postroom.stores.liveness import Attendance

from .connection import LAYOUT, ThreadConnection, in_our_words
from .layout import DatabaseLayout, layout_of, refuse_foreign
from .rows import Row

#: The smallest -shm file that can be used.
_INDEX_BYTES: Final = 32 * 1024


def why_only_looking(path: Path) -> str:
    """Why a room that could not be opened for writing can only be looked at; "" where it is not there, or not for that."""
    return why_unwritable(path.parent, path) if _size(path) else ""


class Way(NamedTuple):
    """How SQLite reads a room's file without writing anything."""

    uri: str
    written_at_ns: int | None  # of a file that is read as it lies: when it was last written


def way_to_look(path: Path) -> Way:
    """The way that fits the moment: others may have the room open, or not. RoomUnreachable: there is none."""
    text = str(path).replace("%", "%25").replace("?", "%3f").replace("#", "%23")
    written_at_ns = os.stat(path).st_mtime_ns  # before the look whether others are here
    if is_at_rest(path):
        return Way(f"file://{text}?mode=ro&immutable=1", written_at_ns)
    return Way(f"file://{text}?mode=ro", None)


class CheckedConnection(ThreadConnection):
    """One that believes nothing it read before `check` has passed."""

    __slots__ = ("_check",)

    def __init__(
        self,
        path: Path,
        open_raw: Callable[[], apsw.Connection],
        every: set[apsw.Connection],
        check: Callable[[], None],
    ) -> None:
        super().__init__(path, open_raw, every)
        self._check = check

    def rows(self, sql: str, bindings: Any = ()) -> list[Row]:
        try:
            return super().rows(sql, bindings)
        finally:
            self._check()


def is_at_rest(path: Path) -> bool:
    """Whether nobody has the room open and its log is empty, so that nothing but the file need be read.

    Raises RoomUnreachable where the log is not empty and its index is not there: that can only be made by writing.
    """
    log, index = _size(Path(f"{path}-wal")), _size(Path(f"{path}-shm"))
    if log and index < _INDEX_BYTES:
        raise RoomUnreachable(
            f"the log of {path} holds changes that are not in the file yet, and reading them requires writing beside it: "
            f"{why_unwritable(path.parent, path)}. Copy the folder to a writable disk, and read it there"
        )
    return index < _INDEX_BYTES or not os.path.exists(f"{path}-wal")


def look_at(path: Path, connect: Callable[[], apsw.Connection], clock: Clock, attendance: Attendance) -> DatabaseLayout:
    """Check the file, and change nothing."""
    try:
        with closing(connect()) as connection:
            version: Any = connection.pragma("user_version")
            refuse_foreign(connection, path)
            if version != LAYOUT:
                why = why_unwritable(path.parent, path)
                raise RoomUnreachable(
                    f"{path} has layout {version}, and reading it requires an upgrade to layout {LAYOUT}: {why}. Copy the "
                    "folder to a disk that can be written, and look there"
                )
            return layout_of(connection, path, clock, attendance, keep=False)
    except apsw.Error as error:
        raise in_our_words(error, path) from error


def _size(path: Path) -> int:
    try:
        return os.stat(path).st_size
    except OSError:
        return 0
