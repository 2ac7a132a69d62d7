"""Publish and subscribe between the follower's thread and the event loop: every open page has a subscriber."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Final, ParamSpec, TypeVar

from postroom.errors import RoomClosed
from postroom.room import Room
from postroom.stores.contract import Change

from .follower import FeedFollower, PageFrame
from .hour import Hour, fill
from .reading import RoomReading
from .views import Views

P = ParamSpec("P")
T = TypeVar("T")

#: Frames that wait for a page that is slow. One that falls further behind is told to look anew.
MAX_FRAMES: Final = 100
#: Threads that ask the room; a slow question does not keep the feed waiting.
THREADS: Final = 4
MAX_PAGES: Final = 32


class Subscriber:
    """One open page, or another program that follows."""

    def __init__(self) -> None:
        self.frames: deque[PageFrame] = deque()
        self.stirred = asyncio.Event()

    def add(self, frame: PageFrame) -> None:
        """A frame for this page. Too many that were not taken become one that says so."""
        if len(self.frames) >= MAX_FRAMES:
            self.frames.clear()
            frame = PageFrame(frame.number, b"[]", frame.changes, jumped=True)
        self.frames.append(frame)
        self.stirred.set()

    def take(self) -> list[PageFrame]:
        """The frames since the last time."""
        self.stirred.clear()
        taken = list(self.frames)
        self.frames.clear()
        return taken


class Hub:
    """Everything that the server knows of the room. Made and used in the loop."""

    def __init__(self, room: Room) -> None:
        self.room = room
        self.reading = RoomReading(room)
        self.hour = Hour()
        self.views = Views(room, lambda: self.hour)
        self.closing = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        self._subscribers: set[Subscriber] = set()
        self._executor = ThreadPoolExecutor(THREADS, thread_name_prefix="postroom web")
        self._follower = FeedFollower(room, began=self._began, seen=self._seen, told=self._told)

    async def ask(self, question: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Ask the room in a thread; a store may take its time."""
        if self.closing.is_set():
            raise RoomClosed("the server is being stopped")
        return await self._loop.run_in_executor(self._executor, lambda: question(*args, **kwargs))

    async def subscribe(self) -> tuple[Subscriber, Callable[[], None]]:
        """A new page: from now on it gets every frame. Returns it and a function that ends it."""
        subscriber = Subscriber()
        self._subscribers.add(subscriber)
        watching = asyncio.ensure_future(self.ask(self._follower.watch))

        def end() -> None:
            self._subscribers.discard(subscriber)
            # a page that left while it began to watch is removed as soon as it did
            watching.add_done_callback(lambda done: None if done.cancelled() or done.exception() else done.result()())

        try:
            await asyncio.shield(watching)
        except BaseException:
            end()
            raise
        return subscriber, end

    @property
    def is_full(self) -> bool:
        return len(self._subscribers) >= MAX_PAGES

    # In the follower's thread

    def _began(self, number: int) -> None:
        hour = self.hour = Hour()
        self._executor.submit(fill, self.room, hour, number)

    def _seen(self, changes: list[Change]) -> None:
        self.hour.add(changes)

    def _told(self, frame: PageFrame) -> None:
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._spread, frame)

    # In the loop

    def _spread(self, frame: PageFrame) -> None:
        for subscriber in self._subscribers:
            subscriber.add(frame)

    def stop(self) -> None:
        """Let every stream end."""
        self.closing.set()
        for subscriber in self._subscribers:
            subscriber.stirred.set()

    def close(self) -> None:
        """End the threads. Not in the loop: they may be in the middle of something."""
        self._follower.close()
        self._executor.shutdown(wait=True, cancel_futures=True)
