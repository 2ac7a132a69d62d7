"""The bench runs, finds nothing lost, and its tables say what was measured. Figures are not judged here: machines differ."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from postroom.cli import main
from postroom.cli.bench import peers, plan, tables
from postroom.cli.bench.client import NotHere, encode, make_payload
from postroom.cli.bench.crew import PROGRAM
from postroom.cli.bench.measure import measure, percentile
from postroom.cli.bench.plan import PlanLine, Scale
from postroom.cli.bench.rounds import BenchReport, Measured, machine
from postroom.cli.commands import bench as command

TINY = Scale(0.001, cap_s=5.0)


def report_of(*measured: Measured) -> BenchReport:
    return BenchReport("now", machine(), {}, {}, {}, 1, TINY, list(measured))


def entry_rates(work: str, rates: dict[PlanLine, list[float]]) -> BenchReport:
    return report_of(
        *(Measured(work, entry, n, {"rate": rate}) for entry, row in rates.items() for n, rate in enumerate(row))
    )


def here(name: str) -> None:
    """Skip when the peer is not installed."""
    try:
        peers.peer(name).versions()
    except (NotHere, ImportError) as why:
        pytest.skip(f"{name} is not here: {why}")


@pytest.mark.slow
@pytest.mark.parametrize("work", plan.WORKS)
@pytest.mark.parametrize("name", peers.NAMES)
def test_every_peer_does_every_work(work: str, name: str, tmp_path: Path) -> None:
    here(name)
    entries = list(plan.entries(work, peers.peer(name)))
    if not entries:
        pytest.skip(peers.peer(name).not_measured[work])

    samples = {entry: measure(work, entry, TINY, str(tmp_path)) for entry in entries if entry.sync == "normal"}

    for entry, sample in samples.items():
        figure = sample[plan.WORKS[work].figure]
        assert min(figure if work == "W7" else [figure]) > 0, entry
        if name in plan.COMPARED and "lost" in sample:
            assert (sample["lost"], sample["doubled"], sample["left"]) == (0, 0, 0), entry
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
@pytest.mark.parametrize("name", plan.COMPARED)
def test_full_sync_is_measured_next_to_its_like(name: str, tmp_path: Path) -> None:
    here(name)

    entry = next(entry for entry in plan.entries("W1", peers.peer(name)) if entry.sync == "full")

    assert measure("W1", entry, TINY, str(tmp_path))["rate"] > 0


@pytest.mark.slow
def test_the_load_test_accounts_for_every_message(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    code = main(["bench", "--agents", "5", "--messages", "12", "--folder", str(tmp_path), "--json"])

    found = json.loads(capsys.readouterr().out)
    assert (code, found["sent"], found["received"], found["lost"]) == (0, 60, 60, 0)
    assert 0 < found["p50_ms"] <= found["p99_ms"] <= found["slowest_ms"]


def test_the_load_test_fails_when_something_was_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    from postroom.cli.bench import load

    lost = load._account(
        2, [{"sent": ["a", "b"], "received": ["c"], "ms": [1.0]}, {"sent": ["c"], "received": ["a"], "ms": [2.0]}]
    )
    monkeypatch.setattr(load, "load", lambda *_: lost)

    assert lost.lost == 1
    assert main(["bench", "--agents", "2"]) == 1


@pytest.mark.slow
def test_the_command_prints_a_table_and_keeps_every_sample(tmp_path: Path) -> None:
    saved = tmp_path / "figures.json"
    words = [
        "bench",
        "--works",
        "W1",
        "--peers",
        "postroom,bare",
        "--rounds",
        "2",
        "--scale",
        "0.001",
        "--save",
        str(saved),
    ]

    said = subprocess.run([sys.executable, "-m", "postroom", *words], capture_output=True, text=True, check=True).stdout

    report = msgspec.json.decode(saved.read_bytes(), type=BenchReport)
    assert "W1: send one by one" in said
    assert "of bare" in said
    assert report.machine["cores"]
    assert "apsw" in report.versions
    assert len(report.samples("W1", PlanLine("postroom"))) == 2


def test_the_command_knows_the_works_and_the_peers_that_there_are() -> None:
    assert tuple(plan.WORKS) == command.WORKS
    assert command.PEERS == peers.NAMES


@pytest.mark.parametrize("words", [["--works", "W99"], ["--peers", "nobody"], ["--scale", "0"], ["--rounds", "0"]])
def test_what_cannot_be_measured_is_wrong_usage(words: list[str]) -> None:
    assert main(["bench", *words]) == 2


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

    def ratio(entry: PlanLine, peer: str) -> float | None:
        return tables.ratio(report, plan.WORKS["W3"], entry, peer)

    assert ratio(PlanLine("postroom", "receive + ack"), "bare") == 0.5
    assert ratio(PlanLine("postroom", "listen"), "bare") == 0.5
    assert ratio(PlanLine("postroom", "listen"), "redis") == 3.0
    assert ratio(PlanLine("postroom", "listen", "full"), "redis") == 1.5
    assert ratio(PlanLine("postroom", "listen", "full"), "bare") is None
    assert ratio(PlanLine("redis"), "redis") is None


def test_what_was_not_measured_says_why_in_the_table() -> None:
    report = report_of(Measured("W1", PlanLine("nats"), 0, None, "the server did not start"))

    (table,) = tables.tables(report)

    assert table.rows == [("nats", "not measured: the server did not start")]
    assert "not measured: the server did not start" in tables.markdown(table)


def test_a_payload_is_about_195_bytes_of_json() -> None:
    assert 190 <= len(encode(make_payload(12_345))) <= 240


def test_percentiles_of_few_values_do_not_fail() -> None:
    assert percentile([3.0], 99) == 3.0
    assert percentile([1.0, 2.0, 3.0], 50) == 2.0


def test_measured_processes_import_nothing_from_the_working_folder(tmp_path: Path) -> None:
    """It may be a clone, with a package of our name in it."""
    (tmp_path / "postroom").mkdir()
    (tmp_path / "postroom" / "__init__.py").write_text("open('imported', 'w').close()")
    subprocess.run(PROGRAM, cwd=tmp_path, input=b"", capture_output=True, check=False, timeout=60)
    assert not (tmp_path / "imported").exists()
