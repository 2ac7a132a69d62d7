"""The first opening of a room, which makes its folder and the user's trust in it.

The story. Many processes open a room that is not there yet, without an address, by an address or by `postroom init`. One
process is killed before each single touch of the disk by its first opening.

The invariant. Nobody is told that the room is not allowed: a folder that this user makes is trusted before it can be
found. After a kill the next opening makes the room, and does not take what is missing of it for lost.
"""

from __future__ import annotations

import fcntl
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from .support import SOME_AND_ALL, Nursery

#: Without an address the folder is never there: one that this user did not make is not taken over by a search.
OPENINGS = [(None, False), ("sqlite:shop", False), ("sqlite:shop", True), ("files:shop", False)]


@pytest.fixture
def nursery(tmp_path: Path) -> Iterator[Nursery]:
    """One that has imported Postroom whole."""
    nursery = Nursery(tmp_path / "children.log", "first")
    yield nursery
    nursery.close()


def a_project(tmp_path: Path, number: int) -> Path:
    project = tmp_path / str(number) / "project"
    project.mkdir(parents=True)
    return project


@pytest.mark.slow
@pytest.mark.parametrize(
    ("tries", "processes"), [pytest.param(1, 12, id="some"), pytest.param(50, 16, id="all", marks=pytest.mark.long)]
)
@pytest.mark.parametrize(
    ("role", "address"), [("opener", None), ("opener", "sqlite:shop"), ("opener", "files:."), ("initializer", None)]
)
def test_of_many_that_open_a_new_room_at_once_all_are_let_in(
    nursery: Nursery, tmp_path: Path, role: str, address: str | None, tries: int, processes: int
) -> None:
    gate = tmp_path / "gate"
    gate.touch()
    for attempt in range(tries):
        project = a_project(tmp_path, attempt)
        with gate.open() as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            pids = [
                nursery.fork(f"first.{role}", project=str(project), gate=str(gate), address=address, number=number)
                for number in range(processes)
            ]
        nursery.finish(*pids)


@pytest.mark.slow
@SOME_AND_ALL
@pytest.mark.parametrize(("address", "there"), OPENINGS)
def test_after_a_kill_at_any_moment_of_a_first_opening_the_next_one_makes_the_room(
    nursery: Nursery, tmp_path: Path, address: str | None, there: bool, every: int
) -> None:
    killed, status = 0, -signal.SIGKILL
    while status == -signal.SIGKILL:
        project = a_project(tmp_path, killed)
        if there:
            (project / "shop").mkdir()
        given = {"project": str(project), "address": address}
        status = nursery.wait(nursery.fork("first.victim", touches=killed, **given))
        nursery.finish(nursery.fork("first.next_one", **given))
        killed += every
    assert status == 0, nursery.log()
    assert killed > 10
