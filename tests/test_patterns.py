"""The three patterns: who does what, and that a worker's death costs nothing but its own half-done work."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.support import EXAMPLES

import postroom
from postroom.patterns import lead, work_as_stage, work_for_lead, work_from_board
from postroom.room import Room
from postroom.testing import gone_process


def printed_by(name: str, folder: Path) -> str:
    """What an example prints."""
    done = subprocess.run(
        [sys.executable, "-W", "error", str(EXAMPLES / f"{name}.py")],
        cwd=folder,
        env={
            name: value
            for name, value in os.environ.items()
            if name == "POSTROOM_PORTABLE" or not name.startswith("POSTROOM_")
        },
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert (done.returncode, done.stderr) == (0, ""), done
    return done.stdout


@pytest.mark.slow
def test_the_task_of_a_killed_worker_is_assigned_to_another(tmp_path: Path) -> None:
    said = printed_by("lead_worker", tmp_path)

    begun = re.findall(r"^(worker-\d): (\w+) \.\.\.", said, re.M)
    assert sorted(task for _, task in begun) == ["api", "api", "docs", "schema", "web"]
    owners = [worker for worker, task in begun if task == "api"]
    assert owners[0] != owners[1]
    assert re.search(r"^api +done +by (worker-\d), claimed 2 times", said, re.M)
    assert len(re.findall(r"done +by worker-\d, claimed 1 times", said)) == 3


@pytest.mark.slow
def test_the_task_of_a_killed_session_is_taken_from_the_board_by_another(tmp_path: Path) -> None:
    said = printed_by("claim_board", tmp_path)

    done = re.findall(r"^\w+: ([\w-]+) done$", said, re.M)
    assert sorted(done) == ["book", "page-1", "page-2", "page-3", "page-4", "page-5"]
    assert "6 of 6 tasks are done" in said and "page-3 was claimed 2 times" in said


@pytest.mark.slow
def test_what_a_killed_stage_had_in_hand_is_handed_on_once(tmp_path: Path) -> None:
    said = printed_by("pipeline", tmp_path)

    assert "somebody pulls the plug" in said
    reviewed = re.findall(r"^reviewer: (\w+) is good: about (\w+), at length", said, re.M)
    assert sorted(reviewed) == [(topic, topic) for topic in ("bells", "leases", "tokens")]
    for name in ("planner", "writer"):
        assert sorted(re.findall(rf"^{name}: (\w+)$", said, re.M)) == ["bells", "leases", "tokens"]


def test_a_worker_does_what_a_lead_assigns_and_refuses_others(room: Room) -> None:
    board = room.board
    board.add_all([{"id": "T1", "lead": "lead"}, {"id": "T2", "lead": "lead"}, {"id": "T3", "lead": "lead"}])
    board.tell("implement", "lead", "ada", "T2")
    board.tell("info", "bob", "ada", text="hello")
    bad = room.agent("bob").send("ada", {"task_id": "T1"}, type="implement")
    unknown = board.tell("implement", "lead", "ada", "T9")
    board.tell("implement", "lead", "ada", "T2")

    done = list(work_for_lead(room, "ada", lambda task: {"did": task.id}, timeout_s=0))

    assert done == ["T2"]
    assert [task.state for task in board.tasks()] == ["ready", "done", "ready"]
    assert (room.receipt(bad).state, room.receipt(unknown).state) == ("refused", "refused")
    assert "`implement` goes from lead to worker; from bob" in (room.get(bad).error or "")
    assert room.peek(agent="ada") == []


def test_work_that_raises_blocks_its_task_and_goes_on(room: Room) -> None:
    room.board.add_all([{"id": "T1"}, {"id": "T2"}])

    def work(task: postroom.HeldTask) -> None:
        if task.id == "T1":
            raise ValueError("no spec")

    assert list(work_from_board(room, "ada", work, timeout_s=0)) == ["T1", "T2"]
    assert [(task.state, task.why) for task in room.board.tasks()] == [
        ("blocked", "ValueError: no spec"),
        ("done", None),
    ]


def test_work_that_was_interrupted_is_released_at_once(room: Room) -> None:
    room.board.add("T1")

    def work(_: postroom.HeldTask) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        list(work_from_board(room, "ada", work, timeout_s=0))
    assert room.board.get("T1").state == "ready"


def test_work_on_a_task_that_was_aborted_meanwhile_does_not_count(room: Room) -> None:
    room.board.add("T1")

    assert list(work_from_board(room, "ada", lambda task: room.board.abort(task.id), timeout_s=0)) == []
    assert room.board.get("T1").state == "aborted"


def test_a_lead_assigns_one_task_at_a_time_and_returns_when_none_can_go_on(
    open_room: Callable[..., Room], in_background: Callable[..., Any]
) -> None:
    here = open_room()
    seen: list[tuple[str, str]] = []

    def work_as(name: str) -> Callable[[], list[str]]:
        room = open_room()

        def work(task: postroom.HeldTask) -> str:
            seen.append((name, task.id))
            if task.id == "T2":
                raise ValueError("no key")
            return name

        return lambda: list(work_for_lead(room, name, work))

    workers = [in_background(work_as(name)) for name in ("ada", "bob")]
    plan = [{"id": f"T{n}", "after": ["T2"] if n == 5 else []} for n in range(6)]
    tasks = in_background(lambda: lead(here, plan, ["ada", "bob"])).result()

    assert [task.state for task in tasks.values()] == ["done", "done", "blocked", "done", "done", "ready"]
    assert sorted(id for _, id in seen) == ["T0", "T1", "T2", "T3", "T4"]
    assert {name for name, _ in seen} == {"ada", "bob"}
    again = lead(here, plan, ["ada", "bob"])
    assert again == tasks and len(seen) == 5
    assert all(worker.running for worker in workers)


def test_a_lead_that_nobody_answers_gives_up_in_time(
    room: Room, in_background: Callable[..., Any], pass_time: Callable[..., None]
) -> None:
    leading = in_background(lambda: lead(room, [{"id": "T1"}], ["ada"], timeout_s=5))
    pass_time(leading)

    with pytest.raises(postroom.ReceiveTimeout, match="no report from ada within 5 s"):
        leading.result()
    with pytest.raises(postroom.InvalidMessage, match="workers: must name at least one agent"):
        lead(room, [{"id": "T1"}], [])


def test_a_task_that_a_worker_got_and_never_began_is_assigned_to_another(
    open_room: Callable[..., Room], in_background: Callable[..., Any], clock: Any
) -> None:
    here, there = open_room(), open_room()
    here.store.cell_write(
        "agent/ada",
        {
            "status": "active",
            "current_task": None,
            "heartbeat_ms": clock.wall_ms(),
            "first_seen_ms": clock.wall_ms(),
            "processes": [gone_process()],
            "transient": False,
        },
    )
    in_background(lambda: list(work_for_lead(there, "bob", lambda task: "by bob")))

    tasks = in_background(lambda: lead(here, [{"id": "T1"}], ["ada", "bob"])).result()

    assert tasks["T1"].result == "by bob"


def test_a_stage_hands_on_and_tries_again_what_failed(room: Room) -> None:
    editor = room.agent("editor")
    for number in (1, 0):
        editor.send("first", {"n": number}, correlation_id=f"c{number}")

    handed = list(
        work_as_stage(room, "first", lambda message: {"n": 6 // message.payload["n"]}, to="second", timeout_s=0)
    )

    assert handed == [{"n": 6}]
    (message,) = room.peek(agent="second")
    assert (message.payload, message.from_agent, message.correlation_id, message.hop_count) == (
        {"n": 6},
        "first",
        "c1",
        1,
    )
    (failed,) = room.peek(agent="first", state=None, correlation_id="c0")
    assert room.receipt(failed.id).events[-1].detail == "ZeroDivisionError: integer division or modulo by zero"


def test_the_last_stage_only_acks(room: Room) -> None:
    id = room.agent("editor").send("last", {"n": 1})

    assert list(work_as_stage(room, "last", lambda message: {"seen": True}, timeout_s=0)) == [{"seen": True}]
    assert room.receipt(id).state == "acked"
