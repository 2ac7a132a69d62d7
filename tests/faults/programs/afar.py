"""Those who work on a room on NATS while its servers die or cannot be reached: they send and receive until told to stop."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, TypeVar

from postroom.core.clock import SYSTEM
from postroom.core.config import Config, parse_url
from postroom.core.states import OPEN
from postroom.core.system.process import this_process
from postroom.errors import OutcomeUnknown, RoomUnreachable
from postroom.stores.contract import Delivery, Query, topic_to
from postroom.stores.nats.store import NatsStore

from .journal import Journal
from .rooms import UNTIRING, letter, want

T = TypeVar("T")


def _open(url: str, timeout_s: float) -> NatsStore:
    while True:
        try:
            return NatsStore(parse_url(url), Config(server_timeout_s=timeout_s), SYSTEM)
        except RoomUnreachable:
            SYSTEM.sleep(0.1)


def sender(url: str, journal: str, seed: int, stop: str, timeout_s: float, pause_s: float = 0.0) -> None:
    """Send letters, some under a key; one whose outcome is not known, or that was refused, is sent again as it was."""
    note = Journal(journal).note
    store = _open(url, timeout_s)
    number = 0
    while not os.path.exists(stop):
        draft = letter(payload={"by": seed, "n": number}, max_deliveries=UNTIRING, idempotency_key=f"{seed}.{number}")
        if number % 4:
            draft.idempotency_key = None
        try:
            note("sent", store.put([draft]), number)
        except OutcomeUnknown:
            note("unsure", "send", [seed, number])
            continue
        except RoomUnreachable:
            note("refused", "send", number)
            continue
        number += 1
        SYSTEM.sleep(pause_s)
    store.close()


def receiver(url: str, journal: str, seed: int, stop: str, timeout_s: float, lease_s: float) -> None:
    """Claim and ack, and write down which acks counted. Ends when it is time to, and nothing is left."""
    note = Journal(journal).note
    store = _open(url, timeout_s)
    waiter = store.listen([topic_to("bob")])
    while True:
        claimed = _try(note, "claim", lambda: store.claim(want(lease_s=lease_s, owner=this_process())))
        if claimed is None:
            continue
        for delivery in claimed.deliveries:
            note("claimed", delivery.ticket.id, delivery.ticket.token)
            _ack(store, note, delivery)
        if not claimed.deliveries and not waiter.wait(0.2) and os.path.exists(stop) and _is_empty(store, note):
            break
    waiter.close()
    store.close()


def _ack(store: NatsStore, note: Any, delivery: Delivery) -> None:
    """Until the room has said whether it counted; an ack whose outcome was not known is repeated."""
    ticket, unsure = delivery.ticket, False
    while True:
        note("settling", ticket.id, ticket.token)
        try:
            note("settled", ticket.id, ticket.token, "acked", store.settle(ticket, "acked").held, unsure)
        except OutcomeUnknown:
            unsure = True
            note("unsure", "ack", ticket.id)
        except RoomUnreachable:
            note("refused", "ack", ticket.id)
        else:
            return


def _is_empty(store: NatsStore, note: Any) -> bool:
    page = _try(note, "find", lambda: store.find(Query(states=OPEN, limit=1)))
    return page is not None and not page.messages


def _try(note: Any, what: str, call: Callable[[], T]) -> T | None:
    try:
        return call()
    except OutcomeUnknown:
        note("unsure", what)
    except RoomUnreachable:
        note("refused", what)
    return None
