"""Rooms of older layouts: they are upgraded once, a copy is kept first, and programs of the older layout are refused.

The fixture rooms were made by `fixtures/make.py`. What programs of layout 1 did is recorded: their statements in
`fixtures/layout-1.sql`, and for files the look at the log with which each of their steps begins.
"""

from __future__ import annotations

import fcntl
import importlib
import json
import os
import re
import subprocess
import sys
import tarfile
from collections.abc import Callable
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import apsw
import pytest
from tests.support import ROOT

import postroom
from postroom.cli.doctor import room as doctor_room
from postroom.core import crashpoints
from postroom.core.clock import SYSTEM
from postroom.core.config import Config
from postroom.core.message import Draft, check
from postroom.core.states import State
from postroom.errors import RoomDamaged, RoomError, RoomGone, RoomNotAllowed, RoomUnreachable
from postroom.stores.contract import Query, Store, Want
from postroom.stores.files import layout as files_layout
from postroom.stores.files.store import FilesStore
from postroom.stores.files.tree import NotAFile, Tree
from postroom.stores.layouts import check_layout
from postroom.stores.sqlite.connection import LAYOUT as SQLITE_LAYOUT
from postroom.stores.sqlite.layout import _fill_in, read_statements
from postroom.stores.sqlite.rows import COLUMNS
from postroom.stores.sqlite.store import SqliteStore
from postroom.stores.sqlite.wal import WriteAheadLog

# `from ... import upgrade` gives the proxies of deferred modules, which cannot be patched
files_upgrade = importlib.import_module("postroom.stores.files.upgrade")
sqlite_upgrade = importlib.import_module("postroom.stores.sqlite.upgrade")

FIXTURES = Path(__file__).with_name("fixtures")
KINDS = ("sqlite", "files")
POINTS = {
    "sqlite": ("upgrade.copying", "upgrade.copied", "upgrade.changed"),
    "files": ("upgrade.copying", "upgrade.copied", "upgrade.announced"),
}
#: The layout of a room that is made today.
NOW = SQLITE_LAYOUT
#: What `fixtures/make.py` leaves in a room: the payload's `n`, and the state. (3 was claimed by its process, which is gone.)
LEFT = {
    (0, State.ACKED), (1, State.DEAD), (2, State.REFUSED), (3, State.READY), (4, State.READY),
    ("later", State.DELAYED), ("for anyone", State.READY), ("with a file", State.READY), ("asked", State.READY),
    ("ask", State.ANSWERED), ("answer", State.AWAITED),
}  # fmt: skip


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def unpack(kind: str, layout: int, to: Path) -> Path:
    with tarfile.open(FIXTURES / f"layout-{layout}-{kind}.tar.gz") as archive:
        archive.extraction_filter = staticmethod(lambda member, _: member)  # Python 3.11.2 has no argument for it
        archive.extractall(to)
    if os.geteuid() == 0:  # whoever made the fixture: a room belongs to its user
        for path in (to, *to.rglob("*")):
            os.chown(path, 0, 0)
    return to


@pytest.fixture
def old(kind: str, tmp_path: Path) -> Path:
    """A room of layout 1."""
    return unpack(kind, 1, tmp_path / "old")


def open_store(kind: str, folder: Path) -> Any:
    return (SqliteStore if kind == "sqlite" else FilesStore)(folder, Config(), SYSTEM)


def seen(store: Store) -> set[tuple[Any, State]]:
    """What is in the room. Since another boot than that of layout 1's process nobody can see that it is gone: 3 counts as ready
    all the same.
    """
    found = {message.payload["n"]: message.exact_state for message in store.find(Query()).messages}
    if found.get(3) is State.CLAIMED:
        found[3] = State.READY
    return set(found.items())


def everything(store: Store) -> Any:
    """All that the room keeps, but for what opening it changes."""
    messages = [store.get(message.id) for message in store.find(Query()).messages]
    told = [(m.id, m.payload, m.token, m.delivery_count, m.claimed_by, m.ledger) for m in messages if m is not None]
    return told, store.cell_scan(""), store.subscriptions()


def copy_of(kind: str, folder: Path, number: str = "") -> Path:
    name = "messages.db.layout-1.bak" if kind == "sqlite" else ".postroom/room.layout-1.bak"
    return folder / f"{name}{number}"


def copies(kind: str, folder: Path) -> list[str]:
    place = folder if kind == "sqlite" else folder / ".postroom"
    return sorted(path.name for path in place.iterdir() if ".bak" in path.name)


