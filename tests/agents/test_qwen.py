"""Qwen Code itself: its inbox wakes an idle session and says that it did, its hooks tell between the steps."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator

import pytest

from postroom.doors import session_binding

from . import programs
from .conftest import World
from .programs import Terminal

#: Without what asks the model for more than its turns: memories and proposals of what to type next.
SETTINGS = {
    "security": {"auth": {"selectedType": "anthropic"}},
    "model": {"name": "mock"},
    "general": {"enableAutoUpdate": False},
    "memory": {"enableManagedAutoMemory": False, "enableManagedAutoDream": False, "enableAutoSkill": False},
    "ui": {"enableFollowupSuggestions": False},
}


class Qwen:
    """Qwen Code in a terminal, which may be killed and started again."""

    def __init__(self, world: World) -> None:
        self.world = world
        (world.home / ".qwen").mkdir()
        (world.home / ".qwen" / "settings.json").write_text(json.dumps(SETTINGS), encoding="utf-8")
        world.postroom("install", "qwen")
        model = {"ANTHROPIC_API_KEY": "x", "ANTHROPIC_MODEL": "mock"}
        self.environment = programs.environment(
            world.home, ANTHROPIC_BASE_URL=f"http://127.0.0.1:{world.model.port}", **model
        )
        self.terminal: Terminal | None = None

    def start(self) -> Terminal:
        before = (session_binding.look(self.world.room.gateway, "qwen") or {}).get("session")
        words = [str(programs.NODE), str(programs.QWEN), "-y"]
        self.terminal = Terminal(words, self.world.project, self.environment)
        self.world.until(lambda: self._is_up(before), what="the start of Qwen Code")
        return self.terminal

    def _is_up(self, before: str | None) -> bool:
        bound = session_binding.look(self.world.room.gateway, "qwen")
        running = any(agent.name == "qwen" and agent.alive for agent in self.world.room.agents())
        return bound is not None and bound["session"] not in (None, before) and running

    def kill(self) -> None:
        if self.terminal is not None:
            self.terminal.close()
            self.terminal = None
            programs.end_all(self.world.home)


@pytest.fixture
def qwen(world: World) -> Iterator[Qwen]:
    qwen = Qwen(world)
    yield qwen
    qwen.kill()


def test_an_idle_session_is_woken_through_its_inbox(world: World, qwen: Qwen) -> None:
    qwen.start()
    took: list[float] = []
    for number in range(5):
        time.sleep(4)  # idle, as where nobody sits
        since, sent_s = len(world.model.log), time.time()
        id = world.send("qwen", f"MARK-{number}")
        seen = world.model.wait_for(f"MARK-{number}", since=since)
        took.append(seen.time_s - sent_s)
        world.until_acked([id])
        assert world.events(id) == ["stored", "notified", "claimed", "notified", "shown", "acked"]
        assert world.room.receipt(id).events[1].detail == "qwen inbox"
        assert any("<cross_session_message" in turn.text for turn in seen.turns)  # not as the user's words

    print("from send to the model's context:", ", ".join(f"{each:.2f} s" for each in took))
    assert min(took) < 2


def test_mail_is_told_between_two_tool_calls(world: World, qwen: Qwen) -> None:
    terminal = qwen.start()
    time.sleep(4)  # it takes keys a little after its hooks ran
    terminal.type("WORK 8")
    time.sleep(0.5)
    terminal.type("\r")
    world.model.wait_for("step 1")
    id = world.send("qwen", "MID-TURN")
    seen = world.model.wait_for("MID-TURN")

    assert 1 <= sum("step" in turn.text for turn in seen.turns if turn.role == "call") < 8
    world.until_acked([id])
    world.model.wait_for("step 8")


def test_mail_that_came_while_it_was_down_arrives_when_it_starts(world: World, qwen: Qwen) -> None:
    qwen.start()
    qwen.kill()
    id = world.send("qwen", "WHILE-DOWN")
    qwen.start()
    world.model.wait_for("WHILE-DOWN")
    world.until_acked([id])


def test_uninstalling_after_it_ran_leaves_nothing_of_ours(world: World, qwen: Qwen) -> None:
    settings = (world.home / ".qwen" / "settings.json").read_bytes()
    qwen.start()
    qwen.kill()
    words = [str(programs.NODE), str(programs.QWEN), "mcp", "list"]
    listed = programs.run(words, world.project, qwen.environment)
    world.postroom("uninstall", "qwen")
    after = programs.run(words, world.project, qwen.environment)

    assert "postroom" in listed.stdout
    assert "Connected" in listed.stdout
    assert "postroom" not in after.stdout
    assert not (world.home / ".qwen" / "extensions" / "postroom").exists()
    assert (
        json.loads((world.home / ".qwen" / "settings.json").read_text("utf-8")).items() >= json.loads(settings).items()
    )
