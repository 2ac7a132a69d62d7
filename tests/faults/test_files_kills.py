"""Kills in a room of files: of senders, claimers, board writers, droppers and housekeepers, and at exact places.

The story. Each child works for a moment and is killed in the middle of whatever it does. Then single steps are taken by
a process that is killed at each test point, and before each call by which the step changes a file.

The invariant. A send that returned is kept, and a batch is kept whole or not at all; a file that was dropped is a
message. Nothing is held by two living owners; every token is given once; settling counts once, and what counted stands.
The board's files are valid JSON at any moment and lose no addition. In the end everything can be received, and every
file lies where the tables say.
"""

from __future__ import annotations

import json
import random
import shutil
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from tests.faults.programs.files import open_files
from tests.faults.programs.nursery import steady_ns

from postroom.core.message import Message
from postroom.core.states import State
from postroom.stores.contract import Query

from .programs import files
from .support import SOME_AND_ALL, Nursery, count, journal, seed, worked_s
from .test_crash_points import test_points
from .test_kill_storm import Killed, held_by_two, kills_of

ROLES = ("sender", "receiver", "board_writer", "dropper", "receiver", "board_writer", "sender", "housekeeper")
AT_ONCE = 6
#: So much processor time, or so long, a child has before it is killed, by chance up to this.
WORK_S = 0.25
LIFE_S = 4.0


@pytest.fixture
def files_nursery(tmp_path: Path) -> Iterator[Nursery]:
    nursery = Nursery(tmp_path / "children.log", "journal", "files")
    yield nursery
    nursery.close()


def storm(nursery: Nursery, folder: Path, notes: Path, kills: int) -> Killed:
    """Kill that many children, and those that are left in the end."""
    chance = random.Random(seed())
    alive: dict[int, tuple[float, int]] = {}  # pid -> how long it works, and until when it lives at most
    killed: Killed = defaultdict(list)
    born = 0
    while born - len(alive) < kills:
        while len(alive) < AT_ONCE:
            role = ROLES[born % len(ROLES)]
            pid = nursery.fork(f"files.{role}", folder=str(folder), journal=str(notes), seed=seed() + born)
            alive[pid] = (chance.random() * WORK_S, steady_ns() + int(chance.random() * LIFE_S * 1e9))
            born += 1
        time.sleep(0.005)
        now_ns = steady_ns()
        victims = [pid for pid, (work_s, until_ns) in alive.items() if now_ns > until_ns or worked_s(pid) > work_s]
        if victims and chance.random() < 0.1:
            victims = list(alive)
        failed = nursery.ended(victims)
        assert not failed, f"children ended by themselves ({failed}):\n{nursery.log()}"
        at_ns = nursery.kill(*victims) if victims else 0
        for pid in victims:
            killed[pid].append(at_ns)
            del alive[pid]
    nursery.kill(*alive)
    return killed


class BoardReader(threading.Thread):
    """Reads the board's files all the time, as any program does, and notes what was not valid."""

    def __init__(self, folder: Path) -> None:
        super().__init__(daemon=True)
        self._folder = folder
        self._over = threading.Event()
        self.read = 0
        self.faults: list[str] = []

    def run(self) -> None:
        while not self._over.wait(0.002):
            for name in ("status", "claims"):
                try:
                    json.loads((self._folder / f"board/{name}.json").read_bytes())
                    self.read += 1
                except FileNotFoundError:
                    assert self.read == 0
                except ValueError as error:
                    self.faults.append(f"{name}: {error}")

    def finish(self) -> None:
        self._over.set()
        self.join()


def all_messages(folder: Path) -> list[Message]:
    with closing(open_files(folder)) as store:
        return store.find(Query(limit=10_000_000)).messages


