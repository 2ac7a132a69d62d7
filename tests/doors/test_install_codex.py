"""Codex writes into the file that we write into: nothing of it is lost, and our part is found whatever became of the file."""

from __future__ import annotations

import json
import random
import tomllib
from pathlib import Path
from typing import Any

import pytest
from tests.cli.support import Cli

from postroom.doors.install import codex_settings, toml_text
from postroom.doors.install.codex_settings import Wanted

from .codex_settings import FILES, FORMS

EVENTS = {"SessionStart": 10, "UserPromptSubmit": 10, "PreToolUse": 10, "PostToolUse": 10, "Stop": 10, "SessionEnd": 3}
HERE = Wanted(["/v/bin/postroom", "mcp"], None, "/v/bin/postroom hook auto", EVENTS)
THERE = Wanted(
    ["/my env/python", "-P", "-m", "postroom", "mcp"],
    "zoë",
    "POSTROOM_AGENT='zoë' '/my env/python' -P -m postroom hook auto",
    {"SessionStart": 11, "Stop": 12, "Other": 1},
)


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    home = tmp_path / "home"
    (home / ".codex").mkdir(parents=True)
    monkeypatch.setenv("HOME", str(home))
    for name in ("XDG_CONFIG_HOME", "XDG_DATA_HOME", "CODEX_HOME"):
        monkeypatch.delenv(name, raising=False)
    return home


def left_by_others(text: str) -> dict[str, Any]:
    """What is not ours, found by our name alone, which none of the others has. What is empty says nothing."""
    settings = tomllib.loads(text.removeprefix("\ufeff"))
    servers = {name: each for name, each in settings.pop("mcp_servers", {}).items() if name != "postroom"}
    hooks = settings.pop("hooks", {})
    for event, groups in hooks.items():
        if isinstance(groups, list):
            for group in groups:
                group["hooks"] = [each for each in group["hooks"] if "postroom" not in json.dumps(each)]
            hooks[event] = [group for group in groups if group["hooks"]]
    return {"rest": settings, "servers": servers, "hooks": {event: each for event, each in hooks.items() if each}}


def of_ours(text: str) -> tuple[Any, dict[str, list[Any]]]:
    settings = tomllib.loads(text.removeprefix("\ufeff"))
    hooks = {
        event: [each for group in groups for each in group["hooks"] if "postroom" in each["command"]]
        for event, groups in settings.get("hooks", {}).items()
        if isinstance(groups, list)
    }
    return settings.get("mcp_servers", {}).get("postroom"), {event: each for event, each in hooks.items() if each}


def comments(text: str) -> list[str]:
    return [line.strip() for line in text.splitlines() if line.strip().startswith("#")]


def check_installed(text: str, wanted: Wanted) -> None:
    server, hooks = of_ours(text)
    assert {name: server[name] for name in ("command", "args", "tool_timeout_sec")} == {
        "command": wanted.words[0],
        "args": wanted.words[1:],
        "tool_timeout_sec": 3700,
    }
    assert server.get("env", {}).get("POSTROOM_AGENT") == wanted.agent
    assert hooks == {
        event: [{"type": "command", "command": wanted.hook, "timeout": timeout_s}]
        for event, timeout_s in wanted.events.items()
    }


@pytest.mark.parametrize("name", ["marked-features", "marked-servers", "marked-session", "session-servers"])
def test_what_codex_wrote_is_never_lost_and_our_part_is_found(name: str) -> None:
    text = (FILES / f"{name}.toml").read_text(encoding="utf-8")
    theirs = left_by_others(text)

    for wanted in (HERE, THERE, HERE):
        text = codex_settings.with_ours(text, wanted)
        check_installed(text, wanted)
        assert left_by_others(text) == theirs
        assert comments(text) == ["# mine"]
        assert codex_settings.with_ours(text, wanted) == text
    text = codex_settings.without_ours(text)

    assert of_ours(text) == (None, {})
    assert left_by_others(text) == theirs
    assert comments(text) == ["# mine"]


