"""The asyncio bridge: the one thread of a room that speaks to its store, and the ways between it and the event loop.

A room is synchronous inside. Under asyncio every call of it runs here, one after the other, so the loop never waits for
the store. Waiting is no call: it is done by the loop, on a descriptor, and keeps no thread.

Messages that are sent while the thread is busy are stored together, in one commit (`Gateway.put_each`).
"""

from __future__ import annotations

import asyncio
import logging
import queue
import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from itertools import takewhile
from typing import Any, Generic, NamedTuple, TypeVar, cast

from postroom.board.held_task import HeldTask
from postroom.core.clock import Clock
from postroom.core.crashpoints import reached
from postroom.core.message import Draft
from postroom.core.system.process import start_thread
from postroom.errors import RoomClosed, RoomError
from postroom.mail.gateway import MAX_TOGETHER, Gateway, Pause, Series, Steps
from postroom.mail.questions import Question, take_answers
from postroom.mail.received import Received

from .waiting import Listening, Waiting

log = logging.getLogger("postroom")

T = TypeVar("T")


@dataclass(slots=True, eq=False)
class Job:
    """One call for the thread. `left` is set when nobody waits for it any more.

    With a draft, that is stored first, together with those of other jobs. With a question, the call is one of its
    steps.
    """

    call: Callable[[], Any] | None
    future: asyncio.Future[Any] | None
    keep: bool = False
    draft: Draft | None = None
    question: Question | None = None
    left: bool = False
    result: Any = None
    error: BaseException | None = None

    def undo(self) -> None:
        """The result has no taker: a claim in it goes back. In the thread."""
        _return_unseen(self.result)


class Over(NamedTuple):
    """The end of a course, with what it came to."""

    value: Any


def _return_unseen(result: Any) -> None:
    """Give back what was claimed and nobody saw. Never raises, whatever a listener does: it would end the thread.

    See test_a_listener_that_raises_does_not_end_the_rooms_thread.
    """
    claimed = result.value if isinstance(result, Over) else result
    if not isinstance(claimed, Received | HeldTask):
        return
    try:
        claimed.return_unseen()
    except BaseException:  # nobody waits for this; the end of the lease gives it back
        log.warning("%r could not be given back at once", claimed, exc_info=True, extra={"action": "aio_undo"})


