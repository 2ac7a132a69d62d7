"""Deterministic simulation: many agents in one process, every choice taken from one seed.

    from postroom.testing.simulation import simulate

    outcome = simulate(seed=7)
    assert outcome.failure is None, "\\n".join(outcome.report())

A schedule has three or four simulated processes that send, receive, ask, serve, work off a board and meet in sessions,
through the calls that every program makes. The shipping code runs; a world stands in for the clock, for processes (`core/system`) and for
the wire to the store. It chooses which of them goes on at every step of the store and at every wait, and lets them die,
stand still, lose hints, fail to write, and see the clock jump. In rooms on disks (SQLite, files) it also ends processes
inside a step, lets the disk fail there, and cuts the power (SQLite). A judge compares every step with what the store's
contract allows, and at the end, when the faults have stopped, every message must have been settled.

The same seed is the same run. A failure shrinks (`shrink`) to a schedule that can be read. `Outcome.reached` counts
rare states, so that it is seen when a schedule never comes to one.

From a shell: `python -m postroom.testing.simulation --count 1000 --seed 1`. Another store is simulated by a `Rooms` of
its own (`STORES`).
"""

from __future__ import annotations

from .broken import Broken
from .plans import Plan, draw
from .process import Process
from .runs import DEFAULT_STEPS, RARE, RARE_ON, STORES, ScheduleOutcome, run, simulate
from .shrinking import shrink
from .world import Rooms, World

__all__ = [
    "DEFAULT_STEPS",
    "RARE",
    "RARE_ON",
    "STORES",
    "Broken",
    "Plan",
    "Process",
    "Rooms",
    "ScheduleOutcome",
    "World",
    "draw",
    "run",
    "shrink",
    "simulate",
]
