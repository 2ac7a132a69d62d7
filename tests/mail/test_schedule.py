"""Which ticks of a schedule are due: by its policy for missed ones, by which clock, and after a clock was set."""

from __future__ import annotations

from typing import Any

import pytest

from postroom import InvalidMessage
from postroom.mail import schedule
from postroom.mail.schedule import LATE_MS, MAX_CAUGHT_UP, PORTION, due, make, wait_ms

MINUTE_MS = 60_000
HOUR_MS = 60 * MINUTE_MS
DAY_MS = 24 * HOUR_MS
#: A Wednesday at 12:00:00 UTC.
NOON_MS = 1_795_003_200_000
ROOM_MS = 5_000_000


def defined(**changes: Any) -> dict[str, Any]:
    plain: dict[str, Any] = {
        "every_ms": None, "cron": None, "zone": "UTC", "missed": "one", "to": "bob", "channel": "general",
        "type": "tick", "payload": {}, "priority": 5, "ttl_s": None, "by": "schedule",
    }  # fmt: skip
    return plain | changes


def every(seconds: float, missed: str = "one") -> dict[str, Any]:
    return make(defined(every_ms=round(seconds * 1000), missed=missed), NOON_MS, ROOM_MS)


def minutely(missed: str = "one") -> dict[str, Any]:
    return make(defined(cron="* * * * *", missed=missed), NOON_MS, ROOM_MS)


def fire(value: dict[str, Any], wall_ms: int, room_ms: int = ROOM_MS) -> tuple[list[int], dict[str, Any]]:
    """All that is due at a moment, step after step."""
    sent: list[int] = []
    while (firing := due(value, wall_ms, room_ms)) is not None:
        assert len(firing.ticks_ms) <= PORTION
        sent += firing.ticks_ms
        value = firing.value
    return sent, value


def test_noon_is_a_noon() -> None:
    assert NOON_MS % DAY_MS == 12 * HOUR_MS


def test_an_interval_ticks_at_its_end_and_keeps_to_its_grid() -> None:
    value = every(10)
    assert due(value, NOON_MS, ROOM_MS + 9_999) is None
    assert wait_ms(value, NOON_MS, ROOM_MS + 9_000) == 1_000

    sent, value = fire(value, NOON_MS, ROOM_MS + 10_300)  # a little late

    assert sent == [ROOM_MS + 10_000]
    assert wait_ms(value, NOON_MS, ROOM_MS + 10_300) == 9_700


@pytest.mark.parametrize("jump_ms", [HOUR_MS, -HOUR_MS, 400 * DAY_MS, -400 * DAY_MS])
def test_an_interval_does_not_hear_of_a_wall_clock_that_is_set(jump_ms: int) -> None:
    value = every(10)
    assert due(value, NOON_MS + jump_ms, ROOM_MS + 9_999) is None
    assert fire(value, NOON_MS + jump_ms, ROOM_MS + 10_000)[0] == [ROOM_MS + 10_000]


@pytest.mark.parametrize("missed", schedule.POLICIES)
def test_of_ticks_that_are_due_together_the_policy_chooses(missed: str) -> None:
    grid = [ROOM_MS + 11_000 * place for place in range(1, 7)]
    value = every(11, missed)

    found, value = fire(value, NOON_MS, ROOM_MS + 66_500)

    assert found == (grid if missed == "all" else grid[-1:])
    assert wait_ms(value, NOON_MS, ROOM_MS + 66_500) == 10_500


@pytest.mark.parametrize(("late_ms", "is_sent"), [(LATE_MS, True), (LATE_MS + 1, False)])
def test_skip_leaves_out_what_is_more_than_a_minute_late(late_ms: int, is_sent: bool) -> None:
    value = every(3600, "skip")

    sent, value = fire(value, NOON_MS, ROOM_MS + HOUR_MS + late_ms)

    assert sent == ([ROOM_MS + HOUR_MS] if is_sent else [])
    assert wait_ms(value, NOON_MS, ROOM_MS + HOUR_MS + late_ms) == HOUR_MS - late_ms


@pytest.mark.parametrize("value", [every(60, "all"), minutely("all")], ids=["every", "cron"])
def test_all_catches_up_with_the_latest_thousand(value: dict[str, Any]) -> None:
    passed_ms = 5000 * MINUTE_MS
    now_ms = (NOON_MS if value["cron"] else ROOM_MS) + passed_ms

    sent, value = fire(value, NOON_MS + passed_ms, ROOM_MS + passed_ms)

    assert sent == [now_ms - place * MINUTE_MS for place in reversed(range(MAX_CAUGHT_UP))]
    assert value["sent"] == MAX_CAUGHT_UP and value["last_ms"] == now_ms


