"""What is the memory store's own: rooms with names, and whom it wakes."""

from __future__ import annotations

import itertools

import pytest

from postroom.core.clock import SYSTEM, ManualClock
from postroom.core.config import Config, parse_url
from postroom.core.message import Draft, check
from postroom.errors import RoomClosed, RoomError
from postroom.stores import open_store
from postroom.stores.contract import LIMITS, Query, Store, Waiter, Want, topic_channel, topic_to
from postroom.stores.gates import ChannelLimits, LimitRule, Limits, limits_cell
from postroom.stores.memory.store import MemoryStore
from postroom.stores.tables.tables import Row, Tables
from postroom.testing import together


def open_memory(address: str) -> Store:
    return open_store(parse_url(address), Config(), ManualClock())


def send(store: Store, to: str | None = None, channel: str = "work") -> str:
    (id,) = store.put([check(Draft(from_agent="ada", to_agent=to, channel=channel, payload={}))])
    return id


def rung(waiters: list[Waiter]) -> list[bool]:
    """Who has a hint; it is taken."""
    return [waiter.wait(0) for waiter in waiters]


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore(Config(), ManualClock())


# Rooms and their names


def test_a_room_without_a_name_is_new_each_time() -> None:
    first, second = open_memory("memory:"), open_memory("memory:")
    send(first)

    assert second.find(Query()).messages == []


def test_a_room_with_a_name_is_shared_while_somebody_has_it_open() -> None:
    first, second, other = open_memory("memory:a"), open_memory("memory:a"), open_memory("memory:b")
    id = send(first)
    first.close()

    assert [message.id for message in second.find(Query()).messages] == [id]
    assert other.find(Query()).messages == []
    with pytest.raises(RoomClosed):
        first.find(Query())

    second.close()
    third = open_memory("memory:a")
    assert third.find(Query()).messages == []
    third.close()
    other.close()


def test_a_room_opened_and_closed_by_many_at_once_is_one_room_or_gone() -> None:
    def visit() -> bool:
        for _ in range(200):
            store = open_memory("memory:busy")
            send(store)
            store.close()
            store.close()
        return True

    assert together(visit, visit, visit) == [True] * 3
    last = open_memory("memory:busy")
    assert last.find(Query()).messages == []
    last.close()


def test_an_unknown_scheme_is_an_error_that_names_the_known_ones() -> None:
    with pytest.raises(RoomError) as caught:
        open_store(parse_url("carrier-pigeon:home"), Config(), SYSTEM)

    for word in ("carrier-pigeon", "memory:", "sqlite:"):
        assert word in str(caught.value)


# Whom it wakes


def test_one_waiter_is_woken_for_each_message_to_anyone_and_they_take_turns(store: MemoryStore) -> None:
    waiters = [store.listen([topic_channel("work")]) for _ in range(3)]
    turns = []
    for _ in range(6):
        send(store)
        turns.append(rung(waiters))

    assert [turn.count(True) for turn in turns] == [1] * 6
    assert [sum(turn[place] for turn in turns) for place in range(3)] == [2, 2, 2]


def test_messages_to_anyone_put_together_wake_one_waiter_each(store: MemoryStore) -> None:
    waiters = [store.listen([topic_channel("work")]) for _ in range(4)]
    draft = check(Draft(from_agent="ada", channel="work", payload={}))

    store.put([draft, draft, draft])

    assert rung(waiters).count(True) == 3


def test_only_those_who_wait_for_it_are_woken(store: MemoryStore) -> None:
    mail, channel, other = (
        store.listen([topic]) for topic in (topic_to("bob"), topic_channel("work"), topic_to("eve"))
    )
    send(store, "bob")

    assert rung([mail, channel, other]) == [True, False, False]


def test_a_hint_that_a_closed_waiter_did_not_take_goes_to_another(store: MemoryStore) -> None:
    """Or the message would wait for somebody to look by chance."""
    first, second = (store.listen([topic_channel("work")]) for _ in range(2))
    send(store)

    first.close()

    assert rung([second]) == [True]


def test_a_hint_that_was_taken_goes_to_nobody_else(store: MemoryStore) -> None:
    first, second = (store.listen([topic_channel("work")]) for _ in range(2))
    send(store)
    assert rung([first, second]) == [True, False]

    first.close()

    assert rung([second]) == [False]


def test_closing_the_room_ends_a_wait_in_another_thread(store: MemoryStore) -> None:
    waiter = store.listen([topic_to("bob")])

    def wait() -> str:
        try:
            waiter.wait(None)
        except RoomClosed:
            return "told"
        return "woken"

    def close() -> str:
        store.close()
        return "closed"

    assert together(wait, close) == ["told", "closed"]
    waiter.close()


# Limits


def test_a_claim_that_takes_long_stands_in_the_ledger_at_the_moment_its_rate_was_judged(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = ManualClock()
    store = MemoryStore(Config(), clock)
    store.cell_write(LIMITS, limits_cell(Limits({"work": ChannelLimits((LimitRule(per_s=100),))})))
    ids = [send(store) for _ in range(3)]
    at_hand = Tables.at_hand

    for slow_s in (0.007, 0.0, 0.004):

        def read_slowly(room: Tables, row: Row, slow_s: float = slow_s) -> bool:
            clock.advance(slow_s)
            return at_hand(room, row)

        monkeypatch.setattr(Tables, "at_hand", read_slowly)
        assert len(store.claim(Want(agent="bob", lease_s=60, channels=("work",))).deliveries) == 1
        clock.advance(0.010 - slow_s)

    kept = [message for message in map(store.get, ids) if message is not None]
    times_ms = [entry.time_ms for message in kept for entry in message.ledger if entry.event == "claimed"]
    assert [later - earlier for earlier, later in itertools.pairwise(times_ms)] == [10, 10]
