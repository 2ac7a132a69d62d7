"""Mail to the board, the seven actions, and the directions in which they may travel."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import postroom
from postroom.board.actions import ACTIONS, check_direction
from postroom.board.board import Board
from postroom.core.clock import ManualClock
from postroom.room import Room


@pytest.fixture
def board(room: Room) -> Board:
    return room.board


def told(room: Room, agent: str) -> list[str]:
    """What the board told an agent."""
    return [m.payload["text"] for m in room.peek(agent=agent, from_agent="board") if m.type == "info"]


# The actions

NAMES = {"lead": "lead", "worker": "ada", "board": "board"}


def test_there_are_seven_actions() -> None:
    assert list(ACTIONS) == "implement done blocked status claim abort info".split()


@pytest.mark.parametrize("action", ACTIONS)
@pytest.mark.parametrize(("sender", "to"), list(itertools.product(NAMES, NAMES)))
def test_an_action_travels_in_its_direction_alone(room: Room, action: str, sender: str, to: str) -> None:
    """The table of the source, written out: from whom, to whom."""
    allowed = {
        "implement": [("lead", "worker")],
        "done": [("worker", "lead")],
        "blocked": [("worker", "lead")],
        "status": [("lead", "board"), ("worker", "board"), ("board", "board")],
        "claim": [("worker", "board")],
        "abort": [("lead", "worker")],
        "info": list(itertools.product(NAMES, NAMES)),
    }
    before = room.cursor()
    if (sender, to) in allowed[action]:
        id = room.board.tell(action, NAMES[sender], NAMES[to], "T1", notes="x")
        message = room.get(id)
        assert (message.type, message.from_agent, message.to_agent) == (action, NAMES[sender], NAMES[to])
        assert (message.payload, message.correlation_id) == ({"task_id": "T1", "notes": "x"}, "T1")
    else:
        rule = ACTIONS[action]
        with pytest.raises(postroom.WrongDirection, match=f"`{action}` goes from {rule.sender} to {rule.recipient}"):
            room.board.tell(action, NAMES[sender], NAMES[to], "T1")
        assert room.events(after=before) == []


def test_who_leads_a_task_is_a_lead(board: Board) -> None:
    with pytest.raises(postroom.WrongDirection):
        board.tell("implement", "grace", "ada", "T1")
    board.add("T1", lead="grace")

    assert board.tell("implement", "grace", "ada", "T1")
    with pytest.raises(postroom.WrongDirection, match="to grace"):
        board.tell("implement", "lead", "grace", "T1")


def test_what_is_no_action_is_refused_with_those_that_are() -> None:
    with pytest.raises(postroom.WrongDirection, match="no action 'explode'; the actions are: implement, done, blocked"):
        check_direction("explode", "lead", "ada")


# What mail does


def test_a_claim_by_mail_is_the_agents(room: Room, board: Board, clock: ManualClock) -> None:
    board.add("T1")
    board.tell("claim", "ada", "board", "T1")

    (task,) = board.tasks()

    assert (task.state, task.owner) == ("claimed", "ada")
    assert told(room, "ada") == []
    assert board.claim("bob") is None
    assert board.held("T1", "ada").done()


def test_a_claim_that_lost_is_told_so(room: Room, board: Board) -> None:
    board.add_all([{"id": "T1"}, {"id": "T2", "after": ["T1"]}])
    for agent, id in (("ada", "T1"), ("bob", "T1"), ("bob", "T2"), ("bob", "T9"), ("ada", "T1")):
        board.tell("claim", agent, "board", id)
    board.tell("claim", "bob", "board")

    assert {task.id: task.owner for task in board.tasks()} == {"T1": "ada", "T2": None}

    until = board.get("T1").lease_until
    assert told(room, "ada") == []
    assert told(room, "bob") == [
        f"task T1 is claimed by ada until {until}; your claim does not count",
        "task T2 cannot be claimed yet: it waits for T1",
        "there is no task T9 on the board",
        "task_id: a claim must name its task",
    ]


def test_the_first_of_two_claims_by_mail_wins_whoever_applies_them(open_room: Callable[..., Room]) -> None:
    rooms = [open_room(), open_room()]
    rooms[0].board.add("T1")
    for agent in ("ada", "bob", "eve"):
        rooms[0].board.tell("claim", agent, "board", "T1")

    assert [room.board.tasks()[0].owner for room in rooms] == ["ada", "ada"]
    assert [len(told(rooms[1], agent)) for agent in ("ada", "bob", "eve")] == [0, 1, 1]


def test_the_owner_reports_by_mail(room: Room, board: Board) -> None:
    board.add_all([{"id": f"T{n}", "lead": "lead"} for n in range(4)])
    for n in range(4):
        board.tell("claim", "ada", "board", f"T{n}")
    board.tell("status", "ada", "board", "T0", state="done", result={"n": 1})
    board.tell("status", "ada", "board", "T1", state="blocked", notes="no key")
    board.tell("status", "ada", "board", "T2", status="ready", why="too hard")
    board.tell("status", "bob", "board", "T3", state="done")

    tasks = board.tasks()

    assert [task.state for task in tasks] == ["done", "blocked", "ready", "claimed"]
    assert (tasks[0].result, tasks[1].why, tasks[2].why, tasks[3].owner) == ({"n": 1}, "no key", "too hard", "ada")
    assert told(room, "ada") == []
    assert told(room, "bob") == ["id: bob does not hold task T3: it is claimed by ada"]
    assert [m.type for m in room.peek(agent="lead")] == ["done", "blocked"]


def test_a_task_is_added_put_back_and_called_off_by_mail(room: Room, board: Board) -> None:
    board.tell("status", "lead", "board", "T1", title="schema", lead=True)
    board.tell("status", "lead", "board", "T2", title="endpoints", after=["T1"])
    board.tell("status", "lead", "board", "T1", state="aborted", why="no")
    assert {task.id: (task.state, task.title) for task in board.tasks()} == {
        "T1": ("aborted", "schema"),
        "T2": ("ready", "endpoints"),
    }
    assert (board.get("T1").lead, board.get("T1").why, board.get("T2").after) == ("lead", "no", ("T1",))

    board.tell("status", "lead", "board", "T1", state="ready")
    board.tell("status", "ada", "board", "T2", state="aborted")
    board.tell("status", "ada", "board", "T3", state="done")
    board.tell("status", "ada", "board", "T1", state="finished")

    assert {task.id: task.state for task in board.tasks()} == {"T1": "ready", "T2": "ready"}
    assert told(room, "ada") == [
        "action: `abort` goes from lead to worker; from ada (a worker) it may not go",
        "there is no task T3 on the board",
        "state: must be one of ready, claimed, done, blocked, aborted, not 'finished'",
    ]


def test_what_is_about_no_task_is_kept_as_a_note(board: Board) -> None:
    board.tell("status", "ada", "board", phase="testing")
    board.tell("info", "bob", "board", text="away until noon")
    board.tell("status", "ada", "board", phase="done testing")

    assert board.notes() == {"ada": {"phase": "done testing"}, "bob": {"text": "away until noon"}}


@pytest.mark.parametrize("type", ["implement", "done", "message"])
def test_mail_in_the_wrong_direction_is_refused_with_the_rule(room: Room, board: Board, type: str) -> None:
    board.add("T1")
    id = room.agent("ada").send("board", {"task_id": "T1"}, type=type)
    board.tasks()

    assert room.receipt(id).state == "refused"
    (text,) = told(room, "ada")
    assert "goes from" in text or "there is no action 'message'" in text


def test_mail_that_was_applied_by_one_who_died_before_saying_so_is_applied_again(
    room: Room, board: Board, monkeypatch: pytest.MonkeyPatch
) -> None:
    board.add("T1", lead="lead")
    settle = room.store.settle

    def die(*_: Any, **__: Any) -> Any:
        raise KeyboardInterrupt

    for said in (("claim", {}), ("status", {"state": "done", "result": 7})):
        board.tell(said[0], "ada", "board", "T1", **said[1])
        monkeypatch.setattr(room.store, "settle", die)
        with pytest.raises(KeyboardInterrupt):
            board.tasks()
        monkeypatch.setattr(room.store, "settle", settle)
        room.clock.advance(31)  # type: ignore[attr-defined]
        board.tasks()

    assert (board.get("T1").state, board.get("T1").result, board.get("T1").token) == ("done", 7, 1)
    assert told(room, "ada") == []
    assert [m.type for m in room.peek(agent="lead")] == ["done"]


def test_one_who_waits_is_woken_by_mail_to_the_board(
    open_room: Callable[..., Room], in_background: Callable[..., Any]
) -> None:
    here, there = open_room().board, open_room().board
    waiting = in_background(lambda: there.claim("ada", timeout_s=60))

    here.tell("status", "lead", "board", "T1", title="by mail")

    assert waiting.result().id == "T1"


@pytest.mark.slow
@pytest.mark.parametrize("type", ["claim", "status"])
@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    said=st.dictionaries(
        st.sampled_from("task_id state status title after payload lead result why notes".split()),
        st.recursive(
            st.none()
            | st.booleans()
            | st.integers(-5, 5)
            | st.sampled_from(["T1", "T2", "done", "ready", "claimed", ""]),
            lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=2), inner, max_size=2),
            max_leaves=4,
        ),
    )
)
def test_no_message_keeps_others_from_the_board(type: str, said: dict[str, Any]) -> None:
    with postroom.open("memory:") as room:
        room.board.add("T1")
        id = room.agent("ada").send("board", said, type=type)

        assert "T1" in [task.id for task in room.board.tasks()]
        assert room.receipt(id).state in ("acked", "refused")
