"""Processes that have a room with schedules open, on a wall clock that the test sets."""

from __future__ import annotations

import mmap
import struct
from pathlib import Path

import postroom
from postroom.core.clock import SystemClock

OFFSET = struct.Struct("q")


class SetClock(SystemClock):
    """The machine's clocks, but for the wall clock: how far that is off stands in a file, for all processes."""

    def __init__(self, file: Path | str) -> None:
        super().__init__()
        with Path(file).open("r+b") as opened:
            self._map = mmap.mmap(opened.fileno(), OFFSET.size)

    def wall_ms(self) -> int:
        return super().wall_ms() + self.off_ms

    @property
    def off_ms(self) -> int:
        off_ms: int = OFFSET.unpack(self._map[: OFFSET.size])[0]
        return off_ms

    def set(self, off_ms: int) -> None:
        self._map[: OFFSET.size] = OFFSET.pack(off_ms)


def keeper(url: str, clock: str, number: int) -> None:
    """Have the room open until it is killed: some as an agent that receives, some without doing anything."""
    set_clock = SetClock(clock)
    with postroom.open(url, clock=set_clock) as room:
        if number % 2:
            for message in room.agent("bob").listen():
                message.ack()
        while True:
            set_clock.sleep(60)
