"""Waiting on a pipe: the waiter of stores that ring their waiters inside one process, through weak references."""

from __future__ import annotations

import os
import weakref
from abc import abstractmethod
from contextlib import suppress
from typing import Generic, TypeVar

from postroom.core.clock import Clock
from postroom.errors import RoomClosed

from .contract import Waiter

K = TypeVar("K")


class PipeWaiter(Waiter, Generic[K]):
    """A waiter with a pipe of its own: a byte lies in it while there is a hint that nobody has taken.

    Its store has a lock, which guards all but the waiting itself.
    """

    def __init__(self, clock: Clock) -> None:
        #: The keys for which nobody else was woken.
        self.alone_for: list[K] = []
        self.is_closed = False
        self.known = weakref.ref(self)
        self._clock = clock
        self._rung = False
        self._reader, self._writer = os.pipe()  # from here on an interrupt leaves it to `__del__`
        os.set_blocking(self._reader, False)

    def ring(self, alone_for: K | None = None) -> None:
        """Leave a hint. Under the lock."""
        if alone_for is not None:
            self.alone_for.append(alone_for)
        if not self._rung:
            os.write(self._writer, b"!")
            self._rung = True

    def wait(self, timeout_s: float | None) -> bool:
        if self.take():
            return True
        if self._clock.wait_readable([self._reader], timeout_s):
            self._rung = True  # also what was interrupted in the middle of ringing, or of taking
        return self.take()

    @abstractmethod
    def take(self) -> bool:
        """`take_hint` under the lock. Raises RoomClosed."""

    def take_hint(self) -> bool:
        """Take the hint that lies there; whether one did."""
        if self.is_closed:
            raise RoomClosed("this waiter is closed")
        if not self._rung:
            return False
        with suppress(BlockingIOError):
            os.read(self._reader, 16)
        self._rung = False
        self.alone_for.clear()
        return True

    def fileno(self) -> int:
        return self._reader

    def let_go(self) -> None:
        """Close the pipe. Under the lock, when nobody knows the waiter any more."""
        reader, self._reader = self._reader, -1
        if reader >= 0:
            os.close(reader)
        writer, self._writer = self._writer, -1
        if writer >= 0:
            os.close(writer)


def ring(known: weakref.ref[PipeWaiter[K]], alone_for: K | None = None) -> bool:
    """Leave a hint with a waiter; False when nobody has it any more."""
    waiter = known()
    if waiter is not None:
        waiter.ring(alone_for)
    return waiter is not None
