"""The benches of growth run, and what they measure does not grow by itself."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest
from tests.support import ROOT

pytestmark = pytest.mark.slow


def run(script: str, *words: str) -> Any:
    command = [sys.executable, str(ROOT / "bench" / "micro" / script), *words, "--json"]
    return json.loads(subprocess.run(command, capture_output=True, text=True, check=True, timeout=300).stdout)


@pytest.mark.parametrize("store", ["sqlite", "files", "memory"])
def test_a_board_of_two_thousand_tasks_costs_no_more_than_twice_one_of_ten(store: str) -> None:
    """The claim and the report; adding, too. With room for a busy machine: about 1.1 on an idle one."""
    figures = run("growth_board.py", store, "--sizes", "10,2000", "--rounds", "30")

    for step in ("add", "claim", "done"):
        assert figures["2000"][f"{step}, waited"] < 2 * figures["10"][f"{step}, waited"], figures


def test_a_kept_message_takes_little_memory_in_an_open_room_of_files() -> None:
    """The room of a thousand is past what opening any log takes; it was 1.5 KB for a message with its row."""
    figures = run("growth_files.py", "--sizes", "1000,4000", "--rounds", "20")

    assert figures["4000"]["bytes_per_message"] < 1500, figures
    for step in ("send", "claim", "ack"):
        assert figures["4000"][step] < 2 * figures["1000"][step], figures