def check_storm(folder: Path, notes: Path, killed: Killed) -> str:
    """Everything that must hold after the storm. Returns figures about it."""
    lines = journal.read(notes)
    messages = all_messages(folder)
    states = {message.id: message.exact_state for message in messages}
    told = {id for line in lines if line.event == "sent" for id in line.details[0]}
    told |= {id for line in lines if line.event == "settled" for id in line.details[4]}
    assert told - set(states) == set(), "a send that returned was lost"
    batches = Counter(m.payload["batch"] for m in messages if "batch" in m.payload)
    sizes = {m.payload["batch"]: m.payload["of"] for m in messages if "batch" in m.payload}
    assert {batch: n for batch, n in batches.items() if n != sizes[batch]} == {}, "half a batch"
    drops = Counter(m.payload["drop"] for m in messages if "drop" in m.payload)
    dropped = {line.details[0] for line in lines if line.event == "dropped"}
    assert dropped - set(drops) == set(), "a file that was dropped was lost"
    assert [drop for drop, times in drops.items() if times > 1] == [], "a file became two messages"
    assert held_by_two(lines, killed) == []
    counted = [line for line in lines if line.event == "settled" and line.details[3]]
    tokens = Counter((line.details[0], line.details[1]) for line in counted)
    assert [ticket for ticket, times in tokens.items() if times > 1] == []
    finished = {line.details[0]: line.details[2] for line in counted if line.details[2] != "retry"}
    assert {id: states[id] for id, outcome in finished.items() if states[id] is not State[outcome.upper()]} == {}
    answers = Counter(m.answer_to for m in messages if m.answer_to is not None)
    answered = Counter(m.id for m in messages if m.exact_state is State.ANSWERED)
    assert answers == answered, "an answer without its question, or a question without its answer"
    assert [m.id for m in messages if not m.payload] == [], "a message without its file"
    check_board(folder, lines, killed)
    return f"{len(messages)} messages kept, {len(finished)} finished, {len(dropped)} dropped"


def check_board(folder: Path, lines: list[journal.Line], killed: Killed) -> None:
    """No addition to a task is lost, and the file says what the cells say."""
    tasks = json.loads((folder / "board/status.json").read_text())["tasks"]
    with closing(open_files(folder)) as store:
        assert {id: task["n"] for id, task in tasks.items()} == {
            cell.value["id"]: cell.value["n"] for cell in store.cell_scan("board/task/")
        }
    for name in {line.details[0] for line in lines if line.event == "counted"}:
        additions = [line.details[1] for line in lines if line.event == "counted" and line.details[0] == name]
        assert len(set(additions)) == len(additions)
        assert max(additions) <= tasks[name]["n"] <= len(additions) + kills_of(killed)


def check_tree(folder: Path) -> None:
    """After all is received: every file lies where finished messages lie, each once, and nothing is left over."""
    done = [path for path in (folder / ".postroom").rglob("*.json") if path.parent.parent.name == "done"]
    assert len(done) == len(all_messages(folder))
    assert list((folder / "inbox").rglob("*.json")) == []
    for place in ("claimed", "later", "held", "dead", "rejected", "new"):
        assert [path for path in (folder / ".postroom" / place).rglob("*") if path.is_file()] == [], place


def run_storm(nursery: Nursery, folder: Path, kills: int, figure: Callable[[str], None]) -> None:
    notes = folder.parent / "journal"
    open_files(folder).close()
    reader = BoardReader(folder)
    reader.start()
    killed = storm(nursery, folder, notes, kills)
    told = check_storm(folder, notes, killed)
    nursery.finish(nursery.fork("files.drain", folder=str(folder), journal=str(notes)))
    reader.finish()
    check_storm(folder, notes, killed)
    open_states = {m.exact_state for m in all_messages(folder)} - {State.ACKED, State.ANSWERED}
    assert open_states == set(), "something could not be received after the storm"
    check_tree(folder)
    assert reader.faults == []
    assert reader.read > 20
    figure(f"files kill storm: {kills_of(killed)} kills; {told}; the board read {reader.read} times, always valid")


@pytest.mark.slow
def test_no_kill_loses_a_message_of_a_files_room(
    files_nursery: Nursery, folder: Path, figure: Callable[[str], None]
) -> None:
    run_storm(files_nursery, folder, count("FILES_KILLS", 12), figure)


@pytest.mark.long
def test_five_hundred_kills_in_a_files_room(
    files_nursery: Nursery, folder: Path, figure: Callable[[str], None]
) -> None:
    run_storm(files_nursery, folder, count("FILES_KILLS_LONG", 500), figure)


# One step, one kill

LATER_STEPS = [name for name in files.STEPS if name != "send a batch"]
POINTS = [point for point in test_points() if point.startswith("files.")]


