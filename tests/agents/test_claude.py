"""Claude Code itself: woken when idle, told between tool calls, nothing lost over a kill, and receipts that are true."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from postroom.doors import session_binding
from postroom.room import open_room

from . import programs
from .conftest import World, check_story
from .model_server import Seen, ids_of, mail_agent
from .programs import Terminal

TOOLS = "Bash,mcp__plugin_postroom_mail"


class Claude:
    """Claude Code in a terminal, which may be killed and started again."""

    def __init__(self, world: World) -> None:
        self.world = world
        world.postroom("install", "claude-code")
        programs.claude_home(world.home, world.project)
        self.terminal: Terminal | None = None

    def start(self) -> Terminal:
        before = (session_binding.look(self.world.room.gateway, "claude") or {}).get("session")
        self.terminal = Terminal(
            [str(programs.CLAUDE), "--allowedTools", TOOLS],
            self.world.project,
            programs.claude_environment(self.world.home, self.world.model.port),
        )
        self.world.until(lambda: self._is_up(before), what="the start of Claude Code")
        return self.terminal

    def _is_up(self, before: str | None) -> bool:
        bound = session_binding.look(self.world.room.gateway, "claude")
        running = any(agent.name == "claude" and agent.alive for agent in self.world.room.agents())
        return bound is not None and bound["attended"] and bound["session"] not in (None, before) and running

    def kill(self) -> None:
        if self.terminal is not None:
            self.terminal.close()
            self.terminal = None


@pytest.fixture
def claude(world: World) -> Iterator[Claude]:
    claude = Claude(world)
    yield claude
    claude.kill()


def test_an_idle_session_is_woken_by_mail_without_a_keystroke(world: World, claude: Claude) -> None:
    claude.start()
    took: list[float] = []
    for number in range(3):
        time.sleep(4)  # idle, as at a gateway where nobody sits
        since, sent_s = len(world.model.log), time.time()
        id = world.send("claude", f"MARK-{number}")
        took.append(world.model.wait_for(f"MARK-{number}", since=since).time_s - sent_s)
        world.until_acked([id])
        assert world.events(id) == ["stored", "notified", "claimed", "notified", "shown", "acked"]

    print("from send to the model's context:", ", ".join(f"{each:.2f} s" for each in took))
    assert min(took) < 2


def test_a_session_that_was_there_before_its_room_is_bound_and_woken(world: World, tmp_path: Path) -> None:
    world.postroom("install", "claude-code")
    project = tmp_path / "another"
    project.mkdir()
    programs.claude_home(world.home, project)
    words = [str(programs.CLAUDE), "--allowedTools", TOOLS]
    terminal = Terminal(words, project, programs.claude_environment(world.home, world.model.port))
    try:
        time.sleep(8)  # it is up; no program of ours can see that
        world.postroom_in(project, "init")
        with open_room(f"sqlite:{project}/.postroom") as room:
            world.until(lambda: (session_binding.look(room.gateway, "claude") or {}).get("session"), what="the binding")
            time.sleep(4)
            id = room.agent("ada").send("claude", {"text": "WAKE-UP"})
            sent_s = time.time()
            seen = world.model.wait_for("WAKE-UP", 30)
            print(f"from send to the model's context: {seen.time_s - sent_s:.2f} s")
            world.until(lambda: room.receipt(id).state == "acked", 30, "the ack")
    finally:
        terminal.close()
        programs.end_all(world.home)


def test_mail_is_told_between_two_tool_calls(world: World, claude: Claude) -> None:
    terminal = claude.start()
    time.sleep(2)
    terminal.type("WORK 8")
    time.sleep(0.5)
    terminal.type("\r")
    world.model.wait_for("step 1")
    id = world.send("claude", "MID-TURN")
    seen = world.model.wait_for("MID-TURN")

    calls = [turn.text for turn in seen.turns if turn.role == "call"]
    assert 1 <= sum("step" in call for call in calls) < 8  # in the middle of its work
    world.until_acked([id])
    world.model.wait_for("step 8")  # and it went on with it


def test_mail_that_came_while_it_was_down_arrives_when_it_starts(world: World, claude: Claude) -> None:
    claude.start()
    claude.kill()
    id = world.send("claude", "WHILE-DOWN")
    time.sleep(1)
    assert world.events(id) == ["stored"]

    claude.start()
    world.model.wait_for("WHILE-DOWN")
    world.until_acked([id])


def test_what_it_held_when_it_was_killed_comes_again_when_it_starts(world: World, claude: Claude) -> None:
    claude.start()
    time.sleep(2)
    world.model.policy = lambda seen: (
        "ok" if "| HELD" in seen.text.replace("\\n", "\n") and ids_read(seen) else mail_agent(seen)
    )
    id = world.send("claude", "HELD")
    world.until(lambda: "shown" in world.events(id), what="the reading")
    claude.kill()
    world.model.policy = mail_agent
    claude.start()  # and nobody types, and nobody writes

    world.until_acked([id])
    assert world.events(id).count("claimed") == 1


def ids_read(seen: Seen) -> bool:
    return any(ids_of(turn) for turn in seen.turns if turn.role == "result")


def test_fifty_messages_over_a_kill_none_lost_and_none_shown_again(world: World, claude: Claude) -> None:
    claude.start()
    time.sleep(2)
    ids = [world.send("claude", f"N-{number}") for number in range(10)]
    for number in range(10, 25):
        ids.append(world.send("claude", f"N-{number}"))
        time.sleep(0.1)
    world.until(lambda: world.room.stats().states["acked"] >= 3, what="the first acks")
    claude.kill()
    ids += [world.send("claude", f"N-{number}") for number in range(25, 40)]
    claude.start()
    for number in range(40, 50):
        ids.append(world.send("claude", f"N-{number}"))
        time.sleep(0.1)
    world.until_acked(ids, 90)
    time.sleep(2)

    check_story(world, ids)


@pytest.mark.parametrize("extra", [[], ["--json"]])
def test_its_own_validator_accepts_the_plugin(world: World, extra: list[str]) -> None:
    world.postroom("install", "claude-code")
    plugin = world.home / ".claude" / "skills" / "postroom"
    done: Any = programs.run(
        [str(programs.CLAUDE), "plugin", "validate", "--strict", *extra, str(plugin)],
        world.project,
        programs.environment(world.home),
    )

    assert done.returncode == 0, done.stdout + done.stderr
