"""The last hour of every mailbox and agent, in buckets of ten seconds: what came, what went, how long it waited.

It is filled by the feed while a page is open, and from the feed's past when the first page opens, or when more happened
at once than could be read. Nothing is kept on disk.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable
from typing import Final, NamedTuple, TypeVar

from postroom.core.states import ENDING
from postroom.room import Room
from postroom.stores.contract import Change

BUCKET_MS: Final = 10_000
BUCKETS: Final = 360
#: A plot has so many points: one a minute.
POINTS: Final = 60
_PER_POINT: Final = BUCKETS // POINTS
#: Of each bucket, so many waits are kept; the others only count.
MAX_WAITS: Final = 40
#: Mailboxes and agents that are followed; those that come later are not plotted.
MAX_SERIES: Final = 400
#: Rates are those of so many buckets.
_RATE_BUCKETS: Final = 2

Box = tuple[str | None, str]
Name = TypeVar("Name")


class TenSeconds:
    """Ten seconds of one mailbox, or of one agent."""

    __slots__ = ("came", "depth", "taken", "waits_ms", "went")

    def __init__(self) -> None:
        self.came = self.went = self.taken = 0
        self.depth: int | None = None
        self.waits_ms: list[int] = []


class Plot(NamedTuple):
    """An hour in sixty points, the oldest first. None: not known."""

    came: list[int]
    went: list[int]
    depth: list[int | None]
    wait_p95_ms: list[int | None]


class HourFigures(NamedTuple):
    """Rates of the last seconds, and how long messages waited in the last hour."""

    in_per_s: float
    out_per_s: float
    wait_p50_ms: int | None
    wait_p95_ms: int | None
    wait_p99_ms: int | None


class Hour:
    """All series of one room. Written by the follower's thread, read by others."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._boxes: dict[Box, dict[int, TenSeconds]] = {}
        self._agents: dict[str, dict[int, TenSeconds]] = {}
        #: Before this moment nothing is known.
        self.since_ms: int | None = None

    def add(self, changes: Iterable[Change]) -> None:
        """These changes happened, now or in the past."""
        with self._lock:
            for change in changes:
                self._add_one(change)

    def _add_one(self, change: Change) -> None:
        message = change.message
        box = message.to_agent, message.channel
        if change.event == "stored":
            _bucket(self._boxes, box, message.timestamp_ms).came += 1
            _bucket(self._agents, message.from_agent, message.timestamp_ms).came += 1
        elif change.event in ENDING:
            _bucket(self._boxes, box, change.time_ms).went += 1
            if change.agent is not None:
                _bucket(self._agents, change.agent, change.time_ms).went += 1
            if message.last_delivered_ms is not None and message.delivery_count == 1:
                taken = _bucket(self._boxes, box, message.last_delivered_ms)
                taken.taken += 1
                if len(taken.waits_ms) < MAX_WAITS:
                    taken.waits_ms.append(max(0, message.last_delivered_ms - message.timestamp_ms))

    def note_depths(self, depths: dict[Box, int], now_ms: int) -> None:
        """So many wait in each mailbox at this moment; in those that are not named, none."""
        with self._lock:
            for box in depths.keys() | self._boxes.keys():
                _bucket(self._boxes, box, now_ms).depth = depths.get(box, 0)

    def boxes(self, now_ms: int) -> set[Box]:
        """The mailboxes in which something moved within the hour."""
        first = now_ms // BUCKET_MS - BUCKETS
        with self._lock:
            return {
                box
                for box, series in self._boxes.items()
                if any(number > first and (b.came or b.went) for number, b in series.items())
            }

    def box_figures(self, box: Box, now_ms: int) -> HourFigures:
        """The rates and waits of a mailbox."""
        with self._lock:
            return _figures(self._boxes.get(box, {}), now_ms)

    def agent_figures(self, name: str, now_ms: int) -> HourFigures:
        """The rates of an agent: messages that it sends (in) and ends (out)."""
        with self._lock:
            return _figures(self._agents.get(name, {}), now_ms)

    def plot(self, box: Box, now_ms: int) -> Plot:
        """A mailbox's last hour."""
        with self._lock:
            return _plot(self._boxes.get(box, {}), now_ms, now_ms if self.since_ms is None else self.since_ms)


