"""Why a message waits, and until when: one answer for the command line, the page and programs."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tests.support.watched_clock import WatchedClock

from postroom.core.clock import from_iso
from postroom.room import Room


def test_a_delayed_message_is_not_due_until_its_time(room: Room, clock: WatchedClock) -> None:
    room.agent("bob")
    id = room.agent("ada").send("bob", {"text": "later"}, delay_s=240)

    why = room.why(id)

    assert (why.kind, "in 4 min" in why.text) == ("not_due", True)
    assert why.until is not None
    assert from_iso(why.until) - clock.wall_ms() == 240_000
    clock.advance(241)
    assert room.why(id).kind == "in_line"


def test_a_retried_message_says_when_it_comes_again_and_what_went_wrong(room: Room, clock: WatchedClock) -> None:
    id = room.agent("ada").send("bob", {"text": "hi"})
    held = room.agent("bob").poll()
    assert held is not None
    held.retry("the server was down", delay_s=60)

    why = room.why(id)

    assert why.kind == "retry"
    assert all(part in why.text for part in ("the server was down", "1 of 3", "in 1 min"))
    assert why.until is not None
    assert from_iso(why.until) - clock.wall_ms() == 60_000


def test_a_held_message_says_whose_it_is_and_until_when(room: Room, clock: WatchedClock) -> None:
    id = room.agent("ada").send("bob", {"text": "hi"})
    held = room.agent("bob").poll(lease_s=600)
    assert held is not None

    why = room.why(id)

    assert why.kind == "held"
    assert "bob" in why.text
    assert why.until is not None
    assert from_iso(why.until) - clock.wall_ms() == 600_000


def test_an_unknown_recipient_is_told_with_the_near_names(room: Room) -> None:
    ada = room.agent("ada")
    room.agent("worker-1")

    why = room.why(ada.send("wroker-1", {"text": "hi"}))

    assert why.kind == "unknown_recipient"
    assert why.near == ("worker-1",)
    assert "worker-1" in why.text


def test_a_recipient_that_does_not_run_is_told(open_room: Callable[..., Room]) -> None:
    room, other = open_room(), open_room()
    other.agent("bob")
    other.close()

    why = room.why(room.agent("ada").send("bob", {"text": "hi"}))

    assert why.kind == "not_running"
    assert "bob" in why.text


def test_mail_of_an_agent_that_runs_says_what_comes_before_it(room: Room) -> None:
    ada, _ = room.agent("ada"), room.agent("bob")
    first = ada.send("bob", {"n": 1})
    second = ada.send("bob", {"n": 2})
    urgent = ada.send("bob", {"n": 3}, priority=9)

    assert "next" in room.why(urgent).text
    assert "1 message comes" in room.why(first).text
    assert "2 messages come" in room.why(second).text


def test_a_channel_from_which_nobody_ever_took_is_told_with_the_near_ones(room: Room) -> None:
    ada, bob = room.agent("ada"), room.agent("bob")
    ada.send(None, {"n": 1}, channel="jobs")
    taken = bob.poll(channels=["jobs"])
    assert taken is not None
    taken.ack()

    wrong = room.why(ada.send(None, {"n": 2}, channel="jbos"))
    right = room.why(ada.send(None, {"n": 3}, channel="jobs"))

    assert (wrong.kind, wrong.near) == ("untaken_channel", ("jobs",))
    assert (right.kind, right.near) == ("in_channel", ())


def test_an_answer_that_is_held_says_for_whom(room: Room) -> None:
    from postroom.core.message import Draft, check

    gateway = room.gateway
    room.agent("ada"), room.agent("bob")
    question = Draft(from_agent="ada", to_agent="bob", payload={"q": 1}, waiter=gateway.process)
    (asked,) = gateway.store.put([check(question)])
    answer = Draft(from_agent="bob", to_agent="ada", payload={"a": 1}, answer_to=asked)
    (id,) = gateway.store.put([check(answer)])

    why = room.why(id)

    assert why.kind == "held_for_asker"
    assert "ada" in why.text


def test_a_finished_message_says_how_it_ended(room: Room, clock: WatchedClock) -> None:
    ada, bob = room.agent("ada"), room.agent("bob")
    ends = {}
    for word in ("ack", "refuse", "dead"):
        ends[word] = ada.send("bob", {"text": word})
        held = bob.poll()
        assert held is not None
        held.ack() if word == "ack" else getattr(held, word)("not my module")
    late = ada.send("bob", {"text": "late"}, ttl_s=5)
    clock.advance(6)

    acked, refused, dead, expired = (room.why(id) for id in (ends["ack"], ends["refuse"], ends["dead"], late))

    assert {why.kind for why in (acked, refused, dead, expired)} == {"ended"}
    assert "acked by bob" in acked.text
    assert "not my module" in refused.text
    assert "requeue" in dead.text
    assert "time to live" in expired.text
    assert acked.until is None


def test_a_message_that_expires_says_when(room: Room) -> None:
    room.agent("bob")
    id = room.agent("ada").send("bob", {"text": "hi"}, ttl_s=90)

    assert "expires" in room.why(id).text


def test_why_of_an_unknown_message_is_the_error_that_it_is(room: Room) -> None:
    from postroom import UnknownMessage

    with pytest.raises(UnknownMessage):
        room.why("01932f4a-0000-7000-8000-000000000000")