def content(folder: Path) -> dict[str, bytes]:
    left_out = ("lock", "alive", "bells", "turn", "seal")
    paths = [path for path in folder.rglob("*") if path.is_file() and path.name not in left_out]
    return {str(path.relative_to(folder)): path.read_bytes() for path in paths if "/sockets/" not in str(path)}


def rows_in(path: Path) -> Any:
    """All tables of a file, as they are."""
    with closing(apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READONLY)) as db:
        tables = ("sqlite_schema", "meta", "mail", "cells", "processes", "tally", "channel_subscriptions")
        assert db.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        return [db.execute(f"SELECT * FROM {table} ORDER BY 1, 2").fetchall() for table in tables]


def layout_of(kind: str, folder: Path) -> int:
    if kind == "files":
        return int(json.loads((folder / ".postroom/room.json").read_text())["layout"])
    with closing(apsw.Connection(str(folder / "messages.db"))) as db:
        return int(db.pragma("user_version"))


def is_whole(kind: str, folder: Path) -> None:
    """The room opens, has today's layout and everything that the fixture had, and goes on."""
    with closing(open_store(kind, folder)) as store:
        assert seen(store) == LEFT
        (id,) = store.put([check(Draft(from_agent="ada", to_agent="eve", type="info", payload={"n": "new"}))])
        (delivery,) = store.claim(Want(agent="eve", lease_s=30)).deliveries
        assert delivery.message.id == id
        assert store.settle(delivery.ticket, "acked").held
    assert layout_of(kind, folder) == NOW
    if kind == "sqlite":
        with closing(apsw.Connection(str(folder / "messages.db"))) as db:
            assert db.execute("PRAGMA integrity_check").fetchall() == [("ok",)]


