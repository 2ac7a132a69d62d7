"""What a child remembers outside of the room, so that a test can compare the room with it after the child's death.

A line is written by one `write` to a file opened with O_APPEND before the child goes on: a SIGKILL falls before or
after it, never into it, and lines of many processes do not mix.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any, NamedTuple

from .nursery import steady_ns


class Journal:
    """Writes lines: what happened, by whom, at what moment of the machine's steady clock."""

    def __init__(self, path: str) -> None:
        self._descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)

    def note(self, event: str, *details: Any) -> None:
        os.write(self._descriptor, (json.dumps([event, os.getpid(), steady_ns(), *details]) + "\n").encode())


class Line(NamedTuple):
    """One line of a journal."""

    event: str
    pid: int
    at_ns: int
    details: list[Any]


def read(path: Path) -> list[Line]:
    """All lines, in the order in which they were written."""
    if not path.exists():
        return []
    lines = map(json.loads, path.read_text(encoding="utf-8").splitlines())
    return [Line(event, pid, at_ns, details) for event, pid, at_ns, *details in lines]
