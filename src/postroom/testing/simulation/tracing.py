"""What a schedule tells of itself: its trace, the rare states that it reached, and its failure."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Final

from .process import Process

if TYPE_CHECKING:
    from .world import World

_SECOND_NS: Final = 1_000_000_000


class ScheduleTrace:
    """The trace of one schedule."""

    def __init__(self, world: World, *, kept: bool) -> None:
        self._world = world
        #: What happened, line by line; None unless it is to be told.
        self.lines: list[str] | None = [] if kept else None
        #: How often each rare state was reached.
        self.reached: Counter[str] = Counter()
        #: What went wrong; None: nothing.
        self.failure: BaseException | None = None

    def fail(self, error: BaseException) -> None:
        """The schedule has failed; of several failures the first counts."""
        if self.failure is None:
            self.failure = error
            self.tell(None, f"FAILS: {type(error).__name__}: {error}")

    def tell(self, process: Process | None, what: str) -> None:
        """Write a line of the trace."""
        if self.lines is not None:
            time_s = self._world.clock.now_ns / _SECOND_NS - 1000
            step = self._world.scheduler.step
            self.lines.append(f"{step:5} {time_s:9.3f}  {'' if process is None else f'{process!r} '}{what}")

    def happened(self, what: str) -> None:
        """A rare state was reached."""
        self.reached[what] += 1
