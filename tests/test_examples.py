"""Every program in examples/ runs to its end, in an empty folder, and prints something."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow  # each is a program of its own

EXAMPLES = sorted((Path(__file__).parents[1] / "examples").glob("*.py"))
#: These wait for a death to be seen, and for nothing more to come; tests/test_patterns.py looks at what they print.
LONGER = ("claim_board", "lead_worker", "pipeline")


@pytest.mark.parametrize("path", [path for path in EXAMPLES if path.stem not in LONGER], ids=lambda path: path.stem)
def test_the_example_runs(path: Path, tmp_path: Path) -> None:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("POSTROOM_")}

    done = subprocess.run(
        [sys.executable, "-W", "error", str(path)],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )

    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout


def test_there_are_examples() -> None:
    assert {"hello", *LONGER} <= {path.stem for path in EXAMPLES}
