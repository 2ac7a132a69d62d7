"""The write-ahead log is kept short beside the writers, and not by them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from postroom.clock import SYSTEM, ManualClock
from postroom.config import Config
from postroom.message import Draft, check
from postroom.stores import sqlite_file
from postroom.stores.sqlite import SqliteStore
from postroom.stores.sqlite_log import LONG_PAGES, TOO_LONG_PAGES, Fold, LogKeeper

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
def keepers() -> Iterator[Callable[..., LogKeeper]]:
    made: list[LogKeeper] = []

    def make(folding: Folding, clock: ManualClock | None = None, **how: bool) -> LogKeeper:
        made.append(LogKeeper(folding, clock or ManualClock(), **how))
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
    monkeypatch.setattr(sqlite_file, "WAL_PAGES", 200)
    store = SqliteStore(tmp_path / "room", Config(), SYSTEM)
    letter = check(Draft(from_agent="ada", to_agent="bob", payload={"text": "x" * 500}))
    pages = []
    for _ in range(3000):
        store.put([letter])
        pages.append(store._file.wal_bytes() // (sqlite_file.PAGE_BYTES + 24))
    store.close()
    # Some 7,500 pages were written; a log that nobody folds back would have them all. How many of them are there when the
    # thread that folds gets its turn is the machine's affair.
    assert max(pages) < 6000
