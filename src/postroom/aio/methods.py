"""How the synchronous room's methods become those of an asyncio room: run in its thread, or taken step by step."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Coroutine, Iterable
from functools import partial, wraps
from typing import Any, Concatenate, Final, Generic, ParamSpec, Self, TypeVar, cast

from .bridge import Course, Over, WorkerThread

P = ParamSpec("P")
T = TypeVar("T")
U = TypeVar("U")
S = TypeVar("S")
#: A method that is to be awaited, of an object that holds `_sync` and `_worker`.
Awaited = Callable[Concatenate[Any, P], Coroutine[Any, Any, T]]
#: What the help of each stream ends with.
_HOW_TO_READ: Final = "Read it with `async for`; inside `async with`, it ends when the block ends."
#: Makes what a caller gets of what the synchronous method gave: an object that is to be awaited itself.
Show = Callable[[WorkerThread, T], U]


class Mirror(Generic[S]):
    """An object of the asyncio room: the synchronous one behind it, and the thread in which that may be used."""

    def __init__(self, worker: WorkerThread, sync: S) -> None:
        self._worker = worker
        self._sync = sync

    async def _ready(self) -> None:
        """Return when it can be used."""

    def __repr__(self) -> str:
        return repr(self._sync)


def in_thread(method: Callable[Concatenate[S, P], T], *, anyway: bool = False) -> Awaited[P, T]:
    """A synchronous method, to be awaited: it runs in the room's thread.

    `anyway` is for the word of a receiver on a message: it is carried out also when the caller is cancelled.
    """

    @wraps(method)
    async def call(self: Any, /, *args: P.args, **kwargs: P.kwargs) -> T:
        if not anyway:
            await self._ready()
        worker: WorkerThread = self._worker
        return await worker.run(partial(method, self._sync, *args, **kwargs), keep=anyway)

    return call


def of_what_is_held(method: Callable[Concatenate[S, P], T]) -> Awaited[P, T]:
    """The same, for a method that finds what its caller held before: a caller that is cancelled holds it still."""

    @wraps(method)
    async def call(self: Any, /, *args: P.args, **kwargs: P.kwargs) -> T:
        await self._ready()
        worker: WorkerThread = self._worker
        # a tuple is no claim, and so is not given back when the task has left (see Job.undo)
        (found,) = await worker.run(lambda: (method(self._sync, *args, **kwargs),))
        return found

    return call


def in_steps(method: Callable[Concatenate[S, P], T]) -> Awaited[P, T]:
    """A synchronous method that ends at the gateway: here it only begins, and what the gateway returns is awaited."""

    @wraps(method)
    async def call(self: Any, /, *args: P.args, **kwargs: P.kwargs) -> T:
        await self._ready()
        begun = cast("Coroutine[Any, Any, T]", method(self._sync, *args, **kwargs))
        return await begun

    return call


def giving(show: Show[T, U], method: Awaited[P, T]) -> Awaited[P, U]:
    """One of the above, for a method that gives an object whose own methods are to be awaited."""

    @wraps(method)
    async def call(self: Any, /, *args: P.args, **kwargs: P.kwargs) -> U:
        return show(self._worker, await method(self, *args, **kwargs))

    return call


def if_any(show: Show[T, U]) -> Show[T | None, U | None]:
    """The same, where there may be none."""
    return lambda worker, given: None if given is None else show(worker, given)


def as_it_is(_: WorkerThread, given: T) -> T:
    """Plain data needs no thread."""
    return given


def in_stream(
    show: Show[T, U], method: Callable[Concatenate[S, P], Iterable[T]], *, here: bool = False
) -> Callable[Concatenate[Any, P], Stream[U]]:
    """A synchronous method that gives one thing after the other, for `async for`.

    It begins with the call, not with the first item: "from now on" means after the call. It begins in the room's
    thread; `here` is for one that only checks its arguments before it comes to the gateway, like those of `in_steps`.
    """

    @wraps(method)
    def call(self: Any, /, *args: P.args, **kwargs: P.kwargs) -> Stream[U]:
        worker: WorkerThread = self._worker
        beginning = partial(method, self._sync, *args, **kwargs)
        begun: Any = beginning() if here else worker.begin(beginning)

        async def begin() -> Course[Any]:
            await self._ready()
            return cast("Course[Any]", begun if here else await asyncio.shield(begun))  # see LoopGateway.each

        return Stream(worker, begin, partial(show, worker))

    call.__name__ = method.__name__.lstrip("_")  # also of a function that stands outside of its class
    call.__doc__ = f"{inspect.cleandoc(method.__doc__ or '')}\n\n{_HOW_TO_READ}"
    call.__signature__ = _signature_of_stream(method)  # type: ignore[attr-defined]
    return call


def _signature_of_stream(method: Callable[..., object]) -> inspect.Signature:
    """The signature to show: that of the synchronous method, but for `async for`."""
    signature = inspect.signature(method)
    shown = [each for each in signature.parameters.values() if not each.name.startswith("_")]
    itself, *parameters = shown
    itself = itself.replace(name="self", annotation=inspect.Parameter.empty)
    _, bracket, item = str(signature.return_annotation).partition("[")
    return signature.replace(parameters=[itself, *parameters], return_annotation=f"AsyncIterator{bracket}{item}")


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
            raise RuntimeError("two tasks are reading the same stream; give each its own stream")
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
        """End it. Its last item, if it was not settled, is given back when this returns. Safe to call twice.

        Where another task waits for the next item, its loop ends.
        """
        self._end()
        await self._idle.wait()
        if not self._worker.closing:
            await self._worker.run(lambda: None, keep=True)  # behind the end in the thread's queue

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
