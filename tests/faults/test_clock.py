"""The wall clock is set an hour forward, or an hour back, while the room is in use; or the machine is booted anew.

The story. Somebody corrects the clock, or a machine comes out of sleep with a wrong one. Processes of one room may even
disagree about the time of day. After a boot the steady clock begins anew, and the wall clock may be behind.

The invariant. Leases, delays and expiry take the time they were given, no more and no less; what was sent first comes
first; nothing is freed, frozen or lost. What people read (timestamps) is the wall clock's, right or wrong.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.faults.programs.rooms import letter, open_room

import postroom
from postroom.core.clock import ManualClock
from postroom.core.states import State
from postroom.stores.contract import Claimed, Want
from postroom.stores.sqlite.store import SqliteStore

from .support import ACKED, Look, Nursery, count, journal

HOUR_S = 3600.0
JUMPS = [HOUR_S, -HOUR_S]


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def store(folder: Path, clock: ManualClock) -> Iterator[SqliteStore]:
    store = open_room(folder, clock=clock)
    yield store
    store.close()


def claim(store: SqliteStore, limit: int = 1) -> Claimed:
    return store.claim(Want(agent="bob", lease_s=30, limit=limit))


@pytest.mark.parametrize("jump_s", JUMPS)
def test_a_lease_lasts_as_long_as_it_was_given(store: SqliteStore, clock: ManualClock, jump_s: float) -> None:
    store.put([letter()])
    [delivery] = claim(store).deliveries
    clock.jump_wall(jump_s)
    clock.advance(29.9)
    assert claim(store).deliveries == []
    clock.advance(0.2)
    [second] = claim(store).deliveries
    assert second.message.delivery_count == 2
    assert not store.settle(delivery.ticket, "acked").held


@pytest.mark.parametrize("jump_s", JUMPS)
def test_a_delay_lasts_as_long_as_it_was_given(store: SqliteStore, clock: ManualClock, jump_s: float) -> None:
    store.put([letter(delay_s=60)])
    clock.jump_wall(jump_s)
    clock.advance(59.9)
    assert claim(store).deliveries == []
    clock.advance(0.2)
    assert len(claim(store).deliveries) == 1


@pytest.mark.parametrize("jump_s", JUMPS)
def test_a_time_to_live_lasts_as_long_as_it_was_given(store: SqliteStore, clock: ManualClock, jump_s: float) -> None:
    first, second = store.put([letter(ttl_s=60), letter(ttl_s=60)])
    clock.jump_wall(jump_s)
    clock.advance(59.9)
    [delivery] = claim(store).deliveries
    assert delivery.message.id == first
    clock.advance(0.2)
    assert claim(store).deliveries == []
    assert store.settle(delivery.ticket, "acked").held  # what was taken in time may be finished
    kept = store.get(second)
    assert kept is not None and kept.exact_state is State.EXPIRED


@pytest.mark.parametrize("jump_s", JUMPS)
def test_a_retry_comes_when_it_is_due(store: SqliteStore, clock: ManualClock, jump_s: float) -> None:
    store.put([letter()])
    [delivery] = claim(store).deliveries
    store.settle(delivery.ticket, "retry", delay_s=5)
    clock.jump_wall(jump_s)
    clock.advance(4.9)
    due = claim(store)
    assert due.deliveries == [] and due.next_due_s == pytest.approx(0.1, abs=0.01)
    clock.advance(0.1)
    assert len(claim(store).deliveries) == 1


def test_what_was_sent_first_comes_first_whatever_the_wall_clock_says(store: SqliteStore, clock: ManualClock) -> None:
    sent = []
    for jump_s in (0, HOUR_S, -HOUR_S, -HOUR_S, HOUR_S, 0):
        clock.jump_wall(jump_s)
        sent += store.put([letter()])
        sent += store.put([letter(), letter()])
    assert [delivery.message.id for delivery in claim(store, limit=50).deliveries] == sent
    assert [change.message.id for change in store.events() if change.event == "claimed"] == sent


def test_the_feed_goes_on_behind_a_clock_that_was_set_back(store: SqliteStore, clock: ManualClock) -> None:
    store.put([letter()])
    cursor = store.events()[-1].number
    clock.jump_wall(-HOUR_S)
    [id] = store.put([letter()])
    assert [change.message.id for change in store.events(after=cursor)] == [id]


class SetBackBetweenTwoLooks(ManualClock):
    """Its wall clock is set back by an hour after the next look at it."""

    armed = False

    def wall_ms(self) -> int:
        now_ms = super().wall_ms()
        if self.armed:
            self.armed = False
            self.jump_wall(-HOUR_S)
        return now_ms


def test_a_cursor_taken_while_the_clock_is_set_back_misses_nothing(folder: Path) -> None:
    clock = SetBackBetweenTwoLooks()
    with postroom.open(f"sqlite:{folder}", clock=clock) as room:
        ada = room.agent("ada")
        clock.armed = True
        cursor = room.cursor()
        id = ada.send("bob", {})
        assert [change.message.id for change in room.events(after=cursor)] == [id]


@pytest.mark.parametrize("wall_s", [8 * HOUR_S, 60.0, 0.0, -HOUR_S])
def test_after_a_boot_leases_and_delays_end_and_new_messages_come_last(
    folder: Path, clock: ManualClock, wall_s: float
) -> None:
    before = open_room(folder, clock=clock)
    held, delayed, mortal = before.put([letter(), letter(delay_s=20), letter(ttl_s=40, priority=1)])
    assert claim(before).deliveries[0].message.id == held
    before.close()
    clock.reboot()
    clock.jump_wall(wall_s)
    store = open_room(folder, clock=clock)
    new = store.put([letter()])[0]
    assert new > max(held, delayed, mortal)
    clock.advance(30.1)  # at the latest when the time they were given is over again, however wrong the wall clock is
    found = [delivery.message.id for delivery in claim(store, limit=10).deliveries]
    assert found == [held, delayed, new] + ([mortal] if wall_s <= 0 else [])
    store.close()


def test_two_processes_of_one_boot_have_one_time(folder: Path, clock: ManualClock) -> None:
    """The second opener comes when the wall clock is an hour off, and must not count from there."""
    first = open_room(folder, clock=clock)
    first.put([letter(delay_s=60)])
    clock.jump_wall(HOUR_S)
    second = open_room(folder, clock=clock)
    assert claim(second).deliveries == []
    clock.advance(60)
    assert len(claim(second).deliveries) == 1
    first.close()
    second.close()


@pytest.mark.slow
def test_processes_with_jumping_clocks_lose_nothing_and_keep_the_order(
    nursery: Nursery, folder: Path, tmp_path: Path, figure: Callable[[str], None]
) -> None:
    notes, messages = tmp_path / "journal", count("CLOCK_MESSAGES", 500)
    roles = [("sender", n) for n in range(3)] + [("receiver", n) for n in range(2)]
    pids = [
        nursery.fork(f"clocks.{role}", folder=str(folder), journal=str(notes), number=number, messages=messages)
        for role, number in roles
    ]
    nursery.finish(*pids)
    lines = journal.read(notes)
    sent = [line for line in lines if line.event == "sent"]
    with Look(folder) as look:
        assert look.damage() == "ok"
        assert dict(look.rows("SELECT state, count(*) FROM messages GROUP BY state")) == {ACKED: 3 * messages}
        order = {id: place for place, (id,) in enumerate(look.rows("SELECT id FROM messages ORDER BY key"))}
        walls = [wall for (wall,) in look.rows("SELECT sent_ms FROM messages ORDER BY key")]
    for pid in {line.pid for line in sent}:
        places = [order[line.details[0]] for line in sent if line.pid == pid]
        assert places == sorted(places)
    assert {line.details[1] for line in lines if line.event == "received"} == {1}, "a lease ended before its time"
    assert all(line.details[1] for line in lines if line.event == "acked")
    jumps = sum(abs(second - first) > 1_000_000 for first, second in itertools.pairwise(walls))
    assert jumps > messages / 10, "the clocks did not jump"
    figure(f"clock: {len(sent)} messages, the wall clock jumped an hour or two {jumps} times between them")
