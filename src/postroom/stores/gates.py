"""Gates: which waiting messages limits and pauses let pass. Concurrency limits, token buckets (GCRA), pauses.

The limits of a room stand in one cell, `contract.LIMITS`; a store reads it with every claim. What runs is derived from the
live claims, so a killed receiver leaks nothing. The only thing that is kept is one number for each bucket, the moment at
which it will be full again: the cell of that bucket, written in the step of the claim that took from it.

Pure: nothing here reads a store or a clock.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from typing import Annotated, Any, Final, NamedTuple, TypeVar

import msgspec

from postroom.core.config import prepare_types

from .contract import BUCKETS

#: What messages may be told apart by: everything in the channel together, or each sender or order key for itself.
BY: Final = ("sender", "order_key")
_LONGEST_MS: Final = 1000 * 366 * 86_400_000.0
#: The last millisecond that has a date.
MAX_WALL_MS: Final = 253_402_300_799_999
Count = Annotated[int, msgspec.Meta(ge=1, le=2**31 - 1)]
T = TypeVar("T")


class Group(NamedTuple):
    """What a limit needs to know of a message: its sender and its order key."""

    sender: str
    order_key: str | None

    def name(self, by: str | None) -> str | None:
        """The group that a rule counts it in; None where the rule is not for it."""
        return "" if by is None else self.sender if by == "sender" else self.order_key


class LimitRule(msgspec.Struct, frozen=True, omit_defaults=True):
    """A limit on taking: so many at once, so many a second; for the whole channel, or for each sender or order key.

    A message without an order key is free of rules by order key.
    """

    by: str | None = None  # None: the channel; "sender", "order_key": each of them
    concurrent: Count | None = None  # so many claimed at once
    per_s: Annotated[float, msgspec.Meta(gt=0)] | None = None  # so many claims a second
    burst: Count = 1  # so many of them at once, after a rest

    def interval_ms(self) -> float:
        """How long a claim takes a place in the bucket; a thousand years at most, whatever stands in the cell."""
        return min(1000 / (self.per_s or math.inf), _LONGEST_MS)


class Paused(msgspec.Struct, frozen=True, omit_defaults=True):
    """A pause: whose doing it is, since when (wall clock), and why."""

    by: str  # its maker
    since_ms: Annotated[int, msgspec.Meta(ge=0, le=MAX_WALL_MS)]  # when it began, by the wall clock
    reason: str | None = None  # why


class ChannelLimits(msgspec.Struct, frozen=True, omit_defaults=True):
    """What holds for one channel."""

    rules: tuple[LimitRule, ...] = ()
    waiting: Count | None = None  # so many messages wait in each of its mailboxes at most
    pass_failed: bool = False  # a failed message with an order key is set aside at once, and the next one passes
    paused: Paused | None = None

    def is_concurrent(self) -> bool:
        """Whether the end of a message may let another one run."""
        return any(rule.concurrent is not None for rule in self.rules)

    def only_concurrent(self) -> ChannelLimits:
        """The same without rates and pauses: what holds for a message that was taken before."""
        return ChannelLimits(tuple(msgspec.structs.replace(rule, per_s=None) for rule in self.rules))


class Limits(msgspec.Struct, frozen=True, omit_defaults=True):
    """Everything that limits a room: its channels, and the agents that are paused."""

    channels: dict[str, ChannelLimits] = {}
    agents: dict[str, Paused] = {}

    def __bool__(self) -> bool:
        return bool(self.channels or self.agents)


NO_LIMITS: Final = Limits()
_encode = msgspec.to_builtins


def parse_limits(value: Any) -> Limits:
    """The limits that a cell holds. What is no limit of ours limits nothing, and spoils no other: others may write, too."""
    if not isinstance(value, dict):
        return NO_LIMITS
    return Limits(_readable(value.get("channels"), ChannelLimits), _readable(value.get("agents"), Paused))


def _readable(entries: Any, kind: type[T]) -> dict[str, T]:
    found: dict[str, T] = {}
    for name, entry in entries.items() if isinstance(entries, dict) else ():
        with suppress(msgspec.ValidationError):
            found[name] = msgspec.convert(entry, kind)
    return found


def limits_cell(limits: Limits, before: Any = None) -> dict[str, Any] | None:
    """What the cell holds for these limits; None: there is to be none. What cannot be read in the cell before stays."""
    value: dict[str, Any] = _encode(limits)
    known = parse_limits(before)
    for part, readable in (("channels", known.channels), ("agents", known.agents)):
        entries = before.get(part) if isinstance(before, dict) else None
        if isinstance(entries, dict):
            unread = {name: entry for name, entry in entries.items() if name not in readable}
            value |= {part: unread | value.get(part, {})} if unread else {}
    return value or None


def bucket_cell(channel: str, rule: LimitRule, group: str) -> str:
    """The name of the cell in which a bucket is kept. The length keeps channel "a/b" apart from "a".

    Each rate has buckets of its own: two rates of one channel hold together, and a changed one begins with a full bucket
    (testing/limiting.py: test_after_a_slow_rate_a_faster_one_begins_at_once).
    """
    return f"{BUCKETS}/{len(channel)}/{channel}/{rule.by or ''}/{rule.per_s:g}/{rule.burst}/{group}"


def _ahead_ms(rule: LimitRule) -> float:
    """How long before its bucket is full again a claim may pass: the burst."""
    return (rule.burst - 1) * rule.interval_ms()


class UsedUp(NamedTuple):
    """The buckets of a rate that let nothing pass now: cells whose names begin so, and whose numbers are above this."""

    rule: LimitRule
    prefix: str
    full_after_ms: float


class Gates:
    """The gates of one claim at one moment.

    `running` tells the groups of what is claimed in a channel (answers are left out), `bucket` what the cell of a bucket
    holds, None without one; each is asked at most once for each channel or bucket. All times are the room's.
    """

    def __init__(
        self,
        limits: Limits,
        now_ms: int,
        running: Callable[[str], Iterable[Group]],
        bucket: Callable[[str], Any],
    ) -> None:
        self._limits = limits
        self._now_ms = now_ms
        self._running = running
        self._bucket = bucket
        self._counts: dict[str, Counter[tuple[str | None, str | None]]] = {}
        self._full_ms: dict[str, float] = {}
        #: The buckets that `take` took from, as they are to be written.
        self.taken: dict[str, float] = {}
        #: When the first of the gates that were found closed will open by itself; infinity: none of them does.
        self.opens_ms = math.inf

    def is_shut(self, channel: str) -> bool:
        """Whether nothing at all may be taken from a channel now."""
        limits = self._limits.channels.get(channel)
        if limits is None:
            return False
        return limits.paused is not None or any(
            rule.by is None and self._is_closed(channel, rule, "") for rule in limits.rules
        )

    def lets_pass(self, channel: str, group: Group) -> bool:
        """Whether a message may be taken now. Where not, `opens_ms` knows when that may be."""
        limits = self._limits.channels.get(channel)
        if limits is None:
            return True
        if limits.paused is not None:
            return False
        return not any(self._is_closed(channel, rule, name) for rule, name in _rules_for(limits, group))

    def take(self, channel: str, group: Group) -> None:
        """Count a message that is taken."""
        limits = self._limits.channels.get(channel)
        if limits is None:
            return
        if channel in self._counts:
            self._count(self._counts[channel], group)
        for rule, name in _rules_for(limits, group):
            if rule.per_s is not None:
                cell = bucket_cell(channel, rule, name)
                full_ms = max(self._full_at(cell, rule), self._now_ms) + rule.interval_ms()
                self._full_ms[cell] = self.taken[cell] = full_ms

    def full_groups(self, channel: str, by: str) -> list[str]:
        """The senders or order keys of which no more may run: nobody need look at their messages."""
        limits = self._limits.channels.get(channel)
        rules = () if limits is None else limits.rules
        most = min((rule.concurrent for rule in rules if rule.by == by and rule.concurrent is not None), default=None)
        if most is None:
            return []
        counts = self._counted(channel).items()
        return [name for (kind, name), count in counts if kind == by and name is not None and count >= most]

    def used_up(self, channel: str) -> Iterator[UsedUp]:
        """How the store finds the senders or order keys whose rates are used up, all at once."""
        limits = self._limits.channels.get(channel)
        for rule in () if limits is None else limits.rules:
            if rule.by is not None and rule.per_s is not None:
                least_ms = self._now_ms + _ahead_ms(rule)
                yield UsedUp(rule, bucket_cell(channel, rule, ""), least_ms)

    def opens_with(self, rule: LimitRule, full_ms: float) -> None:
        """A bucket that keeps messages waiting will be full again at that time: a gate opens before that."""
        full_ms = min(full_ms, self._now_ms + rule.burst * rule.interval_ms())
        self.opens_ms = min(self.opens_ms, full_ms - _ahead_ms(rule))

    def _is_closed(self, channel: str, rule: LimitRule, name: str) -> bool:
        if rule.concurrent is not None and self._counted(channel)[rule.by, name] >= rule.concurrent:
            return True
        if rule.per_s is None:
            return False
        free_ms = self._full_at(bucket_cell(channel, rule, name), rule) - _ahead_ms(rule)
        if free_ms <= self._now_ms:
            return False
        self.opens_ms = min(self.opens_ms, free_ms)
        return True

    def _counted(self, channel: str) -> Counter[tuple[str | None, str | None]]:
        counts = self._counts.get(channel)
        if counts is None:
            counts = self._counts[channel] = Counter()
            for group in self._running(channel):
                self._count(counts, group)
        return counts

    def _count(self, counts: Counter[tuple[str | None, str | None]], group: Group) -> None:
        counts[None, ""] += 1
        for by in BY:
            counts[by, group.name(by)] += 1

    def _full_at(self, cell: str, rule: LimitRule) -> float:
        full_ms = self._full_ms.get(cell)
        if full_ms is None:
            value = self._bucket(cell)
            known_ms = float(value) if isinstance(value, (int, float)) and abs(value) < 2**63 else 0.0
            # no emptier than empty: the clock may have been another machine's
            full_ms = self._full_ms[cell] = min(known_ms, self._now_ms + rule.burst * rule.interval_ms())
        return full_ms

    def opens_s(self) -> float | None:
        """In how many seconds the first closed gate opens by itself; None when none does. Never 0: it is closed now."""
        return None if self.opens_ms == math.inf else max(1.0, self.opens_ms - self._now_ms) / 1000


def _rules_for(limits: ChannelLimits, group: Group) -> Iterator[tuple[LimitRule, str]]:
    """The rules that a message falls under, and the group of each that it counts in."""
    for rule in limits.rules:
        name = group.name(rule.by)
        if name is not None:
            yield rule, name


prepare_types(ChannelLimits, Paused)
