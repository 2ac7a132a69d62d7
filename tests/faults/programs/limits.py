"""Receivers of a limited channel: they take and finish messages until all is done, or a SIGKILL ends them."""

from __future__ import annotations

import random
import time

import postroom
from postroom.core.states import OPEN
from postroom.core.system.process import this_process
from postroom.stores.contract import Query, Want, topic_channel

from .journal import Journal
from .rooms import UNTIRING, letter

CHANNEL = "work"
#: A receiver that finds nothing looks again after this time at the latest.
_LOOK_S = 0.2
_WORK_S = 0.002


def sender(url: str, messages: int, senders: int, at_once: int = 100) -> None:
    """Send numbered messages, in the names of several senders."""
    with postroom.open(url) as room:
        for start in range(0, messages, at_once):
            room.store.put([
                letter(None, {"n": n}, channel=CHANNEL, from_agent=f"sender-{n % senders}", max_deliveries=UNTIRING)
                for n in range(start, min(start + at_once, messages))
            ])  # fmt: skip


def receiver(url: str, journal: str, seed: int) -> None:
    """Take what the limits allow, and write down from when to when each message was held. Ends when nothing is open."""
    note, chance = Journal(journal).note, random.Random(seed)
    with postroom.open(url) as room, room.store.listen([topic_channel(CHANNEL)]) as waiter:
        store = room.store
        while True:
            want = Want(
                agent="bob", lease_s=600.0, channels=(CHANNEL,), owner=store.process or this_process(),
                limit=chance.choice((1, 1, 3)),
            )  # fmt: skip
            deliveries, next_due_s = store.claim(want)
            held = [(delivery.message, delivery.ticket) for delivery in deliveries]
            for message, ticket in held:
                note("claimed", message.payload["n"], ticket.token, message.from_agent)
            if held:
                time.sleep(chance.random() * _WORK_S)  # long enough for others to come up against the limit
            for message, ticket in held:
                note("settling", message.payload["n"], ticket.token)
                store.settle(ticket, "retry" if chance.random() < 0.02 else "acked")
            if not held:
                if not store.count(Query(states=OPEN)):
                    return
                waiter.wait(_LOOK_S if next_due_s is None else min(_LOOK_S, max(next_due_s, 0.001)))
