"""The design of file mailboxes to the letter: sessions with a shell alone, and Postroom on the other side, both ways."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from tests.support.patience import PATIENCE_S, until

import postroom
from postroom.patterns import lead, work_as_stage, work_for_lead, work_from_board
from postroom.room import Room

SCRIPT = Path(__file__).with_name("by_hand.sh")
#: How many tasks or jobs there are: a few, and with the long tests many.
COUNTS = [4, pytest.param(60, marks=pytest.mark.long)]

Shell = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def mailbox(tmp_path: Path) -> Path:
    return tmp_path / "mailbox"


@pytest.fixture
def room(mailbox: Path) -> Iterator[Room]:
    with postroom.open(f"files:{mailbox}") as room:
        yield room


@pytest.fixture
def shell(mailbox: Path) -> Iterator[Shell]:
    """Starts a session that has a shell alone."""
    started: list[subprocess.Popen[str]] = []

    def start(*words: object) -> subprocess.Popen[str]:
        command = ["sh", str(SCRIPT), str(mailbox), *map(str, words)]
        started.append(subprocess.Popen(command, stdout=subprocess.PIPE, text=True))
        return started[-1]

    yield start
    for each in started:
        each.kill()
        each.communicate()


def ended(session: subprocess.Popen[str]) -> list[str]:
    """What a session printed, when it ended well."""
    printed, _ = session.communicate(timeout=4 * PATIENCE_S)
    assert session.returncode == 0
    return printed.split()


def say(shell: Shell, *words: object) -> None:
    ended(shell("say", *words))


def read(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"))


@pytest.mark.parametrize("count", COUNTS)
def test_a_lead_with_a_shell_and_workers_with_postroom(
    room: Room, mailbox: Path, shell: Shell, in_background: Callable[..., Any], count: int
) -> None:
    def work(name: str) -> list[str]:
        with postroom.open(f"files:{mailbox}") as mine:
            return list(islice(work_for_lead(mine, name, lambda task: {"did": task.payload["notes"]}), count // 2))

    working = [in_background(lambda name=name: work(name)) for name in ("worker-1", "worker-2")]
    session = shell("lead", count, "worker-1", "worker-2")

    ended(session)
    assert sorted(len(each.result()) for each in working) == [count // 2] * 2
    results = [read(path) for path in (mailbox / "outbox").glob("*/*-done.json")]
    assert sorted(each["task_id"] for each in results) == sorted(f"T{number + 1}" for number in range(count))
    assert {each["payload"]["result"]["did"] for each in results} == {"do it"}


@pytest.mark.parametrize("count", COUNTS)
def test_a_lead_with_postroom_and_workers_with_a_shell(room: Room, shell: Shell, count: int) -> None:
    for name in ("worker-1", "worker-2", "worker-3"):
        shell("worker", name, count)  # none of them does as many

    tasks: list[dict[str, Any]] = [
        {"id": "first"},
        *({"id": f"T{number}", "after": ["first"]} for number in range(count - 1)),
    ]
    found = lead(room, tasks, ["worker-1", "worker-2", "worker-3"], timeout_s=PATIENCE_S)

    assert {(task.state, task.result["by"]) for task in found.values()} == {("done", "hand")}
    assert len({task.owner for task in found.values()}) > 1


@pytest.mark.parametrize("count", COUNTS)
def test_sessions_with_and_without_postroom_claim_from_one_board(room: Room, shell: Shell, count: int) -> None:
    room.board.add_all([{"id": f"T{number}"} for number in range(count)])
    sessions = [shell("claimer", name) for name in ("worker-1", "worker-2")]

    def is_one_claimed() -> bool:
        return any(task.owner not in (None, "ada") for task in room.board.tasks())

    until(is_one_claimed)
    mine = list(work_from_board(room, "ada", lambda task: "by postroom", timeout_s=0))
    theirs = [id for session in sessions for id in ended(session)]

    assert sorted([*mine, *theirs]) == sorted(f"T{number}" for number in range(count))
    assert [task.state for task in room.board.tasks()] == ["done"] * count


@pytest.mark.parametrize("count", COUNTS)
def test_a_pipeline_goes_through_sessions_with_and_without_postroom(room: Room, shell: Shell, count: int) -> None:
    first, third = shell("stage", "a", "b", count), shell("stage", "c", "d", count)
    for number in range(count):
        room.agent("lead").send("a", {"text": str(number)})

    for _ in islice(work_as_stage(room, "b", lambda m: {"text": f"{m.payload['text']}, b"}, to="c"), count):
        pass
    ended(first)
    ended(third)

    last = list(islice(work_as_stage(room, "d", lambda m: m.payload), count))
    assert sorted(each["text"] for each in last) == sorted(f"{number}, a, b, c" for number in range(count))


def test_the_seven_actions_from_a_shell(
    room: Room, mailbox: Path, shell: Shell, in_background: Callable[..., Any]
) -> None:
    begun: list[postroom.HeldTask] = []

    def wait(task: postroom.HeldTask) -> None:
        begun.append(task)
        until(lambda: task.aborted)

    def work() -> None:
        with postroom.open(f"files:{mailbox}") as mine:
            assert list(work_for_lead(mine, "ada", wait, timeout_s=0)) == []

    def says(file: str, *parts: str) -> None:
        """Wait until a file of the board says all that: a session with a shell sees no more."""
        until(lambda: all(part in (mailbox / "board" / file).read_text(encoding="utf-8") for part in parts))

    say(shell, "inbox/ada", "lead", "ada", "implement", "T1", "{}")
    working = in_background(work)
    until(lambda: begun)
    say(shell, "inbox/ada", "lead", "ada", "abort", "T1", '{"why": "stop"}')
    working.result()
    say(shell, "inbox/board", "lead", "board", "status", "T2", '{"title": "the second"}')
    receiving = in_background(lambda: room.agent("lead").receive(timeout_s=2 * PATIENCE_S))  # and nobody looks
    says("status.json", "the second")
    say(shell, "inbox/board", "bob", "board", "claim", "T2", "{}")
    says("claims.json", '"T2": {"owner":"bob"')
    say(shell, "inbox/board", "eve", "board", "claim", "T2", "{}")
    until(lambda: list((mailbox / "inbox/eve").glob("*-info.json")))
    say(shell, "outbox/bob", "bob", "lead", "blocked", "T2", '{"why": "no key"}')
    receiving.result().ack()
    assert receiving.result().type == "blocked"
    say(shell, "inbox/eve", "lead", "eve", "implement", "T3", "{}")
    until(lambda: "T3" in [task.id for task in room.board.tasks()])
    say(shell, "outbox/eve", "eve", "lead", "done", "T3", '{"result": 3}')
    say(shell, "inbox/lead", "bob", "lead", "info", "", '{"text": "bye"}')

    until(lambda: len(room.peek(agent="lead")) == 2)
    told = {task.id: (task.state, task.owner, task.why, task.result) for task in room.board.tasks()}
    assert told == {
        "T1": ("aborted", "ada", "stop", None),
        "T2": ("blocked", "bob", "no key", None),
        "T3": ("done", "eve", None, 3),
    }
    assert {message.type for message in room.peek(agent="lead")} == {"done", "info"}
    (lost, *_) = (mailbox / "inbox/eve").glob("*-info.json")
    assert "your claim does not count" in read(lost)["payload"]["text"]


def test_the_seven_actions_reach_a_shell(room: Room, mailbox: Path) -> None:
    board = room.board
    board.add("T1", title="the first", lead="lead")
    board.tell("implement", "lead", "bob", "T1", notes="go")
    board.tell("info", "lead", "bob", text="hello")
    board.tell("claim", "bob", "board", "T1")
    board.tasks()
    assert read(mailbox / "board/claims.json")["T1"]["owner"] == "bob"
    board.abort("T1", "stop", by="lead")
    board.tell("status", "bob", "board", "T2", title="the second", lead=True)
    board.tasks()
    assert read(mailbox / "board/status.json")["tasks"]["T2"]["title"] == "the second"
    for id, end in (("T3", "done"), ("T4", "blocked")):
        board.add(id, lead="lead")
        task = board.claim("ada", id)
        assert task is not None and (task.done(1) if end == "done" else task.blocked("no key"))

    def actions(folder: str) -> list[tuple[str, str]]:
        found = [read(path) for path in sorted((mailbox / folder).glob("*.json"))]
        return [(each["action"], each.get("task_id", each["payload"].get("text"))) for each in found]

    assert actions("inbox/bob") == [("implement", "T1"), ("info", "hello"), ("abort", "T1")]
    assert actions("inbox/lead") == actions("outbox/ada") == [("done", "T3"), ("blocked", "T4")]
