"""The last hour of a mailbox: counted as it happens, and read from the feed's past when somebody begins to look."""

from __future__ import annotations

from collections.abc import Callable

from postroom.core.clock import ManualClock
from postroom.doors.web.hour import BUCKET_MS, Hour, fill, percentile
from postroom.room import Room

BOX = ("bob", "general")


def test_the_past_hour_is_read_from_the_feed(room_with: Callable[[ManualClock], Room]) -> None:
    clock = ManualClock()
    room = room_with(clock)
    ada, bob = room.agent("ada"), room.agent("bob")
    for _ in range(30):  # one message every two minutes, each waits three seconds
        ada.send("bob", {"n": 1})
        clock.advance(3)
        bob.receive(timeout_s=0).ack()
        clock.advance(117)
    for _ in range(4):
        ada.send("bob", {"n": 2})
    hour, now_ms = Hour(), clock.wall_ms()

    fill(room, hour, room.cursor())
    hour.note_depths({BOX: 4}, now_ms)
    plot, figures = hour.plot(BOX, now_ms), hour.box_figures(BOX, now_ms)

    assert len(plot.came) == len(plot.depth) == 60
    assert 32 <= sum(plot.came) <= 34
    assert 28 <= sum(plot.went) <= 30
    assert plot.came[-1] == 4
    assert (figures.wait_p50_ms, figures.wait_p99_ms) == (3000, 3000)
    assert plot.depth[-1] == 4
    assert set(plot.depth[:-1]) <= {0, 1, None}
    assert {wait for wait in plot.wait_p95_ms if wait is not None} == {3000}


def test_what_comes_later_is_not_counted_twice(room_with: Callable[[ManualClock], Room]) -> None:
    clock = ManualClock()
    room = room_with(clock)
    ada = room.agent("ada")
    ada.send("bob", {"n": 1})
    until = room.cursor()
    clock.advance(1)
    ada.send("bob", {"n": 2})
    hour = Hour()

    fill(room, hour, until)
    hour.add(room.events(until))

    assert sum(hour.plot(BOX, clock.wall_ms()).came) == 2


def test_rates_are_those_of_the_last_seconds_and_what_is_older_is_forgotten(
    room_with: Callable[[ManualClock], Room],
) -> None:
    clock = ManualClock(wall_ms=1_790_000_000_000 // BUCKET_MS * BUCKET_MS)
    room = room_with(clock)
    hour, number = Hour(), room.cursor()
    for _ in range(15):
        room.agent("ada").send("bob", {"n": 1})
        clock.advance(1)
    hour.add(room.events(number))

    assert hour.box_figures(BOX, clock.wall_ms()).in_per_s == 1.0
    assert hour.agent_figures("ada", clock.wall_ms()).in_per_s == 1.0
    clock.advance(3700)
    assert hour.boxes(clock.wall_ms()) == set()
    assert sum(hour.plot(BOX, clock.wall_ms()).came) == 0


def test_what_is_not_known_is_not_drawn() -> None:
    hour = Hour()
    hour.note_depths({BOX: 3}, 1_790_000_000_000)

    depth = hour.plot(BOX, 1_790_000_000_000).depth

    assert depth[-1] == 3
    assert set(depth[:-1]) == {None}


def test_percentiles_are_values_that_occurred() -> None:
    values = list(range(1, 101))

    assert [percentile(values, share) for share in (0.5, 0.95, 0.99, 1.0)] == [51, 96, 100, 100]
    assert percentile([], 0.5) is None
    assert percentile([7], 0.99) == 7