class WorkerThread:
    """The thread, and what the loop has under way with it. All methods but `post` belong to the loop's own thread."""

    def __init__(self, clock: Clock) -> None:
        self.loop = asyncio.get_running_loop()
        self.clock = clock
        self.gateway: Gateway | None = None  # known when the room is open
        self.closing = False
        self.servings: set[Any] = set()  # calls of `serve` that run
        self._outbox: list[Job] = []
        self._queue: queue.SimpleQueue[list[Job] | None] = queue.SimpleQueue()
        self._done: deque[Job] = deque()
        self._told = False  # the loop knows that something is done
        self._stopped = False
        self.waits = Waiting(self.loop, clock, self)
        self._thread = threading.Thread(target=self._work, name="postroom aio", daemon=True)
        start_thread(self._thread)

    # Calls

    async def run(
        self,
        call: Callable[[], T] | None,
        *,
        keep: bool = False,
        draft: Draft | None = None,
        question: Question | None = None,
    ) -> T:
        """Make a call in the thread and return what it returns.

        A task that is cancelled here leaves at once. A call that has not begun is then not made, unless it is to be
        kept; a claim of a call that had begun is given back.
        With a draft that is stored before, together with others that wait to be stored; without a call its id is
        returned after the commit. With a question the call is a step of it: answers that came together are taken
        together.
        """
        self.check_loop()
        if self._stopped or (self.closing and not keep):
            raise RoomClosed("this room is closed")
        future: asyncio.Future[T] = self.loop.create_future()
        job = Job(call, future, keep, draft, question)
        self._submit(job)
        try:
            return await future
        except asyncio.CancelledError:
            job.left = True
            if future.done() and not future.cancelled() and future.exception() is None:
                self.post(job.undo)  # it was done, and was on its way to the task that left
            raise

    def begin(self, call: Callable[[], T]) -> asyncio.Future[T]:
        """Make a call in the thread, before everything that is asked for after this.

        Its end may be waited for, or not.
        """
        self.check_loop()
        if self.closing:
            raise RoomClosed("this room is closed")
        future: asyncio.Future[T] = self.loop.create_future()
        self._submit(Job(call, future))
        future.add_done_callback(_look_at_error)
        return future

    def check_loop(self) -> None:
        """Raise RoomError in a loop that is not the room's. Where no loop runs, the room's own may be about to."""
        with suppress(RuntimeError):  # no loop runs
            if asyncio.get_running_loop() is not self.loop:
                raise RoomError("this room was opened in another event loop; open one in each loop that needs it")

    def _submit(self, job: Job) -> None:
        """Hand jobs over once per turn of the loop: drafts of one turn are stored together, and waking costs once."""
        if not self._outbox:
            self.loop.call_soon(self._flush)
        self._outbox.append(job)

    def _flush(self) -> None:
        jobs, self._outbox = self._outbox, []
        if jobs:
            self._queue.put(jobs)

    def post(self, call: Callable[[], object]) -> None:
        """Make a call in the thread for which nobody waits. From any thread, also while something is collected."""
        if self._stopped:
            with suppress(Exception):  # the store is closed: there is nothing left to wait for, and little to do
                call()
        else:
            self._queue.put([Job(call, None, keep=True)])

    # The thread

    def _work(self) -> None:
        jobs: deque[Job] = deque()
        last = False
        while jobs or not last:
            while not last and (not jobs or not self._queue.empty()):
                came = self._queue.get()
                last = came is None
                jobs += came or ()
                came = None  # while it waits for more, a message that its receiver dropped must not be known here
            if jobs:
                self._do(jobs)

    def _do(self, jobs: deque[Job]) -> None:
        """The next job; where it is a message, with all that stand behind it."""
        if jobs[0].question is not None and jobs[0].draft is None:
            self._take_answers(jobs)
        job = jobs.popleft()
        if job.draft is None:
            if job.keep or not job.left:
                self._call(job)
            self._end([job])
            return
        together = [job]
        while jobs and jobs[0].draft is not None and len(together) < MAX_TOGETHER:
            together.append(jobs.popleft())
        together = [job for job in together if not job.left]
        if together:
            self._put(together)
            self._end(together)

    def _take_answers(self, jobs: deque[Job]) -> None:
        """Look at all questions that stand at the head of the queue together, before each makes its step."""
        assert self.gateway is not None
        hinted = list(takewhile(lambda job: job.question is not None and job.draft is None, jobs))
        try:
            if len(hinted) > 1:
                take_answers(
                    self.gateway, [job.question for job in hinted if job.question is not None and not job.left]
                )
        except BaseException:  # a listener's: each takes its answer alone, and is told what goes wrong there
            log.warning("answers could not be taken together", exc_info=True, extra={"action": "aio_answers"})
        for job in hinted:
            job.question = None

    @staticmethod
    def _call(job: Job) -> None:
        assert job.call is not None
        try:
            job.result = job.call()
        except BaseException as error:  # noqa: BLE001  it belongs to the task that waits for the job
            job.error = error

    def _put(self, jobs: list[Job]) -> None:
        assert self.gateway is not None
        self.waits.stirred = True
        ends = self.gateway.put_each([job.draft for job in jobs if job.draft is not None])
        for job, end in zip(jobs, ends, strict=True):
            if not isinstance(end, str):
                job.error = end
            elif job.question is None:
                job.result = end
            else:  # also when its asker has just left: closing the steps then ends the question
                job.question.stored(end)
                self._call(job)

    def _end(self, jobs: list[Job]) -> None:
        reached("aio.done")
        tell = False
        for job in jobs:
            self.waits.stirred |= job.keep
            if job.future is None:
                if job.error is not None:
                    log.debug("a call without a waiter failed", exc_info=job.error, extra={"action": "aio_posted"})
            elif job.left:
                job.undo()
            else:
                self._done.append(job)
                tell = True
        if tell and not self._told:
            self._told = True
            try:
                self.loop.call_soon_threadsafe(self._deliver)
            except RuntimeError:  # the loop is closed: nobody will ever ask
                self._deliver_to_nobody()

    def _deliver_to_nobody(self) -> None:
        self._told = False
        while self._done:
            self._done.popleft().undo()

    def _deliver(self) -> None:
        """In the loop: give results to the waiting tasks; a result without a task is undone in the thread."""
        self._told = False
        while self._done:
            job = self._done.popleft()
            assert job.future is not None
            if job.future.done():
                self.post(job.undo)
            elif job.error is not None:
                job.future.set_exception(_for_future(job.error))
            else:
                job.future.set_result(job.result)

    # The end

    def wake_all(self) -> None:
        """The room closes: nothing new is taken, and all waiting tasks are told."""
        self.closing = True
        self.waits.wake_all()

    def stop(self) -> None:
        """End the thread, after what it was given before. It is over when this returns."""
        if not self._stopped:
            self._flush()
            self._stopped = True
            self._queue.put(None)
            self._thread.join()

    def give_up(self) -> None:
        """The room could not be opened, or nobody waits for it any more: the thread closes what is open, then ends."""
        self.post(lambda: None if self.gateway is None else self.gateway.close())
        self._stopped = True
        self._queue.put(None)


