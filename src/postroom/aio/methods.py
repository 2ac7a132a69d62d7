"""How the synchronous room's methods become those of an asyncio room: run in its thread, or taken step by step."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from functools import partial, wraps
from typing import Any, Concatenate, Generic, ParamSpec, Self, TypeVar, cast

from .bridge import Course, Over, WorkerThread

P = ParamSpec("P")
T = TypeVar("T")
#: One of the synchronous objects. Those of asyncio hold it as `_sync`, and the thread in which it may be used as
#: `_worker`.
S = TypeVar("S")


def in_thread(method: Callable[Concatenate[S, P], T]) -> Callable[Concatenate[Any, P], Coroutine[Any, Any, T]]:
    """A synchronous method, to be awaited: it runs in the room's thread."""

    @wraps(method)
    async def call(self: Any, /, *args: P.args, **kwargs: P.kwargs) -> T:
        await self._ready()
        worker: WorkerThread = self._worker
        return await worker.run(partial(method, self._sync, *args, **kwargs))

    return call


def in_thread_anyway(method: Callable[Concatenate[S, P], T]) -> Callable[Concatenate[Any, P], Coroutine[Any, Any, T]]:
    """The same, for what a receiver says of a message: it is carried out also when the caller is cancelled."""

    @wraps(method)
    async def call(self: Any, /, *args: P.args, **kwargs: P.kwargs) -> T:
        worker: WorkerThread = self._worker
        return await worker.run(partial(method, self._sync, *args, **kwargs), keep=True)

    return call


def in_steps(method: Callable[Concatenate[S, P], T]) -> Callable[Concatenate[Any, P], Coroutine[Any, Any, T]]:
    """A synchronous method that ends at the gateway: here it only begins, and what the gateway returns is awaited."""

    @wraps(method)
    async def call(self: Any, /, *args: P.args, **kwargs: P.kwargs) -> T:
        await self._ready()
        begun = cast("Coroutine[Any, Any, T]", method(self._sync, *args, **kwargs))
        return await begun

    return call


class Stream(Generic[T]):
    """One thing after the other, for `async for`. A loop that ends in the middle gives back what it did not settle.

    With `async with` around it (or `await stream.aclose()`) that has happened when the block is over; otherwise it
    happens a moment after the loop. A stream that was cancelled while it waited is over.
    """

    def __init__(
        self, worker: WorkerThread, begin: Callable[[], Coroutine[Any, Any, Course[Any]]], show: Callable[[Any], T]
    ) -> None:
        self._worker = worker
        self._begin = begin
        self._show = show
        self._course: Course[Any] | None = None
        self._idle = asyncio.Event()  # nobody waits for the next item
        self._idle.set()
        self._over = False

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> T:
        if not self._idle.is_set():
            raise RuntimeError("two tasks ask the same stream for its next item; give each a stream of its own")
        if self._over:
            raise StopAsyncIteration
        self._idle.clear()
        try:
            item = await self._next()
        except BaseException:
            self._over = True
            raise
        finally:
            self._idle.set()
        if isinstance(item, Over):
            self._over = True
            raise StopAsyncIteration
        return self._show(item)

    async def _next(self) -> Any:
        if self._course is None:
            self._course = await self._begin()
            if self._over:  # it was closed meanwhile
                self._course.end()
        return await self._course.next()

    async def aclose(self) -> None:
        """End it. What it gave last and was not settled is given back when this returns. Safe to call twice.

        Where another task waits for the next item, its loop ends.
        """
        self._end()
        await self._idle.wait()
        if not self._worker.closing:
            await self._worker.run(_nothing, keep=True)  # behind the end in the thread's queue

    def _end(self) -> None:
        self._over = True
        if self._course is None:
            return
        if self._idle.is_set():
            self._course.close()
        else:
            self._course.end()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    def __del__(self) -> None:
        if not getattr(self, "_over", True):
            self._end()


def _nothing() -> None:
    pass
