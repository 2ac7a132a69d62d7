"""The clock of a schedule: time passes when nobody can go on, and by faults."""

from __future__ import annotations

from asyncio import AbstractEventLoop
from collections.abc import Callable, Sequence
from typing import Final

from postroom.core.clock import Alarm, Chance, Clock

_SECOND_NS: Final = 1_000_000_000


class SimulatedClock(Clock):
    """The world's clock: time stands still while somebody can go on."""

    def __init__(self, seed: int, wait: Callable[[Sequence[int], float | None], list[int]]) -> None:
        self._wait = wait
        self._random = Chance(seed)
        self.now_ns = 1_000 * _SECOND_NS
        self.wall_offset_ns = 1_790_000_000 * _SECOND_NS
        self.boots = 1
        self.stood_ns = 0  # for how long nobody ran, because a fault let time pass
        #: The latest wall time that anybody has read.
        self.highest_wall_ms = 0

    def stand_still(self, span_ns: int) -> None:
        """Let time pass in which nobody runs."""
        self.now_ns += span_ns
        self.stood_ns += span_ns

    def wall_ms(self) -> int:
        wall_ms = (self.now_ns + self.wall_offset_ns) // 1_000_000
        self.highest_wall_ms = max(self.highest_wall_ms, wall_ms)
        return wall_ms

    def steady_ns(self) -> int:
        return self.now_ns

    def boot_id(self) -> str:
        return f"simulated {self.boots}"

    def random(self) -> float:
        return self._random.random()

    def sleep(self, seconds: float) -> None:
        self._wait((), seconds)

    def wait_readable(self, fds: Sequence[int], timeout_s: float | None) -> list[int]:
        return self._wait(fds, timeout_s)

    def call_later(self, loop: AbstractEventLoop, seconds: float, call: Callable[[], None]) -> Alarm:
        raise NotImplementedError("a simulated world has no event loop")