@pytest.mark.parametrize("name", ["marked-features", "marked-servers", "marked-session", "session-servers"])
@pytest.mark.parametrize("again", [False, True], ids=["uninstalled", "installed again before"])
def test_the_commands_do_so_too_without_any_record(cli: Cli, home: Path, name: str, *, again: bool) -> None:
    path = home / ".codex" / "config.toml"
    text = (FILES / f"{name}.toml").read_text(encoding="utf-8")
    path.write_text(text, encoding="utf-8")
    path.chmod(0o600)

    if again:
        cli.ok("install", "codex", "--as", "bob")
        assert of_ours(path.read_text(encoding="utf-8"))[0]["env"] == {"POSTROOM_AGENT": "bob"}
    cli.ok("uninstall", "codex")

    after = path.read_text(encoding="utf-8")
    assert of_ours(after) == (None, {})
    assert left_by_others(after) == left_by_others(text)
    assert path.stat().st_mode & 0o777 == 0o600


def test_what_codex_wrote_between_two_installs_survives_the_uninstall(cli: Cli, home: Path) -> None:
    path = home / ".codex" / "config.toml"
    path.write_text('# mine\nmodel = "gpt-5"\n', encoding="utf-8")
    cli.ok("install", "codex")
    with path.open("a", encoding="utf-8") as file:  # as `codex features disable apps` does
        file.write("\n[features]\napps = false\n")
    cli.ok("install", "codex", "--as", "bob")  # nothing changes the file after this
    cli.ok("uninstall", "codex")

    assert path.read_text(encoding="utf-8") == '# mine\nmodel = "gpt-5"\n\n[features]\napps = false\n'


def test_a_file_that_codex_filled_after_us_is_not_taken_away(cli: Cli, home: Path) -> None:
    path = home / ".codex" / "config.toml"
    cli.ok("install", "codex")
    with path.open("a", encoding="utf-8") as file:
        file.write("\n[features]\napps = false\n")
    cli.ok("uninstall", "codex")
    assert path.read_text(encoding="utf-8") == "\n[features]\napps = false\n"


@pytest.mark.parametrize("form", FORMS)
def test_every_valid_form_gets_our_part_and_loses_it_again(cli: Cli, home: Path, form: str) -> None:
    text, path = FORMS[form], home / ".codex" / "config.toml"
    path.write_bytes(text.encode())
    cli.ok("install", "codex")
    written = path.read_bytes().decode()
    cli.ok("uninstall", "codex")

    assert path.read_bytes() == text.encode()
    server, hooks = of_ours(written)
    assert server["args"][-1:] == ["mcp"] and set(hooks) == set(EVENTS)
    assert left_by_others(written) == left_by_others(text)
    for wanted in (HERE, THERE):
        changed = codex_settings.with_ours(written, wanted)
        check_installed(changed, wanted)
        removed = codex_settings.without_ours(changed)
        assert left_by_others(removed) == left_by_others(text)
        assert comments(removed) == comments(text)
        assert of_ours(removed) == (None, {})


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (
            '[mcp_servers."postroom"]\ncommand = "x"\n',
            "an entry for postroom that `postroom install` did not write; remove it first",
        ),
        (
            '[ mcp_servers.postroom ]\nurl = "x"\n',
            "an entry for postroom that `postroom install` did not write; remove it first",
        ),
        (
            'mcp_servers.postroom.command = "x"\n',
            "an entry for postroom that `postroom install` did not write; remove it first",
        ),
        (
            'mcp_servers = { postroom = { command = "x" } }\n',
            "an entry for postroom that `postroom install` did not write",
        ),
        ("this is = = not toml\n", "it is not TOML (Expected '='"),
        ("a = 1\na = 2\n", "it is not TOML (Cannot overwrite a value"),
        ("mcp_servers = 3\n", "its mcp_servers is not a table"),
        ("hooks = 3\n", "its hooks is not a table"),
        ("[[hooks]]\na = 1\n", "it is written in a form that cannot be added to safely"),
        ("a = " + "[" * 5000 + "]" * 5000 + "\n", "nested too deeply for settings"),
    ],
)
def test_what_cannot_be_done_right_is_refused_in_a_sentence(cli: Cli, home: Path, text: str, sentence: str) -> None:
    path = home / ".codex" / "config.toml"
    path.write_text(text, encoding="utf-8")

    result = cli("install", "codex")

    assert (result.code, result.err.count("\n")) == (1, 1)
    assert f"{path}: it" in result.err
    assert sentence in result.err
    assert result.err.endswith("nothing was changed\n")
    assert [each for each in home.rglob("*") if each.is_file()] == [path]
    assert path.read_text(encoding="utf-8") == text


