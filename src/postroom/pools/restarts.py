"""The restart policy of a supervisor, a pure function of the exits so far: start another worker, or give up.

A worker may be started again at most `max_restarts` times within `period_s`; one more, and the pool gives up, because a
worker that dies again and again will not be mended by starting it once more. One that cannot even be loaded is not
tried again at all. The first restart comes at once; those that follow wait, longer each time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal, NamedTuple

from postroom.core.backoff import backoff_s

#: boot: it ended by itself before it was ready. died: later, or it was killed. hung: killed because it did not stop.
Cause = Literal["boot", "died", "hung"]
#: Exits that are older than the period say nothing any more; so many are kept for people to read.
KEPT_EXITS: Final = 100


class Exit(NamedTuple):
    """One end of a worker's process that nobody asked for."""

    at_s: float
    cause: Cause
    text: str


@dataclass(frozen=True, slots=True)
class RestartPolicy:
    """How often, and how fast, a worker is started again."""

    max_restarts: int = 3  # this many within the period; one more, and the pool gives up
    period_s: float = 5.0  # how long an exit counts
    #: The second restart within the period waits this long (jittered), each further one twice as long, up to the cap.
    backoff_s: float = 0.05
    backoff_cap_s: float = 2.0  # the longest wait before a restart


class Restart(NamedTuple):
    """Start it again after that time."""

    delay_s: float


class GiveUp(NamedTuple):
    """Do not start it again: the pool has failed."""

    reason: str


def decide(exits: Sequence[Exit], policy: RestartPolicy, chance: float) -> Restart | GiveUp:
    """What follows from the last of these exits of one worker. `chance` is a number from 0 to 1."""
    last = exits[-1]
    if last.cause == "boot":
        return GiveUp(f"it could not start: {last.text}")
    recent = sum(exit_.at_s > last.at_s - policy.period_s for exit_ in exits)
    if recent > policy.max_restarts:
        return GiveUp(f"it ended {recent} times within {policy.period_s:g} s; the last time it {last.text}")
    if recent <= 1 or policy.backoff_s <= 0:
        return Restart(0.0)
    return Restart(backoff_s(recent - 1, chance, policy.backoff_s, policy.backoff_cap_s))


class Recycling(NamedTuple):
    """When a worker's process is replaced by a fresh one although nothing is wrong with it; None: never."""

    after_tasks: int | None = None
    above_mib: float | None = None

    def due(self, tasks: int, memory_bytes: int, chance: float) -> bool:
        """Whether it is time. `chance` belongs to the process: it moves both limits down by up to a fifth.

        So workers that were started together, and have done the same, are not replaced together.
        """
        share = 1 - chance / 5
        if self.after_tasks is not None and tasks >= max(1, round(self.after_tasks * share)):
            return True
        return self.above_mib is not None and memory_bytes > self.above_mib * share * 1024 * 1024
