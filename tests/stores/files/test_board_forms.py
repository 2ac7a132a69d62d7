"""Board files that somebody wrote in a form of their own: the obvious ones count, the others are kept and answered."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.support.files_by_hand import drop, files

import postroom
from postroom.core.clock import SYSTEM, ManualClock
from postroom.room import Room


@pytest.fixture
def room(root: Path, clock: ManualClock) -> Iterator[Room]:
    with postroom.open(f"files:{root}", clock=clock) as room:
        room.board.add_all([{"id": "T1"}, {"id": "T2"}, {"id": "T 3"}])
        yield room


def kept(root: Path) -> list[tuple[str, str]]:
    """What was set aside: each file's content, and the reason beside it."""
    folder = root / ".postroom" / "rejected"
    names = [name for name in files(folder) if name.endswith(".json")]
    assert len(files(folder)) == 2 * len(names)
    reasons = [(folder / f"{name.removesuffix('.json')}.reason.txt").read_text(encoding="utf-8") for name in names]
    return [((folder / name).read_text(encoding="utf-8"), reason) for name, reason in zip(names, reasons, strict=True)]


def claims(root: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((root / "board/claims.json").read_text(encoding="utf-8"))
    return found


@pytest.mark.parametrize(
    "said",
    [
        {"T1": "worker-1"},
        {"T1": {"owner": "worker-1"}},
        {"T1": {"agent": "worker-1", "at": "2026-02-09T22:30:00Z"}},
        {"T1": {"claimed_by": "worker-1"}},
        {"T1": {"worker": "worker-1", "lease": 5}},
        {"T1": {"session": "worker-1", "claimed_at": "2026-02-09T22:30:00Z"}},
        [{"from": "worker-1", "action": "claim", "task_id": "T1"}],
        {"claims": {"T1": "worker-1"}, "updated": "now"},
        {"claims": [{"task_id": "T1", "agent": "worker-1"}]},
        [{"task": "T1", "owner": "worker-1"}],
        [{"id": "T1", "claimed_by": "worker-1"}],
    ],
    ids=json.dumps,
)
def test_a_claim_counts_in_every_form_whose_meaning_is_clear_and_has_a_lease(
    room: Room, root: Path, clock: ManualClock, said: Any
) -> None:
    drop(root / "board/claims.json", said)

    task = room.board.get("T1")
    assert (task.state, task.owner) == ("claimed", "worker-1")
    assert task.lease_until is not None
    entry = claims(root)["T1"]
    assert (entry["owner"], entry["lease"]) == ("worker-1", clock.wall_ms() + 600_000)
    assert kept(root) == []
    clock.advance(601)
    assert room.board.get("T1").state == "ready"


@pytest.mark.parametrize(
    ("said", "why"),
    [
        ({"T1": 5}, 'there is no owner for "T1"'),
        ({"T1": {"who": "worker-1"}}, 'there is no owner for "T1"'),
        ({"T1": None}, 'there is no owner for "T1"'),
        (["T1"], '"T1" names no task'),
        (7, "it must be an object, not 7"),
        (None, None),
        ({"a\nb": "worker-1"}, 'there is no task "a\\nb"'),
    ],
)
def test_a_claim_that_is_not_understood_is_kept_with_the_form_that_counts(
    room: Room, root: Path, said: Any, why: str | None
) -> None:
    drop(root / "board/claims.json", said)

    assert [task.state for task in room.board.tasks()] == ["ready", "ready", "ready"]
    if why is not None:
        ((content, reason),) = kept(root)
        assert json.loads(content) == said
        assert reason.startswith(f"board/claims.json: {why}\n")
        assert '{"T1": {"owner": "worker-1"}}' in reason
    assert claims(root) == {}


def test_the_claims_beside_one_that_is_not_understood_count(room: Room, root: Path) -> None:
    drop(root / "board/claims.json", {"T1": "worker-1", "T2": [], "T 3": {"agent": "worker-2"}})

    assert [task.owner for task in room.board.tasks()] == ["worker-1", None, "worker-2"]
    assert list(claims(root)) == ["T%203", "T1"]
    assert len(kept(root)) == 1


def test_a_claim_of_a_task_that_is_not_there_is_answered(room: Room, root: Path) -> None:
    drop(root / "board/claims.json", {"T9": "worker-1"})

    assert room.board.get("T1").state == "ready"
    (told,) = room.peek(agent="worker-1")
    assert (told.type, told.payload["task_id"]) == ("info", "T9")
    assert told.payload["text"] == 'your claim in board/claims.json did not count: there is no task "T9"'
    assert len(kept(root)) == 1


def test_a_claim_in_another_form_that_lost_is_answered_as_any(room: Room, root: Path) -> None:
    assert room.board.claim("eve", "T1") is not None
    drop(root / "board/claims.json", {"T1": "worker-1"})

    assert room.board.get("T1").owner == "eve"
    (told,) = room.peek(agent="worker-1")
    assert told.payload["text"].endswith("did not count: T1 is claimed by eve")
    assert (claims(root)["T1"]["owner"], kept(root)) == ("eve", [])


@pytest.mark.parametrize(
    ("said", "why"),
    [
        ({"phase": 2}, '"phase" is not a known key there'),
        ([{"id": "T1"}], "it must be an object, not"),
        ({"tasks": [{"id": "T9"}]}, "tasks must be an object, not"),
        ({"tasks": {"T1": "done"}}, 'the entry of "T1" must be an object, not "done"'),
        ({"tasks": {"": {}}}, '"" cannot be the id of a task'),
        ({"notes": {"ada": "away"}}, 'the note of "ada" must be {"payload": {…}}, not "away"'),
        ({"notes": {"a\nb": {"payload": {}}}}, '"a\\nb" cannot be the name of an agent'),
    ],
)
def test_a_status_of_a_free_form_is_kept_with_the_form_that_counts(room: Room, root: Path, said: Any, why: str) -> None:
    drop(root / "board/status.json", said)

    assert [(task.id, task.state) for task in room.board.tasks()] == [
        ("T1", "ready"),
        ("T2", "ready"),
        ("T 3", "ready"),
    ]
    ((content, reason),) = kept(root)
    assert json.loads(content) == said
    assert reason.startswith(f"board/status.json: {why}")
    assert "is the expected form" in reason
    status = json.loads((root / "board/status.json").read_text(encoding="utf-8"))
    assert list(status) == ["updated", "tasks"] and set(status["tasks"]) == {"T1", "T2", "T%203"}


def test_what_agents_tell_the_board_of_no_task_stands_in_its_file(room: Room, root: Path) -> None:
    def notes() -> Any:
        found = json.loads((root / "board/status.json").read_text(encoding="utf-8"))["notes"]
        return {agent: note["payload"] for agent, note in found.items()}

    drop(root / "inbox/board/20260209T223000Z-status.json", {"from": "ada", "payload": {"phase": "testing"}})
    room.board.tasks()
    assert notes() == {"ada": {"phase": "testing"}}

    old = (root / "board/status.json").read_text(encoding="utf-8")
    room.board.tell("status", "ada", "board", phase="done testing")
    room.board.tasks()
    drop(root / "board/status.json", old)  # an old copy undoes nothing
    assert room.board.notes() == notes() == {"ada": {"phase": "done testing"}}
    drop(root / "board/status.json", {"notes": {"bob": {"payload": {"text": "away"}}}})
    assert room.board.notes() == notes() == {"ada": {"phase": "done testing"}, "bob": {"text": "away"}}
    assert kept(root) == []


def test_on_an_empty_board_too_a_free_form_is_kept(root: Path, clock: ManualClock) -> None:
    with postroom.open(f"files:{root}", clock=clock) as room:
        drop(root / "board/status.json", {"phase": 2})
        assert room.board.tasks() == []
        assert [content for content, _ in kept(root)] == ['{"phase": 2}']


@pytest.mark.parametrize("name", ["claims", "status"])
def test_a_broken_file_is_left_alone_for_ten_seconds_and_then_kept(
    room: Room, root: Path, clock: ManualClock, name: str
) -> None:
    path = root / f"board/{name}.json"
    drop(path, '{"T1": {"own')
    room.board.tasks()
    clock.advance(9)
    room.board.tasks()
    assert (path.read_text(encoding="utf-8"), kept(root)) == ('{"T1": {"own', [])
    clock.advance(2)
    room.board.tasks()

    ((content, reason),) = kept(root)
    assert (content, reason.splitlines()[0]) == ('{"T1": {"own', f"board/{name}.json: it is not JSON")
    assert json.loads(path.read_text(encoding="utf-8")) is not None


def test_a_command_that_ends_at_once_sees_that_a_file_was_broken_long_ago(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with postroom.open(f"files:{root}") as room:
        room.board.add("T1")
    drop(root / "board/claims.json", "{")
    later = ManualClock(SYSTEM.wall_ms() + 11_000)
    with monkeypatch.context() as machine:
        machine.setattr("postroom.stores.files.tree.SYSTEM", later)
        with postroom.open(f"files:{root}") as room:
            room.board.tasks()

    assert [content for content, _ in kept(root)] == ["{"]
    assert claims(root) == {}


def test_a_broken_file_is_kept_when_the_board_changes_before_its_time_is_over(room: Room, root: Path) -> None:
    path = root / "board/claims.json"
    drop(path, '{"T1": {"own')
    with path.open("a", encoding="utf-8") as slow:
        assert room.board.claim("eve", "T1") is not None
        slow.write('er": "worker-1"}}')

    assert [content for content, _ in kept(root)] == ['{"T1": {"owner": "worker-1"}}']
    assert claims(root)["T1"]["owner"] == "eve"


def test_a_broken_status_does_not_hide_a_claim(room: Room, root: Path) -> None:
    drop(root / "board/status.json", "{")
    drop(root / "board/claims.json", {"T1": "worker-1"})

    assert room.board.get("T1").owner == "worker-1"
    assert [content for content, _ in kept(root)] == ["{"]


def test_a_room_that_is_opened_without_one_of_the_files_takes_up_the_other(root: Path, clock: ManualClock) -> None:
    with postroom.open(f"files:{root}", clock=clock) as room:
        room.board.add("T1")
    os.unlink(root / "board/status.json")
    drop(root / "board/claims.json", {"T1": "worker-1"})
    with postroom.open(f"files:{root}", clock=clock) as room:
        assert room.board.get("T1").owner == "worker-1"
    assert set(json.loads((root / "board/status.json").read_text(encoding="utf-8"))["tasks"]) == {"T1"}
