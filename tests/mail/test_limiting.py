"""Limits, pauses and full mailboxes, as programs use them."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest
from tests.conftest import Background
from tests.support.patience import PATIENCE_S, until
from tests.support.watched_clock import WatchedClock

import postroom
from postroom import MailboxFull, aio
from postroom.errors import InvalidMessage
from postroom.mail import limiting
from postroom.mail.housekeeping import CHANNELS_S
from postroom.room import Room
from postroom.stores.contract import BUCKETS, LIMITS


@pytest.fixture
def url() -> str:
    """The contract suite has limits on every store."""
    return "memory:"


def send_jobs(room: Room, count: int, **more: Any) -> list[str]:
    ada = room.agent("ada")
    return [ada.send(None, {"n": number}, channel="jobs", **more) for number in range(count)]


def taken(room: Room, agent: str = "bob") -> list[postroom.Received]:
    """Everything that can be taken from the channel now."""
    receiver = room.agent(agent)
    return list(iter(lambda: receiver.poll(channels=["jobs"]), None))


# Limits


def test_a_channel_gives_no_more_at_once_than_it_may(room: Room) -> None:
    room.limit("jobs", concurrent=2)
    send_jobs(room, 3)
    first, second = taken(room)

    assert room.agent("eve").poll(channels=["jobs"]) is None
    first.ack()
    assert [message.payload["n"] for message in taken(room, "eve")] == [2]
    assert not second.settled


def test_a_receiver_that_waits_gets_the_next_message_when_another_has_finished(room: Room) -> None:
    room.limit("jobs", concurrent=1)
    _, second = send_jobs(room, 2)
    (held,) = taken(room)
    waiting = Background(lambda: room.agent("eve").receive(PATIENCE_S, channels=["jobs"]).id)

    held.ack()

    assert waiting.result() == second


def test_a_rate_lets_a_burst_pass_and_then_one_after_the_other(room: Room, clock: WatchedClock) -> None:
    room.limit("jobs", per_s=2.0, burst=3)
    send_jobs(room, 10)

    assert len(taken(room)) == 3
    clock.advance(0.5)
    assert len(taken(room)) == 1
    clock.advance(10)
    assert len(taken(room)) == 3


def test_each_sender_may_have_a_limit_of_its_own(room: Room) -> None:
    room.limit("jobs", concurrent=1, by="sender")
    for sender in ("ada", "cy"):
        for _ in range(2):
            room.agent(sender).send(None, {}, channel="jobs")

    assert [message.from_agent for message in taken(room)] == ["ada", "cy"]


def test_a_call_changes_what_it_names_and_nothing_else(room: Room) -> None:
    room.limit("jobs", concurrent=4)
    room.limit("jobs", per_s=2, burst=10)
    room.limit("jobs", by="sender", concurrent=1)
    room.limit("jobs", waiting=100, pass_failed=True)
    room.limit("jobs", per_s=3)
    room.pause("jobs", by="ada")
    send_jobs(room, 1)

    (found,) = room.limits().channels
    assert (found.channel, found.waiting, found.pass_failed, found.running) == ("jobs", 100, True, 0)
    assert [limiting.rule_text(rule) for rule in found.rules] == [
        "4 at once and 3 a second in bursts of 10",
        "1 at once for each sender",
    ]
    assert found.paused is not None


def test_limits_that_are_taken_away_leave_a_pause(room: Room) -> None:
    room.limit("jobs", concurrent=1)
    room.pause("jobs", by="ada")

    assert room.unlimit("jobs")
    assert not room.unlimit("jobs")
    (found,) = room.limits().channels
    assert (found.rules, found.paused is not None) == ((), True)
    assert room.resume("jobs")
    assert room.limits() == limiting.RoomLimits()
    assert room.store.cell_read(LIMITS) is None


def test_what_runs_is_told(room: Room) -> None:
    room.limit("jobs", concurrent=3)
    send_jobs(room, 2)
    held = taken(room)

    assert [channel.running for channel in room.limits().channels] == [2]
    held[0].ack()
    assert [channel.running for channel in room.limits().channels] == [1]


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({}, "limit: must name at least one of: concurrent, per_s, waiting, pass_failed"),
        ({"concurrent": 0}, "concurrent: must be a whole number from 1 to 2147483647, not 0"),
        ({"concurrent": 1.5}, "concurrent: must be a whole number"),
        ({"concurrent": True}, "concurrent: must be a whole number"),
        ({"per_s": 0}, "per_s: must be a number from 1e-07 to 1000000"),
        ({"per_s": 1e-320}, "per_s: must be a number from 1e-07 to 1000000, not 1e-320"),
        ({"per_s": float("nan")}, "per_s: must be a number from 1e-07 to 1000000"),
        ({"per_s": "2"}, "per_s: must be a number from 1e-07 to 1000000"),
        ({"per_s": 1, "burst": 0}, "burst: must be a whole number"),
        ({"burst": 3}, "burst: goes with a rate: name per_s too"),
        ({"waiting": -1}, "waiting: must be a whole number"),
        ({"concurrent": 1, "by": "receiver"}, "by: must be sender or order_key, not 'receiver'"),
        ({"waiting": 5, "by": "sender"}, "by: goes with concurrent or per_s"),
        ({"pass_failed": "yes"}, "pass_failed: must be True or False"),
        ({"pass_failed": 1}, "pass_failed: must be True or False, not 1"),
        ({"channel": "", "concurrent": 1}, "channel: must not be empty"),
    ],
)
def test_a_wrong_limit_is_named_and_changes_nothing(room: Room, arguments: dict[str, Any], sentence: str) -> None:
    room.limit("jobs", concurrent=4)
    before = room.limits()

    with pytest.raises(InvalidMessage) as error:
        room.limit(**{"channel": "jobs", **arguments})

    assert sentence in str(error.value)
    assert room.limits() == before


def test_a_room_has_only_so_many_limited_channels(room: Room, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("postroom.mail.limiting.MAX_LIMITED", 2)
    room.limit("a", concurrent=1)
    room.limit("b", concurrent=1)

    with pytest.raises(InvalidMessage, match="channel: at most 2 of a room are limited or paused at once"):
        room.pause("c")
    room.limit("b", concurrent=2)
    assert len(room.limits().channels) == 2


def test_a_rate_that_another_program_wrote_spoils_no_bucket(room: Room) -> None:
    room.store.cell_write(LIMITS, {"channels": {"jobs": {"rules": [{"per_s": 1e-320}]}}})
    send_jobs(room, 2)

    assert len(taken(room)) == 1
    assert taken(room) == []


def test_what_another_program_wrote_wrongly_spoils_no_other_limit_and_stays(room: Room) -> None:
    room.limit("jobs", concurrent=1)
    cell = room.store.cell_read(LIMITS)
    assert cell is not None
    room.store.cell_write(LIMITS, {"channels": {**cell.value["channels"], "odd": {"waiting": "many"}}})
    send_jobs(room, 2)

    room.limit("other", waiting=2**31 - 1)

    assert [each.channel for each in room.limits().channels] == ["jobs", "other"]
    assert len(taken(room)) == 1
    cell = room.store.cell_read(LIMITS)
    assert cell is not None
    assert cell.value["channels"]["odd"] == {"waiting": "many"}


# Pauses


def test_a_paused_channel_gives_nothing_until_it_is_resumed(room: Room) -> None:
    assert room.pause("jobs", reason="the disk is full", by="ada")
    (id,) = send_jobs(room, 1)
    waiting = Background(lambda: room.agent("bob").receive(PATIENCE_S, channels=["jobs"]).id)
    assert room.receipt(id).state == "stored"

    assert room.resume("jobs")

    assert waiting.result() == id
    assert not room.resume("jobs")


def test_a_paused_agent_takes_nothing_and_gets_its_answers(room: Room) -> None:
    room.pause(agent="bob", by="ada")
    room.agent("ada").send("bob", {"text": "later"})
    bob, eve = room.agent("bob"), room.agent("eve")
    answer = Background(lambda: bob.ask("eve", {"q": 1}, timeout_s=PATIENCE_S).payload)

    eve.receive(PATIENCE_S).reply({"a": 1})

    assert answer.result() == {"a": 1}
    assert bob.poll() is None
    room.resume(agent="bob")
    assert bob.receive(timeout_s=0).payload == {"text": "later"}


def test_everybody_sees_the_pause_and_its_maker(room: Room, clock: WatchedClock) -> None:
    room.pause("jobs", reason="deploying", by="ada")
    room.pause(agent="bob")

    limits = room.limits()
    (channel,) = limits.channels
    assert channel.paused is not None
    assert (channel.paused.by, channel.paused.reason, channel.paused.since_ms) == ("ada", "deploying", clock.wall_ms())
    assert limits.agents["bob"].by == limiting.system_user()


def test_a_second_pause_changes_the_reason_and_says_that_it_is_not_new(room: Room) -> None:
    room.pause("jobs", reason="deploying", by="ada")

    assert not room.pause("jobs", reason="still deploying", by="ada")
    (channel,) = room.limits().channels
    assert channel.paused is not None
    assert channel.paused.reason == "still deploying"


@pytest.mark.parametrize("arguments", [{}, {"channel": "jobs", "agent": "bob"}])
def test_a_pause_is_for_a_channel_or_for_an_agent(room: Room, arguments: dict[str, str]) -> None:
    for call in (room.pause, room.resume):
        with pytest.raises(InvalidMessage, match="channel: must be given, or agent, and not both"):
            call(**arguments)


# Why a message waits


def test_a_message_that_a_pause_or_a_limit_keeps_back_says_so(room: Room) -> None:
    room.limit("jobs", concurrent=1)
    _, second = send_jobs(room, 2)
    (held,) = taken(room)

    limited = room.why(second)
    room.pause("jobs", reason="deploying", by="ada")
    paused = room.why(second)
    room.resume("jobs")
    held.ack()
    free = room.why(second)

    assert (limited.kind, limited.text) == (
        "limited",
        "channel jobs lets no more pass at this moment; it allows 1 at once",
    )
    assert paused.kind == "paused"
    assert paused.text.startswith("channel jobs is paused by ada at ")
    assert paused.text.endswith(": deploying")
    assert free.kind == "in_channel"


def test_a_message_to_a_paused_agent_says_so(room: Room) -> None:
    room.agent("bob")
    room.pause(agent="bob", by="ada")

    assert room.why(room.agent("ada").send("bob", {})).kind == "paused"


# Full mailboxes


def test_a_send_into_a_full_mailbox_says_so_and_stores_nothing(room: Room) -> None:
    room.limit("jobs", waiting=2)
    send_jobs(room, 2)

    with pytest.raises(MailboxFull, match="the channel 'jobs' is full: 2 messages wait there") as full:
        send_jobs(room, 1)

    assert (full.value.channel, full.value.to, full.value.waiting) == ("jobs", None, 2)
    assert room.count(["jobs"]) == 2


@pytest.mark.parametrize("several", [False, True])
def test_a_sender_may_wait_for_space(room: Room, several: bool) -> None:
    room.limit("work", waiting=1)
    ada, bob = room.agent("ada"), room.agent("bob")
    ada.send("bob", {"n": 1}, channel="work")
    to: Any = ["bob"] if several else "bob"
    sent = Background(lambda: ada.send(to, {"n": 2}, channel="work", full_wait_s=PATIENCE_S))

    first = bob.receive(PATIENCE_S)

    second = bob.receive(PATIENCE_S)
    assert (first.payload, second.payload) == ({"n": 1}, {"n": 2})
    assert sent.result() == ([second.id] if several else second.id)


def test_a_sender_that_found_no_space_in_time_is_told(room: Room, clock: WatchedClock) -> None:
    room.limit("jobs", waiting=1)
    send_jobs(room, 1)
    sending = Background(lambda: send_jobs(room, 1, full_wait_s=5))
    assert sending.comes_to_wait(clock, PATIENCE_S)

    clock.advance(6)

    with pytest.raises(MailboxFull):
        sending.result()
    assert room.count(["jobs"]) == 1


def test_waiting_for_space_and_for_the_ack_go_together(room: Room) -> None:
    room.limit("work", waiting=1)
    ada, bob = room.agent("ada"), room.agent("bob")
    ada.send("bob", {"n": 1}, channel="work")
    sent = Background(
        lambda: ada.send("bob", {"n": 2}, channel="work", full_wait_s=PATIENCE_S, wait="acked", timeout_s=PATIENCE_S)
    )

    for _ in range(2):
        bob.receive(PATIENCE_S).ack()

    assert room.receipt(sent.result()).state == "acked"


def test_a_wrong_time_to_wait_for_space_is_named(room: Room) -> None:
    with pytest.raises(InvalidMessage, match="full_wait_s"):
        room.agent("ada").send("bob", {}, full_wait_s=-1)


def test_an_asyncio_sender_waits_for_space_without_keeping_others_waiting() -> None:
    async def run() -> list[dict[str, Any]]:
        async with aio.open("memory:") as room:
            ada, bob = room.agent("ada"), room.agent("bob")
            await room.limit("work", waiting=1)
            await ada.send("bob", {"n": 1}, channel="work")
            sending = asyncio.create_task(ada.send("bob", {"n": 2}, channel="work", full_wait_s=PATIENCE_S))
            found = [await bob.receive(PATIENCE_S), await bob.receive(PATIENCE_S)]
            await sending
            assert (await room.limits()).channels[0].waiting == 1
            assert await room.pause("work", by="ada")
            assert await room.resume("work")
            assert await room.unlimit("work")
            return [message.payload for message in found]

    assert asyncio.run(run()) == [{"n": 1}, {"n": 2}]


def test_a_tick_into_a_full_mailbox_is_skipped_and_the_schedule_goes_on(
    room: Room, clock: WatchedClock, caplog: pytest.LogCaptureFixture
) -> None:
    room.limit("jobs", waiting=1)
    with caplog.at_level(logging.WARNING):
        room.schedule("report", every_s=60, channel="jobs", missed="one")
        clock.advance(61)
        until(lambda: room.count(["jobs"]) == 1)
        clock.advance(60)
        until(lambda: "a tick was skipped" in caplog.text)
        room.agent("bob").receive(PATIENCE_S, channels=["jobs"]).ack()
        clock.advance(60)
        until(lambda: room.count(["jobs"]) == 1)


# Failed messages of an order key


def test_a_failed_message_keeps_its_key_waiting_unless_the_channel_says_otherwise(room: Room) -> None:
    ada, bob = room.agent("ada"), room.agent("bob")
    for channel in ("patient", "passing"):
        for number in (1, 2):
            ada.send("bob", {"n": number}, channel=channel, order_key="pr-7")
    room.limit("passing", pass_failed=True)

    for channel in ("patient", "passing"):
        message = bob.poll(channels=[channel])
        assert message is not None
        assert message.retry("no", delay_s=60)

    assert bob.poll(channels=["patient"]) is None
    second = bob.poll(channels=["passing"])
    assert second is not None
    assert second.payload == {"n": 2}
    (dead,) = room.dead_letters()
    assert (dead.error, len(dead.attempts)) == ("no", 1)


def test_an_error_in_a_block_sets_a_keyed_message_aside_and_an_interrupt_does_not(room: Room) -> None:
    ada, bob = room.agent("ada"), room.agent("bob")
    room.limit("general", pass_failed=True)
    for _ in range(2):
        ada.send("bob", {}, order_key="k")

    with pytest.raises(KeyboardInterrupt), bob.receive(timeout_s=0):
        raise KeyboardInterrupt
    assert room.dead_letters() == []
    with pytest.raises(ValueError, match="broken"), bob.receive(timeout_s=0):
        raise ValueError("broken")

    assert [letter.error for letter in room.dead_letters()] == ["ValueError: broken"]
    assert bob.poll() is not None


def test_a_loop_that_is_left_sets_nothing_aside(room: Room) -> None:
    room.limit("general", pass_failed=True)
    room.agent("ada").send("bob", {}, order_key="k")

    for _ in room.agent("bob").listen(timeout_s=0):
        break

    assert room.dead_letters() == []
    assert room.agent("bob").poll() is not None


def test_a_failed_message_without_a_key_is_retried_as_ever(room: Room) -> None:
    room.limit("general", pass_failed=True)
    room.agent("ada").send("bob", {})

    room.agent("bob").receive(timeout_s=0).retry("no", delay_s=0)

    assert room.agent("bob").poll() is not None


# Housekeeping


def test_buckets_that_are_full_again_are_forgotten(room: Room, clock: WatchedClock) -> None:
    room.limit("jobs", per_s=1, burst=2)
    room.limit("slow", per_s=0.001)
    ada, bob = room.agent("ada"), room.agent("bob")
    for channel in ("jobs", "slow"):
        ada.send(None, {}, channel=channel)
        assert bob.poll(channels=[channel]) is not None
    assert len(room.store.cell_scan(f"{BUCKETS}/")) == 2

    clock.advance(5)
    assert limiting.forget_full_buckets(room.store) == 1
    clock.advance(2 * CHANNELS_S)
    assert [cell.name for cell in room.store.cell_scan(f"{BUCKETS}/")] == [f"{BUCKETS}/4/slow//0.001/1/"]
