"""A chore: a named background thread that takes a step every so often, or when it is nudged, until it is closed."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from contextlib import suppress

from postroom.errors import ROOM_IS_OVER, PostroomError

from . import log
from .clock import Clock
from .system.process import current_pid, join_thread, start_thread


def _nothing() -> None:
    pass


class Chore:
    """Calls `step` in a daemon thread of that name, which runs from `start` until `close`.

    `step` returns after how many seconds the next one is due; None means `every_s`, and where that is None too, at the
    next nudge. The first one comes after `first_s` (None: `every_s`). Nudges that come within `gather_s` make one step.
    Time is that of `clock`. A step may last: it then looks at `closed`, and waits for `fileno()` together with what it
    waits for.

    A step that raises one of `ends_on` ends the chore. One that raises any other Exception is taken again when it is
    due; of failures in a row the first is logged. However it ends, `last` is called in the thread at the end.

    A forked child has no part in it: there `start`, `nudge` and `close` do nothing. It keeps no program from ending.
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
        self.name = name
        self.closed = False
        self._step = step
        self._clock = clock
        self._every_s = every_s
        self._first_s = first_s
        self._gather_s = gather_s
        self._last = last
        self._ends_on = ends_on
        self._pid = current_pid()
        self._lock = threading.RLock()  # a signal's handler may start it in the middle of starting it
        self._thread: threading.Thread | None = None
        self._woken = self._wake = -1

    def start(self) -> None:
        """Take steps from now on; twice is once, and a closed one stays closed.

        A call that was interrupted can be made again.
        """
        with self._lock:
            if self._thread is not None or self.closed or current_pid() != self._pid:
                return
            if self._wake < 0:
                self._woken, self._wake = os.pipe()
                os.set_blocking(self._woken, False)
                os.set_blocking(self._wake, False)
            self._thread = thread = threading.Thread(target=self._run, name=self.name, daemon=True)
            try:
                start_thread(thread)
            except BaseException:  # interrupted: it may run, or never will
                if not thread.is_alive():
                    self._thread = None
                raise

    def nudge(self) -> None:
        """Let a step begin soon, and not before this call; starts the chore where that was not done.

        Returns at once.
        """
        self.start()
        if current_pid() == self._pid:
            with suppress(OSError):  # it was nudged often enough, or never ran, or is forgotten together with its owner
                os.write(self._wake, b"!")

    def close(self, timeout_s: float | None = None) -> None:
        """Take no more steps. The thread is over when it returns, unless time ran out or it is the caller.

        Safe to call twice.
        """
        self.closed = True
        self.nudge()
        thread = self._thread
        if thread is not None:
            join_thread(thread, timeout_s)  # in a forked child it counts as over

    def is_alive(self) -> bool:
        """Whether its thread runs."""
        return self._thread is not None and self._thread.is_alive()

    # For a step that lasts

    def fileno(self) -> int:
        """A descriptor that can be read when it is nudged or closed."""
        return self._woken

    def clear(self) -> None:
        """Forget the nudges that came: before the look at what they are about."""
        with suppress(BlockingIOError):
            os.read(self._woken, 4096)

    def wait(self, timeout_s: float | None) -> bool:
        """Wait until it is nudged or closed, or time ran out. Returns whether it is closed."""
        if not self.closed:
            self._clock.wait_readable([self._woken], timeout_s)
        return self.closed

    # In the thread

    def _run(self) -> None:
        try:
            self._take_steps()
        finally:
            try:
                self._last()
            finally:
                # Its owner knows this chore: together they would keep its descriptors until they are collected
                # (tests/mail/test_closing.py).
                self._step = self._last = _nothing

    def _take_steps(self) -> None:
        pause_s, fails = self._first_s, False
        while not self._sleep(self._every_s if pause_s is None else pause_s):
            try:
                pause_s, fails = self._step(), False
            except self._ends_on:
                return
            except Exception as error:  # noqa: BLE001  a room that is busy or broken now may not be so later
                if not fails:
                    self._log(error)
                pause_s, fails = None, True

    def _sleep(self, pause_s: float | None) -> bool:
        """Wait until a step is due. Returns whether it is closed."""
        # a step that lasts may have taken the nudge that came with the end (tests/core/test_chore.py)
        if not self.closed and self._clock.wait_readable([self._woken], pause_s):
            until_ns = self._clock.steady_ns() + round(self._gather_s * 1e9)
            self.clear()
            while (left_ns := until_ns - self._clock.steady_ns()) > 0 and not self.wait(left_ns / 1e9):
                self.clear()
        return self.closed

    def _log(self, error: Exception) -> None:
        write = log.LOG.debug if isinstance(error, PostroomError) else log.LOG.error
        extra = {"action": "chore_failed"}
        write("%s: a step failed, and will be repeated", self.name, exc_info=error, extra=extra)

    def __del__(self) -> None:
        # Not earlier: a thread that still waits must not find another file under the same number.
        try:
            try:
                os.close(self._woken)
            finally:  # also when a signal comes between
                os.close(self._wake)
                self._wake = -1
        except (OSError, AttributeError, TypeError):  # Python ends: the modules are empty (test_handlers.py)
            pass
