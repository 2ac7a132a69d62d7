"""One process, one step, one SIGKILL at an exact place.

The story. Every step that changes a room (a send, a claim, an ack, an answer, …) is taken by a process that is killed
at each named test point on its way, and then, more finely, in the middle of each single call by which SQLite touches
the disk. Another process then opens the room and goes on.

The invariant. After the kill the room is, row by row, the room before the step or the room after it; after, when the
call had returned. The other process can send and receive everything that is there. No test point of the source is left
out: a new one that no step comes by fails this file.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from .programs import steps
from .support import SOME_AND_ALL, SOURCES, Look, Nursery, Rows, copy_room, damage, journal, rows_of


def test_points() -> list[str]:
    """The named test points of the source."""
    points: set[str] = set()
    for path in (SOURCES / "postroom").rglob("*.py"):
        text = path.read_text(encoding="utf-8")
        calls = len(re.findall(r"crashpoints\.reached\(", text))
        named = re.findall(r"crashpoints\.reached\(\"([^\"]+)\"\)", text)
        assert calls == len(named), f"{path}: a test point must be named by a plain text"
        points.update(named)
    assert points, "no test point was found in the sources"
    return sorted(points)


test_points.__test__ = False  # type: ignore[attr-defined]
#: For the others see test_files_kills.py and test_upgrades.py.
POINTS = [point for point in test_points() if not point.startswith(("files.", "upgrade."))]

QUICK = ("send", "send a batch", "claim", "ack", "answer", "retry", "dead", "expire", "release of the gone")
NAMES = [name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in steps.STEPS]


class Stage(NamedTuple):
    """A room made ready for one step, how it is before and after, and the test points that the step comes by."""

    name: str
    room: Path
    known: steps.Known
    before: Rows
    after: Rows
    passed: list[str]


@pytest.fixture(scope="module")
def module_nursery(tmp_path_factory: pytest.TempPathFactory) -> Any:
    nursery = Nursery(tmp_path_factory.mktemp("nursery") / "children.log", "steps")
    yield nursery
    nursery.close()


@pytest.fixture(scope="module")
def stages(tmp_path_factory: pytest.TempPathFactory, module_nursery: Nursery) -> Callable[[str], Stage]:
    """Stages by the step's name, each made once."""
    made: dict[str, Stage] = {}
    place = tmp_path_factory.mktemp("stages")

    def stage(name: str) -> Stage:
        if name not in made:
            room = place / name.replace(" ", "-")
            known = steps.make_ready(name, room)
            undisturbed = copy_room(room, room.with_suffix(".after"))
            passed = room.with_suffix(".passed")
            trace = module_nursery.fork(
                "steps.trace", folder=str(undisturbed), name=name, known=known, points=POINTS, out=str(passed)
            )
            module_nursery.finish(trace)
            made[name] = Stage(name, room, known, rows_of(room), rows_of(undisturbed), json.loads(passed.read_text()))
        return made[name]

    return stage


def check_after_the_kill(stage: Stage, room: Path, notes: Path, nursery: Nursery) -> str:
    """The room is as before the step or as after it, and others can go on. Returns which."""
    assert damage(room) == "ok"
    now = rows_of(room)
    returned = [line.event for line in journal.read(notes)] == ["returned"]
    assert now in (stage.before, stage.after), f"a half-done step: {now}"
    if returned:
        assert now == stage.after, "the call returned, and what it did is gone"
    go_on(nursery, room, notes, stage.name)
    return "after" if now == stage.after else "before"


def go_on(nursery: Nursery, room: Path, notes: Path, name: str | None) -> None:
    nursery.finish(nursery.fork("steps.go_on", folder=str(room), name=name, journal=str(notes)))
    [[sent]] = journal.read(notes)[-1].details
    with Look(room) as look:
        assert look.damage() == "ok"
        assert look.value("SELECT status FROM messages WHERE id = ?", (sent,)) == "done"
        assert look.rows("SELECT id, state FROM messages WHERE status IN ('pending', 'processing')") == []


@pytest.mark.parametrize("name", NAMES)
def test_a_kill_at_a_test_point_leaves_the_step_undone_or_done(
    name: str, stages: Callable[[str], Stage], module_nursery: Nursery, tmp_path: Path
) -> None:
    stage = stages(name)
    for index, point in enumerate(stage.passed):
        room, notes = copy_room(stage.room, tmp_path / f"room{index}"), tmp_path / f"journal{index}"
        pid = module_nursery.fork(
            "steps.die_at_point",
            folder=str(room),
            name=name,
            known=stage.known,
            point=point,
            times_passed=stage.passed[:index].count(point),
            journal=str(notes),
        )
        assert module_nursery.wait(pid) == -9, module_nursery.log()
        check_after_the_kill(stage, room, notes, module_nursery)


@pytest.mark.slow
@SOME_AND_ALL
@pytest.mark.parametrize("name", steps.STEPS)
def test_a_kill_in_any_call_to_the_disk_leaves_the_step_undone_or_done(
    name: str, every: int, stages: Callable[[str], Stage], module_nursery: Nursery, tmp_path: Path
) -> None:
    stage = stages(name)
    seen: list[str] = []
    for at in range(1, 1000, every):
        room, notes = copy_room(stage.room, tmp_path / f"room{at}"), tmp_path / f"journal{at}"
        pid = module_nursery.fork(
            "steps.die_at_call", folder=str(room), name=name, known=stage.known, at=at, journal=str(notes)
        )
        status = module_nursery.wait(pid)
        assert status in (0, -9), module_nursery.log()
        seen.append(check_after_the_kill(stage, room, notes, module_nursery))
        if status == 0:
            break
    assert seen[0] == "before" and seen[-1] == "after"
    assert seen == sorted(seen, reverse=True), f"the step was undone after it had been done: {seen}"


@pytest.mark.slow
@SOME_AND_ALL
def test_a_kill_while_the_last_one_closes_the_room_undoes_nothing(
    every: int, stages: Callable[[str], Stage], module_nursery: Nursery, tmp_path: Path
) -> None:
    """The last one out folds the log into the file and deletes it."""
    stage = stages("send a batch")
    for at in range(1, 1000, every):
        room, notes = copy_room(stage.room, tmp_path / f"room{at}"), tmp_path / f"journal{at}"
        pid = module_nursery.fork(
            "steps.die_while_closing", folder=str(room), name=stage.name, known=stage.known, at=at, journal=str(notes)
        )
        status = module_nursery.wait(pid)
        assert check_after_the_kill(stage, room, notes, module_nursery) == "after"
        if status == 0:
            break
    assert at > 5, "closing a room takes more calls than that"


@pytest.mark.slow
@SOME_AND_ALL
def test_a_kill_while_a_room_is_made_leaves_a_room_that_can_be_opened(
    every: int, module_nursery: Nursery, tmp_path: Path
) -> None:
    for at in range(1, 1000, every):
        room, notes = tmp_path / f"room{at}", tmp_path / f"journal{at}"
        pid = module_nursery.fork("steps.die_while_opening", folder=str(room), at=at, journal=str(notes))
        status = module_nursery.wait(pid)
        go_on(module_nursery, room, notes, None)
        if status == 0:
            break
    assert at > 20, "making a room takes more calls than that"


def test_no_test_point_is_left_out(stages: Callable[[str], Stage]) -> None:
    passed = {point for name in steps.STEPS for point in stages(name).passed}
    assert set(POINTS) - passed == set()


def test_every_step_changes_the_room(stages: Callable[[str], Stage]) -> None:
    """A step that changes nothing would pass every check here."""
    assert [name for name in steps.STEPS if stages(name).before == stages(name).after] == []
