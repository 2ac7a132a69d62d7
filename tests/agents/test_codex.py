"""Codex itself: its hooks tell of mail, its queue wakes an idle session, and it takes the plugin made for Claude Code."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator

import pytest

from postroom import doorway
from postroom.install import plans

from . import programs
from .conftest import World, check_story
from .programs import Terminal

FREE = ["--dangerously-bypass-hook-trust", "--dangerously-bypass-approvals-and-sandbox"]


class Codex:
    """Codex in a terminal, which may be killed and started again."""

    def __init__(self, world: World) -> None:
        self.world = world
        folder = world.home / ".codex"
        folder.mkdir()
        (folder / "config.toml").write_text(programs.codex_settings(world.model.port, world.project), encoding="utf-8")
        world.postroom("install", "codex")
        path = f"{programs.CODEX.parent}:{programs.environment(world.home)['PATH']}"
        self.environment = programs.environment(world.home, MOCK_KEY="x") | {"PATH": path}
        self.terminal: Terminal | None = None

    def start(self, prompt: str = "hello") -> Terminal:
        """Start it and say something: a session begins with its first turn."""
        since = len(self.world.model.log)
        self.terminal = Terminal([str(programs.CODEX), *FREE], self.world.project, self.environment)
        time.sleep(4)
        self.terminal.type(prompt)
        time.sleep(1)
        self.terminal.type("\r")
        self.world.model.wait_for(prompt, 60, since=since)
        return self.terminal

    def kill(self) -> None:
        if self.terminal is not None:
            self.terminal.close()
            self.terminal = None
        programs.end_all(self.world.home)


@pytest.fixture
def codex(world: World) -> Iterator[Codex]:
    codex = Codex(world)
    yield codex
    codex.kill()


def test_an_idle_session_is_woken_through_its_queue(world: World, codex: Codex) -> None:
    codex.start()
    time.sleep(3)
    since, sent_s = len(world.model.log), time.time()
    id = world.send("codex", "MARK-1")
    seen = world.model.wait_for("MARK-1", since=since)
    world.until_acked([id])

    print(f"from send to the model's context: {seen.time_s - sent_s:.2f} s")
    assert world.events(id) == ["stored", "notified", "claimed", "notified", "shown", "acked"]
    assert world.room.receipt(id).events[1].detail == "codex queue"


def test_mail_is_told_between_two_tool_calls(world: World, codex: Codex) -> None:
    codex.start("WORK 8")
    world.model.wait_for("step 1")
    id = world.send("codex", "MID-TURN")
    seen = world.model.wait_for("MID-TURN")

    assert 1 <= sum("step" in turn.text for turn in seen.turns if turn.role == "call") < 8
    world.until_acked([id])


def test_mail_that_came_while_it_was_down_arrives_when_it_starts(world: World, codex: Codex) -> None:
    codex.start()
    codex.kill()
    id = world.send("codex", "WHILE-DOWN")
    codex.start()
    world.model.wait_for("WHILE-DOWN")
    world.until_acked([id])


def test_fifty_messages_over_a_kill_none_lost_and_none_shown_again(world: World, codex: Codex) -> None:
    codex.start()
    ids = [world.send("codex", f"N-{number}") for number in range(25)]
    world.until(lambda: world.room.stats().states["acked"] >= 3, what="the first acks")
    codex.kill()
    ids += [world.send("codex", f"N-{number}") for number in range(25, 40)]
    codex.start()
    for number in range(40, 50):
        ids.append(world.send("codex", f"N-{number}"))
        time.sleep(0.1)
    world.until_acked(ids, 120)
    time.sleep(2)

    check_story(world, ids)


def test_it_takes_the_plugin_made_for_claude_code(world: World) -> None:
    wish = plans.Wish("codex", "user", None, world.project, world.home)
    market = world.home / "market"
    for step in plans.marketplace_files(wish, market):
        assert isinstance(step, plans.Own)
        step.path.parent.mkdir(parents=True, exist_ok=True)
        step.path.write_text(step.text, encoding="utf-8")
    environment = programs.environment(world.home)

    added = programs.run([str(programs.CODEX), "plugin", "marketplace", "add", str(market)], world.project, environment)
    taken = programs.run(
        [str(programs.CODEX), "plugin", "add", "postroom@postroom", "--json"], world.project, environment
    )

    assert added.returncode == 0, added.stderr
    assert taken.returncode == 0, taken.stderr
    assert "postroom" in json.dumps(json.loads(taken.stdout))
    assert doorway.look(world.room.desk, "codex") is None
