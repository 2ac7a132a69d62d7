"""The board on every store: who may claim what, when a claim ends, and what everybody is told."""

from __future__ import annotations

import gc
import itertools
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any

import pytest
from tests.support.board_words import claim, soon, states

import postroom
from postroom.board.board import Board
from postroom.board.task import find_cycle
from postroom.core.clock import ManualClock
from postroom.room import Room
from postroom.testing import gone_process, together


@pytest.fixture
def board(room: Room) -> Board:
    return room.board


# Adding


def test_a_task_that_was_added_is_ready_and_tells_what_was_said(board: Board) -> None:
    task = board.add("T1", title="schema", payload={"spec": "taskrunner"}, lead="lead")

    assert task == board.get("T1")
    assert (task.id, task.title, task.state, task.payload) == ("T1", "schema", "ready", {"spec": "taskrunner"})
    assert (task.owner, task.after, task.unmet, task.lease_until, task.token) == (None, (), (), None, 0)
    assert task.claimable


def test_adding_the_same_again_changes_nothing_and_another_of_that_name_is_refused(board: Board) -> None:
    board.add("T1", title="schema")
    claim(board, "ada", "T1").done(7)

    assert board.add("T1", title="schema").state == "done"
    with pytest.raises(postroom.InvalidMessage, match=r"T1 is already on the board \(done\), with a different title"):
        board.add("T1", title="tables")


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"id": ""}, "id: must not be empty"),
        ({"id": 7}, "id: must be text, not int"),
        ({"id": "T", "after": "T1"}, r"after: must be a list of ids, such as \['T1'\]"),
        ({"id": "T", "after": ["a\nb"]}, "after: must not contain control characters"),
        ({"id": "T", "after": 7}, r"after: must be a list of ids, such as \['7'\]"),
        ({"id": "T", "after": [["a"]]}, "after: must be text, not list"),
        ({"id": "T", "payload": [1]}, "payload: must be a dict, not list"),
        ({"id": "T", "payload": {"a": float("nan")}}, "payload.a: nan is not a JSON number"),
        ({"id": "T", "title": "x" * 300}, "title: must be at most 255 bytes"),
        ({"id": "T", "lead": ""}, "lead: must not be empty"),
    ],
)
def test_a_task_that_is_not_valid_is_refused(board: Board, fields: dict[str, Any], said: str) -> None:
    with pytest.raises(postroom.InvalidMessage, match=said):
        board.add(**fields)

    assert board.tasks() == []


def test_ids_may_be_anything_that_is_a_name(board: Board) -> None:
    ids = ["a/b", "..", "über 100 %", "a%2Fb", "*", "T1"]
    for id in ids:
        board.add(id)

    assert [task.id for task in board.tasks()] == ids
    assert [claim(board).id for _ in ids] == ids


def test_several_are_added_in_order_and_all_are_checked_first(board: Board) -> None:
    with pytest.raises(postroom.InvalidMessage, match=r"tasks\[1\]\.id"):
        board.add_all([{"id": "T1"}, {"id": ""}])
    with pytest.raises(postroom.InvalidMessage, match=r"tasks\[0\]: must be a dict with id"):
        board.add_all([{"name": "T1"}])
    assert board.tasks() == []

    added = board.add_all([{"id": f"T{n}", "after": [f"T{n - 1}"] if n else []} for n in range(5)])

    assert [task.id for task in added] == ["T0", "T1", "T2", "T3", "T4"]
    assert [task.unmet for task in added] == [(), ("T0",), ("T1",), ("T2",), ("T3",)]


# Dependencies


def test_a_task_waits_for_all_that_it_comes_after(board: Board) -> None:
    board.add("T1")
    board.add("T2")
    board.add("T3", after=["T1", "T2"])
    assert board.get("T3").unmet == ("T1", "T2")
    first, second = claim(board, "ada"), claim(board, "bob")
    assert (first.id, second.id) == ("T1", "T2")
    assert board.claim("eve") is None and board.claim("eve", "T3") is None

    assert first.done()
    assert board.get("T3").unmet == ("T2",)
    assert board.claim("eve") is None
    assert second.done()

    assert claim(board, "eve").id == "T3"


def test_a_task_may_wait_for_one_that_is_not_there_yet(board: Board) -> None:
    board.add("T2", after=["T1"])
    assert board.claim("ada") is None

    board.add("T1")
    claim(board, "ada", "T1").done()

    assert claim(board, "ada").id == "T2"


