"""Replays traces of the specification (spec/*.pml) on a store: each step is done, and then what is there is compared.

A trace is a list of lines, as its model told them (spec/prove.py). The first word of a line is the step, and for each
there is a method of that name in the model's own replay: replayed_messages.py, replayed_order.py, replayed_limits.py,
replayed_cells.py, replayed_tasks.py, replayed_sessions.py. A method that finds something else than its line says fails
an assertion.
"""

from __future__ import annotations

import subprocess
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import NamedTuple

from postroom.core.clock import ManualClock
from postroom.core.system.process import process_name
from postroom.stores.contract import Store

#: A death is seen within this time.
SEEN_S = 1.0


class Difference(AssertionError):
    """A store, or what is built on it, does not do what the specification says."""


class Sleepers:
    """Real processes in whose names messages are claimed and answers awaited. They do nothing but live until killed."""

    def __init__(self) -> None:
        self._alive: dict[str, subprocess.Popen[bytes]] = {}
        self._idle: list[str] = []

    def take(self) -> str:
        """The name of a process that nobody else has taken."""
        if self._idle:
            return self._idle.pop()
        sleeper = subprocess.Popen(["sleep", "3600"])
        name = process_name(sleeper.pid)
        assert name is not None
        self._alive[name] = sleeper
        return name

    def give_back(self, name: str) -> None:
        self._idle.append(name)

    def kill(self, name: str) -> None:
        sleeper = self._alive.pop(name)
        sleeper.kill()
        sleeper.wait()

    def close(self) -> None:
        for name in list(self._alive):
            self.kill(name)


class Replay(ABC):
    """One trace on one store, with names of its own: a room may have many of them, one after another."""

    def __init__(self, store: Store, clock: ManualClock, sleepers: Sleepers, name: str) -> None:
        self.store = store
        self.clock = clock
        self.sleepers = sleepers
        self.name = name
        self.processes: dict[str, str] = {}

    def play(self, trace: Sequence[str]) -> None:
        try:
            self.begin()
            for number, line in enumerate(trace):
                try:
                    self.step(line, last=number == len(trace) - 1)
                except AssertionError as error:
                    before = "\n  ".join(trace[: number + 1])
                    raise Difference(f"{type(self.store).__name__}: {error}\nafter the steps\n  {before}") from error
        finally:
            self.close()
            for name in self.processes.values():
                self.sleepers.give_back(name)

    def begin(self) -> None:  # noqa: B027  most have nothing to do
        """Make what the trace is about."""

    @abstractmethod
    def step(self, line: str, *, last: bool) -> None:
        """Do a step, and compare; AssertionError when something else is there than the line says."""

    def close(self) -> None:  # noqa: B027  most have nothing to do
        """Let go of what this trace has."""

    def process(self, role: str) -> str:
        if role not in self.processes:
            self.processes[role] = self.sleepers.take()
        return self.processes[role]

    def kill(self, role: str) -> None:
        if role in self.processes:
            self.sleepers.kill(self.processes.pop(role))
        self.clock.advance(SEEN_S)


class Told(NamedTuple):
    """A line of cells.pml, task.pml or session.pml: what is done, by whom, what else is said, and what is there then."""

    what: str
    who: int
    said: list[str]
    changes: list[str]
    facts: list[int]

    @property
    def done(self) -> bool:
        return self.said[-1] == "yes"

    @classmethod
    def read(cls, line: str) -> Told:
        head, changes, facts = line.split(" | ")
        what, who, *said = head.split()
        return cls(what, int(who), said, changes.split(), [int(fact) for fact in facts.split()])

    def after(self, number: int) -> str:
        """What the change of that number led to."""
        return self.changes[number].partition(">")[2]
