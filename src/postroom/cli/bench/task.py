"""What a measured process is told, and what it tells."""

from __future__ import annotations

import sys
from typing import Any, Final

import msgspec

from postroom.core.clock import SYSTEM

from .client import Setup

#: A consumer that found nothing for so long looks whether all is sent, in seconds.
IDLE_S: Final = 0.1
#: A wait for one message ends after this, in seconds.
PATIENCE_S: Final = 10.0

Found = dict[str, Any]


class BenchTask(msgspec.Struct):
    """What a process is to do."""

    role: str
    peer: str
    setup: Setup
    count: int = 0
    first: int = 0  # number of its first message
    pause_s: float = 0.0  # between two messages
    cap_s: float = 10.0  # when it stops, done or not
    patience_s: float = 30.0  # what it may take beyond that, to open and to fill
    done_flag: str = ""  # a file that is there once everything is sent
    places: list[Setup] = []  # W7: one per depth
    depths: list[int] = []
    others: list[str] = []  # the load test: who else is there


class RoleDeadline:
    """When a role must stop, done or not."""

    def __init__(self, cap_s: float) -> None:
        self._until_ns = SYSTEM.steady_ns() + round(cap_s * 1e9)

    def passed(self) -> bool:
        return SYSTEM.steady_ns() >= self._until_ns


def say(value: object) -> None:
    """Write a line for the one who started us."""
    sys.stdout.write(msgspec.json.encode(value).decode() + "\n")
    sys.stdout.flush()
