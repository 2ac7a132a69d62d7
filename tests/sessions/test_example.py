"""The coordinator and the analyzer of the source, as a program that people run."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.support import DOCS, EXAMPLES

EXAMPLE = EXAMPLES / "coordinator.py"


def test_the_coordinator_and_the_analyzer_work_in_separate_processes(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, str(EXAMPLE)], cwd=tmp_path, capture_output=True, text=True, check=True, timeout=60
    )

    lines = EXAMPLE.read_text(encoding="utf-8").count("\n")
    assert done.stdout.splitlines() == [
        f"[{{'file': 'coordinator.py', 'summary': '{lines} lines'}}, 'analyzed']",
        "analyzer failed: worker analyzer raised FileNotFoundError: [Errno 2] No such file or directory: 'nowhere.txt'",
    ]
    (failed,) = tmp_path.glob(".postroom/sessions/*/.failed")
    assert "FileNotFoundError" in failed.read_text(encoding="utf-8")


def test_the_program_of_the_page_about_sessions_runs(tmp_path: Path) -> None:
    page = (DOCS / "sessions.md").read_text(encoding="utf-8")
    (tmp_path / "program.py").write_text(page.partition("```python\n")[2].partition("```")[0], encoding="utf-8")

    done = subprocess.run(
        [sys.executable, "-W", "error", "program.py"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )

    assert done.stdout == "[{'file': 'src/main.rs', 'summary': 'analyzed'}, 'done']\n"
