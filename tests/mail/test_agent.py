"""Sending, receiving and settling, in the name of an agent."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import postroom
from postroom import Agent, InvalidMessage, LateAck, Room
from postroom.core.clock import ManualClock
from postroom.core.config import AGENT_LEASE_S, LEASE_S
from postroom.mail.agent import _BATCH_FIELDS

Ends = Callable[[Any], None]


@pytest.fixture
def ada(room: Room) -> Agent:
    return room.agent("ada")


@pytest.fixture
def bob(room: Room) -> Agent:
    return room.agent("bob")


def state(room: Room, id: str) -> str:
    return room.receipt(id).state


# Sending


def test_a_message_arrives_as_it_was_sent(ada: Agent, bob: Agent) -> None:
    id = ada.send("bob", {"text": "hi", "n": [1, None]}, type="greeting", channel="hall", priority=7, ttl_s=60,
                  correlation_id="c1", trace="t1")  # fmt: skip

    m = bob.receive(timeout_s=0)

    assert (m.id, m.type, m.version, m.payload) == (id, "greeting", "1.0", {"text": "hi", "n": [1, None]})
    assert (m.from_agent, m.to_agent, m.channel, m.priority) == ("ada", "bob", "hall", 7)
    assert (m.correlation_id, m.delivery_count, m.trace, m.lane) == ("c1", 1, "t1", "agent")
    assert (m.chain_id, m.hop_count) == (None, 0)
    assert m.timestamp.endswith("Z") and m.expires_at is not None and m.expires_at > m.timestamp
    assert m.to_dict()["payload"] == m.payload


def test_the_defaults_are_those_of_the_documentation(ada: Agent, bob: Agent) -> None:
    ada.send("bob", {})

    m = bob.receive(timeout_s=0)

    assert (m.type, m.channel, m.priority, m.expires_at, m.correlation_id) == ("message", "general", 5, None, None)


def test_an_invalid_message_names_every_fault_and_stores_nothing(room: Room, ada: Agent) -> None:
    with pytest.raises(InvalidMessage) as error:
        ada.send("bob", {"x": float("nan")}, priority=11, type="")

    assert [fault.field for fault in error.value.faults] == ["type", "priority", "payload.x"]
    assert isinstance(error.value, ValueError)
    assert room.peek() == []


def test_a_message_to_nobody_is_for_the_first_who_looks_in_its_channel(ada: Agent, bob: Agent) -> None:
    id = ada.send(None, {"pr": 7}, channel="reviews")

    assert bob.poll() is None
    m = bob.poll(channels=["reviews"])
    assert m is not None and m.id == id and m.to_agent is None
    assert ada.poll(channels=["reviews"]) is None


def test_the_highest_priority_comes_first_and_then_the_oldest(ada: Agent, bob: Agent) -> None:
    for n, priority in enumerate([5, 9, 5, 9, 1]):
        ada.send("bob", {"n": n}, priority=priority)

    assert [bob.receive(timeout_s=0).payload["n"] for _ in range(5)] == [1, 3, 0, 2, 4]


def test_a_delayed_message_comes_when_it_is_due(ada: Agent, bob: Agent, clock: ManualClock) -> None:
    ada.send("bob", {}, delay_s=10)

    assert bob.poll() is None
    clock.advance(9.9)
    assert bob.poll() is None
    clock.advance(0.1)
    assert bob.poll() is not None


def test_a_repeated_key_is_the_same_message(room: Room, ada: Agent, bob: Agent) -> None:
    first = ada.send("bob", {"n": 1}, idempotency_key="k")

    assert ada.send("bob", {"n": 1}, idempotency_key="k") == first
    assert bob.send("ada", {"n": 2}, idempotency_key="k") != first
    with pytest.raises(InvalidMessage, match="idempotency_key"):
        ada.send("bob", {"n": 2}, idempotency_key="k")
    assert len(room.peek(agent="bob")) == 1


def test_many_are_sent_together_or_not_at_all(room: Room, ada: Agent) -> None:
    ids = ada.send_many([{"to": "bob", "payload": {"n": n}, "priority": 3} for n in range(3)])

    assert [m.id for m in room.peek(agent="bob")] == ids
    with pytest.raises(InvalidMessage) as error:
        ada.send_many(
            [{"to": "bob", "payload": {}}, {"to": "bob", "payload": {}, "priority": 0}, {"to": "", "payload": 1}]
        )
    assert [f.field for f in error.value.faults] == [
        "messages[1].priority",
        "messages[2].to_agent",
        "messages[2].payload",
    ]
    with pytest.raises(InvalidMessage, match=r"messages\[1\]: must be a dict, not str"):
        ada.send_many([{"to": "bob", "payload": {}}, "hi"])  # type: ignore[list-item]
    with pytest.raises(InvalidMessage, match=r"messages\[0\]\.wait: is not an argument of send_many"):
        ada.send_many([{"to": "bob", "payload": {}, "wait": "acked"}])
    assert len(room.peek(agent="bob")) == 3
    assert ada.send_many([]) == []


def test_published_copies_reach_every_subscriber(room: Room, ada: Agent, bob: Agent) -> None:
    carol = room.agent("carol")
    bob.subscribe("news")
    bob.subscribe("news")
    carol.subscribe("news")

    ids = ada.publish("news", {"v": 2})

    assert len(ids) == 2
    assert {bob.receive(timeout_s=0).id, carol.receive(timeout_s=0).id} == set(ids)
    assert carol.unsubscribe("news") is True
    assert carol.unsubscribe("news") is False
    assert len(ada.publish("news", {"v": 3})) == 1
    assert ada.publish("silence", {}) == []


def test_a_sender_over_its_rate_is_told_when_to_come_back(open_room: Callable[..., Room], clock: ManualClock) -> None:
    room = open_room(rate_per_s=1, rate_burst=2)
    ada = room.agent("ada")
    ada.send("bob", {})
    ada.send("bob", {})

    with pytest.raises(postroom.RateLimited) as error:
        ada.send("bob", {})

    assert error.value.retry_after_s == pytest.approx(1)
    assert len(room.peek(agent="bob")) == 2
    clock.advance(1)
    ada.send("bob", {})


def test_answers_are_not_limited(open_room: Callable[..., Room]) -> None:
    room = open_room(rate_per_s=0.001, rate_burst=1)
    ada, bob = room.agent("ada"), room.agent("bob")
    ada.send("bob", {})
    bob.send("ada", {})  # bob's one token

    assert bob.receive(timeout_s=0).reply({"fine": True})


# Waiting for an ack


def test_send_can_wait_until_it_is_acked(ada: Agent, bob: Agent, in_background: Callable[..., Any], room: Room) -> None:
    sent = in_background(lambda: ada.send("bob", {}, wait="acked"))
    m = bob.receive()
    assert sent.running

    m.ack()

    assert sent.result() == m.id
    assert state(room, m.id) == "acked"


def test_an_answer_counts_as_an_ack(ada: Agent, bob: Agent, in_background: Callable[..., Any]) -> None:
    sent = in_background(lambda: ada.send("bob", {}, wait="acked"))
    m = bob.receive()

    m.reply({"ok": 1})

    assert sent.result() == m.id


def test_a_send_that_was_not_acked_in_time_says_so_and_is_still_stored(
    room: Room, ada: Agent, in_background: Callable[..., Any], pass_time: Ends
) -> None:
    sent = in_background(lambda: ada.send("bob", {}, wait="acked", timeout_s=3))
    pass_time(sent)

    with pytest.raises(postroom.NotAcked, match="bob has not acked .* within 3 s; it is still stored") as error:
        sent.result()
    assert state(room, error.value.id) == "stored"


@pytest.mark.parametrize(
    ("ending", "sentence"),
    [("refuse", "was refused by bob .no., not acked"), ("dead", "set aside as a dead letter .no., not acked")],
)
def test_a_send_that_can_no_longer_be_acked_says_so_at_once(
    ada: Agent, bob: Agent, in_background: Callable[..., Any], ending: str, sentence: str
) -> None:
    sent = in_background(lambda: ada.send("bob", {}, wait="acked"))
    m = bob.receive()

    getattr(m, ending)("no")

    with pytest.raises(postroom.NotAcked, match=sentence):
        sent.result()


def test_an_expired_message_is_not_acked(ada: Agent, in_background: Callable[..., Any], pass_time: Ends) -> None:
    sent = in_background(lambda: ada.send("bob", {}, wait="acked", ttl_s=5))
    pass_time(sent)

    with pytest.raises(postroom.NotAcked, match="expired, not acked"):
        sent.result()


def test_an_ack_is_not_an_answer(ada: Agent, bob: Agent, in_background: Callable[..., Any]) -> None:
    sent = in_background(lambda: ada.send("bob", {}, wait="answered"))

    bob.receive().ack()

    with pytest.raises(postroom.NotAcked, match="was acked by bob, not answered"):
        sent.result()


def test_an_unknown_wait_stores_nothing(room: Room, ada: Agent) -> None:
    with pytest.raises(InvalidMessage, match="wait: must be acked or answered, not 'seen'"):
        ada.send("bob", {}, wait="seen")

    assert room.peek() == []


# Chains


def test_a_chain_of_causes_is_counted_and_keeps_its_trace(ada: Agent, bob: Agent) -> None:
    first = ada.send("bob", {}, trace="t")
    m = bob.receive(timeout_s=0)
    bob.send("ada", {}, cause=m)
    second = ada.receive(timeout_s=0)
    assert (second.chain_id, second.hop_count, second.trace) == (first, 1, "t")

    second.reply({})

    third = bob.receive(timeout_s=0)
    assert (third.chain_id, third.hop_count, third.trace) == (first, 2, "t")


def test_a_chain_that_is_too_long_is_refused_and_nothing_is_stored(open_room: Callable[..., Room]) -> None:
    room = open_room(max_hops=1)
    ada, bob = room.agent("ada"), room.agent("bob")
    ada.send("bob", {})
    bob.send("ada", {}, cause=bob.receive(timeout_s=0))
    last = ada.receive(timeout_s=0)

    with pytest.raises(postroom.TooManyHops, match="would be 2 hops long; this room allows 1"):
        ada.send("bob", {}, cause=last)
    with pytest.raises(postroom.TooManyHops):
        last.reply({})

    assert room.peek() == []
    assert state(room, last.id) == "claimed"


def test_a_cause_must_be_a_message(ada: Agent) -> None:
    with pytest.raises(InvalidMessage, match="cause: must be a received message, not str"):
        ada.send("bob", {}, cause="some id")  # type: ignore[call-overload]


# Receiving


def test_receive_is_woken_by_a_message(ada: Agent, bob: Agent, in_background: Callable[..., Any]) -> None:
    waiting = in_background(bob.receive)

    id = ada.send("bob", {})

    assert waiting.result().id == id  # time stands still here, so no safety look has found it


def test_receive_is_woken_in_a_channel(ada: Agent, bob: Agent, in_background: Callable[..., Any]) -> None:
    waiting = in_background(lambda: bob.receive(channels=["a", "b"]))

    id = ada.send(None, {}, channel="b")

    assert waiting.result().id == id


def test_receive_comes_back_when_a_delayed_message_is_due(
    ada: Agent, bob: Agent, in_background: Callable[..., Any], pass_time: Ends
) -> None:
    id = ada.send("bob", {}, delay_s=20)
    waiting = in_background(bob.receive)
    pass_time(waiting)

    assert waiting.result().id == id


def test_receive_that_got_nothing_says_for_whom_and_how_long(
    bob: Agent, in_background: Callable[..., Any], pass_time: Ends
) -> None:
    waiting = in_background(lambda: bob.receive(timeout_s=2.5, channels=["a", "b"]))
    pass_time(waiting)

    with pytest.raises(postroom.ReceiveTimeout, match="^no message for bob in a, b within 2.5 s$") as error:
        waiting.result()
    assert isinstance(error.value, TimeoutError)


def test_a_waiting_receive_ends_when_the_room_is_closed(
    room: Room, bob: Agent, in_background: Callable[..., Any]
) -> None:
    looked = threading.Semaphore(0)
    room.hooks.on("after_claim", lambda *_: looked.release())
    waiting = in_background(bob.receive)
    looked.acquire()
    looked.acquire()  # the second look comes after arming: now it waits

    room.close()

    with pytest.raises(postroom.RoomClosed):
        waiting.result()


def test_a_message_whose_lease_ended_is_delivered_again(ada: Agent, bob: Agent, clock: ManualClock) -> None:
    ada.send("bob", {})
    first = bob.receive(timeout_s=0, lease_s=LEASE_S)
    clock.advance(LEASE_S - 1)
    assert bob.poll() is None
    clock.advance(1)

    second = bob.receive(timeout_s=0)

    assert (second.id, second.delivery_count) == (first.id, 2)
    assert second.token > first.token
    assert first.ack() is False
    assert second.ack() is True


def test_a_lease_can_be_chosen_and_extended(ada: Agent, bob: Agent, clock: ManualClock) -> None:
    ada.send("bob", {})
    m = bob.receive(timeout_s=0, lease_s=5)
    clock.advance(4)
    assert m.extend() is True
    clock.advance(4)
    assert m.extend(60) is True
    clock.advance(59)

    assert bob.poll() is None
    clock.advance(1)
    assert bob.poll() is not None
    assert m.extend(60) is False


@pytest.mark.parametrize(
    ("arguments", "field"),
    [
        ({"channels": "general"}, "channels"),
        ({"channels": []}, "channels"),
        ({"channels": ["ok", "\n"]}, "channels"),
        ({"lease_s": 0}, "lease_s"),
        ({"lease_s": "30"}, "lease_s"),
        ({"timeout_s": -1}, "timeout_s"),
    ],
)
def test_wrong_arguments_are_named(bob: Agent, arguments: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidMessage, match=f"^Invalid message: {field}: "):
        bob.receive(**{"timeout_s": 0, **arguments})


def test_an_agent_needs_a_name(room: Room) -> None:
    with pytest.raises(InvalidMessage, match="name: must not be empty"):
        room.agent("")
    assert room.agents() == []


# Settling


def test_settling_twice_counts_once(room: Room, ada: Agent, bob: Agent) -> None:
    ada.send("bob", {})
    m = bob.receive(timeout_s=0)

    assert m.settled is None
    assert m.ack() is True
    assert m.settled is True
    assert [m.ack(), m.retry("x"), m.dead("x"), m.refuse("x"), m.reply({}), m.extend()] == [False] * 6
    assert state(room, m.id) == "acked"
    assert room.peek(state="stored") == []


def test_retry_waits_longer_each_time_and_then_sets_the_message_aside(
    room: Room, ada: Agent, bob: Agent, clock: ManualClock
) -> None:
    id = ada.send("bob", {})
    for delivery, (least_s, most_s) in enumerate([(0.5, 1.0), (1.0, 2.0)], start=1):
        m = bob.receive(timeout_s=0)
        assert m.delivery_count == delivery
        assert m.retry(f"failed {delivery}") is True
        clock.advance(least_s - 0.01)
        assert bob.poll() is None
        clock.advance(most_s - least_s + 0.02)
    assert bob.receive(timeout_s=0).retry("failed 3") is True

    clock.advance(1000)
    assert bob.poll() is None
    (letter,) = room.dead_letters()
    assert (letter.id, letter.error) == (id, "failed 3")
    assert [attempt.error for attempt in letter.attempts] == ["failed 1", "failed 2", "failed 3"]
    assert {attempt.agent for attempt in letter.attempts} == {"bob"}


def test_retry_takes_a_delay_of_its_own(ada: Agent, bob: Agent, clock: ManualClock) -> None:
    ada.send("bob", {})
    m = bob.receive(timeout_s=0)
    with pytest.raises(InvalidMessage, match="delay_s"):
        m.retry("x", delay_s=-1)

    m.retry("x", delay_s=0)

    assert bob.receive(timeout_s=0).delivery_count == 2


def test_a_reason_is_kept_however_strange_it_is(room: Room, ada: Agent, bob: Agent) -> None:
    ada.send("bob", {})
    m = bob.receive(timeout_s=0)
    with pytest.raises(InvalidMessage, match="reason: must be text, not int"):
        m.dead(7)  # type: ignore[arg-type]

    assert m.dead("\ud800" + "x" * 10_000)

    error = room.dead_letters()[0].error
    assert error is not None and error.startswith("\\ud800xxx") and error.endswith("(cut)") and len(error) < 5000


def test_a_reply_answers_and_ends_the_message_in_one_step(room: Room, ada: Agent, bob: Agent) -> None:
    id = ada.send("bob", {"q": 1}, type="context.query", channel="hall", priority=8)
    m = bob.receive(timeout_s=0)

    assert m.reply({"a": 2}) is True

    answer = ada.receive(timeout_s=0)
    assert (answer.id, answer.payload, answer.from_agent) == (m.answer_id, {"a": 2}, "bob")
    assert (answer.type, answer.channel, answer.priority) == ("context.query.response", "hall", 8)
    assert answer.correlation_id == id
    assert answer.message.answer_to == id
    assert state(room, id) == "answered"


def test_a_reply_keeps_the_correlation_of_the_message(ada: Agent, bob: Agent) -> None:
    ada.send("bob", {}, correlation_id="c9")

    bob.receive(timeout_s=0).reply({}, type="other")

    answer = ada.receive(timeout_s=0)
    assert (answer.correlation_id, answer.type) == ("c9", "other")


def test_an_invalid_reply_leaves_the_message_claimed(room: Room, ada: Agent, bob: Agent) -> None:
    id = ada.send("bob", {})
    m = bob.receive(timeout_s=0)

    with pytest.raises(InvalidMessage, match="Payload must be dict"):
        m.reply("yes")  # type: ignore[arg-type]

    assert state(room, id) == "claimed"
    assert m.reply({"yes": True})


def test_a_stale_reply_stores_no_answer(room: Room, ada: Agent, bob: Agent, clock: ManualClock) -> None:
    ada.send("bob", {})
    stale = bob.receive(timeout_s=0, lease_s=LEASE_S)
    clock.advance(LEASE_S)
    fresh = bob.receive(timeout_s=0)

    assert stale.reply({"late": True}) is False
    assert (stale.settled, stale.answer_id) == (False, None)
    assert room.peek(agent="ada") == []
    assert fresh.ack()


def test_refusing_ends_the_message_with_the_reason(room: Room, ada: Agent, bob: Agent) -> None:
    id = ada.send("bob", {})

    assert bob.receive(timeout_s=0).refuse("not my job")

    receipt = room.receipt(id)
    assert receipt.state == "refused"
    assert receipt.events[-1][0] == "refused" and receipt.events[-1].detail == "not my job"


# Blocks


def test_a_block_acks_at_its_end(room: Room, ada: Agent, bob: Agent) -> None:
    ada.send("bob", {})

    with bob.receive(timeout_s=0) as m:
        assert state(room, m.id) == "claimed"

    assert state(room, m.id) == "acked"


def test_a_block_that_raises_gives_the_message_back_later(
    room: Room, ada: Agent, bob: Agent, clock: ManualClock
) -> None:
    id = ada.send("bob", {})

    with pytest.raises(ZeroDivisionError), bob.receive(timeout_s=0):
        raise ZeroDivisionError("by zero")

    assert bob.poll() is None
    clock.advance(1)
    assert bob.receive(timeout_s=0).id == id
    assert ("retried", "ZeroDivisionError: by zero") in [(e.event, e.detail) for e in room.receipt(id).events]


def test_an_interrupted_block_gives_the_message_back_at_once(ada: Agent, bob: Agent) -> None:
    id = ada.send("bob", {})

    with pytest.raises(KeyboardInterrupt), bob.receive(timeout_s=0):
        raise KeyboardInterrupt

    assert bob.receive(timeout_s=0).id == id


def test_a_block_that_settled_its_message_is_left_alone(room: Room, ada: Agent, bob: Agent) -> None:
    id = ada.send("bob", {})

    with pytest.raises(ZeroDivisionError), bob.receive(timeout_s=0) as m:
        m.refuse("no")
        raise ZeroDivisionError

    assert state(room, id) == "refused"


# Loops


def test_a_loop_acks_each_message_when_it_comes_round(room: Room, ada: Agent, bob: Agent) -> None:
    ids = [ada.send("bob", {"n": n}) for n in range(3)]
    seen = []

    for m in bob.listen(timeout_s=0):
        seen.append(m.id)
        assert [state(room, id) for id in ids[: len(seen) - 1]] == ["acked"] * (len(seen) - 1)

    assert seen == ids
    assert state(room, ids[-1]) == "acked"


def test_a_loop_settles_one_and_claims_the_next_in_one_step(room: Room, ada: Agent, bob: Agent) -> None:
    steps: list[str] = []
    for event in ("after_claim", "after_settle"):
        room.hooks.on(event, lambda event, _: steps.append(event))
    for _ in range(3):
        ada.send("bob", {})

    loop = bob.listen(timeout_s=0)
    for _ in range(3):
        next(loop)

    assert steps == ["after_claim", "after_settle", "after_settle"]


def test_a_loop_leaves_alone_what_its_body_settled(room: Room, ada: Agent, bob: Agent) -> None:
    ids = [ada.send("bob", {}) for _ in range(2)]

    for m in bob.listen(timeout_s=0):
        m.refuse("no")

    assert [state(room, id) for id in ids] == ["refused"] * 2


def test_a_loop_that_breaks_gives_its_message_back(room: Room, ada: Agent, bob: Agent) -> None:
    id = ada.send("bob", {})

    for _ in bob.listen():
        break

    assert bob.receive(timeout_s=0).id == id
    assert "the loop ended before it was settled" in [e.detail for e in room.receipt(id).events]


def test_a_loop_whose_body_fails_gives_its_message_back(ada: Agent, bob: Agent) -> None:
    id = ada.send("bob", {})

    def fail() -> None:
        for _ in bob.listen():
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()

    assert bob.receive(timeout_s=0).id == id


def test_a_loop_waits_for_what_comes_later(ada: Agent, bob: Agent, in_background: Callable[..., Any]) -> None:
    got: list[int] = []

    def loop() -> None:
        for m in bob.listen():
            got.append(m.payload["n"])
            if m.payload["n"] < 9:
                ada.send("bob", {"n": m.payload["n"] + 1})
            else:
                m.ack()
                return

    running = in_background(loop)
    ada.send("bob", {"n": 0})
    running.result()

    assert got == list(range(10))


def test_a_loop_that_claims_ahead_gives_all_in_order_and_acks_each(room: Room, ada: Agent, bob: Agent) -> None:
    ids = [ada.send("bob", {"n": n}) for n in range(20)]

    seen = [message.payload["n"] for message in bob.listen(timeout_s=0, prefetch=8)]

    assert seen == [*range(20)]
    assert {room.receipt(id).state for id in ids} == {"acked"}


def test_a_loop_claims_ahead_in_one_step(room: Room, ada: Agent, bob: Agent) -> None:
    ids = [ada.send("bob", {"n": n}) for n in range(6)]
    loop = bob.listen(timeout_s=0, prefetch=3)

    next(loop), next(loop)

    states = [room.receipt(id).state for id in ids]
    assert states == ["acked", "claimed", "claimed", "claimed", "stored", "stored"]


def test_what_a_loop_claimed_ahead_and_never_came_to_goes_back_uncounted(room: Room, ada: Agent, bob: Agent) -> None:
    ids = [ada.send("bob", {"n": n}) for n in range(4)]
    for message in bob.listen(timeout_s=0, prefetch=3):
        if message.payload["n"] == 1:
            break

    assert [room.receipt(id).state for id in ids] == ["acked", "stored", "stored", "stored"]
    assert [bob.receive(timeout_s=0).delivery_count for _ in range(3)] == [2, 1, 1]


def test_what_a_loop_claimed_ahead_goes_back_uncounted_also_when_the_room_is_closed(tmp_path: Path) -> None:
    address = f"sqlite:{tmp_path}"
    with postroom.open(address) as room:
        for n in range(4):
            room.agent("ada").send("bob", {"n": n})
        loop = room.agent("bob").listen(prefetch=3)
        next(loop)
        assert next(loop).payload == {"n": 1}  # and the room is closed while it is being worked on

    with postroom.open(address) as room:
        bob = room.agent("bob")
        assert [(m.payload["n"], m.delivery_count) for m in bob.listen(timeout_s=0)] == [(1, 2), (2, 1), (3, 1)]


def test_what_waited_for_its_turn_longer_than_its_lease_is_kept_or_passed_over(
    room: Room, ada: Agent, bob: Agent, clock: ManualClock
) -> None:
    for n in range(5):
        ada.send("bob", {"n": n})
    loop = bob.listen(timeout_s=0, prefetch=4, lease_s=10)
    next(loop), next(loop)

    clock.advance(11)
    taken = bob.receive(timeout_s=0)  # the one in the loop's hands ran out too, and is the first
    also_taken = bob.receive(timeout_s=0)

    assert (taken.payload["n"], also_taken.payload["n"]) == (1, 2)
    with pytest.warns(LateAck, match=taken.id):
        assert [message.payload["n"] for message in loop] == [3, 4]


@pytest.mark.parametrize("prefetch", [0, -1, 1001, 2.5, True, "2"])
def test_a_loop_that_claims_ahead_says_how_many_it_may(bob: Agent, prefetch: Any) -> None:
    with pytest.raises(InvalidMessage, match="prefetch: must be a whole number from 1 to 1000"):
        bob.listen(prefetch=prefetch)


def test_a_loop_checks_its_arguments_when_it_is_made(bob: Agent) -> None:
    with pytest.raises(InvalidMessage, match="channels"):
        bob.listen(channels="general")


# Closing, and claims of agents


def test_closing_a_room_gives_back_what_was_not_settled(open_room: Callable[..., Room]) -> None:
    room, other = open_room(), open_room()
    id = room.agent("ada").send("bob", {})
    room.agent("bob").receive(timeout_s=0)

    room.close()

    again = other.agent("bob").receive(timeout_s=0)
    assert (again.id, again.delivery_count) == (id, 2)
    assert "the room was closed before it was settled" in [e.detail for e in other.receipt(id).events]


def test_a_claim_of_a_transient_agent_outlives_the_room(open_room: Callable[..., Room], clock: ManualClock) -> None:
    first, room = open_room(), open_room()
    id = first.agent("ada").send("bob", {})
    first.agent("bob", transient=True).receive(timeout_s=0)
    first.close()
    clock.advance(AGENT_LEASE_S - 1)

    m = room.agent("bob", transient=True).claimed(id)

    assert m.payload == {}
    assert m.ack() is True
    assert state(room, id) == "acked"


@pytest.mark.parametrize("somebody_looked", [False, True])
def test_a_claim_can_be_picked_up_after_its_lease_until_another_takes_it(
    room: Room, clock: ManualClock, somebody_looked: bool
) -> None:
    bob = room.agent("bob", transient=True)
    id = room.agent("ada", transient=True).send("bob", {})
    bob.receive(timeout_s=0)
    clock.advance(AGENT_LEASE_S + 1)
    if somebody_looked:
        assert room.store.sweep().released == 1

    assert bob.claimed(id).ack() is True


def test_only_the_holder_can_pick_up_a_claim(room: Room, ada: Agent, bob: Agent) -> None:
    id = ada.send("bob", {})
    with pytest.raises(InvalidMessage, match=f"no agent holds message {id}: it is stored"):
        bob.claimed(id)
    m = bob.receive(timeout_s=0)
    with pytest.raises(InvalidMessage, match=f"message {id} is held by bob, not by ada"):
        ada.claimed(id)
    m.ack()
    with pytest.raises(InvalidMessage, match="it is acked"):
        bob.claimed(id)
    with pytest.raises(postroom.UnknownMessage):
        bob.claimed("no such id")


# Hooks


def test_every_step_is_told_before_and_after(room: Room, ada: Agent, bob: Agent) -> None:
    told: list[str] = []
    for step in ("send", "claim", "settle"):
        for when in ("before", "after"):
            room.hooks.on(f"{when}_{step}", lambda event, _: told.append(event))

    ada.send("bob", {})
    bob.receive(timeout_s=0).ack()

    assert told == ["before_send", "after_send", "before_claim", "after_claim", "before_settle", "after_settle"]


def test_what_a_message_of_a_batch_may_say_it_says_as_a_single_one_would(room: Room) -> None:
    """Guards the arguments of `Agent._draft`: one that it forgot would be dropped without a word."""
    ada, cause = room.agent("ada"), room.agent("eve")
    cause.send("ada", {})
    said = {
        "to": "bob", "payload": {"n": 1}, "type": "review", "channel": "work", "priority": 7, "ttl_s": 600.0, "delay_s": 60.0,
        "correlation_id": "c", "idempotency_key": "single", "cause": ada.receive(1), "trace": "t", "order_key": "k",
        "replaces": ada.send("bob", {}),
    }  # fmt: skip
    assert said.keys() == _BATCH_FIELDS - {"debounce_s"}  # which stands for a delay (test_withdrawing.py)

    one = ada.send(**said)  # type: ignore[call-overload]
    single = room.store.get(one)
    assert ada.withdraw(one)  # the other would be behind it
    (other,) = ada.send_many([{**said, "idempotency_key": "in a batch"}])

    batched = room.store.get(other)
    assert single is not None
    assert batched is not None
    for field in (
        "to_agent", "payload", "type", "channel", "priority", "correlation_id", "chain_id", "hop_count", "trace", "order_key",
        "replaces",
    ):  # fmt: skip
        assert getattr(single, field) == getattr(batched, field), field
    assert batched.idempotency_key == "in a batch"
    for message in (single, batched):
        assert message.due_ms is not None
        assert message.expires_at_ms is not None
