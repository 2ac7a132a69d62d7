"""Those who work in a room of files: they send, claim, drop and keep a board, and some are killed at it."""

from __future__ import annotations

import json
import os
import random
from pathlib import Path
from typing import Any

from postroom.core import crashpoints
from postroom.core.clock import SYSTEM
from postroom.core.config import Config
from postroom.stores.contract import Claimed, topic_channel, topic_to
from postroom.stores.files.store import FilesStore

from .crowd import wait_until
from .journal import Journal
from .rooms import UNTIRING, letter, want

TASKS = 5


def open_files(folder: str | Path) -> FilesStore:
    """The store of a room of files, as a process opens it."""
    return FilesStore(Path(folder), Config(busy_timeout_s=60), SYSTEM)


# A crowd that nobody kills


def crowd_sender(folder: str, out: str, number: int, count: int, start_ns: int) -> None:
    """Send so many messages, to anybody and to one, alone and together; write their ids down at the end."""
    store = open_files(folder)
    wait_until(start_ns)
    ids: list[str] = []
    while len(ids) < count:
        size = min(count - len(ids), 5 if len(ids) % 7 == 0 else 1)
        to = None if len(ids) % 2 else "bob"
        drafts = [letter(to, {"n": [number, len(ids) + n], "pad": "x" * 200}, channel="work") for n in range(size)]
        ids += store.put(drafts)
    Path(out).write_text(json.dumps(ids))
    store.close()


def crowd_claimer(folder: str, out: str, number: int, start_ns: int) -> None:
    """Claim one after the other as bob until "stop" comes; write down what came, and whether each was whole and ours."""
    store = open_files(folder)
    wait_until(start_ns)
    taken: list[tuple[str, int]] = []
    partial: list[str] = []
    asked = want("bob", channels=("work",), lease_s=600)
    waiter = store.listen([topic_to("bob"), topic_channel("work")])
    claimed = store.claim(asked)
    while not (Path(folder).parent / "stop").exists() or claimed.deliveries:
        if not claimed.deliveries:
            waiter.wait(0.2)
            claimed = store.claim(asked)
            continue
        (delivery,) = claimed.deliveries
        if set(delivery.message.payload) != {"n", "pad"} or len(delivery.message.payload["pad"]) != 200:
            partial.append(delivery.message.id)
        settled = store.settle(delivery.ticket, "acked", claim_next=asked)
        assert settled.claimed is not None
        taken.append((delivery.message.id, delivery.message.delivery_count if settled.held else -1))
        claimed = settled.claimed
    Path(out).write_text(json.dumps({"taken": taken, "partial": partial}))
    waiter.close()
    store.close()


# The storm: everybody here is killed


def sender(folder: str, journal: str, seed: int) -> None:
    """Send letters, batches and signals, and write down every id that a send returned."""
    note, chance = Journal(journal).note, random.Random(seed)
    store = open_files(folder)
    for number in range(1_000_000):
        size = chance.choice((1, 1, 1, 4))
        payload = {"batch": f"{seed}.{number}", "of": size}
        kind = chance.choice(("message", "done"))
        note("sent", store.put([letter(payload=payload, type=kind, max_deliveries=UNTIRING) for _ in range(size)]))


def dropper(folder: str, journal: str, seed: int) -> None:
    """Drop files as other programs do, and write their names down."""
    note = Journal(journal).note
    inbox = Path(folder) / "inbox" / "bob"
    for number in range(1_000_000):
        half = Path(folder) / f".half-{os.getpid()}"
        half.write_text(
            json.dumps({"from": "hand", "payload": {"drop": f"{seed}.{number}"}, "max_deliveries": UNTIRING})
        )
        if not inbox.is_dir():
            continue
        half.rename(inbox / f"drop-{seed}-{number}.json")
        note("dropped", f"{seed}.{number}")
        SYSTEM.sleep(0.002)


def receiver(folder: str, journal: str, seed: int) -> None:
    """Claim and settle, and write down what was held, and which settling counted."""
    note, chance = Journal(journal).note, random.Random(seed)
    store = open_files(folder)
    waiter = store.listen([topic_to("bob")])
    claimed = Claimed([], None)
    while True:
        if not claimed.deliveries:
            claimed = store.claim(want(limit=chance.choice((1, 3))))
            note_claims(note, claimed)
        if not claimed.deliveries:
            waiter.wait(0.01)
        deliveries, claimed = claimed.deliveries, Claimed([], None)
        for delivery in deliveries:
            ticket, outcome = delivery.ticket, chance.choice(("acked", "answered", "retry"))
            answer = letter("ada", {"answer": True}, answer_to=ticket.id, max_deliveries=UNTIRING)
            note("settling", ticket.id, ticket.token)
            settled = store.settle(
                ticket,
                outcome,
                puts=[answer] if outcome == "answered" else [],
                claim_next=want() if delivery is deliveries[-1] and chance.random() < 0.5 else None,
            )
            note("settled", ticket.id, ticket.token, outcome, settled.held, settled.ids)
            if settled.claimed is not None:
                claimed = settled.claimed
                note_claims(note, claimed)


