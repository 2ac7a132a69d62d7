"""The bench that compares with an earlier commit measures both programs."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from tests.support import ROOT

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not (ROOT / ".git").exists(), reason="not a clone: there is no earlier commit"),
]


def test_each_work_is_measured_in_both_programs() -> None:
    words = [sys.executable, str(ROOT / "bench" / "micro" / "since.py"), "HEAD", "--pairs", "2", "--scale", "0.01"]
    works = ["W1", "W2", "W3", "W4 listen", "W6"]
    done = subprocess.run(
        [*words, "--works", ",".join(works), "--json"], capture_output=True, text=True, check=True, timeout=600
    )
    found = json.loads(done.stdout)
    assert [*found] == works
    for each in found.values():
        assert each["before_us"] > 0
        assert each["now_us"] > 0
        assert len(each["ratios"]) == 2
