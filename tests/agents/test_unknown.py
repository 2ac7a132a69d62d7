"""A program that Postroom was not installed for: GitHub Copilot CLI, with a plain entry for our server and no name in it."""

from __future__ import annotations

import json
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

from . import programs
from .conftest import World

COPILOT = programs.MODULES / "@github" / "copilot-linux-x64" / "copilot"


def with_copilot(world: World) -> None:
    server = {"type": "local", "command": sys.executable, "args": ["-m", "postroom", "mcp"], "tools": ["*"]}
    (world.home / ".copilot").mkdir()
    settings = json.dumps({"mcpServers": {"postroom": server}})
    (world.home / ".copilot" / "mcp-config.json").write_text(settings, encoding="utf-8")


def copilot(world: World, prompt: str) -> subprocess.CompletedProcess[str]:
    environment = programs.environment(
        world.home,
        COPILOT_PROVIDER_BASE_URL=f"http://127.0.0.1:{world.model.port}",
        COPILOT_PROVIDER_TYPE="anthropic",
        COPILOT_PROVIDER_API_KEY="x",
        COPILOT_MODEL="mock",
        COPILOT_OFFLINE="true",
    )
    return programs.run([str(COPILOT), "--allow-all-tools", "-p", prompt], world.project, environment)


def test_it_is_named_by_what_it_calls_itself_and_a_second_one_is_numbered(world: World) -> None:
    with_copilot(world)
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(copilot, world, "postroom: 1 new. Then WORK 20")  # it looks into its inbox, and goes on
        world.until(lambda: names(world) == ["copilot-cli"], what="the first one's name")
        second = copilot(world, "postroom: 1 new")
        assert (second.returncode, first.done()) == (0, False), second.stderr[-2000:]
        assert names(world) == ["copilot-cli", "copilot-cli-2"]
    assert first.result().returncode == 0

    id = world.send("copilot-cli", "WHILE-DOWN")
    assert copilot(world, "postroom: 1 new").returncode == 0
    world.model.wait_for("WHILE-DOWN", 1)
    world.until_acked([id], 5)
    assert names(world) == ["ada", "copilot-cli", "copilot-cli-2"]


def names(world: World) -> list[str]:
    return sorted(agent.name for agent in world.room.agents())
