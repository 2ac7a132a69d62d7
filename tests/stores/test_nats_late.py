"""Attempts that reach the servers late, after the caller has made another and gone on."""

from __future__ import annotations

from typing import Any

import pytest
from tests.support.nats_servers import room_name, shared_server

from postroom.core.clock import ManualClock
from postroom.core.config import Config, parse_url
from postroom.core.message import Draft, check
from postroom.core.states import State
from postroom.stores.contract import Want
from postroom.stores.nats.connection import NoReply
from postroom.stores.nats.store import NatsStore

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("value", [2, None], ids=["written", "deleted"])
def test_a_late_attempt_to_write_a_cell_does_not_undo_what_was_written_since(
    value: int | None, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = NatsStore(parse_url(f"nats://{shared_server().address}/{room_name()}"), Config(), clock)
    try:
        connection = store._room.wire.connection
        call, made = connection.call, []

        def seen(*messages: Any) -> bytes:
            made.append(messages)
            return call(*messages)

        monkeypatch.setattr(connection, "call", seen)
        first = store.cell_write("a", 1)
        store.cell_write("a", value)

        reply = call(*made[0])

        assert f'"seq":{first}'.encode() in reply
        cell = store.cell_read("a")
        assert (None if cell is None else cell.value) == value
    finally:
        store.close()


def test_a_deletion_that_another_made_meanwhile_is_not_taken_for_ones_own(
    clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = parse_url(f"nats://{shared_server().address}/{room_name()}")
    store, other = NatsStore(url, Config(), clock), NatsStore(url, Config(), clock)
    try:
        version = store.cell_write("a", 1)
        assert version is not None

        def lose(*_: Any) -> bytes:
            assert other.cell_write("a", None, expect=version) == 0
            raise NoReply(sent=True)

        monkeypatch.setattr(store._room.wire.connection, "call", lose)

        assert store.cell_write("a", None, expect=version) is None
    finally:
        store.close()
        other.close()


def test_a_deletion_whose_reply_was_lost_is_told_when_it_is_made_again(
    clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = NatsStore(parse_url(f"nats://{shared_server().address}/{room_name()}"), Config(), clock)
    try:
        version = store.cell_write("a", 1)
        assert version is not None
        call = store._room.wire.connection.call

        def lose(*messages: Any) -> bytes:
            call(*messages)
            raise NoReply(sent=True)

        monkeypatch.setattr(store._room.wire.connection, "call", lose)

        assert store.cell_write("a", None, expect=version) == 0
        assert store.cell_read("a") is None
    finally:
        store.close()


@pytest.mark.parametrize(
    ("outcome", "delay_s", "state"),
    [("returned", 0, State.READY), ("retry", 0, State.READY), ("retry", 60, State.DELAYED)],
)
def test_a_word_whose_reply_was_lost_is_told_as_it_was_though_others_went_on_with_the_message(
    outcome: str, delay_s: float, state: State, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = parse_url(f"nats://{shared_server().address}/{room_name()}")
    store, other = NatsStore(url, Config(), clock), NatsStore(url, Config(), clock)
    try:
        store.put([check(Draft(from_agent="ann", to_agent="bob", payload={}))])
        (delivery,) = store.claim(Want(agent="bob", lease_s=30)).deliveries
        call = store._room.wire.connection.call

        def lose(*messages: Any) -> bytes:
            call(*messages)
            clock.advance(delay_s)
            (again,) = other.claim(Want(agent="bob", lease_s=30)).deliveries
            assert other.settle(again.ticket, "acked").held
            raise NoReply(sent=True)

        monkeypatch.setattr(store._room.wire.connection, "call", lose)

        settled = store.settle(delivery.ticket, outcome, delay_s=delay_s)

        assert (settled.held, settled.state) == (True, state)
    finally:
        store.close()
        other.close()