@pytest.mark.parametrize("end", ["blocked", "abort"])
def test_what_waits_for_a_blocked_or_aborted_task_goes_on_waiting(board: Board, end: str) -> None:
    board.add_all([{"id": "T1"}, {"id": "T2", "after": ["T1"]}])
    held = claim(board)
    assert held.blocked("no key") if end == "blocked" else board.abort("T1")

    assert board.claim("bob") is None
    assert board.get("T2").unmet == ("T1",)


def test_a_circle_is_refused_and_named(board: Board) -> None:
    board.add("T1", after=["T3"])
    board.add("T2", after=["T1"])

    with pytest.raises(postroom.DependencyCycle, match="T3 -> T2 -> T1 -> T3") as caught:
        board.add("T3", after=["X", "T2"])
    assert caught.value.cycle == ["T3", "T2", "T1", "T3"]
    with pytest.raises(postroom.DependencyCycle, match="T9 -> T9"):
        board.add("T9", after=["T9"])

    assert list(states(board)) == ["T1", "T2"]
    board.add("T3")
    assert claim(board).id == "T3"


def test_a_circle_made_at_the_same_moment_is_refused(open_room: Callable[..., Room]) -> None:
    boards = [open_room().board, open_room().board]
    for number in range(20):
        ids = [f"A{number}", f"B{number}"]

        def add(place: int, ids: list[str] = ids) -> bool:
            try:
                boards[place].add(ids[place], after=[ids[1 - place]])
            except postroom.DependencyCycle:
                return False
            return True

        added = together(lambda: add(0), lambda: add(1))

        assert not all(added)
    after = {task.id: task.after for task in boards[0].tasks()}
    assert [id for id in after if find_cycle(id, after[id], lambda other: after.get(other, ()))] == []


# Claiming


def test_the_first_that_was_added_is_claimed_first(board: Board) -> None:
    ids = [f"T{n}" for n in range(200)]  # more than a few buckets
    board.add_all([{"id": id} for id in ids])

    assert [claim(board).id for _ in ids] == ids
    assert board.claim("ada") is None


def test_a_released_task_keeps_its_place(board: Board) -> None:
    board.add_all([{"id": f"T{n}"} for n in range(100)])
    held = [claim(board) for _ in range(90)]

    assert held[3].release("too hard")

    assert board.get("T3").why == "too hard"
    assert [claim(board).id for _ in range(2)] == ["T3", "T90"]


def test_a_task_has_one_owner(board: Board) -> None:
    board.add("T1")
    held = claim(board, "ada", "T1")

    assert (held.id, held.agent, held.token, held.settled, held.aborted) == ("T1", "ada", 1, None, False)
    assert board.claim("bob", "T1") is None and board.claim("bob") is None
    assert board.claim("ada", "T1") is None
    task = board.get("T1")
    assert (task.state, task.owner, task.token) == ("claimed", "ada", 1)
    assert task.lease_until is not None


def test_claiming_a_task_that_is_not_there_is_an_error(board: Board) -> None:
    for step in (lambda: board.claim("ada", "T9"), lambda: board.get("T9"), lambda: board.abort("T9")):
        with pytest.raises(postroom.UnknownTask, match="there is no task T9 on the board"):
            step()


def test_listeners_are_told_before_and_after_a_task_is_taken(room: Room, board: Board) -> None:
    told: list[tuple[str, str | None]] = []
    for event in ("before_take", "after_take"):
        room.hooks.on(event, lambda event, detail: told.append((event, (detail.get("taken") or {}).get("id"))))
    board.add("T1")

    claim(board)
    assert board.claim("bob") is None

    assert told == [("before_take", None), ("after_take", "T1"), ("before_take", None), ("after_take", None)]


def test_a_claim_waits_for_a_task_to_be_added(
    open_room: Callable[..., Room], in_background: Callable[..., Any]
) -> None:
    here, there = open_room().board, open_room().board
    here.add("T0")
    claim(here, "bob")
    waiting = in_background(lambda: there.claim("ada", timeout_s=60))

    here.add("T1")  # the clock does not move: only a bell can wake it

    assert waiting.result().id == "T1"