@pytest.mark.parametrize("missed", schedule.POLICIES)
def test_years_of_missed_ticks_are_dealt_with_at_once(missed: str) -> None:
    later_ms = 3 * 365 * DAY_MS
    sent, _ = fire(minutely(missed), NOON_MS + later_ms)
    assert len(sent) == (MAX_CAUGHT_UP if missed == "all" else 1)


@pytest.mark.parametrize("missed", schedule.POLICIES)
def test_a_wall_time_that_comes_twice_ticks_once(missed: str) -> None:
    value, sent = minutely(missed), []
    for minute in [1, 2, 3, 60, 61, 1, 2, 30, 61, 62, 3, 62, 63]:  # set forward by an hour, and back, twice
        found, value = fire(value, NOON_MS + minute * MINUTE_MS)
        sent += found

    assert sent == sorted(set(sent))
    whole = [NOON_MS + minute * MINUTE_MS for minute in range(1, 64)]
    assert sent == (whole if missed == "all" else [NOON_MS + m * MINUTE_MS for m in (1, 2, 3, 60, 61, 62, 63)])


def test_a_clock_that_was_years_ahead_does_not_silence_a_schedule() -> None:
    sent, value = fire(minutely(), NOON_MS + 900 * DAY_MS)
    assert sent == [NOON_MS + 900 * DAY_MS]

    sent, value = fire(value, NOON_MS + 90_000, ROOM_MS + 1000)  # it was put right

    assert sent == []
    sent, value = fire(value, NOON_MS + 2 * MINUTE_MS, ROOM_MS + 31_000)
    assert sent == [NOON_MS + 2 * MINUTE_MS]


def test_two_machines_that_disagree_by_days_do_not_take_turns() -> None:
    value, sent = minutely(), []
    for second in range(600):
        for wall_ms in (NOON_MS, NOON_MS + 2 * DAY_MS):
            found, value = fire(value, wall_ms + second * 1000, ROOM_MS + second * 1000)
            sent += found

    assert len(sent) <= 2 + 10  # one for each minute of the clock that is ahead, and one mistake


def test_a_schedule_that_is_just_the_same_is_known_again() -> None:
    value = every(10)
    _, later = fire(value, NOON_MS, ROOM_MS + 20_000)

    assert schedule.is_same(later, every(10))
    assert not schedule.is_same(later, every(11))
    assert not schedule.is_same(None, value)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({}, "neither was given"),
        ({"every_ms": 1000, "cron": "* * * * *"}, "both were given"),
        ({"every_ms": 1000, "zone": "Europe/Berlin"}, "zone: is for cron expressions"),
        ({"cron": "* * * * *", "zone": "Mars/Base"}, "zone: this machine knows no time zone 'Mars/Base'"),
        ({"cron": "* * * * *", "zone": 7}, "zone: must be text, not int"),
        ({"cron": 7}, "cron: must be text, not int"),
        ({"cron": "@daily"}, "cron: '@daily' has 1 fields"),
        ({"every_ms": 1000, "missed": "none"}, "missed: must be one of skip, one, all, not 'none'"),
        ({"every_ms": 1000, "payload": ["x"]}, "payload: Payload must be dict"),
        (
            {"every_ms": 1000, "payload": {"x": "y" * 70_000}},
            "payload: is 70008 bytes as JSON; the limit for schedules",
        ),
        (
            {"every_ms": 1000, "to": "", "priority": 0, "by": ""},
            "by: must not be empty; to: must not be empty; priority",
        ),
        ({"every_ms": 1000, "ttl_s": 0}, "ttl_s: must be more than 0"),
    ],
)
def test_what_is_wrong_is_named(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(InvalidMessage) as error:
        make(defined(**changes), NOON_MS, ROOM_MS)
    assert said in str(error.value)


@pytest.mark.parametrize("seconds", [0, 0.999, -5, float("nan"), float("inf"), "10", True, 10**12])
def test_an_interval_is_a_number_of_seconds_from_one_on(seconds: Any) -> None:
    with pytest.raises(InvalidMessage, match="every_s: must be"):
        schedule.every_ms(seconds)


@pytest.mark.parametrize("name", ["", "x" * 201, "a\nb", 7, None])
def test_a_schedule_has_a_name(name: Any) -> None:
    with pytest.raises(InvalidMessage, match="name: "):
        schedule.check_schedule_name(name)
