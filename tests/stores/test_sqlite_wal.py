"""The write-ahead log is kept short beside the writers, and not by them."""

from __future__ import annotations

import shutil
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import apsw
import pytest
from tests.faults.programs.disks import Call, Disk
from tests.faults.programs.rooms import letter, open_room

from postroom.core.clock import SYSTEM, ManualClock
from postroom.core.config import Config
from postroom.core.message import Draft, check
from postroom.stores.contract import Query, Want
from postroom.stores.sqlite import wal
from postroom.stores.sqlite.layout import PAGE_BYTES
from postroom.stores.sqlite.store import SqliteStore
from postroom.stores.sqlite.wal import AHEAD_FROM_PAGES, LONG_PAGES, TOO_LONG_PAGES, Checkpointer, Fold

PATIENCE_S = 10.0


class Folding:
    """Stands for the file: says what it was told to say, and notes in which thread it was asked."""

    def __init__(self, says: Fold = Fold.DONE) -> None:
        self.says = says
        self.threads: list[str] = []
        self.may_end = threading.Event()
        self.may_end.set()

    def __call__(self) -> Fold:
        self.threads.append(threading.current_thread().name)
        assert self.may_end.wait(PATIENCE_S)
        return self.says


@pytest.fixture
def keepers() -> Iterator[Callable[..., Checkpointer]]:
    made: list[Checkpointer] = []

    def make(folding: Folding, clock: ManualClock | None = None, **how: bool) -> Checkpointer:
        made.append(Checkpointer(folding, clock or ManualClock(), **how))
        return made[-1]

    yield make
    for keeper in made:
        keeper.close()


def test_a_short_log_is_left_alone(keepers):
    keeper = keepers(folding := Folding())
    keeper.has_pages(LONG_PAGES - 1)
    keeper.close()
    assert folding.threads == []


def test_a_long_log_is_folded_back_once_at_a_time_and_not_by_the_writer(keepers):
    keeper = keepers(folding := Folding())
    folding.may_end.clear()
    for _ in range(5):
        keeper.has_pages(LONG_PAGES)
    folding.may_end.set()
    keeper.close()
    assert folding.threads == ["postroom log"]


def test_a_log_that_somebody_reads_is_tried_again_after_a_while(keepers):
    clock = ManualClock()
    keeper = keepers(folding := Folding(Fold.PINNED), clock)
    keeper.has_pages(TOO_LONG_PAGES)
    keeper.has_pages(TOO_LONG_PAGES)
    assert len(folding.threads) == 1
    clock.advance(0.3)
    keeper.has_pages(TOO_LONG_PAGES)
    assert len(folding.threads) == 2


def test_who_makes_the_log_too_long_waits_while_somebody_else_folds_it(keepers):
    keeper = keepers(folding := Folding(Fold.ELSEWHERE))
    began_ns = SYSTEM.steady_ns()
    for _ in range(5):
        keeper.has_pages(TOO_LONG_PAGES)
    assert folding.threads == [threading.current_thread().name] * 5
    assert SYSTEM.steady_ns() - began_ns >= 5 * 0.01 * 1e9


def test_a_closed_keeper_folds_no_more(keepers):
    keeper = keepers(folding := Folding())
    keeper.close()
    keeper.has_pages(LONG_PAGES)
    keeper.close()
    assert folding.threads == []


def test_the_log_of_a_room_begins_anew_while_its_writer_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wal, "LONG_PAGES", 200)
    pages: list[int] = []
    has_pages = Checkpointer.has_pages

    def counted(checkpointer: Checkpointer, now: int) -> None:
        pages.append(now)
        has_pages(checkpointer, now)

    monkeypatch.setattr(Checkpointer, "has_pages", counted)
    store = SqliteStore(tmp_path / "room", Config(), SYSTEM)
    letter = check(Draft(from_agent="ada", to_agent="bob", payload={"text": "x" * 500}))
    # A log that nobody folds back only grows. When the thread that folds gets its turn is the machine's affair.
    until_s = time.monotonic() + 6 * PATIENCE_S
    while pages[-2:] == sorted(pages[-2:]):
        assert time.monotonic() < until_s, f"the log has {pages[-1]} pages"
        store.put([letter])
    store.close()


