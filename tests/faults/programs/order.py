"""Senders who remember when each send began and returned, and one receiver."""

from __future__ import annotations

import json
from pathlib import Path

from postroom.stores.contract import topic_to

from .crowd import wait_until
from .nursery import steady_ns
from .rooms import letter, open_room, want


def sender(folder: str, out: str, number: int, messages: int, start_ns: int) -> None:
    """Send, and write down [id, began, returned] of every message, in the order of sending."""
    store = open_room(folder)
    wait_until(start_ns)
    sent: list[tuple[str, int, int]] = []
    while len(sent) < messages:
        size = 3 if len(sent) % 10 == 0 else 1
        drafts = [letter(payload={"sender": number, "n": len(sent) + n}) for n in range(size)]
        began = steady_ns()
        ids = store.put(drafts)
        returned = steady_ns()
        sent += [(id, began, returned) for id in ids]
    Path(out).write_text(json.dumps(sent), encoding="utf-8")


def receiver(folder: str, out: str, messages: int) -> None:
    """Receive that many while others still send, and write down the ids in the order in which they came."""
    store = open_room(folder)
    got: list[str] = []
    with store.listen([topic_to("bob")]) as waiter:
        while len(got) < messages:
            deliveries = store.claim(want(limit=20, settle=True)).deliveries
            got += [delivery.message.id for delivery in deliveries]
            if not deliveries:
                waiter.wait(1)
    Path(out).write_text(json.dumps(got), encoding="utf-8")
