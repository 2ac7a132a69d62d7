"""Servers that lost some of what they had confirmed: as those may that do not sync each write, when the power goes."""

from __future__ import annotations

import inspect
import sys
from typing import Any

import pytest
from tests.support.nats_servers import room_name, shared_server

from postroom.core.clock import ManualClock
from postroom.core.config import Config, parse_url
from postroom.core.message import Draft, check
from postroom.core.states import State
from postroom.stores.contract import Want
from postroom.stores.nats.store import NatsStore

pytestmark = pytest.mark.slow

LARGE = {"text": "x" * 900_000}  # in two parts, beside the message


@pytest.mark.parametrize("parts_kept", [0, 1])
@pytest.mark.parametrize("how", [{}, {"settle": True}, {"ids": True}], ids=["claim", "claim and ack", "claim by id"])
def test_a_message_whose_payload_the_servers_lost_is_set_aside_and_not_delivered(
    how: dict[str, Any], parts_kept: int, clock: ManualClock
) -> None:
    store = NatsStore(parse_url(f"nats://{shared_server().address}/{room_name()}"), Config(), clock)
    try:
        [lost] = store.put([check(Draft(from_agent="ada", to_agent="bob", payload=LARGE))])
        [whole] = store.put([check(Draft(from_agent="ada", to_agent="bob", payload={"text": "hi"}))])
        room = store._room
        for part in range(parts_kept, 2):
            subject = f"pr.{room.name}.b.{lost}.{part}"
            room.wire.run(room.wire.api(f"STREAM.PURGE.{room.wire.stream}", filter=subject))

        asked = {"limit": 2, "ids": (lost, whole)} if "ids" in how else how
        found = store.claim(Want(**{"agent": "bob", "lease_s": 30.0, **asked})).deliveries

        assert [each.message.id for each in found] == [whole]
        dead = store.get(lost)
        assert dead is not None and dead.exact_state is State.DEAD
        assert dead.error is not None and "lost on the servers" in dead.error
    finally:
        store.close()


def test_hundreds_of_lost_payloads_keep_nobody_from_the_next_message(clock: ManualClock) -> None:
    store = NatsStore(parse_url(f"nats://{shared_server().address}/{room_name()}"), Config(), clock)
    try:
        store.put([check(Draft(from_agent="ada", to_agent="bob", payload={"text": "x" * 5000})) for _ in range(150)])
        [whole] = store.put([check(Draft(from_agent="ada", to_agent="bob", payload={"text": "hi"}))])
        room = store._room
        room.wire.run(room.wire.api(f"STREAM.PURGE.{room.wire.stream}", filter=f"pr.{room.name}.b.>"))
        depth, most = len(inspect.stack()), sys.getrecursionlimit()
        sys.setrecursionlimit(depth + 140)
        try:
            found = store.claim(Want(agent="bob", lease_s=30.0)).deliveries
        finally:
            sys.setrecursionlimit(most)

        assert [each.message.id for each in found] == [whole]
    finally:
        store.close()
