"""Calls that wait, as tasks: the call returns a handle, and its result is fetched later (MCP's tasks extension, SEP-2663).

Nothing runs for a task. What it waits for stands in the room (a question by its id, an agent's mail, the board), and each
look works out how that is. So a task outlives the server that made it, and another server of the same agent goes on with
it. The tasks of an agent are one cell, "mcp-tasks/<agent>"; no other agent reads that cell, so its ids mean nothing to others.

A look decides, writes that down, and only then takes what is kept for the caller: a result is given as often as it is
fetched, and nothing is taken for a caller that never comes. `task_kinds.py` has the looks.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine
from contextlib import suppress
from typing import Any, Final, NamedTuple, TypeVar

import msgspec

from postroom.core.clock import iso
from postroom.core.config import prepare_types
from postroom.errors import PostroomError, RoomClosed, UnknownTask
from postroom.room import Room
from postroom.stores.cells import DELETE, update
from postroom.stores.contract import topic_cells

from . import tools
from .caller import Caller, Progress
from .calls import MailCalls, ToolFailed
from .task_kinds import CANCELLED, COMPLETED, KINDS, WORKING, TaskKind, TaskRecord

T = TypeVar("T")

#: The extension's name, which both sides declare.
EXTENSION: Final = "io.modelcontextprotocol/tasks"
#: The cell in which an agent's tasks are kept.
CELLS: Final = "mcp-tasks/"
#: The tasks of one agent, also those that have ended and are still kept; one that asks several counts as so many. Calls
#: beyond wait as they do without tasks.
MAX_TASKS: Final = 100
#: A task is kept for so long after the time of its call is over; one whose end its client was told, for so long after that.
KEEP_MS: Final = 600_000
KEEP_TOLD_MS: Final = 120_000
#: A watched task is looked at so shortly after its time is over, in seconds.
_AFTER_S: Final = 0.01
#: Where the room did not answer when a task's time was over, it is asked again after this, in seconds.
_AGAIN_S: Final = 5.0
#: Clients are told to ask again after a tenth of the task's age, within these bounds.
_MIN_POLL_MS: Final = 500
_MAX_POLL_MS: Final = 5000


class NoSuchTask(UnknownTask):
    """The caller has no task of that id: there never was one, it is forgotten, or it is another agent's."""


class TaskStanding(NamedTuple):
    """How a task stands: what clients are told of it, and once it is completed its result or the failure."""

    task: dict[str, Any]
    result: dict[str, Any] | None = None
    failure: str | None = None

    @property
    def status(self) -> str:
        """working, completed or cancelled."""
        status: str = self.task["status"]
        return status


class Begun(NamedTuple):
    """What became of a call that may have to wait: a task, or a result that was there at once."""

    record: TaskRecord
    standing: TaskStanding
    result: dict[str, Any] | None = None