def figures_of(folder: Path) -> dict[str, Any]:
    """What a step may change: messages without times, cells, and the board's files."""
    with closing(open_files(folder)) as store:
        messages = [
            (m.payload, m.to_agent, m.exact_state, m.delivery_count, m.type) for m in store.find(Query()).messages
        ]
        cells = [(cell.name, cell.value) for cell in store.cell_scan("")]
    status = json.loads((folder / "board/status.json").read_text())["tasks"]
    return {"messages": messages, "cells": cells, "board": list(status)}


def lies_right(folder: Path) -> None:
    """Every message's file is in the one place that its state says.

    What a dead process held is ready for everybody who looks, and lies where it was until somebody writes.
    """

    def files_in(place: str) -> int:
        return sum(1 for path in (folder / place).rglob("*.json"))

    for swept in (False, True):
        states = Counter(m.exact_state for m in all_messages(folder))
        assert files_in("inbox") + files_in(".postroom/claimed") == states[State.READY] + states[State.CLAIMED]
        assert files_in(".postroom/held") == states[State.AWAITED]
        if swept:
            assert files_in("inbox") == states[State.READY]
        else:
            with closing(open_files(folder)) as store:
                store.sweep()


def check_after_the_kill(room: Path, before: Any, after: Any, notes: Path) -> None:
    now = figures_of(room)
    assert now in (before, after), f"a half-done step: {now}"
    if [line.event for line in journal.read(notes)] == ["returned"]:
        assert now == after, "the call returned, and what it did is gone"
    lies_right(room)
    assert list((room / ".postroom/new").iterdir()) == []
    assert figures_of(room)["messages"], "the room is empty"


@pytest.mark.parametrize(
    "name", ["send a batch", *(pytest.param(name, marks=pytest.mark.slow) for name in LATER_STEPS)]
)
def test_a_kill_at_a_test_point_of_a_files_room_leaves_the_step_undone_or_done(
    name: str, files_nursery: Nursery, tmp_path: Path
) -> None:
    ready = tmp_path / "ready"
    held = files.make_ready(ready)
    before, after = figures_of(ready), after_step(files_nursery, ready, name, held, tmp_path)
    killed = 0
    for point in POINTS:
        for times in range(3):
            room, notes = tmp_path / f"{point}-{times}", tmp_path / f"journal-{point}-{times}"
            shutil.copytree(ready, room)
            pid = files_nursery.fork(
                "files.die_at",
                folder=str(room),
                name=name,
                held=held,
                point=point,
                times_passed=times,
                journal=str(notes),
            )
            status = files_nursery.wait(pid)
            assert status in (0, -9), files_nursery.log()
            killed += status == -9
            check_after_the_kill(room, before, after, notes)
            if status == 0:
                break
    assert killed >= 2


def after_step(nursery: Nursery, ready: Path, name: str, held: list[Any], tmp_path: Path) -> dict[str, Any]:
    room = tmp_path / "after"
    shutil.copytree(ready, room)
    arguments = {"folder": str(room), "name": name, "held": held, "journal": str(tmp_path / "journal-after")}
    nursery.finish(nursery.fork("files.die_at", point="nowhere", times_passed=0, **arguments))
    return figures_of(room)


@pytest.mark.slow
@SOME_AND_ALL
@pytest.mark.parametrize("name", files.STEPS)
def test_a_kill_before_any_change_of_a_file_leaves_the_step_undone_or_done(
    name: str, every: int, files_nursery: Nursery, tmp_path: Path
) -> None:
    ready = tmp_path / "ready"
    held = files.make_ready(ready)
    before, after = figures_of(ready), after_step(files_nursery, ready, name, held, tmp_path)
    for at in range(1, 300, every):
        room, notes = tmp_path / f"room{at}", tmp_path / f"journal{at}"
        shutil.copytree(ready, room)
        pid = files_nursery.fork("files.die_in_call", folder=str(room), name=name, held=held, at=at, journal=str(notes))
        status = files_nursery.wait(pid)
        assert status in (0, -9), files_nursery.log()
        check_after_the_kill(room, before, after, notes)
        shutil.rmtree(room)
        if status == 0:
            break
    assert at > 5, "a step takes more calls than that"
