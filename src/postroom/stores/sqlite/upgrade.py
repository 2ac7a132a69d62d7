"""Schema migration: a room of an older layout becomes one of today's in one transaction, after a copy of it was kept.

Programs that run meanwhile have statements of the older layout, and those must not touch messages and cells of the
newer one. So an upgrade gives the tables `mail` and `cells` other names (`mail2`, `cells2`): SQLite then refuses those
statements, and today's cost nothing more. Programs from layout 2 on see why a table is missing
(`connection.in_our_words`). For those of layout 1 the old name belongs to a virtual table of a module that no program
has; the module's name is the sentence that SQLite, and so those programs, say.

The other tables keep their names: programs of layout 1 still subscribe and unsubscribe, with effect, and still note
their processes. `channel_subscriptions` is public, and all of these are the same in both layouts; a step that changes
one of them has to rename it, too.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any, Final

import apsw

from postroom.core import crashpoints
from postroom.core.system.files import sync_folder
from postroom.errors import RoomUnreachable
from postroom.stores.layouts import check_layout, free_copy, not_upgraded

from .connection import LAYOUT, NOT_SYNCED, in_our_words

#: The SQL that leads from each layout to the next, with {mail} and {cells} for those tables. The views, which only
#: people read, are made anew after it.
STEPS: Final[dict[int, str]] = {
    1: "",  # the tables are the same; from layout 2 on, programs know what it means when they are not there
    2: """ALTER TABLE {mail} ADD COLUMN order_key TEXT;
        ALTER TABLE {mail} ADD COLUMN replaces INTEGER;
        CREATE INDEX ordered ON {mail} (order_key, channel, to_agent)
            WHERE order_key IS NOT NULL AND state IN (0, 1, 7, 9);
        CREATE INDEX chains ON {mail} (chain_id) WHERE chain_id IS NOT NULL AND answer_to IS NULL;
        ALTER TABLE {mail} ADD COLUMN own_id TEXT;
        ALTER TABLE {mail} ADD COLUMN expires_at_ms INTEGER;
        CREATE UNIQUE INDEX own_ids ON {mail} (own_id) WHERE own_id IS NOT NULL;""",
}
REFUSAL: Final = "this room was upgraded by a newer Postroom; restart this program with it"
_MOVED: Final = ("mail", "cells")
_VIEWS: Final = ("dead_letter_queue", "agent_status", "messages")


def upgrade(
    path: Path,
    layout: int,
    connect: Callable[[], apsw.Connection],
    connection: apsw.Connection,
    statements: Callable[[], dict[str, str]],
) -> None:
    """Bring a file to today's layout. `statements` reads those that suit the file at that moment (`layout.py`).

    One process at a time: the caller is inside `layout.opening`.

    After: the file has today's layout, and a copy of it as it was lies beside it. If it raised: the file is as it was,
    and no copy was left but by a process that was killed; or an interrupt came out of the commit, and the file was
    upgraded and its copy is kept. Programs that write meanwhile wait for their turn.
    """
    check_layout(path, layout, min(STEPS), LAYOUT)
    handled = sys.exception()  # which the caller handles: no fault of the upgrade
    copy = free_copy(path, layout)
    try:
        with connection:  # nothing is written between the copy and the first step
            _keep_copy(path, copy, connect)
            crashpoints.reached("upgrade.copied")
            _take_steps(connection, layout, statements)
            crashpoints.reached("upgrade.changed")
    except BaseException as error:
        layout_now = _read_layout(connect)
        if layout_now == layout and getattr(error, "extendedresult", 0) not in NOT_SYNCED:
            copy.unlink(missing_ok=True)
        raised = _raised_in_callback(error, handled)
        if raised is not None and (layout_now == LAYOUT or not isinstance(raised, Exception)):
            raise raised  # noqa: B904  (the error around it is apsw's)
        if layout_now == LAYOUT:  # the commit was done, and SQLite failed after it
            return
        if isinstance(error, apsw.Error):
            raise not_upgraded(path, layout, LAYOUT, _broken_view(error) or in_our_words(error, path)) from error
        if isinstance(error, OSError):
            why = RoomUnreachable(f"no copy of it can be kept ({error.strerror}); nothing was changed")
            raise not_upgraded(path, layout, LAYOUT, why) from error
        raise


def _read_layout(connect: Callable[[], apsw.Connection]) -> int | None:
    """The layout that the file has now for all its readers; None where nobody can tell."""
    try:
        with closing(connect()) as connection:
            return int(connection.pragma("user_version"))
    except apsw.Error:
        return None


def _broken_view(error: apsw.Error) -> RoomUnreachable | None:
    """The error for a view that a person made and that does not work: SQLite renames no table beside it."""
    told = re.match(r"error in view (.+?)(?: after rename)?: (.+)", str(error), re.DOTALL)
    return told and RoomUnreachable(
        f"its view {told[1]!r}, which Postroom did not make, does not work ({told[2]}): drop it; nothing was changed"
    )


def _raised_in_callback(error: BaseException, handled: BaseException | None) -> BaseException | None:
    """The exception that an error comes from: apsw puts errors of its own around those of callbacks."""
    found: BaseException | None = error
    while isinstance(found, apsw.Error):
        found = found.__cause__ or found.__context__
    return None if found is handled else found


def _keep_copy(path: Path, copy: Path, connect: Callable[[], apsw.Connection]) -> None:
    """Copy the file as it is now, log and all, under a name of its own. On the disk when this returns."""
    draft = path.resolve().with_name(f"{path.name}.bak.new")  # SQLite follows no link at all: it gets the real folder
    _remove(draft)  # of a process that was killed
    try:
        # made here, not by SQLite: no link is followed, and only those may read it who may read the room
        new = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        os.close(os.open(draft, new, path.stat().st_mode & 0o777))
        flags = apsw.SQLITE_OPEN_READWRITE | apsw.SQLITE_OPEN_NOFOLLOW  # another user of a shared room may be quick
        with closing(connect()) as source, closing(apsw.Connection(str(draft), flags, source.open_vfs)) as target:
            crashpoints.reached("upgrade.copying")
            with target.backup("main", source, "main") as backup:
                backup.step()
        draft.rename(copy)
        sync_folder(path.parent)
    except BaseException:
        _remove(draft)
        raise


def _remove(draft: Path) -> None:
    for name in (draft, Path(f"{draft}-journal")):
        name.unlink(missing_ok=True)


class _NoModule:
    """What makes a virtual table. No program has it afterwards."""

    def Create(self, *_: object) -> tuple[str, Any]:  # noqa: N802  (the names of apsw)
        return "CREATE TABLE refused (x)", self

    def Disconnect(self) -> None:  # noqa: N802
        pass


def _take_steps(connection: apsw.Connection, layout: int, statements: Callable[[], dict[str, str]]) -> None:
    def run(sql: str) -> list[Any]:
        return connection.execute(sql).fetchall()

    names = {table: statements()[table] for table in _MOVED}
    for number in range(layout, LAYOUT):
        run(STEPS[number].format(**names))
    module: Any = _NoModule()
    connection.create_module(REFUSAL, module)
    has_figures = run("SELECT 1 FROM sqlite_schema WHERE name = 'sqlite_stat1'")
    for table, was in names.items():
        run(f"ALTER TABLE {was} RENAME TO {table}{LAYOUT}")
        run(f'CREATE VIRTUAL TABLE {was} USING "{REFUSAL}"')
        if has_figures:
            run(f"UPDATE sqlite_stat1 SET tbl = '{table}{LAYOUT}' WHERE tbl = '{was}'")
    run(f"INSERT INTO meta VALUES ('tables', {LAYOUT}) ON CONFLICT (name) DO UPDATE SET value = excluded.value")
    for view in _VIEWS:  # not sooner: SQLite renames no table while a person's own view of these is without them
        run(f"DROP VIEW IF EXISTS {view}")
    run(statements()["views"])
    run(f"PRAGMA user_version = {LAYOUT}")
