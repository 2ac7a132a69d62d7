"""The judge of the board: what may become of a task, whose it is, and what its lead must have been told.

Leases are counted here by the steady clock, from what a claim wrote down; the product's own rule is not asked.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, Final, NamedTuple

from postroom.board import task
from postroom.board.actions import BOARD
from postroom.board.records import CLAIMS
from postroom.core.message import Draft

from .broken import Broken
from .process import Around, Process

#: Said to the lead, each once for a claim.
_TOLD: Final = (task.DONE, task.BLOCKED)


class _Work(NamedTuple):
    """A process that works on a task with heartbeats, and what had befallen it when it began."""

    process: Process
    stood_ns: int
    failed: int


class TaskJudge:
    """Sees every write of a task's cell, and every message about a task."""

    def __init__(self, world: Around, is_gone: Callable[[str], bool]) -> None:
        self._world = world
        self._is_gone = is_gone  # of a process by its name: whether others may take it for that
        self._values: dict[str, task.Value] = {}  # as they were written last
        self._versions: dict[str, int] = {}
        self._notes: set[str] = set()  # the tasks with a note of their claim
        self._told: set[tuple[str, str, int]] = set()  # task, what, token: so much the lead was told
        self._works: dict[tuple[str, int], _Work] = {}
        self._aborted: set[tuple[str, int]] = set()  # claims, by the task and their tokens
        self._has_mail = False
        self._reported: set[tuple[str, str | None]] = set()  # agents that wrote to the board, and about which task

    def __bool__(self) -> bool:
        """Whether anybody used the board."""
        return bool(self._values) or self._has_mail

    def cell_written(self, process: Process, name: str, value: object, version: int) -> None:
        """A cell of the board was written."""
        if name.startswith(CLAIMS):
            id = name.removeprefix(CLAIMS)
            (self._notes.discard if value is None else self._notes.add)(id)
        elif name.startswith(task.PREFIX) and isinstance(value, dict):
            self._versions[value["id"]] = version
            self._task_written(process, value)

    def _task_written(self, process: Process, value: task.Value) -> None:
        name, state, token = value["id"], value["state"], value["token"]
        before, self._values[name] = self._values.get(name), value
        self._world.tell(process, f"writes task {name}: {state}, token {token}")
        if before is None:
            return
        if before["state"] == task.DONE:
            raise Broken(f"task {name} was done, and is written as {state}")
        if token < before["token"]:
            raise Broken(f"the token of task {name} went back, from {before['token']} to {token}")
        self._judge_word(process, before, value)
        if state == task.ABORTED:
            self._aborted.add((name, before["token"]))
        if state == task.CLAIMED and token != before["token"]:
            self._judge_claim(before, value)
        if before["state"] == task.CLAIMED and state == task.READY and token == before["token"]:
            self._judge_lapse(before)
        if state == task.DONE:
            self._world.happened("a task was done")

    def _judge_word(self, process: Process, before: task.Value, value: task.Value) -> None:
        """Only its owner says what became of a task, by itself or by mail to the board."""
        state = value["state"]
        said = state in _TOLD or (state == task.READY and value["token"] != before["token"])
        owner = before.get("process")
        if self.has_report(before["owner"], value["id"]):
            return
        if said and before["state"] == task.CLAIMED and owner is not None and owner != process.name:
            raise Broken(f"task {value['id']} was {before['owner']}'s, and {process!r} wrote that it is {state}")

    def _judge_claim(self, before: task.Value, value: task.Value) -> None:
        name = value["id"]
        unmet = [id for id in value["after"] if self._values.get(id, {}).get("state") != task.DONE]
        if unmet:
            raise Broken(f"task {name} was begun, and {', '.join(unmet)} is not done")
        if before["state"] == task.CLAIMED:
            if not self._has_lapsed(before):
                raise Broken(f"task {name} has two owners: {before['owner']} held it when {value['owner']} took it")
            self._judge_lapse(before)
        if before["state"] == task.CLAIMED or before.get("last_owner") is not None:
            self._world.happened("a task was taken over")

    def _judge_lapse(self, before: task.Value) -> None:
        """A claim has ended without a word of its owner: that must not have run, and worked on it, all the time."""
        name = before["id"]
        if not self._has_lapsed(before):
            raise Broken(f"task {name} was taken from {before['owner']} before its lease ended")
        work = self._works.get((name, before["token"]))
        if work is not None and work.process.alive and _state_of(work.process, self._world) == work[1:]:
            raise Broken(f"{work.process!r} lost task {name} while it worked on it, though it ran all the time")

    def _has_lapsed(self, value: task.Value) -> bool:
        process = value.get("process")
        return (process is not None and self._is_gone(process)) or self._lease_is_over(value)

    def _lease_is_over(self, value: task.Value) -> bool:
        until_ns: int = value["steady"][1]
        return self._world.clock.steady_ns() >= until_ns

    def goes_on_from(self, cells: dict[str, tuple[int, Any]], drafts: Iterable[Draft]) -> None:
        """A power cut has ended all processes, and these cells and messages are left."""
        tasks = [
            (version, v) for name, (version, v) in cells.items() if name.startswith(task.PREFIX) and type(v) is dict
        ]
        self._values = {value["id"]: value for _, value in tasks}
        self._versions = {value["id"]: version for version, value in tasks}
        self._notes = {name.removeprefix(CLAIMS) for name in cells if name.startswith(CLAIMS)}
        self._told.clear()
        self._works.clear()
        for draft in drafts:
            self.put(draft)

    # What programs see

    @contextmanager
    def works_on(self, process: Process, id: str, token: int, before: tuple[int, int]) -> Iterator[None]:
        """A process works on a task, and its heartbeats are to keep it. `before`: its troubles before the claim."""
        self._works[id, token] = _Work(process, *before)
        try:
            yield
        finally:
            self._works.pop((id, token), None)  # a power cut forgets it

    def lapsed(self) -> dict[str, int]:
        """The tasks whose lease is over, so that the next claim must find them, with the versions of their cells."""
        return {
            id: self._versions[id]
            for id, value in self._values.items()
            if value["state"] == task.CLAIMED and id in self._notes and self._lease_is_over(value)
        }

    def judge_passed_over(self, process: Process, lapsed: dict[str, int]) -> None:
        """A claim found nothing, though these were to be had when it began."""
        for id, version in lapsed.items():
            if self._versions[id] == version:
                raise Broken(f"{process!r} found no task, and the lease of {id} is over")

    def was_aborted(self, id: str, token: int) -> bool:
        """Whether the work of this claim was aborted; the task may be open again."""
        return (id, token) in self._aborted

    def has_report(self, agent: str | None, id: str) -> bool:
        """Whether this agent has written to the board about this task: the next look at the board applies that."""
        return (agent, id) in self._reported

    # The lead

    def put(self, draft: Draft) -> None:
        """A message was stored: it may be one to a lead, or to the board."""
        if draft.to_agent == BOARD:
            self._has_mail = True
            self._reported.add((draft.from_agent, draft.correlation_id))
        if draft.type in _TOLD and draft.idempotency_key is not None and draft.correlation_id is not None:
            token = int(draft.idempotency_key.split("/")[2])
            self._told.add((draft.correlation_id, draft.type, token))

    def noted(self) -> set[str]:
        """The tasks with a note of their claim."""
        return self._notes & self._values.keys()

    def nothing_is_held_by_the_dead(self, noted: set[str]) -> None:
        """Somebody has looked at the board: of the tasks that had a note before, those of dead owners are free.

        The owner of one without a note died before it was written. The look makes it, and the next one finds the task.
        """
        for name in sorted(noted):
            value = self._values[name]
            process = value.get("process")
            if value["state"] == task.CLAIMED and process is not None and self._world.is_alive(process) is False:
                raise Broken(f"task {name} is still held by {value['owner']}, whose process is dead")

    def leads_were_told(self) -> None:
        """Somebody has looked at the board: every lead knows how its tasks stand."""
        for name, value in self._values.items():
            told: tuple[Any, ...] = (name, value["state"], value["token"])
            if value["lead"] is not None and value["state"] in _TOLD and told not in self._told:
                raise Broken(f"task {name} is {value['state']}, and its lead was never told")


def _state_of(process: Process, world: Around) -> tuple[int, int]:
    return world.stood_ns + process.stood_ns, process.failed
