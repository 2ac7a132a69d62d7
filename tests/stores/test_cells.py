"""Compare-and-set on cells: races, giving up, leaving and deleting. The suite of `postroom.testing` runs it on every store."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from postroom.board.board import Board
from postroom.core.clock import SYSTEM, ManualClock
from postroom.core.config import Config
from postroom.doors import session_binding
from postroom.doors.http_guard import RefusalTally
from postroom.errors import RoomBusy
from postroom.mail import presence, tokens
from postroom.mail.gateway import Gateway
from postroom.mail.rate_limit import SenderLimit
from postroom.pools.decide import Decision, Late, Trigger
from postroom.pools.decision_store import PREFIX, Decisions
from postroom.sessions.record import Failure, create
from postroom.stores import cells
from postroom.stores.cells import DELETE, update
from postroom.stores.contract import ANY, Store
from postroom.stores.memory.store import MemoryStore


class RacedStore(MemoryStore):
    """Another writer adds 100 to every cell just before this one writes: so many times."""

    races = 0

    def cell_write(self, name: str, value: Any, expect: int = ANY) -> int | None:
        if self.races > 0:
            self.races -= 1
            cell = self.cell_read(name)
            super().cell_write(name, 100 + (0 if cell is None else cell.value))
        return super().cell_write(name, value, expect)


@pytest.fixture
def store(clock: ManualClock) -> Iterator[RacedStore]:
    store = RacedStore(Config(), clock)
    yield store
    store.close()


def value_in(store: Store, name: str = "a") -> Any:
    cell = store.cell_read(name)
    return None if cell is None else cell.value


def one_more(value: int | None) -> int:
    return (value or 0) + 1


def test_the_first_writer_is_given_none(store: RacedStore) -> None:
    assert update(store, "a", one_more) == 1
    assert update(store, "a", one_more) == 2
    assert value_in(store) == 2


@pytest.mark.parametrize("races", [1, 2, 10])
def test_a_lost_race_is_run_again_with_the_newest_value(store: RacedStore, races: int) -> None:
    update(store, "a", one_more)
    store.races = races

    assert update(store, "a", one_more) == 2 + 100 * races
    assert value_in(store) == 2 + 100 * races


def test_a_cell_that_is_left_is_not_written(store: RacedStore) -> None:
    version = store.cell_write("a", 5)

    assert update(store, "a", lambda value: None) == 5
    assert update(store, "b", lambda value: None) is None
    assert store.cell_read("a") == ("a", version, 5)
    assert store.cell_read("b") is None


def test_a_cell_that_is_deleted_is_gone_and_no_writer_is_overlooked(store: RacedStore) -> None:
    store.cell_write("a", 5)
    store.races = 1
    seen = []

    def delete(value: Any) -> object:
        seen.append(value)
        return DELETE

    assert update(store, "a", delete) is None
    assert seen == [5, 105]
    assert store.cell_read("a") is None
    assert update(store, "a", delete) is None


def test_one_who_loses_every_race_is_told_and_has_changed_nothing(
    store: RacedStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cells, "TRIES", 8)
    store.cell_write("a", 0)
    for busy, said in ((None, "too many processes are changing a at once; try again"), ("not now", "^not now$")):
        store.races = 8
        with pytest.raises(RoomBusy, match=said):
            update(store, "a", one_more, busy=busy)

    assert value_in(store) == 1600  # what the others wrote, and nothing else


def test_the_pauses_between_tries_grow_and_end(store: RacedStore, monkeypatch: pytest.MonkeyPatch) -> None:
    pauses: list[float] = []
    monkeypatch.setattr(SYSTEM, "sleep", pauses.append)
    store.races = cells.TRIES

    with pytest.raises(RoomBusy):
        update(store, "a", one_more)

    assert len(pauses) == cells.TRIES - 4  # the first look, and three more at once
    assert pauses[0] < 0.002
    assert max(pauses) <= 0.05
    assert len(set(pauses)) > 50  # two losers do not come back in step
    assert 1 < sum(pauses) < 6


@pytest.mark.parametrize("error", [ValueError("no"), KeyboardInterrupt()])
def test_what_the_change_raises_passes_and_nothing_is_written(store: RacedStore, error: BaseException) -> None:
    def refuse(value: Any) -> Any:
        raise error

    version = store.cell_write("a", 5)
    with pytest.raises(type(error)):
        update(store, "a", refuse)
    assert store.cell_read("a") == ("a", version, 5)


class CrowdedStore(MemoryStore):
    """Once it is crowded, other writers win every race."""

    crowded = False

    def cell_write(self, name: str, value: Any, expect: int = ANY) -> int | None:
        return None if self.crowded and expect != ANY else super().cell_write(name, value, expect)


@pytest.fixture
def crowded(clock: ManualClock, monkeypatch: pytest.MonkeyPatch) -> Iterator[Gateway]:
    monkeypatch.setattr(cells, "TRIES", 5)
    gateway = Gateway(CrowdedStore(Config(), clock), Config(), clock)
    yield gateway
    gateway.close()


def changes_of(gateway: Gateway) -> dict[str, Callable[[], object]]:
    """Everything that changes a cell others may change, on a room in which each finds its cell."""
    store, clock = gateway.store, gateway.clock
    record = create(gateway, lambda name: Path("/nowhere") / name)
    failure = Failure("2026-11-16T00:00:00.000Z", "it failed", "", None)
    visitor = session_binding.HostSession("claude-code", "claude", session="s1")
    session_binding.bind(gateway, visitor, "claude")
    tokens.add_token(gateway, "ada", human=True)
    board = Board(gateway)
    board.add("t1", title="a task")
    decision = Decision("m1", Trigger.DEADLINE, {}, (), 1.0, 1.0, 0)
    store.cell_write(PREFIX + "m1", {"owner": gateway.process, "until_ms": 0, "decision": decision.to_dict()})
    decisions = Decisions(store, clock)
    return {
        "a task": lambda: board.claim("bob", timeout_s=0),
        "presence": lambda: presence.enter(gateway, "bob", transient=False),
        "a rate limit": lambda: SenderLimit(store, 10, 10, clock).take("bob"),
        "a refusal": lambda: tokens.record_refusal(gateway, "hook", "eve", None),
        "the log of tokens": lambda: tokens.switch_off(gateway, "ada", 0),
        "a door": lambda: session_binding.busy(gateway, "claude", working=True),
        "a new door": lambda: session_binding.bind(gateway, visitor, "claude-2"),
        "a session's members": record.admit,
        "a session's failure": lambda: record.fail(failure),
        "a session's end": record.end,
        "a late result": lambda: decisions.add_late("m1", Late("bob", None, "too late")),
    }


NAMES = (
    "a task|presence|a rate limit|a refusal|the log of tokens|a door|a new door|a session's members|a session's failure|"
    "a session's end|a late result"
).split("|")


@pytest.mark.parametrize("name", NAMES)
def test_nothing_that_changes_a_cell_returns_as_if_done(crowded: Gateway, name: str) -> None:
    changes = changes_of(crowded)
    assert sorted(changes) == sorted(NAMES)
    before = crowded.store.cell_scan("")
    crowded.store.crowded = True  # type: ignore[attr-defined]

    with pytest.raises(RoomBusy, match="try again"):
        changes[name]()

    assert crowded.store.cell_scan("") == before


def test_refusals_that_could_not_be_written_are_written_later(crowded: Gateway) -> None:
    tally = RefusalTally()
    crowded.store.crowded = True  # type: ignore[attr-defined]
    with pytest.raises(RoomBusy):
        tally.record(crowded, "http", "eve", None)
    assert tally.is_pending
    tally.record(crowded, "http", "mallory", None)  # within the same second: only counted

    crowded.store.crowded = False  # type: ignore[attr-defined]
    tally.write(crowded)

    count, newest = tokens.refusals(crowded)
    assert (count, [entry.claimed for entry in newest]) == (2, ["mallory"])
    assert not tally.is_pending
