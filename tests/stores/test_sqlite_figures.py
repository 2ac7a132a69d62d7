"""Figures of a SQLite room: what is remembered and added up is what a count of everything gives."""

from __future__ import annotations

import random
from contextlib import closing
from pathlib import Path
from typing import Any

import apsw
import msgspec
import pytest

from postroom.core.clock import ManualClock
from postroom.core.config import Config
from postroom.core.message import Draft, key_of
from postroom.core.states import OPEN, WAITING, WITHDRAWABLE, State
from postroom.stores.contract import Query, Stats, Want
from postroom.stores.sqlite import figures
from postroom.stores.sqlite.store import SqliteStore
from postroom.testing import StoreContract

SMALL = {"_MANY": 1, "_WORTH_ADDING": 1, "_PAUSE_S": 0.0}


class RememberingStore(SqliteStore):
    """A store that has added up everything before each look, so that each of its figures comes from what is remembered."""

    def stats(self) -> Stats:
        if not self.why_only_looking():
            self._upkeep.figures.count_up()
        return super().stats()


@pytest.fixture(autouse=True)
def _remember_from_the_first_message(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in SMALL.items():
        monkeypatch.setattr(figures, name, value)


@pytest.mark.slow
class TestRemembered(StoreContract):
    """The contract, in a room that remembers its figures from its first message on."""

    def open(self, clock: Any, config: Config) -> SqliteStore:
        return RememberingStore(self.folder, config, clock)


def counted_directly(store: SqliteStore) -> Stats:
    """The figures without what is remembered."""
    known, store._upkeep.figures._known = store._upkeep.figures._known, lambda: None  # type: ignore[method-assign]
    try:
        return store.stats()
    finally:
        store._upkeep.figures._known = known  # type: ignore[method-assign]


def lists_and_counts_are_true(store: SqliteStore, dice: random.Random) -> None:
    """What indexes and figures tell of some query is what reading everything tells."""
    states = dice.choice((WAITING, WITHDRAWABLE, frozenset({State.READY}), frozenset({State.DELAYED}), OPEN))
    channels, agent = dice.choice((None, ("builds",), ("general", "builds"))), dice.choice((None, "bob", "cy"))
    named: dict[str, Any] = {dice.choice(("visible_to", "to_agent")): agent}
    asked: Any = Query(states=states, channels=channels, limit=dice.choice((1, 3, 1000)), order="claim", **named)
    everything = store.find(msgspec.structs.replace(asked, limit=1000, concerns="ada", order="oldest")).messages
    best = sorted(everything, key=lambda message: (-message.priority, key_of(message.id, store._file.salt)))
    assert [message.id for message in store.find(asked).messages] == [message.id for message in best[: asked.limit]]
    assert store.count(asked) == len(best)


def is_added_up(store: SqliteStore) -> bool:
    """Whether the figures come from what is remembered, where there is anything."""
    marks = store._upkeep.figures._marks()
    return marks is None or store._upkeep.figures._added_up(marks) is not None


def finished_directly(store: SqliteStore) -> dict[int, int]:
    return {state: count for state, count in store._upkeep.figures._all_finished().items() if count}


def some_step(store: SqliteStore, clock: ManualClock, dice: random.Random) -> None:
    """One thing that may happen to messages."""
    every = [message.id for message in store.find(Query(limit=1000)).messages]
    ids = dice.sample(every, min(3, len(every)))
    kind = dice.randrange(12)
    if kind < 3:
        store.put([some_draft(dice) for _ in range(dice.randrange(1, 6))])
    elif kind < 7:
        take_some(store, dice, settle=kind == 6)
    elif kind == 7:
        store.requeue(ids)
    elif kind == 8:
        for id in ids:
            store.note(id, "shown", "bob")
    elif kind == 9:
        store.withdraw(ids, "ada")
    elif kind == 10:
        store.sweep()
        store.purge(Query(ids=tuple(ids[: dice.randrange(2)])))
    else:
        clock.advance(dice.choice((1, 25, 70)))


def some_draft(dice: random.Random) -> Draft:
    return Draft(
        from_agent="ada",
        to_agent=dice.choice(("bob", "cy", None)),
        channel=dice.choice(("general", "builds")),
        priority=dice.choice((0, 5, 9)),
        payload=1,
        payload_json="1",
        delay_s=dice.choice((0, 0, 0, 30)),
        ttl_s=dice.choice((None, None, 40)),
        order_key=dice.choice((None, None, "k", "l")),
    )


def take_some(store: SqliteStore, dice: random.Random, *, settle: bool) -> None:
    """Claim some messages, and say of most of them what became of them."""
    agent, channels = dice.choice(("bob", "cy")), dice.choice((None, ("builds", "general")))
    claimed = store.claim(Want(agent=agent, lease_s=60, limit=4, channels=channels, settle=settle))
    for delivery in () if settle else claimed.deliveries:
        outcome = dice.choice(("acked", "refused", "retry", "dead", None))
        if outcome is not None:
            store.settle(delivery.ticket, outcome, delay_s=dice.choice((0, 20)), detail="so it was")


@pytest.mark.parametrize("seed", range(6))
def test_what_is_added_up_is_what_a_count_of_everything_gives(tmp_path: Path, seed: int) -> None:
    clock, dice = ManualClock(), random.Random(seed)
    store = SqliteStore(tmp_path / "room", Config(keep_count=40), clock)
    for _ in range(100):
        some_step(store, clock, dice)
        if dice.random() < 0.5:
            store._upkeep.figures.count_up()
        shown, direct = store.stats(), counted_directly(store)
        assert (shown.states, shown.mailboxes) == (direct.states, direct.mailboxes)
        finished = {state: count for state, count in store._upkeep.figures.finished().items() if count}
        assert finished == finished_directly(store)
        lists_and_counts_are_true(store, dice)
        assert is_added_up(store)  # and was not counted directly after all
    store.close()


def test_a_message_that_comes_back_under_its_old_key_is_counted(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "room", Config(), ManualClock())
    ids = store.put([Draft(from_agent="ada", to_agent="bob", payload=n, payload_json="1") for n in range(5)])
    kept = [message for id in ids if (message := store.get(id)) is not None]
    store._upkeep.figures.count_up()
    store.purge(Query(ids=(ids[2],)))
    assert store.stats().states["stored"] == 4

    store.restore([kept[2]])

    assert store.stats().states["stored"] == 5
    assert is_added_up(store)
    store.close()


def test_a_file_that_another_program_changed_is_counted_anew(tmp_path: Path) -> None:
    clock = ManualClock()
    store = SqliteStore(tmp_path / "room", Config(), clock)
    store.put([Draft(from_agent="ada", to_agent=name, payload=0, payload_json="0") for name in ("bob", "bob", "cy")])
    store.sweep()

    delete_by_hand(tmp_path / "room", "key = (SELECT min(key) FROM mail)")
    store.sweep()
    assert store.stats().states["stored"] == 3  # it cannot know
    clock.advance(90_000)
    store.sweep()
    assert store.stats().states["stored"] == 2

    delete_by_hand(tmp_path / "room", "to_agent = 'cy'")
    assert [(box.to_agent, box.depth) for box in store.stats().mailboxes] == [("bob", 1)]  # a mailbox that is not there
    store.close()


def delete_by_hand(folder: Path, condition: str) -> None:
    with closing(apsw.Connection(str(folder / "messages.db"))) as connection:
        connection.execute(f"DELETE FROM mail WHERE {condition}").fetchall()


def test_a_room_that_can_only_be_looked_at_tells_its_figures(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "room", Config(), ManualClock())
    store.put([Draft(from_agent="ada", to_agent="bob", payload=0, payload_json="0")])
    assert store._upkeep.figures._marks() is None
    assert store.stats().states["stored"] == 1
    store.sweep()
    assert store._upkeep.figures._marks() is not None
    assert store.stats().states["stored"] == 1
    assert State.ACKED not in finished_directly(store)
    store.close()


@pytest.mark.parametrize("mark", ["counted keys", "counted changes", "counted since"])
def test_a_mark_that_another_program_spoilt_is_counted_anew(tmp_path: Path, mark: str) -> None:
    store = SqliteStore(tmp_path / "room", Config(), ManualClock())
    store.put([Draft(from_agent="ada", to_agent="bob", payload=0, payload_json="0")])
    store.sweep()
    with closing(apsw.Connection(str(tmp_path / "room" / "messages.db"))) as connection:
        connection.execute("UPDATE meta SET value = 'x' WHERE name = ?", (mark,)).fetchall()
    assert store.stats().states["stored"] == 1
    store.sweep()
    assert all(isinstance(kept, int) for kept in store._file.execute("counted_marks")[0])
    assert store.stats().states["stored"] == 1
    store.close()
