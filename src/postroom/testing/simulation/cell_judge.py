"""The judge of cells: their versions, and which looks at them said that an agent runs."""

from __future__ import annotations

from typing import Final

from postroom.stores.contract import ANY

from .broken import Broken
from .process import Around, Process

_PRESENCE: Final = "agent/"


class CellJudge:
    """Sees every write of a cell, and every look at one."""

    def __init__(self, world: Around) -> None:
        self._world = world
        self._versions: dict[str, int] = {}
        self._highest: dict[str, int] = {}  # the highest version that a cell had, also before it was deleted
        self._presence: dict[tuple[Process, str], tuple[int, int]] = {}  # the last two looks at an agent

    def written(self, process: Process, name: str, value: object, expect: int, version: int | None) -> None:
        """A cell was written, or (None) another version than the expected one was there."""
        there = self._versions.get(name, 0)
        if expect != ANY and (expect == there) != (version is not None):
            raise Broken(f"{process!r} expected version {expect} of {name}, {there} was there: {version}")
        if version is None:
            self._world.happened("a compare-and-set was lost")
            return
        if value is not None and version <= there:
            raise Broken(f"version {version} of {name} was written after version {there}")
        if value is not None and version <= self._highest.get(name, 0):
            raise Broken(f"version {version} of {name} is given a second time")
        self._highest[name] = max(version, self._highest.get(name, 0))
        self._versions[name] = 0 if value is None else version

    def version(self, cell: str) -> int:
        """The version of a cell that was written last; 0 without."""
        return self._versions.get(cell, 0)

    def read(self, process: Process, name: str) -> None:
        """A process looked at a cell; that of an agent says whether it runs."""
        if name.startswith(_PRESENCE):
            before = self._presence.get((process, name), (0, 0))
            self._presence[process, name] = before[1], self._world.step

    def looked_at(self, process: Process, agent: str) -> int:
        """The step at which a process looked whether an agent runs; its very last look was for the words alone."""
        return self._presence.get((process, _PRESENCE + agent), (0, 0))[0]

    def goes_on_from(self, versions: dict[str, int]) -> None:
        """A power cut has left these."""
        self._versions, self._highest = versions, dict(versions)
        self._presence.clear()
