"""`postroom pool check`: the scenarios, the file they leave, and the difference from the last run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from postroom.cli.commands import pool as command
from postroom.cli.commands import pool_scenarios

from .support import Cli

pytestmark = pytest.mark.slow  # real workers


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """The limits are those of a machine that does nothing else; whether it is fast enough is not what is tested here."""
    for limit in ("READY_MS", "PING_MS", "SHUTDOWN_MS", "MOCK_MS", "TURN_MS", "STOPPED_MS", "DECIDED_MS", "HELD_UP_MS"):
        monkeypatch.setattr(pool_scenarios, limit, 60_000.0)
    monkeypatch.setattr(pool_scenarios, "DECIDE_S", 4.0)


@pytest.fixture
def results(cli: Cli) -> Any:
    """Reads what a phase left in the room's folder."""
    cli.ok("init")

    def read(phase: str) -> Any:
        path = Path(".postroom") / "validation" / f"worker-{phase}-results-latest.json"
        return json.loads(path.read_text(encoding="utf-8"))

    return read


def test_every_scenario_of_the_skeleton_passes_and_is_kept(cli: Cli, results) -> None:
    first = cli("pool", "check", "skeleton")
    assert first.code == 0, first.out
    kept = results("skeleton")
    second = cli.ok("pool", "check", "skeleton")

    assert set(kept) == {"timestamp", "phase", "passRate", "details"}
    assert (kept["phase"], kept["passRate"]) == ("Phase 1: Skeleton", "100%")
    assert [detail["scenario"] for detail in kept["details"]][:3] == [
        "Worker Startup",
        "Ping-Pong Communication",
        "Rapid Fire Stress Test",
    ]
    assert all(set(detail) == {"scenario", "passed", "metrics", "notes"} for detail in kept["details"])
    assert 0 < kept["details"][1]["metrics"]["throughput"] < 1e9  # the original told "Infinity pings/sec"
    assert "latency" not in first.out
    assert "latency" in second.out  # the difference from the first run


def test_a_check_needs_no_room_and_says_that_its_results_are_not_kept(
    cli: Cli, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path_factory.mktemp("empty"))

    checked = cli.ok("pool", "check", "skeleton")

    assert "not saved: there is no room here; `postroom init` makes one" in checked.out
    assert list(Path.cwd().iterdir()) == []
    assert cli("pool", "check", "skeleton", "--room", "sqlite:missing").code == 4


def test_mock_evaluation_and_integration_pass(cli: Cli, results) -> None:
    reports = cli.json("pool", "check", "integration", "evaluation")

    assert [report["phase"] for report in reports] == ["Phase 2: Mock Evaluation", "Phase 4: Coordinator"]
    assert [report["pass_rate"] for report in reports] == ["100%", "100%"]
    assert "passRate" not in reports[0]
    assert len(results("integration")["details"]) == len(results("evaluation")["details"]) == 4


@pytest.mark.parametrize("model", ["", "mock:7"])
def test_without_a_real_model_inference_is_not_run_and_does_not_pass(
    cli: Cli, results, monkeypatch: pytest.MonkeyPatch, model: str
) -> None:
    for name in (
        "OLLAMA_HOST",
        "CLAUDECODE",
        "CODEX_THREAD_ID",
        "CODEX_SESSION_ID",
        "PLUGIN_ROOT",
        "CLAUDE_PLUGIN_ROOT",
    ):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("POSTROOM_MODEL", model)
    ended = cli("pool", "check", "inference")

    assert ended.code == 1
    assert "not run: " in ended.out
    kept = results("inference")
    assert kept["passRate"] == "0%"
    assert [detail["passed"] for detail in kept["details"]] == [False] * 4


def test_a_scenario_that_fails_is_an_exit_code_of_one(cli: Cli, results, monkeypatch: pytest.MonkeyPatch) -> None:
    cli.ok("pool", "check", "skeleton")
    monkeypatch.setattr(pool_scenarios, "PING_MS", 0.0)  # no pool is that fast
    ended = cli("pool", "check", "skeleton")

    assert ended.code == 1
    assert "FAIL  Ping-Pong Communication" in ended.out
    assert "passed before" in ended.out
    assert results("skeleton")["passRate"] == "80%"


def test_changes_are_told_by_scenario() -> None:
    def report(passed: bool, latency: float) -> dict[str, Any]:
        return {"details": [{"scenario": "A", "passed": passed, "metrics": {"latency": latency}}]}

    assert command.change(None, report(True, 1)) == {}
    assert command.change(report(True, 1.0), report(True, 1.5)) == {"A": "latency +50%"}
    assert command.change(report(False, 1.0), report(True, 1.0)) == {"A": "passes now"}
    assert command.change(report(True, 1.0), report(False, 1.0)) == {"A": "passed before"}
    assert command.change({"details": []}, report(True, 1.0)) == {"A": "new"}
    assert command.change(report(True, 0.0), report(True, 1.0)) == {"A": ""}


def test_what_cannot_be_checked_is_named(cli: Cli, results) -> None:
    wrong = cli("pool", "check", "everything")
    assert wrong.code == 2
    assert "there is no phase 'everything'; choose from skeleton, evaluation, inference, integration, all" in wrong.err
    assert cli("pool", "mend").code == 2


def test_a_damaged_file_of_the_last_run_is_as_none(cli: Cli, results) -> None:
    path = Path(".postroom") / "validation" / "worker-skeleton-results-latest.json"
    path.parent.mkdir()
    path.write_text('["half a', encoding="utf-8")

    cli.ok("pool", "check", "skeleton")
    assert results("skeleton")["passRate"] == "100%"