def test_a_claim_waits_for_what_it_depends_on(
    open_room: Callable[..., Room], in_background: Callable[..., Any]
) -> None:
    here, there = open_room().board, open_room().board
    here.add_all([{"id": "T1"}, {"id": "T2", "after": ["T1"]}])
    first = claim(here, "bob")
    waiting = in_background(lambda: there.claim("ada", timeout_s=60))

    first.done()

    assert waiting.result().id == "T2"


def test_a_claim_that_waits_gives_up_in_time(
    board: Board, in_background: Callable[..., Any], pass_time: Callable[..., None]
) -> None:
    waiting = in_background(lambda: board.claim("ada", timeout_s=3))
    pass_time(waiting)

    assert waiting.result() is None


def test_a_claim_that_waits_ends_with_its_room(room: Room, in_background: Callable[..., Any]) -> None:
    waiting = in_background(lambda: room.board.claim("ada", timeout_s=60))
    room.close()

    with pytest.raises(postroom.RoomClosed):
        waiting.result()


# Settling


def test_done_tells_its_result_once(board: Board) -> None:
    board.add("T1")
    held = claim(board)

    assert held.done({"tables": 4})

    task = board.get("T1")
    assert (task.state, task.owner, task.result, task.lease_until) == ("done", "ada", {"tables": 4}, None)
    assert (held.settled, held.done(), held.release(), held.extend()) == (True, False, False, False)
    assert board.claim("bob", "T1") is None


@pytest.mark.parametrize("result", [None, 0, "text", [1, {"a": None}], {"deep": {"er": [True]}}])
def test_a_result_is_any_json(board: Board, result: Any) -> None:
    board.add("T1")
    claim(board).done(result)

    assert board.get("T1").result == result


def test_a_result_that_is_no_json_is_refused_and_the_task_stays(board: Board) -> None:
    board.add("T1")
    held = claim(board)

    with pytest.raises(postroom.InvalidMessage, match="result: must be JSON, not set"):
        held.done({1})
    with pytest.raises(postroom.InvalidMessage, match="why: must be text, not int"):
        held.blocked(7)  # type: ignore[arg-type]

    assert (board.get("T1").state, held.settled) == ("claimed", None)
    assert held.done()


def test_a_blocked_task_says_why_and_can_be_put_back(board: Board) -> None:
    board.add("T1")
    held = claim(board)
    assert held.blocked("needs a key")
    assert (board.get("T1").state, board.get("T1").why, board.get("T1").owner) == ("blocked", "needs a key", "ada")
    assert board.claim("bob") is None

    assert board.reopen("T1")

    assert not held.done() and not board.reopen("T1")
    again = claim(board, "bob")
    assert again.token > held.token
    assert again.done() and not board.reopen("T1")


def test_a_block_is_done_at_its_end_and_released_when_it_raises(board: Board) -> None:
    board.add("T1")
    with pytest.raises(ZeroDivisionError), claim(board):
        print(1 / 0)
    assert (board.get("T1").state, board.get("T1").why) == ("ready", "ZeroDivisionError: division by zero")

    with claim(board) as held:
        pass
    assert (board.get("T1").state, held.settled) == ("done", True)


def test_a_loop_does_one_after_the_other(board: Board) -> None:
    board.add_all([{"id": f"T{n}", "after": [f"T{n - 1}"] if n else []} for n in range(4)])
    seen = []
    for task in board.work("ada", timeout_s=0):
        seen.append(task.id)
        if task.id == "T1":
            task.done("by hand")
        if task.id == "T3":
            break

    assert seen == ["T0", "T1", "T2", "T3"]
    assert states(board) == {"T0": "done", "T1": "done", "T2": "done", "T3": "ready"}
    assert board.get("T3").why == "the loop ended before it was settled"


# Leases, tokens, death


def test_a_stale_done_changes_nothing(board: Board, clock: ManualClock) -> None:
    board.add("T1")
    late = claim(board, "ada", lease_s=5, heartbeat=False)
    clock.advance(6)
    other = claim(board, "bob")

    assert not late.done("late") and not late.blocked("late") and not late.extend()

    assert late.lost and not late.aborted
    assert (board.get("T1").owner, board.get("T1").state) == ("bob", "claimed")
    assert other.done("in time")
    assert board.get("T1").result == "in time"


def test_a_stale_done_of_the_same_agent_changes_nothing_either(board: Board, clock: ManualClock) -> None:
    board.add("T1")
    late = claim(board, "ada", lease_s=5, heartbeat=False)
    clock.advance(6)
    again = claim(board, "ada")

    assert not late.done("late") and not late.extend() and late.lost

    assert board.get("T1").state == "claimed" and again.done("in time")


