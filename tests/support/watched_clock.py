"""A manual clock that knows which threads wait for it, so that a test lets time pass only when all else is done."""

from __future__ import annotations

import select
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from postroom.core.clock import ManualClock


class WatchedClock(ManualClock):
    """As `ManualClock`; `is_waiting` says whether a thread can do nothing before time passes."""

    def __init__(self, *args: Any, **settings: Any) -> None:
        super().__init__(*args, **settings)
        #: Until when each thread waits (None: for ever), and for which descriptors.
        self._waits: dict[int, tuple[float | None, Sequence[int]]] = {}

    def sleep(self, seconds: float) -> None:
        with self._lock, self._waiting(self.steady_ns() + seconds * 1e9):  # no time passes before it is known to wait
            super().sleep(seconds)

    def wait_readable(self, fds: Sequence[int], timeout_s: float | None) -> list[int]:
        until_ns = None if timeout_s is None else self.steady_ns() + timeout_s * 1e9
        with self._waiting(until_ns, fds):
            # until that moment, and not for that time: some of it may pass before the thread gets its turn
            return self._wait_until(fds, until_ns)

    @contextmanager
    def _waiting(self, until_ns: float | None, fds: Sequence[int] = ()) -> Iterator[None]:
        thread = threading.get_ident()
        self._waits[thread] = until_ns, fds
        try:
            yield
        finally:
            del self._waits[thread]

    def is_waiting(self, thread: threading.Thread) -> bool:
        """Whether the thread waits for this clock, for a time that has not come, and nothing else wakes it either."""
        until_ns, fds = self._waits.get(thread.ident or 0, (0, ()))
        return (until_ns is None or until_ns > self.steady_ns()) and not readable(fds)


def readable(fds: Sequence[int]) -> bool:
    poll = select.poll()
    for fd in fds:
        poll.register(fd, select.POLLIN)
    return bool(poll.poll(0))
