"""Making a failing schedule smaller: fewer processes, fewer faults, fewer operations, fewer choices."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from .plans import AGENTS, Plan, PlannedProcess
from .runs import ScheduleOutcome, run
from .stage import Hangs

#: So many runs are spent on one failure.
MOST_RUNS: Final = 600
#: A run that hangs costs as much as so many others.
_HANGS_COST: Final = 60
_NAMES: Final = re.compile(rf"p?\d[\d.']*|\b({'|'.join(AGENTS)})\b")


def shrink(failed: ScheduleOutcome, *, store: str = "memory", most_runs: int = MOST_RUNS) -> ScheduleOutcome:
    """The smallest schedule found that fails in the same way, with its trace."""
    best, left = failed, most_runs // (_HANGS_COST if isinstance(failed.failure, Hangs) else 1)
    again = True
    while again:
        again = False
        for smaller in _smaller(best.plan):
            if left <= 0:
                break
            left -= 1
            outcome = run(smaller, store=store)
            if _kind(outcome) == _kind(failed):
                best, again = outcome, True
                break
    return run(best.plan, store=store, traced=True)


def _kind(outcome: ScheduleOutcome) -> str:
    """What failed, without the names and numbers of this schedule."""
    failure = outcome.failure
    return "" if failure is None else type(failure).__name__ + _NAMES.sub("_", str(failure))


def _smaller(plan: Plan) -> Iterator[Plan]:
    """Plans that are a little smaller, those with the most taken away first."""
    for place in range(len(plan.parts)):
        if len(plan.parts) > 1:
            yield _without_part(plan, place)
    for place in range(len(plan.faults)):
        yield plan._replace(faults=plan.faults[:place] + plan.faults[place + 1 :])
    for place, part in enumerate(plan.parts):
        for start, end in _chunks(len(part.ops)):
            fewer = PlannedProcess(part.agent, part.ops[:start] + part.ops[end:])
            yield plan._replace(parts=(*plan.parts[:place], fewer, *plan.parts[place + 1 :]))
    for start, end in _chunks(len(plan.picks)):
        taken = end - start
        faults = tuple(f._replace(step=f.step - taken) if f.step >= end else f for f in plan.faults)
        yield plan._replace(picks=plan.picks[:start] + plan.picks[end:], faults=tuple(sorted(faults)))
    for start, end in _chunks(len(plan.picks)):
        if any(plan.picks[start:end]):  # 0: the one that runs goes on
            yield plan._replace(picks=plan.picks[:start] + bytes(end - start) + plan.picks[end:])


def _without_part(plan: Plan, place: int) -> Plan:
    faults = (f._replace(part=f.part - (f.part > place)) for f in plan.faults if f.part != place)
    return plan._replace(parts=plan.parts[:place] + plan.parts[place + 1 :], faults=tuple(faults))


def _chunks(length: int) -> Iterator[tuple[int, int]]:
    size = length
    while size:
        for start in range(0, length, size):
            yield start, min(start + size, length)
        size //= 2
