"""A manual clock that knows which threads wait for it, so that a test lets time pass only when all else is done."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from postroom.core.clock import ManualClock


class WatchedClock(ManualClock):
    """As `ManualClock`; `is_waiting` says whether a thread can do nothing before time passes."""

    def __init__(self, *args: Any, **settings: Any) -> None:
        super().__init__(*args, **settings)
        self._until_ns: dict[int, float | None] = {}

    def sleep(self, seconds: float) -> None:
        with self._lock, self._waiting(seconds):  # no time passes before it is known to wait
            super().sleep(seconds)

    def wait_readable(self, fds: Sequence[int], timeout_s: float | None) -> list[int]:
        with self._waiting(timeout_s):
            # what passed before it was known to wait counts, or it would wait for longer than is known
            until_ns = self._until_ns[threading.get_ident()]
            left_s = None if until_ns is None else max(0.0, (until_ns - self.steady_ns()) / 1e9)
            return super().wait_readable(fds, left_s)

    @contextmanager
    def _waiting(self, seconds: float | None) -> Iterator[None]:
        thread = threading.get_ident()
        self._until_ns[thread] = None if seconds is None else self.steady_ns() + seconds * 1e9
        try:
            yield
        finally:
            del self._until_ns[thread]

    def is_waiting(self, thread: threading.Thread) -> bool:
        """Whether the thread waits for this clock, for a time that has not come."""
        until_ns = self._until_ns.get(thread.ident or 0, 0)
        return until_ns is None or until_ns > self.steady_ns()
