"""The background event loop of a connection to NATS servers, and calls to it from other threads."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextlib import suppress
from typing import Any

from postroom.core.system.process import start_thread
from postroom.errors import RoomClosed, RoomError

from .access import Access
from .callbacks import Troubled


class Loop:
    """The background loop of this process. It runs while somebody uses it.

    A call that was interrupted can be made again.
    """

    def __init__(self) -> None:
        self._lock = threading.RLock()  # a signal's handler may open a room in the middle of this
        self._users: set[object] = set()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None

    def enter(self, user: object) -> asyncio.AbstractEventLoop:
        with self._lock:
            if self._loop is None or not self._users:
                self._stop()  # one that nobody stopped, because that was interrupted
                self._loop = asyncio.new_event_loop()
                self._thread = threading.Thread(target=self._run, args=(self._loop,), name="postroom nats", daemon=True)
                start_thread(self._thread)
            self._users.add(user)
            return self._loop

    @staticmethod
    def _run(loop: asyncio.AbstractEventLoop) -> None:
        asyncio.set_event_loop(loop)
        loop.run_forever()
        left = asyncio.all_tasks(loop)
        for task in left:
            task.cancel()
        loop.run_until_complete(asyncio.gather(*left, return_exceptions=True))
        loop.run_until_complete(loop.shutdown_asyncgens())
        loop.close()

    def _stop(self) -> None:
        if self._loop is not None:
            with suppress(RuntimeError):  # it has ended
                self._loop.call_soon_threadsafe(self._loop.stop)

    def leave(self, user: object) -> None:
        with self._lock:
            self._users.discard(user)
            if self._users:
                return
            self._stop()
            thread = self._thread
        if thread is not None:
            thread.join()

    def wait_for(self, call: LoopCall, timeout_s: float) -> Any:
        """Wait in the caller's thread for the answer to a call; None when time ran out."""
        return call.wait(timeout_s)

    def client(self, access: Access, troubled: Troubled) -> tuple[Any, type[Exception]]:
        """A client that is not connected yet, and the class of its errors. Raises RoomError without nats-py."""
        try:
            from .client import Error, RoomClient
        except ImportError:
            raise RoomError(
                "rooms on NATS need the package nats-py; install it with: pip install 'postroom[nats]'"
            ) from None
        return RoomClient(access, troubled), Error


_background = Loop()


def play_background(background: Loop) -> Loop:
    """For the simulation: rooms that are opened from now on live on this. Returns what was in use."""
    global _background
    before, _background = _background, background
    return before


def forget_loop_after_fork() -> None:
    """The loop of the process before belongs to it alone: its thread did not come along."""
    play_background(Loop())


class LoopCall:
    """Something that a caller waits for in its own thread, and the background loop answers, once. Answered as a future
    is.

    The loop must never wait for a caller. The handler of a signal may raise at any moment of the caller's waiting, and
    in the middle of a future of concurrent.futures that leaves the lock of a condition taken, which the loop needs to
    answer: it would stand still, and every room of the process with it (tests/faults/test_handlers.py). Here it only
    releases a lock, which never waits.
    """

    __slots__ = ("_done", "_error", "_lock", "_reply", "is_dropped")

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._lock.acquire()
        self._done = False
        self._reply: Any = None
        self._error: BaseException | None = None
        #: Whether its caller was interrupted, and waits no more.
        self.is_dropped = False

    def done(self) -> bool:
        return self._done

    def set_result(self, reply: Any) -> None:
        self._reply, self._done = reply, True
        self._lock.release()

    def set_exception(self, error: BaseException) -> None:
        self._error, self._done = error, True
        self._lock.release()

    def wait(self, timeout_s: float = -1) -> Any:
        """The reply, or None when time ran out (-1: it never does). Raises the error that it was answered with."""
        if not self._lock.acquire(timeout=timeout_s):
            return None
        if self._error is not None:
            raise self._error
        return self._reply

    def end(self) -> None:
        """Nobody needs the answer any more. On the loop, as the setters are."""
        if not self._done:
            self.set_exception(RoomClosed("the room was closed meanwhile"))


