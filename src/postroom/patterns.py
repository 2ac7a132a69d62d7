"""Three ways to work together, each a few lines on each side: lead and workers, claim board, pipeline.

    lead and workers   the lead assigns each task        lead(...)         work_for_lead(...)
    claim board        a free worker takes the next      room.board.add    work_from_board(...)
    pipeline           each does one phase of all        send              work_as_stage(...)

In each a worker may be killed at any moment: its task is done by another, or by itself when it is started again, and
nothing is done again that was reported done. Done, that is, to the room: work may have been done twice when its worker
died just before it reported.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final

from postroom.board.actions import check_direction
from postroom.board.held_task import HeldTask
from postroom.board.task import CLAIMED, PREFIX, READY, Task
from postroom.core.message import Draft, check
from postroom.mail.agent import Agent
from postroom.mail.gateway import Deadline
from postroom.mail.received import Received, Settlement, follow, words
from postroom.stores.contract import topic_cells, topic_to

from .errors import InvalidMessage, ReceiveTimeout, UnknownTask
from .mail import presence
from .room import Room

#: What a worker is given, and what it returns: the result of the task.
Work = Callable[[HeldTask], Any]
#: What a stage of a pipeline is given, and what it hands on.
Phase = Callable[[Received], dict[str, Any]]

IMPLEMENT: Final = "implement"
TASKS_TOPIC: Final = topic_cells(PREFIX)


def _do(task: HeldTask, work: Work) -> bool:
    """Do a task and report. An error of the work blocks the task, with the reason; only Ctrl-C and the like release it."""
    try:
        result = work(task)
        return task.settled if task.settled is not None else task.done(result)
    except Exception as error:  # noqa: BLE001  the task's fault is reported, and the worker goes on to the next
        return task.settled if task.settled is not None else task.blocked(words("why", error))
    except BaseException:
        task.return_unseen()
        raise


# Lead and workers


def lead(
    room: Room,
    tasks: Iterable[Mapping[str, Any]],
    workers: Iterable[str],
    *,
    name: str = "lead",
    timeout_s: float | None = None,
) -> dict[str, Task]:
    """Put tasks on the board, keep each worker busy with one at a time, and return all tasks when none can go on.

    A task whose worker is gone is assigned again, to another if there is one that is free. What is blocked or aborted is
    returned as it is, and so is what waits for it. A lead that was killed goes on where it was when it is started again
    with the same tasks. Raises ReceiveTimeout when nothing was reported for `timeout_s`.
    """
    return _Lead(room, tasks, list(workers), name).run(timeout_s)


class _Lead:
    """One lead at work."""

    def __init__(self, room: Room, tasks: Iterable[Mapping[str, Any]], workers: list[str], name: str) -> None:
        if not workers:
            raise InvalidMessage("workers", "must name at least one agent")
        self._room = room
        self._me = room.agent(name)
        self._workers = workers
        self._ids = {task.id for task in room.board.add_all([{**task, "lead": name} for task in tasks])}
        self._assigned: dict[str, tuple[str, int]] = {}  # task -> its worker, and the token it had then

    def run(self, timeout_s: float | None) -> dict[str, Task]:
        gateway = self._room.gateway
        before: dict[str, Task] = {}
        deadline = Deadline(gateway.clock, timeout_s)
        with gateway.listen([TASKS_TOPIC, topic_to(self._me.name)]) as waiter:
            while True:
                tasks = {task.id: task for task in self._room.board.tasks() if task.id in self._ids}
                self._assign(tasks)
                self._read_reports()
                if not any(task.claimable or task.state == CLAIMED for task in tasks.values()):
                    return tasks
                if tasks != before:
                    before, deadline = tasks, Deadline(gateway.clock, timeout_s)
                left_s = deadline.left_s()
                if left_s == 0:
                    raise ReceiveTimeout(f"no report from {', '.join(self._workers)} within {timeout_s:g} s")
                gateway.wait(waiter, left_s)  # a second at most: a worker that died before it began changes nothing

    def _assign(self, tasks: dict[str, Task]) -> None:
        for id, (worker, token) in list(self._assigned.items()):
            task = tasks[id]
            given_back = task.state == READY and task.token > token
            if task.state not in (READY, CLAIMED) or given_back or not self._lives(worker):
                del self._assigned[id]
        busy = {worker for worker, _ in self._assigned.values()}
        busy |= {task.owner for task in tasks.values() if task.state == CLAIMED and task.owner is not None}
        free = [worker for worker in self._workers if worker not in busy and self._lives(worker)]
        for task in tasks.values():
            if free and task.claimable and task.id not in self._assigned:
                worker = free.pop(0)
                said = {"title": task.title, "payload": task.payload}
                self._room.board.tell(IMPLEMENT, self._me.name, worker, task.id, **said)
                self._assigned[task.id] = (worker, task.token)

    def _lives(self, worker: str) -> bool:
        """Whether a worker may be counted on: everybody but one that was here and is gone."""
        found = presence.look(self._room.gateway, worker)
        return found is None or presence.is_running(self._room.gateway, found) is not False

    def _read_reports(self) -> None:
        """The board says it all; the reports are read so that they do not pile up."""
        while (message := self._me.poll()) is not None:
            message.ack()


def work_for_lead(
    room: Room, name: str, work: Work, *, timeout_s: float | None = None, lease_s: float | None = None
) -> Iterator[str]:
    """Do the tasks assigned to this worker. Yields the id of each task that it reported, done or blocked.

    An assignment of a task that is another agent's, or that has been done since, is skipped. One that does not come
    from a lead, or names no task, is refused; its sender gets an `info` with the reason. Ends when nothing was assigned for `timeout_s` (None:
    never).
    """
    board = room.board
    for message in room.agent(name).listen(timeout_s=timeout_s):
        if message.type != IMPLEMENT:
            continue  # an info, or an abort of a task whose owner was told already
        try:
            check_direction(IMPLEMENT, message.from_agent, name, board.leads())
            task = board.claim(name, message.payload.get("task_id", ""), lease_s=lease_s)
        except (InvalidMessage, UnknownTask) as wrong:
            _refuse(message, name, str(wrong))
            continue
        message.ack()  # from here on the board keeps the task, and gives it to another if this process dies
        if task is not None and _do(task, work):
            yield task.id


def _refuse(message: Received, name: str, why: str) -> None:
    """Refuse an assignment, and tell its sender: one that works with files alone sees no receipt."""
    reason = words("reason", why)  # which names the task, and is not longer than a message may be
    said = {"text": reason, "about": IMPLEMENT, "message_id": message.id}
    told = Draft(from_agent=name, to_agent=message.from_agent, type="info", payload=said, correlation_id=message.id)
    message.conclude(Settlement("refused", reason, answer=check(told)))


# Claim board


def work_from_board(
    room: Room, name: str, work: Work, *, timeout_s: float | None = None, lease_s: float | None = None
) -> Iterator[str]:
    """Take the next task that is ready, do it, report; again and again. Yields the id of each that it reported.

    Ends when none became ready for `timeout_s` (None: never).
    """
    for task in room.board.work(name, timeout_s=timeout_s, lease_s=lease_s):
        if _do(task, work):
            yield task.id


# Pipeline


def work_as_stage(
    room: Room,
    name: str,
    phase: Phase,
    *,
    to: str | None = None,
    timeout_s: float | None = None,
    lease_s: float | None = None,
) -> Iterator[dict[str, Any]]:
    """Do one phase of everything that comes, and hand it on to the stage `to`. Yields what it handed on.

    Ending a message and handing its result on are one step, so that nothing is handed on twice or lost; where a store
    has no such step, the repeat is recognised. Several processes may be the same stage. A phase that raises is tried
    again later, and after the last time its message is set aside. The last stage (`to` None) only acks. Ends when nothing
    came for `timeout_s` (None: never).
    """
    me = room.agent(name)
    for message in me.listen(timeout_s=timeout_s, lease_s=lease_s):
        try:
            result = phase(message)
            verdict = Settlement("acked", answer=None if to is None else _handed_on(room, me, message, to, result))
        except Exception as error:  # noqa: BLE001  the message's fault: it comes again, and the stage goes on
            message.conclude(message.retry_verdict(error))
            continue
        if message.conclude(verdict).held:
            yield result


def _handed_on(room: Room, me: Agent, message: Received, to: str, result: dict[str, Any]) -> Draft:
    chain_id, hop_count, trace = follow(message, room.config.max_hops)
    draft = Draft(
        from_agent=me.name,
        to_agent=to,
        payload=result,
        type=message.type,
        channel=message.channel,
        priority=message.priority,
        correlation_id=message.correlation_id or message.id,
        idempotency_key=f"stage/{message.id}",
        chain_id=chain_id,
        hop_count=hop_count,
        trace=trace,
        max_deliveries=room.config.max_deliveries,
    )
    return check(draft, room.config.max_payload_bytes)
