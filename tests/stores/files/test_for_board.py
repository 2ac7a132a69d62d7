"""Assignments, reports and aborts that are dropped as files, as the source's protocol has them: the board follows them."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from tests.support.files_by_hand import drop, files
from tests.support.patience import until

import postroom
from postroom.board import mail
from postroom.core.clock import SYSTEM, ManualClock
from postroom.core.config import Config
from postroom.mail import tokens
from postroom.patterns import work_for_lead
from postroom.room import Room
from postroom.stores.files.store import FilesStore


@pytest.fixture
def room(root: Path, clock: ManualClock) -> Iterator[Room]:
    with postroom.open(f"files:{root}", clock=clock) as room:
        yield room


def say(folder: Path, sender: str | None, to: str | None, action: str, id: str | None = "T1", **payload: Any) -> Path:
    """Drop a message of the source's form."""
    fields = {"from": sender, "to": to, "action": action, "task_id": id, "timestamp": "2026-02-09T22:30:00Z"}
    count = len(files(folder))
    told = {name: value for name, value in fields.items() if value is not None}
    return drop(folder / f"20260209T2230{count:02}Z-{action}.json", {**told, "payload": payload})


def infos(root: Path, agent: str) -> list[str]:
    """What the inbox of an agent that reads files alone tells it."""
    said = [
        json.loads(path.read_text(encoding="utf-8")) for path in sorted((root / "inbox" / agent).glob("*-info.json"))
    ]
    return [each["payload"]["text"] for each in said]


def test_a_report_in_an_outbox_settles_the_task_of_its_owner(room: Room, root: Path) -> None:
    room.board.add("T1", lead="lead")
    room.board.claim("ada", "T1", transient=True)
    report = say(root / "outbox/ada", "ada", "lead", "done", result={"tables": 4})

    task = room.board.tasks()[0]

    assert (task.state, task.owner, task.result) == ("done", "ada", {"tables": 4})
    assert [message.type for message in room.peek(agent="lead")] == ["done"]  # told once, by the worker itself
    assert report.exists()


@pytest.mark.parametrize(("action", "state"), [("done", "done"), ("blocked", "blocked")])
@pytest.mark.parametrize("folder", ["outbox/ada", "inbox/lead"])
def test_a_report_needs_no_claim(room: Room, root: Path, action: str, state: str, folder: str) -> None:
    room.board.add("T1", lead="lead")
    say(root / folder, "ada", "lead", action, notes="by hand")

    (task,) = room.board.tasks()

    assert (task.state, task.owner) == (state, "ada")
    assert (task.result or task.why) == ({"notes": "by hand"} if action == "done" else "by hand")
    assert [message.type for message in room.peek(agent="lead")] == [action]
    assert room.board.claim("bob") is None


def test_a_report_without_a_recipient_goes_to_the_lead_of_its_task(room: Room, root: Path) -> None:
    room.board.add("T1", lead="grace")
    say(root / "outbox/ada", None, None, "done")
    say(root / "outbox/ada", None, None, "done", "T9")  # for nobody in particular

    assert room.board.tasks()[0].state == "done"
    assert [message.payload["task_id"] for message in room.peek(agent="grace")] == ["T1"]
    assert len(files(root / "outbox/ada")) == 2


@pytest.mark.parametrize("to", ["lead", "leda"])
def test_a_lead_that_the_worker_did_not_tell_is_told_by_the_board(room: Room, root: Path, to: str) -> None:
    room.board.add("T1", lead="grace")
    say(root / "outbox/ada", "ada", to, "done")
    room.board.tasks()

    assert [message.type for message in room.peek(agent=to)] == ["done"]
    assert [message.payload for message in room.peek(agent="grace")] == [{"task_id": "T1", "result": None}]


def test_a_task_that_was_blocked_by_hand_and_put_back_tells_its_lead_again(room: Room, root: Path) -> None:
    room.board.add("T1", lead="lead")
    say(root / "outbox/ada", "ada", "lead", "blocked", why="no key")
    room.board.tasks()
    room.board.reopen("T1")
    task = room.board.claim("bob")
    assert task is not None and task.done()

    assert [message.from_agent for message in room.peek(agent="lead")] == ["ada", "bob"]


