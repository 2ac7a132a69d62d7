"""Those whose histories are judged: they do everything that can be done with a room, and write down what they saw.

Every call goes through a recorded store. They end when they are told to, or are killed, stopped and cut off before that.
"""

from __future__ import annotations

import os
import random
from pathlib import Path
from typing import Any

from postroom.core.clock import SYSTEM, Clock
from postroom.core.config import Config, parse_url
from postroom.core.message import Draft
from postroom.core.states import OPEN
from postroom.core.system.process import this_process
from postroom.errors import OutcomeUnknown, RoomBusy, RoomUnreachable
from postroom.stores.contract import ANY, Delivery, Query, Store, Ticket, Want
from postroom.stores.files.store import FilesStore
from postroom.stores.nats.store import NatsStore
from postroom.testing.histories import RecordedStore, Recorder, read

from .clocks import JumpyClock
from .rooms import UNTIRING, letter, open_room, want

CELLS = ("history/one", "history/two", "history/three")
#: A lease that many do not keep, and one that is over only when its process is.
SHORT_S, LONG_S = 0.1, 600.0
UNAVAILABLE = (RoomBusy, RoomUnreachable, OutcomeUnknown)
#: More than any cut or restart takes: whoever repeats a call learns in the end what became of it.
REPEATS = 1000


def open_store(url: str, clock: Clock = SYSTEM, server_timeout_s: float = 2.0) -> Store:
    """The store at an address, however long its server is away."""
    kind, _, place = url.partition(":")
    if kind == "sqlite":
        return open_room(place, clock=clock)
    if kind == "files":
        return FilesStore(Path(place), Config(busy_timeout_s=60), clock)
    while True:
        try:
            return NatsStore(parse_url(url), Config(server_timeout_s=server_timeout_s), clock)
        except UNAVAILABLE:
            SYSTEM.sleep(0.05)