# With sync=full the log is made longer ahead of what is written to it


class Ahead(apsw.VFS):
    """The system's files; what is written ahead of the log is noted, and refused by a disk that is full."""

    def __init__(self, *, full: bool = False) -> None:
        self.name = f"ahead{id(self)}"
        super().__init__(self.name, "")
        self.full = full
        self.places: list[int] = []

    def xOpen(self, name: str | apsw.URIFilename | None, flags: list[int]) -> apsw.VFSFile:  # noqa: N802
        is_ahead = flags[0] & apsw.SQLITE_OPEN_WAL and not flags[0] & apsw.SQLITE_OPEN_CREATE
        return AheadFile(self, name, flags) if is_ahead else apsw.VFSFile("", name, flags)


class AheadFile(apsw.VFSFile):
    def __init__(self, disk: Ahead, name: str | apsw.URIFilename | None, flags: list[int]) -> None:
        super().__init__("", name, flags)
        self._disk = disk

    def xWrite(self, data: Any, offset: int) -> None:  # noqa: N802
        self._disk.places.append(offset)
        if self._disk.full:
            raise apsw.FullError
        super().xWrite(data, offset)


class Syncs(apsw.VFS):
    """The system's files; how often the log is synced is counted."""

    def __init__(self) -> None:
        self.name = f"syncs{id(self)}"
        super().__init__(self.name, "")
        self.count = 0

    def xOpen(self, name: str | apsw.URIFilename | None, flags: list[int]) -> apsw.VFSFile:  # noqa: N802
        is_log = flags[0] & apsw.SQLITE_OPEN_WAL
        return SyncedFile(self, name, flags) if is_log else apsw.VFSFile("", name, flags)


class SyncedFile(apsw.VFSFile):
    def __init__(self, disk: Syncs, name: str | apsw.URIFilename | None, flags: list[int]) -> None:
        super().__init__("", name, flags)
        self._disk = disk

    def xSync(self, flags: int) -> None:  # noqa: N802
        self._disk.count += 1
        super().xSync(flags)


def frames_of(store: SqliteStore) -> int:
    """How long the log file is, in pages."""
    return store._file.log.size_bytes() // (PAGE_BYTES + 24)


def send_until_longer(store: SqliteStore, most: int = 3000) -> int:
    """Send until the log is longer than what was written to it. Returns how many."""
    letter = check(Draft(from_agent="ada", to_agent="bob", payload={"text": "x" * 500}))
    for sent in range(1, most):
        before = frames_of(store)
        store.put([letter])
        if frames_of(store) == before:  # it was written over what was there
            return sent
    raise AssertionError("nobody made it longer")


def count(folder: Path) -> int:
    store = SqliteStore(folder, Config(), SYSTEM)
    try:
        return sum(box.depth for box in store.stats().mailboxes)
    finally:
        store.close()


def test_a_log_that_waits_for_the_disk_is_made_longer_ahead(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "room", Config(sync="full"), SYSTEM)
    sent = send_until_longer(store)
    assert sent > AHEAD_FROM_PAGES // 8, "not for a message or two"
    store._file.log.checkpointer.close()  # what is under way is over
    assert store._file.log.lengthen_from > AHEAD_FROM_PAGES
    shutil.copytree(tmp_path / "room", tmp_path / "after a crash")  # zeros behind the end and all
    store.close()
    assert count(tmp_path / "room") == count(tmp_path / "after a crash") == sent


def test_a_heartbeat_does_not_wait_for_the_disk(tmp_path: Path) -> None:
    disk = Syncs()
    store = SqliteStore(tmp_path / "room", Config(sync="full"), SYSTEM, vfs=disk.name)
    store.put([check(Draft(from_agent="ada", to_agent="bob", payload={}))] * 2)
    tickets = [delivery.ticket for delivery in store.claim(Want(agent="bob", lease_s=30, limit=2)).deliveries]
    before = disk.count
    assert store.heartbeat(tickets, 600) == []
    beaten = disk.count
    assert store.settle(tickets[0], "acked").held
    settled = disk.count
    store.close()
    assert (beaten, settled) == (before, before + 1)


