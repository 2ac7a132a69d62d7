"""The background loop of one simulated process: the coroutines of its rooms on NATS, one turn at a time.

It has no thread. Nothing on such a loop ever waits, so that the world lets it take its turns in the thread that asks it
who is next; time is the world's.
"""

from __future__ import annotations

import asyncio
import threading
from asyncio import events
from collections import deque
from collections.abc import Callable, Coroutine
from contextvars import Context
from heapq import heappop, heappush
from queue import Empty
from typing import Any, Final

from postroom.stores.nats.callbacks import Troubled
from postroom.stores.nats.link import Loop, LoopCall

from .nats_client import ClientError, Network, SimulatedClient
from .process import Process
from .stage import NEVER_NS
from .world import ThreadlessTurn, World

_SECOND_NS: Final = 1_000_000_000


class SimulatedLoop(ThreadlessTurn):
    """An event loop that runs what is ready when the world says so: of `AbstractEventLoop` what a room uses."""

    def __init__(self, world: World, process: Process) -> None:
        super().__init__(process)
        #: asyncio's own functions are given it.
        self._me: Any = self
        self.owner = process
        self._world = world
        self._ready: deque[events.Handle] = deque()
        self._came: deque[Callable[[], None]] = deque()  # over the connections
        self._timers: list[tuple[int, int, events.TimerHandle]] = []
        self._timed = 0
        self._tasks: set[asyncio.Task[Any]] = set()
        self._is_closed = False

    # A turn

    def next_ns(self) -> int:
        if self._ready or self._came:
            return 0
        while self._timers and self._timers[0][2].cancelled():
            heappop(self._timers)
        return self._timers[0][0] if self._timers else NEVER_NS

    def has_work(self) -> bool:
        """Whether something could be done now."""
        return self.next_ns() <= self._world.clock.now_ns

    def take(self) -> None:
        """Do what is ready. What comes over the connections meanwhile waits for the next turn."""
        now_ns = self._world.clock.now_ns
        while self._came:
            self.call_soon(self._came.popleft())
        while self._timers and self._timers[0][0] <= now_ns:
            self._ready.append(heappop(self._timers)[2])
        before = events._get_running_loop()
        events._set_running_loop(self._me)
        try:
            while self._ready:
                handle = self._ready.popleft()
                if not handle.cancelled():
                    handle._run()
        finally:
            events._set_running_loop(before)

    def end(self) -> None:
        """The schedule is over: take down what is left."""
        self._is_closed = True
        for left in (self._ready, self._came, self._timers):
            left.clear()
        for task in tuple(self._tasks):
            task.cancel()
        self.take()

    def come(self, call: Callable[[], None]) -> None:
        """Something came over a connection."""
        self._came.append(call)

    # What asyncio asks of a loop

    def time(self) -> float:
        return self._world.clock.now_ns / _SECOND_NS

    def call_soon(self, callback: Callable[..., Any], *args: Any, context: Context | None = None) -> events.Handle:
        handle = events.Handle(callback, args, self._me, context)
        self._ready.append(handle)
        return handle

    def call_soon_threadsafe(
        self, callback: Callable[..., Any], *args: Any, context: Context | None = None
    ) -> events.Handle:
        if self._is_closed:
            raise RuntimeError("the loop is closed")
        return self.call_soon(callback, *args, context=context)

    def call_later(
        self, delay: float, callback: Callable[..., Any], *args: Any, context: Context | None = None
    ) -> events.TimerHandle:
        return self.call_at(self.time() + delay, callback, *args, context=context)

    def call_at(
        self, when: float, callback: Callable[..., Any], *args: Any, context: Context | None = None
    ) -> events.TimerHandle:
        handle = events.TimerHandle(when, callback, args, self._me, context)
        self._timed += 1
        heappush(self._timers, (round(when * _SECOND_NS), self._timed, handle))
        return handle

    def _timer_handle_cancelled(self, handle: events.TimerHandle) -> None:
        """It is passed by when its time comes."""

    def create_future(self) -> asyncio.Future[Any]:
        return asyncio.Future(loop=self._me)

    def create_task(
        self, coro: Coroutine[Any, Any, Any], *, name: str | None = None, context: Context | None = None
    ) -> asyncio.Task[Any]:
        task = asyncio.Task(coro, loop=self._me, name=name, context=context)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        error = context.get("exception")
        if not self._is_closed and isinstance(error, Exception):
            self._world.fail(error)

    def get_debug(self) -> bool:
        return False

    def is_running(self) -> bool:
        return not self._is_closed

    def is_closed(self) -> bool:
        return self._is_closed


class SimulatedBackground(Loop):
    """The background of the rooms of a world: a loop for each of its processes."""

    def __init__(self, world: World, network: Network, *, opens_at_once: bool) -> None:
        super().__init__()
        self.opens_at_once = opens_at_once
        self._world = world
        self._network = network
        self.loops: dict[Process, SimulatedLoop] = {}
        #: The clients, and the processes that have them.
        self.clients: dict[SimulatedClient, Process] = {}
        #: While a process opens a room in one step: its loop.
        self.at_once: SimulatedLoop | None = None

    def enter(self, user: object) -> Any:
        assert self._world.stage.current is not None
        process = self._world.stage.current.process
        assert isinstance(process, Process)
        if process not in self.loops:
            self.loops[process] = SimulatedLoop(self._world, process)
            self._world.turns.append(self.loops[process])
        if self.opens_at_once:
            self.at_once = self.loops[process]
        return self.loops[process]

    def leave(self, user: object) -> None:
        """Loops end with the schedule."""

    def wait_for(self, call: LoopCall, timeout_s: float) -> Any:
        if self.at_once is not None:
            self._world.take_turns(self.at_once, call.done)
        if call.done():
            self._world.point()
        self._world.wait_until(call.done, None if timeout_s < 0 else timeout_s)
        return call.wait(0)

    def client(self, access: object, troubled: Troubled) -> tuple[Any, type[Exception]]:
        loop: Any = asyncio.get_running_loop()
        assert isinstance(loop, SimulatedLoop)
        client = SimulatedClient(self._network, loop._me, loop.come)
        self.clients[client] = loop.owner
        return client, ClientError


class StageLock:
    """A lock at which one thread of a simulated process waits for another, while others go on. Reentrant.

    The thread that releases it may be overtaken by the loop of its process, if that has something to do.
    """

    def __init__(self, world: World, loop: SimulatedLoop) -> None:
        self._world = world
        self._loop = loop
        self._owner: int | None = None
        self._depth = 0

    def __enter__(self) -> bool:
        me = threading.get_ident()
        if self._owner != me:
            if self._owner is not None:
                self._world.wait_until(lambda: self._owner is None, None)
            self._owner = me
        self._depth += 1
        return True

    def __exit__(self, *_: object) -> None:
        self._depth -= 1
        if not self._depth:
            self._owner = None
            self._world.point_if(self._loop.has_work)


class StageQueue:
    """What `queue.SimpleQueue` is to a store that waits for its threads when it is closed."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._items: deque[None] = deque()

    def put(self, item: None) -> None:
        self._items.append(item)

    def get(self, timeout: float) -> None:
        self._world.wait_until(lambda: bool(self._items), timeout)
        if not self._items:
            raise Empty
        self._items.popleft()
