"""A program forks while its threads are in the middle of whatever they do in a room.

CPython takes the other threads' objects away in the child, and SQLite's locks are as they were at the moment of the fork: closing a
connection there would wait for ever. The invariant: every child ends, none of them may use the room, nothing is closed or lost.
"""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from .support import PATIENCE_S, Look, count, environment, program

WAYS = ["leave", "end", "use", "multiprocessing"]


def storm(tmp_path: Path, way: str, forks: int) -> None:
    journal = tmp_path / "journal"
    command = program("forking", f"sqlite:{tmp_path}/room?max_deliveries=1000", str(forks), way, str(journal))
    done = subprocess.run(command, env=environment(), capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    lines = [line.split() for line in journal.read_text().splitlines()]
    (end,) = [line for line in lines if line[0] == "D"]
    assert end[1] == "0", "children that hang, or that could use the room"
    assert int(end[2]) < 60, "connections of threads that ended are left over"
    sent = {line[1] for line in lines if line[0] == "S"}
    with Look(tmp_path / "room") as look:
        assert look.damage() == "ok"
        assert sent
        assert sent - look.ids() == set()


@pytest.mark.slow
@pytest.mark.parametrize("way", WAYS)
def test_a_fork_beside_threads_that_use_a_room_neither_hangs_nor_harms(tmp_path: Path, way: str) -> None:
    storm(tmp_path, way, count("FORKS", 20))


@pytest.mark.long
@pytest.mark.parametrize("way", WAYS)
def test_very_many_forks_beside_threads_that_use_a_room_neither_hang_nor_harm(tmp_path: Path, way: str) -> None:
    """One fork in a hundred hung before connections were held on to."""
    storm(tmp_path, way, count("FORKS_LONG", 2000))
