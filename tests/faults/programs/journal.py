"""What a child remembers outside of the room, so that a test can compare the room with it after the child's death.

A line is written by one `write` to a file opened with O_APPEND before the child goes on, so lines of many processes do
not mix. A SIGKILL may cut a line where it crosses a page (once in ten thousand kills); the child did not go on after
it, so half a line is as good as none.
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
        # a line end before it too: whatever a killed child left half-written stands on a line of its own
        os.write(self._descriptor, ("\n" + json.dumps([event, os.getpid(), steady_ns(), *details]) + "\n").encode())


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
    return [line for text in path.read_text(encoding="utf-8").splitlines() if (line := _line(text)) is not None]


def _line(text: str) -> Line | None:
    try:
        event, pid, at_ns, *details = json.loads(text)
    except ValueError:  # empty, or cut by a kill
        return None
    return Line(event, pid, at_ns, details)
