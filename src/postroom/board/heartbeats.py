"""Heartbeats for the tasks that a process holds, and hearing of an abort without asking.

A chore for each room that holds tasks. It wakes by push when something is aborted, and by itself when a lease is to be
extended. It knows tasks weakly: one that its owner has forgotten is not kept alive.
"""

from __future__ import annotations

import threading
import weakref
from contextlib import suppress
from typing import Final

from postroom.core import log
from postroom.core.chore import Chore
from postroom.core.config import SAFETY_LOOK_S
from postroom.errors import ROOM_IS_OVER, PostroomError

from .held_task import SIGNALS, HeldTask
from .records import Book

CLOSED_EARLY: Final = "the room was closed before it was settled"


class TaskHeartbeats:
    """The held tasks of one room in this process."""

    def __init__(self, book: Book) -> None:
        self._book = book
        self._lock = threading.RLock()  # a signal's handler may come in the middle of what it guards
        self._held: dict[int, weakref.ref[HeldTask]] = {}
        self._due_ns: dict[int, int] = {}  # when a heartbeat is due; none for those that are not to be extended
        self._chore = Chore("postroom board", self._look_and_listen, book.clock, every_s=SAFETY_LOOK_S, first_s=0)
        book.gateway.at_close(self.close)

    def hold(self, task: HeldTask, *, heartbeat: bool) -> None:
        """Look after a task until it is settled or forgotten."""
        key = id(task)
        task.forget = lambda _: self._let_go(key)
        with self._lock:
            self._held[key] = weakref.ref(task, task.forget)
            if heartbeat:
                self._due_ns[key] = self._next_due_ns(task)
        self._chore.start()
        if heartbeat and task.lease_s < 3 * SAFETY_LOOK_S:  # due before the thread would look by itself
            self._chore.nudge()

    def _let_go(self, key: int) -> None:
        self._held.pop(key, None)
        self._due_ns.pop(key, None)

    def _next_due_ns(self, task: HeldTask) -> int:
        return self._book.clock.steady_ns() + round(task.lease_s * 1_000_000_000 / 3)

    def _look_and_listen(self) -> None:
        # of the store and not of the gateway: a gateway of asyncio gives waiters that only its loop may wait for
        with self._book.gateway.store.listen([SIGNALS]) as waiter:
            while not self._chore.closed:
                self._chore.clear()
                self._look()
                self._book.gateway.wait(waiter, self._span_s(), self._chore)

    def _span_s(self) -> float | None:
        due_ns = min(self._due_ns.copy().values(), default=None)
        return None if due_ns is None else max(0.0, (due_ns - self._book.clock.steady_ns()) / 1_000_000_000)

    def _look(self) -> None:
        for key, known in list(self._held.items()):
            task = known()
            if task is None:
                continue
            try:
                self._look_after(key, task)
            except ROOM_IS_OVER:
                raise
            except Exception:  # noqa: BLE001  a busy or broken room now is no reason to let go of a task
                log.LOG.debug("a heartbeat of %r failed", task, exc_info=True, extra={"action": "heartbeat_failed"})

    def _look_after(self, key: int, task: HeldTask) -> None:
        due_ns = self._due_ns.get(key)
        if due_ns is not None and due_ns <= self._book.clock.steady_ns():
            with self._lock:
                if key in self._due_ns:  # counted from before the heartbeat, which may take long
                    self._due_ns[key] = self._next_due_ns(task)
            task.extend()
        else:
            task.look()
        if task.lost:
            self._let_go(key)

    def close(self) -> None:
        """Release what is still held by this process. The thread is over when it returns."""
        self._chore.close()
        for known in list(self._held.values()):
            task = known()
            if task is not None:
                with suppress(PostroomError):  # a busy room: it ends with its lease
                    task.release(CLOSED_EARLY)
