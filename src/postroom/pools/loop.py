"""The event loop of all pools of this process, in one thread: what workers say, how they end, what is due.

It runs while a pool needs it (`enter`, `leave`). Everything that happens to a worker's process happens here, one thing
after the other; requests and pings are mostly handled by the threads that wait for them (`pools/line.py`).
"""

from __future__ import annotations

import heapq
import logging
import os
import selectors
import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from itertools import count
from typing import Final

from postroom.core.clock import SYSTEM
from postroom.core.system.process import join_thread, start_thread

log = logging.getLogger("postroom")

Call = Callable[[], None]
_FAR_NS: Final = 1 << 62
_LONGEST_SLEEP_S: Final = 86_400.0  # the system counts milliseconds in 32 bits


@dataclass(slots=True, eq=False)
class Timer:
    """A call that is due at a moment of the steady clock, unless it is cancelled before."""

    due_ns: int
    call: Call
    cancelled: bool = False

    def cancel(self) -> None:
        """Do not call. Safe to call twice, and after the call."""
        self.cancelled = True


class PoolLoop:
    """A thread, the descriptors it watches and the calls it owes. `call` and `call_at` may come from any thread."""

    def __init__(self, selector: selectors.BaseSelector | None = None) -> None:
        self._lock = threading.Lock()
        self._selector = selector or selectors.DefaultSelector()
        self._woken, self._wake = os.pipe()
        os.set_blocking(self._woken, False)
        os.set_blocking(self._wake, False)
        self._selector.register(self._woken, selectors.EVENT_READ, self._clear)
        self._calls: deque[Call] = deque()
        self._timers: list[tuple[int, int, Timer]] = []
        self._numbers = count()
        self._sleeps_until_ns = 0  # 0: it is awake, and will look at calls and timers before it sleeps
        self._stop = False
        self.users = 0  # pools that entered it
        self.thread = threading.Thread(target=self._run, name="postroom pool", daemon=True)
        start_thread(self.thread)

    def call(self, call: Call) -> None:
        """Make a call in the loop's thread, soon."""
        self._calls.append(call)
        with self._lock:
            if self._sleeps_until_ns:
                self._wake_up()

    def call_at(self, due_ns: int, call: Call) -> Timer:
        """Make a call in the loop's thread at a moment of the steady clock."""
        timer = Timer(due_ns, call)
        with self._lock:
            heapq.heappush(self._timers, (due_ns, next(self._numbers), timer))
            if self._sleeps_until_ns > due_ns:
                self._wake_up()
        return timer

    def is_here(self) -> bool:
        """Whether this is the loop's own thread, which must never wait."""
        return threading.current_thread() is self.thread

    # In the loop's thread

    def watch(self, descriptor: int, call: Call, *, read: bool = True, write: bool = False) -> None:
        """Call whenever the descriptor can be read, or written. Watching again replaces what was."""
        events = (selectors.EVENT_READ if read else 0) | (selectors.EVENT_WRITE if write else 0)
        if not events:
            self.unwatch(descriptor)
        elif descriptor in self._selector.get_map():
            self._selector.modify(descriptor, events, call)
        else:
            self._selector.register(descriptor, events, call)

    def unwatch(self, descriptor: int) -> None:
        """No more calls for the descriptor. Safe to call twice."""
        with suppress(KeyError, ValueError):
            self._selector.unregister(descriptor)

    def _run(self) -> None:
        while not self._stop:
            for key, _ in self._selector.select(self._timeout_s()):
                # The call before may have closed this one, and its number may be another's by now
                # (tests/pools/test_loop.py).
                if self._selector.get_map().get(key.fd) == key:
                    self._do(key.data)
            self._sleeps_until_ns = 0
            while self._calls:
                self._do(self._calls.popleft())
            for timer in self._due():
                if not timer.cancelled:  # perhaps by the one before it
                    self._do(timer.call)
        self._selector.close()
        os.close(self._woken)
        os.close(self._wake)

    def _do(self, call: Call) -> None:
        try:
            call()
        except Exception:
            log.exception("looking after a worker failed", extra={"action": "pool_loop"})

    def _timeout_s(self) -> float | None:
        with self._lock:
            while self._timers and self._timers[0][2].cancelled:
                heapq.heappop(self._timers)
            if self._calls or self._stop:
                return 0
            if not self._timers:
                self._sleeps_until_ns = _FAR_NS
                return None
            due_ns = self._timers[0][0]
            self._sleeps_until_ns = max(1, due_ns)
            return min(max(0, due_ns - SYSTEM.steady_ns()) / 1e9, _LONGEST_SLEEP_S)

    def _due(self) -> list[Timer]:
        """Those that are due, also if they are cancelled."""
        found = []
        with self._lock:
            now_ns = SYSTEM.steady_ns()
            while self._timers and self._timers[0][0] <= now_ns:
                found.append(heapq.heappop(self._timers)[2])
        return found

    def _wake_up(self) -> None:
        """With the lock. The bell comes first: after an interrupt between the two the next one rings again."""
        with suppress(BlockingIOError):  # it was rung often enough
            os.write(self._wake, b"!")
        self._sleeps_until_ns = 0

    def _clear(self) -> None:
        with suppress(BlockingIOError):
            os.read(self._woken, 4096)

    def stop(self) -> None:
        """End the thread, after what it was given before. Over when it returns, unless it is the caller."""

        def stop() -> None:
            self._stop = True

        self.call(stop)
        if not self.is_here():
            join_thread(self.thread, None)


_lock = threading.Lock()
_shared: PoolLoop | None = None


def enter() -> PoolLoop:
    """The loop of this process; it runs until every pool that entered has left."""
    global _shared  # noqa: PLW0603  (one process, one loop)
    with _lock:
        if _shared is None:
            _shared = PoolLoop()
        _shared.users += 1
        return _shared


def leave(loop: PoolLoop) -> None:
    """One user less. The thread of the last one is over when it returns."""
    global _shared  # noqa: PLW0603  (one process, one loop)
    with _lock:
        loop.users -= 1
        if loop.users:
            return
        _shared = None
    loop.stop()


def _forget_after_fork() -> None:
    global _lock, _shared
    _lock, _shared = threading.Lock(), None


os.register_at_fork(after_in_child=_forget_after_fork)
