"""The whole run: every work for every peer, in rounds, so that a slow minute of the machine meets all of them."""

from __future__ import annotations

import os
import platform
from collections.abc import Callable, Collection, Sequence
from typing import Any

import msgspec

from postroom.core.clock import SYSTEM, iso
from postroom.core.system import proc

from .client import NotHere, Peer
from .crew import BenchFailed
from .measure import Sample, measure
from .peers import peer
from .plan import WORKS, PlanLine, Scale, entries

#: Called before each measurement: how many are done, how many there are, which one is next.
Progress = Callable[[int, int, str], None]


class Measured(msgspec.Struct):
    """One measurement, or why there is none."""

    work: str
    entry: PlanLine
    round: int
    sample: Sample | None
    why_not: str = ""


class BenchReport(msgspec.Struct):
    """Everything that a run found, with what is needed to judge it."""

    begun: str
    machine: dict[str, Any]
    versions: dict[str, str]
    about: dict[str, str]  # by peer
    left_out: dict[str, str]  # peers that are not here, and why
    rounds: int
    scale: Scale
    measured: list[Measured]
    ended: str = ""

    def samples(self, work: str, entry: PlanLine) -> list[Sample]:
        """All that was measured of an entry."""
        return [m.sample for m in self.measured if m.work == work and m.entry == entry and m.sample is not None]


def machine() -> dict[str, Any]:
    """Where this ran."""
    return {
        "system": f"{platform.system()} {platform.release()}",
        "processor": _processor(),
        "cores": os.cpu_count(),
        "load_before": [round(load, 2) for load in os.getloadavg()],
        "python": platform.python_version(),
    }


def _processor() -> str:
    return proc.processor() or platform.processor() or platform.machine()


def present(names: Sequence[str]) -> tuple[list[type[Peer]], dict[str, str], dict[str, str]]:
    """The peers that can be measured here, their versions, and why the others cannot."""
    here: list[type[Peer]] = []
    versions: dict[str, str] = {}
    left_out: dict[str, str] = {}
    for name in names:
        found = peer(name)
        try:
            versions |= found.versions()
        except (NotHere, ImportError) as why:
            left_out[name] = str(why)
        else:
            here.append(found)
    return here, versions, left_out


def run(
    works: Sequence[str],
    names: Sequence[str],
    rounds: int,
    scale: Scale,
    *,
    once: Collection[str] = (),
    folder: str | None = None,
    progress: Progress = lambda *_: None,
) -> BenchReport:
    """Measure these works of these peers.

    W7 is measured once: it goes round its depths by itself. So are the peers named in `once`.
    """
    here, versions, left_out = present(names)
    about = {found.name: found.about for found in here}
    report = BenchReport(iso(SYSTEM.wall_ms()), machine(), versions, about, left_out, rounds, scale, [])
    todo = [
        (number, work, entry)
        for number in range(rounds)
        for work in works
        if work != "W7" or number == 0
        for found in here
        if number == 0 or found.name not in once
        for entry in entries(work, found)
    ]
    hopeless: set[tuple[str, PlanLine]] = set()
    for done, (number, work, entry) in enumerate(todo):
        progress(done, len(todo), f"{work} {WORKS[work].title}: {entry.label}")
        if (work, entry) in hopeless:
            continue
        sample, why_not = None, ""
        try:
            sample = measure(work, entry, scale, folder)
        except (NotHere, BenchFailed) as why:
            why_not = str(why)
            hopeless.add((work, entry))
        report.measured.append(Measured(work, entry, number, sample, why_not))
    progress(len(todo), len(todo), "done")
    report.ended = iso(SYSTEM.wall_ms())
    return report
