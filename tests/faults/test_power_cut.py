"""The power goes, in the middle of any write.

The story. A room is made and used on a disk that keeps synced and unsynced writes apart (programs/power.py). At a
chosen write the power goes: of what was not synced, some sectors are there, some are not, some are rubbish. The
machine boots, with a new boot id and perhaps a wall clock that is behind, and the room is opened again.

The invariant. With sync=full nothing that a call returned is lost. With sync=normal the last calls may be lost, the
later ones before the earlier ones. With one process of each kind, those of the careful one are kept. Always, a batch is whole or absent, SQLite's own check finds no damage, and the
room can be used: new messages come behind all that survived.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from pathlib import Path

import apsw
import pytest

import postroom
from postroom.clock import ManualClock
from postroom.store import Delivery
from postroom.stores import sqlite_file
from postroom.stores.sqlite import SqliteStore

from .programs.power import PowerDisk
from .programs.rooms import letter, open_room, want
from .support import ACKED, DEAD, DELAYED, Look, count, seed

#: What a call that returned has promised: the message, and the state it must be in (None: any, it must be there).
Promise = tuple[str, int | None]


class Day:
    """Some hours of work in a room, until the power goes."""

    def __init__(self, folder: Path, sync: str, chance: random.Random) -> None:
        self.chance = chance
        self.clock = ManualClock()
        self.disk = PowerDisk(
            "power", chance, cut_at=chance.choice((chance.randrange(1, 100), chance.randrange(100, 700)))
        )
        self.promises: list[Promise] = []
        self._folder = folder
        self._sync = sync
        self._held: list[Delivery] = []

    def work(self) -> None:
        syncs = {"full": ("full", "full"), "normal": ("normal", "normal"), "mixed": ("full", "normal")}[self._sync]
        stores = [self._open(sync) for sync in syncs]
        for number in range(self.chance.randrange(5, 100)):
            if self.disk.image is not None:
                break
            mine = self.chance.randrange(2)
            self._one_thing(stores[mine], number, keeps_promises=self._sync != "mixed" or mine == 0)
            self.clock.advance(0.01)
            if self.chance.random() < 0.03:
                stores[0].close()
                stores[0] = self._open(syncs[0])
        if self.disk.image is None:
            self.disk.cut()
        for store in stores:
            store.close()

    def _open(self, sync: str) -> SqliteStore:
        return open_room(self._folder, sync=sync, clock=self.clock, vfs=self.disk.name)

    def _one_thing(self, store: SqliteStore, number: int, *, keeps_promises: bool) -> None:
        kind = self.chance.choice(("send", "send", "batch", "claim", "ack", "ack", "retry", "dead", "sweep"))
        promised: list[Promise] = []
        if kind in ("send", "batch"):
            size, text = (1, "x" * self.chance.randrange(5000)) if kind == "send" else (3, "")
            ids = store.put([letter(payload={"batch": number, "of": size, "text": text}) for _ in range(size)])
            promised = [(id, None) for id in ids]
        elif kind == "claim":
            self._held += store.claim(want(limit=2)).deliveries
        elif kind == "sweep":
            store.sweep()
        elif self._held:
            ticket = self._held.pop().ticket
            assert store.settle(ticket, "acked" if kind == "ack" else kind, delay_s=1e6).held
            promised = [(ticket.id, {"ack": ACKED, "retry": DELAYED, "dead": DEAD}[kind])]
        if keeps_promises and self.disk.image is None:
            self.promises += promised

    def night(self, folder: Path) -> Path:
        """Put what is left on the disk into a folder, with whatever the shared memory's file may hold."""
        assert self.disk.image is not None
        folder.mkdir()
        for name, content in self.disk.image.items():
            (folder / name).write_bytes(content)
        if self.chance.random() < 0.3:
            (folder / "messages.db-shm").write_bytes(self.chance.randbytes(32768))
        return folder


def kept(folder: Path, promises: list[Promise]) -> list[bool]:
    """For each promise, in order, whether it was kept; with what SQLite itself reads."""
    with Look(folder) as look:
        assert look.damage() == "ok"
        if look.value("PRAGMA user_version") == 0:  # the room was not yet made
            return [False] * len(promises)
        states = dict(look.rows("SELECT id, state FROM messages"))
        half = look.rows(
            "SELECT payload ->> 'batch' AS batch, payload ->> 'of' AS sent, count(*) AS there FROM messages "
            "GROUP BY batch HAVING sent <> there"
        )
        assert half == []
    ends: dict[str, int] = {id: state for id, state in promises if state is not None}
    return [id in states and (state is None or states[id] == state == ends[id]) for id, state in promises]