def _bucket(every: dict[Name, dict[int, TenSeconds]], name: Name, time_ms: int) -> TenSeconds:
    """The bucket of a moment. Of series beyond the limit it is one that nobody reads."""
    if name not in every and len(every) >= MAX_SERIES:
        return TenSeconds()
    series = every.setdefault(name, {})
    if len(series) > BUCKETS + 10:
        newest = max(series)
        for number in [number for number in series if number <= newest - BUCKETS]:
            del series[number]
    return series.setdefault(time_ms // BUCKET_MS, TenSeconds())


def _figures(series: dict[int, TenSeconds], now_ms: int) -> HourFigures:
    current = now_ms // BUCKET_MS
    recent = [series[number] for number in range(current - _RATE_BUCKETS + 1, current + 1) if number in series]
    span_s = ((_RATE_BUCKETS - 1) * BUCKET_MS + now_ms % BUCKET_MS) / 1000
    waits = sorted(ms for number, bucket in series.items() if number > current - BUCKETS for ms in bucket.waits_ms)
    return HourFigures(
        round(sum(bucket.came for bucket in recent) / span_s, 2),
        round(sum(bucket.went for bucket in recent) / span_s, 2),
        *(percentile(waits, share) for share in (0.5, 0.95, 0.99)),
    )


def percentile(ordered: list[int], share: float) -> int | None:
    """The value that this share of the values does not exceed."""
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))] if ordered else None


def _plot(series: dict[int, TenSeconds], now_ms: int, since_ms: int) -> Plot:
    current = now_ms // BUCKET_MS
    depths = _depths(series, current)
    plot = Plot([], [], [], [])
    for first in range(current - BUCKETS + 1, current + 1, _PER_POINT):
        numbers = range(first, first + _PER_POINT)
        buckets = [series[number] for number in numbers if number in series]
        plot.came.append(sum(bucket.came for bucket in buckets))
        plot.went.append(sum(bucket.went for bucket in buckets))
        known = (depths[number] for number in numbers if (number + 1) * BUCKET_MS > since_ms)
        plot.depth.append(max(known, default=None))
        plot.wait_p95_ms.append(percentile(sorted(ms for bucket in buckets for ms in bucket.waits_ms), 0.95))
    return plot


def _depths(series: dict[int, TenSeconds], current: int) -> dict[int, int]:
    """The depth at the end of each bucket: as seen, and for earlier buckets worked out from their flow."""
    depths: dict[int, int] = {}
    later = 0
    for number in range(current, current - BUCKETS, -1):
        bucket = series.get(number)
        seen = None if bucket is None else bucket.depth
        depths[number] = later if seen is None else seen
        later = depths[number] if bucket is None else max(0, depths[number] - bucket.came + bucket.taken)
    return depths


#: The past is read backwards in pieces of this length, for so long at most.
PIECE_MS: Final = 300_000
FILL_S: Final = 2.0
_PAGE: Final = 1000


def fill(room: Room, hour: Hour, until: int) -> None:
    """Add what the feed tells of the last hour, up to a number: the latest first, as far as it gets in FILL_S."""
    give_up_ns = room.clock.steady_ns() + round(FILL_S * 1e9)
    now_ms = hour.since_ms = room.clock.wall_ms()
    end = until
    for piece in range(1, BUCKETS * BUCKET_MS // PIECE_MS + 1):
        start = after = min(end, room.store.number_at(now_ms - piece * PIECE_MS))
        while after < end and (page := room.events(after, _PAGE)):
            hour.add(change for change in page if change.number <= end)
            after = page[-1].number
            if room.clock.steady_ns() > give_up_ns:
                return
        end = start
        hour.since_ms = now_ms - piece * PIECE_MS
