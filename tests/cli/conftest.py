"""A folder with a room in it, and the command line in that folder."""

from __future__ import annotations

from pathlib import Path

import pytest

from .support import Cli


@pytest.fixture
def cli(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Cli:
    for name in ("URL", "AGENT", "TOKEN", "TOKEN_FILE"):
        monkeypatch.delenv(f"POSTROOM_{name}", raising=False)
    monkeypatch.chdir(tmp_path)
    cli = Cli(capsys, monkeypatch)
    cli.ok("init")
    return cli