class Errand(LoopCall):
    """Coroutines that the loop runs for a caller, all at once. The answer: the result of each, or what it raised."""

    __slots__ = ("_task", "_works")

    def __init__(self, works: Sequence[Coroutine[Any, Any, Any]]) -> None:
        super().__init__()
        self._works = works
        self._task: asyncio.Future[Any] | None = None

    def begin(self) -> None:
        """Run them. On the loop."""
        if self._done or self.is_dropped:
            self.end()
            return
        self._task = asyncio.gather(*self._works, return_exceptions=True)
        self._task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Future[Any]) -> None:
        is_cancelled = task.cancelled() or task.exception() is not None  # of several it is their error
        if self._done or is_cancelled:
            self.end()
        else:
            self.set_result(task.result())

    def end(self) -> None:
        super().end()
        if self._task is None:
            self.forget()
        else:
            self._task.cancel()

    def forget(self) -> None:
        """Forget works that were not begun, and never will be, without a warning of Python's."""
        for work in self._works:
            work.close()


class Link:
    """The background loop as one room uses it, from any thread. No method holds a lock that an interrupt could leave
    taken.

    Nor one for which the handler of a signal would wait in vain: a call is noted before it is looked whether the room
    is closed, and closing says so before it ends the calls.
    """

    def __init__(self) -> None:
        self._calls: set[LoopCall] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._again: set[asyncio.Task[None]] = set()
        self._is_closed = self._is_left = False
        self._closer: int | None = None
        self.background = _background
        self.loop = self.background.enter(self)

    def hand_over(self, act: Callable[..., object], *arguments: Any) -> None:
        """Let the loop do this soon. Raises RoomClosed where it has ended."""
        try:
            self.loop.call_soon_threadsafe(act, *arguments)
        except RuntimeError:
            if self.loop.is_closed():
                raise RoomClosed from None
            raise

    def wait_for(self, call: LoopCall, act: Callable[..., object], *arguments: Any, timeout_s: float = -1) -> Any:
        """Let the loop do something that answers a call, and wait for the answer; None when time ran out. Raises
        RoomClosed.

        Interrupted, the call is dropped: the loop ends what it has begun for it, and forgets what it has not.
        """
        try:
            self._calls.add(call)
            if self._is_closed:
                raise RoomClosed
            self.hand_over(act, *arguments)
            return self.background.wait_for(call, timeout_s)
        except BaseException:
            call.is_dropped = True
            if not call.done():
                try:
                    self.hand_over(call.end)  # also wakes the loop, should the interrupt have kept it from that before
                except RoomClosed:
                    call.end()
            raise
        finally:
            self._calls.discard(call)

    def soon(self, call: Callable[[], Awaitable[Any]]) -> None:
        """Do this on the loop, and wait for nothing."""
        if not self._is_closed:
            with suppress(RoomClosed):
                self.hand_over(self._keep, self._tasks, call)

    def every(self, seconds: float, call: Callable[[], Awaitable[Any]]) -> None:
        """Do this again and again, until the room is closed. Only from the loop itself."""

        async def again() -> None:
            while True:
                await asyncio.sleep(seconds)
                await quietly(call)

        if not self._is_closed:
            self._keep(self._again, again)

    def _keep(self, tasks: set[asyncio.Task[None]], call: Callable[[], Awaitable[Any]]) -> None:
        task = self.loop.create_task(quietly(call))
        tasks.add(task)  # the loop itself knows it weakly
        task.add_done_callback(tasks.discard)

    def close(self, last: Callable[[], Awaitable[Any]]) -> None:
        """End all calls, do this as the last, and let the loop go.

        Safe to call twice: the second does what an interrupt left.
        """
        self._is_closed, me = True, threading.get_ident()
        if self._closer not in (None, me):
            return  # another thread does it
        self._closer = me
        try:
            if not self._is_left:
                self._end(Errand([quietly(last)]))
            self.leave()  # and not before: the connection would stay open when the loop ends under it
        except BaseException:
            self._closer = None  # the next call does the rest
            raise

    def _end(self, last: Errand) -> None:
        try:
            self.hand_over(self._end_calls)
            self.hand_over(last.begin)
            self.background.wait_for(last, -1)
        except RoomClosed:
            last.forget()  # the loop has ended: a signal's handler has closed the room in the middle of this

    def _end_calls(self) -> None:
        for call in tuple(self._calls):
            call.end()
        for task in tuple(self._again):
            task.cancel()

    def leave(self) -> None:
        """Let the loop go, which ends when nobody uses it any more."""
        self._is_left = True
        self.background.leave(self)


async def quietly(call: Callable[[], Awaitable[Any]]) -> None:
    """Await this; errors are dropped, since nobody waits for them."""
    with suppress(Exception):  # a connection that ends anyway, a hint that others give too
        await call()
