"""Traces of a cell that is changed by compare-and-set (spec/cells.pml), through `Store.cell_read` and `Store.cell_write`.

Compared are what each reading gives, whether each writing counted, and after each step the cell's value. A version
must be higher than all before it; the numbers themselves are the store's own.
"""

from __future__ import annotations

from typing import Any

from postroom.stores.contract import ANY

from .replaying import Replay, Told


class CellReplay(Replay):
    """One trace of cells.pml, in a cell of its own."""

    def __init__(self, *place: Any) -> None:
        super().__init__(*place)
        self.cell = f"counter/{self.name}"
        self.read: dict[int, tuple[int, int]] = {}  # version and value, as each writer read them
        self.newest = 0

    def step(self, line: str, *, last: bool) -> None:
        step = Told.read(line)
        getattr(self, step.what)(step)
        cell = self.store.cell_read(self.cell)
        there, value = (cell is not None, 0 if cell is None else cell.value)
        assert (there, value) == (step.after(0) == "1", step.facts[0]), (
            f"the cell holds {value if there else 'nothing'}"
        )

    def look(self, step: Told) -> None:
        cell = self.store.cell_read(self.cell)
        self.read[step.who] = (0, 0) if cell is None else (cell.version, cell.value)

    def create(self, step: Told) -> None:
        self.write(step, 1, 0)

    def change(self, step: Told) -> None:
        version, value = self.read[step.who]
        self.write(step, value + 1, version)

    def overwrite(self, step: Told) -> None:
        self.write(step, 1, ANY)

    def remove(self, step: Told) -> None:
        self.write(step, None, self.read[step.who][0])

    def write(self, step: Told, value: int | None, expect: int) -> None:
        version = self.store.cell_write(self.cell, value, expect=expect)
        assert (version is not None) == step.done, f"writing gave {version}"
        if version is not None and value is not None:
            assert version > self.newest, f"version {version} came after {self.newest}"
            self.newest = version