def run(code: str, *arguments: str, **settings: Any) -> subprocess.Popen[str]:
    head = "import sys; from tests.stores.test_upgrades import *; kind, folder = sys.argv[1], Path(sys.argv[2])\n"
    return subprocess.Popen(
        [sys.executable, "-c", head + code, *arguments],
        env={**os.environ, "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}", "PYTHONDONTWRITEBYTECODE": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        **settings,
    )


# A room of an older layout is upgraded


def test_a_room_of_layout_1_is_upgraded_when_it_is_opened_and_a_copy_is_kept(
    kind: str, old: Path, tmp_path: Path
) -> None:
    before = content(unpack(kind, 1, tmp_path / "again"))
    is_whole(kind, old)
    assert copies(kind, old) == [copy_of(kind, old).name]
    with postroom.open(f"{kind}:{old}") as room:
        told = doctor_room.layout(room.store)
    assert (told.verdict, told.says[:10]) == ("ok", f"version {NOW};") and copy_of(kind, old).name in told.says
    if kind == "sqlite":
        copy = copy_of(kind, old)
        assert copy.stat().st_mode & 0o777 == (old / "messages.db").stat().st_mode & 0o777
        assert rows_in(copy) == rows_in(tmp_path / "again/messages.db")
    else:
        kept = content(copy_of(kind, old))
        assert kept == {name: data for name, data in before.items() if name in kept}
        assert {".postroom/log", ".postroom/room.json", ".postroom/keys", "board/status.json"} <= kept.keys()
        assert {name for name in before if name.endswith(".json")} <= kept.keys()


def test_the_board_the_session_and_the_attached_file_are_there(kind: str, old: Path) -> None:
    with postroom.open(f"{kind}:{old}") as room:
        tasks = {task.id: (task.title, task.after) for task in room.board.tasks()}
        assert tasks == {"T1": ("first", ()), "T2": ("second", ("T1",))}
        assert any(cell.name.startswith("session:") for cell in room.store.cell_scan("session"))
        (message,) = [m for m in room.store.find(Query()).messages if m.payload["n"] == "with a file"]
        assert room.artifact(message.payload["file"]["artifact"]).read_text() == "a file that was attached\n"
        assert [(s.channel, s.agent) for s in room.store.subscriptions()] == [("news", "bob")]


def test_the_copy_is_a_room_that_can_be_put_back_and_no_copy_is_overwritten(
    kind: str, old: Path, tmp_path: Path
) -> None:
    open_store(kind, old).close()
    copy, back = copy_of(kind, old), tmp_path / "back"
    if kind == "sqlite":
        back.mkdir()
        copy.rename(back / "messages.db")
    else:
        copy.rename(back)
    place = back if kind == "sqlite" else back / ".postroom"
    (place / copy.name).write_text("an older copy")
    assert layout_of(kind, back) == 1
    is_whole(kind, back)
    assert copies(kind, back) == [copy.name, f"{copy.name}.2"]
    assert (place / copy.name).read_text() == "an older copy"


def test_a_room_of_todays_layout_is_left_as_it_is(kind: str, tmp_path: Path) -> None:
    today = unpack(kind, NOW, tmp_path / "today")
    is_whole(kind, today)
    assert copies(kind, today) == []


@pytest.mark.slow
def test_processes_that_open_a_room_at_once_upgrade_it_once(kind: str, old: Path) -> None:
    code = "sys.stdin.readline(); store = open_store(kind, folder); assert seen(store) == LEFT; store.close()"
    children = [run(code, kind, str(old), stdin=subprocess.PIPE) for _ in range(4)]
    for child in children:
        assert child.stdin is not None
        child.stdin.write("\n")
        child.stdin.flush()
    assert [(child.communicate()[1], child.returncode) for child in children] == [("", 0)] * 4
    assert copies(kind, old) == [copy_of(kind, old).name]
    is_whole(kind, old)


@pytest.mark.slow
@pytest.mark.parametrize("number", range(3))
def test_a_kill_at_a_step_of_the_upgrade_leaves_a_room_that_opens(kind: str, old: Path, number: int) -> None:
    point = POINTS[kind][number]
    child = run(f"crashpoints.die_at({point!r}); open_store(kind, folder)", kind, str(old))
    assert (child.communicate()[1], child.returncode) == ("", -9)
    is_whole(kind, old)
    kept = [copy_of(kind, old).name, f"{copy_of(kind, old).name}.2"]
    assert copies(kind, old) == (kept[:1] if point in ("upgrade.copying", "upgrade.announced") else kept)


# What people put into a room


def add_view(room: Path, sql: str) -> None:
    with closing(apsw.Connection(str(room / "messages.db"))) as db:
        db.execute(f"CREATE VIEW mine AS {sql}")


@pytest.mark.parametrize(
    "of", ["messages", "dead_letter_queue", "agent_status", "mail", "cells", "messages JOIN agent_status"]
)
def test_a_persons_own_view_goes_on_after_an_upgrade(of: str, tmp_path: Path) -> None:
    old = unpack("sqlite", 1, tmp_path / "old")
    add_view(old, f"SELECT count(*) FROM {of}")
    with closing(apsw.Connection(str(old / "messages.db"))) as db:
        before = db.execute("SELECT * FROM mine").fetchall()
    open_store("sqlite", old).close()
    with closing(apsw.Connection(str(old / "messages.db"))) as db:
        assert db.execute("SELECT * FROM mine").fetchall() == before
    is_whole("sqlite", old)


@pytest.mark.parametrize(("sql", "why"), [
    ("SELECT * FROM nowhere", "no such table: main.nowhere"), ("SELECT colour FROM mail", "no such column: colour"),
])  # fmt: skip
def test_a_persons_own_view_that_does_not_work_is_named(sql: str, why: str, tmp_path: Path) -> None:
    old = unpack("sqlite", 1, tmp_path / "old")
    add_view(old, sql)
    with pytest.raises(RoomUnreachable, match=rf"layout {NOW} to be used: its view 'mine', .*\({why}\): drop it"):
        open_store("sqlite", old)
    assert copies("sqlite", old) == []
    with closing(apsw.Connection(str(old / "messages.db"))) as db:
        db.execute("DROP VIEW mine")
    is_whole("sqlite", old)


def nest(folder: Path) -> None:
    here = os.open(folder, os.O_RDONLY)
    for _ in range(sys.getrecursionlimit() + 100):
        os.mkdir("deep", dir_fd=here)
        inner = os.open("deep", os.O_RDONLY, dir_fd=here)
        os.close(here)
        here = inner
    os.close(here)


@pytest.mark.parametrize("put", [
    lambda room: (room / "board/notes").mkdir(),
    lambda room: (room / "board/link.md").symlink_to("/etc/hostname"),
    lambda room: os.mkfifo(room / "board/pipe"),
    lambda room: os.mkfifo(room / "inbox/bob/pipe"),
    lambda room: (room / "inbox/link").symlink_to("/etc"),
    lambda room: nest(room / "inbox/bob"),
], ids=["folder on the board", "link on the board", "pipe on the board", "pipe", "link", "deep folders"])  # fmt: skip
def test_what_people_put_into_a_files_room_does_not_keep_it_from_its_upgrade(
    put: Callable[[Path], None], tmp_path: Path
) -> None:
    old = unpack("files", 1, tmp_path / "old")
    try:
        put(old)
        is_whole("files", old)
        assert copies("files", old) == [copy_of("files", old).name]
    finally:
        subprocess.run(["rm", "-rf", str(old)], check=True)  # too deep for pytest


def test_a_file_in_an_inbox_that_only_others_may_read_is_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = unpack("files", 1, tmp_path / "old")
    (old / "inbox/bob/theirs.txt").write_text("x")
    link, read = Tree.link, Tree.read

    def refused(act: Any, error: OSError) -> Any:
        def tried(tree: Tree, path: str, *more: Any) -> Any:
            if path.endswith("theirs.txt"):
                raise error
            return act(tree, path, *more)

        return tried

    monkeypatch.setattr(Tree, "link", refused(link, PermissionError(1, "Operation not permitted")))
    monkeypatch.setattr(Tree, "read", refused(read, NotAFile(13, "Permission denied")))
    is_whole("files", old)
    assert not (copy_of("files", old) / "inbox/bob/theirs.txt").exists()


def test_a_log_that_cannot_be_read_is_told_truthfully(tmp_path: Path) -> None:
    old = unpack("files", 1, tmp_path / "old")
    (old / ".postroom/log").rename(tmp_path / "log")
    (old / ".postroom/log").mkdir()
    with pytest.raises(
        RoomUnreachable, match=r"no copy of it can be kept \(.*log is not a regular file\); nothing was"
    ):
        open_store("files", old)
    assert copies("files", old) == []
    (old / ".postroom/log").rmdir()
    (tmp_path / "log").rename(old / ".postroom/log")
    is_whole("files", old)


# No copy, no upgrade


@pytest.mark.slow
def test_without_space_for_the_copy_nothing_is_changed(kind: str, old: Path) -> None:
    before = content(old)
    code = """
import signal; signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
open_store(kind, Path(sys.argv[3])).close()
import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[4]),) * 2)
try:
    open_store(kind, folder)
except RoomUnreachable as error:
    print(error)
"""
    child = run(code, kind, str(old), str(old.with_name("warm")), "40000" if kind == "sqlite" else "4096")
    told, errors = child.communicate()
    assert errors == ""
    assert f"has layout 1 and must be upgraded to layout {NOW} to be used: " in told
    assert copies(kind, old) == []
    assert {name: data for name, data in content(old).items() if name in before} == before
    assert layout_of(kind, old) == 1
    is_whole(kind, old)


def test_a_failure_in_a_step_leaves_the_room_and_no_copy(kind: str, old: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(crashpoints, "_actions", {"upgrade.copying": fail})
    with pytest.raises(
        RoomUnreachable, match=rf"must be upgraded to layout {NOW} to be used: .*No space left on device"
    ):
        open_store(kind, old)
    monkeypatch.undo()
    assert copies(kind, old) == []
    is_whole(kind, old)


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), KeyboardInterrupt()], ids=["full", "ctrl-c"])
@pytest.mark.parametrize("point", POINTS["files"])
def test_upgrades_that_fail_again_and_again_do_not_pile_up_copies(
    point: str, error: BaseException, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = unpack("files", 1, tmp_path / "old")

    def fail() -> None:
        raise error

    monkeypatch.setattr(crashpoints, "_actions", {point: fail})
    kept = [copy_of("files", old).name]
    for _ in range(3):
        with pytest.raises((RoomUnreachable, KeyboardInterrupt)):
            open_store("files", old)
        assert copies("files", old) == (kept if point == "upgrade.announced" else [])
    monkeypatch.undo()
    is_whole("files", old)
    assert copies("files", old) == kept


def test_the_copy_of_a_files_room_is_on_the_disk_before_the_upgrade_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = unpack("files", 1, tmp_path / "old")
    unsynced: set[str] = set()
    checked: list[str] = []

    def noted(act: Any) -> Any:
        def named(tree: Tree, was: str, path: str) -> None:
            if was == files_upgrade._DRAFT:
                assert {folder for folder in unsynced if folder.startswith(files_upgrade._DRAFT)} == set()
                checked.append(path)
            act(tree, was, path)
            unsynced.add(path.rpartition("/")[0])

        return named

    def sync(tree: Tree, *folders: str) -> None:
        real_sync(tree, *folders)
        unsynced.difference_update(folders)

    real_sync = Tree.sync
    monkeypatch.setattr(Tree, "sync", sync)
    monkeypatch.setattr(Tree, "rename", noted(Tree.rename))
    monkeypatch.setattr(Tree, "link", noted(Tree.link))
    open_store("files", old).close()
    assert checked == [".postroom/room.layout-1.bak"]


def test_an_upgraded_files_room_keeps_no_folder_of_its_copy_open(tmp_path: Path) -> None:
    old = unpack("files", 1, tmp_path / "old")
    with closing(open_store("files", old)) as store:
        assert [path for path in store._tree._folders if ".bak" in path] == []


def test_nothing_is_written_through_a_link(kind: str, old: Path, tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text("precious")
    draft = old / ("messages.db.bak.new" if kind == "sqlite" else ".postroom/room.bak.new")
    draft.symlink_to(victim)
    copy_of(kind, old).symlink_to(tmp_path / "nowhere")
    with pytest.raises(RoomError, match="symbolic link"):
        postroom.open(f"{kind}:{old}")
    if kind == "sqlite":  # and below that check
        open_store(kind, old).close()
        assert copies(kind, old) == [copy_of(kind, old).name, f"{copy_of(kind, old).name}.2"]
    else:
        with pytest.raises(RoomError):
            open_store(kind, old)
    assert victim.read_text() == "precious"
    assert not (tmp_path / "nowhere").exists()


def test_a_room_that_is_not_allowed_is_not_upgraded(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    project = tmp_path / "project"
    room = unpack(kind, 1, project / ".postroom" if kind == "sqlite" else project)
    before = content(project)
    monkeypatch.chdir(project)
    with pytest.raises(RoomNotAllowed):
        postroom.open()
    assert content(project) == before
    assert layout_of(kind, room) == 1


# Interrupts


def interrupt(*_: object) -> Any:
    raise KeyboardInterrupt


def test_an_interrupt_in_the_commit_keeps_the_copy_of_a_room_that_was_upgraded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A signal that comes while SQLite waits for the disk is handled in the first callback after it: the hook."""
    old = unpack("sqlite", 1, tmp_path / "old")
    monkeypatch.setattr(WriteAheadLog, "hook", lambda _: interrupt)
    with pytest.raises(KeyboardInterrupt):
        open_store("sqlite", old)
    monkeypatch.undo()
    assert layout_of("sqlite", old) == NOW
    assert copies("sqlite", old) == [copy_of("sqlite", old).name]
    is_whole("sqlite", old)


def test_an_error_of_a_callback_after_the_commit_does_not_call_the_upgrade_undone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = unpack("sqlite", 1, tmp_path / "old")
    answers = iter([apsw.SQLITE_ERROR])
    monkeypatch.setattr(WriteAheadLog, "hook", lambda _: lambda *_: next(answers, apsw.SQLITE_OK))
    open_store("sqlite", old).close()
    assert copies("sqlite", old) == [copy_of("sqlite", old).name]


def test_an_interrupt_right_after_the_copy_got_its_name_leaves_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = unpack("sqlite", 1, tmp_path / "old")
    monkeypatch.setattr(sqlite_upgrade, "sync_folder", interrupt)
    with pytest.raises(KeyboardInterrupt):
        open_store("sqlite", old)
    monkeypatch.undo()
    assert copies("sqlite", old) == []
    is_whole("sqlite", old)


# Words


def test_a_newer_layout_and_one_that_is_too_old_are_refused_truthfully(kind: str, old: Path) -> None:
    for layout, words in ((7, f"layout 7, .* reads layouts up to {NOW}; .*newer.*: upgrade this one"), (-1, "too old")):
        if kind == "sqlite":
            with closing(apsw.Connection(str(old / "messages.db"))) as db:
                db.pragma("user_version", layout)
        else:
            mark = old / ".postroom/room.json"
            mark.write_text(json.dumps({**json.loads(mark.read_text()), "layout": layout}))
        with pytest.raises(RoomDamaged, match=words):
            open_store(kind, old)
        assert copies(kind, old) == []
    with pytest.raises(RoomDamaged, match="reads layouts 3 to 5; it is too old"):
        check_layout(old, 2, 3, 5)


# A program of an older layout has the room open


def statements_of_layout_1() -> dict[str, str]:
    text = (FIXTURES / "layout-1.sql").read_text()
    found = dict(part.split("\n", 1) for part in text.split("\n-- name: ")[1:])
    columns = COLUMNS.replace("order_key, replaces, ", "").replace("own_id, expires_at_ms, ", "")  # of layout 3
    return {name: _fill_in(body, {**found, "salt": "1", "columns": columns}) for name, body in found.items()}


def test_a_running_program_of_layout_1_is_refused(kind: str, old: Path) -> None:
    if kind == "files":
        log = old / ".postroom/log"
        with (old / ".postroom/lock").open("a") as lock:
            open_store(kind, old).close()
            fcntl.flock(lock, fcntl.LOCK_EX)
            with pytest.raises(FileNotFoundError):  # it says: the log is gone
                os.stat(log)
        return
    with closing(apsw.Connection(str(old / "messages.db"))) as running:
        tick: Any = lambda: 1  # noqa: E731
        running.create_scalar_function("tick", tick, 0)
        statements = {
            name: sql
            for name, sql in statements_of_layout_1().items()
            if re.match(r"(--.*\n)*\s*(SELECT|INSERT|UPDATE|DELETE)\b", sql) and re.search(r"\b(mail|cells)\b", sql)
        }
        writes = [name for name, sql in statements.items() if "SELECT" not in sql.split()[:1]]
        assert len(statements) > 50 and len(writes) > 15
        for sql in statements.values():
            running.execute(f"EXPLAIN {sql}", bindings(sql)).fetchall()  # it could be run before
        before = running.execute("SELECT count(*), max(key) FROM mail").fetchall()
        open_store(kind, old).close()
        for sql in statements.values():
            with pytest.raises(apsw.SQLError, match=f"no such module: {sqlite_upgrade.REFUSAL}"):
                running.execute(sql, bindings(sql)).fetchall()
        assert running.execute("SELECT count(*), max(key) FROM messages").fetchall() == before
        running.execute(statements_of_layout_1()["subscribe"], ("news", "eve", "2026-01-01")).fetchall()
    with closing(open_store(kind, old)) as store:  # subscriptions are the same in both layouts
        assert [(s.channel, s.agent) for s in store.subscriptions()] == [("news", "bob"), ("news", "eve")]


def bindings(sql: str) -> Any:
    named = re.findall(r":(\w+)", re.sub(r"'[^']*'", "", sql))
    if named:
        return dict.fromkeys(named, 1)
    return (1,) * max([int(number) for number in re.findall(r"\?(\d+)", sql)], default=0)


@pytest.fixture
def to_next_layout(kind: str, monkeypatch: pytest.MonkeyPatch) -> Callable[[Any], None]:
    """What a Postroom of the next layout does to a room that a store of today's has open."""

    def upgrade(store: Any) -> None:
        with monkeypatch.context() as newer:
            if kind == "sqlite":
                newer.setattr(sqlite_upgrade, "LAYOUT", NOW + 1)
                newer.setitem(sqlite_upgrade.STEPS, NOW, "ALTER TABLE {mail} ADD COLUMN colour TEXT")
                file = store._file
                with closing(file._connect()) as connection:
                    now = partial(read_statements, connection, file.path)
                    sqlite_upgrade.upgrade(file.path, NOW, file._connect, connection, now)
            else:
                newer.setattr(files_upgrade, "LAYOUT", NOW + 1)
                newer.setitem(files_upgrade.STEPS, NOW, lambda tree: tree.replace(".postroom/colour", b"red"))
                with store._log.locked():
                    about = files_layout.read_about(store._tree)
                    assert about is not None
                    files_upgrade.upgrade(store._tree, about)

    return upgrade


@pytest.mark.parametrize("layout", range(1, NOW + 1))
def test_a_running_program_of_layout_2_or_later_is_told_that_the_room_was_upgraded(
    kind: str, layout: int, tmp_path: Path, to_next_layout: Callable[[Any], None]
) -> None:
    """Layouts before today's: the room was upgraded once before."""
    room = unpack(kind, layout, tmp_path / "room")
    with closing(open_store(kind, room)) as store:
        draft = check(Draft(from_agent="ada", to_agent="eve", type="info", payload={"n": "new"}))
        store.put([draft])
        (delivery,) = store.claim(Want(agent="eve", lease_s=30)).deliveries
        before = everything(store)
        to_next_layout(store)
        calls: list[Callable[[], Any]] = [
            lambda: store.put([draft]),
            lambda: store.put([draft, draft]),
            lambda: store.claim(Want(agent="bob", lease_s=30)),
            lambda: store.settle(delivery.ticket, "acked"),
            lambda: store.extend(delivery.ticket, 30),
            lambda: store.cell_write("x", {"a": 1}),
            store.sweep,
            lambda: store.find(Query()),
        ]
        for call in calls:
            with pytest.raises(
                RoomGone, match=f"upgraded to layout {NOW + 1} .*restart this program with the newer Postroom"
            ):
                call()
    assert layout_of(kind, room) == NOW + 1
    assert copies(kind, room)[-1].endswith(f"layout-{NOW}.bak")
    with pytest.raises(RoomDamaged, match=f"layout {NOW + 1}, .* reads layouts up to {NOW}"):
        open_store(kind, room)
    back = tmp_path / "back"
    if kind == "sqlite":
        back.mkdir()
        (room / copies(kind, room)[-1]).rename(back / "messages.db")
    else:
        (room / ".postroom" / copies(kind, room)[-1]).rename(back)
    with closing(open_store(kind, back)) as store:
        assert everything(store) == before, "the copy is the room as it was"


def test_a_link_that_takes_the_place_of_the_copy_is_not_followed(tmp_path: Path) -> None:
    """In a room that a group shares, another of its users may put one there."""
    room, precious = unpack("sqlite", 1, tmp_path / "room"), tmp_path / "precious.db"
    with closing(apsw.Connection(str(precious))) as db:
        db.execute("CREATE TABLE kept (x)").fetchall()
    path, draft = room / "messages.db", room / "messages.db.bak.new"

    def connect() -> apsw.Connection:
        if draft.exists():
            draft.unlink()
            draft.symlink_to(precious)
        return apsw.Connection(str(path))

    with closing(apsw.Connection(str(path))) as db:
        statements = partial(read_statements, db, path)
        with pytest.raises(RoomUnreachable, match=f"must be upgraded to layout {NOW}"):
            sqlite_upgrade.upgrade(path, 1, connect, db, statements)

    with closing(apsw.Connection(str(precious))) as db:
        assert db.execute("SELECT name FROM sqlite_schema").fetchall() == [("kept",)]
    assert layout_of("sqlite", room) == 1
    assert copies("sqlite", room) == []


def test_a_room_behind_a_link_to_its_folder_is_upgraded(kind: str, old: Path, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").symlink_to(old.parent)
    open_store(kind, tmp_path / "elsewhere" / old.name).close()

    assert layout_of(kind, old) == NOW
    assert len(copies(kind, old)) == 1


def test_an_upgraded_room_has_the_tables_of_a_new_one(tmp_path: Path) -> None:
    old = unpack("sqlite", 1, tmp_path / "old")
    open_store("sqlite", old).close()
    open_store("sqlite", tmp_path / "new").close()

    def schema(folder: Path) -> Any:
        with closing(apsw.Connection(str(folder / "messages.db"))) as db:
            salt = str(db.execute("SELECT value FROM meta WHERE name = 'salt'").get)
            rows: Any = db.execute(
                "SELECT type, name, sql FROM sqlite_schema WHERE sql NOT LIKE 'CREATE VIRTUAL%'"
            ).fetchall()
            # columns that came with an upgrade stand behind the others
            columns: Any = db.execute(
                'SELECT m.name, c.name, c.type, c."notnull", c.dflt_value, c.pk, c.hidden FROM sqlite_schema AS m, '
                "pragma_table_xinfo(m.name) AS c WHERE m.type = 'table' AND m.sql NOT LIKE 'CREATE VIRTUAL%'"
            ).fetchall()
        moved, plain = re.compile(rf"\b(mail|cells){NOW}\b"), re.compile(r"--.*|\s+|\"")
        texts = {
            (type_, moved.sub(r"\1", name), plain.sub("", moved.sub(r"\1", sql.replace(salt, "SALT"))))
            for type_, name, sql in rows
            if type_ != "table"
        }
        return texts | {(moved.sub(r"\1", table), *column) for table, *column in columns}

    assert schema(old) == schema(tmp_path / "new")
    assert files_layout.LAYOUT == NOW