def test_a_report_of_a_task_that_is_anothers_counts_not_and_is_answered(room: Room, root: Path) -> None:
    room.board.add("T1", lead="lead")
    room.board.claim("bob", "T1", transient=True)
    say(root / "outbox/ada", "ada", "lead", "done")

    assert (room.board.tasks()[0].state, room.board.tasks()[0].owner) == ("claimed", "bob")
    assert infos(root, "ada") == ["id: ada does not hold task T1: it is claimed by bob"]


def test_a_report_of_a_task_that_waits_for_others_is_answered(room: Room, root: Path) -> None:
    room.board.add_all([{"id": "T0", "lead": "lead"}, {"id": "T1", "after": ["T0"], "lead": "lead"}])
    say(root / "outbox/ada", "ada", "lead", "done")

    assert [task.state for task in room.board.tasks()] == ["ready", "ready"]
    assert infos(root, "ada") == ["task T1 cannot be claimed yet: it waits for T0"]


@pytest.mark.parametrize("sender", [None, "lead", "board"])
def test_a_report_that_no_worker_sent_changes_nothing(room: Room, root: Path, sender: str | None) -> None:
    room.board.add("T1", lead="lead")
    say(root / "inbox/lead", sender, "lead", "done")

    assert [task.state for task in room.board.tasks()] == ["ready"]
    assert len(room.peek(agent="lead")) == 1


def test_where_there_is_no_task_a_report_is_between_those_two(room: Room, root: Path) -> None:
    say(root / "outbox/ada", "ada", "lead", "done")

    assert room.board.tasks() == []
    assert [message.to_agent for message in room.peek()] == ["lead"]
    room.board.add("T2")
    say(root / "outbox/ada", "ada", "lead", "done", "T9")
    assert [task.state for task in room.board.tasks()] == ["ready"]
    assert infos(root, "ada") == []


def test_a_task_that_a_lead_assigns_by_a_file_is_on_the_board_before_its_worker_has_it(root: Path, room: Room) -> None:
    say(root / "inbox/ada", "lead", "ada", "implement", notes="do it", title="schema")
    ((message),) = room.peek(agent="ada")

    task = room.board.get("T1")

    assert (task.state, task.lead, task.title) == ("ready", "lead", "schema")
    assert task.payload == {"notes": "do it"}
    assert message.payload == {"task_id": "T1", **task.payload, "title": "schema"}
    assert list(work_for_lead(room, "ada", lambda task: {"did": task.payload["notes"]}, timeout_s=0)) == ["T1"]
    assert [message.payload["result"] for message in room.peek(agent="lead")] == [{"did": "do it"}]


def test_an_assignment_leaves_a_task_that_is_there_as_it_is(room: Room, root: Path) -> None:
    room.board.add("T1", title="schema", lead="grace")
    say(root / "inbox/ada", "grace", "ada", "implement", title="another")

    assert (room.peek(agent="ada")[0].type, room.board.get("T1").title) == ("implement", "schema")


@pytest.mark.parametrize(
    ("sender", "id", "why"),
    [
        ("bob", "T1", "`implement` goes from lead to worker; from bob"),
        ("lead", None, "task_id"),
        ("lead", "", "task_id"),
        ("lead", "a\nb", "task_id"),
    ],
)
def test_an_assignment_that_cannot_be_is_answered(
    room: Room, root: Path, sender: str, id: str | None, why: str
) -> None:
    say(root / "inbox/ada", sender, "ada", "implement", id)

    assert list(work_for_lead(room, "ada", lambda task: None, timeout_s=0)) == []
    assert room.board.tasks() == []
    (said,) = infos(root, sender)
    assert why in said


