"""Installing changes what it must and nothing else; uninstalling gives back every byte."""

from __future__ import annotations

import json
import random
import re
import shlex
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
from mcp.client import Client
from mcp.client.stdio import StdioServerParameters
from tests.cli.support import Cli, clean_environment
from tests.support.in_loop import run

from postroom.doors.hosts import HOSTS
from postroom.doors.install import jsonc, plans, texts
from postroom.room import open_room

from .test_install_places import VARIABLES
from .test_tools import about_tokens

#: Settings as people have them, with what a clumsy editor would lose. Each with the hosts that change it.
SETTINGS: dict[str, tuple[str, str]] = {
    "opencode": (
        ".config/opencode/opencode.json",
        '{\n  // my own\n  "$schema": "https://opencode.ai/config.json",\n  "mcp": {\n    "other": { "type": "local" }, // keep\n  },\n\t"odd" :[1,2 , ],\n}\n',
    ),
    "cursor": (".cursor/mcp.json", '{"mcpServers":{"a":{"command":"x"}},"unknown":{"deep":[{}]}}'),
    "windsurf": (".config/devin/config.json", '\ufeff{ /* c */ "mcpServers": { } , "x": "\\u00e9é" }\r\n'),
    "codex": (".codex/config.toml", '# mine\nmodel = "x"\n\n[mcp_servers.other]\ncommand = "y"'),
    "copilot": (".copilot/mcp-config.json", '{"mcpServers": {"a": {"type": "local", "command": "x", "args": []}}}'),
    "kimi": (".kimi-code/mcp.json", '{\n\t"mcpServers": {}\n}'),
    "cline": (".cline/data/settings/cline_mcp_settings.json", '{"mcpServers":{"a":{"transport":{"command":"x"}}}}\n'),
    "vscode": (".config/Code/User/mcp.json", '{\n    "inputs": [],\n    "servers": {}\n}'),
}


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    home = tmp_path / "my home"
    home.mkdir()
    monkeypatch.setenv("HOME", str(home))
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
    return home


