"""A room sends its ticks by itself: each once, by any process that has it open, and without a thread where there are none."""

from __future__ import annotations

import asyncio
import gc
import logging
import threading
import warnings
import weakref
from collections.abc import Callable, Mapping
from typing import Any

import pytest
from tests.support.patience import until
from tests.support.watched_clock import WatchedClock

import postroom
from postroom import InvalidMessage, Room, RoomBusy, aio
from postroom.mail.ticker import LOOK_S
from postroom.stores.contract import Query

MINUTE_S = 60.0


def ticking() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "postroom schedules"]


def ticks(room: Room) -> list[str]:
    """Which ticks were sent, in their order."""
    return [str(message.correlation_id) for message in room.store.find(Query(limit=10_000)).messages]


def settled(clock: WatchedClock) -> None:
    """Return when every ticker waits for time to pass."""
    until(lambda: all(clock.is_waiting(thread) for thread in ticking()))


def pass_minutes(clock: WatchedClock, minutes: int) -> None:
    for _ in range(minutes):
        settled(clock)
        clock.advance(MINUTE_S)
    settled(clock)


def test_a_tick_is_mail_like_any_other(room: Room, clock: WatchedClock) -> None:
    bob = room.agent("bob")
    made = room.schedule(
        "stand-up", every_s=60, to="bob", payload={"text": "stand-up!"}, channel="daily", type="reminder", priority=7,
        ttl_s=600, by="ada",
    )  # fmt: skip
    assert (made.every_s, made.sent, made.last_tick) == (60, 0, None)

    settled(clock)
    clock.advance(MINUTE_S)
    message = bob.receive(timeout_s=None)

    assert (message.payload, message.type, message.channel, message.priority) == (
        {"text": "stand-up!"}, "reminder", "daily", 7,
    )  # fmt: skip
    assert message.from_agent == "ada" and message.expires_at is not None
    assert message.correlation_id == f"stand-up@{made.next_tick}"
    (now,) = room.schedules()
    assert (now.sent, now.last_tick) == (1, made.next_tick)


def test_a_tick_for_nobody_is_for_the_first_that_claims_it(room: Room, clock: WatchedClock) -> None:
    room.schedule("sweep", every_s=60, channel="chores")
    pass_minutes(clock, 1)
    assert room.agent("bob").receive(timeout_s=None, channels=["chores"]).payload == {}


def test_however_many_have_the_room_open_a_tick_is_sent_once(
    open_room: Callable[..., Room], clock: WatchedClock
) -> None:
    rooms = [open_room() for _ in range(4)]
    rooms[0].schedule("beat", every_s=60, to="bob")
    for room in rooms[1:]:
        room.schedule("beat", every_s=60, to="bob")  # as every process of a program does when it starts

    pass_minutes(clock, 5)

    assert len(ticks(rooms[0])) == len(set(ticks(rooms[0]))) == 5
    assert len(rooms[0].schedules()) == 1


def test_a_process_that_opened_the_room_before_sends_ticks_too(
    open_room: Callable[..., Room], clock: WatchedClock
) -> None:
    first, second = open_room(), open_room()
    first.agent("bob")
    second.schedule("beat", every_s=60, to="bob")
    second.close()

    def round_and_look() -> bool:
        clock.advance(LOOK_S)
        return bool(ticking())

    until(round_and_look)
    pass_minutes(clock, 1)

    assert len(ticks(first)) >= 1


def test_a_process_that_only_watches_the_room_sends_ticks_too(
    open_room: Callable[..., Room],
    clock: WatchedClock,
    in_background: Callable[..., Any],
    pass_time: Callable[..., None],
) -> None:
    first, second = open_room(), open_room()
    watching = in_background(lambda: next(first.watch()))
    until(lambda: clock.is_waiting(watching._thread))
    second.schedule("beat", every_s=60, to="bob")
    second.close()

    pass_time(watching)

    assert watching.result().message.from_agent == "schedule"


@pytest.mark.parametrize(("missed", "sent"), [("skip", 0), ("one", 1), ("all", 10)])
def test_ticks_that_came_while_nobody_had_the_room_open_are_sent_by_the_policy(
    open_room: Callable[..., Room], clock: WatchedClock, url: str, missed: str, sent: int
) -> None:
    keeper = open_room() if url.startswith("memory:") else None  # or it would end with its last user
    room = open_room()
    room.schedule("beat", every_s=600, to="bob", missed=missed)
    room.close()
    if keeper is not None:
        keeper._ticker.close()  # it keeps the room, and sends nothing
    clock.advance(10 * 600 + 120)

    again = open_room()
    until(lambda: len(ticks(again)) >= sent)
    settled(clock)

    assert len(ticks(again)) == sent
    clock.advance(480)
    until(lambda: len(ticks(again)) == sent + 1)