def test_a_late_done_counts_until_somebody_else_takes_the_task(board: Board, clock: ManualClock) -> None:
    board.add("T1")
    late = claim(board, lease_s=5, heartbeat=False)
    clock.advance(6)
    assert (board.get("T1").state, board.get("T1").owner) == ("ready", None)
    assert "ada: the lease ended" in (board.tasks()[0].why or "")

    assert late.done("late")

    assert (board.get("T1").state, board.get("T1").result, board.get("T1").owner) == ("done", "late", "ada")


def test_a_late_extension_takes_the_task_back(board: Board, clock: ManualClock) -> None:
    board.add("T1")
    late = claim(board, lease_s=5, heartbeat=False)
    clock.advance(6)
    board.tasks()

    assert late.extend(60)

    assert board.get("T1").owner == "ada"
    assert board.claim("bob") is None
    clock.advance(61)
    assert claim(board, "bob").token == 2


def test_a_lease_has_ended_when_its_time_is_over_to_the_millisecond(board: Board, clock: ManualClock) -> None:
    board.add("T1")
    claim(board, lease_s=5, heartbeat=False)
    clock.advance(4.999)
    assert board.claim("bob") is None
    clock.advance(0.001)

    assert claim(board, "bob").token == 2


class Killed(BaseException):
    """Ends one party of a test in the middle of what it does."""


def test_the_lead_is_told_of_a_late_done_wherever_its_owner_was_killed(
    open_room: Callable[..., Room], clock: ManualClock
) -> None:
    """Another lets a lapsed claim go; before one of its writes the owner reports, and dies before one of its own."""
    owner, other = open_room(), open_room()
    done = 0
    for looks, writes in itertools.product(range(5), range(7)):
        id = lead = f"{looks} looks, {writes} writes"
        owner.board.add(id, lead=lead)
        late = claim(owner.board, task_id=id, lease_s=5, heartbeat=False)
        clock.advance(6)

        def report(late: postroom.HeldTask = late, writes: int = writes) -> None:
            with suppress(Killed), _act_before_write(owner, writes, _die):
                late.done("late")

        with _act_before_write(other, looks, report):
            other.board.tasks()
        for _ in range(3):  # the first lets a claim go that the owner had taken back
            clock.advance(6)
            other.board.tasks()

        told = [message.type for message in other.peek(agent=lead)]
        assert told == (["done"] if other.board.get(id).state == "done" else []), id
        done += len(told)
        assert other.board.get(id).state == "done" or claim(other.board, "bob", id).release()
    assert done >= 10


def _die() -> None:
    raise Killed


