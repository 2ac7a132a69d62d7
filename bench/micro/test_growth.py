"""The benchmark of growth runs, and what it calls level is level between ten messages and some thousands."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from tests.support import ROOT

SCRIPT = ROOT / "bench" / "micro" / "growth.py"
SMALL = ["--agents", "3,10", "--messages", "10,200", "--sessions", "1,3", "--megabytes", "1,2", "--runs", "3"]


@pytest.mark.slow
def test_the_benchmark_of_growth_runs() -> None:
    done = subprocess.run(
        [sys.executable, str(SCRIPT), *SMALL, "--json"], capture_output=True, text=True, check=True, timeout=600
    )

    curves = json.loads(done.stdout)
    assert {"send, agents", "peek, pending", "top's first picture, finished", "session list"} <= curves.keys()
    for name, curve in curves.items():
        assert len(curve["us"]) == 2, name
        assert min(curve["us"].values()) > 0, name
