"""A chore: a named background thread that takes a step every so often, or when it is nudged, until it is closed."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from contextlib import suppress
from functools import partial

from postroom.errors import ROOM_IS_OVER, PostroomError

from .clock import Clock
from .system.process import current_pid, start_thread


class Chore:
    """Calls `step` in a daemon thread of that name, which runs from `start` until `close`.

    `step` returns after how many seconds the next one is due; None means `every_s`, and where that is None too, at the next
    nudge. The first one comes after `first_s` (None: `every_s`). Nudges that come within `gather_s` make one step. Time is
    that of `clock`. A step may last: it then looks at `closed`, and waits for `fileno()` together with what it waits for.

    A step that raises one of `ends_on` ends the chore. One that raises any other Exception is taken again when it is due;
    of failures in a row the first is logged. However it ends, `last` is called in the thread at the end.

    A forked child has no part in it: there `start`, `nudge` and `close` do nothing. A chore that is forgotten ends, if
    `step` does not keep it alive. It keeps no program from ending.
    """

    def __init__(
        self,
        name: str,
        step: Callable[[], float | None],
        clock: Clock,
        *,
        every_s: float | None = None,
        first_s: float | None = None,
        gather_s: float = 0.0,
        last: Callable[[], object] = lambda: None,
        ends_on: tuple[type[BaseException], ...] = ROOM_IS_OVER,
    ) -> None:
        self.closed = False
        self._lock = threading.RLock()  # a signal's handler may start or close it in the middle of starting it
        self._pid = current_pid()
        self._clock = clock
        self._make_thread = partial(_ChoreThread, name, step, clock, every_s, first_s, gather_s, last, ends_on)
        self._thread: _ChoreThread | None = None

    def start(self) -> None:
        """Take steps from now on; twice is once, and a closed one stays closed. A call that was interrupted can be made again."""
        with self._lock:
            if self._thread is None and not self.closed and current_pid() == self._pid:
                self._thread = thread = self._make_thread()
                try:
                    start_thread(thread)
                except BaseException:  # interrupted: it may run, or never will
                    if not thread.is_alive():
                        self._thread = None
                    raise

    def nudge(self) -> None:
        """Let a step begin soon, and not before this call; starts the chore where that was not done. Returns at once."""
        self.start()
        if self._thread is not None and current_pid() == self._pid:
            self._thread.wake()

    def is_alive(self) -> bool:
        """Whether its thread runs."""
        return self._thread is not None and self._thread.is_alive()

    def fileno(self) -> int:
        """A descriptor that can be read when it is nudged or closed. For a step that lasts."""
        assert self._thread is not None
        return self._thread.woken

    def clear(self) -> None:
        """Forget the nudges that came. For a step that lasts, before it looks at the reason of nudges."""
        assert self._thread is not None
        self._thread.clear()

    def wait(self, timeout_s: float) -> bool:
        """Wait until it is nudged or closed, or time ran out; whether it is closed. For a step that lasts."""
        if not self.closed:
            self._clock.wait_readable([self.fileno()], timeout_s)
        return self.closed

    def close(self, timeout_s: float | None = None) -> None:
        """Take no more steps. The thread is over when it returns, unless time ran out or it is the caller. Safe to call twice."""
        self.closed = True
        thread = self._thread
        if thread is None or current_pid() != self._pid:
            return
        thread.stop()
        if thread.ident is not None and thread is not threading.current_thread():
            thread.join(timeout_s)

    def __del__(self) -> None:
        with suppress(AttributeError):  # it was interrupted while it was made
            if self._thread is not None and current_pid() == self._pid:
                self._thread.stop()


class _ChoreThread(threading.Thread):
    """The thread of a chore. It does not know the chore, which can be forgotten while it sleeps."""

    def __init__(
        self,
        name: str,
        step: Callable[[], float | None],
        clock: Clock,
        every_s: float | None,
        first_s: float | None,
        gather_s: float,
        last: Callable[[], object],
        ends_on: tuple[type[BaseException], ...],
    ) -> None:
        super().__init__(name=name, daemon=True)
        self._step = step
        self._clock = clock
        self._every_s = every_s
        self._first_s = first_s
        self._gather_s = gather_s
        self._last = last
        self._ends_on = ends_on
        self._stopping = False
        self.woken, self._wake = os.pipe()
        os.set_blocking(self.woken, False)
        os.set_blocking(self._wake, False)

    def wake(self) -> None:
        with suppress(OSError):  # it was woken often enough, or is forgotten together with its chore
            os.write(self._wake, b"!")

    def stop(self) -> None:
        self._stopping = True
        self.wake()

    def run(self) -> None:
        try:
            self._take_steps()
        finally:
            self._last()

    def _take_steps(self) -> None:
        pause_s, fails = self._first_s, False
        while self._sleep(self._every_s if pause_s is None else pause_s):
            try:
                pause_s, fails = self._step(), False
            except self._ends_on:
                return
            except Exception as error:  # noqa: BLE001  a room that is busy or broken now may not be so later
                if not fails:
                    self._log(error)
                pause_s, fails = None, True

    def _sleep(self, pause_s: float | None) -> bool:
        """Wait until a step is due; False when it was stopped."""
        if self._clock.wait_readable([self.woken], pause_s):
            self.clear()
            until_ns = self._clock.steady_ns() + round(self._gather_s * 1e9)
            while not self._stopping and (left_ns := until_ns - self._clock.steady_ns()) > 0:
                if self._clock.wait_readable([self.woken], left_ns / 1e9):
                    self.clear()
        return not self._stopping

    def clear(self) -> None:
        with suppress(BlockingIOError):
            os.read(self.woken, 4096)

    def _log(self, error: Exception) -> None:
        import logging  # 2 ms of every start otherwise, for what hardly ever happens

        level = logging.DEBUG if isinstance(error, PostroomError) else logging.ERROR
        log, extra = logging.getLogger("postroom"), {"action": "chore_failed"}
        log.log(level, "%s: a step failed, and is taken again", self.name, exc_info=error, extra=extra)

    def __del__(self) -> None:
        # Not earlier: a thread that still waits must not find another file under the same number.
        with suppress(OSError, AttributeError):
            os.close(self.woken)
            os.close(self._wake)
            self._wake = -1
