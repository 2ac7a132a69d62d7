"""Codex itself: its hooks tell of mail, its server wakes an idle session, and it takes the plugin made for Claude Code."""

from __future__ import annotations

import json
import shutil
import time
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.doors.codex_settings import FORMS

from postroom.doors import session_binding
from postroom.doors.install import plans, texts

from . import programs
from .conftest import World, check_story
from .programs import Terminal

#: The hooks are trusted as a user does it. The flag that spares one the question also keeps the session out of the server that
#: all terminals share, and a session by itself looks into its queue only every 10 s.
FREE = ["--dangerously-bypass-approvals-and-sandbox"]


class Codex:
    """Codex in terminals, which may be killed and started again."""

    def __init__(self, world: World) -> None:
        self.world = world
        self._folder = world.home / ".codex"
        self._folder.mkdir()
        settings = programs.codex_settings(world.model.port, world.project)
        (self._folder / "config.toml").write_text(settings, encoding="utf-8")
        world.postroom("install", "codex")
        path = f"{programs.CODEX.parent}:{programs.environment(world.home)['PATH']}"
        self.environment = programs.environment(world.home, MOCK_KEY="x") | {"PATH": path}
        self.terminals: list[Terminal] = []
        self._is_trusted = False

    def start(self, prompt: str = "hello") -> Terminal:
        """Start it and say something: a session begins with its first turn."""
        since = len(self.world.model.log)
        terminal = Terminal([str(programs.CODEX), *FREE], self.world.project, self.environment)
        self.terminals.append(terminal)
        before = 0
        if not self._is_trusted:
            terminal.wait_for("Trust all")
            time.sleep(0.5)
            before = len(terminal.written)
            terminal.type("2")
            terminal.wait_for("\u203a 2. Trust all", since=before)  # chosen
            terminal.type("\r")
            self._is_trusted = True
        terminal.wait_for("for shortcuts", since=before)
        time.sleep(2)
        terminal.type(prompt)
        time.sleep(1)
        terminal.type("\r")
        self.world.model.wait_for(prompt, 60, since=since)
        return terminal

    def kill(self) -> None:
        """End the terminals, and the server that they share."""
        for terminal in self.terminals:
            terminal.close()
        self.terminals = []
        programs.end_all(self.world.home)

    def clean(self) -> None:
        """It has put a copy of itself into its home, of 440 MB."""
        shutil.rmtree(self._folder / "packages", ignore_errors=True)


@pytest.fixture
def codex(world: World) -> Iterator[Codex]:
    codex = Codex(world)
    yield codex
    codex.kill()
    codex.clean()


def test_an_idle_session_is_woken_through_its_server(world: World, codex: Codex) -> None:
    codex.start()
    took: list[float] = []
    for number in range(3):
        time.sleep(4)  # idle, as at a gateway where nobody sits
        since, sent_s = len(world.model.log), time.time()
        id = world.send("codex", f"MARK-{number}")
        seen = world.model.wait_for(f"MARK-{number}", since=since)
        took.append(seen.time_s - sent_s)
        told = [turn.role for turn in seen.turns if f"MARK-{number}" in turn.text]
        assert set(told) == {"result"}  # what a tool returned, not what the user said
        world.until_acked([id])
        assert world.events(id) == ["stored", "notified", "claimed", "notified", "shown", "acked"]
        assert str(world.room.receipt(id).events[1].detail).startswith("codex turn ")

    print("from send to the model's context:", ", ".join(f"{each:.2f} s" for each in took))
    assert min(took) < 2


