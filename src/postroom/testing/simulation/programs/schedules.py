"""Schedules: processes that make them, that only have the room open, and that come when ticks were missed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from postroom.testing.simulation.plans import LEAD

from .program import SECOND_NS, Program


def _schedule(program: Program, name: str, every_s: float | None, missed: str, other: str) -> None:
    cron = "0 * * * *" if every_s is None else None
    made = program.room.schedule(name, every_s=every_s, cron=cron, missed=missed, to=other, by=LEAD)
    program.tell(f"has schedule {name}, next at {made.next_tick}")


def _unschedule(program: Program, name: str) -> None:
    program.room.unschedule(name)


def _keep_open(program: Program, span_s: float) -> None:
    """Have the room open, and do nothing."""
    program.agent()
    before, since_ns = program.troubles(), program.clock.steady_ns()
    program.clock.sleep(span_s)
    if before == program.troubles() and program.judge.tells_whole_steps:  # servers may have been away
        open_ms = (program.clock.steady_ns() - since_ns) // (SECOND_NS // 1000)
        program.judge.ticks.judge_late(program.process, open_ms)


def _look_in(program: Program) -> None:
    """Open the room anew, as a command does, and leave at once."""
    program.close()
    program.room.stats()
    program.close()


OPERATIONS: Final[dict[str, Callable[..., None]]] = {
    "schedule": _schedule,
    "unschedule": _unschedule,
    "keep open": _keep_open,
    "look in": _look_in,
}