@contextmanager
def _act_before_write(room: Room, number: int, act: Callable[[], None]) -> Iterator[None]:
    """Do something before this room's write of that number, of those in the block."""
    count = itertools.count()

    def write(real: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        if next(count) == number:
            act()
        return real(*args, **kwargs)

    with pytest.MonkeyPatch.context() as patch:
        for name in ("cell_write", "put"):
            patch.setattr(room.store, name, partial(write, getattr(room.store, name)))
        yield


def test_an_extended_lease_lasts_from_then_on(board: Board, clock: ManualClock) -> None:
    board.add("T1")
    held = claim(board, lease_s=5, heartbeat=False)
    clock.advance(4)
    assert held.extend(10)
    clock.advance(9)
    assert board.claim("bob") is None
    clock.advance(2)
    assert board.claim("bob") is not None


def test_a_task_that_is_held_is_kept_by_heartbeats_and_one_that_is_forgotten_is_not(
    board: Board, clock: ManualClock
) -> None:
    board.add("T1")
    held = claim(board, lease_s=9)
    for _ in range(20):
        until = board.get("T1").lease_until
        clock.advance(4)

        def has_beaten(until: str | None = until) -> bool:
            clock.advance(0.001)  # a thread that had just begun to wait when the clock was moved waits for more
            return board.get("T1").lease_until != until

        assert soon(has_beaten), "no heartbeat came"
    assert board.claim("bob") is None
    assert held.settled is None

    del held
    gc.collect()
    for _ in range(8):
        clock.advance(2)
        soon(lambda: True)

    assert claim(board, "bob").token == 2


@pytest.mark.parametrize("jump_s", [3600, -3600])
def test_a_wall_clock_that_jumps_frees_nothing_and_freezes_nothing(
    board: Board, clock: ManualClock, jump_s: int
) -> None:
    board.add("T1")
    claim(board, lease_s=20, heartbeat=False)

    clock.jump_wall(jump_s)
    clock.advance(2)
    assert board.claim("bob") is None
    clock.advance(20)

    assert board.claim("bob") is not None


def test_the_task_of_a_dead_process_is_taken_over(board: Board, clock: ManualClock) -> None:
    board.add("T1")
    dead = claim(board, transient=True, process=gone_process(), lease_s=600)
    assert (board.get("T1").state, board.get("T1").owner) == ("ready", None)
    clock.advance(1)

    assert [(task.state, task.why) for task in board.tasks()] == [("ready", "ada: its owner's process is gone")]
    heir = claim(board, "bob")
    assert heir.token > dead.token
    assert not dead.done()


def test_a_claim_of_the_agent_outlives_its_process_and_ends_by_time(
    open_room: Callable[..., Room], clock: ManualClock
) -> None:
    first = open_room()
    second = open_room().board
    first.board.add("T1")
    claim(first.board, "ada", transient=True)
    first.close()

    assert second.claim("bob") is None
    assert claim(second, "ada", "T1", transient=True).token == 1
    held = second.held("T1", "ada")
    assert held.done()
    second.add("T2")
    claim(second, "ada", "T2", transient=True)
    clock.advance(601)
    assert claim(second, "bob").id == "T2"


def test_holding_what_is_anothers_says_whose_it_is(board: Board) -> None:
    board.add("T1")
    with pytest.raises(postroom.InvalidMessage, match="bob does not hold task T1: it is ready"):
        board.held("T1", "bob")
    claim(board, "ada", transient=True)
    with pytest.raises(postroom.InvalidMessage, match="bob does not hold task T1: it is claimed by ada"):
        board.held("T1", "bob")


def test_closing_the_room_gives_back_what_its_process_holds(open_room: Callable[..., Room]) -> None:
    here, there = open_room(), open_room().board
    here.board.add("T1")
    held = claim(here.board)
    here.close()

    assert (there.get("T1").state, there.get("T1").why) == ("ready", "the room was closed before it was settled")
    assert held.settled


# Abort


def test_an_abort_reaches_the_running_owner_by_push_and_its_done_is_refused(open_room: Callable[..., Room]) -> None:
    here, there = open_room().board, open_room().board
    here.add("T1")
    held = claim(here)
    assert not held.aborted

    assert there.abort("T1", "the spec has changed")  # the clock does not move: only a bell can tell

    assert soon(lambda: held.aborted)
    assert held.lost
    assert not held.done("too late") and not held.release()
    task = here.get("T1")
    assert (task.state, task.why, task.result) == ("aborted", "the spec has changed", None)


def test_one_who_waits_for_an_abort_is_woken(open_room: Callable[..., Room], in_background: Callable[..., Any]) -> None:
    here, there = open_room().board, open_room().board
    here.add("T1")
    held = claim(here)
    waiting = in_background(lambda: held.wait_aborted(60))

    there.abort("T1")

    assert waiting.result() is True


def test_an_abort_of_what_is_over_is_said_to_have_done_nothing(board: Board) -> None:
    board.add_all([{"id": "T1"}, {"id": "T2"}])
    claim(board).done()
    assert not board.abort("T1")
    assert board.abort("T2") and not board.abort("T2")
    assert states(board) == {"T1": "done", "T2": "aborted"}

    assert board.reopen("T2")
    assert claim(board).id == "T2"


def test_an_owner_that_is_no_process_is_told_of_an_abort_by_mail(room: Room) -> None:
    board = room.board
    board.add("T1", lead="lead")
    held = claim(board, "ada", transient=True)
    assert not held.aborted

    board.abort("T1", "stop", by="lead")

    (message,) = room.peek(agent="ada")
    assert (message.type, message.from_agent, message.payload) == ("abort", "lead", {"task_id": "T1", "why": "stop"})
    assert held.aborted and held.lost and not held.done()


def test_only_a_lead_aborts(board: Board) -> None:
    board.add("T1", lead="boss")
    claim(board, "ada")

    with pytest.raises(postroom.WrongDirection, match="`abort` goes from lead to worker; from bob"):
        board.abort("T1", by="bob")
    assert board.abort("T1", by="boss")


# Signals


def test_the_lead_is_told_of_what_is_done_and_blocked(room: Room) -> None:
    board = room.board
    board.add_all(
        [{"id": "T1", "lead": "lead"}, {"id": "T2", "lead": "lead"}, {"id": "T3"}, {"id": "T4", "lead": "ada"}]
    )
    claim(board).done({"n": 1})
    claim(board).blocked("no key")
    claim(board).done()
    claim(board).done()

    told = [(m.type, m.from_agent, m.correlation_id, m.payload) for m in room.peek(agent="lead")]
    assert told == [
        ("done", "ada", "T1", {"task_id": "T1", "result": {"n": 1}}),
        ("blocked", "ada", "T2", {"task_id": "T2", "why": "no key"}),
    ]
    assert room.peek(agent="ada") == []


def test_a_result_too_large_for_a_message_is_read_from_the_board(open_room: Callable[..., Room]) -> None:
    room = open_room(max_payload_bytes=200)
    room.board.add("T1", lead="lead")
    claim(room.board).done("x" * 1000)

    (message,) = room.peek(agent="lead")
    assert message.payload == {"task_id": "T1", "on_board": True}
    assert room.board.get("T1").result == "x" * 1000


# Watching


def test_watching_sees_every_change_by_push(open_room: Callable[..., Room], in_background: Callable[..., Any]) -> None:
    here, there = open_room().board, open_room().board
    here.add("T1")
    changes = there.watch()

    def next_change(step: Callable[[], Any]) -> tuple[str, str, str | None]:
        step()
        task = in_background(lambda: next(changes)).result()
        return task.id, task.state, task.owner

    held: list[postroom.HeldTask] = []
    assert next_change(lambda: held.append(claim(here))) == ("T1", "claimed", "ada")
    assert next_change(held[0].done) == ("T1", "done", "ada")
    assert next_change(lambda: here.add("T2", after=["T1"])) == ("T2", "ready", None)
    changes.close()  # type: ignore[attr-defined]


def test_watching_ends_when_nothing_changes_for_so_long(
    board: Board, in_background: Callable[..., Any], pass_time: Callable[..., None]
) -> None:
    board.add("T1")
    watching = in_background(lambda: list(board.watch(timeout_s=3)))
    pass_time(watching)

    assert watching.result() == []


def test_watching_sees_that_an_owner_is_gone(
    board: Board, in_background: Callable[..., Any], pass_time: Callable[..., None]
) -> None:
    board.add("T1")
    claim(board, transient=True, lease_s=3)
    watching = in_background(lambda: list(board.watch(timeout_s=8)))
    pass_time(watching)

    assert [(task.id, task.state) for task in watching.result()] == [("T1", "ready")]


def test_a_closed_room_has_no_board(room: Room) -> None:
    board = room.board
    room.close()
    for step in (board.tasks, lambda: board.add("T1"), lambda: board.claim("ada"), lambda: board.get("T1")):
        with pytest.raises(postroom.RoomClosed):
            step()


def test_a_task_is_taken_off_the_board_unless_it_is_held_or_waited_for(room: Room) -> None:
    board = room.board
    board.add("T1")
    board.add("T2", after=["T1"])
    with pytest.raises(postroom.InvalidMessage, match="T2 waits for it"):
        board.remove("T1")
    held = board.claim("bob")
    assert held is not None
    assert held.done()
    with pytest.raises(postroom.InvalidMessage, match="T2 waits for it"):
        board.remove("T1")
    second = board.claim("bob")
    assert second is not None
    assert not board.remove("T2")
    assert second.done()

    assert board.remove("T1")
    assert board.remove("T2")

    assert board.tasks() == []
    assert board.claim("bob") is None
    with pytest.raises(postroom.UnknownTask):
        board.remove("T1")


def test_a_task_that_was_removed_and_added_again_is_another(room: Room) -> None:
    """Its tokens go on, so that a late holder of the first counts for nothing, and its lead is told of its end too."""
    board, lead = room.board, room.agent("lead")
    board.add("T1", lead="lead")
    first = board.claim("bob")
    assert first is not None
    assert first.done(1)
    assert board.remove("T1")

    board.add("T1", lead="lead")
    second = board.claim("bob")
    assert second is not None
    assert not first.done(2)
    assert second.done(3)

    told = [lead.receive(timeout_s=5).payload for _ in range(2)]
    assert [payload["result"] for payload in told] == [1, 3]
    assert board.get("T1").result == 3
