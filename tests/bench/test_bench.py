"""The bench runs, finds nothing lost, and its tables say what was measured. Figures are not judged here: machines differ."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from postroom.cli import main
from postroom.cli.bench import plan, tables
from postroom.cli.bench.client import encode, make_payload
from postroom.cli.bench.measure import measure, percentile
from postroom.cli.bench.plan import PlanLine, Scale
from postroom.cli.bench.room import PostroomPeer
from postroom.cli.bench.rounds import BenchReport, Measured, machine
from postroom.cli.commands import bench as command

TINY = Scale(0.001, cap_s=5.0)


def report_of(*measured: Measured) -> BenchReport:
    return BenchReport("now", machine(), {}, {}, {}, 1, TINY, list(measured))


def ways() -> list[pytest.ParameterSet]:
    """Every way in which Postroom does a work, with names that read well; all but the first are for the long run."""
    found = [(work, entry) for work in plan.WORKS for entry in plan.entries(work, PostroomPeer)]
    first = dict(reversed(found))
    return [
        pytest.param(work, entry, id=f"{work}-{entry.label}", marks=() if entry is first[work] else pytest.mark.long)
        for work, entry in found
    ]


@pytest.mark.slow
@pytest.mark.parametrize(("work", "entry"), ways())
def test_every_work_is_measured_in_every_way_and_loses_nothing(work: str, entry: PlanLine, tmp_path: Path) -> None:
    sample = measure(work, entry, TINY, str(tmp_path))

    figure = sample[plan.WORKS[work].figure]
    assert min(figure if work == "W7" else [figure]) > 0
    assert [sample[name] for name in ("lost", "doubled", "left") if name in sample] in ([], [0, 0, 0])
    assert list(tmp_path.iterdir()) == []


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
    assert report.machine["cores"]
    assert "SQLite" in report.versions
    assert len(report.samples("W1", PlanLine("postroom"))) == 2


def test_the_command_knows_the_works_that_there_are() -> None:
    assert tuple(plan.WORKS) == command.WORKS


@pytest.mark.parametrize("words", [["--works", "W99"], ["--scale", "0"], ["--rounds", "0"]])
def test_what_cannot_be_measured_is_wrong_usage(words: list[str]) -> None:
    assert main(["bench", *words]) == 2


def test_what_was_not_measured_says_why_in_the_table() -> None:
    report = report_of(Measured("W1", PlanLine("postroom"), 0, None, "the server did not start"))

    (table,) = tables.tables(report)

    assert table.rows == [("postroom", "not measured: the server did not start")]
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
    subprocess.run(PostroomPeer.program, cwd=tmp_path, input=b"", capture_output=True, check=False, timeout=60)
    assert not (tmp_path / "imported").exists()
