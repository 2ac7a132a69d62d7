"""Each program finds what we installed in the folder that it was told of, and our own doctor says the same."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from . import programs
from .conftest import World

CLAUDE = [str(programs.CLAUDE), "plugin", "list", "--json"]
CODEX = [str(programs.CODEX), "mcp", "list", "--json"]
GEMINI = [str(programs.NODE), str(programs.GEMINI), "extensions", "list"]
OPENCODE = [str(programs.OPENCODE), "mcp", "list"]


@pytest.mark.parametrize(
    ("host", "variables", "words"),
    [
        ("claude-code", ["CLAUDE_CONFIG_DIR"], CLAUDE),
        ("codex", ["CODEX_HOME"], CODEX),
        ("gemini", ["GEMINI_CLI_HOME"], GEMINI),
        ("opencode", ["XDG_CONFIG_HOME"], OPENCODE),
        ("opencode", ["OPENCODE_CONFIG_DIR", "OPENCODE_CONFIG"], OPENCODE),
    ],
)
def test_it_is_found_in_the_folder_that_the_program_is_told_of(
    world: World, tmp_path: Path, host: str, variables: list[str], words: list[str]
) -> None:
    told = {name: str(tmp_path / "elsewhere" / ("own.json" if name == "OPENCODE_CONFIG" else "")) for name in variables}
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "own.json").write_text("{}", encoding="utf-8")
    environment = programs.environment(world.home, DISABLE_AUTOUPDATER="1", GEMINI_API_KEY="x", **told)

    before = programs.run(words, world.project, environment)
    world.postroom("install", host, **told)
    after = programs.run(words, world.project, environment)

    assert after.returncode == 0, after.stderr
    assert "postroom" not in before.stdout + before.stderr
    assert "postroom" in after.stdout + after.stderr
    world.postroom("uninstall", host, **told)


def test_opencode_leaves_the_settings_that_we_made_as_they_are(world: World) -> None:
    path = world.home / ".config" / "opencode" / "opencode.json"
    world.postroom("install", "opencode")
    written = path.read_bytes()
    programs.run(OPENCODE, world.project, programs.environment(world.home))
    assert path.read_bytes() == written
    assert "$schema" in json.loads(written)
    world.postroom("uninstall", "opencode")

    assert not path.exists()
