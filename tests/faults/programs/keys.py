"""Receivers of messages with order keys: they work without a pause until all is done, or a SIGKILL ends them."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from contextlib import contextmanager

import postroom
from postroom.core.system.process import this_process
from postroom.stores.contract import Store, Want, topic_channel

from .journal import Journal
from .rooms import UNTIRING, letter

CHANNEL = "work"


@contextmanager
def opened(url: str) -> Iterator[Store]:
    """The store of a room, with the name of this process as it stands there."""
    with postroom.open(url) as room:
        yield room.store


def sender(url: str, first: int, messages: int, keys: int, at_once: int = 50) -> None:
    """Send numbered messages, each with a key that follows from its number."""
    with opened(url) as store:
        for start in range(first, first + messages, at_once):
            numbers = range(start, min(start + at_once, first + messages))
            store.put([
                letter(None, {"n": n}, channel=CHANNEL, order_key=f"key-{n % keys}", max_deliveries=UNTIRING)
                for n in numbers
            ])  # fmt: skip


def receiver(url: str, journal: str, seed: int) -> None:
    """Take what there is, and write down from when to when each message was held. Ends when nothing is open."""
    note, chance = Journal(journal).note, random.Random(seed)
    with opened(url) as store, store.listen([topic_channel(CHANNEL)]) as waiter:
        idle = 0
        while idle < 20:
            want = Want(
                agent="bob", lease_s=600.0, channels=(CHANNEL,), owner=store.process or this_process(),
                limit=chance.choice((1, 1, 3)),
            )  # fmt: skip
            deliveries = store.claim(want).deliveries
            for delivery in deliveries:
                note("claimed", delivery.message.payload["n"], delivery.ticket.token)
            for delivery in deliveries:
                outcome = "retry" if chance.random() < 0.05 else "acked"
                note("settling", delivery.message.payload["n"], delivery.ticket.token)
                if store.settle(delivery.ticket, outcome).held and outcome == "acked":
                    note("done", delivery.message.payload["n"])
            idle = 0 if deliveries else idle + 1
            if not deliveries:
                waiter.wait(0.2)


def racer(url: str, journal: str, part: int, messages: int) -> None:
    """Withdraw messages (an even part), or take and ack them, as they come; write down which of them were won."""
    note, chance = Journal(journal).note, random.Random(part)
    with opened(url) as store:
        done = 0
        while done < messages:
            if part % 2:
                claim = Want(agent="bob", lease_s=600.0, channels=(CHANNEL,), settle=True, limit=5)
                won = [delivery.message.id for delivery in store.claim(claim).deliveries]
            else:
                ids = store.put([letter(None, channel=CHANNEL) for _ in range(5)])
                time.sleep(chance.random() * 0.003)
                won = store.withdraw(ids, "ada")
                done += 5
            if won:
                note("withdrawn" if part % 2 == 0 else "acked", won)
            if part % 2 and not won and len(store.cell_scan("race/over")) == 2:
                return
        store.cell_write(f"race/over{part}", True)
