"""The bench of pools runs, and a ping costs no more than twice the echo of a process over a pipe."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest
from tests.support import ROOT

BENCH = ROOT / "bench" / "micro"

pytestmark = pytest.mark.slow


def run(*words: str) -> Any:
    done = subprocess.run(
        [sys.executable, str(BENCH / words[0]), *words[1:]], capture_output=True, text=True, check=True, timeout=120
    )
    return done.stdout


def test_a_ping_costs_less_than_two_echoes_over_a_pipe() -> None:
    """Medians of one run, the best of three: they are about the same on an idle machine."""
    words = ("pool.py", "--rounds", "1", "--pings", "500", "--requests", "100", "--peers", "pipe,postroom", "--json")
    figures = json.loads(run(*words))
    ratios = [ratio(figures)]
    while ratios[-1] >= 2 and len(ratios) < 3:
        ratios.append(ratio(json.loads(run(*words))))

    assert min(ratios) < 2, ratios
    assert {"beside: idle", "beside: four wait", "beside: four compute"} < set(figures)
    assert figures["postroom"]["requests_per_s"] > 0


def ratio(figures: Any) -> float:
    """A ping of ours to the floor's."""
    return float(figures["postroom"]["ping_p50_us"] / figures["pipe"]["ping_p50_us"])


def test_the_bench_of_frames_runs() -> None:
    told = run("frames.py", "--rounds", "1", "--requests", "100")

    assert "socket, json" in told