def test_a_log_that_does_not_wait_for_the_disk_is_not(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "room", Config(), SYSTEM)
    with pytest.raises(AssertionError, match="nobody made it longer"):
        send_until_longer(store, 400)
    store.close()


def test_several_who_write_while_the_log_is_made_longer_lose_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wal, "AHEAD_PAGES", 40)  # again and again
    disk = Ahead()
    stores = [SqliteStore(tmp_path / "room", Config(sync="full"), SYSTEM, vfs=disk.name) for _ in range(3)]
    letter = check(Draft(from_agent="ada", to_agent="bob", payload={"text": "x" * 500}))
    threads = [threading.Thread(target=lambda s=store: [s.put([letter]) for _ in range(150)]) for store in stores]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert stores[0]._file.faults(30) == []
    assert len(disk.places) > 3
    shutil.copytree(tmp_path / "room", tmp_path / "after a crash")
    for store in stores:
        store.close()
    assert count(tmp_path / "room") == count(tmp_path / "after a crash") == 450


def test_a_full_disk_only_means_that_it_is_not_made_longer(tmp_path: Path) -> None:
    disk = Ahead(full=True)
    store = SqliteStore(tmp_path / "room", Config(sync="full"), SYSTEM, vfs=disk.name)
    with pytest.raises(AssertionError, match="nobody made it longer"):
        send_until_longer(store, 300)
    store._file.log.checkpointer.close()
    store.close()
    assert 1 <= len(disk.places) < 10, "not at every commit"
    assert count(tmp_path / "room") == 299


def test_a_log_of_its_usual_length_is_made_no_longer_and_folded_back_as_ever(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wal, "LONG_PAGES", 300)
    store = SqliteStore(tmp_path / "room", Config(sync="full"), SYSTEM)
    long: list[int] = []
    monkeypatch.setattr(store._file.log.checkpointer, "has_pages", long.append)
    letter = check(Draft(from_agent="ada", to_agent="bob", payload={"text": "x" * 500}))
    store.put([letter])
    store._file.log.checkpointer.close()  # nobody else does it
    store._file.log.lengthen()
    reached, length = store._file.log.lengthen_from, frames_of(store)
    while not long:
        store.put([letter])
    store.close()
    assert (reached, length) == (300, 300)
    assert 300 <= long[0] < 400


def test_what_an_interrupt_kept_from_beginning_can_begin_the_next_time(monkeypatch: pytest.MonkeyPatch) -> None:
    keeper, done = Checkpointer(lambda: Fold.DONE, SYSTEM), threading.Event()
    start = threading.Thread.start

    def be_interrupted(_: threading.Thread) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(threading.Thread, "start", be_interrupted)
    with pytest.raises(KeyboardInterrupt):
        keeper.beside(done.set)
    monkeypatch.setattr(threading.Thread, "start", start)
    keeper.beside(done.set)
    assert done.wait(10)
    keeper.close()


def test_a_writer_that_waits_for_the_disk_keeps_no_other_from_writing(tmp_path: Path) -> None:
    """Its commit is over by then, and others see it."""

    def ask(call: Call) -> None:
        if call.kind == "sync" and call.path.endswith("-wal") and not written:
            written.append(1)
            assert len(other.find(Query()).messages) == 2
            other.put([letter()])

    written = [0]  # not yet
    disk = Disk("asking", ask)
    with (
        closing(open_room(tmp_path, sync="full", vfs=disk.name)) as store,
        closing(open_room(tmp_path, busy_timeout_s=0.1)) as other,
    ):
        store.put([letter()])  # which begins the log
        other.find(Query())
        written.clear()
        store.put([letter()])
        assert written
        assert len(store.find(Query()).messages) == 3
    disk.unregister()
