"""The board's two files: what its cells say, for those who read and write files."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from tests.support.files_by_hand import claim, drop, files

import postroom
from postroom.board.task import encoded
from postroom.core.clock import SYSTEM, ManualClock
from postroom.core.config import Config
from postroom.stores.files.store import FilesStore

TASK: dict[str, Any] = {
    "id": "T1",
    "title": "one",
    "state": "ready",
    "owner": None,
    "after": [],
    "lease": None,
    "payload": {},
}


def board(root: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    status, claims = (json.loads((root / f"board/{name}.json").read_text()) for name in ("status", "claims"))
    return status["tasks"], claims


def test_the_boards_files_say_what_its_cells_say(store: FilesStore, root: Path) -> None:
    store.cell_write("board/task/T1", TASK)
    store.cell_write("board/task/T2", {**TASK, "id": "T2", "state": "claimed", "owner": "eve", "lease": 5, "token": 7})
    store.cell_write("elsewhere", 1)

    tasks, claims = board(root)

    assert {id: (task["state"], task["owner"]) for id, task in tasks.items()} == {
        "T1": ("ready", None),
        "T2": ("claimed", "eve"),
    }
    assert (claims["T2"]["owner"], claims["T2"]["lease"], claims["T2"]["token"], list(claims)) == ("eve", 5, 7, ["T2"])
    store.cell_write("board/task/T2", None)
    assert list(board(root)[0]) == ["T1"]


def edit(root: Path, name: str, change: Callable[[dict[str, Any]], None]) -> None:
    path = root / f"board/{name}.json"
    content = json.loads(path.read_text())
    change(content["tasks"] if name == "status" else content)
    drop(path, content)


def value(store: FilesStore, id: str = "T1") -> Any:
    cell = store.cell_read(f"board/task/{id}")
    return None if cell is None else cell.value


def test_an_edit_of_the_board_made_by_hand_is_taken_up(store: FilesStore, root: Path) -> None:
    store.cell_write("board/task/T1", TASK)
    value(store)

    edit(root, "status", lambda tasks: tasks["T1"].update(state="blocked", why="rain"))

    assert value(store) == {**TASK, "state": "blocked", "why": "rain"}
    assert board(root)[0]["T1"]["why"] == "rain"


def test_a_task_written_into_the_board_by_hand_is_a_task(store: FilesStore, root: Path) -> None:
    value(store)
    edit(root, "status", lambda tasks: tasks.update(T9={"title": "by hand"}))

    assert value(store, "T9") == {**TASK, "id": "T9", "title": "by hand"}


#: What somebody may write for a task, and the task that it is.
ODD_IDS = [("a b", "a b"), ("Größe", "Größe"), ("a/b", "a/b"), ("a%20b", "a b"), ("100%", "100%"), ("%2e.", "..")]


@pytest.mark.parametrize(("key", "id"), ODD_IDS)
def test_a_task_written_by_hand_under_any_id_can_be_claimed_and_done(
    root: Path, clock: ManualClock, key: str, id: str
) -> None:
    with postroom.open(f"files:{root}", clock=clock) as room:
        room.board.add("T1")
        edit(root, "status", lambda tasks: tasks.update({key: {"payload": {"n": 1}}, "T2": {"after": [id]}}))
        clock.advance(6)
        seen = {(task.id, task.title, task.unmet) for task in room.board.tasks()}
        assert seen == {("T1", "", ()), (id, id, ()), ("T2", "T2", (id,))}

        held = room.board.claim("ada", id)

        assert held is not None and held.payload == {"n": 1}
        assert (board(root)[0][encoded(id)]["owner"], board(root)[1][encoded(id)]["owner"]) == ("ada", "ada")
        assert held.done()
        assert room.board.get(id).state == "done" and room.board.get("T2").claimable
        assert list(board(root)[0]) == sorted(["T1", "T2", encoded(id)])


@pytest.mark.parametrize(("key", "id"), ODD_IDS)
def test_a_claim_written_by_hand_counts_under_the_plain_id_too(
    root: Path, clock: ManualClock, key: str, id: str
) -> None:
    with postroom.open(f"files:{root}", clock=clock) as room:
        room.board.add(id)
        edit(root, "claims", lambda claims: claims.update({key: {"owner": "worker-1"}}))
        assert (room.board.get(id).state, room.board.get(id).owner) == ("claimed", "worker-1")
        edit(root, "claims", lambda claims: claims.update({key: {"owner": "worker-2"}}))

        assert room.board.get(id).owner == "worker-1"
        (told,) = room.peek(agent="worker-2")
        assert told.payload["task_id"] == id
        assert told.payload["text"].endswith(f"did not count: {id} is claimed by worker-1")


def test_of_two_claims_written_by_hand_under_two_spellings_one_counts(root: Path, clock: ManualClock) -> None:
    with postroom.open(f"files:{root}", clock=clock) as room:
        room.board.add("a b")
        edit(root, "claims", lambda claims: claims.update({"a%20b": {"owner": "one"}, "a b": {"owner": "two"}}))

        assert room.board.get("a b").owner == "one"
        assert [message.type for message in room.peek(agent="two")] == ["info"]


@pytest.mark.parametrize("key", ["", "a\nb", "a%0Ab", "%FF", "x" * 256])
def test_an_entry_under_what_is_no_name_is_no_task(store: FilesStore, root: Path, key: str) -> None:
    store.cell_write("board/task/T1", TASK)
    edit(root, "status", lambda tasks: tasks.update({key: {"title": "by hand"}}))
    edit(root, "claims", lambda claims: claims.update({key: {"owner": "worker-1"}}))

    assert [cell.name for cell in store.cell_scan("board/task/")] == ["board/task/T1"]
    assert (list(board(root)[0]), board(root)[1]) == (["T1"], {})


def test_an_edit_of_an_old_copy_of_the_board_undoes_nothing(store: FilesStore, root: Path) -> None:
    store.cell_write("board/task/T1", TASK)
    store.cell_write("board/task/T2", {**TASK, "id": "T2"})
    old = json.loads((root / "board/status.json").read_text())
    store.cell_write("board/task/T1", {**TASK, "state": "claimed", "owner": "eve"})
    old["tasks"]["T2"]["title"] = "two"

    drop(root / "board/status.json", old)

    assert value(store)["owner"] == "eve"
    assert value(store, "T2")["title"] == "two"
    assert board(root)[0]["T1"]["owner"] == "eve"


def test_a_claim_written_by_hand_counts_when_it_is_the_first(store: FilesStore, root: Path) -> None:
    store.cell_write("board/task/T1", TASK)
    edit(root, "claims", lambda claims: claims.update(T1={"owner": "worker-1"}))

    assert (value(store)["state"], value(store)["owner"]) == ("claimed", "worker-1")
    assert board(root)[1]["T1"]["owner"] == "worker-1"


def test_a_claim_written_by_hand_that_lost_is_undone_and_its_writer_told(store: FilesStore, root: Path) -> None:
    store.cell_write("board/task/T1", {**TASK, "state": "claimed", "owner": "eve"})
    edit(root, "claims", lambda claims: claims["T1"].update(owner="worker-1"))

    assert value(store)["owner"] == "eve"
    assert board(root)[1]["T1"]["owner"] == "eve"
    (told,) = claim(store, "worker-1")
    assert told.message.type == "info"
    assert told.message.payload["task_id"] == "T1"
    assert "claimed by eve" in told.message.payload["text"]
    assert files(root / "inbox/worker-1") == []


@pytest.mark.slow
def test_the_boards_files_are_whole_at_any_moment(root: Path) -> None:
    with closing(FilesStore(root, Config(), SYSTEM)) as store:
        stop = threading.Event()
        seen: list[int] = []

        def read() -> None:
            while not stop.is_set():
                seen.append(len(board(root)[0]))

        reader = threading.Thread(target=read)
        reader.start()
        for number in range(150):
            store.cell_write(f"board/task/T{number}", {**TASK, "id": f"T{number}"})
        stop.set()
        reader.join()

    assert len(seen) > 3
    assert seen == sorted(seen)


def test_a_board_that_somebody_broke_is_left_alone_until_it_is_whole(store: FilesStore, root: Path) -> None:
    store.cell_write("board/task/T1", TASK)
    drop(root / "board/status.json", '{"tasks": {')
    assert value(store) == TASK

    store.cell_write("board/task/T1", {**TASK, "title": "new"})
    assert board(root)[0]["T1"]["title"] == "new"


def test_mail_to_the_board_is_for_the_agent_of_that_name(store: FilesStore, root: Path) -> None:
    drop(root / "inbox/board/20260209T223000Z-claim.json", {"from": "worker-1", "action": "claim", "task_id": "T3"})

    (delivery,) = claim(store, "board")
    assert (delivery.message.type, delivery.message.payload) == ("claim", {"task_id": "T3"})
