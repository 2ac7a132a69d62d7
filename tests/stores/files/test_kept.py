"""Messages that have ended leave the tables of a room in files, and are there all the same."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from postroom.core.clock import ManualClock
from postroom.core.config import Config
from postroom.core.message import Draft, check
from postroom.core.states import State
from postroom.stores.contract import Query, Want
from postroom.stores.files import kept as kept_module
from postroom.stores.files import log as log_module
from postroom.stores.files import room as room_module
from postroom.stores.files.kept import KeptMessage, KeptMessages, NameIndex
from postroom.stores.files.store import FilesStore


def draft(number: int, **more: Any) -> Draft:
    return check(Draft(from_agent="alice", to_agent="bob", payload={"n": number}, **more))


def finish(store: FilesStore, count: int) -> list[str]:
    """Send so many messages, and take each."""
    ids = []
    for number in range(count):
        ids += store.put([draft(number, idempotency_key=f"k{number}", correlation_id=f"c{number % 3}")])
        (delivery,) = store.claim(Want(agent="bob", lease_s=30)).deliveries
        store.settle(delivery.ticket, "refused" if number % 5 == 4 else "acked", detail="no")
    return ids


def picture(store: FilesStore) -> Any:
    """Everything that a room tells of its messages."""
    messages = [store.get(message.id) for message in store.find(Query(limit=10_000)).messages]
    changes = [(change.number, change.event, change.message.id) for change in store.events(limit=10_000)]
    return messages, changes, store.stats().states, store.work_of("bob"), store.number_at()


def test_a_message_that_has_ended_has_no_row_and_is_told_of_in_full(store: FilesStore) -> None:
    ids = finish(store, 10)

    message = store.get(ids[3])

    room = store._tables()
    assert not list(room.rows)
    assert message is not None
    assert (message.payload, message.exact_state) == ({"n": 3}, State.ACKED)
    assert [entry.event for entry in message.ledger] == ["stored", "claimed", "acked"]
    assert store.put([draft(3, idempotency_key="k3")]) == [ids[3]]
    assert [found.id for found in store.find(Query(correlation_id="c1")).messages] == ids[1::3]
    assert store.stats().states["acked"] == 8


def test_the_room_tells_the_same_to_those_that_read_it_later_and_in_portions(
    store: FilesStore, root: Path, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    finish(store, 25)
    store.put([draft(100)])
    before = picture(store)
    monkeypatch.setattr(log_module, "PORTION_BYTES", 300)

    with closing(FilesStore(root, Config(), clock)) as other:
        assert picture(other) == before


def test_a_log_that_is_written_anew_in_several_lines_means_the_same(
    store: FilesStore, root: Path, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = finish(store, 25)
    store.put([draft(100)])
    before = picture(store)
    monkeypatch.setattr(room_module, "_ROWS_AT_ONCE", 4)
    monkeypatch.setattr(store, "log_growth_bytes", 0)
    monkeypatch.setattr(store, "_first_line", 1)

    store.sweep()

    with closing(FilesStore(root, Config(), clock)) as other:
        for each in (store, other):
            assert picture(each)[:-1] == before[:-1]
            assert each.number_at() >= before[-1]  # numbers go on behind the old log
            assert each._log.path.read_bytes().count(b"\n") > 6
        assert other.requeue([ids[4]]) == [ids[4]]
        found = store.get(ids[4])
        assert found is not None
        assert found.exact_state is State.READY


def test_a_message_that_has_ended_can_come_back_end_again_and_go(store: FilesStore) -> None:
    ids = finish(store, 10)
    assert store.note(ids[4], "shown", "eve") is True
    assert store.requeue(ids) == [ids[4], ids[9]]
    assert store.stats().states["stored"] == 2
    finish(store, 0)
    for delivery in store.claim(Want(agent="bob", lease_s=30, limit=5)).deliveries:
        store.settle(delivery.ticket, "acked")

    assert store.purge(Query(ids=(ids[4], ids[5]))) == 2

    assert store.stats().states["acked"] == 8
    assert store.get(ids[4]) is None
    assert store.put([draft(5, idempotency_key="k5")]) != [ids[5]]
    assert store.work_of("bob").processed == 10


def test_what_is_kept_too_long_is_forgotten_the_oldest_first(root: Path, clock: ManualClock) -> None:
    with closing(FilesStore(root, Config(keep_count=4), clock)) as store:
        ids = finish(store, 10)
        assert store.sweep().purged == 6
        assert [message.id for message in store.find(Query()).messages] == ids[6:]


Steps = st.lists(st.tuples(st.booleans(), st.integers(1, 12), st.sampled_from([State.ACKED, State.DEAD])), max_size=60)


@given(Steps)
def test_what_is_remembered_of_messages_is_what_was_put_in(steps: list[tuple[bool, int, State]]) -> None:
    remembered, plain = KeptMessages(), {}
    least, kept_module._LEAST_NEW = kept_module._LEAST_NEW, 2  # type: ignore[misc]
    try:
        for number, (added, key, state) in enumerate(steps):
            if added and key not in plain:
                plain[key] = KeptMessage(key, state, number, 3, number, number + 1, [key] * (number % 3))
                remembered.put(plain[key])
            elif not added:
                remembered.take(key)
                plain.pop(key, None)
    finally:
        kept_module._LEAST_NEW = least  # type: ignore[misc]

    assert len(remembered) == len(plain)
    assert remembered.keys() == sorted(plain)
    assert [key for key, _, _ in remembered.oldest(frozenset(State))] == list(plain)
    for key in range(14):
        found = remembered.get(key)
        assert (found and found._replace(spots=list(found.spots))) == plain.get(key)


@given(st.lists(st.tuples(st.booleans(), st.sampled_from("abc"), st.integers(1, 4)), max_size=60))
def test_names_give_their_keys(steps: list[tuple[bool, str, int]]) -> None:
    index, plain = NameIndex(), set[tuple[str, int]]()
    least, kept_module._LEAST_NEW = kept_module._LEAST_NEW, 1  # type: ignore[misc]
    try:
        for added, name, key in steps:
            if added and (name, key) not in plain:
                index.add(("table", name), key)
                plain.add((name, key))
            elif not added:
                index.discard(("table", name), key)
                plain.discard((name, key))
    finally:
        kept_module._LEAST_NEW = least  # type: ignore[misc]

    for name in "abc":
        assert sorted(index.find(("table", name))) == sorted(key for each, key in plain if each == name)
