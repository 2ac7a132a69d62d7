"""Every program in examples/ runs to its end, in an empty folder, and prints something."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.support import EXAMPLES
from tests.support.nats_servers import need_server

pytestmark = pytest.mark.slow  # each is a program of its own

PROGRAMS = sorted(EXAMPLES.glob("*.py"))
#: These wait for a death to be seen, and for nothing more to come; tests/test_patterns.py looks at what they print.
LONGER = ("claim_board", "lead_worker", "pipeline")


@pytest.mark.parametrize("path", [path for path in PROGRAMS if path.stem not in LONGER], ids=lambda path: path.stem)
def test_the_example_runs(path: Path, tmp_path: Path) -> None:
    assert run(path, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("root", [True, False], ids=["namespaces", "processes"])
def test_two_machines_talk(root: bool, tmp_path: Path) -> None:
    need_server()
    path = [] if root else [str(Path(sys.executable).parent)]  # where there is no `ip`, there are no namespaces

    said = run(EXAMPLES / "two_machines" / "run.py", tmp_path, **({"PATH": os.pathsep.join(path)} if path else {}))

    assert "office: the square of 5 is 25, says workshop" in said
    assert "workshop: going home" in said
    assert root or "loopback" in said


def run(path: Path, tmp_path: Path, **more: str) -> str:
    environment = {
        name: value
        for name, value in os.environ.items()
        if name in ("POSTROOM_CONFIG", "POSTROOM_PORTABLE") or not name.startswith("POSTROOM_")
    }

    done = subprocess.run(
        [sys.executable, "-W", "error", str(path)],
        cwd=tmp_path,
        env={**environment, **more},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )

    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def test_there_are_examples() -> None:
    assert {"hello", *LONGER} <= {path.stem for path in PROGRAMS}