def note_claims(note: Any, claimed: Claimed) -> None:
    for delivery in claimed.deliveries:
        note("claimed", delivery.ticket.id, delivery.ticket.token)


def board_writer(folder: str, journal: str, seed: int) -> None:
    """Add to the tasks of the board by compare-and-set, and write down each time that it counted."""
    note, chance = Journal(journal).note, random.Random(seed)
    store = open_files(folder)
    while True:
        name = f"T{chance.randrange(TASKS)}"
        cell = store.cell_read(f"board/task/{name}")
        value: dict[str, Any] = cell.value if cell else {"id": name, "state": "ready", "n": 0}
        version = cell.version if cell else 0
        if store.cell_write(f"board/task/{name}", {**value, "n": value["n"] + 1}, expect=version) is not None:
            note("counted", name, value["n"] + 1)


def housekeeper(folder: str, journal: str, seed: int) -> None:
    """Sweep without a pause, and write the log anew again and again."""
    store = open_files(folder)
    store.log_growth_bytes = 1
    while True:
        store.sweep()


def drain(folder: str, journal: str) -> None:
    """When the storm is over: receive all that is left, of bob's and of ada's, and close the room properly."""
    note = Journal(journal).note
    store = open_files(folder)
    for agent in ("bob", "ada"):
        empty = 0
        while empty < 3:
            claimed = store.claim(want(agent, limit=50))
            note_claims(note, claimed)
            for delivery in claimed.deliveries:
                note("settling", delivery.ticket.id, delivery.ticket.token)
                held = store.settle(delivery.ticket, "acked").held
                note("settled", delivery.ticket.id, delivery.ticket.token, "acked", held, [])
            empty = 0 if claimed.deliveries else empty + 1
            if not claimed.deliveries:
                SYSTEM.sleep(0.6)
                store.sweep()
    store.close()


# One step, and a kill at one place of it


def make_ready(folder: str | Path) -> list[tuple[str, int, str]]:
    """A room in which every step of STEPS can be taken; the tickets of what bob holds."""
    store = open_files(folder)
    store.put([letter(payload={"n": n}, max_deliveries=2) for n in range(4)])
    store.subscribe("news", "eve")
    store.subscribe("news", "dan")
    tickets = [delivery.ticket for delivery in store.claim(want(owner=None, limit=2)).deliveries]
    store.close()
    return [(ticket.id, ticket.token, ticket.agent) for ticket in tickets]


STEPS: dict[str, Any] = {
    "send": lambda store, held: store.put([letter(payload={"new": 1}, type="done")]),
    "send a batch": lambda store, held: store.put([letter(to, {"new": 1}) for to in ("bob", "eve", None)]),
    "publish": lambda store, held: store.put([letter(None, {"new": 1}, channel="news", publish=True)]),
    "claim": lambda store, held: store.claim(want(limit=2)),
    "ack": lambda store, held: store.settle(held[0], "acked"),
    "answer and claim": lambda store, held: store.settle(
        held[0], "answered", puts=[letter("ada", {"new": 1}, answer_to=held[0].id)], claim_next=want()
    ),
    "retry": lambda store, held: store.settle(held[1], "retry"),
    "cell": lambda store, held: store.cell_write("board/task/T1", {"id": "T1", "state": "ready"}),
    "write the log anew": lambda store, held: _write_anew(store),
}


def _write_anew(store: FilesStore) -> None:
    store.log_growth_bytes = 1
    store.sweep()


def die_at(
    folder: str, name: str, held: list[tuple[str, int, str]], point: str, times_passed: int, journal: str
) -> None:
    """Take a step and be killed at a test point of it."""
    from postroom.stores.contract import Ticket

    store = open_files(folder)
    crashpoints.die_at(point, times_passed)
    STEPS[name](store, [Ticket(*each) for each in held])
    Journal(journal).note("returned")


def die_in_call(folder: str, name: str, held: list[tuple[str, int, str]], at: int, journal: str) -> None:
    """Take a step and be killed just before the call to the system with that number that changes a file."""
    from postroom.stores.contract import Ticket

    store = open_files(folder)
    _die_before_call(at)
    STEPS[name](store, [Ticket(*each) for each in held])
    Journal(journal).note("returned")


def die_while_opening(folder: str, at: int, journal: str) -> None:
    """Open a room, of whatever layout, and be killed just before the call with that number that changes a file."""
    import shutil  # noqa: F401  (which has calls of its own under these names, loaded late)

    _die_before_call(at)
    open_files(folder).close()
    Journal(journal).note("returned")


def _die_before_call(at: int) -> None:
    import signal

    left = [at]

    def dying(call: Any) -> Any:
        def instead(*args: Any, **kwargs: Any) -> Any:
            left[0] -= 1
            if left[0] == 0:
                os.kill(os.getpid(), signal.SIGKILL)
            return call(*args, **kwargs)

        return instead

    for call in ("link", "rename", "unlink", "pwrite", "fsync", "open", "mkdir", "ftruncate"):
        setattr(os, call, dying(getattr(os, call)))
