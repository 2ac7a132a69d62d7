"""What the program `ps` tells of a process, on systems without /proc."""

from __future__ import annotations

import subprocess


def started(pid: int) -> str | None:
    """When a process started, as one word; None when none is seen."""
    answer = subprocess.run(["ps", "-o", "lstart=", "-p", str(pid)], capture_output=True, text=True, check=False)
    return answer.stdout.strip().replace(" ", "_").replace(":", ".") or None
