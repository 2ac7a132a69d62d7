"""What a step on the board costs as the board grows: add, claim and done, among ten tasks and among a hundred thousand.

    .venv/bin/python bench/micro/growth_board.py [sqlite|files|memory] [--sizes 10,1000,10000,100000] [--rounds 60] [--json]

Boards of all sizes are open at once and take turns, so that whatever else the machine does meets all of them. The tasks
on the board stay: each round adds one, claims the first and reports it done, and measures the three. Two figures of
each: the processor time of this process (the mean, which has its share of what is done for many steps at once), and how long a
caller waits (the median).
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import postroom

STEPS = ("add", "claim", "done")
CHUNK = 10_000


class Measured:
    """A board of that many tasks, and what its steps took."""

    def __init__(self, url: str, size: int, stack: ExitStack) -> None:
        self.board = stack.enter_context(postroom.open(url)).board
        for first in range(0, size, CHUNK):
            self.board.add_all([{"id": f"T{n}"} for n in range(first, min(first + CHUNK, size))])
        warm = self.board.claim("ada")  # the first look of a process reads the whole board, and is not measured
        if warm is not None:
            warm.done()
        self.waited_us: dict[str, list[float]] = {step: [] for step in STEPS}
        self.processor_us: dict[str, list[float]] = {step: [] for step in STEPS}

    def round(self, number: int) -> None:
        """Add one task, claim the first, and report it done."""
        self._take("add", lambda: self.board.add(f"more-{number}"))
        task = self._take("claim", lambda: self.board.claim("ada"))
        self._take("done", task.done)

    def _take(self, step: str, act: Callable[[], Any]) -> Any:
        begun_ns, processor_ns = time.perf_counter_ns(), time.process_time_ns()
        told = act()
        self.processor_us[step].append((time.process_time_ns() - processor_ns) / 1000)
        self.waited_us[step].append((time.perf_counter_ns() - begun_ns) / 1000)
        return told

    def figures(self) -> dict[str, float]:
        """Microseconds for each step: `add` (processor) and `add, waited`."""
        waited = {f"{step}, waited": statistics.median(self.waited_us[step]) for step in STEPS}
        return {**{step: statistics.fmean(self.processor_us[step]) for step in STEPS}, **waited}


def measure(store: str, sizes: list[int], rounds: int) -> dict[int, dict[str, float]]:
    """The figures of a board of each size."""
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        boards = {size: Measured(f"{store}:{folder}/{size}", size, stack) for size in sizes}
        for number in range(rounds):
            for board in boards.values():
                board.round(number)
        return {size: board.figures() for size, board in boards.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("store", nargs="?", default="sqlite")
    parser.add_argument("--sizes", default="10,1000,10000,100000")
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args()
    found = measure(asked.store, [int(size) for size in asked.sizes.split(",")], asked.rounds)
    if asked.json:
        print(json.dumps(found))
        return
    least = found[min(found)]
    for size, figures in found.items():
        told = "  ".join(f"{name} {us:7.0f} us ({us / least[name]:.2f})" for name, us in figures.items())
        print(f"{asked.store}, {size:>7} tasks: {told}")


if __name__ == "__main__":
    main()