def test_two_in_one_folder_are_two_agents(world: World, codex: Codex) -> None:
    first = codex.start("hello from one")
    codex.start("hello from two")
    names = ("codex", "codex-2")
    bound = [(session_binding.look(world.room.gateway, name) or {}).get("session") for name in names]
    assert len({*bound, None}) == 3  # two sessions, and each has a name

    world.until_acked([world.send(name, f"FOR {name}.") for name in names])
    for prompt, own, other in (("from one", *names), ("from two", *names[::-1])):
        texts = [seen.text for seen in world.model.log if f"hello {prompt}" in seen.text]
        assert any(f"FOR {own}." in text for text in texts)
        assert not any(f"FOR {other}." in text for text in texts)

    time.sleep(3)  # the turns are over
    first.kill()  # and the server that they share runs on, with its session, which nobody sees any more
    id = world.send("codex", "FOR three.")
    time.sleep(3)
    assert world.events(id) == ["stored"]
    codex.start("hello from three")
    seen = world.model.wait_for("FOR three.")
    assert "hello from three" in seen.text
    world.until_acked([id])


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


def without_ours(settings: dict[str, Any]) -> dict[str, Any]:
    """The settings without our server and our hooks, found by the name alone."""
    servers = {name: each for name, each in settings.get("mcp_servers", {}).items() if name != "postroom"}
    hooks = {event: each for event, each in settings.get("hooks", {}).items() if "postroom" not in json.dumps(each)}
    rest = {name: each for name, each in settings.items() if name not in {"mcp_servers", "hooks"}}
    return {**rest, **({"mcp_servers": servers} if servers else {}), **({"hooks": hooks} if hooks else {})}


def test_what_it_writes_into_its_settings_survives_a_reinstall_and_an_uninstall(world: World, codex: Codex) -> None:
    path = world.home / ".codex" / "config.toml"
    codex.start()  # it notes the trust in our hooks
    codex.kill()
    for words in (["features", "disable", "apps"], ["mcp", "add", "mine", "--", "echo", "hi"]):
        done = programs.run([str(programs.CODEX), *words], world.project, codex.environment)
        assert done.returncode == 0, done.stderr
    written = without_ours(tomllib.loads(path.read_text(encoding="utf-8")))
    assert written["features"] == {"apps": False}
    assert set(written["mcp_servers"]) == {"mine"}
    assert len(written["hooks"]["state"]) == 6

    world.postroom("install", "codex", "--as", "bob")
    again = tomllib.loads(path.read_text(encoding="utf-8"))
    listed = programs.run([str(programs.CODEX), "mcp", "list", "--json"], world.project, codex.environment)
    world.postroom("uninstall", "codex")
    after = path.read_text(encoding="utf-8")

    assert without_ours(again) == written
    assert {each["name"] for each in json.loads(listed.stdout)} == {"mine", "postroom"}
    assert tomllib.loads(after) == written
    listed = programs.run([str(programs.CODEX), "mcp", "list", "--json"], world.project, codex.environment)
    assert [each["name"] for each in json.loads(listed.stdout)] == ["mine"]


def marketplace_files(wish: plans.Wish, folder: Path) -> list[plans.Step]:
    """The same plugin as a marketplace of its own, for those who install it by their program's own command."""
    market = {
        "name": "postroom",
        "description": "Postroom on this machine",
        "owner": {"name": "postroom"},
        "plugins": [{"name": "postroom", "source": "./plugins/postroom", "description": texts.DESCRIPTION}],
    }
    head = plans.Own(folder / ".claude-plugin" / "marketplace.json", texts.pretty(market))
    return [head, *plans.plugin_files(wish, folder / "plugins" / "postroom")]


@pytest.mark.parametrize("form", FORMS)
def test_it_accepts_our_part_in_every_form_of_its_settings(world: World, form: str) -> None:
    folder = world.home / ".codex"
    folder.mkdir()
    (folder / "config.toml").write_text(FORMS[form], encoding="utf-8")
    environment = programs.environment(world.home)

    world.postroom("install", "codex")
    listed = programs.run([str(programs.CODEX), "mcp", "list", "--json"], world.project, environment)

    assert listed.returncode == 0, listed.stderr
    assert "postroom" in {each["name"] for each in json.loads(listed.stdout)}


def test_it_takes_the_plugin_made_for_claude_code(world: World) -> None:
    wish = plans.Wish("codex", "user", None, world.project, world.home)
    market = world.home / "market"
    for step in marketplace_files(wish, market):
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
    assert session_binding.look(world.room.gateway, "codex") is None
