"""Chance drives the board on two stores, and a plain model says what it must do.

20 runs of 40 steps, 200 in the whole suite, 5,000 in the long one; on NATS 5, and 200 in the long one. Every run prints its seed: POSTROOM_BOARD_SEED repeats it.
"""

from __future__ import annotations

import os
import secrets
import shutil
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, seed, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test
from tests.support.nats_servers import room_name, shared_server

import postroom
from postroom.core.clock import ManualClock
from postroom.room import Room
from postroom.testing import gone_process

STEPS = 40
SEED = int(os.environ.get("POSTROOM_BOARD_SEED", str(secrets.randbelow(2**32))))

IDS = ("a", "b", "c", "d", "e/f")
AGENTS = ("ada", "bob")
ids = st.sampled_from(IDS)
agents = st.sampled_from(AGENTS)
afters = st.lists(st.sampled_from(IDS), max_size=2, unique=True)
leases = st.sampled_from((5, 30, 100))
picks = st.integers(0, 30)


class Model:
    """The rules of a board, as slow and as obvious as they can be. Times are seconds."""

    def __init__(self) -> None:
        self.now = 0.0
        self.tasks: dict[str, dict[str, Any]] = {}

    def unmet(self, task: dict[str, Any]) -> list[str]:
        return [id for id in task["after"] if id not in self.tasks or self.tasks[id]["state"] != "done"]

    def held(self, task: dict[str, Any]) -> bool:
        return task["state"] == "claimed" and not task["dead"] and task["until"] > self.now

    def state(self, task: dict[str, Any]) -> str:
        return "ready" if task["state"] == "claimed" and not self.held(task) else str(task["state"])

    def claimable(self, task: dict[str, Any]) -> bool:
        return self.state(task) == "ready" and not self.unmet(task)

    def circle(self, id: str, after: list[str]) -> bool:
        seen, todo = set(), list(after)
        while todo:
            each = todo.pop()
            if each == id:
                return True
            if each not in seen:
                seen.add(each)
                todo += self.tasks[each]["after"] if each in self.tasks else []
        return False

    def add(self, id: str, after: list[str]) -> str:
        if id in self.tasks:
            return "there" if self.tasks[id]["after"] == after else "taken"
        if self.circle(id, after):
            return "circle"
        self.tasks[id] = {"after": after, "state": "ready", "owner": None, "token": 0, "dead": False, "until": 0.0}
        return "added"

    def claim(self, id: str | None, agent: str, lease_s: float, dead: bool) -> tuple[str, int] | None:
        able = [each for each, task in self.tasks.items() if self.claimable(task) and id in (None, each)]
        if not able:
            return None
        task = self.tasks[able[0]]
        task.update(state="claimed", owner=agent, token=task["token"] + 1, dead=dead, until=self.now + lease_s)
        return able[0], task["token"]

    def mine(self, id: str, token: int) -> bool:
        return (self.tasks[id]["state"], self.tasks[id]["token"]) == ("claimed", token)

    def settle(self, id: str, token: int, word: str, lease_s: float) -> bool:
        task = self.tasks[id]
        if not self.mine(id, token):
            return False
        if word == "extend":
            task.update(until=self.now + lease_s)
        elif word == "release":
            task.update(state="ready", owner=None, token=token + 1)
        else:
            task.update(state=word)
        return True

    def abort(self, id: str) -> bool:
        task = self.tasks[id]
        if self.state(task) not in ("ready", "claimed", "blocked"):
            return False
        task.update(state="aborted", token=task["token"] + 1)
        return True

    def reopen(self, id: str) -> bool:
        task = self.tasks[id]
        if task["state"] not in ("blocked", "aborted"):
            return False
        task.update(state="ready", owner=None, token=task["token"] + 1)
        return True


