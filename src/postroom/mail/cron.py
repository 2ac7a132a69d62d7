"""Cron expressions: the moments that one means in a time zone, as Debian's cron reads it. `cronsim` does the reading.

Where a zone's clocks go forward, a fixed time that is left out ("30 2 * * *") comes at the end of the gap; where they
go back, it comes once, the first time. A wildcard hour follows the clock, and comes in both (tests/mail/test_cron.py).
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, tzinfo
from functools import lru_cache
from itertools import takewhile
from typing import Final
from zoneinfo import ZoneInfo

from cronsim import CronSim, CronSimError

#: What stands where in an expression.
FIELDS: Final = "minute hour day-of-month month day-of-week"
_HOUR_MS: Final = 3_600_000
#: The span in which the latest ticks are looked for grows by this, until there are enough of them.
_GROWS: Final = 8


@lru_cache(maxsize=64)
def zone_of(name: str) -> tzinfo:
    """The time zone of that name. ValueError, with a sentence, when this machine knows none."""
    if name == "UTC":
        return UTC  # also on a machine without a list of zones
    try:
        return ZoneInfo(name)
    except (KeyError, ValueError, OSError, TypeError):
        raise ValueError(
            f"this machine knows no time zone {name!r}; names are those of the IANA list, such as UTC or Europe/Berlin "
            "(`pip install tzdata` brings the list where the system has none)"
        ) from None


def check(expression: str, zone: tzinfo, now_ms: int) -> None:
    """Raise ValueError, with a sentence that names the field at fault, for what is no cron expression."""
    expected = f"expected five fields, {FIELDS}, such as '0 9 * * 1-5'"
    if len(expression.split()) != len(FIELDS.split()):
        raise ValueError(f"{expression!r} has {len(expression.split())} fields; {expected}")
    try:
        first = next_ms(expression, zone, now_ms)
    except CronSimError as error:
        raise ValueError(f"{expression!r} is no cron expression: {str(error).lower()}; {expected}") from None
    if first is None:
        raise ValueError(f"{expression!r} names a time that never comes")


def next_ms(expression: str, zone: tzinfo, after_ms: int) -> int | None:
    """The first tick after a moment of the wall clock; None when none comes within fifty years."""
    return next(_ticks(expression, zone, after_ms), None)


def latest_ms(expression: str, zone: tzinfo, after_ms: int, until_ms: int, most: int) -> list[int]:
    """The ticks after one moment and up to another: the latest of them, so many at most, in order.

    Always counted forward, so that they are the same moments at which each was due; from as late as possible, so that
    a year of missed minutes costs no more than an hour of them.
    """
    span_ms = _HOUR_MS
    while True:
        start_ms = max(after_ms, until_ms - span_ms)
        found = list(takewhile(lambda tick_ms: tick_ms <= until_ms, _ticks(expression, zone, start_ms)))
        if len(found) >= most or start_ms == after_ms:
            return found[-most:]
        span_ms *= _GROWS


def _ticks(expression: str, zone: tzinfo, after_ms: int) -> Iterator[int]:
    last_ms = after_ms
    for moment in CronSim(expression, datetime.fromtimestamp(after_ms // 1000, zone)):
        tick_ms = round(moment.timestamp()) * 1000
        if tick_ms > last_ms:  # in an hour that comes twice, it may begin with the first
            last_ms = tick_ms
            yield tick_ms
