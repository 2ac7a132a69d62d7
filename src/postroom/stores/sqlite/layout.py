"""Opening a room's database: which SQLite and which disks are safe, the schema, its version, the start of room time."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, Final, NamedTuple

import apsw

from postroom.core.clock import Clock
from postroom.core.message import FRACTION_BITS, new_salt, room_start_ms
from postroom.core.system.files import (
    NETWORK_FILE_SYSTEMS,
    file_system_type,
    locked,
    make_private_folder,
    sync_path_to,
    why_unwritable,
)
from postroom.errors import RoomDamaged, RoomUnreachable, RoomUnsafe
from postroom.stores.liveness import Attendance

from . import adoption, upgrade
from .connection import LAYOUT, in_our_words
from .rows import COLUMNS, Row

DATABASE: Final = "messages.db"
#: The file that is locked while the database is opened; the table of busy writers lies in it, too (`contention.py`).
LOCK: Final = "lock"
#: "POST" in the file's header, so that `file` and others can tell what it is.
APPLICATION_ID: Final = 0x504F5354
#: A claim or an ack changes a few rows here and there: small pages are less to write (bench/README.md).
PAGE_BYTES: Final = 2048
#: Messages of a batch are stored so many in one statement: more hardly gain anything.
ROWS_AT_ONCE: Final = 20
_FOREIGN: Final = f"""SELECT type, name FROM sqlite_schema WHERE type = 'trigger' OR (type = 'view' AND name COLLATE NOCASE IN
    ('meta', 'mail', 'mail{LAYOUT}', 'processes', 'cells', 'cells{LAYOUT}', 'tally', 'channel_subscriptions', 'mail_words',
    'mail_hours', 'counted'))"""
_TOLD: Final = "SELECT name, value FROM meta WHERE name IN ('salt', 'tables')"


class DatabaseLayout(NamedTuple):
    """What a database file says of itself when it is opened."""

    salt: int
    statements: dict[str, str]
    offset_ns: int  # room time is the steady clock and this
    last_number: int


def sqlite_is_safe(version: str) -> bool:
    """Whether that SQLite keeps a write-ahead log with many writers whole.

    3.7.0 to 3.51.2 can lose a commit when two checkpoints race it; 3.44.6 and 3.50.7 have the repair, 3.52.0 was
    withdrawn.
    """
    parts = tuple(int(part) for part in version.split("."))
    if parts[:2] in ((3, 44), (3, 50)):
        return parts >= ((3, 44, 6) if parts[1] == 44 else (3, 50, 7))
    return parts >= (3, 51, 3) and parts[:2] != (3, 52)


def sqlite_version() -> str:
    """The version of the SQLite that rooms are kept with."""
    return apsw.sqlite_lib_version()


def refuse_unsafe(folder: Path) -> str:
    """Refuse a SQLite or a file system that could lose messages. Returns the kind of file system."""
    if not sqlite_is_safe(sqlite_version()):
        raise RoomUnsafe(
            f"SQLite {sqlite_version()} can lose commits from its write-ahead log; install apsw with SQLite 3.51.3 or newer"
        )
    kind = file_system_type(next(place for place in (folder, *folder.parents) if place.exists()))
    if kind in NETWORK_FILE_SYSTEMS:
        raise RoomUnsafe(
            f"{folder} is on a network file system ({kind}), where the locks and the shared memory of SQLite's "
            "write-ahead log do not hold; put the room on a local disk, or use nats:// for several machines"
        )
    return kind


@contextmanager
def opening(folder: Path) -> Iterator[None]:
    """One process at a time makes or migrates the file: two that switch a new file to WAL at once get "locked"."""
    try:
        make_private_folder(folder, sync=False)  # that is done with the schema
    except OSError as error:
        raise RoomUnreachable(f"the room's folder {folder} cannot be made: {error}") from error
    if not os.access(folder, os.W_OK | os.X_OK):
        why = why_unwritable(folder) or "choose another folder, or run as its owner"
        raise RoomUnreachable(f"the room's folder {folder} cannot be written: {why}")
    try:
        with locked(folder / LOCK, os.O_RDWR | os.O_CREAT):
            yield
    except OSError as error:
        raise RoomUnreachable(f"the room's folder {folder} cannot be used: {error}") from error


def prepare(path: Path, connect: Callable[[], apsw.Connection], clock: Clock, attendance: Attendance) -> DatabaseLayout:
    """Make the file, or check it. For processes that are inside `opening`."""
    with suppress(FileExistsError):  # only where it is not there: closing a descriptor of it drops locks
        # made here, not by SQLite, so that no other user may read it
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
    try:
        with closing(connect()) as connection:
            version = connection.pragma("user_version")
            refuse_foreign(connection, path)
            if version == 0:
                sync_path_to(path.parent)
                _make_schema(connection, clock)
            elif version != LAYOUT:
                upgrade.upgrade(path, version, connect, connection, partial(read_statements, connection, path))
            return layout_of(connection, path, clock, attendance)
    except apsw.Error as error:
        raise in_our_words(error, path) from error


def layout_of(
    connection: apsw.Connection, path: Path, clock: Clock, attendance: Attendance, *, keep: bool = True
) -> DatabaseLayout:
    """What a file of today's layout says of itself. `keep` False: nothing is written for it."""
    statements = read_statements(connection, path)
    last: Any = connection.execute(statements["last_number"]).get
    offset_ns = _room_time_offset(connection, int(last), clock, attendance, path, keep=keep)
    return DatabaseLayout(int(statements["salt"]), statements, offset_ns, int(last))


