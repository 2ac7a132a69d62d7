"""Keys, signals and changes of the window's size while a live screen is up (the self-pipe trick).

Signals raise nothing here. They are noted and wake the waiting loop, so that no drawing ends half-way with the terminal
in disorder (tests/cli/test_top.py).
"""

from __future__ import annotations

import os
import signal
import sys
import termios
import tty
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, Final, Self

from postroom.core.clock import Clock

#: Keys that end it; Ctrl-C and Ctrl-D too, where they come as keys.
QUIT: Final = b"qQ\x03\x04"
_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGWINCH)


class Keys:
    """No keys: there is no terminal."""

    def __init__(self) -> None:
        #: The descriptors to wait on.
        self.fds: list[int] = []
        #: Whether it is to end.
        self.over = False
        #: Whether something was done since this was last set to False.
        self.stirred = False

    def take(self, ready: Sequence[int]) -> None:
        """Take note of what can be read from those of our descriptors that are ready."""

    def pause(self, clock: Clock, seconds: float) -> None:
        """Return after that time; sooner only if it is over."""
        until_ns = clock.steady_ns() + round(seconds * 1e9)
        while not self.over and (left_ns := until_ns - clock.steady_ns()) > 0:
            self.take(clock.wait_readable(self.fds, left_ns / 1e9))


class TerminalKeys(Keys):
    """The keys of our terminal, one by one and unseen, and the signals of this process."""

    def __init__(self) -> None:
        super().__init__()
        #: The signal that asked for the end; None when a key did, or Ctrl-C, which is a key to its user.
        self.ended_by: int | None = None
        self._keyboard: int | None = None
        self._terminal: Any = None
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> Self:
        self._noted, self._note = os.pipe()
        os.set_blocking(self._note, False)
        os.set_blocking(self._noted, False)
        self.fds = [self._noted]
        self._before = {number: signal.signal(number, self._on_signal) for number in _SIGNALS}
        if sys.stdin.isatty():
            self._keyboard = sys.stdin.fileno()
            self._terminal = termios.tcgetattr(self._keyboard)
            tty.setcbreak(self._keyboard)
            self.fds.append(self._keyboard)
        return self

    def __exit__(self, *_: object) -> None:
        if self._keyboard is not None:
            with suppress(termios.error):  # the terminal is gone
                termios.tcsetattr(self._keyboard, termios.TCSAFLUSH, self._terminal)
        for number, handler in self._before.items():
            signal.signal(number, handler)
        os.close(self._note)
        os.close(self._noted)

    def _on_signal(self, number: int, _frame: object) -> None:
        if number != signal.SIGWINCH:
            self.over = True
            self.ended_by = None if number == signal.SIGINT else number
        with suppress(BlockingIOError):
            os.write(self._note, b"!")

    def take(self, ready: Sequence[int]) -> None:
        if self._noted in ready:
            self.stirred = True
            with suppress(BlockingIOError):
                os.read(self._noted, 4096)
        if self._keyboard is not None and self._keyboard in ready:
            pressed = b""
            with suppress(OSError):  # the terminal is gone
                pressed = os.read(self._keyboard, 64)
            self.over = self.over or not pressed or any(key in QUIT for key in pressed)
