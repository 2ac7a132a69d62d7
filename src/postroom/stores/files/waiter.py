"""Waiting in a files room: for a bell, which other Postroom processes ring, or for files that somebody drops."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from postroom.core.clock import Clock
from postroom.core.system.watch import FolderWatch, gather
from postroom.stores.contract import Waiter


class FilesWaiter(Waiter):
    """A bell, together with the watch over the room's folders that all waiters of this process share."""

    def __init__(
        self,
        bell: Waiter,
        topics: tuple[str, ...],
        watch: FolderWatch | None,
        hear: Callable[[], set[str]],
        forget: Callable[[], None],
        clock: Clock,
    ) -> None:
        self._bell = bell
        self._topics = frozenset(topics)
        self._hear = hear
        self._forget = forget
        self._clock = clock
        self._both: Any = None
        self._look_every_s = None if watch is None else watch.look_every_s
        if watch is not None and self._look_every_s is None:
            self._both = gather([bell.fileno(), watch.fileno()])
        self._open = True

    def wait(self, timeout_s: float | None) -> bool:
        if self._both is None:
            return (
                self._bell.wait(timeout_s) if self._look_every_s is None else self._look(timeout_s, self._look_every_s)
            )
        until_ns = None if timeout_s is None else self._clock.steady_ns() + round(timeout_s * 1e9)
        while True:
            left_s = None if until_ns is None else max(0, until_ns - self._clock.steady_ns()) / 1e9
            if not self._clock.wait_readable([self._both.fileno()], left_s):
                return False
            heard = not self._topics.isdisjoint(self._hear())
            if self._bell.wait(0) or heard:
                return True

    def _look(self, timeout_s: float | None, every_s: float) -> bool:
        """Wait for the bell, and hear the watch now and then, which has no descriptor."""
        until_ns = math.inf if timeout_s is None else self._clock.steady_ns() + round(timeout_s * 1e9)
        while True:
            left_s = max(0, until_ns - self._clock.steady_ns()) / 1e9  # by the clock: a wait may have taken longer
            if self._bell.wait(min(every_s, left_s)) or not self._topics.isdisjoint(self._hear()):
                return True
            if left_s <= every_s:
                return False

    def fileno(self) -> int:
        return self._bell.fileno() if self._both is None else int(self._both.fileno())

    def close(self) -> None:
        if self._open:
            self._open = False
            if self._both is not None:
                self._both.close()
            self._bell.close()
            self._forget()
