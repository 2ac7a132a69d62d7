"""Answering messages with functions under asyncio: several tasks, each of which runs one message after the other.

What becomes of a message is decided where the synchronous `serve` decides it (mail/serving.py).
"""

from __future__ import annotations

import asyncio
import inspect
import queue
import threading
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import Executor, Future
from functools import partial
from typing import Any

from postroom.core.config import SAFETY_LOOK_S
from postroom.core.system import goodbye
from postroom.core.system.process import start_thread
from postroom.errors import ROOM_IS_OVER, RoomClosed, RoomError
from postroom.mail.gateway import Gateway, Steps
from postroom.mail.leases import Terms
from postroom.mail.received import Received
from postroom.mail.serving import (
    SETTLE_TRIES,
    Farewell,
    ServedMessage,
    as_failure,
    call_handler,
    check_handlers,
    conclude,
    find_handler,
    judge,
    log,
    report,
)
from postroom.mail.waiting import Inbox
from postroom.stores.contract import Want

from .bridge import Course, WorkerThread

#: A coroutine function gets an `aio.Received`; a plain function runs in a thread and gets a `postroom.Received`.
Handler = Callable[[Any], Awaitable[dict[str, Any] | None]] | Callable[[Any], dict[str, Any] | None]


class Serving:
    """One call of `Agent.serve`.

    Idle tasks take turns: one waits for mail, the others wait for their turn. The task that takes a message leaves the
    place to the next and runs it, then settles it and claims the following one in one step, as long as there is one.
    """

    def __init__(
        self,
        worker: WorkerThread,
        gateway: Gateway,
        want: Want,
        terms: Terms,
        handlers: Mapping[str, Handler],
        concurrency: int,
        hand_over: Callable[[Received], object],
        grace_s: float,
    ) -> None:
        check_handlers(handlers, concurrency)
        self._farewell = Farewell(gateway, grace_s)
        self._told = asyncio.Event()  # SIGTERM came
        self._given_up = False  # and the grace is over: what still runs is waited for no more
        self._worker = worker
        self._gateway = gateway
        self._want = want
        self._terms = terms
        self._inbox = Inbox(gateway, want)
        self._handlers: dict[str, Any] = dict(handlers)
        self._concurrency = concurrency
        self._hand_over = hand_over  # gives a coroutine function the message that it can await
        self._turn = asyncio.Lock()
        self._leaving = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()
        self._busy: set[asyncio.Task[Any] | None] = set()
        self._threads: DaemonThreads | None = None

    async def run(self, stop: asyncio.Event | None) -> None:
        """Serve until told to stop; then let running functions finish. Raises what a function ended the program with.

        Cancelled, it cancels the coroutines that run, and waits for them and for plain functions.
        """
        with goodbye.heard(self._say_goodbye):
            await self._run(stop)

    def _say_goodbye(self) -> None:
        """SIGTERM came. In its handler, in the middle of whatever the loop does."""
        self._farewell.say()
        self._worker.loop.call_soon_threadsafe(self._told.set)

    async def _run(self, stop: asyncio.Event | None) -> None:
        stopping = asyncio.create_task(self._leaving.wait() if stop is None else stop.wait())
        told = asyncio.create_task(self._told.wait())
        self._tasks = {asyncio.create_task(self._work()) for _ in range(self._concurrency)}
        try:
            await asyncio.wait({stopping, told, *self._tasks}, return_when=asyncio.FIRST_COMPLETED)
            self.leave()
            await self._let_finish(told)
        finally:
            self.leave()
            for task in (stopping, told, *self._tasks):
                task.cancel()
            ended = await asyncio.gather(*self._tasks, return_exceptions=True)
            self._worker.post(self._inbox.close)
            self._farewell.close()
            if self._threads is not None:
                self._threads.close()
        for crash in ended:
            if isinstance(crash, BaseException) and not isinstance(crash, RoomClosed | asyncio.CancelledError):
                raise crash

    async def _let_finish(self, told: asyncio.Task[Any]) -> None:
        """Until the functions are done; after SIGTERM no longer than the grace, and then their messages go back."""
        finished = asyncio.create_task(asyncio.wait(self._tasks))
        waiting: list[asyncio.Task[Any]] = [finished]
        try:
            await asyncio.wait({finished, told}, return_when=asyncio.FIRST_COMPLETED)
            if not finished.done():
                waiting.append(asyncio.create_task(self._worker.waits.sleep(self._farewell.left_s() or 0)))
                await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            if not finished.done():
                await self._worker.run(self._farewell.return_running, keep=True)
                self._given_up = True
        finally:
            for each in waiting:
                each.cancel()

    def leave(self) -> None:
        """Take nothing more. Tasks that wait for mail end now, those that run a function when it is done."""
        self._leaving.set()
        for task in self._tasks - self._busy:
            task.cancel()

    def runs(self, task: asyncio.Task[Any] | None) -> bool:
        """Whether a function that runs here is run by this task."""
        return task in self._busy

    async def finish(self, closer: asyncio.Task[Any] | None) -> None:
        """The room closes: take nothing more, and give running functions the length of a lease to finish.

        The task that closes it may run one of them: it is not waited for, since it waits for this.
        """
        self.leave()
        others = self._tasks - {closer}
        if others:
            patience = asyncio.create_task(self._worker.waits.sleep(self._want.lease_s))
            everybody = asyncio.create_task(asyncio.wait(others))
            await asyncio.wait({patience, everybody}, return_when=asyncio.FIRST_COMPLETED)
            patience.cancel()
            everybody.cancel()

    # A task

    async def _work(self) -> None:
        try:
            while not self._leaving.is_set():
                await self._serve_some()
        finally:
            self.leave()  # they only ever end together

    async def _serve_some(self) -> None:
        """Wait for a message, run it, and run those that follow without a pause."""
        me = asyncio.current_task()
        try:
            async with self._turn:
                message: Received | None = await Course[Received | None](self._worker, self._take()).finish()
                self._busy.add(me)
            while message is not None:
                message = await self._serve_one(message)
        except ROOM_IS_OVER:
            raise
        except RoomError as trouble:  # busy, or its disk is full: nothing was lost, so go on
            log.warning("serving goes on after: %s", trouble, extra={"action": "serve_trouble"})
            self._busy.discard(me)
            await self._worker.waits.sleep(SAFETY_LOOK_S)
        finally:
            self._busy.discard(me)

    def _take(self) -> Steps[Received | None]:
        delivery = yield from self._inbox.steps(None)
        return None if delivery is None else Received(self._gateway, delivery, self._terms)

    async def _serve_one(self, message: Received) -> Received | None:
        """Run one message; returns the next one if it could be claimed in the same step."""
        run = find_handler(ServedMessage(message), self._handlers)
        if not self._farewell.begins(message):
            await self._worker.run(partial(self._farewell.return_running, message), keep=True)
            return None
        try:
            await self._call(run)
            if self._given_up and _is_cancelled():
                return None  # its message is back already, and nothing is said of it
            if run.error is not None and not isinstance(run.error, Exception):
                self._leaving.set()  # before the message is back, so that no task here takes it again
            following = await self._settle(run)
        finally:
            self._farewell.ends(message)
        report(run)
        return following

    async def _call(self, run: ServedMessage) -> None:
        """Run the function; what it returns or raises is kept."""
        handler: Callable[[Any], Any] | None = run.handler
        if handler is None:
            return
        try:
            if inspect.iscoroutinefunction(handler) or inspect.iscoroutinefunction(type(handler).__call__):
                run.answer = await handler(self._hand_over(run.message))
            else:
                await self._call_plain(run)
        except BaseException as error:  # noqa: BLE001  whatever it is, the message must not stay claimed
            run.error = error if _is_cancelled() else as_failure(error)

    async def _call_plain(self, run: ServedMessage) -> None:
        """Run a plain function in a thread, to its end: it cannot be cancelled, so its message is not given away."""
        if self._threads is None:
            self._threads = DaemonThreads(self._concurrency)
        # what it raises is kept there: no future takes a StopIteration
        # (test_a_plain_handler_may_raise_whatever_it_likes)
        await self._to_its_end(self._worker.loop.run_in_executor(self._threads, call_handler, run))
        answer: Any = run.answer
        if inspect.isawaitable(answer):
            run.answer = await answer

    async def _to_its_end(self, running: asyncio.Future[Any]) -> Any:
        """The result of what cannot be cancelled. A task that is cancelled meanwhile learns it after that has ended.

        Unless the grace of SIGTERM is over: then the message is back already, and the thread is left alone.
        """
        cancelled = False
        while not running.done():
            try:
                await asyncio.wait({running})
            except asyncio.CancelledError:
                if self._given_up:
                    running.cancel()
                    raise
                cancelled = True
        task = asyncio.current_task()
        if cancelled and task is not None:
            task.get_loop().call_soon(task.cancel)  # its message is settled first
        return running.result()

    async def _settle(self, run: ServedMessage) -> Received | None:
        """Record what became of the message, also in a room that is busy for a while; the next one, if there is one."""
        for tries_left in reversed(range(SETTLE_TRIES)):
            try:
                return await self._worker.run(partial(self._conclude, run), keep=True)
            except ROOM_IS_OVER:
                raise
            except RoomError:
                if tries_left == 0:
                    run.message.let_go()
                    raise
                await self._worker.waits.sleep(SAFETY_LOOK_S)
        raise AssertionError("unreachable")

    def _conclude(self, run: ServedMessage) -> Received | None:
        self._gateway.redaction.refresh(self._gateway.clock.steady_ns())  # nothing is read after the decision
        verdict = judge(run, self._handlers)
        claim_next = None if self._leaving.is_set() else self._want
        claimed = conclude(run, verdict, claim_next).claimed
        if claimed is None or not claimed.deliveries:
            return None
        return Received(self._gateway, claimed.deliveries[0], self._terms)


class DaemonThreads(Executor):
    """Threads that the end of the process does not wait for: a function that never returns must not keep it.

    Those of the standard library's executors are waited for (test_a_plain_handler_that_never_ends_keeps_no_process).
    """

    def __init__(self, most: int) -> None:
        self._jobs: queue.SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None] = queue.SimpleQueue()
        self._most = most
        self._count = 0

    def submit(self, call: Callable[..., Any], /, *args: Any, **named: Any) -> Future[Any]:
        future: Future[Any] = Future()
        self._jobs.put((future, partial(call, *args, **named)))
        if self._count < self._most:
            self._count += 1
            start_thread(threading.Thread(target=self._work, name=f"postroom serving {self._count}", daemon=True))
        return future

    def close(self) -> None:
        """Let the threads end, each after what it runs. Nobody waits for them."""
        for _ in range(self._count):
            self._jobs.put(None)

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            future, call = job
            if future.set_running_or_notify_cancel():
                try:
                    future.set_result(call())
                except BaseException as error:  # noqa: BLE001  it belongs to the task that waits
                    future.set_exception(error)


def _is_cancelled() -> bool:
    """Whether the running task itself was cancelled, and not only what it waited for."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0
