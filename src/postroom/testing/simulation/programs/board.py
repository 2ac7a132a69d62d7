"""Tasks of the board: leads that add them, owners that are late, and owners that die between two writes."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing, suppress
from itertools import islice
from typing import Final

from postroom.board.held_task import HeldTask
from postroom.errors import InvalidMessage, UnknownTask
from postroom.testing.simulation.broken import Broken
from postroom.testing.simulation.plans import LEAD, TASKS

from .mail import LONG_S
from .program import Program, generator

#: A claim without heartbeats lasts so long, and its owner works for longer.
LEASE_S: Final = 2.0
#: A claim that heartbeats keep: its owner works for longer than this.
_HELD_S: Final = 3.0


def _add(program: Program, task: str) -> None:
    program.agent()
    program.board.add(task, after=TASKS[task], lead=LEAD)


def _task(program: Program, timeout_s: float, end: str) -> None:
    before = program.troubles()  # a lease counts from before it is written
    task = _claimed(program, timeout_s, lease_s=_HELD_S if end == "hold" else None)
    if task is not None:
        with program.judge.tasks.works_on(program.process, task.id, task.token, before):
            _end_task(program, task, end, before)


def _claimed(
    program: Program, timeout_s: float, *, lease_s: float | None = None, heartbeat: bool = True
) -> HeldTask | None:
    name, judge = program.agent().name, program.judge
    lapsed, troubles = judge.tasks.lapsed(), program.troubles()
    task = program.board.claim(name, timeout_s=timeout_s, lease_s=lease_s, heartbeat=heartbeat)
    if task is None and troubles == program.troubles():
        judge.tasks.judge_passed_over(program.process, lapsed)
    if task is not None:
        program.tell(f"has task {task.id}, token {task.token}")
    return task


def _task_lease(program: Program, hold_s: float) -> None:
    task = _claimed(program, 3.0, lease_s=LEASE_S, heartbeat=False)
    if task is not None:
        program.clock.sleep(hold_s)
        if not task.done():
            program.world.happened("a late word on a task was refused")


def _task_late(program: Program, late_s: float, end: str, dies_after: int | None) -> None:
    """Be late with a task: by then it may have been let go, and is claimed back. Perhaps die between two writes."""
    task = _claimed(program, 3.0, lease_s=LEASE_S, heartbeat=False)
    if task is None:
        return
    program.clock.sleep(LEASE_S + late_s)
    program.process.dies_after = None if program.world.is_calm() else dies_after
    counted = task.blocked("simulated") if end == "blocked" else task.done({"by": program.process.label})
    program.process.dies_after = None
    program.world.happened("a late word on a task counted" if counted else "a late word on a task was refused")


def _end_task(program: Program, task: HeldTask, end: str, before: tuple[int, int]) -> None:
    if end.startswith("hold"):
        program.clock.sleep(LONG_S if end == "hold long" else _HELD_S + 2.0)
    if end == "die":
        program.world.die(program.process)
    if end in ("drop", "die"):
        return
    if end == "release":
        task.release("simulated")
    elif end == "blocked":
        task.blocked("simulated")
    elif not task.done({"by": program.process.label}):
        program.world.happened("a late word on a task was refused")
        judge = program.judge.tasks
        by_others = judge.has_report(task.agent, task.id) or judge.was_aborted(task.id, task.token)
        if not by_others and before == program.troubles():
            raise Broken(f"{program.process!r} lost task {task.id} while it worked on it, though it ran all the time")


def _work_off(program: Program, timeout_s: float) -> None:
    name = program.agent().name
    with closing(generator(program.board.work(name, timeout_s=timeout_s))) as tasks:
        for task in islice(tasks, 3):
            program.tell(f"has task {task.id} in its loop")


def _look_at_tasks(program: Program) -> None:
    """A look releases what nobody holds any more, and finishes what the dead have begun."""
    program.agent()
    program.board.tasks()


def _abort(program: Program, task: str) -> None:
    program.agent()
    with suppress(UnknownTask):
        program.board.abort(task, "simulated")


def _reopen_task(program: Program, task: str) -> None:
    program.agent()
    with suppress(UnknownTask):
        program.board.reopen(task)


def _report(program: Program, task: str, state: str) -> None:
    """Write to the board by mail, as agents do that can do nothing else."""
    name = program.agent().name
    with suppress(InvalidMessage):
        program.board.tell("status" if state != "claim" else "claim", name, "board", task, **_said(state))


def _said(state: str) -> dict[str, str]:
    return {} if state == "claim" else {"state": state}


OPERATIONS: Final[dict[str, Callable[..., None]]] = {
    "add": _add,
    "task": _task,
    "task lease": _task_lease,
    "task late": _task_late,
    "work off": _work_off,
    "look at tasks": _look_at_tasks,
    "abort": _abort,
    "reopen task": _reopen_task,
    "report": _report,
}
