"""GitHub Copilot CLI, Kimi Code and Cline themselves: they start our server, and Copilot's hooks tell it of mail."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from . import programs
from .conftest import World
from .model_server import Call, Seen, mail_agent


def copilot(world: World, *words: str) -> subprocess.CompletedProcess[str]:
    model = {"BASE_URL": f"http://127.0.0.1:{world.model.port}", "TYPE": "anthropic", "API_KEY": "x"}
    environment = programs.environment(
        world.home,
        **{f"COPILOT_PROVIDER_{name}": value for name, value in model.items()},
        COPILOT_MODEL="claude-sonnet-4-6",
        COPILOT_OFFLINE="true",
        COPILOT_AUTO_UPDATE="false",
    )
    return programs.run([str(programs.COPILOT), *words], world.project, environment)


def kimi(world: World, *words: str) -> subprocess.CompletedProcess[str]:
    folder = world.home / ".kimi-code"
    folder.mkdir(exist_ok=True)
    (folder / "config.toml").write_text(
        f'default_model = "mock"\n\n[providers.mock]\ntype = "anthropic"\n'
        f'base_url = "http://127.0.0.1:{world.model.port}"\napi_key = "x"\n\n'
        '[models.mock]\nprovider = "mock"\nmodel = "mock"\nmax_context_size = 100000\n',
        encoding="utf-8",
    )
    environment = programs.environment(world.home, KIMI_CODE_NO_AUTO_UPDATE="1")
    return programs.run([str(programs.NODE), str(programs.KIMI), *words], world.project, environment)


def cline(world: World, *words: str) -> subprocess.CompletedProcess[str]:
    return programs.run([str(programs.CLINE), *words], world.project, programs.environment(world.home))


def test_copilot_is_told_of_mail_when_it_starts_and_its_hooks_prove_that_it_was_shown(world: World) -> None:
    world.postroom("install", "copilot")
    world.room.agent("copilot", transient=True)
    id = world.send("copilot", "FOR-COPILOT")
    done = copilot(world, "--allow-all-tools", "-p", "WORK 1")

    assert done.returncode == 0, done.stderr
    world.model.wait_for("FOR-COPILOT", 1)
    world.until_acked([id], 5)
    details = {event.event: event.detail for event in reversed(world.room.receipt(id).events)}
    assert (details["notified"], details["shown"]) == ("copilot SessionStart", "copilot PostToolUse")


def test_copilot_is_told_between_its_steps_and_before_it_stops(world: World) -> None:
    world.postroom("install", "copilot")
    world.room.agent("copilot", transient=True)
    ids: list[str] = []

    def then_mail(seen: Seen) -> Call | str:
        made = mail_agent(seen)
        if not ids or (len(ids) == 1 and made == "ok"):  # while it works, and as it is about to stop
            ids.append(world.send("copilot", f"MAIL-{len(ids)}"))
        return made

    world.model.policy = then_mail
    done = copilot(world, "--allow-all-tools", "-p", "WORK 2")

    assert done.returncode == 0, done.stderr
    assert len(ids) == 2
    world.until_acked(ids, 5)
    told = [next(e.detail for e in world.room.receipt(id).events if e.event == "notified") for id in ids]
    assert told == ["copilot PostToolUse", "copilot Stop"]


def test_kimi_reads_its_mail_with_the_tools(world: World) -> None:
    world.postroom("install", "kimi")
    world.room.agent("kimi", transient=True)
    id = world.send("kimi", "FOR-KIMI")
    done = kimi(world, "-p", "postroom: 1 new. Read it.")

    assert done.returncode == 0, done.stderr
    world.model.wait_for("FOR-KIMI", 1)
    world.until_acked([id], 5)


SETTINGS = {
    "copilot": Path(".copilot") / "mcp-config.json",
    "cline": Path(".cline") / "data" / "settings" / "cline_mcp_settings.json",
}


@pytest.mark.parametrize("host", SETTINGS)
def test_a_server_that_the_program_added_itself_survives_the_uninstall(world: World, host: str) -> None:
    run, words = {"copilot": (copilot, ["mcp", "add", "mine"]), "cline": (cline, ["mcp", "add", "mine", "--yes"])}[host]
    path = world.home / SETTINGS[host]
    world.postroom("install", host)
    done = run(world, *words, "--", "echo", "hi")
    assert done.returncode == 0, done.stderr
    both: dict[str, Any] = json.loads(path.read_text("utf-8"))["mcpServers"]
    world.postroom("install", host, "--as", "bob")  # over what the program has written in its own form
    world.postroom("uninstall", host)
    after: dict[str, Any] = json.loads(path.read_text("utf-8"))["mcpServers"]

    assert set(both) == {"mine", "postroom"}
    assert after == {"mine": both["mine"]}
    assert not list(world.home.rglob("hooks/postroom.json"))
