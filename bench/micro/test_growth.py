"""The benches of growth run."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest
from tests.support import ROOT

pytestmark = pytest.mark.slow

SMALL = ("--agents", "3,10", "--messages", "10,200", "--sessions", "1,3", "--megabytes", "1,2", "--runs", "3")


def run(script: str, *words: str) -> Any:
    command = [sys.executable, str(ROOT / "bench" / "micro" / script), *words, "--json"]
    return json.loads(subprocess.run(command, capture_output=True, text=True, check=True, timeout=600).stdout)


def test_the_bench_of_growing_rooms_gives_a_curve_for_each_operation() -> None:
    curves = run("growth.py", *SMALL)
    assert {"send, agents", "peek, pending", "top's first picture, finished", "session list"} <= curves.keys()
    for name, curve in curves.items():
        assert len(curve["us"]) == 2, name
        assert min(curve["us"].values()) > 0, name


@pytest.mark.parametrize("store", ["sqlite", "files", "memory"])
def test_the_bench_of_growing_boards_gives_each_step_at_each_size(store: str) -> None:
    figures = run("growth_board.py", store, "--sizes", "10,200", "--rounds", "5")
    assert set(figures) == {"10", "200"}
    for of_size in figures.values():
        assert all(of_size[f"{step}, waited"] > 0 for step in ("add", "claim", "done"))


def test_a_kept_message_takes_little_memory_in_an_open_room_of_files() -> None:
    """It was 1.5 KB for a message with its row; the room of a thousand is past what opening any log takes."""
    figures = run("growth_kept.py", "--sizes", "1000,4000", "--rounds", "20")
    assert figures["4000"]["bytes_per_message"] < 1500
    assert all(figures["4000"][step] > 0 for step in ("send", "claim", "ack"))
