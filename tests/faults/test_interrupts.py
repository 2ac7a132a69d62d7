"""A signal whose handler raises may come at any moment. Whatever it ends, nothing stays open, and the room goes on."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from tests.interrupting import interrupted_at

from postroom import stores
from postroom.clock import SYSTEM
from postroom.config import Config
from postroom.errors import RoomBusy
from postroom.message import Draft, check
from postroom.platform import this_process
from postroom.store import Query, Want
from postroom.stores.sqlite import SqliteStore

HERE = str(Path(stores.__file__).parent)
WANT = Want(agent="bob", lease_s=30, owner=this_process())


def draft(**fields: Any) -> Draft:
    return check(Draft(from_agent="ada", to_agent="bob", payload={"n": 1}, **fields))


def claim_and_settle(store: SqliteStore) -> None:
    for delivery in store.claim(WANT).deliveries:
        store.settle(delivery.ticket, "acked", claim_next=WANT)


STEPS: dict[str, Callable[[SqliteStore], object]] = {
    "put": lambda store: store.put([draft()]),
    "put many": lambda store: store.put([draft(), draft(idempotency_key="once")]),
    "claim": lambda store: store.claim(WANT),
    "settle": claim_and_settle,
    "look through": lambda store: (store.events(), store.stats()),
    "tidy": lambda store: (store.cell_write("cell", 1), store.purge(Query(limit=1)), store.sweep()),
}


@pytest.fixture(params=["normal", "full"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[SqliteStore]:
    store = SqliteStore(tmp_path / "room", Config(sync=request.param), SYSTEM)
    yield store
    store.close()


@pytest.mark.parametrize("step", STEPS)
def test_a_step_that_is_interrupted_leaves_nothing_open(store: SqliteStore, tmp_path: Path, step: str) -> None:
    """At every moment at which it can be. Afterwards others can write, and what is sent here reaches them."""
    other = SqliteStore(tmp_path / "room", Config(busy_timeout_s=0.05), SYSTEM)
    synchronous = store._file.select("PRAGMA synchronous")
    for place in count():
        store.put([draft()])
        if not interrupted_at(place, lambda: STEPS[step](store), HERE):
            break
        assert not store._file.left_open(), place
        assert store._file.select("PRAGMA synchronous") == synchronous, place
        assert other.note(store.put([draft()])[0], "shown", "bob"), place
        other.purge(Query(limit=100))  # or there is more to do every time
    assert place > 10
    other.close()


def test_who_was_interrupted_while_it_tidied_up_finds_nothing_open_the_next_time(store: SqliteStore) -> None:
    store._file.begin()  # as two signals in a row can leave it
    (id,) = store.put([draft()])
    assert not store._file.left_open()
    assert store.get(id) is not None


@pytest.mark.parametrize("step", STEPS)
def test_what_a_signals_handler_wants_in_the_middle_of_a_step_is_refused_and_the_step_is_done(
    store: SqliteStore, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    """It would be done when the step is, and not before it returns; and where the step fails, not at all."""
    insert_many = store._file.insert_many

    def insert_and_be_interrupted(rows: Any) -> None:
        insert_many(rows)
        with pytest.raises(RoomBusy, match="in the middle of another step"):
            STEPS[step](store)  # in the same thread

    store.put([draft()])
    monkeypatch.setattr(store._file, "insert_many", insert_and_be_interrupted)
    ids = store.put([draft(), draft()])
    assert [store.get(id) is not None for id in ids] == [True, True]
    assert not store._file.left_open()
