"""Three different programs work on one board, and two of them are killed in the middle: each task is done once."""

from __future__ import annotations

import re
import threading
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest

from .conftest import World
from .model_server import Call, ModelServer, Seen, mail_agent, shell, tool_named
from .test_claude import Claude
from .test_codex import Codex
from .test_qwen import Qwen

TASKS = 20
#: A claim whose program was killed ends after this time. A living one says that it goes on, far more often.
CLAIM_S = 40
PROGRAMS: dict[str, type[Any]] = {"claude": Claude, "codex": Codex, "qwen": Qwen}
KILLED = ("codex", "qwen")


class Workers:
    """The model of all: told of the board by mail, it claims a task, works on it, reports it, until none comes.

    Until `may_end` is set, each conversation ends one task and stays at work on its second: so each program gets some,
    however long the others take to start, and is in the middle of a task when it is killed.
    """

    def __init__(self) -> None:
        self.may_end = threading.Event()

    def __call__(self, seen: Seen) -> Call | str:
        calls = [turn.text for turn in seen.turns if turn.role == "call"]
        results = [turn.text.replace("\\", "") for turn in seen.turns if turn.role == "result"]
        last = calls[-1] if calls else ""
        if not any("| BOARD" in result for result in results) or "inbox" in last:
            return mail_agent(seen)
        if '"claim"' in last:
            task = re.search(r'"id":\s*"(T\d+)"', results[-1])
            return self._work(seen, task[1]) if task else "ok"
        if '"extend"' in last:
            return self._work(seen, re.findall(r'"(T\d+)"', last)[-1])
        board = tool_named(seen, "board")
        if worked := re.findall(r"worked on (T\d+),", last):
            if self.may_end.is_set() or not any('"done"' in call for call in calls):
                return Call(board, {"action": "done", "id": worked[-1], "text": "did it"})
            return Call(board, {"action": "extend", "id": worked[-1], "for_s": CLAIM_S})
        return Call(board, {"action": "claim", "for_s": CLAIM_S, "wait_s": CLAIM_S + 20})

    @staticmethod
    def _work(seen: Seen, id: str) -> Call:
        return shell(seen, f"echo begun; sleep 1; echo worked on {id}, part {len(seen.turns)}.")


@pytest.fixture
def workers() -> Workers:
    return Workers()


@pytest.fixture
def world(tmp_path: Path, workers: Workers) -> Iterator[World]:
    with ModelServer(workers).running() as model:
        world = World(tmp_path, model)
        yield world
        world.room.close()


@pytest.mark.long
def test_each_of_twenty_tasks_is_done_once_though_two_of_three_programs_are_killed(
    world: World, workers: Workers
) -> None:
    board = world.room.board
    for number in range(1, TASKS + 1):
        board.add(f"T{number}", title=f"task {number}", lead="ada")
    programs = {name: made(world.in_another_home(name)) for name, made in PROGRAMS.items()}
    try:
        for name, program in programs.items():
            program.start()
            until_in_the_middle(world, name)
        lost = {task.id: task.token for task in board.tasks() if task.state == "claimed" and task.owner in KILLED}
        for name in KILLED:
            programs[name].kill()
        print("killed in the middle of:", *lost)
        for name in KILLED:
            programs[name].start()
            until_in_the_middle(world, name, lost)
        workers.may_end.set()
        world.until(lambda: all(task.state == "done" for task in board.tasks()), 120, "the last task")
    finally:
        for program in programs.values():
            program.kill()
        programs["codex"].clean()

    tasks = board.tasks()
    print("done by:", Counter(task.owner for task in tasks))
    assert len(lost) == len(KILLED)
    assert {task.owner for task in tasks} == set(PROGRAMS)
    # A token counts the claims: what the killed held was given back and taken once more, all else was claimed once.
    assert {task.id: task.token for task in tasks} == {task.id: 1 + (task.id in lost) for task in tasks}
    reports = [message for message in world.room.peek(agent="ada", limit=200) if message.type == "done"]
    assert Counter(each.correlation_id for each in reports) == {f"T{number}": 1 for number in range(1, TASKS + 1)}


def until_in_the_middle(world: World, name: str, lost: Mapping[str, int] = MappingProxyType({})) -> None:
    """Tell that agent of the board. After: since then it has ended a task, and is in the middle of another."""
    board = world.room.board
    ended = {task.id for task in board.tasks() if task.state == "done"}
    world.until_acked([world.send(name, "BOARD")], 90)

    def is_there() -> bool:
        mine = [task for task in board.tasks() if task.owner == name and task.id not in ended]
        states = {task.state for task in mine if task.token != lost.get(task.id)}
        return {"done", "claimed"} <= states

    world.until(is_there, 90, f"the work of {name}")
