"""Simulated disks: deaths inside steps, disks that fail and power cuts; and stores that are broken on purpose are found."""

from __future__ import annotations

import errno
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import apsw
import pytest
from tests.faults.test_crash_points import test_points
from tests.proof.test_simulation import hold_all

from postroom.core.clock import ManualClock
from postroom.core.config import Config
from postroom.errors import RoomError, RoomUnreachable
from postroom.stores.contract import LIMITS
from postroom.stores.files.log import Log
from postroom.stores.files.store import FilesStore
from postroom.stores.files.tree import Tree
from postroom.stores.sqlite.file import SqliteFile
from postroom.stores.sqlite.putting import Puts
from postroom.stores.sqlite.wal import WriteAheadLog
from postroom.testing.simulation import RARE, RARE_ON, plans, simulate
from postroom.testing.simulation.disk import FILES_POINTS, SQLITE_POINTS

#: In the suite, and in each part of the long run.
SOME = 40
EVERY = 1000
PARTS = 20
#: A store that is broken on purpose is found within so many schedules.
WITHIN = 150
#: States that only a disk has, and that so few schedules come to.
OFTEN = ("a write was torn", "died inside a step", "the disk failed, and the caller was told")
OFTEN_ON = {
    "sqlite": (*OFTEN, "the power was cut inside a step", "the log was folded back into the file"),
    "files": OFTEN,
}


@pytest.mark.slow
@pytest.mark.parametrize("store", ["sqlite", "files"])
def test_every_promise_holds_on_disks_that_fail_and_forget(store: str) -> None:
    reached = hold_all(20, SOME, store)
    assert [state for state in OFTEN_ON[store] if not reached[state]] == []


@pytest.mark.long
@pytest.mark.parametrize("store", ["sqlite", "files"])
@pytest.mark.parametrize("part", range(PARTS))
def test_every_promise_holds_in_many_schedules_on_disks(store: str, part: int) -> None:
    reached = hold_all(1_000_000 + part * EVERY, EVERY, store)
    assert [state for state in set(RARE_ON[store]) - set(RARE) if not reached[state]] == []


def test_every_crash_point_of_the_stores_on_disks_is_a_place() -> None:
    points = {point for point in test_points() if point.startswith(("sqlite.", "files."))}
    assert {*SQLITE_POINTS, *FILES_POINTS} == points


def test_faults_of_disks_leave_the_schedules_of_other_rooms_as_they_are() -> None:
    plan = plans.draw(7, 50)
    on_disk = plans.with_disk_faults(plan)
    assert on_disk == plans.with_disk_faults(plan)
    assert on_disk._replace(faults=plan.faults) == plan
    assert set(plan.faults) <= set(on_disk.faults)
    assert not any(fault.kind in plans.INSIDE for fault in plan.faults)


def test_limits_that_a_disk_does_not_take_are_refused_in_our_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise OSError(errno.EIO, "the disk is broken")

    with closing(FilesStore(tmp_path / "room", Config(), ManualClock())) as store:
        monkeypatch.setattr(Tree, "replace", fail)
        with pytest.raises(RoomUnreachable, match="nothing was changed"):
            store.cell_write(LIMITS, {"agents": {}})
        assert store.cell_read(LIMITS) is None


# Stores that are broken on purpose


def sync_nothing(patch: pytest.MonkeyPatch) -> None:
    wait_no_more_than_by_default(patch)
    connect = SqliteFile._connect

    def careless(self: SqliteFile) -> apsw.Connection:
        connection = connect(self)
        connection.execute("PRAGMA synchronous = OFF").fetchall()
        return connection

    patch.setattr(SqliteFile, "_connect", careless)


def wait_no_more_than_by_default(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(WriteAheadLog, "sync", lambda *_: None)


def commit_piece_by_piece(patch: pytest.MonkeyPatch) -> None:
    put_all = Puts.put_all

    def in_pieces(self: Puts, *args: Any) -> list[str]:
        ids = put_all(self, *args)
        self._file.commit()
        self._file.begin()
        return ids

    patch.setattr(Puts, "put_all", in_pieces)


def say_done_when_the_commit_failed(patch: pytest.MonkeyPatch) -> None:
    def commit(self: SqliteFile) -> None:
        assert self._mine.connection is not None
        try:
            self._mine.connection.change("COMMIT")
        except RoomError:
            self.roll_back()

    patch.setattr(SqliteFile, "commit", commit)


def leave_what_a_dead_process_began(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(FilesStore, "_caught_up", FilesStore._tables)


def say_undone_when_the_mark_failed(patch: pytest.MonkeyPatch) -> None:
    set_mark = Log.set_mark

    def fails(self: Log, place: int) -> None:
        try:
            set_mark(self, place)
        except OSError as error:
            raise RoomError("nothing was changed") from error

    patch.setattr(Log, "set_mark", fails)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("store", "fault", "first"),  # the search begins not far before the seed that finds it
    [
        ("sqlite", sync_nothing, 1),
        ("sqlite", wait_no_more_than_by_default, 10),
        ("sqlite", commit_piece_by_piece, 780),
        ("sqlite", say_done_when_the_commit_failed, 195),
        ("files", leave_what_a_dead_process_began, 70),
        ("files", say_undone_when_the_mark_failed, 1),
    ],
)
def test_a_store_that_is_broken_on_purpose_is_found(
    store: str, fault: Callable[[pytest.MonkeyPatch], None], first: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    fault(monkeypatch)
    seeds = range(first, first + WITHIN)
    found = next((seed for seed in seeds if simulate(seed, store=store).failure is not None), None)
    assert found is not None
    monkeypatch.undo()
    assert simulate(found, store=store).failure is None
