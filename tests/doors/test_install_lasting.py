"""An entry starts a Postroom that stays: never one in a cache or in a temporary folder."""

from __future__ import annotations

import json
import shlex
import sys
from pathlib import Path

import pytest
from tests.cli.support import Cli

from postroom.doors.install import lasting
from postroom.errors import PostroomError


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    home = tmp_path / "home"
    home.mkdir()
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.delenv("XDG_DATA_HOME", raising=False)
    return home


def make_program(folder: Path, says: str = "postroom 9.9") -> Path:
    """An environment with a command of that name."""
    (folder / "bin").mkdir(parents=True)
    program = folder / "bin" / "postroom"
    program.write_text(f"#!/bin/sh\necho {shlex.quote(says)}\n", encoding="utf-8")
    program.chmod(0o755)
    return program


@pytest.fixture
def cached(home: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Postroom runs as uvx runs it: from an environment in a tagged cache, whose commands are first on the PATH."""
    cache = home / ".cache" / "uv"
    program = make_program(cache / "archive-v0" / "WFe8Nulznj")
    (cache / "CACHEDIR.TAG").touch()
    monkeypatch.setattr(sys, "prefix", str(program.parent.parent))
    monkeypatch.setattr(sys, "executable", str(program.parent / "python"))
    monkeypatch.setenv("PATH", f"{program.parent}:/usr/bin:/bin")
    return program


def files_in(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file() and ".cache" not in path.parts]


@pytest.mark.parametrize("more", [(), ("--dry-run",), ("--scope", "project")])
def test_from_a_cache_nothing_is_installed_and_the_error_says_what_to_do(
    cli: Cli, home: Path, cached: Path, tmp_path: Path, more: tuple[str, ...]
) -> None:
    project = tmp_path / "project"
    project.mkdir()
    result = cli("install", "cursor", "--project", str(project), *more)

    assert result.code == 1
    assert f"runs from {cached.parent.parent}, in a cache folder" in result.err
    assert "uv tool install 'postroom[all]" in result.err and "pipx install 'postroom[all]" in result.err
    assert files_in(home) == files_in(project) == []


def test_the_error_names_the_wheel_that_this_postroom_came_from(
    cli: Cli, cached: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Distribution:
        def read_text(self, name: str) -> str:
            assert name == "direct_url.json"
            return '{"url": "file:///d/postroom-9.9-py3-none-any.whl", "archive_info": {}}'

    monkeypatch.setattr("importlib.metadata.distribution", lambda _name: Distribution())

    said = cli("install", "cursor").err

    assert "uv tool install 'postroom[all] @ file:///d/postroom-9.9-py3-none-any.whl'" in said


def test_from_a_cache_the_entry_starts_the_postroom_on_the_path(
    cli: Cli, home: Path, cached: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stays = make_program(home / ".local" / "share" / "uv" / "tools" / "postroom")
    (stays.parent.parent / "CACHEDIR.TAG").touch()  # as uv and virtualenv tag every environment
    link = home / ".local" / "bin" / "postroom"
    link.parent.mkdir()
    link.symlink_to(stays)
    stranger = make_program(tmp_path / "stranger", says="I sort letters")
    monkeypatch.setenv("PATH", f"{cached.parent}:{stranger.parent}:bin::{link.parent}:/usr/bin:/bin")

    said = cli.ok("install", "cursor").out

    entry = json.loads((home / ".cursor" / "mcp.json").read_text(encoding="utf-8"))["mcpServers"]["postroom"]
    assert (entry["command"], entry["args"]) == (str(link), ["mcp"])
    assert f"it starts {link}" in said


def test_an_entry_can_be_taken_out_from_a_cache(
    cli: Cli, home: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    cli.ok("install", "cursor")
    request.getfixturevalue("cached")

    cli.ok("uninstall", "cursor")

    assert files_in(home) == []


def test_a_temporary_environment_is_for_temporary_settings_alone(tmp_path: Path) -> None:
    home, environment = Path("/home/ada"), Path("/tmp/x/.venv")

    assert lasting.passing_folder(environment, home) == "temporary"
    assert lasting.passing_folder(environment, tmp_path) is None
    assert lasting.passing_folder(home / ".venv", home) is None


def test_the_temporary_folder_of_the_machine_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", "/scratch/of/ada")

    assert lasting.passing_folder(Path("/scratch/of/ada/venv"), Path("/home/ada")) == "temporary"


def test_a_program_that_does_not_answer_is_passed_over(
    home: Path, cached: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    silent = make_program(tmp_path / "silent")
    silent.write_text("#!/bin/sh\nexec sleep 600\n", encoding="utf-8")
    monkeypatch.setenv("PATH", f"{silent.parent}:/usr/bin:/bin")
    monkeypatch.setattr(lasting, "PATIENCE_S", 0.1)

    with pytest.raises(PostroomError, match="no other on the PATH"):
        lasting.lasting_command(home)


@pytest.mark.parametrize(
    ("receipt", "line"),
    [
        ("uv-receipt.toml", "uv tool install --force 'postroom[all]"),
        ("pipx_metadata.json", "pipx install --force 'postroom[all]"),
        ("pyvenv.cfg", "pip install 'postroom[mcp]'"),
    ],
)
def test_missing_packages_are_added_by_the_installer_that_made_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, receipt: str, line: str
) -> None:
    (tmp_path / receipt).touch()
    monkeypatch.setattr(sys, "prefix", str(tmp_path))

    assert lasting.extra_line("mcp").startswith(line)


@pytest.mark.parametrize("host", ["claude-code", "codex", "gemini", "opencode", "cursor"])
def test_the_doctor_finds_an_entry_whose_postroom_is_gone(
    cli: Cli, home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, host: str
) -> None:
    cli.ok("init")
    gone = make_program(tmp_path / "an environment")
    monkeypatch.setattr(lasting, "lasting_command", lambda _beside: [str(gone)])
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    cli.ok("install", host)
    before = cli("doctor").out
    gone.unlink()

    after = cli("doctor").out

    assert f"{gone} is missing" not in before
    assert f"{gone} is missing" in after
    assert f"`postroom install {host}` brings it up to date" in after
