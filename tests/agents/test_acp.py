"""Agent programs that speak the Agent Client Protocol, hosted by `postroom as NAME --acp`."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from postroom.doors import session_binding

from . import programs
from .acp_programs import PROGRAMS
from .conftest import World, check_story
from .model_server import Call, ModelServer, Seen, mail_agent, tool_named
from .test_together import conversing


def reading(seen: Seen) -> Call | str:
    """As `mail_agent`; where tools stand back until they are searched for, they are, and are called by another."""
    deferred = ["mcp__postroom__inbox", "mcp__postroom__ack"] if "tool_search" in seen.tools else []
    made = mail_agent(seen._replace(tools=[*seen.tools, *deferred]))
    if not isinstance(made, Call) or made.tool not in deferred or made.tool in seen.tools:
        return made
    if not any(turn.role == "call" and turn.text.startswith("tool_search") for turn in seen.turns):
        return Call("tool_search", {"query": "+postroom"})
    name = "mcp__postroom__" + made.tool.rpartition("__")[2]
    return Call("tool_call", {"name": name, "arguments": made.arguments})


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    with ModelServer(reading).running() as model:
        world = World(tmp_path, model)
        yield world
        world.room.close()


class Hosted:
    """One program under our host. Both may be killed and started again."""

    def __init__(self, world: World, name: str, agent: str = "") -> None:
        self.world = world
        self.name = agent or name
        self._program = PROGRAMS[name]
        self._environment = programs.environment(world.home, **self._program.variables(world))
        self.log = world.home.parent / f"{name}.log"
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        words = [sys.executable, "-m", "postroom", "as", self.name, "--acp", "--json", *self._program.options]
        words += ["--", *self._program.words]
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                words, cwd=self.world.project, env=self._environment, stdout=log, stderr=log
            )

    def until(self, event: str, *, after: int = 0, timeout_s: float = 120) -> dict[str, Any]:
        """The first event of that kind in the log, after so many of them."""
        found: list[dict[str, Any]] = self.world.until(
            lambda: e if len(e := self.events(event)) > after else None, timeout_s, f"{event} of {self.name}"
        )
        return found[after]

    def events(self, event: str) -> list[dict[str, Any]]:
        if self.process is not None and self.process.poll() not in (None, 0, -9):
            raise AssertionError(self.log.read_text(encoding="utf-8")[-2000:])
        lines = self.log.read_text(encoding="utf-8").splitlines()
        return [each for line in lines if line.startswith("{") and (each := json.loads(line))["event"] == event]

    def kill_agent(self) -> None:
        """SIGKILL for the program itself."""
        for pid in self.children():
            os.kill(pid, signal.SIGKILL)

    def children(self) -> list[int]:
        """The processes that the host has started, but its guard: some programs rename themselves."""
        assert self.process is not None
        found = []
        for place in Path("/proc").glob("[0-9]*/stat"):
            try:
                fields = place.read_text().rpartition(")")[2].split()
                program = (place.parent / "exe").readlink().name
            except OSError:
                continue
            if int(fields[1]) == self.process.pid and not program.startswith("python"):
                found.append(int(place.parent.name))
        return found

    def kill(self) -> None:
        """SIGKILL for the host."""
        assert self.process is not None
        self.process.kill()
        self.process.wait()

    def stop(self, number: int = signal.SIGINT) -> int:
        """End the host as a person does; returns its exit code."""
        assert self.process is not None
        self.process.send_signal(number)
        return self.process.wait(30)


@pytest.fixture(params=[name for name in PROGRAMS if name != "cline"])  # which does not load its tools each time
def hosted(request: pytest.FixtureRequest, world: World) -> Iterator[Hosted]:
    hosted = Hosted(world, request.param)
    yield hosted
    if hosted.process is not None and hosted.process.poll() is None:
        hosted.kill()
    print(hosted.log.read_text(encoding="utf-8")[-6000:] if hosted.log.exists() else "no log")
    programs.end_all(world.home)


CAPTURED = Path(__file__).with_name("acp_captured.json")
WAKES = 20


def test_what_it_states_and_does_is_what_the_table_of_the_docs_says(world: World, hosted: Hosted) -> None:
    """With POSTROOM_CAPTURE=1 it is written down, and `python -m tests.house.test_docs` makes the table of it."""
    world.room.agent(hosted.name, transient=True)
    hosted.start()
    world.until_acked([world.send(hosted.name, "FIRST")], 120)
    hosted.until("turn")
    started = hosted.events("started")[0]
    listed = session_binding.look(world.room.gateway, hosted.name) or {}

    hosted.kill_agent()
    world.until(lambda: hosted.events("resumed") or len(hosted.events("started")) > 1, 120, "the next start")
    world.until_acked([world.send(hosted.name, "AFTER-THE-KILL")], 120)

    took = []
    for number in range(WAKES):
        turns, calls = len(hosted.events("turn")), len(world.model.log)
        hosted_s = time.time()
        id = world.send(hosted.name, f"WAKE-{number}")
        world.until(lambda: len(world.model.log) > calls, what="a call of the model")  # noqa: B023  called here
        took.append(world.model.log[calls].time_s - hosted_s)
        world.until_acked([id])
        hosted.until("turn", after=turns)
        time.sleep(1)  # idle
    p95_s = sorted(took)[round(WAKES * 0.95) - 1]
    print(
        hosted.name, f"idle wake: median {sorted(took)[WAKES // 2]:.2f} s, p95 {p95_s:.2f} s, longest {max(took):.2f} s"
    )
    found = {
        "program": started["program"],
        "protocol": started["version"],
        "server_from_host": "listed" in listed,
        "goes_on": bool(hosted.events("resumed")),
        "wakes_within_1_s": p95_s < 1,
    }
    captured = json.loads(CAPTURED.read_text(encoding="utf-8"))
    if os.environ.get("POSTROOM_CAPTURE"):
        CAPTURED.write_text(json.dumps(captured | {hosted.name: found}, indent=2) + "\n", encoding="utf-8")
    else:
        assert captured[hosted.name] == found


def storm(world: World, hosted: Hosted, count: int, kills: int) -> None:
    """So many messages, in bursts and one by one, and so often the program or its host is killed in between."""
    world.room.agent(hosted.name, transient=True)
    hosted.start()
    ids: list[str] = []
    each = count // (kills + 1)
    for number in range(count):
        ids.append(world.send(hosted.name, f"N-{number}"))
        if number % 3:
            time.sleep(0.2)
        if number % each == each - 1 and number // each < kills:
            hosted.events("started")  # it runs
            world.until(lambda: world.room.stats().states["acked"] * 2 >= len(ids), 120, "half of the acks")
            if number // each % 2:
                hosted.kill()
                hosted.start()
            else:
                hosted.kill_agent()
    world.until_acked(ids, 180)
    time.sleep(2)
    check_story(world, ids)
    calls = len(world.model.log)
    time.sleep(10)
    assert len(world.model.log) == calls, "the model was called while nothing happened"


def test_twenty_messages_over_kills_of_the_program_and_of_its_host(world: World, hosted: Hosted) -> None:
    storm(world, hosted, 20, 4)
    assert hosted.stop(signal.SIGTERM) == 0
    world.until(lambda: not left_running(world), 15, "the end of all that was started")


@pytest.mark.long
def test_a_hundred_messages_over_kills_of_the_program_and_of_its_host(world: World, hosted: Hosted) -> None:
    storm(world, hosted, 100, 10)


def left_running(world: World) -> list[str]:
    """What still runs with this home."""
    mark = f"HOME={world.home}".encode()
    found = []
    for place in Path("/proc").glob("[0-9]*"):
        try:
            if mark in (place / "environ").read_bytes().split(b"\0"):
                found.append((place / "cmdline").read_bytes().replace(b"\0", b" ").decode())
        except OSError:
            continue
    return found


def test_it_is_woken_when_idle_reads_and_leaves_nothing_behind(world: World, hosted: Hosted) -> None:
    world.room.agent(hosted.name, transient=True)
    before = world.send(hosted.name, "BEFORE-IT-RAN")
    hosted.start()
    world.model.wait_for("BEFORE-IT-RAN", 40)
    world.until_acked([before])
    hosted.until("turn")
    took = []
    for number in range(3):
        time.sleep(3)  # idle
        calls, sent_s = len(world.model.log), time.time()
        id = world.send(hosted.name, f"MARK-{number}")
        world.until(lambda: len(world.model.log) > calls, what="a call of the model")  # noqa: B023  called here
        took.append(world.model.log[calls].time_s - sent_s)
        world.until_acked([id])
        hosted.until("turn", after=number + 1)
        events = world.events(id)
        assert events[0] == "stored", events
        assert "notified" in events, events
        assert "shown" in events, events
    print(hosted.name, "from send to the model:", ", ".join(f"{each:.2f} s" for each in took))

    assert hosted.stop() == 130
    world.until(lambda: not left_running(world), 15, f"the end of {left_running(world)}")
    assert [agent.status for agent in world.room.agents() if agent.name == hosted.name] == ["stopped"]


def asking(seen: Seen) -> Call | str:
    """As `conversing`, with questions in place of mail: what the user says to ask is asked over MCP."""
    told = [turn for turn in seen.turns if turn.role == "result" and "| ASK claude: " in turn.text.replace("\\n", "\n")]
    if told and not any(turn.role == "call" and "QUESTION" in turn.text for turn in seen.turns):
        return Call(tool_named(seen, "ask"), {"to": "claude", "body": "QUESTION: which port?", "wait_s": 60})
    return conversing(seen)


def test_gemini_asks_claude_code_and_gets_its_answer(tmp_path: Path) -> None:
    with ModelServer(asking).running() as model:
        world = World(tmp_path, model)
        gemini, claude = Hosted(world, "gemini"), Hosted(world, "claude")
        try:
            claude.start()
            claude.until("started")
            gemini.start()
            gemini.until("started")
            id = world.send("gemini", "ASK claude: which port does the server use?")
            model.wait_for("ANSWER: 8765", 120)
            gemini.until("turn")
            assert "shown" in world.events(id)
        finally:
            gemini.kill()
            claude.kill()
            programs.end_all(world.home)
            print(gemini.log.read_text(encoding="utf-8")[-4000:])
        asked = [turn for seen in model.log for turn in seen.turns if turn.role == "call" and "QUESTION" in turn.text]
        (question,) = world.room.peek(state="answered")
        assert (question.from_agent, question.to_agent) == ("gemini", "claude")
        assert asked
        assert {"stored", "claimed", "shown", "answered"} <= set(world.events(question.id))
        world.room.close()