class Tasks:
    """The tasks of a server's callers. One for each server; several servers of a room agree by compare-and-set."""

    def __init__(self, calls: MailCalls) -> None:
        self._calls = calls
        self._room = calls.room
        self._kinds: dict[str, TaskKind] = {name: kind(calls) for name, kind in KINDS.items()}
        self._locks: dict[str, asyncio.Lock] = {}  # one look of an agent at a time
        self._running: set[asyncio.Task[Any]] = set()

    # What clients ask for

    async def call(
        self, caller: Caller, name: str, arguments: dict[str, Any] | None, progress: Progress
    ) -> dict[str, Any] | TaskStanding:
        """Run a tool, as `MailCalls.call`. A call that has to wait becomes a task, which is kept when this returns."""
        waiting = self._waiting(name, arguments)
        if waiting is not None:
            with self._calls.in_words(caller):
                begun = await self._to_the_end(self._begin(caller, *waiting), lambda begun: self._undo(caller, begun))
            if begun is not None:
                return begun.standing if begun.result is None else begun.result
        return await self._calls.call(caller, name, arguments, progress)

    async def get(self, caller: Caller, id: str) -> TaskStanding:
        """How a task stands now. NoSuchTask where the caller has none of that id."""
        return await self._to_the_end(self._get(caller, id))

    async def cancel(self, caller: Caller, id: str) -> None:
        """End a task that still waits: its question is withdrawn if no receiver has it, and nothing is taken any more.

        A task that has ended stays as it is. NoSuchTask as `get`.
        """
        await self._to_the_end(self._cancel(caller, id))

    async def check(self, caller: Caller, id: str) -> None:
        """Raise NoSuchTask where the caller has no task of that id."""
        await self._read(caller, id)

    async def own(self, caller: Caller, ids: list[str]) -> list[str]:
        """Those that are ids of the caller's tasks."""
        kept = await self._room.call(lambda room: _kept(room, caller))
        return [id for id in dict.fromkeys(ids) if id in kept]

    async def watch(self, caller: Caller, id: str, armed: Callable[[], None]) -> AsyncGenerator[TaskStanding, None]:
        """How a task stands, at first if it has ended, and whenever that changes; `armed` is called when none is missed."""
        record = await self._read(caller, id)
        topics = [*self._kinds[record.kind].topics(record), topic_cells(CELLS)]
        async with self._room.hints(topics) as hints:
            await anext(hints)
            armed()
            hint = asyncio.ensure_future(anext(hints))
            try:
                while True:
                    standing = await self.get(caller, id)
                    if standing.status != WORKING:
                        yield standing
                        return
                    left_s = max(record.until_ms - self._now_ms(), 0) / 1000 + _AFTER_S
                    done, _ = await asyncio.wait({hint}, timeout=min(left_s, self._kinds[record.kind].look_s))
                    if done:
                        hint.result()
                        hint = asyncio.ensure_future(anext(hints))
            finally:
                hint.cancel()
                await asyncio.gather(hint, return_exceptions=True)

    # How a task begins and ends

    def _waiting(self, tool: str, arguments: dict[str, Any] | None) -> tuple[str, Any] | None:
        """The kind and the arguments of a call that may have to wait; None for others, and for those that are at fault."""
        with suppress(PostroomError):
            given = tools.read_arguments(tools.BY_NAME[tool], arguments)
            for name, kind in self._kinds.items():
                if kind.tool == tool and kind.waits(given):
                    return name, given
        return None

    async def _begin(self, caller: Caller, name: str, given: Any) -> Begun | None:
        """A new task, or a result that was there at once; None where the caller has too many tasks."""
        kind = self._kinds[name]
        async with self._lock(caller):
            kept = await self._room.call(lambda room: _kept(room, caller))
            if sum(max(len(record.questions), 1) for record in kept.values()) >= MAX_TASKS:
                return None
            await self._room.agent(caller.agent, transient=True)
            now_ms = self._now_ms()
            record = TaskRecord(
                id=secrets.token_urlsafe(24),
                kind=name,
                agent=caller.agent,
                lane=caller.lane,
                made_ms=now_ms,
                changed_ms=now_ms,
                until_ms=now_ms + round(given.wait_s * 1000),
            )
            record = await kind.begin(given, record)
            try:
                ended = await kind.look(record, late=False)
                if ended is not None and kind.may_be_at_once:
                    return await self._at_once(ended)
                await self._room.call(lambda room: _write(room, record))
            except ToolFailed:
                raise
            except BaseException:
                await kind.cancelled(record)
                raise
            self._alarm(record, given.wait_s)
            return Begun(record, self._standing(record))

    async def _at_once(self, ended: TaskRecord) -> Begun:
        kind = self._kinds[ended.kind]
        try:
            await kind.ended(ended)
            return Begun(ended, self._standing(ended), await kind.result(ended))
        except BaseException:
            await kind.undone(ended)
            raise

    async def _undo(self, caller: Caller, begun: Begun | None) -> None:
        """The caller left before it was told what began."""
        if begun is not None and begun.result is None:
            await self._cancel(caller, begun.record.id)
        elif begun is not None:
            await self._kinds[begun.record.kind].undone(begun.record)

    async def _get(self, caller: Caller, id: str) -> TaskStanding:
        record = await self._look(caller, id, told=True)
        if record.status != COMPLETED:
            return self._standing(record)
        try:
            result = await self._kinds[record.kind].result(record)
        except ToolFailed as failure:
            return self._standing(record)._replace(failure=str(failure))
        return self._standing(record)._replace(result=result)

    async def _look(self, caller: Caller, id: str, *, told: bool) -> TaskRecord:
        """The record of a task, after it was seen whether what it waits for has come; `told` if its client hears of it."""
        async with self._lock(caller):
            record = await self._read(caller, id)
            if record.status != WORKING:
                return record
            kind = self._kinds[record.kind]
            ended = await kind.look(record, late=self._now_ms() >= record.until_ms)
            if ended is None:
                return record
            try:
                kept = await self._end(msgspec.structs.replace(ended, told=told), COMPLETED)
            except BaseException:
                await kind.undone(ended)
                raise
            if kept.found != ended.found:  # another server of this agent was quicker
                await kind.undone(ended)
            else:
                await kind.ended(kept)
            return kept

    async def _cancel(self, caller: Caller, id: str) -> None:
        async with self._lock(caller):
            record = await self._read(caller, id)
            if record.status == WORKING:
                kept = await self._end(msgspec.structs.replace(record, told=True), CANCELLED)
                if kept.status == CANCELLED:
                    await self._kinds[record.kind].cancelled(record)

    async def _end(self, ended: TaskRecord, status: str) -> TaskRecord:
        """Write down how a task ended, unless it has ended already; returns what is kept."""
        ended = msgspec.structs.replace(ended, status=status, changed_ms=self._now_ms())
        return await self._room.call(lambda room: _write(room, ended))

    # Time

    def _alarm(self, record: TaskRecord, seconds: float) -> None:
        """See to a question when its time is over: where it was not answered, the answer becomes ordinary mail."""
        if self._kinds[record.kind].needs_alarm:
            clock, loop = self._room.clock, asyncio.get_running_loop()

            def ring() -> None:
                self._spawn(self._time_is_over(record))

            clock.call_later(loop, seconds, ring)

    async def _time_is_over(self, record: TaskRecord) -> None:
        kind, until_ms = self._kinds[record.kind], record.until_ms + KEEP_MS
        try:
            if self._now_ms() < until_ms:
                await self._look(record.caller, record.id, told=False)
                self._alarm(record, max(until_ms - self._now_ms(), 1000) / 1000)
            else:
                await kind.forgotten(record)
        except NoSuchTask:  # its end was told
            await kind.forgotten(record)
        except RoomClosed:
            pass
        except PostroomError:  # the room does not answer now
            self._alarm(record, _AGAIN_S)

    def _now_ms(self) -> int:
        return self._room.clock.wall_ms()

    # Keeping

    async def _read(self, caller: Caller, id: str) -> TaskRecord:
        record = (await self._room.call(lambda room: _kept(room, caller))).get(id)
        if record is None:
            raise NoSuchTask("Task not found: there is none of this id here, or it has expired")
        return record

    def _standing(self, record: TaskRecord) -> TaskStanding:
        """What clients are told of a task."""
        age_ms = self._now_ms() - record.made_ms
        return TaskStanding(
            {
                "taskId": record.id,
                "status": record.status,
                "statusMessage": self._kinds[record.kind].note(record),
                "createdAt": iso(record.made_ms),
                "lastUpdatedAt": iso(record.changed_ms),
                "ttlMs": _ttl_ms(record),
                "pollIntervalMs": min(max(age_ms // 10, _MIN_POLL_MS), _MAX_POLL_MS),
            }
        )

    def _lock(self, caller: Caller) -> asyncio.Lock:
        return self._locks.setdefault(caller.agent, asyncio.Lock())

    async def _to_the_end(self, step: Coroutine[Any, Any, T], undo: Callable[[T], Awaitable[None]] | None = None) -> T:
        """Do a step to its end, whether or not its caller stays: between a claim and its record nobody is to leave."""
        job = self._spawn(step)
        try:
            return await asyncio.shield(job)
        except asyncio.CancelledError:
            if undo is not None and not job.cancelled():
                self._spawn(_after(job, undo))
            raise

    def _spawn(self, step: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        job = asyncio.ensure_future(step)
        self._running.add(job)
        job.add_done_callback(self._over)
        return job

    def _over(self, job: asyncio.Task[Any]) -> None:
        self._running.discard(job)
        if not job.cancelled():
            job.exception()  # who waits for it gets it


async def _after(job: asyncio.Task[T], undo: Callable[[T], Awaitable[None]]) -> None:
    with suppress(PostroomError):
        await undo(await job)


def _ttl_ms(record: TaskRecord) -> int:
    if record.told:
        return record.changed_ms - record.made_ms + KEEP_TOLD_MS
    return record.until_ms - record.made_ms + KEEP_MS


def _kept(room: Room, caller: Caller) -> dict[str, TaskRecord]:
    """The caller's tasks by their ids, without those whose time is over."""
    cell = room.store.cell_read(CELLS + caller.agent)
    if cell is None:
        return {}
    return {
        id: record for id, record in _records(cell.value, room.clock.wall_ms()).items() if record.lane == caller.lane
    }


def _records(value: Any, now_ms: int) -> dict[str, TaskRecord]:
    try:
        records = msgspec.convert(value, dict[str, TaskRecord])
    except msgspec.ValidationError:  # nothing that this program wrote
        return {}
    return {id: record for id, record in records.items() if now_ms < record.made_ms + _ttl_ms(record)}


def _write(room: Room, record: TaskRecord) -> TaskRecord:
    """Keep a task, unless it is kept and has ended; returns what is kept then."""
    kept = record

    def change(value: Any) -> Any:
        nonlocal kept
        records = _records(value, room.clock.wall_ms())
        before = records.get(record.id)
        kept = record if before is None or before.status == WORKING else before
        records[record.id] = kept
        return msgspec.to_builtins(records)

    update(room.store, CELLS + record.agent, change)
    return kept


def forget_old(room: Room) -> None:
    """Forget the tasks of all agents whose time is over; for the start of a server."""
    for cell in room.store.cell_scan(CELLS):
        update(room.store, cell.name, lambda value: _without_old(value, room.clock.wall_ms()))


def _without_old(value: Any, now_ms: int) -> Any:
    records = _records(value or {}, now_ms)
    if value is None or len(records) == len(value):
        return None
    return msgspec.to_builtins(records) if records else DELETE


prepare_types(TaskRecord)
