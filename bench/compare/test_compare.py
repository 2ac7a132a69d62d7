"""Every peer that is installed can be measured, and is compared with its like. Figures are not judged: machines differ."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parents[1]))

from compare import COMPARED, NAMES
from compare.ratios import COLUMNS, ratio
from postroom.cli.bench import plan
from postroom.cli.bench.client import NotHere
from postroom.cli.bench.measure import measure
from postroom.cli.bench.peers import peer
from postroom.cli.bench.plan import PlanLine, Scale
from postroom.cli.bench.rounds import BenchReport, Measured, machine
from postroom.cli.bench.tables import tables

TINY = Scale(0.001, cap_s=5.0)


def entry_rates(work: str, rates: dict[PlanLine, list[float]]) -> BenchReport:
    measured = [
        Measured(work, entry, n, {"rate": rate, "lost": 0, "doubled": 0})
        for entry, row in rates.items()
        for n, rate in enumerate(row)
    ]
    return BenchReport("now", machine(), {}, {}, {}, 1, TINY, measured)


def here(name: str) -> None:
    """Skip when the peer is not installed."""
    try:
        peer(name).versions()
    except (NotHere, ImportError) as why:
        pytest.skip(f"{name} is not here: {why}")


@pytest.mark.slow
@pytest.mark.parametrize("work", plan.WORKS)
@pytest.mark.parametrize("name", NAMES)
def test_every_peer_does_every_work(work: str, name: str, tmp_path: Path) -> None:
    here(name)
    entries = list(plan.entries(work, peer(name)))
    if not entries:
        pytest.skip(peer(name).not_measured[work])

    samples = {entry: measure(work, entry, TINY, str(tmp_path)) for entry in entries if entry.sync == "normal"}

    for entry, sample in samples.items():
        figure = sample[plan.WORKS[work].figure]
        assert min(figure if work == "W7" else [figure]) > 0, entry
        if name in COMPARED and "lost" in sample:
            assert (sample["lost"], sample["doubled"], sample["left"]) == (0, 0, 0), entry
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
@pytest.mark.parametrize("name", COMPARED)
def test_full_sync_is_measured_next_to_its_like(name: str, tmp_path: Path) -> None:
    here(name)

    entry = next(entry for entry in plan.entries("W1", peer(name)) if entry.sync == "full")

    assert measure("W1", entry, TINY, str(tmp_path))["rate"] > 0


def test_an_entry_is_compared_with_its_like() -> None:
    report = entry_rates(
        "W3",
        {
            PlanLine("postroom", "receive + ack"): [90.0, 100.0, 400.0],
            PlanLine("postroom", "listen"): [150.0],
            PlanLine("postroom", "listen", "full"): [30.0],
            PlanLine("bare", "two steps"): [200.0],
            PlanLine("bare", "one step"): [300.0],
            PlanLine("redis"): [50.0],
            PlanLine("redis", "", "full"): [20.0],
        },
    )

    def of(entry: PlanLine, name: str) -> float | None:
        return ratio(report, plan.WORKS["W3"], entry, name)

    assert of(PlanLine("postroom", "receive + ack"), "bare") == 0.5
    assert of(PlanLine("postroom", "listen"), "bare") == 0.5
    assert of(PlanLine("postroom", "listen"), "redis") == 3.0
    assert of(PlanLine("postroom", "listen", "full"), "redis") == 1.5
    assert of(PlanLine("postroom", "listen", "full"), "bare") is None
    assert of(PlanLine("redis"), "redis") is None
    (table,) = tables(report, COLUMNS)
    assert table.columns == ("", "per second", "of bare", "of Redis", "rounds", "lost", "doubled")
