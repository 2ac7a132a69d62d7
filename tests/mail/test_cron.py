"""Cron expressions mean the moments that Debian's cron means, also where clocks go forward or back."""

from __future__ import annotations

from datetime import UTC, datetime
from itertools import pairwise

import pytest

from postroom.mail.cron import check, latest_ms, next_ms, zone_of

BERLIN = "Europe/Berlin"


def ms(text: str) -> int:
    return round(datetime.fromisoformat(text).timestamp() * 1000)


def ticks(expression: str, zone: str, after: str, count: int) -> list[str]:
    found, at_ms = [], ms(after)
    for _ in range(count):
        following = next_ms(expression, zone_of(zone), at_ms)
        assert following is not None
        at_ms = following
        found.append(datetime.fromtimestamp(at_ms / 1000, UTC).strftime("%m-%d %H:%M"))
    return found


def test_an_expression_is_read_in_its_zone() -> None:
    assert ticks("0 9 * * 1-5", BERLIN, "2026-11-13T07:00:00+00:00", 2) == ["11-13 08:00", "11-16 08:00"]
    assert ticks("0 9 * * 1-5", "UTC", "2026-11-13T07:00:00+00:00", 2) == ["11-13 09:00", "11-16 09:00"]


def test_a_fixed_time_that_the_clocks_leave_out_comes_at_the_end_of_the_gap() -> None:
    """On 29 March 2026, 02:00 in Berlin is 03:00 (01:00 UTC)."""
    found = ticks("30 2 * * *", BERLIN, "2026-03-28T00:00:00+00:00", 3)
    assert found == ["03-28 01:30", "03-29 01:00", "03-30 00:30"]


def test_a_fixed_time_that_comes_twice_ticks_once() -> None:
    """On 25 October 2026, 03:00 in Berlin is 02:00 again (01:00 UTC)."""
    found = ticks("30 2 * * *", BERLIN, "2026-10-24T00:00:00+00:00", 3)
    assert found == ["10-24 00:30", "10-25 00:30", "10-26 01:30"]


@pytest.mark.parametrize("after", ["00:10", "00:30", "00:50", "01:10", "01:30", "01:50"])
def test_in_the_hour_that_comes_twice_the_next_tick_is_always_later(after: str) -> None:
    at_ms = ms(f"2026-10-25T{after}:00+00:00")
    for expression in ("30 2 * * *", "*/15 * * * *", "0 * * * *", "45 2,3 * * *"):
        following = next_ms(expression, zone_of(BERLIN), at_ms)
        assert following is not None and following > at_ms


def test_every_quarter_of_an_hour_goes_on_through_both_changes() -> None:
    for start in ("2026-03-28T20:00:00+00:00", "2026-10-24T20:00:00+00:00"):
        at_ms, found = ms(start), []
        for _ in range(60):
            following = next_ms("*/15 * * * *", zone_of(BERLIN), at_ms)
            assert following is not None
            at_ms = following
            found.append(at_ms)
        assert {later - earlier for earlier, later in pairwise(found)} == {15 * 60_000}


@pytest.mark.parametrize("zone", [BERLIN, "UTC", "America/New_York", "Australia/Lord_Howe"])
@pytest.mark.parametrize("expression", ["*/7 * * * *", "30 2 * * *", "0 0 1 * *", "0 12 * * MON"])
@pytest.mark.parametrize("most", [1, 5, 1000])
def test_the_latest_ticks_are_the_last_of_all_of_them(zone: str, expression: str, most: int) -> None:
    start_ms, end_ms = ms("2026-10-20T00:00:00+00:00"), ms("2026-11-02T03:04:05+00:00")
    whole, at_ms = [], start_ms
    while (following := next_ms(expression, zone_of(zone), at_ms)) is not None and following <= end_ms:
        whole.append(following)
        at_ms = following

    assert latest_ms(expression, zone_of(zone), start_ms, end_ms, most) == whole[-most:]


def test_the_latest_of_years_of_missed_minutes_is_found_at_once() -> None:
    until_ms = ms("2026-11-18T05:00:30+00:00")
    assert latest_ms("* * * * *", UTC, 0, until_ms, 1) == [ms("2026-11-18T05:00:00+00:00")]


@pytest.mark.parametrize(
    ("expression", "said"),
    [
        ("", "has 0 fields; expected five fields"),
        ("* * * *", "has 4 fields; expected five fields"),
        ("* * * * * *", "has 6 fields; expected five fields"),
        ("61 * * * *", "bad minute"),
        ("* 24 * * *", "bad hour"),
        ("* * 0 * *", "bad day-of-month"),
        ("* * * 13 *", "bad month"),
        ("* * * * mo", "bad day-of-week"),
        ("*/0 * * * *", "bad minute"),
        ("5-1 * * * *", "bad minute"),
        ("0 0 31 2 *", "bad day-of-month"),
        ("é * * * *", "bad minute"),
    ],
)
def test_what_is_no_expression_is_named_with_the_field_at_fault(expression: str, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        check(expression, UTC, 0)


@pytest.mark.parametrize("name", ["", "Nowhere/City", "../../etc/passwd", "/etc/localtime", "Europe", "a\0b"])
def test_a_zone_that_this_machine_does_not_know_is_named(name: str) -> None:
    with pytest.raises(ValueError, match="this machine knows no time zone"):
        zone_of(name)
