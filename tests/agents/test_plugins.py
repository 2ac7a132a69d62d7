"""The plugins in plugins/, shown to the programs' own validators and installers."""

from __future__ import annotations

import json
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from tests.support import ROOT

from . import programs

PLUGINS = ROOT / "plugins"


class Place:
    """A home with the command `postroom` on its PATH, and a project."""

    def __init__(self, folder: Path) -> None:
        self.home, self.project = folder / "home", folder / "project"
        for each in (self.home / "bin", self.home / ".codex", self.project):
            each.mkdir(parents=True)
        command = self.home / "bin" / "postroom"
        command.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m postroom "$@"\n', encoding="utf-8")
        command.chmod(0o755)

    def run(self, *words: str | Path) -> subprocess.CompletedProcess[str]:
        environment = programs.environment(self.home, DISABLE_AUTOUPDATER="1", GEMINI_API_KEY="x")
        environment["PATH"] = f"{self.home / 'bin'}:{environment['PATH']}"
        return programs.run([str(word) for word in words], self.project, environment)


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


@pytest.mark.parametrize("folder", [PLUGINS / "postroom", ROOT])
def test_claude_accepts_the_plugin_and_the_marketplace(place: Place, folder: Path) -> None:
    done = place.run(programs.CLAUDE, "plugin", "validate", "--strict", "--json", folder)

    assert done.returncode == 0, done.stdout + done.stderr
    assert json.loads(done.stdout)["success"] is True


def test_claude_refuses_a_plugin_that_is_wrong(place: Place, tmp_path: Path) -> None:
    """So that the test above can fail."""
    wrong = tmp_path / "wrong"
    shutil.copytree(PLUGINS / "postroom", wrong)
    hooks = wrong / "hooks" / "hooks.json"
    hooks.write_text(hooks.read_text(encoding="utf-8").replace('"SessionStart"', '"SessionStrat"'), encoding="utf-8")

    assert place.run(programs.CLAUDE, "plugin", "validate", "--strict", wrong).returncode == 1


def test_claude_installs_it_from_the_checkout(place: Place) -> None:
    place.run(programs.CLAUDE, "plugin", "marketplace", "add", ROOT)
    done = place.run(programs.CLAUDE, "plugin", "install", "postroom@postroom", "--json")
    listed = place.run(programs.CLAUDE, "plugin", "list", "--json")

    assert done.returncode == 0, done.stdout + done.stderr
    assert "postroom@postroom" in listed.stdout


def test_codex_installs_it_from_the_checkout(place: Place) -> None:
    place.run(programs.CODEX, "plugin", "marketplace", "add", ROOT)
    done = place.run(programs.CODEX, "plugin", "add", "postroom@postroom", "--json")
    servers = place.run(programs.CODEX, "mcp", "list", "--json")

    assert done.returncode == 0, done.stdout + done.stderr
    assert json.loads(done.stdout)["name"] == "postroom"
    (server,) = json.loads(servers.stdout)
    assert (server["transport"]["command"], server["transport"]["args"]) == ("postroom", ["mcp"])


def test_gemini_accepts_the_extension(place: Place, tmp_path: Path) -> None:
    gemini = (programs.NODE, programs.GEMINI, "extensions", "validate")
    done = place.run(*gemini, PLUGINS / "gemini")
    wrong = tmp_path / "wrong"
    wrong.mkdir()
    (wrong / "gemini-extension.json").write_text('{"name": "postroom"}', encoding="utf-8")

    assert done.returncode == 0, done.stdout + done.stderr
    assert "successfully validated" in done.stdout + done.stderr
    refused = place.run(*gemini, wrong)
    assert "successfully validated" not in refused.stdout + refused.stderr


def test_opencode_starts_the_server_of_the_plugin(place: Place) -> None:
    settings = {"$schema": "https://opencode.ai/config.json", "plugin": [(PLUGINS / "opencode").as_uri()]}
    (place.project / "opencode.json").write_text(json.dumps(settings), encoding="utf-8")

    done = place.run(programs.OPENCODE, "mcp", "list")

    said = done.stdout + done.stderr
    assert "postroom" in said
    assert "connected" in said and "not connected" not in said
