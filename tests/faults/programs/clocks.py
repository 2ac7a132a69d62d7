"""Processes whose wall clocks disagree, and jump while they work."""

from __future__ import annotations

import random

import postroom
from postroom.core.clock import SystemClock

from .journal import Journal

HOUR_MS = 3_600_000


class JumpyClock(SystemClock):
    """The machine's clocks, but for the wall clock, which is set forward and back by an hour now and then."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self._chance = random.Random(seed)
        self._off_ms = self._chance.choice((-HOUR_MS, 0, HOUR_MS))

    def wall_ms(self) -> int:
        if self._chance.random() < 0.2:
            self._off_ms = self._chance.choice((-HOUR_MS, 0, HOUR_MS))
        return super().wall_ms() + self._off_ms


def sender(folder: str, journal: str, number: int, messages: int) -> None:
    """Send letters that live for ten minutes; no jump of an hour may end one."""
    note = Journal(journal).note
    with postroom.open(f"sqlite:{folder}", clock=JumpyClock(number)) as room:
        ada = room.agent(f"ada-{number}")
        for n in range(messages):
            note("sent", ada.send("bob", {"n": n}, ttl_s=600))


def receiver(folder: str, journal: str, number: int, messages: int) -> None:
    """Receive letters, hold each for a moment, and ack it; no jump of an hour may end the lease."""
    note = Journal(journal).note
    with postroom.open(f"sqlite:{folder}", clock=JumpyClock(1000 + number)) as room:
        bob = room.agent("bob")
        for message in bob.listen(timeout_s=1):
            note("received", message.id, message.delivery_count)
            note("acked", message.id, message.ack())
