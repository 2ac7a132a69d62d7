"""`postroom pool check inference` with a real llama.cpp and a real, if small, model."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from postroom.cli import main

from .real_server import RealServer, weights


@pytest.mark.model
@pytest.mark.long
@pytest.mark.parametrize("dialect", ["ollama", "openai"])
def test_every_scenario_of_real_inference_passes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], dialect: str
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("POSTROOM_URL", raising=False)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    assert main(["init"]) == 0
    with RealServer(weights()) as server:
        monkeypatch.setenv("POSTROOM_MODEL", server.spec(dialect))
        code = main(["pool", "check", "inference"])

    assert code == 0, capsys.readouterr().out
    kept = json.loads((tmp_path / ".postroom/validation/worker-inference-results-latest.json").read_text("utf-8"))
    print(*(detail["notes"] for detail in kept["details"]), sep="\n")
    assert kept["passRate"] == "100%"