def everything(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize(
    ("host", "scope"),
    [(host, scope) for host in HOSTS for scope in ("user", "project") if (host, scope) != ("cline", "project")],
)
def test_what_was_not_there_is_gone_again(cli: Cli, home: Path, tmp_path: Path, host: str, scope: str) -> None:
    project = tmp_path / "a project"
    project.mkdir()
    where = ("--scope", scope, "--project", str(project))

    made = cli.json("install", host, *where)["changes"]
    again = cli.json("install", host, *where)["changes"]
    removed = cli.json("uninstall", host, *where)["changes"]

    assert made and {change["change"] for change in made} == {"made"}
    assert again == []
    assert {change["path"] for change in removed} == {change["path"] for change in made}
    assert list(home.iterdir()) == []
    assert list(project.iterdir()) == []


@pytest.mark.parametrize("host", SETTINGS)
def test_settings_of_the_user_come_back_byte_for_byte(cli: Cli, home: Path, host: str) -> None:
    place, text = SETTINGS[host]
    path = home / place
    path.parent.mkdir(parents=True)
    path.write_bytes(text.encode())
    path.chmod(0o600)
    before = everything(home)

    cli.ok("install", host, "--scope", "user", "--as", 'ann\'s "agent"')
    changed = path.read_bytes().decode()
    cli.ok("install", host, "--scope", "user", "--as", "another")
    cli.ok("uninstall", host, "--scope", "user")

    assert everything(home) == before
    assert path.stat().st_mode & 0o777 == 0o600
    for line in re.findall(r"//.*|/\*.*?\*/|# .*|\"odd\" :\[1,2 , \]|\"unknown\":\{\"deep\":\[\{\}\]\}", text):
        assert line in changed
    if host == "codex":
        settings = tomllib.loads(changed)
        assert set(settings["mcp_servers"]) == {"other", "postroom"}
        assert settings["mcp_servers"]["postroom"]["env"] == {"POSTROOM_AGENT": 'ann\'s "agent"'}
        assert settings["hooks"]["Stop"][0]["hooks"][0]["command"].replace("'", "").endswith("postroom hook auto")
    else:
        root = {"opencode": "mcp", "vscode": "servers"}.get(host, "mcpServers")
        entry = jsonc.value_at(changed, (root, "postroom"))
        entry = entry.get("transport", entry)
        assert "mcp" in (entry.get("args") or entry["command"])


#: Where each guarded program keeps its hooks, below the home.
GUARDED = {
    "claude-code": ".claude/skills/postroom/hooks/hooks.json",
    "codex": ".codex/config.toml",
    "gemini": ".gemini/extensions/postroom/hooks/hooks.json",
    "qwen": ".qwen/extensions/postroom/hooks/hooks.json",
    "opencode": ".config/opencode/plugins/postroom.js",
}


@pytest.mark.parametrize("host", GUARDED)
def test_an_installation_from_before_the_guard_gets_it_and_every_mode_is_taken_back(
    cli: Cli, home: Path, host: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = home / GUARDED[host]
    settings = {"codex": path, "opencode": home / ".config/opencode/opencode.json"}.get(host)
    if settings is not None:
        settings.parent.mkdir(parents=True)
        settings.write_text(SETTINGS[host][1], encoding="utf-8")
    before = everything(home)
    with monkeypatch.context() as earlier:
        earlier.setattr(plans.Wish, "guards", False)
        cli.ok("install", host)
    old = path.read_text(encoding="utf-8")
    found: dict[str, str] = {}
    for mode in ("warn", "refuse", "off", "warn"):
        cli.ok("install", host, "--edits", mode)
        found[mode] = path.read_text(encoding="utf-8")
        assert cli.json("install", host, "--edits", mode)["changes"] == []

    asks = re.compile(r"PreToolUse|BeforeTool")
    if host != "opencode":  # whose plugin is one text with the mode in it
        assert [bool(asks.search(text)) for text in (old, *found.values())] == [False, True, True, False]
        assert [bool(re.search(f"POSTROOM_EDITS={mode} ", text)) for mode, text in found.items()] == [False, True, True]
    else:
        assert [f'EDITS = "{mode}"' in text for mode, text in found.items()] == [True, True, True]
    if host == "codex":
        assert tomllib.loads(found["warn"])["hooks"]["PreToolUse"][0]["matcher"] == texts.CODEX_EDIT_TOOLS
    cli.ok("uninstall", host)
    assert everything(home) == before


def test_a_program_without_a_hook_before_an_edit_cannot_be_guarded(cli: Cli, home: Path) -> None:
    result = cli("install", "cursor", "--edits", "refuse")

    assert result.code == 2
    assert "cursor has no hook before an edit" in result.err
    assert list(home.iterdir()) == []


def test_a_scope_that_a_program_does_not_have_is_refused(cli: Cli, home: Path, tmp_path: Path) -> None:
    result = cli("install", "cline", "--scope", "project", "--project", str(tmp_path))

    assert result.code == 1
    assert "Cline has no MCP servers of a project" in result.err
    assert everything(home) == {}


@pytest.mark.parametrize("name", ["\U0001f600", "zoë", "a\x7fb", 'a"\\\t\x01b'])
def test_codex_reads_any_name_back(cli: Cli, home: Path, name: str) -> None:
    cli.ok("install", "codex", "--as", name)

    settings = tomllib.loads((home / ".codex" / "config.toml").read_text(encoding="utf-8"))
    assert settings["mcp_servers"]["postroom"]["env"] == {"POSTROOM_AGENT": name}
    assert f"POSTROOM_AGENT={shlex.quote(name)} " in settings["hooks"]["Stop"][0]["hooks"][0]["command"]


@pytest.mark.parametrize("text", ["[" * 5000, '{"a":' * 5000, "[" * 5000 + "]" * 5000])
def test_settings_of_bottomless_depth_are_told_in_a_sentence(cli: Cli, home: Path, text: str) -> None:
    path = home / ".cursor" / "mcp.json"
    path.parent.mkdir()
    path.write_text(text, encoding="utf-8")
    before = everything(home)

    for command in ("install", "uninstall"):
        result = cli(command, "cursor")
        assert (result.code, result.err.count("\n")) == (1, 1), result
        assert "nested too deeply for settings" in result.err
    assert everything(home) == before


def test_without_a_home_installing_says_what_to_do_and_so_does_the_doctor(
    cli: Cli, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def nobody(_: int) -> Any:
        raise KeyError

    with monkeypatch.context() as without:  # as in a container that runs as any user
        without.delenv("HOME")
        without.setattr("pwd.getpwuid", nobody)
        refused = [cli(command, "cursor") for command in ("install", "uninstall")]
        checks = {check["check"]: check for check in cli.json("doctor")["checks"]}

    for result in refused:
        assert (result.code, result.err.count("\n")) == (1, 1)
        assert "HOME is not set" in result.err
    assert (checks["home"]["verdict"], checks["home"]["advice"]) == ("warn", "set HOME to one of your folders")
    assert everything(home) == {}
    assert cli("install", "cursor", "--project", "~nobody-of-that-name").code == 2


def test_a_dry_run_shows_a_diff_and_changes_nothing(cli: Cli, home: Path) -> None:
    path = home / ".cursor" / "mcp.json"
    path.parent.mkdir()
    path.write_text('{\n  "mcpServers": {}\n}\n', encoding="utf-8")
    before = everything(home)

    shown = cli.ok("install", "cursor", "--dry-run").out

    assert f"--- {path}\n+++ {path}\n" in shown
    assert '+    "postroom": {' in shown
    assert everything(home) == before
    assert cli.ok("uninstall", "cursor", "--dry-run").out == "nothing would change\n"


def test_what_somebody_changed_since_is_kept(cli: Cli, home: Path) -> None:
    path = home / ".cursor" / "mcp.json"
    cli.ok("install", "cursor")
    path.write_text(path.read_text(encoding="utf-8").replace("{\n", '{\n  "mine": 1, // yes\n', 1), encoding="utf-8")
    cli.ok("uninstall", "cursor")

    assert jsonc.value_at(path.read_text(encoding="utf-8"), ()) == {"mine": 1}
    assert "// yes" in path.read_text(encoding="utf-8")


def test_agents_page_keeps_the_text_around_our_block(cli: Cli, home: Path, tmp_path: Path) -> None:
    page = tmp_path / "AGENTS.md"
    page.write_text("# Ours\n\nText.", encoding="utf-8")
    cli.ok("install", "vscode")
    written = page.read_text(encoding="utf-8")
    page.write_text(written + "\nMore.\n", encoding="utf-8")
    cli.ok("uninstall", "vscode")

    assert written.startswith("# Ours\n\nText.\n\n<!-- postroom:start -->\n")
    assert written.count("\n") <= 16
    assert "postroom" not in page.read_text(encoding="utf-8")
    assert page.read_text(encoding="utf-8").startswith("# Ours\n\nText.")
    assert page.read_text(encoding="utf-8").endswith("\nMore.\n")


def test_a_file_that_two_programs_share_stays_until_both_are_gone(cli: Cli, home: Path) -> None:
    skill = home / ".agents" / "skills" / "postroom" / "SKILL.md"
    for host in ("codex", "opencode"):
        cli.ok("install", host)
    cli.ok("uninstall", "codex")
    assert skill.is_file()
    cli.ok("uninstall", "opencode")

    assert list(home.iterdir()) == []


def test_a_broken_file_is_left_alone_and_nothing_is_half_done(cli: Cli, home: Path) -> None:
    path = home / ".config" / "opencode" / "opencode.json"
    path.parent.mkdir(parents=True)
    path.write_text('{\n "mcp": {,}\n}', encoding="utf-8")
    before = everything(home)

    result = cli("install", "opencode")

    assert result.code == 1
    assert "opencode.json: line 2 is not JSON; fix the file first, nothing was changed" in result.err
    assert everything(home) == before


def test_somebody_elses_entry_of_our_name_is_told(cli: Cli, home: Path) -> None:
    path = home / ".codex" / "config.toml"
    path.parent.mkdir()
    path.write_text('[mcp_servers.postroom]\ncommand = "mine"\n', encoding="utf-8")

    result = cli("install", "codex")

    assert result.code == 1
    assert "has an entry for postroom that `postroom install` did not write" in result.err


def test_the_skill_costs_at_most_700_tokens_and_its_commands_are_real(cli: Cli) -> None:
    from postroom.cli.table import COMMANDS

    named = set(re.findall(r"^    postroom (\w+)", texts.SKILL, re.M))

    assert about_tokens(texts.SKILL) <= 500
    assert len(named) >= 9
    assert named <= set(COMMANDS)


def random_json(chance: random.Random, depth: int = 0) -> Any:
    kind = chance.randrange(8 if depth < 4 else 5)
    if kind >= 5:
        names = [chance.choice(["a", "b", "mcp", "mcpServers", "é", 'q"', ""]) for _ in range(chance.randrange(4))]
        return {name: random_json(chance, depth + 1) for name in names}
    return chance.choice([None, True, 1, -2.5, "x", "a // b", "/* */", [], ["}", "{"], [[{"k": 1}]], 'q"\\'])


def with_noise(chance: random.Random, text: str) -> str:
    """The same JSON with comments, spaces and trailing commas strewn in between its parts."""
    parts = re.findall(r'"(?:[^"\\]|\\.)*"|[\[\]{}:,]|[^\[\]{}:,"]+', text)
    out = ""
    for index, part in enumerate(parts):
        if part in "}]" and index and parts[index - 1] not in "{[," and chance.random() < 0.3:
            out += ","
        out += part
        if chance.random() < 0.3:
            out += chance.choice([" ", "\n", "\t", "// c }\n", "/* , { */", "\r\n"])
    return out


@pytest.mark.slow
def test_any_settings_file_gets_our_entry_and_loses_it_again() -> None:
    seed = random.randrange(2**32)
    print("seed", seed)
    chance = random.Random(seed)
    for _ in range(2000):
        value = {"top": random_json(chance), **{name: random_json(chance) for name in ("a", "mcp")}}
        text = with_noise(chance, json.dumps(value, ensure_ascii=False, indent=chance.choice([None, 1, 2])))
        assert jsonc.value_at(text, ()) == value, text
        path = chance.choice([("mcp", "postroom"), ("mcpServers", "postroom"), ("new", "deep", "postroom")])
        if path[0] == "mcp" and not isinstance(value["mcp"], dict):
            with pytest.raises(jsonc.NotJson, match="is not an object"):
                jsonc.with_member(text, path, {"x": 1})
            continue

        added = jsonc.with_member(text, path, {"command": "p", "args": ["mcp"]})
        assert jsonc.value_at(added, path) == {"command": "p", "args": ["mcp"]}, (text, added)
        removed = jsonc.value_at(jsonc.without_member(added, path), ())
        expected = {**value, **({path[0]: {}} if path[0] not in value else {})}
        if path[0] == "new":
            expected["new"] = {"deep": {}}
        assert removed == expected, (text, added)


@pytest.mark.parametrize(
    "text",
    [
        '{"mcp":{"postroom":1},"mcp":{"postroom":2}}',
        '{"mcp":{"postroom":1},"mcp":{"other":2}}',
        '{"mcp":{"postroom":1},"mcp":3}',
        '{"mcp":{"postroom":1,"postroom":2},"mcp":{}}',
        '{"mcp":{"postroom":1,"postroom":2}}',
    ],
)
def test_a_settings_file_in_which_a_name_stands_twice_is_not_changed(text: str) -> None:
    with pytest.raises(jsonc.NotJson, match="cannot be changed safely"):
        jsonc.without_member(text, ("mcp", "postroom"))
    with pytest.raises(jsonc.NotJson, match="cannot be changed safely"):
        jsonc.with_member(text, ("mcp", "postroom"), {"command": "p"})


def test_the_doctor_asks_the_program_itself(
    cli: Cli, home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    programs = tmp_path / "bin"
    programs.mkdir()
    monkeypatch.setenv("PATH", f"{programs}:/usr/bin:/bin")

    def door() -> Any:
        found = cli("doctor", "--json").json["checks"]
        return [
            (each["verdict"], each["says"], each["advice"]) for each in found if each["check"] == "door claude-code"
        ]

    assert door() == []
    cli.ok("install", "claude-code")
    assert "the program was not found, so it was not asked" in door()[0][1]
    claude = programs / "claude"
    claude.write_text(
        '#!/bin/sh\n[ "$1 $2 $3" = "plugin validate --strict" ] && [ -f "$4/.mcp.json" ]\n', encoding="utf-8"
    )
    claude.chmod(0o755)
    assert door() == [("ok", "installed (user); claude accepts it", "")]
    claude.write_text("#!/bin/sh\necho 'hooks: bad'; exit 1\n", encoding="utf-8")
    verdict, says, advice = door()[0]
    assert (verdict, says) == ("fail", "claude does not accept it: hooks: bad")
    assert advice.startswith("`claude plugin validate --strict")
    (home / ".claude" / "skills" / "postroom" / ".mcp.json").unlink()
    assert "is missing" in door()[0][1]


def test_what_the_server_lacks_is_said_at_once_and_by_the_doctor(
    cli: Cli, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cli.ok("init")
    with monkeypatch.context() as without:
        without.setitem(sys.modules, "mcp", None)  # as where it was not installed
        assert "first: pip install 'postroom[mcp]'" in cli.ok("install", "cursor").out
        checks = {check["check"]: check for check in cli("doctor", "--json").json["checks"]}
    assert "first:" not in cli.ok("install", "cursor").out

    door = checks["door cursor"]
    assert (door["verdict"], door["advice"]) == ("fail", "pip install 'postroom[mcp]'")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("host", "scope"),
    [
        ("cursor", "user"),
        ("vscode", "project"),
        pytest.param("windsurf", "project", marks=pytest.mark.long),
        pytest.param("cursor", "project", marks=pytest.mark.long),
        pytest.param("vscode", "user", marks=pytest.mark.long),
        pytest.param("windsurf", "user", marks=pytest.mark.long),
    ],
)
def test_an_editors_entry_starts_a_server_that_knows_its_name_and_its_room(
    cli: Cli, home: Path, tmp_path: Path, host: str, scope: str
) -> None:
    """The editors are not here to be tried, so what they document is done by hand: their entry is read, and run."""
    project = tmp_path / "a project"
    project.mkdir()
    open_room(f"sqlite:{project}/.postroom").close()
    made = cli.json("install", host, "--scope", scope, "--project", str(project))["changes"]
    (path,) = [Path(change["path"]) for change in made if change["path"].endswith(".json")]
    root = "servers" if host == "vscode" else "mcpServers"
    entry = json.loads(path.read_text(encoding="utf-8"))[root]["postroom"]
    environment = {name: value.replace("${workspaceFolder}", str(project)) for name, value in entry["env"].items()}
    server = StdioServerParameters(
        command=entry["command"],
        args=entry["args"],
        env=clean_environment(HOME=str(home), **environment),
        cwd=project if host == "windsurf" else home,  # Devin's agent runs where it was started
    )

    async def main() -> None:
        async with Client(server) as one, Client(server) as two:
            for number, client in enumerate((one, two)):
                sent = await client.call_tool("send", {"to": "ada", "body": str(number), "new": True})
                assert not sent.is_error, sent.content

    run(main())
    with open_room(f"sqlite:{project}/.postroom") as room:
        assert sorted(message.from_agent for message in room.peek()) == [host, f"{host}-2"]