def test_the_doctor_sees_settings_that_are_broken_without_asking_codex(
    cli: Cli, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    cli.ok("install", "codex")
    with (home / ".codex" / "config.toml").open("a", encoding="utf-8") as file:
        file.write("a = = 1\n")

    checks = {check["check"]: check for check in cli("doctor", "--json").json["checks"]}
    assert checks["door codex"]["verdict"] == "fail"
    assert "config.toml: it is not TOML" in checks["door codex"]["says"]


def test_what_was_set_for_our_server_stays_at_a_reinstall_and_goes_with_it() -> None:
    text = codex_settings.with_ours("", THERE) + (
        '[mcp_servers.postroom.tools.send]\napproval_mode = "approve"\n# about x\n[x]\ny = 1\n'
    )
    text = text.replace("[mcp_servers.postroom]\n", "[mcp_servers.postroom]\nenabled = false # for now\n")

    again = codex_settings.with_ours(text, HERE)
    check_installed(again, HERE)
    server = tomllib.loads(again)["mcp_servers"]["postroom"]
    assert (server["enabled"], server["tools"]) == (False, {"send": {"approval_mode": "approve"}})
    assert "enabled = false # for now\n" in again
    assert codex_settings.without_ours(again).lstrip() == "# about x\n[x]\ny = 1\n"


def test_hooks_of_others_keep_their_numbers_when_ours_change() -> None:
    """Codex trusts a hook by its number in its list; `codex_files/session-servers.toml` shows it."""
    say = '[[hooks.Stop]]\n[[hooks.Stop.hooks]]\ntype = "command"\ncommand = "say"\n'
    text = codex_settings.with_ours("", HERE) + say

    changed = codex_settings.with_ours(text, THERE)

    assert [group["hooks"][0]["command"] for group in tomllib.loads(changed)["hooks"]["Stop"]] == [THERE.hook, "say"]
    assert codex_settings.without_ours(changed).strip() == say.strip()


def test_a_group_that_we_share_with_others_loses_our_hook_alone() -> None:
    ours = '{ type = "command", command = "/x/postroom hook auto", timeout = 10 }'
    say = '{ type = "command", command = "say" }'
    for text, left in [
        (f"[[hooks.Stop]]\nhooks = [{ours}, {say}]\n", f"[[hooks.Stop]]\nhooks = [{say}]\n"),
        (f"[[hooks.Stop]]\nhooks = [{say}, {ours}]\n", f"[[hooks.Stop]]\nhooks = [{say}]\n"),
        (f"[[hooks.Stop]]\nhooks = [{ours}, {ours}, {say}]\n", f"[[hooks.Stop]]\nhooks = [{say}]\n"),
        (f"[[hooks.Stop]]\nhooks = [{say}, # why\n {ours}]\n", f"[[hooks.Stop]]\nhooks = [{say} # why\n ]\n"),
        (f"hooks = {{ Stop = [{{ hooks = [{ours}] }}], A = [] }}\n", "hooks = { A = [] }\n"),
    ]:
        assert codex_settings.without_ours(text) == left


def random_settings(chance: random.Random) -> str:
    """Settings of others, and some of ours, in any order and spelling."""
    handler = '{ type = "command", command = "%s", timeout = 10 }'
    say, ours = handler % "say", handler % "/x/postroom hook auto"
    commands = ["say", "/x/postroom hook auto", "POSTROOM_AGENT=b '/p y/python' -m postroom hook auto"]
    inline = chance.random() < 0.5
    parts = ['[a."b.c"]\nd = """\n[x]\n# "\n"""\n', "[tui]\nwhen = 1979-05-27 07:32:00 # x\n", "# alone\n\n", "\r\n"]
    if inline:
        head = f"hooks = {{ Stop = [{{ hooks = [{chance.choice([say, ours, say + ',' + ours])}] }}] }}\n"
        head += chance.choice(["", "# hm\n", 'mcp_servers = { b = { command = "y" } }\n', "mcp_servers = {}\n"])
    else:
        head = chance.choice(["", 'model = "x"\n', "# top\n", 'mcp_servers.b.command = "y"\n', "hooks.Stop = []\n"])
        for command in chance.choices(commands, k=chance.randrange(4)):
            event = chance.choice(["SessionEnd", "Other"])
            text = f'[[hooks.{event}.hooks]]\ntype = "command"\ncommand = "{command}"\n# of {event}\n'
            parts.append(f"[[hooks.{event}]]\n{text}" + (text if chance.random() < 0.3 else ""))
        parts.append('[hooks.state."x:stop:0:0"]\ntrusted_hash = "h"\n')
        if chance.random() < 0.5:
            parts.append('[mcp_servers.postroom]\ncommand = "/y/postroom"\nargs = ["mcp"] # x\n')
            parts.append('[mcp_servers.postroom.env]\nPOSTROOM_AGENT = "z"\nA = "1"\n')
    chance.shuffle(parts)
    return head + "".join(parts[: chance.randrange(len(parts) + 1)] if inline else parts)


@pytest.mark.slow
def test_any_settings_get_our_part_once_and_lose_it_again() -> None:
    seed = random.randrange(2**32)
    print("seed", seed)
    chance = random.Random(seed)
    for _ in range(60):
        text = random_settings(chance)
        theirs = left_by_others(text)
        changed = text
        for wanted in chance.sample([HERE, THERE, HERE], 3):
            changed = codex_settings.with_ours(changed, wanted)
            check_installed(changed, wanted)
            assert left_by_others(changed) == theirs, text
            assert comments(changed) == comments(text), text
        for each in (changed, text):
            removed = codex_settings.without_ours(each)
            assert of_ours(removed) == (None, {}), each
            assert left_by_others(removed) == theirs, each
            assert comments(removed) == comments(text), each


def test_every_part_of_a_text_is_found_where_it_stands() -> None:
    text = "\ufeffa.'b c'.\"d\\u0041\" = [1, [2, {x = 3, y.z = '''4'''}],] # c\n[[t]]\n[t.u]\nv = 1\n[[t]]\n"
    found = {item.path: text[item.value : item.end] for item in toml_text.items(text) if item.value >= 0}

    assert found == {
        ("a", "b c", "dA"): "[1, [2, {x = 3, y.z = '''4'''}],]",
        ("a", "b c", "dA", 0): "1",
        ("a", "b c", "dA", 1): "[2, {x = 3, y.z = '''4'''}]",
        ("a", "b c", "dA", 1, 0): "2",
        ("a", "b c", "dA", 1, 1): "{x = 3, y.z = '''4'''}",
        ("a", "b c", "dA", 1, 1, "x"): "3",
        ("a", "b c", "dA", 1, 1, "y", "z"): "'''4'''",
        ("t", 0, "u", "v"): "1",
    }
    assert [item.path for item in toml_text.items(text) if item.kind == toml_text.HEADER] == [
        ("t", 0),
        ("t", 0, "u"),
        ("t", 1),
    ]
