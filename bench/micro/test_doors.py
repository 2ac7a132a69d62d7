"""The benchmark of the doors runs, and its figures stand in a sound proportion to a bare interpreter."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from tests.support import ROOT

SCRIPT = ROOT / "bench" / "micro" / "doors.py"


@pytest.mark.slow
def test_the_benchmark_of_the_doors_runs() -> None:
    done = subprocess.run(
        [sys.executable, str(SCRIPT), "--runs", "3", "--json"], capture_output=True, text=True, check=True, timeout=300
    )

    figures = json.loads(done.stdout)
    # with room for a busy machine: about 5 and 6 on an idle one
    assert 1 < figures["hook_ms"] / figures["python_ms"] < 15
    assert 1 < figures["send_ms"] / figures["python_ms"] < 20
    assert figures["mcp_mib"] < 80
    assert 0 < figures["mcp_wake_ms"] < figures["library_wake_ms"] + 100