@lru_cache(maxsize=8)  # a new room is asked for them twice, and programs open rooms again; nobody changes them
def load_statements(salt: int, upgraded_to: str = "") -> dict[str, str]:
    """The statements of schema.sql by name, with their placeholders filled in; and what stands for those.

    `upgraded_to` is the layout of the last upgrade, which stands behind the names of some tables; "" without one.
    """
    text = Path(__file__).with_name("schema.sql").read_text(encoding="utf-8")
    given = {
        "salt": str(salt), "columns": COLUMNS, "mail": f"mail{upgraded_to}", "cells": f"cells{upgraded_to}",
    }  # fmt: skip
    for name, part in given.items():
        text = text.replace(f"{{{name}}}", part)
    found: dict[str, str] = {}
    for part in text.split("\n-- name: ")[1:]:
        name, _, body = part.partition("\n")
        # SQLite's driver reads a statement's text anew at each call: comments, too
        found[name.strip()] = "\n".join(line for line in body.strip().split("\n") if not line.startswith("--"))
    return given | {name: _fill_in(body, found) for name, body in found.items()}


@lru_cache(maxsize=8)
def at_once(insert: str) -> str:
    """An `INSERT` of one row as one of ROWS_AT_ONCE rows, whose bindings follow each other.

    SQLite opens the table and its indexes once for all of them: 1.7 µs for a row, instead of 2.4.
    """
    values = "".join(letter for letter in insert.rpartition("VALUES ")[2] if not letter.isdigit())  # ? is the next one
    return insert + f", {values}" * (ROWS_AT_ONCE - 1)


def read_statements(connection: apsw.Connection, path: Path) -> dict[str, str]:
    """The statements for the room in a file, as it is now."""
    rows: list[Any] = connection.execute(_TOLD).fetchall()
    told = dict(rows)
    upgraded_to = str(_number(told["tables"], path)) if "tables" in told else ""
    return load_statements(_number(told.get("salt"), path), upgraded_to)


def _fill_in(text: str, parts: dict[str, str]) -> str:
    """Put the statements that one names in braces into it, and theirs into those."""
    if "{" not in text:
        return text
    before, *marked = text.split("{")
    return before + "".join(
        _fill_in(parts[name], parts) + rest for name, _, rest in (each.partition("}") for each in marked)
    )


def read_salt(connection: apsw.Connection) -> Any:
    """The number by which a room's file is told from every other one's."""
    return connection.execute("SELECT value FROM meta WHERE name = 'salt'").get


def _number(value: Any, path: Path) -> int:
    """A number that the file keeps about itself. Raises RoomDamaged when it is none."""
    if isinstance(value, int) and abs(value) < 1 << 62:
        return value
    raise RoomDamaged(f"{path} lacks a number that every room has; it is damaged, or another program made it")


def refuse_foreign(connection: apsw.Connection, path: Path) -> None:
    """Refuse triggers, and views in a table's place, which may count for ever (tests/stores/test_sqlite_hostile.py)."""
    foreign: list[Any] = connection.execute(_FOREIGN).fetchall()
    if foreign:
        raise RoomDamaged(f"{path} has the {foreign[0][0]} {foreign[0][1]!r}, which Postroom did not make; remove it")


def _make_schema(connection: apsw.Connection, clock: Clock) -> None:
    """Lay the tables out, in a new file or in one that the source document's broker made."""
    salt = new_salt()
    connection.execute(f"PRAGMA page_size = {PAGE_BYTES}").fetchall()
    connection.execute("PRAGMA journal_mode = WAL").fetchall()

    def execute(sql: str, bindings: Sequence[Any]) -> list[Row]:
        return connection.execute(sql, bindings).fetchall()

    with connection:
        there = adoption.set_aside(execute)
        statements = load_statements(salt)
        execute(statements["schema"] + statements["views"], ())
        execute("INSERT INTO meta VALUES ('salt', ?)", (salt,))
        if there:
            adoption.take_over(execute, there, clock.wall_ms())
        execute(f"PRAGMA application_id = {APPLICATION_ID}", ())
        execute(f"PRAGMA user_version = {LAYOUT}", ())


def _room_time_offset(
    connection: apsw.Connection, last: int, clock: Clock, attendance: Attendance, path: Path, *, keep: bool
) -> int:
    """What to add to the steady clock to get room time: fixed by the first opener after each boot, for all.

    Containers on one kernel may show different boot ids, and have one steady clock. So an offset that other processes
    use now is kept, whatever boot it is named after; only one that lies behind the room's messages is of another clock.
    """
    name = f"epoch:{clock.boot_id()}"
    known: list[Any] = connection.execute("SELECT name, value FROM meta WHERE name GLOB 'epoch:*'").fetchall()
    for boot, value in known:
        offset = _number(value, path)
        in_time = (clock.steady_ns() + offset) // 1_000_000 >= last >> FRACTION_BITS
        if boot == name or (in_time and attendance.open_twice()):
            return offset
    offset = room_start_ms(clock, (last >> FRACTION_BITS) + 1) * 1_000_000 - clock.steady_ns()
    if not keep:
        return offset
    with connection:
        connection.execute("DELETE FROM meta WHERE name GLOB 'epoch:*'")
        connection.execute("INSERT INTO meta VALUES (?, ?)", (name, offset))
    return offset
