"""A claim costs the same on a large board as on a small one: measured side by side, in one run."""

from __future__ import annotations

import statistics
import time
from pathlib import Path

import postroom
from postroom.board.board import Board

LARGE, SMALL, ROUNDS = 10_000, 10, 30
MOST = 2.0


def claim_us(board: Board) -> float:
    """How long one claim takes. Its task is done afterwards, which is not measured."""
    before = time.perf_counter()
    task = board.claim("ada")
    took = time.perf_counter() - before
    assert task is not None
    task.done()
    return took * 1e6


def ratio(large: Board, small: Board, number: int) -> tuple[float, float]:
    """The median claim on each board, taken by turns so that a busy machine slows down both."""
    took: dict[str, list[float]] = {"large": [], "small": []}
    for round_ in range(ROUNDS):
        small.add_all([{"id": f"{number}.{round_}.{n}"} for n in range(SMALL)])
        for _ in range(SMALL):
            took["large"].append(claim_us(large))
            took["small"].append(claim_us(small))
    return statistics.median(took["large"]), statistics.median(took["small"])


def test_a_claim_among_ten_thousand_takes_at_most_twice_as_long_as_among_ten(tmp_path: Path) -> None:
    with postroom.open(f"sqlite:{tmp_path}/large") as one, postroom.open(f"sqlite:{tmp_path}/small") as other:
        one.board.add_all([{"id": f"T{n}"} for n in range(LARGE)])
        found = []
        for number in range(3):  # one good measurement of three is enough: others use this machine too
            large, small = ratio(one.board, other.board, number)
            found.append(large / small)
            print(f"a claim among {LARGE}: {large:.0f} µs; among {SMALL}: {small:.0f} µs; {large / small:.2f} times")
            if found[-1] <= MOST:
                break

    assert min(found) <= MOST
