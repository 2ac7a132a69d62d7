"""The host of programs that speak the Agent Client Protocol, with a scripted one."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from tests.cli.support import clean_environment
from tests.support import ROOT
from tests.support.in_loop import run
from tests.support.patience import until

from postroom import aio
from postroom.core.system import piped
from postroom.core.system.process import process_name
from postroom.doors import session_binding
from postroom.doors.acp import host, peer, permissions, session
from postroom.doors.acp.host import AcpHost, AgentGaveUp, HostedProgram
from postroom.errors import PostroomError
from postroom.mail import people
from postroom.pools.restarts import RestartPolicy

pytestmark = pytest.mark.slow

PATIENCE_S = 60.0
AGENT = ROOT / "tests" / "support" / "programs" / "acp_agent.py"


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """The scripted program has no MCP client, and restarts and retries need not wait."""
    monkeypatch.setattr(host, "READY_S", 0.01)
    monkeypatch.setattr(host, "AGAIN_S", 0.05)
    monkeypatch.setattr(piped, "PATIENCE_S", 0.2)
    monkeypatch.setattr(peer, "MAX_FRAME_BYTES", 1 << 20)
    monkeypatch.setattr(host, "POLICY", RestartPolicy(max_restarts=3, period_s=60, backoff_s=0.01))


class Hosted:
    """A host in this loop, and what it told."""

    def __init__(self, room: aio.Room, folder: Path, script: dict[str, Any], agent: Path = AGENT) -> None:
        self.log = folder / "agent.log"
        self.room = room
        self.project = folder / "project"
        self.project.mkdir(exist_ok=True)
        environment = {**os.environ, "ACP_SCRIPT": json.dumps(script), "ACP_LOG": str(self.log)}
        self.told: list[dict[str, Any]] = []
        program = HostedProgram("bob", [sys.executable, str(agent)], environment, str(self.project))
        self.host = AcpHost(room, program, lambda event, **facts: self.told.append({"event": event, **facts}))
        self.running = asyncio.create_task(self.host.run())

    def events(self, event: str) -> list[dict[str, Any]]:
        return [each for each in self.told if each["event"] == event]

    async def until(self, event: str, count: int = 1) -> dict[str, Any]:
        await self.true(lambda: len(self.events(event)) >= count)
        return self.events(event)[count - 1]

    async def true(self, holds: Callable[[], Any]) -> None:
        end_s = asyncio.get_running_loop().time() + PATIENCE_S
        while not holds():
            assert asyncio.get_running_loop().time() < end_s, self.told
            if self.running.done():
                await self.running
            await asyncio.sleep(0.01)

    def lines(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.log.read_text(encoding="utf-8").splitlines()]

    def got(self, method: str) -> list[dict[str, Any]]:
        return [each["got"]["params"] for each in self.lines() if each.get("got", {}).get("method") == method]

    def prompts(self) -> list[str]:
        return [params["prompt"][0]["text"] for params in self.got("session/prompt")]

    def answers(self, method: str) -> list[dict[str, Any]]:
        return [each["answer"] for each in self.lines() if each.get("asked") == method]

    async def send(self, *texts: str) -> list[str]:
        return [await self.room.agent("ada").send("bob", {"text": text}) for text in texts]

    async def ledger(self, id: str) -> list[tuple[str, str | None]]:
        return [(event.event, event.detail) for event in (await self.room.receipt(id)).events]


@asynccontextmanager
async def hosting(url: str, folder: Path, *turns: list[Any], **more: Any) -> AsyncIterator[Hosted]:
    async with aio.open(url) as room:
        await room.agent("bob", transient=True)
        hosted = Hosted(room, folder, {"turns": [*turns] or [[]], **more})
        try:
            yield hosted
        finally:
            hosted.host.leave()
            with suppress(AgentGaveUp):
                await hosted.running
        assert not carriers(hosted.log)


def environ(pid: int) -> bytes:
    with suppress(OSError):
        return Path(f"/proc/{pid}/environ").read_bytes()
    return b""


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:{tmp_path}/room"


@pytest.mark.parametrize("version", [1, 2])
def test_a_burst_is_one_notice_that_holds_no_word_of_the_messages(url: str, tmp_path: Path, version: int) -> None:
    async def main() -> None:
        async with hosting(url, tmp_path, version=version) as bob:
            await bob.until("started")
            ids = await bob.send("SECRET-1", "SECRET-2", "SECRET-3")
            await bob.until("turn")
            (first, *again) = bob.prompts()
            assert first.startswith('postroom: 3 new for bob from "ada". Read with the inbox tool')
            assert "SECRET" not in "".join([first, *again])
            for id in ids:
                assert await bob.ledger(id) == [("stored", None), ("notified", "acp prompt")]

    run(main())


def test_mail_that_comes_in_a_turn_is_told_when_it_ends(url: str, tmp_path: Path) -> None:
    async def main() -> None:
        over = tmp_path / "over"
        async with hosting(url, tmp_path, [["say", "working\n"], ["until", str(over)]], []) as bob:
            await bob.send("one")
            await bob.until("said")
            await bob.send("two")
            await asyncio.sleep(0.3)
            assert len(bob.prompts()) == 1
            over.touch()
            await bob.until("turn", 2)
            assert "1 new for bob" in bob.prompts()[1]

    run(main())


def test_mail_that_was_left_unread_is_told_once_more_and_no_more(url: str, tmp_path: Path) -> None:
    async def main() -> None:
        async with hosting(url, tmp_path) as bob:
            await bob.send("one")
            await bob.until("turn", 2)
            await asyncio.sleep(0.3)
            assert len(bob.prompts()) == 2

    run(main())


@pytest.mark.parametrize(
    ("title", "kind", "shown"),
    [
        ("mcp__postroom__inbox", "other", True),
        ("postroom_inbox", "other", True),
        ("mcp__postroom__inbox", "execute", False),
        ("mcp__elsewhere__inbox", "other", False),
        ("cat mcp__postroom__inbox", "other", False),
    ],
)
def test_the_result_of_our_inbox_and_of_nothing_else_is_what_was_shown(
    url: str, tmp_path: Path, title: str, kind: str, shown: bool
) -> None:
    async def main() -> None:
        result = tmp_path / "result"
        async with hosting(url, tmp_path, [["until", str(result)], ["tool", title, f"@{result}", kind]]) as bob:
            (id,) = await bob.send("one")
            await bob.until("notice")
            await bob.room.agent("bob", transient=True).receive(timeout_s=5)
            result.with_suffix(".new").write_text(f'{{"id": "{id}"}}', encoding="utf-8")
            result.with_suffix(".new").rename(result)
            await bob.until("turn")
            ledger = await bob.ledger(id)
            assert (("shown", "acp: the result of inbox") in ledger) == shown, ledger

    run(main())


def test_what_inbox_gave_was_shown_when_the_turn_has_ended(url: str, tmp_path: Path) -> None:
    async def main() -> None:
        over = tmp_path / "over"
        async with hosting(url, tmp_path, [["until", str(over)]]) as bob:
            (id,) = await bob.send("one")
            await bob.until("notice")
            await bob.room.agent("bob", transient=True).receive(timeout_s=5)
            await bob.room.call(lambda room: room.store.note(id, "notified", "bob", "mcp inbox"))
            over.touch()
            await bob.until("turn")
            await asyncio.sleep(0.1)
            assert (await bob.ledger(id))[-1] == ("shown", "acp: the turn that read it has ended")

    run(main())


def test_a_task_that_is_called_off_cancels_the_turn(url: str, tmp_path: Path) -> None:
    async def main() -> None:
        async with hosting(url, tmp_path, [["say", "x\n"], ["until cancelled"]]) as bob:
            await bob.room.board.add("T1", title="a task")
            await bob.room.board.claim("bob", "T1", transient=True)
            await bob.send("work on T1")
            await bob.until("said")
            await bob.send("more")  # a look at the board while it works
            await asyncio.sleep(0.3)
            await bob.room.board.abort("T1")
            await bob.until("aborted")
            assert (await bob.until("turn"))["stop"] == "cancelled"

    run(main())


# What it asks for


def test_files_are_those_of_the_project_and_the_answers_say_why_not(url: str, tmp_path: Path) -> None:
    async def main() -> None:
        project = tmp_path / "project"
        project.mkdir()
        (project / "a.txt").write_text("hello", encoding="utf-8")
        actions = [
            ["read", str(project / "a.txt")],
            ["read", str(project / ".." / "agent.log")],
            ["write", str(project / "sub" / "b.txt"), "new"],
            ["write", str(project / "taken.txt"), "over"],
            ["request", "terminal/create"],
        ]
        async with hosting(url, tmp_path, actions) as bob:
            await bob.room.reserve(["taken.txt"], agent="ada", ttl_s=60, exclusive=True)
            await bob.send("one")
            await bob.until("turn")
            inside, outside = bob.answers("fs/read_text_file")[:2]
            assert inside["result"] == {"content": "hello"}
            assert "outside of the project" in outside["error"]["message"]
            new, taken = bob.answers("fs/write_text_file")[:2]
            assert new["result"] == {}
            assert (project / "sub" / "b.txt").read_text(encoding="utf-8") == "new"
            assert "ada" in taken["error"]["message"]
            assert not (project / "taken.txt").exists()
            assert bob.answers("terminal/create")[0]["error"]["code"] == -32601

    run(main())


def outcome(bob: Hosted) -> dict[str, Any]:
    found: dict[str, Any] = bob.answers("session/request_permission")[0]["result"]["outcome"]
    return found


def test_a_person_decides_what_it_may_do(url: str, tmp_path: Path) -> None:
    async def main() -> None:
        async with hosting(url, tmp_path, [["permission", "rm -r x", "execute"]]) as bob:
            await bob.send("one")
            asked = await bob.until("asked")
            (question,) = await bob.room.people.open()
            assert question.asker == "bob"
            assert "rm -r x" in question.text
            assert (question.options, question.default) == (("allow", "deny"), "deny")
            await bob.room.call(lambda room: answer(room, asked["id"], "allow"))
            await bob.until("turn")
            assert outcome(bob) == {"outcome": "selected", "optionId": "yes"}

    run(main())


def answer(room: Any, id: str, said: str) -> None:
    """A person answers at a terminal, in a room without tokens."""
    people.answer(room.gateway, id, said, people.Answerer(None, "test", "mia", "terminal"))


def test_without_an_answer_in_time_the_answer_is_no(url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(permissions, "ANSWER_S", 0.2)

    async def main() -> None:
        async with hosting(url, tmp_path, [["permission", "rm -r x", "execute"]]) as bob:
            await bob.send("one")
            await bob.until("turn")
            assert outcome(bob) == {"outcome": "selected", "optionId": "no"}

    run(main())


def test_a_question_is_taken_back_when_its_turn_is_cancelled(url: str, tmp_path: Path) -> None:
    async def main() -> None:
        async with hosting(url, tmp_path, [["permission", "rm -r x", "execute"]]) as bob:
            await bob.room.board.add("T1", title="a task")
            await bob.room.board.claim("bob", "T1", transient=True)
            await bob.send("one")
            asked = await bob.until("asked")
            await bob.room.board.abort("T1")
            await bob.until("turn")
            assert bob.answers("session/request_permission")[0]["result"] == {"outcome": {"outcome": "cancelled"}}
            assert (await bob.room.people.look(asked["id"])).state == "withdrawn"

    run(main())


@pytest.mark.parametrize(
    ("title", "kind", "chosen"), [("mcp__postroom__send", "other", "yes"), ("mcp__postroom__send", "execute", "no")]
)
def test_only_our_own_tools_need_no_permission(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, title: str, kind: str, chosen: str
) -> None:
    monkeypatch.setattr(permissions, "ANSWER_S", 0.2)

    async def main() -> None:
        async with hosting(url, tmp_path, [["permission", title, kind]]) as bob:
            await bob.send("one")
            await bob.until("turn")
            assert outcome(bob)["optionId"] == chosen

    run(main())


# Trouble


@pytest.mark.parametrize("loads", [True, False])
def test_a_program_that_dies_is_started_again_and_told_again(url: str, tmp_path: Path, loads: bool) -> None:
    async def main() -> None:
        died = tmp_path / "died"
        script = [["say", "x\n"], ["die once", str(died), 7]]
        async with hosting(url, tmp_path, script, loads=loads) as bob:
            (id,) = await bob.send("one")
            await bob.until("ended")
            assert bob.events("ended")[0]["how"] == "ended with exit code 7: oh no"
            await bob.until("turn")
            assert len(bob.got("session/load")) == loads
            assert bool(bob.events("resumed")) == loads
            assert len([text for text in bob.prompts() if "1 new" in text]) >= 2
            assert "shown" not in dict(await bob.ledger(id))

    run(main())


@pytest.mark.parametrize(
    ("script", "why"),
    [
        ({"start": [["die", 3]]}, "it could not start: ended with exit code 3: oh no"),
        ({"version": 3}, "it speaks version 3 of the protocol, and this host 1 and 2"),
        ({"turns": [[["die", 1]]]}, "it ended 4 times within 60 s"),
        ({"turns": [[["lines", "no json\n", 200]]]}, "it wrote 100 lines in a row that are no messages"),
        ({"turns": [[["lines", "x" * 1000, 1100]]]}, "it sent a message of more than 1 MiB"),
    ],
)
def test_a_program_that_does_not_work_is_given_up(url: str, tmp_path: Path, script: dict[str, Any], why: str) -> None:
    async def main() -> None:
        async with aio.open(url) as room:
            await room.agent("bob", transient=True)
            bob = Hosted(room, tmp_path, {"turns": [[]], **script})
            await bob.send("one")
            with pytest.raises(AgentGaveUp) as error:
                await bob.running
            assert why in str(error.value) or why in bob.events("ended")[0]["how"], (str(error.value), bob.told)

    run(main())


def test_some_lines_that_are_no_messages_do_no_harm(url: str, tmp_path: Path) -> None:
    async def main() -> None:
        lines = [
            ["lines", text, 1]
            for text in ("\x1b[31mlog\n", "[1, 2]\n", "{}\n", "\n", '{"id": 99, "result": 1}\n', "[" * 9999 + "\n")
        ]
        async with hosting(url, tmp_path, [*lines, ["say", "fine"]]) as bob:
            await bob.send("one")
            await bob.until("turn")
            assert bob.events("garbage")[0]["text"] == "it wrote a line that is no message: \\x1b[31mlog"
            assert bob.events("said")[0]["text"] == "fine"

    run(main())


@pytest.mark.parametrize("version", [1, 2])
def test_a_program_that_falls_silent_in_a_turn_is_cancelled_and_then_ended(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: int
) -> None:
    monkeypatch.setattr(session, "SILENCE_S", 0.3)
    monkeypatch.setattr(session, "CANCEL_S", 0.3)

    async def main() -> None:
        never = tmp_path / "never"
        async with hosting(url, tmp_path, [["until", str(never)]], version=version) as bob:
            await bob.send("one")
            assert "it was silent for 0.6 s" in (await bob.until("ended"))["how"]
            never.touch()

    run(main())


def test_a_program_that_never_answers_is_not_waited_for(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session, "START_S", 0.3)

    async def main() -> None:
        async with aio.open(url) as room:
            bob = Hosted(room, tmp_path, {"turns": [], "start": [["until", "/never"]]})
            with pytest.raises(AgentGaveUp, match="it did not answer initialize within 0.3 s"):
                await bob.running

    run(main())


def test_a_turn_that_fails_is_tried_again_a_few_times_and_then_waits_for_new_mail(url: str, tmp_path: Path) -> None:
    async def main() -> None:
        async with hosting(url, tmp_path, [["error"]]) as bob:
            (id,) = await bob.send("one")
            await bob.until("failed", host.MAX_TRIES)
            await asyncio.sleep(0.5)
            assert len(bob.prompts()) == host.MAX_TRIES
            assert (await bob.ledger(id))[-1] == ("stored", None)
            await bob.send("two")
            await bob.until("failed", host.MAX_TRIES + 1)
            assert "2 new" in bob.prompts()[-1]

    run(main())


def test_a_paused_agent_is_not_woken_until_it_is_resumed(url: str, tmp_path: Path) -> None:
    async def main() -> None:
        async with hosting(url, tmp_path) as bob:
            await bob.until("started")
            await bob.room.pause(agent="bob", reason="wait", by="mia")
            await bob.send("one")
            await asyncio.sleep(0.4)
            assert bob.prompts() == []
            await bob.room.resume(agent="bob")
            await bob.send("two")
            await bob.until("turn")
            assert "2 new" in bob.prompts()[0]

    run(main())


def test_one_name_has_one_host(url: str, tmp_path: Path) -> None:
    async def main() -> None:
        async with hosting(url, tmp_path) as bob:
            await bob.until("started")
            other = {"host": "acp", "session": "x", "process": process_name(os.getppid())}
            await bob.room.call(lambda room: rebind(room, other))
            second = Hosted(bob.room, tmp_path, {"turns": [[]]})
            with pytest.raises(PostroomError, match="another `postroom as bob --acp` is running"):
                await second.running

    run(main())


def rebind(room: Any, fields: dict[str, Any]) -> None:
    name = f"{session_binding.CELLS}bob"
    cell = room.store.cell_read(name)
    room.store.cell_write(name, {**cell.value, **fields}, expect=cell.version)


def test_what_the_program_leaves_running_ends_with_it(url: str, tmp_path: Path) -> None:
    async def main() -> None:
        async with hosting(url, tmp_path, [["child"], ["say", "x\n"]]) as bob:
            await bob.send("one")
            await bob.until("turn")
            pids = set(carriers(bob.log))
            assert len(pids) >= 2
        assert not carriers(bob.log)

    run(main())


def carriers(log: Path) -> list[int]:
    """The running processes that were started with this log."""
    mark = f"ACP_LOG={log}".encode()
    return [int(each.name) for each in Path("/proc").glob("[0-9]*") if mark in environ(int(each.name)).split(b"\0")]


def test_a_program_on_the_protocols_own_package_is_hosted(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(permissions, "ANSWER_S", 0.2)

    async def main() -> None:
        async with aio.open(url) as room:
            await room.agent("bob", transient=True)
            bob = Hosted(room, tmp_path, {}, AGENT.with_name("acp_official.py"))
            (bob.project / "a.txt").write_text("hello", encoding="utf-8")
            await bob.send("one")
            text = (await bob.until("said"))["text"]
            assert text == "postroom: 1 new hello selected"
            assert (bob.project / "b.txt").read_text(encoding="utf-8") == "new"
            bob.host.leave()
            await bob.running

    run(main())


@pytest.mark.parametrize("how", ["a person", "a kill"])
def test_however_the_host_ends_nothing_of_its_program_is_left(tmp_path: Path, how: str) -> None:
    log = tmp_path / "agent.log"
    script = {"turns": [["child"], ["say", "x\n"]]}
    variables = {"HOME": str(tmp_path), "ACP_SCRIPT": json.dumps({"start": [["child"]], **script}), "ACP_LOG": str(log)}
    environment = clean_environment(**variables)
    environment.pop("POSTROOM_CONFIG", None)
    postroom = [sys.executable, "-m", "postroom"]
    subprocess.run([*postroom, "init"], cwd=tmp_path, env=environment, check=True, capture_output=True)
    words = [*postroom, "as", "bob", "--acp", "--json", "--", sys.executable, str(AGENT)]
    with subprocess.Popen(words, cwd=tmp_path, env=environment, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert json.loads(process.stdout.readline())["event"] == "started"
        assert len(carriers(log)) >= 2
        process.send_signal(signal.SIGINT if how == "a person" else signal.SIGKILL)
        assert process.wait(30) == (130 if how == "a person" else -signal.SIGKILL)
    until(lambda: not carriers(log), "what the program had started still runs")


def test_it_runs_on_without_a_terminal_until_it_is_told_to_end(tmp_path: Path) -> None:
    environment = clean_environment(HOME=str(tmp_path), ACP_SCRIPT='{"turns": [[]]}', ACP_LOG=str(tmp_path / "log"))
    environment.pop("POSTROOM_CONFIG", None)
    postroom = [sys.executable, "-m", "postroom"]
    subprocess.run([*postroom, "init"], cwd=tmp_path, env=environment, check=True, capture_output=True)
    words = ["nohup", *postroom, "as", "bob", "--acp", "--json", "--", sys.executable, str(AGENT)]
    pipe = subprocess.PIPE
    with subprocess.Popen(words, cwd=tmp_path, env=environment, stdout=pipe, stderr=subprocess.DEVNULL) as process:
        assert process.stdout is not None
        assert json.loads(process.stdout.readline())["event"] == "started"
        process.send_signal(signal.SIGHUP)
        assert [agent["status"] for agent in agents(tmp_path, environment)] == ["active"]
        process.terminate()
        assert process.wait(30) == 0
    assert [agent["status"] for agent in agents(tmp_path, environment)] == ["stopped"]


def agents(folder: Path, environment: dict[str, str]) -> list[dict[str, Any]]:
    words = [sys.executable, "-m", "postroom", "agents", "--json"]
    done = subprocess.run(words, cwd=folder, env=environment, check=True, capture_output=True, text=True)
    found: list[dict[str, Any]] = json.loads(done.stdout)
    return found


def test_a_room_that_is_not_allowed_is_said_before_anything_starts(tmp_path: Path) -> None:
    environment = clean_environment(HOME=str(tmp_path), POSTROOM_CONFIG=str(tmp_path / "config"))
    postroom = [sys.executable, "-m", "postroom"]
    subprocess.run([*postroom, "init"], cwd=tmp_path, env=environment, check=True, capture_output=True)
    elsewhere = environment | {"POSTROOM_CONFIG": str(tmp_path / "other")}
    words = [*postroom, "as", "bob", "--acp", "--room", f"sqlite:{tmp_path}/.postroom", "--", "touch", "started"]
    done = subprocess.run(words, cwd=tmp_path, env=elsewhere, capture_output=True, text=True, check=False)

    assert done.returncode == 4
    assert "postroom allow" in done.stderr
    assert not (tmp_path / "started").exists()
