"""Waiting for the write lock: who writes much rests where others do too, who writes little gets in between."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import apsw
import pytest
from tests.support.descriptors import open_now, opened_since
from tests.support.watched_clock import WatchedClock

import postroom
from postroom.core.clock import SYSTEM
from postroom.errors import RoomBusy
from postroom.stores.sqlite import contention
from postroom.stores.sqlite.contention import Crowd, Patience


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "lock"


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> WatchedClock:
    """Time stands still for those who wait for the lock."""
    clock = WatchedClock()
    monkeypatch.setattr(contention, "SYSTEM", clock)
    return clock


@pytest.fixture
def rests(monkeypatch: pytest.MonkeyPatch, clock: WatchedClock) -> list[float]:
    """How long somebody rested, each time; nobody really does."""
    taken: list[float] = []
    monkeypatch.setattr(Crowd, "rest", lambda _self, seconds: taken.append(seconds))
    monkeypatch.setattr(contention, "_ASK_FROM", 0)
    return taken


def crowd_of(path: Path, others: int) -> Crowd:
    """A crowd in which so many others found the lock taken a moment ago."""
    for number in range(others):
        other = Crowd(path)
        other._place = (other._place + 1 + number) % contention._PLACES
        other.others()
    return Crowd(path)


def always() -> bool:
    return True


def never() -> bool:
    return False


@pytest.mark.parametrize(
    ("others", "writes_much", "rested"),
    [(2, always, True), (5, always, True), (1, always, False), (0, always, False), (5, never, False)],
    ids=["two others", "many others", "one other", "alone", "who writes little"],
)
def test_who_writes_much_rests_where_others_are_and_only_there(
    path: Path, rests: list[float], others: int, writes_much: Callable[[], bool], rested: bool
) -> None:
    patience = Patience(10, crowd_of(path, others), writes_much)
    assert patience(0)
    assert bool(rests) is rested


def test_who_has_rested_tries_again_at_once_and_does_not_rest_twice_for_one_write(
    path: Path, rests: list[float]
) -> None:
    patience = Patience(10, crowd_of(path, 3), always)
    for count in range(20):
        assert patience(count)
    assert len(rests) == 1


def test_nobody_rests_longer_than_it_would_wait(path: Path, rests: list[float]) -> None:
    assert Patience(0.0001, crowd_of(path, 3), always)(0)
    assert rests == [0.0001]


def test_who_gave_up_or_died_is_forgotten_by_itself(path: Path, rests: list[float], clock: WatchedClock) -> None:
    crowd = crowd_of(path, 3)
    assert crowd.others() == 3
    clock.advance(2 * contention._HERE_MS / 1000)
    assert crowd.others() == 0


def test_who_rests_is_still_one_of_the_crowd(
    path: Path, monkeypatch: pytest.MonkeyPatch, clock: WatchedClock, in_background: Any
) -> None:
    monkeypatch.setattr(contention, "_ASK_FROM", 0)
    resting, crowd = Crowd(path), Crowd(path)
    resting._place = (crowd._place + 1) % contention._PLACES
    rest_s = 2 * contention._HERE_MS / 1000
    rest = in_background(lambda: resting.rest(rest_s))
    assert rest.comes_to_wait(clock, 20)
    clock.advance(rest_s - contention._HERE_MS / 2000)
    assert crowd.others() == 1
    clock.advance(rest_s)
    rest.result()


def test_other_processes_are_seen(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(contention, "_ASK_FROM", 0)
    program = (
        "import sys; from pathlib import Path; from postroom.stores.sqlite import contention as p; p._ASK_FROM = 0\n"
        "crowd = p.Crowd(Path(sys.argv[1])); crowd._place = int(sys.argv[2])\n"
        "while True: crowd.rest(0.005)"
    )
    crowd = Crowd(path)
    another = (crowd._place + 1) % contention._PLACES  # two processes may happen to have one place
    with subprocess.Popen([sys.executable, "-c", program, str(path), str(another)]) as other:
        try:
            until_ns = SYSTEM.steady_ns() + 20_000_000_000
            while crowd.others() != 1:
                assert SYSTEM.steady_ns() < until_ns
                SYSTEM.sleep(0.005)
        finally:
            other.kill()


def test_where_there_is_no_table_everybody_is_alone(tmp_path: Path, rests: list[float]) -> None:
    crowd = Crowd(tmp_path / "no such folder" / "lock")
    assert [crowd.others() for _ in range(3)] == [0, 0, 0]
    assert Patience(10, crowd, always)(0)
    assert rests == []


def test_who_has_left_keeps_no_descriptor_and_is_alone(path: Path, rests: list[float]) -> None:
    crowd = crowd_of(path, 3)
    before = open_now()
    assert crowd.others() == 3
    crowd.close()
    assert crowd.others() == 0
    assert opened_since(before) == []


def test_programs_that_are_hardly_in_anybodys_way_make_no_table(path: Path) -> None:
    crowd = Crowd(path)
    for _ in range(contention._ASK_FROM - 1):
        assert crowd.others() == 0
    assert not path.exists()


def test_a_writer_gives_up_in_time_and_nothing_is_lost(tmp_path: Path) -> None:
    with postroom.open(f"sqlite:{tmp_path}/room", busy_timeout_s=0.05) as room:
        ada = room.agent("ada")
        other = apsw.Connection(f"{tmp_path}/room/messages.db")
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(RoomBusy):
            ada.send("bob", {})
        other.execute("ROLLBACK")
        other.close()
        assert ada.send("bob", {})
        assert sum(box.depth for box in room.store.stats().mailboxes) == 1


def test_who_sends_many_in_a_row_writes_much_and_who_sends_one_does_not(tmp_path: Path) -> None:
    with postroom.open(f"sqlite:{tmp_path}/room") as room:
        ada, file = room.agent("ada"), room.store._file  # type: ignore[attr-defined]
        SYSTEM.sleep(0.02)
        ada.send("bob", {})
        assert not file.numbers.writes_much()
        file.numbers.here.in_a_row = 0
        for _ in range(200):  # should the machine stand still for a moment, the next ones are in a row
            ada.send("bob", {})
            if file.numbers.writes_much():
                break
        else:
            pytest.fail("two hundred messages are many")
        SYSTEM.sleep(0.02)
        assert not file.numbers.writes_much()


def test_connections_are_of_apsws_own_kind(tmp_path: Path) -> None:
    """One of a subclass ends the process when it is collected in a ring of references (apsw 3.54.1, Python 3.11.2)."""
    with postroom.open(f"sqlite:{tmp_path}/room") as room:
        assert type(room.store._file.connection()) is apsw.Connection  # type: ignore[attr-defined]
