"""What an agent holds stays its own while it shows that it lives: by one-shot commands, by hooks, by a connection."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from postroom import Room
from postroom.core.clock import ManualClock
from postroom.core.config import AGENT_LEASE_S, HEARTBEAT_S
from postroom.core.states import State
from postroom.mail import presence
from postroom.stores.contract import FEED, Want, topic_message, topic_to


def claimed(room: Room, **options: Any) -> str:
    """A message that bob took with a one-shot command."""
    id = room.agent("ada", transient=True).send("bob", {})
    taken = room.agent("bob", transient=True).poll(**options)
    assert taken is not None and taken.id == id
    return id


def show_life(open_room: Callable[..., Room], **settings: Any) -> None:
    """What every one-shot command of bob's does first."""
    room = open_room(**settings)
    room.agent("bob", transient=True)
    room.close()


def left_s(room: Room, id: str) -> float | None:
    """How long the claim lasts from now on; None when nobody holds the message."""
    message = room.get(id)
    if message.exact_state is not State.CLAIMED:
        return None
    return ((message.lease_until_ms or 0) - room.clock.wall_ms()) / 1000


def test_every_sign_of_life_gives_an_agents_claims_their_ten_minutes_anew(
    open_room: Callable[..., Room], clock: ManualClock
) -> None:
    room = open_room()
    id = claimed(room)
    for _ in range(4):
        clock.advance(AGENT_LEASE_S - 60)
        show_life(open_room)
        assert left_s(room, id) == pytest.approx(AGENT_LEASE_S, abs=1)
    assert room.get(id).delivery_count == 1

    clock.advance(AGENT_LEASE_S + 1)

    assert left_s(room, id) is None  # nothing was heard of it for so long


def test_a_sign_of_life_leaves_no_line_and_wakes_nobody(open_room: Callable[..., Room], clock: ManualClock) -> None:
    room = open_room()
    id = claimed(room)
    clock.advance(300)
    ledger, cursor = room.get(id).ledger, room.cursor()
    with room.gateway.listen([topic_message(id), FEED, topic_to("bob")]) as waiter:
        show_life(open_room)
        assert not waiter.wait(0)

    assert (left_s(room, id) or 0) > 300
    assert (room.get(id).ledger, room.events(cursor)) == (ledger, [])


def test_signs_of_life_within_a_minute_write_nothing(open_room: Callable[..., Room], clock: ManualClock) -> None:
    room = open_room()
    id = claimed(room)
    clock.advance(100)
    show_life(open_room)
    before, cell = left_s(room, id), room.store.cell_read("agent/bob")

    clock.advance(HEARTBEAT_S / 2)
    show_life(open_room)

    assert room.store.cell_read("agent/bob") == cell
    assert left_s(room, id) == pytest.approx((before or 0) - HEARTBEAT_S / 2, abs=0.1)


def test_signs_of_life_keep_a_claim_for_as_long_as_the_room_allows(
    open_room: Callable[..., Room], clock: ManualClock
) -> None:
    room = open_room()
    id = claimed(room)
    for _ in range(2):
        clock.advance(500)
        show_life(open_room, max_hold_s=1500)
    assert left_s(room, id) == pytest.approx(500, abs=1)

    clock.advance(499)
    show_life(open_room, max_hold_s=1500)
    assert left_s(room, id) == pytest.approx(1, abs=0.5)

    clock.advance(2)
    show_life(open_room, max_hold_s=1500)
    assert left_s(room, id) is None


def test_without_such_a_limit_a_claim_is_kept_for_ever(open_room: Callable[..., Room], clock: ManualClock) -> None:
    room = open_room()
    id = claimed(room)
    for _ in range(10):
        clock.advance(500)
        show_life(open_room, max_hold_s=None)

    assert left_s(room, id) == pytest.approx(AGENT_LEASE_S, abs=1)


def test_a_lease_that_was_asked_for_stays_as_it_is(open_room: Callable[..., Room], clock: ManualClock) -> None:
    room = open_room()
    short, long = claimed(room, lease_s=120), claimed(room, lease_s=3000)
    clock.advance(100)
    show_life(open_room)

    assert left_s(room, short) == pytest.approx(20, abs=1)
    assert left_s(room, long) == pytest.approx(2900, abs=1)  # and is not cut


def test_what_others_and_processes_hold_is_left_alone(open_room: Callable[..., Room], clock: ManualClock) -> None:
    room = open_room()
    sent = [room.agent("ada", transient=True).send(to, {}) for to in ("bob", "eve")]
    for name, owner in (("bob", room.gateway.process), ("eve", None)):
        room.gateway.claim(Want(agent=name, lease_s=AGENT_LEASE_S, owner=owner))
    room.agent("bob", transient=True)
    clock.advance(300)
    show_life(open_room)

    assert [left_s(room, id) for id in sent] == pytest.approx([AGENT_LEASE_S - 300] * 2, abs=1)


def test_a_connected_agent_keeps_its_claims_without_a_word(open_room: Callable[..., Room], clock: ManualClock) -> None:
    room = open_room()
    room.connect("bob")
    id = claimed(room)
    for _ in range(4):
        clock.advance(AGENT_LEASE_S / 2)
        room._upkeep.round()
    assert left_s(room, id) == pytest.approx(AGENT_LEASE_S, abs=1)

    room.disconnect("bob")
    clock.advance(AGENT_LEASE_S + 1)
    room._upkeep.round()

    assert left_s(room, id) is None


def test_a_program_that_says_that_it_ends_is_stopped_unless_a_process_has_it_open(
    open_room: Callable[..., Room],
) -> None:
    room, server = open_room(), open_room()
    room.agent("bob", transient=True)
    presence.stop(room.gateway, "bob")
    assert [agent.status for agent in room.agents()] == [presence.STOPPED]

    server.connect("bob")
    presence.stop(room.gateway, "bob")
    assert [agent.status for agent in room.agents()] == [presence.ACTIVE]
    server.close()
    assert [agent.status for agent in room.agents()] == [presence.STOPPED]
