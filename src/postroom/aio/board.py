"""The board and reservations with await; see `board/board.py` and `board/reservations.py`, whose code does the work."""

from __future__ import annotations

from types import TracebackType
from typing import Self

from postroom.board import board, held_task, reservations
from postroom.errors import PostroomError, RoomClosed
from postroom.mail.received import words

from .bridge import WorkerThread
from .methods import Mirror, as_it_is, giving, if_any, in_steps, in_stream, in_thread, of_what_is_held


class HeldTask(Mirror[held_task.HeldTask]):
    """A task that was claimed; see `postroom.HeldTask`.

    With `async with` it is done at the end of the block and released if the block raises or is cancelled.
    """

    def __init__(self, worker: WorkerThread, task: held_task.HeldTask) -> None:
        super().__init__(worker, task)
        self.id = task.id
        self.title = task.title
        self.payload = task.payload
        self.after = task.after
        self.agent = task.agent
        self.token = task.token
        self.lease_s = task.lease_s

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

    done = in_thread(held_task.HeldTask.done, anyway=True)
    blocked = in_thread(held_task.HeldTask.blocked, anyway=True)
    release = in_thread(held_task.HeldTask.release, anyway=True)
    extend = in_thread(held_task.HeldTask.extend, anyway=True)
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


class Reservation(Mirror[reservations.Reservation]):
    """One that was made; see `postroom.Reservation`. With `async with` it is released at the end of the block."""

    def __init__(self, worker: WorkerThread, reservation: reservations.Reservation) -> None:
        super().__init__(worker, reservation)
        self.id = reservation.id
        self.agent = reservation.agent
        self.globs = reservation.globs
        self.exclusive = reservation.exclusive

    release = in_thread(reservations.Reservation.release, anyway=True)
    extend = in_thread(reservations.Reservation.extend, anyway=True)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.release()


class Board(Mirror[board.Board]):
    """The tasks of a room; see `postroom.Board`."""

    add = in_thread(board.Board.add)
    add_all = in_thread(board.Board.add_all)
    abort = in_thread(board.Board.abort, anyway=True)
    reopen = in_thread(board.Board.reopen, anyway=True)
    remove = in_thread(board.Board.remove, anyway=True)
    get = in_thread(board.Board.get)
    tasks = in_thread(board.Board.tasks)
    notes = in_thread(board.Board.notes)
    tell = in_thread(board.Board.tell)
    leads = in_thread(board.Board.leads)

    claim = giving(if_any(HeldTask), in_steps(board.Board.claim))
    held = giving(HeldTask, of_what_is_held(board.Board.held))
    work = in_stream(HeldTask, board.Board.work)
    watch = in_stream(as_it_is, board.Board.watch)