def test_a_schedule_is_changed_and_taken_away(open_room: Callable[..., Room], clock: WatchedClock) -> None:
    room, other = open_room(), open_room()
    first = room.schedule("beat", every_s=60, to="bob")
    settled(clock)
    clock.advance(30)
    assert room.schedule("beat", every_s=60, to="bob") == first._replace(next_tick=first.next_tick)

    changed = other.schedule("beat", every_s=120, to="bob")
    assert changed.next_tick is not None and first.next_tick is not None and changed.next_tick > first.next_tick
    pass_minutes(clock, 2)
    assert len(ticks(room)) == 1

    assert other.unschedule("beat") and not room.unschedule("beat")
    pass_minutes(clock, 5)
    assert len(ticks(room)) == 1
    assert room.schedules() == other.schedules() == []


def test_a_wall_clock_that_is_set_forward_makes_cron_ticks_due_within_a_second(room: Room, clock: WatchedClock) -> None:
    room.schedule("nine", cron="0 9 * * *", to="bob")
    settled(clock)
    clock.jump_wall(24 * 3600)
    clock.advance(1.0)

    until(lambda: len(ticks(room)) == 1)
    clock.jump_wall(-3600)
    pass_minutes(clock, 2)
    assert len(ticks(room)) == 1


@pytest.mark.parametrize(
    "wrong",
    [
        {},
        {"every_s": 60, "cron": "* * * * *"},
        {"every_s": 0.5},
        {"cron": "60 * * * *"},
        {"cron": "* * * * *", "zone": "Nowhere"},
        {"every_s": 60, "missed": "maybe"},
        {"every_s": 60, "payload": {"x": float("nan")}},
    ],
)
def test_what_is_wrong_changes_nothing(room: Room, wrong: dict[str, object]) -> None:
    kept = room.schedule("beat", every_s=60, to="bob")
    with pytest.raises(InvalidMessage):
        room.schedule("beat", **wrong)  # type: ignore[arg-type]
    with pytest.raises(InvalidMessage):
        room.schedule("new", **wrong)  # type: ignore[arg-type]
    assert room.schedules() == [kept]


def test_a_room_without_schedules_has_no_thread_for_them(open_room: Callable[..., Room], clock: WatchedClock) -> None:
    room = open_room()
    room.agent("bob").send("ada", {})
    for _ in range(3):
        clock.advance(LOOK_S)
        room.stats()
    assert room._ticker._loop.chore.is_alive() is False


def test_closing_ends_the_thread(open_room: Callable[..., Room], clock: WatchedClock) -> None:
    room = open_room()
    room.schedule("beat", every_s=60)
    settled(clock)
    room.close()
    assert ticking() == []


def test_a_forgotten_room_sends_no_more(clock: WatchedClock) -> None:
    room: Room | None = postroom.open("memory:", clock=clock)
    assert room is not None
    room.schedule("beat", every_s=60)
    settled(clock)
    known = weakref.ref(room)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        room = None
        until(lambda: gc.collect() >= 0 and known() is None and ticking() == [])


def test_a_schedule_that_fails_does_not_keep_back_the_others(
    room: Room, clock: WatchedClock, caplog: pytest.LogCaptureFixture
) -> None:
    room.schedule("a", every_s=60, to="bob")
    room.schedule("b", every_s=60, to="bob")

    def refuse(_: str, detail: Mapping[str, Any]) -> None:
        if any(str(draft.correlation_id).startswith("a@") for draft in detail["drafts"]):
            raise RoomBusy("not a")

    take_back = room.hooks.on("before_send", refuse)
    with caplog.at_level(logging.DEBUG, "postroom"):
        pass_minutes(clock, 1)
    assert [tick[0] for tick in ticks(room)] == ["b"]
    assert [record.getMessage() for record in caplog.records if "tick" in record.getMessage()] == [
        "schedule/a: a tick failed, and will be repeated"
    ]

    take_back()
    clock.advance(1.0)
    until(lambda: len(ticks(room)) == 2)


def test_the_asyncio_room_has_schedules_too(url: str, clock: WatchedClock) -> None:
    async def work() -> None:
        async with aio.open(url, clock=clock) as room:
            made = await room.schedule("beat", cron="30 4 1 * *", zone="Asia/Tokyo", to="bob")
            assert await room.schedules() == [made]
            assert made.next_tick is not None and made.next_tick.endswith("T19:30:00.000Z")
            assert await room.unschedule("beat") and not await room.unschedule("beat")

    asyncio.run(work())
