"""Where installing writes: in the folder that the program looks into, and never out of a project through a link."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.cli.support import Cli

from postroom.core.system.files import write_file
from postroom.doors.install import jsonc, plans, work
from postroom.errors import PostroomError

VARIABLES = (
    "XDG_CONFIG_HOME",
    "XDG_DATA_HOME",
    "CODEX_HOME",
    "CLAUDE_CONFIG_DIR",
    "GEMINI_CLI_HOME",
    "QWEN_HOME",
    "COPILOT_HOME",
    "KIMI_CODE_HOME",
    "CLINE_DATA_DIR",
)


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    home = tmp_path / "home"
    home.mkdir()
    monkeypatch.setenv("HOME", str(home))
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
    return home


def files(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def door(cli: Cli, host: str) -> Any:
    return next(check for check in cli("doctor", "--json").json["checks"] if check["check"] == f"door {host}")


@pytest.mark.parametrize(
    ("host", "variable", "usual", "moved"),
    [
        ("claude-code", "CLAUDE_CONFIG_DIR", ".claude/skills/postroom/.mcp.json", "skills/postroom/.mcp.json"),
        ("codex", "CODEX_HOME", ".codex/config.toml", "config.toml"),
        (
            "gemini",
            "GEMINI_CLI_HOME",
            ".gemini/extensions/postroom/gemini-extension.json",
            ".gemini/extensions/postroom/gemini-extension.json",
        ),
        ("opencode", "XDG_CONFIG_HOME", ".config/opencode/opencode.json", "opencode/opencode.json"),
        (
            "qwen",
            "QWEN_HOME",
            ".qwen/extensions/postroom/qwen-extension.json",
            "extensions/postroom/qwen-extension.json",
        ),
        ("copilot", "COPILOT_HOME", ".copilot/mcp-config.json", "mcp-config.json"),
        ("kimi", "KIMI_CODE_HOME", ".kimi-code/mcp.json", "mcp.json"),
        (
            "cline",
            "CLINE_DATA_DIR",
            ".cline/data/settings/cline_mcp_settings.json",
            "settings/cline_mcp_settings.json",
        ),
    ],
)
def test_the_folder_that_a_program_is_told_of_is_where_all_three_commands_look(
    cli: Cli,
    home: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    host: str,
    variable: str,
    usual: str,
    moved: str,
) -> None:
    monkeypatch.setenv("PATH", "/usr/bin:/bin")  # no program is asked
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    with monkeypatch.context() as told:
        told.setenv(variable, str(elsewhere))
        cli.ok("install", host)
        assert (elsewhere / moved).is_file()
        assert not (home / usual).exists()
        assert door(cli, host)["verdict"] == "ok"
    assert door(cli, host)["says"].endswith("is missing")  # the program looks elsewhere now
    cli.ok("install", host)
    assert (home / usual).is_file()
    assert door(cli, host)["verdict"] == "ok"
    cli.ok("uninstall", host)  # from both, also where the environment no longer tells of one

    assert (files(home), files(elsewhere)) == ({}, {})


def test_what_was_changed_in_a_folder_that_is_no_longer_told_of_loses_only_our_part(
    cli: Cli, home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "elsewhere" / "config.toml"
    with monkeypatch.context() as told:
        told.setenv("CODEX_HOME", str(path.parent))
        cli.ok("install", "codex")
    with path.open("a", encoding="utf-8") as file:
        file.write("[features]\napps = false\n")
    cli.ok("uninstall", "codex")

    assert path.read_text(encoding="utf-8").strip() == "[features]\napps = false"


#: The settings that each program has in a project, and what a repository may have put in their place.
IN_PROJECTS = {
    "codex": ".codex/config.toml",
    "claude-code": ".claude/skills/postroom/.mcp.json",
    "cursor": ".cursor/mcp.json",
    "vscode": "AGENTS.md",
    "opencode": "opencode.json",
    "gemini": ".gemini/extensions/postroom/hooks/hooks.json",
    "windsurf": ".devin/config.json",
    "qwen": ".qwen/settings.json",
    "copilot": ".github/mcp.json",
    "kimi": ".kimi-code/mcp.json",
}


@pytest.mark.parametrize("whole", [False, True], ids=["the file", "its folder"])
@pytest.mark.parametrize("host", IN_PROJECTS)
def test_a_link_out_of_a_project_is_refused(cli: Cli, home: Path, tmp_path: Path, host: str, *, whole: bool) -> None:
    project, outside = tmp_path / "project", tmp_path / "outside"
    path = project / IN_PROJECTS[host]
    outside.mkdir()
    project.mkdir()
    (outside / path.name).write_text("", encoding="utf-8")
    if whole and path.parent != project:
        path.parent.parent.mkdir(parents=True, exist_ok=True)
        path.parent.symlink_to(outside)
    else:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.symlink_to(outside / path.name)

    for command in ("install", "uninstall"):
        result = cli(command, host, "--scope", "project", "--project", str(project))
        assert (result.code, result.err.count("\n")) == (1, 1), result
        assert f"leads out of the project, to {outside}" in result.err
        assert result.err.endswith("nothing was changed\n")
    assert files(outside) == {path.name: b""}
    assert list(project.rglob("*.postroom-new")) == []


def test_a_link_within_a_project_and_one_of_the_users_own_are_followed(cli: Cli, home: Path, tmp_path: Path) -> None:
    project = tmp_path / "project"
    for folder, real in (
        (project / ".cursor", project / "shared.json"),
        (home / ".cursor", tmp_path / "dotfiles.json"),
    ):
        folder.mkdir(parents=True)
        real.write_text("{}", encoding="utf-8")
        (folder / "mcp.json").symlink_to(real)
    for scope, real in (("project", project / "shared.json"), ("user", tmp_path / "dotfiles.json")):
        cli.ok("install", "cursor", "--scope", scope, "--project", str(project))
        assert "postroom" in real.read_text(encoding="utf-8")
        cli.ok("uninstall", "cursor", "--scope", scope, "--project", str(project))
        assert real.read_text(encoding="utf-8") == "{}"
    assert (project / ".cursor" / "mcp.json").is_symlink() and (home / ".cursor" / "mcp.json").is_symlink()


def test_a_link_in_the_place_of_the_new_file_is_not_written_through(tmp_path: Path) -> None:
    victim, path = tmp_path / "victim", tmp_path / "settings.json"
    victim.write_text("mine", encoding="utf-8")
    path.write_text("{}", encoding="utf-8")

    for name in (".settings.json.postroom-new", f".settings.json.{os.getpid()}.postroom-new"):
        (tmp_path / name).symlink_to(victim)

    write_file(path, b'{"a": 1}')

    assert victim.read_text(encoding="utf-8") == "mine"
    assert path.read_text(encoding="utf-8") == '{"a": 1}' and not path.is_symlink()


def test_a_reader_finds_the_old_file_or_the_new_one_whole(tmp_path: Path) -> None:
    path, stop, seen = tmp_path / "settings.json", threading.Event(), set()
    path.write_bytes(b"a" * 100_000)

    def read() -> None:
        while not stop.is_set():
            content = path.read_bytes()
            seen.add((len(content), content[:1]))

    reader = threading.Thread(target=read)
    reader.start()
    for letter in (b"b", b"a") * 20:
        write_file(path, letter * 100_000)
    stop.set()
    reader.join()

    assert seen <= {(100_000, b"a"), (100_000, b"b")} and seen
    assert [each.name for each in tmp_path.iterdir()] == ["settings.json"]


@pytest.mark.parametrize("mode", [0o600, 0o664])
def test_the_new_content_of_a_file_is_never_open_to_others_than_the_file_is(
    mode: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, seen = tmp_path / "settings.json", []
    path.write_text("{}", encoding="utf-8")
    path.chmod(mode)

    def looking(call: Callable[..., None]) -> Callable[..., None]:
        def look(descriptor: int, *rest: int) -> None:
            about = os.fstat(descriptor)
            seen.append((about.st_mode & 0o777, about.st_size))
            call(descriptor, *rest)

        return look

    monkeypatch.setattr(os, "fchmod", looking(os.fchmod))
    monkeypatch.setattr(os, "fsync", looking(os.fsync))
    write_file(path, b"x" * 100_000)

    assert seen == [(0o600, 0), (mode, 100_000)]
    assert path.stat().st_mode & 0o777 == mode


def test_a_new_file_has_the_rights_that_the_umask_leaves(tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        write_file(tmp_path / "new", b"x")
    finally:
        os.umask(before)

    assert (tmp_path / "new").stat().st_mode & 0o777 == 0o640


def test_nothing_is_left_of_a_file_whose_writing_was_interrupted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(_descriptor: int) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "fsync", interrupt)
    with pytest.raises(KeyboardInterrupt):
        write_file(tmp_path / "settings.json", b"x")

    assert not [*tmp_path.iterdir()]


def test_a_file_that_changes_at_this_moment_is_not_overwritten(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = home / ".cursor" / "mcp.json"
    wish = plans.Wish("cursor", plans.USER, None, tmp_path, home)
    whole_record = work._write_record

    def meanwhile(*given: Any) -> None:
        whole_record(*given)
        path.parent.mkdir()
        path.write_text('{"theirs": 1}', encoding="utf-8")

    monkeypatch.setattr(work, "_write_record", meanwhile)
    with pytest.raises(PostroomError, match="was just changed by another program; nothing was written, try again"):
        work.install(wish)

    assert json.loads(path.read_text(encoding="utf-8")) == {"theirs": 1}


def test_a_comment_that_begins_like_our_mark_is_not_the_beginning_of_our_block(
    cli: Cli, home: Path, tmp_path: Path
) -> None:
    page = tmp_path / "AGENTS.md"
    text = "# Ours\n\nThe line <!-- postroom:start --> begins a block.\n<!-- postroom:start -->\n\nText.\n"
    page.write_text(text, encoding="utf-8")
    cli.ok("install", "vscode")
    cli.ok("install", "vscode", "--as", "bob")
    assert page.read_text(encoding="utf-8").startswith(text)
    page.write_text(page.read_text(encoding="utf-8") + "More.\n", encoding="utf-8")
    cli.ok("uninstall", "vscode")

    assert page.read_text(encoding="utf-8") == text + "More.\n"


def test_a_schema_that_opencode_adds_leaves_nothing_behind(cli: Cli, home: Path) -> None:
    path = home / ".config" / "opencode" / "opencode.json"
    cli.ok("install", "opencode")
    written = path.read_text(encoding="utf-8")
    assert list(json.loads(written)) == ["$schema", "mcp"]  # so OpenCode has nothing to add
    bare = json.dumps({"mcp": json.loads(written)["mcp"]})
    path.write_text('{\n  "$schema": "https://opencode.ai/config.json",' + bare[1:], encoding="utf-8")  # as it adds it
    cli.ok("uninstall", "opencode")

    assert list(home.iterdir()) == []


def test_an_entry_of_our_name_that_somebody_else_wrote_comes_back(cli: Cli, home: Path) -> None:
    path = home / ".cursor" / "mcp.json"
    path.parent.mkdir()
    text = '{"mcpServers": {"postroom": {"command": "mine"}}}'
    path.write_text(text, encoding="utf-8")
    cli.ok("uninstall", "cursor")
    assert path.read_text(encoding="utf-8") == text
    cli.ok("install", "cursor")
    assert jsonc.value_at(path.read_text(encoding="utf-8"), ("mcpServers", "postroom", "command")) != "mine"
    cli.ok("uninstall", "cursor")
    assert path.read_text(encoding="utf-8") == text


@pytest.mark.parametrize("host", ["codex", "cursor", "opencode"])
def test_an_installation_of_an_earlier_version_whose_record_says_less_is_uninstalled(
    cli: Cli, home: Path, host: str
) -> None:
    cli.ok("install", host)
    (record,) = (home / ".local" / "share" / "postroom" / "installed").iterdir()
    said = json.loads(record.read_text(encoding="ascii"))
    (path,) = [Path(entry["path"]) for entry in said["files"] if entry["part"].pop("kind") in ("codex", "entry")]
    for entry in said["files"]:
        del entry["part"]
    record.write_text(json.dumps(said), encoding="ascii")
    path.write_text(path.read_text(encoding="utf-8") + "\n", encoding="utf-8")  # somebody changed it since
    cli.ok("uninstall", host)

    assert list(home.rglob("*.json")) + list(home.rglob("*.toml")) + list(home.rglob("*.md")) == []


def test_comments_around_our_entry_stay_when_it_goes(cli: Cli, home: Path) -> None:
    entry = '"postroom": {"command": "/x/postroom", "args": ["mcp"]}'
    for text, left in [
        (f'{{"mcpServers": {{ // one\n {entry}, // two\n // three\n "a": {{}} }} }}', ["one", "two", "three"]),
        (f'{{"mcpServers": {{ "a": {{}}, // one\n /* two */ {entry} // three\n }} }}', ["one", "two", "three"]),
        (f'{{"mcpServers": {{ // one\n {entry} }} }}', ["one"]),
    ]:
        after = jsonc.without_member(text, ("mcpServers", "postroom"))
        assert "postroom" not in after
        assert [word for word in ("one", "two", "three") if word in after] == left


@pytest.mark.parametrize(
    "text", ['{"mcpServers": {}, "mcpServers": {"a": {}}}', '{"mcpServers": {"a": nul}}', '{"mcpServers": {}, "b": 01}']
)
def test_json_that_would_not_say_what_it_should_is_refused(cli: Cli, home: Path, text: str) -> None:
    path = home / ".cursor" / "mcp.json"
    path.parent.mkdir()
    path.write_text(text, encoding="utf-8")

    result = cli("install", "cursor")

    assert (result.code, result.err.count("\n")) == (1, 1)
    assert f"{path}: it is" in result.err and result.err.endswith("nothing was changed\n")
    assert files(home) == {".cursor/mcp.json": text.encode()}
