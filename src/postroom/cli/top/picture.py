"""A snapshot of a room at one moment. Pure: no terminal here, and nothing is changed.

A `Lookout` looks at one room again and again. How fast mail comes and goes it takes from the feed, from where it read
last: it never counts a room through to know its rates.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

import msgspec

from postroom.core.clock import from_iso, iso
from postroom.core.states import ENDING
from postroom.doors.waits import in_cycles
from postroom.mail import presence
from postroom.mail.limiting import RoomLimits, limits_text
from postroom.mail.presence import AgentInfo
from postroom.mail.receipts import Wait
from postroom.room import Room
from postroom.stores.contract import Change, MailboxFigures
from postroom.stores.gates import Paused

#: Rates are those of the last so many seconds.
WINDOW_S: Final = 5.0
#: Of a feed that is faster than this, in changes for each look, only so many are read: its rates are then a sample's.
MAX_CHANGES: Final = 4000
PAGE: Final = 1000
#: The newest dead letters that are shown.
MAX_DEAD: Final = 20
#: Agents that need somebody's eye come first.
_AGENT_ORDER: Final = {"gone": 0, "active": 1, "stopped": 8, "seen": 9}

Box = tuple[str | None, str]  # to_agent, channel


class Flow(NamedTuple):
    """Messages per second: stored, and ended in whatever way."""

    in_per_s: float = 0.0
    out_per_s: float = 0.0


class AgentLine(msgspec.Struct, frozen=True):
    """One agent. `alive` is None when nobody can see from here whether it runs."""

    name: str
    status: str
    alive: bool | None
    current_task: str | None
    heartbeat_age_s: float
    pending: int


class BoxLine(msgspec.Struct, frozen=True):
    """The mail that waits for one agent, or for any, in one channel. No age: nothing waits."""

    to_agent: str | None
    channel: str
    depth: int
    oldest_age_s: float | None
    in_per_s: float
    out_per_s: float


class WaitLine(msgspec.Struct, frozen=True):
    """An asker that waits for an answer. `cycle`: the one asked waits, perhaps through others, for the asker."""

    asker: str
    peer: str | None
    question_id: str
    age_s: float
    cycle: bool


class DeadLine(msgspec.Struct, frozen=True):
    """A message that was set aside."""

    id: str
    from_agent: str
    to_agent: str | None
    channel: str
    delivery_count: int
    error: str | None
    age_s: float


class LimitLine(msgspec.Struct, frozen=True):
    """A channel with limits or a pause, or (`agent`) an agent that is paused."""

    channel: str | None
    agent: str | None
    limits: str
    running: int | None
    allowed: int | None
    paused_by: str | None
    paused_age_s: float | None
    reason: str | None


class RoomPicture(msgspec.Struct, frozen=True, kw_only=True):
    """A room at one moment."""

    room: str
    time: str
    states: dict[str, int]
    in_per_s: float
    out_per_s: float
    oldest_age_s: float | None
    store: dict[str, Any]
    agents: list[AgentLine]
    mailboxes: list[BoxLine]
    waiting: list[WaitLine]
    dead: list[DeadLine]
    limits: list[LimitLine] = []
    schedules: int = 0
    next_tick: str | None = None


class MailRates:
    """How fast mail comes and goes, from what the feed told in the last seconds."""

    def __init__(self, window_s: float = WINDOW_S) -> None:
        self._window_ns = round(window_s * 1e9)
        self._samples: deque[_Sample] = deque()

    def add(self, changes: Iterable[Change], span_s: float, now_ns: int, read_s: float | None = None) -> None:
        """These changes, read at `now_ns`, happened in the last `span_s` seconds.

        With `read_s` they are only those of its first so many seconds, and stand for the rest.
        """
        span_s = max(span_s, 0.001)
        weight = 1.0 if read_s is None else span_s / min(max(read_s, 0.001), span_s)
        sample = _Sample(now_ns, span_s, defaultdict(float), defaultdict(float))
        for change in changes:
            box = change.message.to_agent, change.message.channel
            if change.event == "stored":
                sample.stored[box] += weight
            elif change.event in ENDING:
                sample.ended[box] += weight
        self._samples.append(sample)
        while now_ns - self._samples[0].read_ns >= self._window_ns:
            self._samples.popleft()

    def flows(self) -> dict[Box, Flow]:
        """The rates of every mailbox in which something moved."""
        span_s = sum(sample.span_s for sample in self._samples)
        boxes = {box for sample in self._samples for box in (*sample.stored, *sample.ended)}
        return {
            box: Flow(
                sum(sample.stored.get(box, 0.0) for sample in self._samples) / span_s,
                sum(sample.ended.get(box, 0.0) for sample in self._samples) / span_s,
            )
            for box in boxes
        }


class _Sample(NamedTuple):
    read_ns: int
    span_s: float
    stored: dict[Box, float]
    ended: dict[Box, float]


def box_lines(boxes: Iterable[MailboxFigures], flows: Mapping[Box, Flow], now_ms: int) -> list[BoxLine]:
    """Those first in which most waits or moves; also those that are empty because they are read."""
    waiting = {(box.to_agent, box.channel): (box.depth, _age_s(box.oldest_ms, now_ms)) for box in boxes}
    lines = [
        BoxLine(*box, *waiting.get(box, (0, None)), *(round(per_s, 1) for per_s in flows.get(box, Flow())))
        for box in waiting.keys() | flows.keys()
    ]
    return sorted(lines, key=lambda b: (-max(b.depth, b.in_per_s + b.out_per_s), b.to_agent or "", b.channel))


def agent_lines(agents: Iterable[AgentInfo], now_ms: int) -> list[AgentLine]:
    """The agents: those that are gone, those that run, then the others."""
    lines = [
        AgentLine(a.name, a.status, a.alive, a.current_task, _age_s(from_iso(a.last_heartbeat), now_ms), a.pending)
        for a in agents
    ]
    return sorted(lines, key=lambda a: (_AGENT_ORDER.get(a.status, 1), a.name))


def wait_lines(waits: Sequence[Wait], now_ms: int) -> list[WaitLine]:
    """The askers that wait, the longest wait first."""
    marks = in_cycles([(wait.asker, wait.peer) for wait in waits])
    return [
        WaitLine(wait.asker, wait.peer, wait.question_id, _age_s(from_iso(wait.since), now_ms), mark)
        for wait, mark in zip(waits, marks, strict=True)
    ]


def limit_lines(limits: RoomLimits, now_ms: int) -> list[LimitLine]:
    """What limits the room: what is paused comes first."""

    def pause(paused: Paused | None) -> tuple[str | None, float | None, str | None]:
        return (None, None, None) if paused is None else (paused.by, _age_s(paused.since_ms, now_ms), paused.reason)

    lines = [
        LimitLine(each.channel, None, limits_text(each), each.running, each.allowed(), *pause(each.paused))
        for each in limits.channels
    ]
    lines += [LimitLine(None, name, "", None, None, *pause(paused)) for name, paused in limits.agents.items()]
    return sorted(lines, key=lambda line: (line.paused_by is None, line.channel or "", line.agent or ""))


def _age_s(since_ms: int, now_ms: int) -> float:
    return max(0, now_ms - since_ms) / 1000


class Lookout:
    """Looks at a room again and again, and remembers where in the feed it was."""

    def __init__(self, room: Room) -> None:
        self._room = room
        self._rates = MailRates()
        # the first picture has rates too: those of the seconds before it
        self._looked_ns = room.clock.steady_ns() - round(WINDOW_S * 1e9)
        self._cursor = room.store.number_at(room.clock.wall_ms() - round(WINDOW_S * 1000))

    def look(self) -> RoomPicture:
        """The room as it is now. Changes nothing."""
        room = self._room
        self._read_feed()
        stats, now_ms = room.stats(), room.clock.wall_ms()
        flows, schedules = self._rates.flows(), room.schedules()
        return RoomPicture(
            room=str(room.url),
            time=iso(now_ms),
            states=stats.states,
            in_per_s=round(sum((flow.in_per_s for flow in flows.values()), 0.0), 1),
            out_per_s=round(sum((flow.out_per_s for flow in flows.values()), 0.0), 1),
            oldest_age_s=max((_age_s(box.oldest_ms, now_ms) for box in stats.mailboxes), default=None),
            store=stats.store,
            agents=agent_lines(presence.agents(room.gateway, stats.mailboxes), now_ms),
            mailboxes=box_lines(stats.mailboxes, flows, now_ms),
            waiting=wait_lines(room.waits(), now_ms),
            dead=self._dead(now_ms) if stats.states.get("dead") else [],
            limits=limit_lines(room.limits(), now_ms),
            schedules=len(schedules),
            next_tick=min((each.next_tick for each in schedules if each.next_tick is not None), default=None),
        )

    def _read_feed(self) -> None:
        room, clock = self._room, self._room.clock
        span_s = (clock.steady_ns() - self._looked_ns) / 1e9
        changes: list[Change] = []
        read_s = None
        while page := room.events(self._cursor, PAGE):
            changes += page
            self._cursor = page[-1].number
            if len(changes) >= MAX_CHANGES:  # more happens than is worth reading
                read_s = span_s - (clock.wall_ms() - page[-1].time_ms) / 1000
                self._cursor = max(self._cursor, room.cursor())
                break
        self._looked_ns = clock.steady_ns()
        self._rates.add(changes, span_s, self._looked_ns, read_s)

    def _dead(self, now_ms: int) -> list[DeadLine]:
        found = self._room.peek(state="dead", order="newest", limit=MAX_DEAD)
        ages_s = [_age_s(m.last_delivered_ms or m.timestamp_ms, now_ms) for m in found]
        return [
            DeadLine(m.id, m.from_agent, m.to_agent, m.channel, m.delivery_count, m.error, age_s)
            for m, age_s in zip(found, ages_s, strict=True)
        ]