def test_an_abort_by_a_file_calls_off_the_task_that_its_recipient_has(room: Room, root: Path) -> None:
    room.board.add_all([{"id": "T1", "lead": "lead"}, {"id": "T2", "lead": "lead"}, {"id": "T3", "lead": "lead"}])
    mine, others = room.board.claim("ada", "T1"), room.board.claim("bob", "T2")
    assert mine is not None and others is not None
    for id in ("T1", "T2", "T3"):  # T2 is not ada's; T3 was assigned and not begun
        say(root / "inbox/ada", "lead", "ada", "abort", id, why="stop")

    assert [task.state for task in room.board.tasks()] == ["aborted", "claimed", "aborted"]
    assert mine.wait_aborted(0) and not others.aborted
    assert room.board.get("T1").why == "stop"
    assert [message.type for message in room.peek(agent="ada")] == ["abort"] * 3  # those files, and no more


def test_an_abort_without_a_task_calls_off_all_that_its_recipient_holds(room: Room, root: Path) -> None:
    room.board.add_all([{"id": "T1"}, {"id": "T2"}, {"id": "T3"}])
    room.board.claim("ada", "T1", transient=True)
    room.board.claim("bob", "T2", transient=True)
    say(root / "inbox/ada", "lead", "ada", "abort", None)

    assert [task.state for task in room.board.tasks()] == ["aborted", "claimed", "ready"]


def test_only_a_lead_calls_off(room: Room, root: Path) -> None:
    room.board.add("T1")
    room.board.claim("ada", "T1", transient=True)
    say(root / "inbox/ada", "bob", "ada", "abort")

    assert [task.state for task in room.board.tasks()] == ["claimed"]


def test_in_a_room_with_tokens_only_a_tasks_own_lead_calls_it_off(room: Room, root: Path) -> None:
    tokens.add_token(room.gateway, "me", human=True)
    room.board.add_all([{"id": "T1", "lead": "grace"}, {"id": "T2", "lead": "lead"}])
    say(root / "inbox/ada", "lead", "ada", "abort", "T1")
    say(root / "inbox/ada", "lead", "ada", "abort", "T2")

    assert [task.state for task in room.board.tasks()] == ["ready", "aborted"]
    (said,) = infos(root, "lead")
    assert "grace" in said


def test_a_look_that_failed_is_made_again(
    root: Path, in_background: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    with postroom.open(f"files:{root}") as room:
        room.board.add("T1")
        looks: list[str] = []
        apply = mail.apply

        def fail_once(*given: Any) -> None:
            looks.append("look")
            if len(looks) == 1:
                raise postroom.RoomBusy("for a moment")
            apply(*given)

        monkeypatch.setattr(mail, "apply", fail_once)
        receiving = in_background(lambda: room.agent("bob").receive(timeout_s=60))
        say(root / "outbox/ada", "ada", "lead", "done")
        until(lambda: '"ada"' in (root / "board/status.json").read_text(encoding="utf-8"))
        assert len(looks) > 1
        room.agent("ada").send("bob", {})
        receiving.result().ack()


@pytest.mark.parametrize("folder", ["inbox/board", "outbox/ada"])
def test_the_board_follows_while_a_program_here_only_receives(
    root: Path, in_background: Callable[..., Any], folder: str
) -> None:
    with postroom.open(f"files:{root}") as room:
        room.board.add("T1")
        receiving = in_background(lambda: room.agent("bob").receive(timeout_s=60))
        to, action = ("board", "claim") if folder == "inbox/board" else ("lead", "done")
        say(root / folder, "ada", to, action)
        until(lambda: '"ada"' in (root / "board/status.json").read_text(encoding="utf-8"))
        assert receiving.running
        room.agent("ada").send("bob", {})
        receiving.result().ack()


def test_a_program_that_ends_at_once_applies_what_it_took_in(root: Path) -> None:
    with postroom.open(f"files:{root}") as room:
        room.board.add("T1")
    say(root / "inbox/board", "ada", "board", "claim")
    with postroom.open(f"files:{root}") as room:
        room.agent("bob").poll()

    with closing(FilesStore(root, Config(), SYSTEM)) as store:
        cell = store.cell_read("board/task/T1")
    assert cell is not None and cell.value["owner"] == "ada"