class Worker:
    """One process that works in a room, as chance will have it."""

    def __init__(self, url: str, history: str, name: str, seed: int, skewed: bool) -> None:
        self.name, self.chance, self.number = name, random.Random(seed), 0
        self.recorder = Recorder(history, name)
        inner = open_store(url, JumpyClock(seed) if skewed else SYSTEM)
        self.one_step = inner.atomic_settle
        self.store = RecordedStore(inner, self.recorder, REPEATS)
        self.old: list[Ticket] = []
        self.questions: list[str] = []

    def letter(self, to: str | None = "bob", **fields: Any) -> Draft:
        self.number += 1
        fields.setdefault("max_deliveries", self.chance.choice((UNTIRING, UNTIRING, UNTIRING, 3)))
        return letter(to, {"label": f"{self.name}.{self.number}"}, **fields)

    def want(self, agent: str = "bob") -> Want:
        """For long, as long as this process lives; or for a moment."""
        chance = self.chance.random()
        lease_s, owner = (
            (LONG_S, this_process()) if chance < 0.8 else (SHORT_S, this_process() if chance < 0.9 else None)
        )
        channels = ("jobs",) if self.chance.random() < 0.2 else None
        return want(agent, lease_s=lease_s, owner=owner, limit=self.chance.choice((1, 1, 1, 4)), channels=channels)

    def work(self) -> None:
        """One thing of all that can be done."""
        what = self.chance.random()
        if what < 0.26:
            self.send()
        elif what < 0.56:
            self.take()
        elif what < 0.59:
            self.ask()
        elif what < 0.64 and self.questions:
            self.hear()
        elif what < 0.66 and self.old:
            self.speak_late()
        elif what < 0.68:
            self.store.requeue([ticket.id for ticket in self.old[:2]])
        elif what < 0.685:
            self.store.sweep()
        else:
            self.write()

    def send(self) -> None:
        size = self.chance.choice((1, 1, 1, 1, 2, 4))
        to, channel = self.chance.choice((("bob", "general"),) * 4 + (("ada", "general"), (None, "jobs")))
        fields: dict[str, Any] = {"channel": channel, "priority": self.chance.choice((5, 5, 5, 9))}
        if self.chance.random() < 0.05:
            fields["delay_s"] = 0.02
        if self.chance.random() < 0.05:
            fields["ttl_s"] = 0.3
        self.store.put([self.letter(to, **fields) for _ in range(size)])

    def take(self) -> None:
        deliveries = self.store.claim(self.want(self.chance.choice(("bob", "bob", "bob", "ada")))).deliveries
        while deliveries:
            delivery = deliveries.pop()
            next_want = self.want() if self.one_step and not deliveries and self.chance.random() < 0.3 else None
            deliveries += self.settle(delivery, next_want)

    def settle(self, delivery: Delivery, next_want: Want | None) -> list[Delivery]:
        """End it in one way or another; what was claimed with that."""
        ticket, what = delivery.ticket, self.chance.random()
        if what < 0.05:
            self.old.append(ticket)  # for later, or never
            return []
        if what < 0.1 and not self.store.extend(ticket, self.chance.choice((SHORT_S, 10 * SHORT_S))):
            return []
        puts: list[Draft] = []
        outcome = self.chance.choice(("acked",) * 14 + ("retry", "retry", "retry", "returned", "dead", "refused"))
        if outcome == "acked" and delivery.message.type == "question":
            outcome, puts = "answered", [self.letter("ada", answer_to=ticket.id, max_deliveries=UNTIRING)]
        delay_s = self.chance.choice((0, 0.005)) if outcome == "retry" else 0
        settled = self.store.settle(ticket, outcome, delay_s=delay_s, puts=puts, claim_next=next_want)
        if self.chance.random() < 0.05:
            self.old.append(ticket)
        return [] if settled.claimed is None else settled.claimed.deliveries

    def speak_late(self) -> None:
        """About a message that is perhaps no longer ours."""
        ticket = self.old.pop(self.chance.randrange(len(self.old)))
        if self.chance.random() < 0.3:
            self.store.extend(ticket, SHORT_S)
        else:
            self.store.settle(ticket, self.chance.choice(("acked", "retry")))

    def ask(self) -> None:
        self.questions += self.store.put(
            [self.letter("bob", type="question", waiter=this_process(), max_deliveries=UNTIRING)]
        )

    def hear(self) -> None:
        """Take the answer to a question, if it has come."""
        question = self.questions.pop(self.chance.randrange(len(self.questions)))
        answers = self.store.find(Query(answer_to=question)).messages
        if not answers:
            self.questions.append(question)
        for answer in answers:
            taken = self.store.claim(want("ada", ids=(answer.id,))).deliveries
            for delivery in taken:
                self.store.settle(delivery.ticket, "acked")

    def write(self) -> None:
        """Read a cell, and write it as it was read; seldom without looking; seldom delete it."""
        name = self.chance.choice(CELLS)
        cell = self.store.cell_read(name)
        if self.chance.random() < 0.5:
            return
        self.number += 1
        value = None if self.chance.random() < 0.03 else f"{self.name}.{self.number}"
        expect = ANY if self.chance.random() < 0.1 else cell.version if cell else 0
        self.store.cell_write(name, value, expect)


def worker(url: str, history: str, name: str, seed: int, stop: str, skewed: bool) -> None:
    """Work until that file is there."""
    me = Worker(url, history, name, seed, skewed)
    while not os.path.exists(stop):
        try:
            me.work()
        except UNAVAILABLE:
            SYSTEM.sleep(0.01)
    me.recorder.leave()
    me.store.close()


def drain(url: str, history: str, name: str) -> None:
    """When all are gone: receive what is left, look at every message whose id somebody was told, and at the cells."""
    recorder = Recorder(history, name)
    store = RecordedStore(open_store(url, server_timeout_s=60), recorder, REPEATS)
    while True:
        left = 0
        for agent, channels in (("bob", None), ("ada", None), ("ada", ("jobs",))):
            for delivery in store.claim(want(agent, limit=100, channels=channels)).deliveries:
                store.settle(delivery.ticket, "acked")
                left += 1
        if not left:
            if not store.find(Query(states=OPEN, limit=1)).messages:
                break
            SYSTEM.sleep(0.02)
    for id in told_ids(history):
        store.get(id)
    for cell in CELLS:
        store.cell_read(cell)
    recorder.leave()
    store.close()


def told_ids(history: str) -> list[str]:
    """The ids that sends and settlings have returned so far."""
    ids: list[str] = []
    for call in read(history):
        if not call.is_unknown:
            ids += call.result if call.operation == "send" else call.result[2] if call.operation == "settle" else ()
    return ids
