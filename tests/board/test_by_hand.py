"""What the board keeps beside its tasks can be lost and made again; what was written into its cells by hand is taken up."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from tests.support.board_words import claim, states

from postroom.board.task import PREFIX
from postroom.core import crashpoints
from postroom.core.clock import ManualClock
from postroom.room import Room


def test_everything_derived_can_be_lost(room: Room, clock: ManualClock) -> None:
    board = room.board
    board.add_all([{"id": f"T{n}", "after": ["T0"] if n > 150 else []} for n in range(155)])
    first = claim(board)
    claim(board, transient=True, lease_s=100)
    for prefix in ("board-ready/", "board-claim/", "board-after/"):
        for cell in room.store.cell_scan(prefix):
            room.store.cell_write(cell.name, None)

    assert claim(board, transient=True).id == "T2"
    clock.advance(61)
    first.done()
    rest = [claim(board, transient=True).id for _ in range(152)]
    assert rest == [f"T{n}" for n in range(3, 155)]
    assert board.claim("bob") is None
    clock.advance(100)
    assert claim(board, "bob").id == "T1"
    room.board.add("T999")
    assert claim(board, "bob").id == "T999"


def test_a_task_that_was_written_by_hand_is_taken_up(room: Room, clock: ManualClock) -> None:
    board = room.board
    board.add("T1")
    claim(board).done()
    room.store.cell_write(f"{PREFIX}T2", {"title": "by hand", "after": ["T1"], "colour": "red"})
    room.store.cell_write(f"{PREFIX}T3", {"id": "T3", "state": "done"})
    clock.advance(6)

    held = claim(board, "bob")

    assert (held.id, held.title) == ("T2", "by hand")
    cell = room.store.cell_read(f"{PREFIX}T2")
    assert cell is not None and cell.value["colour"] == "red"
    assert held.done() and states(board) == {"T1": "done", "T2": "done", "T3": "done"}


@pytest.mark.parametrize(
    "raw",
    [
        *(7, "text", [], {}, {"state": "in_progress"}, {"state": "claimed"}),
        {"after": "T1", "token": "x", "payload": 3, "lease": "soon"},
        {"state": "claimed", "owner": "eve", "lease": 1e300, "steady": [None, 1e300]},
        {"state": "claimed", "owner": "eve", "lease": -1, "steady": ["manual-1", "x"], "place": 10**15},
        {"state": "claimed", "owner": 7, "lease": 5, "steady": "no", "process": "x"},
    ],
)
def test_a_task_that_was_written_badly_is_shown_and_hurts_nobody(room: Room, clock: ManualClock, raw: Any) -> None:
    board = room.board
    board.add("T1")
    room.store.cell_write(f"{PREFIX}bad", raw)
    clock.advance(61)

    assert {task.id for task in board.tasks()} == {"T1", "bad"}
    assert {claim(board).id for _ in range(1)} <= {"T1", "bad"}
    assert board.get("bad").state in ("ready", "claimed", "blocked")
    assert isinstance(board.abort("bad"), bool)


def test_a_claim_that_was_written_by_hand_ends_by_time(room: Room, clock: ManualClock) -> None:
    board = room.board
    room.store.cell_write(f"{PREFIX}T1", {"state": "claimed", "owner": "eve"})
    assert board.claim("ada") is None
    assert (board.get("T1").owner, board.get("T1").state) == ("eve", "claimed")
    clock.advance(599)
    assert board.claim("ada") is None
    clock.advance(2)
    assert claim(board, "ada").id == "T1"


def test_a_claim_written_by_hand_that_a_worker_passes_by_ends(room: Room, clock: ManualClock) -> None:
    board = room.board
    board.add_all([{"id": "T1"}, {"id": "T2"}, {"id": "T3"}])
    claim(board).done()  # the board was looked over just now
    cell = room.store.cell_read(f"{PREFIX}T2")
    assert cell is not None
    room.store.cell_write(cell.name, {**cell.value, "state": "claimed", "owner": "eve"}, expect=cell.version)

    assert claim(board, "ada").done() and board.claim("ada") is None
    assert board.get("T2").lease_until is not None
    clock.advance(599)
    assert board.claim("ada") is None
    clock.advance(2)
    assert claim(board, "ada").id == "T2"


def test_a_lease_that_was_taken_away_by_hand_comes_back(room: Room, clock: ManualClock) -> None:
    board = room.board
    board.add("T1")
    claim(board, "eve", transient=True)
    cell = room.store.cell_read(f"{PREFIX}T1")
    assert cell is not None
    room.store.cell_write(cell.name, {**cell.value, "lease": None, "steady": None}, expect=cell.version)
    clock.advance(1)
    assert board.claim("ada") is None
    clock.advance(601)
    assert claim(board, "ada").id == "T1"


def test_a_claim_that_was_written_by_hand_is_safe_from_the_owner_before(room: Room, clock: ManualClock) -> None:
    board = room.board
    board.add("T1")
    late = claim(board, lease_s=5, heartbeat=False)
    clock.advance(6)
    board.tasks()
    cell = room.store.cell_read(f"{PREFIX}T1")
    assert cell is not None and cell.value["state"] == "ready"
    room.store.cell_write(cell.name, {**cell.value, "state": "claimed", "owner": "eve"}, expect=cell.version)

    assert not late.done("late") and not late.extend()

    assert (board.get("T1").state, board.get("T1").owner) == ("claimed", "eve")
    assert board.held("T1", "eve").done()


@pytest.mark.parametrize("owner", ["a\nb", "x" * 300, "lead"])
@pytest.mark.parametrize("state", ["done", "blocked", "aborted"])
def test_an_end_that_was_written_by_hand_stops_nobody(room: Room, clock: ManualClock, state: str, owner: str) -> None:
    board = room.board
    board.add("T1", lead="lead")
    claim(board, transient=True)
    cell = room.store.cell_read(f"{PREFIX}T1")
    assert cell is not None
    edited = {**cell.value, "state": state, "owner": owner, "tell_owner": "lead", "result": {"by": "hand"}}
    room.store.cell_write(cell.name, edited)
    clock.advance(1)

    assert [(task.state, task.owner) for task in board.tasks()] == [(state, owner)]
    assert room.store.cell_scan("board-claim/") == []


def test_a_result_that_was_edited_after_it_was_told_stops_nobody(room: Room, clock: ManualClock) -> None:
    board = room.board
    board.add("T1", lead="lead")
    claim(board).done("first")
    cell = room.store.cell_read(f"{PREFIX}T1")
    assert cell is not None
    room.store.cell_write(cell.name, {**cell.value, "result": "second"})
    room.store.cell_write("board-claim/T1", {"token": 1, "process": None})  # as if who finished it had been killed
    clock.advance(1)

    assert [task.result for task in board.tasks()] == ["second"]
    assert [message.payload["result"] for message in room.peek(agent="lead")] == ["first"]
    assert room.store.cell_scan("board-claim/") == []


def test_a_state_that_is_no_state_is_blocked_and_says_so(room: Room) -> None:
    room.store.cell_write(f"{PREFIX}T1", {"state": "in_progress"})

    task = room.board.get("T1")

    assert (task.state, task.why) == (
        "blocked",
        "'in_progress' is not a state; the states are ready, claimed, done, blocked, aborted",
    )
    assert room.board.reopen("T1")


def test_entries_that_are_out_of_date_do_not_stay_in_the_index(room: Room) -> None:
    board = room.board
    board.add_all([{"id": f"T{n}"} for n in range(130)])  # two buckets, and a part of a third
    for _ in range(130):
        claim(board).done()
    board.claim("ada")

    left = [cell for cell in room.store.cell_scan("board-ready/") if cell.name != "board-ready/index"]
    assert left == [] and room.store.cell_scan("board-claim/") == []


def test_a_claim_whose_note_was_never_written_is_found_when_it_lapses(room: Room, clock: ManualClock) -> None:
    """Its claimer was killed between two writes; its entry may leave the index only when the note is there."""
    board = room.board
    board.add_all([{"id": f"T{n}"} for n in range(64)])
    claim(board, transient=True, lease_s=5)
    (note,) = room.store.cell_scan("board-claim/")
    room.store.cell_write(note.name, None)
    for _ in range(63):
        claim(board, transient=True)
    board.add("later")
    assert claim(board, transient=True).id == "later"  # passed the whole first bucket, and took it out
    board.add("last")
    clock.advance(6)

    assert claim(board).id == "T0"


def test_a_task_that_comes_while_its_bucket_is_closed_is_found(room: Room, open_room: Callable[..., Room]) -> None:
    board, other = room.board, open_room().board
    board.add("T1")
    claim(board).done()
    came: list[str] = []

    def come() -> None:
        if not came:
            came.append("T2")
            other.add("T2")

    crashpoints.at("board.bucket_emptied", come)
    try:
        board.claim("ada", "T1")
        first = board.claim("ada")
    finally:
        crashpoints.forget()

    assert came == ["T2"]
    assert (first or claim(board)).id == "T2"
    index = room.store.cell_read("board-ready/index")
    assert index is not None and index.value["runs"] == [[0, 0]]
