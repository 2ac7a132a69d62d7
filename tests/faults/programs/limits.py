"""Workers in a channel that may have so many claimed at once: they work until all is done, or a SIGKILL ends them."""

from __future__ import annotations

import random
import time
from collections import deque

import postroom
from postroom.core.states import FINISHED, State
from postroom.core.system.process import this_process
from postroom.stores.contract import Delivery, Query, Store, Want, topic_channel, topic_to

from .journal import Journal
from .rooms import UNTIRING, letter

CHANNEL = "work"
#: Every other message is for anyone, the others are for these: claimers meet at the limit, not at the same message.
AGENTS = ("bob", "eve", "cy", "dan")
#: A lease that ends while its holder works.
SHORT_S = 0.01
#: A worker that finds nothing looks again after this time at the latest.
LOOK_S = 0.2


def sender(url: str, messages: int, at_once: int = 50) -> None:
    """Send numbered messages."""
    with postroom.open(url) as room:
        for start in range(0, messages, at_once):
            numbers = range(start, min(start + at_once, messages))
            room.store.put([
                letter(None if n % 2 else AGENTS[n // 2 % 4], {"n": n}, channel=CHANNEL, max_deliveries=UNTIRING)
                for n in numbers
            ])  # fmt: skip


class Worker:
    """Claims, holds and settles; and writes down from when to when it held each message under a lease."""

    def __init__(self, store: Store, agent: str, journal: str, seed: int) -> None:
        self._store = store
        self._agent = agent
        self._note = Journal(journal).note
        self._chance = random.Random(seed)
        self._held: deque[tuple[Delivery, bool]] = deque()

    def work(self) -> None:
        """Until nothing is open any more."""
        with self._store.listen([topic_channel(CHANNEL), topic_to(self._agent)]) as waiter:
            while True:
                want, is_short = self._want(self._chance.choice((1, 1, 3)))
                claimed = self._store.claim(want)
                self._take(claimed.deliveries, is_short)
                if not self._held and self._is_over():
                    return
                if not self._held:
                    waiter.wait(LOOK_S if claimed.next_due_s is None else min(LOOK_S, max(claimed.next_due_s, 0.001)))
                while self._held:
                    self._settle(*self._held.popleft())

    def _want(self, limit: int) -> tuple[Want, bool]:
        is_short = self._chance.random() < 0.1
        lease_s = SHORT_S if is_short else 600.0
        owner = self._store.process or this_process()
        return Want(agent=self._agent, lease_s=lease_s, channels=(CHANNEL,), owner=owner, limit=limit), is_short

    def _take(self, deliveries: list[Delivery], is_short: bool) -> None:
        for delivery in deliveries:
            if not is_short:
                self._note("claimed", delivery.message.payload["n"], delivery.ticket.token)
            self._held.append((delivery, is_short))

    def _settle(self, delivery: Delivery, is_short: bool) -> None:
        number, ticket = delivery.message.payload["n"], delivery.ticket
        time.sleep(self._chance.random() * 0.004)
        if is_short:
            time.sleep(SHORT_S)
            if self._chance.random() < 0.5 and self._store.extend(ticket, 600.0):
                self._note("claimed", number, ticket.token)
        outcome = self._chance.choices(("acked", "retry", "returned"), (90, 5, 5))[0]
        want, next_is_short = self._want(1) if self._chance.random() < 0.3 else (None, False)
        self._note("settling", number, ticket.token)
        settled = self._store.settle(ticket, outcome, claim_next=want)
        if settled.claimed is not None:
            self._take(settled.claimed.deliveries, next_is_short)

    def _is_over(self) -> bool:
        sent = self._store.cell_read("sent")
        return sent is not None and not self._store.find(Query(states=frozenset(State) - FINISHED, limit=1)).messages


def worker(url: str, agent: str, journal: str, seed: int) -> None:
    """Work until all that was sent is done."""
    with postroom.open(url) as room:
        Worker(room.store, agent, journal, seed).work()
