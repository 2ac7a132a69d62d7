"""Those who are killed in the storm: they send, receive, answer and count until a SIGKILL ends them.

In a storm they work without a pause. Where they are killed for an hour they rest for `pause_s` between two steps.
"""

from __future__ import annotations

import os
import random
import signal
import time
from typing import Any

import postroom
from postroom.core.system.process import this_process
from postroom.stores.contract import Claimed, Delivery, topic_to
from postroom.stores.sqlite.store import SqliteStore

from .disks import Disk, Trap
from .journal import Journal
from .rooms import UNTIRING, letter, open_room, want

COUNTER = "storm/counter"


def sender(folder: str, journal: str, seed: int, most: int = 1_000_000, pause_s: float = 0) -> None:
    """Send single letters, batches and questions, and write down every id that a send returned."""
    note, chance = Journal(journal).note, random.Random(seed)
    store = open_room(folder)
    for number in range(most):
        size = chance.choice((1, 1, 1, 2, 5))
        batch = f"{seed}.{number}"
        waiter = this_process() if size == 1 and chance.random() < 0.3 else None
        ids = store.put(
            [letter(payload={"batch": batch, "of": size}, waiter=waiter, max_deliveries=UNTIRING) for _ in range(size)]
        )
        note("sent", ids)
        time.sleep(pause_s)


def receiver(folder: str, journal: str, seed: int, pause_s: float = 0) -> None:
    """Claim and settle, and write down what was held, and which settling counted."""
    note, chance = Journal(journal).note, random.Random(seed)
    store = open_room(folder)
    waiter = store.listen([topic_to("bob")])
    claimed = Claimed([], None)
    while True:
        if not claimed.deliveries:
            claimed = store.claim(want(limit=chance.choice((1, 1, 4))))
            _note_claims(note, claimed)
        if not claimed.deliveries:
            waiter.wait(0.01)
        claimed = _settle_all(store, note, chance, claimed.deliveries)
        time.sleep(pause_s)


def _settle_all(store: SqliteStore, note: Any, chance: random.Random, deliveries: list[Delivery]) -> Claimed:
    """Settle these; the last settling may claim the next one in the same step."""
    claimed = Claimed([], None)
    for delivery in deliveries:
        ticket, last = delivery.ticket, delivery is deliveries[-1]
        outcome = chance.choice(("acked", "acked", "answered", "retry"))
        answer = letter(to="ada", payload={"answer": True}, answer_to=ticket.id, max_deliveries=UNTIRING)
        note("settling", ticket.id, ticket.token)
        settled = store.settle(
            ticket,
            outcome,
            detail="again, please" if outcome == "retry" else None,
            delay_s=chance.choice((0, 0.002)) if outcome == "retry" else 0,
            puts=[answer] if outcome == "answered" else [],
            claim_next=want() if last and chance.random() < 0.5 else None,
        )
        note("settled", ticket.id, ticket.token, outcome, settled.held, settled.ids)
        if settled.claimed is not None:
            claimed = settled.claimed
            _note_claims(note, claimed)
    return claimed


def _note_claims(note: Any, claimed: Claimed) -> None:
    for delivery in claimed.deliveries:
        note("claimed", delivery.ticket.id, delivery.ticket.token)


def teller(folder: str, journal: str, seed: int, pause_s: float = 0) -> None:
    """Send as programs do, through a room and an agent."""
    note = Journal(journal).note
    room = postroom.open(f"sqlite:{folder}", max_deliveries=UNTIRING)
    ada = room.agent("ada")
    while True:
        note("sent", [ada.send("bob", {"teller": seed})])
        time.sleep(pause_s)


def listener(folder: str, journal: str, seed: int, pause_s: float = 0) -> None:
    """Receive as programs do, through a room and an agent."""
    note = Journal(journal).note
    room = postroom.open(f"sqlite:{folder}", max_deliveries=UNTIRING)
    for message in room.agent("bob").listen(lease_s=600):
        note("claimed", message.id, message.token)
        note("settling", message.id, message.token)
        note("settled", message.id, message.token, "acked", message.ack(), [])
        time.sleep(pause_s)


def counter(folder: str, journal: str, seed: int, pause_s: float = 0) -> None:
    """Add one to a shared number by compare-and-set, and write down each time that it counted."""
    note = Journal(journal).note
    store = open_room(folder)
    while True:
        cell = store.cell_read(COUNTER)
        value, version = (cell.value, cell.version) if cell else (0, 0)
        if store.cell_write(COUNTER, value + 1, expect=version) is not None:
            note("counted", value + 1)
        time.sleep(pause_s)


def housekeeper(folder: str, journal: str, seed: int, pause_s: float = 0) -> None:
    """Sweep without a pause, so that checkpoints and the burial of dead processes are killed half-way too."""
    store = open_room(folder)
    while True:
        store.sweep()
        time.sleep(pause_s)


def drain(folder: str, journal: str) -> None:
    """When the storm is over: receive all that is left, of bob's and of ada's, and close the room properly."""
    note = Journal(journal).note
    store = open_room(folder)
    for agent in ("bob", "ada"):
        while True:
            claimed = store.claim(want(agent, limit=50))
            for delivery in claimed.deliveries:
                note("claimed", delivery.ticket.id, delivery.ticket.token)
                note("settling", delivery.ticket.id, delivery.ticket.token)
                held = store.settle(delivery.ticket, "acked").held
                note("settled", delivery.ticket.id, delivery.ticket.token, "acked", held, [])
            if not claimed.deliveries:
                if not _left_for(store, agent):
                    break
                store.sweep()
    store.close()


def _left_for(store: SqliteStore, agent: str) -> bool:
    _, rows = store.read_only(f"SELECT count(*) FROM messages WHERE to_agent = '{agent}' AND state IN (0, 1, 7, 8)")
    return bool(rows[0][0])


def dies_in_a_sync(folder: str, journal: str, at: int) -> None:
    """Send, each message on disk before the next, and be killed in the middle of that sync of the log."""
    _send_and_act_in_a_sync(folder, journal, at, signal.SIGKILL)


def stops_in_a_sync(folder: str, journal: str) -> None:
    """Send one message, and be stopped in the middle of its sync; end when somebody lets it go on."""
    _send_and_act_in_a_sync(folder, journal, 1, signal.SIGSTOP)


def _send_and_act_in_a_sync(folder: str, journal: str, at: int, act: signal.Signals) -> None:
    note, trap = Journal(journal).note, Trap(("sync",), lambda _: os.kill(os.getpid(), act))
    disk = Disk("acting", trap)
    store = open_room(folder, sync="full", vfs=disk.name, busy_timeout_s=60)
    trap.arm(at)
    while not trap.sprung:
        note("sent", store.put([letter()]))
