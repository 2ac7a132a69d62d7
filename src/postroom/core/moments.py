"""Moments as people give them: a time, a span that is counted back from now, or a position in the feed."""

from __future__ import annotations

from contextlib import suppress
from datetime import UTC, datetime
from typing import Final

from postroom.errors import InvalidMessage

from .clock import Clock, from_iso, iso, span_s

Moment = int | str | datetime

#: Numbers in this range, given as a moment, are milliseconds since 1970 (1973 to 5138); others are cursors.
_MS_RANGE: Final = range(100_000_000_000, 100_000_000_000_000)


def moment_ms(clock: Clock, field: str, moment: Moment) -> int:
    """The wall clock's milliseconds of a moment that was given: a time, or a span such as "2h" that is counted back from now.

    Raises InvalidMessage, naming the field.
    """
    if isinstance(moment, datetime):
        return round((moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp() * 1000)
    if isinstance(moment, int) and moment in _MS_RANGE:
        return moment
    with suppress(ValueError):
        return from_iso(str(moment))
    ago_s = span_s(moment) if isinstance(moment, str) else None
    if ago_s is None:
        now = iso(clock.wall_ms())
        raise InvalidMessage(
            field, f"must be a time such as {now}, or a span such as 10s, 5m, 2h or 1d, not {moment!r}"
        )
    return max(0, clock.wall_ms() - round(ago_s * 1000))


def is_cursor(moment: Moment) -> bool:
    """Whether that is a position in the feed."""
    return isinstance(moment, int) and moment not in _MS_RANGE
