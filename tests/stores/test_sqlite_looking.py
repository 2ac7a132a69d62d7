"""A room that can only be looked at, while others can write it: what was read is true, or is not told."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from postroom.core.clock import SYSTEM
from postroom.core.config import Config
from postroom.core.message import Draft, check
from postroom.errors import RoomDamaged, RoomGone, RoomUnreachable
from postroom.stores.contract import Query
from postroom.stores.sqlite.looking import look_at
from postroom.stores.sqlite.store import SqliteStore


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """That of a room with one message, which this process may not write, as in a view of a disk that others can write."""
    store = SqliteStore(tmp_path / "room", Config(), SYSTEM)
    store.put([check(Draft(from_agent="ada", to_agent="bob", payload={}))])
    store.close()

    @contextmanager
    def refused(_: Path) -> Iterator[None]:
        raise RoomUnreachable("its file system is read-only")
        yield

    monkeypatch.setattr("postroom.stores.sqlite.file.opening", refused)
    monkeypatch.setattr("postroom.stores.sqlite.looking.why_unwritable", lambda *_: "its file system is read-only")
    return tmp_path / "room"


@pytest.fixture
def store(folder: Path) -> Iterator[SqliteStore]:
    store = SqliteStore(folder, Config(), SYSTEM)
    yield store
    store.close()


def write_half(path: Path) -> None:
    """As a checkpoint of another process that is under way: a page is not yet what the others say."""
    size = path.stat().st_size
    with path.open("r+b") as written:
        written.seek(4096)
        written.write(os.urandom(size - 4096))


def test_a_room_that_others_write_is_not_called_damaged_by_a_look_at_it(store: SqliteStore, folder: Path) -> None:
    write_half(folder / "messages.db")

    with pytest.raises(RoomGone, match="by others, which can write it, .* reopen it"):
        store.find(Query())
    with pytest.raises(RoomGone):
        store.faults(1)


def test_nothing_is_told_that_was_read_while_others_wrote(store: SqliteStore, folder: Path) -> None:
    assert len(store.find(Query()).messages) == 1
    os.utime(folder / "messages.db", ns=(0, 0))

    with pytest.raises(RoomGone):
        store.find(Query())


def test_damage_of_a_room_that_nobody_writes_is_told(folder: Path) -> None:
    write_half(folder / "messages.db")

    with pytest.raises(RoomDamaged):
        SqliteStore(folder, Config(), SYSTEM)


def test_a_room_that_others_close_while_it_is_opened_is_opened_the_other_way(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[Path] = []

    def others_closed_it(path: Path, *given: Any) -> Any:
        calls.append(path)
        if len(calls) == 1:
            os.utime(path, ns=(0, 0))
            raise RoomDamaged("half of a checkpoint was read")
        return look_at(path, *given)

    monkeypatch.setattr("postroom.stores.sqlite.looking.look_at", others_closed_it)
    store = SqliteStore(folder, Config(), SYSTEM)

    assert len(store.find(Query()).messages) == 1
    store.close()


def test_the_path_of_a_room_that_is_looked_at_is_no_address_of_a_machine(folder: Path) -> None:
    """POSIX lets a path begin with two slashes; in a URI, a host would follow them."""
    store = SqliteStore(Path(f"/{folder}"), Config(), SYSTEM)

    assert len(store.find(Query()).messages) == 1
    store.close()
