"""Which agents are open in which processes of a schedule, and since when."""

from __future__ import annotations

from .process import Process
from .simulated_clock import SimulatedClock


class OpenAgents:
    """The agents of one schedule."""

    def __init__(self, clock: SimulatedClock) -> None:
        self._clock = clock
        self._opened: dict[str, dict[Process, None]] = {}
        self._left_ns: dict[str, int] = {}
        self._since_ns: dict[str, int] = {}

    def opened(self, process: Process) -> None:
        """A process has its agent open."""
        opened = self._opened.setdefault(process.part.agent, {})
        if not opened:
            self._since_ns[process.part.agent] = self._clock.now_ns
        opened[process] = None

    def left(self, process: Process) -> None:
        """A process has closed its agent, or died."""
        opened = self._opened.get(process.part.agent, {})
        if process in opened:
            del opened[process]
            self._left_ns[process.part.agent] = self._clock.now_ns

    def open_since_ns(self, agent: str) -> int:
        """Since when one process or another has had an agent open, or had when the last one left."""
        return self._since_ns[agent]

    def left_ns(self, agent: str) -> int | None:
        """Since when no process has had an agent open; None while one has."""
        return None if self._opened.get(agent) else self._left_ns.get(agent, 0)
