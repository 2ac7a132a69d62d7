"""How often the board's files are written: a small board with each change, a large one seldom, and never too late."""

from __future__ import annotations

import json
import os
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from tests.support.files_by_hand import drop
from tests.support.patience import until

from postroom.core.clock import ManualClock
from postroom.core.config import Config
from postroom.stores.files import board as board_files
from postroom.stores.files.store import FilesStore

LARGE = board_files.AT_ONCE + 20


def write(store: FilesStore, id: str, **said: Any) -> None:
    store.cell_write(f"board/task/{id}", {"id": id, "state": "ready", "owner": None, **said})


def told(root: Path) -> dict[str, Any]:
    tasks: dict[str, Any] = json.loads((root / "board/status.json").read_text())["tasks"]
    return tasks


def claims(root: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((root / "board/claims.json").read_text())
    return found


@pytest.fixture
def large(store: FilesStore) -> FilesStore:
    """A store with a large board, whose files were written this moment."""
    for number in range(LARGE):
        write(store, f"T{number}")
    store.write_board(now=True)
    return store


def test_a_small_board_is_written_with_each_change(store: FilesStore, root: Path) -> None:
    for number in range(board_files.AT_ONCE):
        write(store, f"T{number}")
        assert f"T{number}" in told(root)


def test_a_large_board_is_written_once_for_many_changes(
    large: FilesStore, root: Path, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    written: list[object] = []
    really = board_files.BoardFiles.write

    def write_and_tell(*args: Any) -> None:
        written.append(args)
        really(*args)

    monkeypatch.setattr(board_files.BoardFiles, "write", write_and_tell)

    for number in range(LARGE):
        write(large, f"T{number}", title="new")
    assert (written, "title" in told(root)["T0"]) == ([], False)
    clock.advance(board_files.LATE_S)
    large.write_board()

    assert len(written) == 1
    assert all(task["title"] == "new" for task in told(root).values())


def test_the_files_follow_when_nothing_else_comes(large: FilesStore, root: Path, clock: ManualClock) -> None:
    write(large, "T3", title="new")
    assert "title" not in told(root)["T3"]

    clock.advance(board_files.LATE_S)

    until(lambda: "title" in told(root)["T3"], "the thread does not write the board")


def test_a_store_that_closes_leaves_the_board_as_it_is(large: FilesStore, root: Path) -> None:
    write(large, "T3", title="new")

    large.close()

    assert told(root)["T3"]["title"] == "new"


def test_what_a_killed_process_left_behind_is_written_by_the_next_that_looks(
    large: FilesStore, root: Path, clock: ManualClock
) -> None:
    with closing(FilesStore(root, Config(), clock)) as other:
        other.cell_read("any")
        write(large, "T3", title="new")
        assert large._late_board.close(None)  # as if it were killed

        clock.advance(1.0)
        other.cell_read("any")

        assert told(root)["T3"]["title"] == "new"


def test_an_edit_by_hand_counts_at_once_on_a_board_that_lies_behind(
    large: FilesStore, root: Path, clock: ManualClock
) -> None:
    write(large, "T3", state="claimed", owner="eve", lease=clock.wall_ms() + 60_000)
    assert claims(root) == {}
    drop(root / "board/claims.json", {"T3": "worker-1", "T4": "worker-1"})

    clock.advance(1.0)
    large.cell_read("any")

    assert {id: claim["owner"] for id, claim in claims(root).items()} == {"T3": "eve", "T4": "worker-1"}
    assert told(root)["T4"]["owner"] == "worker-1"


def test_the_files_never_tell_of_an_edit_that_is_not_in_the_log(
    store: FilesStore, root: Path, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its version would be one that no cell has, and whoever reads the room anew would take it for an old copy."""
    write(store, "T1")
    content = json.loads((root / "board/status.json").read_text())
    content["tasks"]["T1"]["title"] = "by hand"
    drop(root / "board/status.json", content)
    monkeypatch.setattr(store._log, "append", lambda *_, **__: (_ for _ in ()).throw(OSError(28, "full")))
    clock.advance(1.0)
    with pytest.raises(Exception, match="full|written"):
        store.cell_write("elsewhere", 1)
    monkeypatch.undo()

    with closing(FilesStore(root, Config(), clock)) as other:
        clock.advance(1.0)
        found = other.cell_read("board/task/T1")

    assert found is not None
    assert found.value["title"] == "by hand"


def test_an_edit_that_nobody_has_looked_at_is_not_written_over(store: FilesStore, root: Path) -> None:
    write(store, "T1")
    content = json.loads((root / "board/status.json").read_text())
    content["tasks"]["T9"] = {"title": "by hand"}
    path = root / "board/status.json"
    new = path.with_name(".new")
    new.write_text(json.dumps(content))
    with store.turn.lock, store._log.locked():
        os.replace(new, path)
        store._board.write(store._tables())

    assert "T9" in told(root)
    found = store.cell_read("board/task/T9")
    assert found is not None


def test_what_another_process_wrote_is_not_read(
    large: FilesStore, root: Path, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    with closing(FilesStore(root, Config(), clock)) as other:
        other.cell_read("any")
        read: list[str] = []
        really = other._tree.read

        def read_and_tell(path: str, most_bytes: int) -> bytes:
            read.append(path)
            return really(path, most_bytes)

        monkeypatch.setattr(other._tree, "read", read_and_tell)
        write(large, "T3", title="new")
        large.write_board(now=True)

        clock.advance(1.0)
        other.cell_read("any")

    assert not [path for path in read if path.startswith("board/")]
