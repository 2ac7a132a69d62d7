"""Owners whose time is over, and those who come after them."""

from __future__ import annotations

import json
import random
import time
from pathlib import Path

from postroom.stores.contract import Ticket

from .crowd import wait_until
from .journal import Journal
from .rooms import letter, open_room, want

#: What a stale owner may try: to end it, to put it back, to set it aside, to refuse it, or to keep it longer.
OUTCOMES = ("acked", "acked", "acked", "retry", "dead", "refused", "answered", "extend")


def stale(folder: str, tickets: str, out: str, start_ns: int, seed: int) -> None:
    """Use every old ticket once, in order, and write down which of them counted."""
    chance = random.Random(seed)
    store = open_room(folder)
    old = [Ticket(*ticket) for ticket in json.loads(Path(tickets).read_text(encoding="utf-8"))]
    wait_until(start_ns)
    counted = []
    for ticket in old:
        outcome = chance.choice(OUTCOMES)
        if outcome == "extend":
            held = store.extend(ticket, 600)
        else:
            puts = [letter("ada", {"stale": True}, answer_to=ticket.id)] if outcome == "answered" else []
            held = store.settle(ticket, outcome, puts=puts).held
        if held:
            counted.append((ticket.id, outcome))
    Path(out).write_text(json.dumps({"tried": len(old), "counted": counted}), encoding="utf-8")


def rightful(folder: str, tickets: str, out: str, start_ns: int) -> None:
    """Ack with every new ticket once, in the same order, and write down which of them did not count."""
    store = open_room(folder)
    new = [Ticket(*ticket) for ticket in json.loads(Path(tickets).read_text(encoding="utf-8"))]
    wait_until(start_ns)
    lost = [ticket.id for ticket in new if not store.settle(ticket, "acked").held]
    Path(out).write_text(json.dumps({"tried": len(new), "lost": lost}), encoding="utf-8")


def hurried(folder: str, journal: str, seed: int, start_ns: int) -> None:
    """Claim with a lease of a millisecond, dawdle, then ack: often too late. Ends when nothing is left."""
    note, chance = Journal(journal).note, random.Random(seed)
    store = open_room(folder)
    wait_until(start_ns)
    idle = 0
    while idle < 40:
        held = store.claim(want(lease_s=0.001, limit=5)).deliveries
        idle = 0 if held else idle + 1
        for delivery in held:
            note("claimed", delivery.ticket.id, delivery.ticket.token)
        time.sleep(chance.random() * 0.005)
        for delivery in chance.sample(held, len(held)):
            note("acked", delivery.ticket.id, delivery.ticket.token, store.settle(delivery.ticket, "acked").held)