class BoardMachine(RuleBasedStateMachine):
    """The same steps on the model, on memory and on SQLite."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp(prefix="postroom-board-"))
        self.clock = ManualClock()
        self.model = Model()
        self.rooms: list[Room] = [postroom.open(url, clock=self.clock) for url in ("memory:", self.url())]
        self.holders: list[tuple[str, int, list[postroom.HeldTask]]] = []

    def url(self) -> str:
        """The room beside the one in memory."""
        return f"sqlite:{self.folder}/room"

    def teardown(self) -> None:
        self.holders.clear()
        for room in self.rooms:
            room.close()
        shutil.rmtree(self.folder)

    @rule(id=ids, after=afters)
    def add(self, id: str, after: list[str]) -> None:
        expected = self.model.add(id, after)
        for room in self.rooms:
            try:
                room.board.add(id, after=after)
                found = "added"
            except postroom.DependencyCycle as error:
                found = "circle" if error.cycle[0] == error.cycle[-1] == id else str(error)
            except postroom.InvalidMessage:
                found = "taken"
            assert found == expected or (found, expected) == ("added", "there")

    @rule(id=st.one_of(st.none(), ids), agent=agents, lease_s=leases, dead=st.booleans())
    def claim(self, id: str | None, agent: str, lease_s: float, dead: bool) -> None:
        if id is not None and id not in self.model.tasks:
            return
        own = id is not None and self.model.held(self.model.tasks[id]) and self.model.tasks[id]["owner"] == agent
        if own:
            return  # a claim that belongs to the agent may be asked for again; tests/board/test_board.py says so
        expected = self.model.claim(id, agent, lease_s, dead)
        process = gone_process() if dead else None
        found = [room.board.claim(agent, id, lease_s=lease_s, transient=True, process=process) for room in self.rooms]
        assert [held and (held.id, held.token) for held in found] == [expected] * len(self.rooms)
        if expected is not None:
            self.holders.append((*expected, [held for held in found if held is not None]))

    @rule(pick=picks, word=st.sampled_from(("done", "blocked", "release", "extend")), lease_s=leases)
    def settle(self, pick: int, word: str, lease_s: float) -> None:
        if not self.holders:
            return
        id, token, handles = self.holders[pick % len(self.holders)]
        arguments = {"done": (pick,), "blocked": ("why",), "release": (), "extend": (lease_s,)}[word]
        settled = [held.settled for held in handles]
        found = [getattr(held, word)(*arguments) for held in handles]
        if word != "extend" and settled[0] is not None:
            assert found == [False] * len(found)
        else:
            assert found == [self.model.settle(id, token, word, lease_s)] * len(found)

    @rule(id=ids)
    def abort(self, id: str) -> None:
        if id in self.model.tasks:
            expected = self.model.abort(id)
            assert [room.board.abort(id) for room in self.rooms] == [expected] * len(self.rooms)

    @rule(id=ids)
    def reopen(self, id: str) -> None:
        if id in self.model.tasks:
            expected = self.model.reopen(id)
            assert [room.board.reopen(id) for room in self.rooms] == [expected] * len(self.rooms)

    @rule(seconds=st.sampled_from((0.5, 3, 20, 61)))
    def pass_time(self, seconds: float) -> None:
        self.model.now += seconds
        self.clock.advance(seconds)

    @rule(prefix=st.sampled_from(("board-ready/", "board-claim/", "board-after/")))
    def lose_what_is_derived(self, prefix: str) -> None:
        """As after a crash at the worst of moments. Time passes until somebody mends it."""
        for room in self.rooms:
            for cell in room.store.cell_scan(prefix):
                room.store.cell_write(cell.name, None)
        self.pass_time(61)
        for room in self.rooms:
            room.board.tasks()

    @invariant()
    def shows_what_the_model_says(self) -> None:
        expected = {
            id: (self.model.state(task), tuple(self.model.unmet(task)), task["token"])
            for id, task in self.model.tasks.items()
        }
        for room in self.rooms:
            shown = {task.id: (task.state, task.unmet, task.token) for task in room.board.tasks()}
            assert shown == expected


class BoardMachineOnNats(BoardMachine):
    """The same steps on the model, on memory and on a real NATS server."""

    def url(self) -> str:
        return f"nats://{shared_server().address}/{room_name()}"


@pytest.mark.parametrize(
    "runs", [10, pytest.param(40, marks=pytest.mark.slow), pytest.param(5000, marks=pytest.mark.long)]
)
def test_the_board_does_what_the_model_says(runs: int) -> None:
    drive(BoardMachine, runs)


@pytest.mark.slow
@pytest.mark.parametrize("runs", [3, pytest.param(200, marks=pytest.mark.long)])
def test_a_board_on_nats_does_what_the_model_says(runs: int) -> None:
    drive(BoardMachineOnNats, runs)


def drive(machine: type[BoardMachine], runs: int) -> None:
    print(f"POSTROOM_BOARD_SEED={SEED}")
    run_state_machine_as_test(
        seed(SEED)(machine),
        settings=settings(
            max_examples=runs,
            stateful_step_count=STEPS,
            deadline=None,
            database=None,
            print_blob=True,
            suppress_health_check=list(HealthCheck),
        ),
    )
