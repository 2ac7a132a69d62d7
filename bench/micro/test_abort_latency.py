"""The benchmark of failing together runs, and its figures are what they are said to be."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from tests.support import ROOT

SCRIPT = ROOT / "bench" / "micro" / "abort_latency.py"


@pytest.mark.slow
def test_the_benchmark_of_failing_together_runs() -> None:
    words = [sys.executable, str(SCRIPT), "--runs", "5", "--starts", "2", "--json"]
    done = subprocess.run(words, capture_output=True, text=True, check=True, timeout=300)

    figures = json.loads(done.stdout)
    assert 0 < figures["floor_p50_ms"] <= figures["floor_p99_ms"]
    assert 0 < figures["first_p50_ms"] <= figures["last_p50_ms"] <= figures["last_p99_ms"]
    # beside its peers in the same run, with room for a busy machine
    assert figures["cold_ours_to_spawn"] < 3
    assert 0 < figures["warm_ours_ms_per_worker"] < 20 * figures["warm_forkserver_ms_per_worker"]
