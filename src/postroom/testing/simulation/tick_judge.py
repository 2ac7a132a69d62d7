"""The judge of schedules: every tick once, none early, none off its grid, and none left out but by the policy.

Which ticks there are is worked out here from the definition, by counting; the product's own planning is not asked. From
two cells in a row it is known which ticks the second has dealt with; the messages must be those, and no others.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from postroom.core.clock import from_iso, iso
from postroom.core.message import Draft

from .broken import Broken
from .plans import LEAD
from .process import Around, Process

PREFIX: Final = "schedule/"
#: The only cron expression of simulated programs ticks at every full hour.
_HOUR_MS: Final = 3_600_000
_LATE_MS: Final = 60_000
_MOST: Final = 1000
_CORRECTED_MS: Final = 3 * _HOUR_MS
#: A process that runs sends a tick no later than this: it may look for schedules every 5 s, and its hints may be lost.
PROMPT_MS: Final = 7_000

#: The fields of a cell that a tick changes.
_PROGRESS: Final = ("anchor_ms", "next_ms", "last_ms", "sent", "corrected_ms")

Value = dict[str, Any]


class TickJudge:
    """Sees every write of a schedule's cell, and every message that a schedule sent."""

    def __init__(self, world: Around) -> None:
        self._world = world
        self._cells: dict[str, Value] = {}
        self._since_ms: dict[str, int] = {}  # when each schedule was made, in room time
        #: By schedule, since it was made or its clock was corrected: the ticks that must have been sent, and that were.
        self._expected: dict[str, list[int]] = {}
        self._sent: dict[str, list[int]] = {}

    def __bool__(self) -> bool:
        """Whether there is a schedule."""
        return bool(self._cells)

    # What is written

    def put(self, process: Process, draft: Draft) -> None:
        """A message was stored: perhaps a tick."""
        name, at, time = (draft.correlation_id or "").rpartition("@")
        if draft.from_agent != LEAD or not at:  # or what the lead of a task is told
            return
        tick_ms, sent = from_iso(time), self._sent.setdefault(name, [])
        if tick_ms in sent:
            raise Broken(f"{process!r} sends the tick of {name} at {time} a second time")
        sent.append(tick_ms)
        self._world.happened("a tick was sent")

    def cell_written(self, process: Process, name: str, value: Value | None) -> None:
        """The cell of a schedule was written, or deleted."""
        name = name.removeprefix(PREFIX)
        before = self._cells.get(name)
        if value is None:
            self._cells.pop(name, None)
            self._begin_anew(name)
            return
        self._cells[name] = value
        if before is None or _definition(before) != _definition(value):
            self._begin_anew(name)  # what it was before is over; a message of it that comes now is nobody's
            self._since_ms[name] = self._world.room_ms()
            return
        self._moved_on(process, name, before, value)

    def _begin_anew(self, name: str) -> None:
        self._expected[name], self._sent[name] = [], []

    def _moved_on(self, process: Process, name: str, before: Value, value: Value) -> None:
        """Another tick, or more, has been dealt with; or the clock was put right."""
        step_ms, upto_ms, next_ms = _grid(value), value["anchor_ms"], value["next_ms"]
        if value.get("corrected_ms") != before.get("corrected_ms"):
            if before["anchor_ms"] - upto_ms <= _CORRECTED_MS:
                raise Broken(f"{process!r} took the clock for corrected, which was set back by less than three hours")
            self._begin_anew(name)
            self._world.happened("a clock that was far ahead was put right")
            return
        ticks = range(before["next_ms"], upto_ms + 1, step_ms)
        if not ticks or ticks[-1] != upto_ms or next_ms != upto_ms + step_ms:
            raise Broken(f"{process!r} moved {name} from {before['next_ms']} by {upto_ms} to {next_ms}: off its grid")
        if upto_ms > self._latest_ms(value):
            raise Broken(f"{process!r} sends the tick of {name} at {iso(upto_ms)} before it is due")
        sent = value["sent"] - before["sent"]
        chosen = self._chosen(value, ticks, sent)
        if len(ticks) > len(chosen):
            self._world.happened("a tick was missed, and the policy decided")
        if sent != len(chosen):
            raise Broken(f"{name} ({value['missed']}) sent {sent} messages for {len(ticks)} ticks that were due")
        self._expected.setdefault(name, []).extend(chosen)
        self._world.tell(process, f"moves {name} on to {iso(next_ms)}, {sent} sent")

    def _chosen(self, value: Value, ticks: range, sent: int) -> list[int]:
        if (
            value["missed"] == "all"
        ):  # of more than a thousand the latest; those after these were not due yet, or are next
            return list(ticks)[-sent:] if len(ticks) > sent and self._behind(value, ticks) >= _MOST else list(ticks)
        if value["missed"] == "skip" and sent == 0 and self._latest_ms(value) - ticks[-1] > _LATE_MS:
            return []
        return [ticks[-1]]

    def _behind(self, value: Value, ticks: range) -> int:
        """How many ticks there were from the first of these until now."""
        return (self._latest_ms(value) - ticks[0]) // ticks.step + 1

    def _now_ms(self, value: Value) -> int:
        return self._world.clock.wall_ms() if value["cron"] is not None else self._world.room_ms()

    def _latest_ms(self, value: Value) -> int:
        """The latest moment that the writer can have read: the wall clock may have been set back since."""
        return self._now_ms(value) if value["cron"] is None else self._world.highest_wall_ms()

    def goes_on_from(self, cells: dict[str, Any], drafts: Iterable[Draft]) -> None:
        """A power cut has ended all processes, and these cells and messages are left: both of a step, or neither."""
        kept = {draft.correlation_id for draft in drafts if draft.from_agent == LEAD}
        self._cells = {name.removeprefix(PREFIX): value for name, value in cells.items() if name.startswith(PREFIX)}
        for name, value in self._cells.items():
            if value["last_ms"] is not None and f"{name}@{iso(value['last_ms'])}" not in kept:
                raise Broken(f"a power cut left {name} moved on, and took the message of its tick")
            self._begin_anew(name)
            self._since_ms[name] = self._world.room_ms()

    # What must be true

    def judge_late(self, process: Process, open_ms: int) -> None:
        """This process has had the room open for so long, and ran all the time: what was due is sent."""
        now_ms = self._world.room_ms()
        for name, value in self._cells.items():
            is_known = now_ms - self._since_ms.get(name, now_ms) >= PROMPT_MS and open_ms >= PROMPT_MS
            if value["cron"] is None and is_known and now_ms - value["next_ms"] > PROMPT_MS:
                late_s = (now_ms - value["next_ms"]) / 1000
                raise Broken(f"{process!r} has the room open, and the tick of {name} is {late_s:g} s late")

    def at_the_end(self) -> None:
        """Somebody has opened the room in calm: nothing is due any more, and each tick was sent once."""
        for name, value in self._cells.items():
            corrects = value["cron"] is not None and value["anchor_ms"] - self._now_ms(value) > _CORRECTED_MS
            if value["next_ms"] < self._now_ms(value) and not corrects:  # one of this very moment may come yet
                raise Broken(f"the tick of {name} at {iso(value['next_ms'])} was due, and nobody sent it")
            if sorted(self._sent[name]) != sorted(self._expected[name]):
                raise Broken(f"{name} should have sent {self._expected[name]}, and sent {self._sent[name]}")


def _definition(value: Value) -> Value:
    return {field: said for field, said in value.items() if field not in _PROGRESS}


def _grid(value: Value) -> int:
    return _HOUR_MS if value["cron"] is not None else int(value["every_ms"])
