"""What is compared with what: each entry with the floor, and with Redis."""

from __future__ import annotations

from functools import partial
from typing import Final

from postroom.cli.bench.plan import PlanLine, Workload
from postroom.cli.bench.rounds import BenchReport
from postroom.cli.bench.tables import Column, entries_of, middle


def base_of(report: BenchReport, work: str, entry: PlanLine, peer: str) -> PlanLine | None:
    """The entry of that peer with which this one is compared: as safe as it, and used the same way."""
    found = [other for other in entries_of(report, work) if other.peer == peer and other.sync == entry.sync]
    like = "one step" if entry.way == "listen" else ""
    return next((other for other in found if like and other.way == like), found[0] if found else None)


def ratio(report: BenchReport, work: Workload, entry: PlanLine, peer: str) -> float | None:
    """The entry's figure divided by that of the one it is compared with. None without one, or with itself."""
    base = base_of(report, work.name, entry, peer)
    if base is None or entry.peer == peer:
        return None
    mine, theirs = (middle(report.samples(work.name, one), work.figure) for one in (entry, base))
    return None if mine is None or not theirs else mine / theirs


COLUMNS: Final[tuple[Column, ...]] = (
    ("of bare", partial(ratio, peer="bare")),
    ("of Redis", partial(ratio, peer="redis")),
)