def _for_future(error: BaseException) -> BaseException:
    """The error as a future can hold it: it refuses a StopIteration, and the waiting task would wait for ever."""
    if not isinstance(error, StopIteration):
        return error
    told = RuntimeError("the call raised StopIteration")
    told.__cause__ = error
    return told


def _look_at_error(begun: asyncio.Future[Any]) -> None:
    """A waiting task gets the error; without one, asyncio need not complain of an error that was never looked at."""
    if not begun.cancelled():
        begun.exception()


class Course(Generic[T]):
    """Steps on their way: each is taken in the thread, the pauses between them are spent in the loop."""

    def __init__(self, worker: WorkerThread, steps: Steps[Any] | Series[Any]) -> None:
        self._worker = worker
        self._steps = steps
        self._pause: Pause | None = None
        self._unseen: Pause | Over | T | None = None  # their last item, until the task that asked for it has it
        self._unwanted = False

    async def next(self) -> Over | T:
        """What the steps give next, or their end. When it raises (also when it is cancelled) they are closed."""
        hinted = False
        try:
            while True:
                found = await self._take(hinted)
                if self._unwanted:
                    self.close()
                    return Over(None)
                if not isinstance(found, Pause):
                    self._unseen = None
                    return found
                self._pause = found
                hinted = await self._worker.waits.pause(found)
        except BaseException:
            self.close()
            raise

    def end(self) -> None:
        """Nobody wants more of it: a task that waits in `next` gets the end, and closes the steps. In the loop.

        They are not closed here: while somebody pauses, the loop watches a descriptor of theirs. See
        test_a_stream_that_is_closed_ends_the_loop_of_another_task.
        """
        self._unwanted = True
        pause = self._pause  # the thread takes it away when it takes a step
        if pause is not None:
            assert isinstance(pause.waiter, Listening)
            pause.waiter.ring()

    async def _take(self, hinted: bool) -> Pause | Over | T:
        """The next step, together with those of others where that saves commits."""
        if self._unwanted:
            return Over(None)
        first = self._pause is None
        question = self._steps if isinstance(self._steps, Question) and (first or hinted) else None
        draft = question.draft if question is not None and first else None
        return await self._worker.run(partial(self._step, hinted), draft=draft, question=question)

    def _step(self, hinted: bool) -> Pause | Over | T:
        """In the thread: take the hint, and one step."""
        pause, self._pause = self._pause, None
        if pause is not None and self._worker.gateway is not None:
            self._worker.gateway.check_there()
        if pause is not None and hinted:
            assert isinstance(pause.waiter, Listening)
            hinted = pause.waiter.watched or pause.waiter.wait(0)  # takes the hint, before looking
        found: Pause | Over | T
        try:
            found = cast("Pause | T", next(self._steps) if pause is None else self._steps.send(hinted))
        except StopIteration as end:
            found = Over(end.value)
        self._unseen = found
        return found

    def close(self) -> None:
        """End the steps where they stand: their claims are given back. In the thread, and not at once."""
        self._worker.post(self._close_steps)

    def _close_steps(self) -> None:
        """In the thread. An item that no task saw is returned before the steps give it back as one that failed.

        See test_a_loop_that_is_cancelled_before_it_sees_its_message_returns_it.
        """
        unseen, self._unseen = self._unseen, None
        _return_unseen(unseen)
        self._steps.close()

    async def finish(self) -> T:
        """Take the steps to their end."""
        over = await self.next()
        assert isinstance(over, Over)
        return cast("T", over.value)
