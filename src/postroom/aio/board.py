"""The board and reservations with await; see `board/board.py` and `board/reservations.py`, whose code does the work."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial, wraps
from types import TracebackType
from typing import Any, Concatenate, ParamSpec, Self, cast

from postroom.board import board, held_task, reservations
from postroom.board.task import Task
from postroom.errors import PostroomError, RoomClosed
from postroom.mail.received import words

from .bridge import Course, WorkerThread
from .methods import Stream, in_steps, in_thread, in_thread_anyway

P = ParamSpec("P")


class HeldTask:
    """A task that was claimed; see `postroom.HeldTask`.

    With `async with` it is done at the end of the block and released if the block raises or is cancelled.
    """

    def __init__(self, worker: WorkerThread, task: held_task.HeldTask) -> None:
        self._worker = worker
        self._sync = task
        self.id = task.id
        self.title = task.title
        self.payload = task.payload
        self.after = task.after
        self.agent = task.agent
        self.token = task.token
        self.lease_s = task.lease_s

    async def _ready(self) -> None:
        pass

    @property
    def settled(self) -> bool | None:
        """None while it is the owner's to settle; then whether settling counted."""
        return self._sync.settled

    @property
    def aborted(self) -> bool:
        """Whether it was called off. Turns true by itself; that of a transient claim only by `wait_aborted`."""
        return self._sync._aborted  # noqa: SLF001  without the look at the board, which would block the loop

    @property
    def lost(self) -> bool:
        """Whether it was seen to be no longer this owner's."""
        return self._sync._lost or self._sync._aborted  # noqa: SLF001

    done = in_thread_anyway(held_task.HeldTask.done)
    blocked = in_thread_anyway(held_task.HeldTask.blocked)
    release = in_thread_anyway(held_task.HeldTask.release)
    extend = in_thread_anyway(held_task.HeldTask.extend)
    wait_aborted = in_steps(held_task.HeldTask.wait_aborted)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: object, error: BaseException | None, traceback: TracebackType | None) -> None:
        if self._sync.settled is not None:
            return
        if error is None:
            await self.done()
            return
        try:
            await self.release(words("why", error))
        except RoomClosed:  # which gave it back
            return
        except PostroomError as trouble:
            error.add_note(f"Postroom could not release the task at once: {trouble}")

    def __repr__(self) -> str:
        return repr(self._sync)


class Reservation:
    """One that was made; see `postroom.Reservation`. With `async with` it is released at the end of the block."""

    def __init__(self, worker: WorkerThread, reservation: reservations.Reservation) -> None:
        self._worker = worker
        self._sync = reservation
        self.id = reservation.id
        self.agent = reservation.agent
        self.globs = reservation.globs
        self.exclusive = reservation.exclusive

    async def _ready(self) -> None:
        pass

    release = in_thread_anyway(reservations.Reservation.release)
    extend = in_thread_anyway(reservations.Reservation.extend)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.release()

    def __repr__(self) -> str:
        return repr(self._sync)


def _stream(
    method: Callable[Concatenate[board.Board, P], Any], show: Callable[[WorkerThread, Any], Any]
) -> Callable[Concatenate[Board, P], Stream[Any]]:
    """A synchronous method that gives one thing after the other, for `async for`. It begins with the call."""

    @wraps(method)
    def call(self: Board, /, *args: P.args, **kwargs: P.kwargs) -> Stream[Any]:
        beginning = self._worker.begin(partial(method, self._sync, *args, **kwargs))

        async def begin() -> Course[Any]:
            return cast("Course[Any]", await beginning)

        return Stream(self._worker, begin, partial(show, self._worker))

    return call


def _as_it_is(_: WorkerThread, task: Task) -> Task:
    return task


class Board:
    """The tasks of a room; see `postroom.Board`."""

    def __init__(self, worker: WorkerThread, tasks: board.Board) -> None:
        self._worker = worker
        self._sync = tasks

    async def _ready(self) -> None:
        pass

    add = in_thread(board.Board.add)
    add_all = in_thread(board.Board.add_all)
    abort = in_thread_anyway(board.Board.abort)
    reopen = in_thread_anyway(board.Board.reopen)
    get = in_thread(board.Board.get)
    tasks = in_thread(board.Board.tasks)
    notes = in_thread(board.Board.notes)
    tell = in_thread(board.Board.tell)
    leads = in_thread(board.Board.leads)

    async def claim(
        self,
        agent: str,
        task_id: str | None = None,
        *,
        timeout_s: float | None = 0,
        lease_s: float | None = None,
        heartbeat: bool = True,
        transient: bool = False,
        process: str | None = None,
    ) -> HeldTask | None:
        """Take the next task that can be done, or that one; see `postroom.Board.claim`."""
        begun: Any = self._sync.claim(
            agent,
            task_id,
            timeout_s=timeout_s,
            lease_s=lease_s,
            heartbeat=heartbeat,
            transient=transient,
            process=process,
        )
        task = await begun  # the gateway's: see LoopGateway.finish
        return None if task is None else HeldTask(self._worker, task)

    async def held(self, id: str, agent: str) -> HeldTask:
        """A task that this agent holds already; see `postroom.Board.held`."""
        return HeldTask(self._worker, await self._worker.run(partial(self._sync.held, id, agent), keep=True))

    work = _stream(board.Board.work, HeldTask)
    watch = _stream(board.Board.watch, _as_it_is)

    def __repr__(self) -> str:
        return repr(self._sync)
