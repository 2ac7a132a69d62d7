"""A claim reads as much on a large board as on a small one. How long it takes is measured in bench/micro."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import postroom

LARGE, SMALL = 2000, 20


class Reading:
    """Counts the cells that are read from a store, and their bytes."""

    def __init__(self, store: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        self.cells = self.bytes = 0
        read, scan = store.cell_read, store.cell_scan
        monkeypatch.setattr(store, "cell_read", lambda *args: self._note([read(*args)])[0])
        monkeypatch.setattr(store, "cell_scan", lambda *args: self._note(list(scan(*args))))

    def _note(self, cells: list[Any]) -> list[Any]:
        for cell in cells:
            self.cells += 1
            self.bytes += 0 if cell is None else len(json.dumps(cell.value))
        return cells


@pytest.mark.slow
def test_a_claim_among_two_thousand_reads_no_more_than_twice_what_it_reads_among_twenty(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = {}
    for tasks in (SMALL, LARGE):
        with postroom.open(f"sqlite:{tmp_path}/{tasks}") as room:
            room.board.add_all([{"id": f"T{n:05}"} for n in range(tasks)])
            room.board.claim("ada")  # the first look of a process reads the whole board
            reading = Reading(room.store, monkeypatch)
            for _ in range(SMALL - 1):
                task = room.board.claim("ada")
                assert task is not None
                task.done()
            found[tasks] = (reading.cells, reading.bytes)
            print(f"{SMALL - 1} claims among {tasks}: {reading.cells} cells, {reading.bytes} bytes")
    assert found[SMALL][0] > 0
    assert found[LARGE][0] <= 2 * found[SMALL][0]
    assert found[LARGE][1] <= 2 * found[SMALL][1]