def go_on(folder: Path, clock: ManualClock, chance: random.Random) -> None:
    """The machine has booted: the room can be used, and new messages come last."""
    clock.reboot()
    clock.jump_wall(chance.choice((60, -3600)))
    store = open_room(folder, clock=clock)
    [sent] = store.put([letter("zoe")])
    [delivery] = store.claim(want("zoe")).deliveries
    assert delivery.message.id == sent and store.settle(delivery.ticket, "acked").held
    store.close()
    with Look(folder) as look:
        assert look.damage() == "ok"
        assert look.value("SELECT id FROM messages ORDER BY key DESC LIMIT 1") == sent


def cut_and_check(place: Path, sync: str, number: int) -> tuple[int, int]:
    """One day, one cut, one check. Returns how many promises were made and how many of them were kept."""
    chance = random.Random(f"{sync}{number}")
    sqlite_file.WAL_PAGES = chance.choice((2, 10, 1000))  # type: ignore[misc]
    day = Day(place / f"day{number}", sync, chance)
    day.work()
    found = day.night(place / f"night{number}")
    held = kept(found, day.promises)
    if sync != "normal":
        assert all(held), f"lost with sync={sync}: {[p for p, ok in zip(day.promises, held, strict=True) if not ok]}"
    assert held == sorted(held, reverse=True), f"an earlier call was lost and a later one kept: {held}"
    go_on(found, day.clock, chance)
    return len(held), sum(held)


def cut_often(
    place: Path, sync: str, cuts: int, monkeypatch: pytest.MonkeyPatch, figure: Callable[[str], None]
) -> None:
    monkeypatch.setattr(sqlite_file, "WAL_PAGES", sqlite_file.WAL_PAGES)  # put back after the test
    monkeypatch.setattr(sqlite_file.SqliteFile, "folds_beside", False)
    made = survived = 0
    for number in range(seed(), seed() + cuts):
        try:
            promised, held = cut_and_check(place, sync, number)
        except AssertionError as error:
            raise AssertionError(f"seed {number}: {error}") from error
        made, survived = made + promised, survived + held
    assert made > cuts, "the days are too short to promise anything"
    figure(f"power cut, sync={sync}: {cuts} cuts, {made} calls had returned, {made - survived} of them lost")


@pytest.mark.slow
@pytest.mark.parametrize("sync", ["full", "normal", "mixed"])
def test_a_power_cut_takes_what_it_may_and_never_the_file(
    sync: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, figure: Callable[[str], None]
) -> None:
    cut_often(tmp_path, sync, count("CUTS", 200), monkeypatch, figure)


@pytest.mark.long
@pytest.mark.parametrize("sync", ["full", "normal", "mixed"])
def test_thousands_of_power_cuts(
    sync: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, figure: Callable[[str], None]
) -> None:
    cut_often(tmp_path, sync, count("CUTS_LONG", 5_000), monkeypatch, figure)


def test_the_disk_of_these_tests_does_lose_what_was_not_synced(tmp_path: Path) -> None:
    """A check that cannot fail proves nothing: with no syncs at all, the same disk does damage or lose things."""
    lost = 0
    for number in range(30):
        disk = PowerDisk("power", random.Random(number), cut_at=10_000)
        connection = apsw.Connection(str(tmp_path / f"{number}.db"), vfs=disk.name)
        connection.execute("PRAGMA synchronous = OFF; PRAGMA journal_mode = WAL; CREATE TABLE t (x)").fetchall()
        for value in range(20):
            connection.execute("INSERT INTO t VALUES (?)", (value,))
        disk.cut()
        assert disk.image is not None
        after = tmp_path / f"{number}"
        after.mkdir()
        for name, content in disk.image.items():
            (after / name).write_bytes(content)
        try:
            found = int(apsw.Connection(str(after / f"{number}.db")).execute("SELECT count(*) FROM t").get)
        except apsw.Error:
            found = 0
        lost += found < 20
    assert lost > 5


@pytest.mark.parametrize(
    "open_it",
    [
        lambda folder: open_room(folder, sync="full").close(),
        lambda folder: postroom.open(f"sqlite:{folder}?sync=full").close(),
    ],
    ids=["store", "postroom.open"],
)
def test_a_new_room_is_synced_into_the_folder_above_it(
    open_it: Callable[[Path], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SQLite syncs the room's folder; that the folder itself is there after a power cut is ours to see to."""
    synced: list[int] = []
    really = os.fsync

    def fsync(descriptor: int) -> None:
        synced.append(os.fstat(descriptor).st_ino)
        really(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)
    open_it(tmp_path / "project" / ".postroom")
    assert {tmp_path.stat().st_ino, (tmp_path / "project").stat().st_ino} <= set(synced)
