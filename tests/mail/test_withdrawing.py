"""Order keys, withdrawing and replacing, as programs use them."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from tests.support.patience import PATIENCE_S, until

import postroom
from postroom.core.clock import ManualClock
from postroom.errors import IdentityRefused, InvalidMessage, NotAcked, UnknownMessage, Withdrawn
from postroom.room import Room

NO_ID = "00000000-0000-7000-8000-000000000000"


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def room(clock: ManualClock) -> Iterator[Room]:
    with postroom.open("memory:", clock=clock) as room:
        yield room


def texts(agent: postroom.Agent) -> list[str]:
    """What can be received now, each acked before the next is taken."""
    found = []
    while (message := agent.poll()) is not None:
        found.append(message.payload["text"])
        message.ack()
    return found


def test_messages_of_one_order_key_are_received_one_at_a_time(room: Room) -> None:
    ada, bob = room.agent("ada"), room.agent("bob")
    for text in ("one", "two"):
        ada.send("bob", {"text": text}, order_key="pr-7")
    first = bob.receive(timeout_s=0)

    assert bob.poll() is None
    assert (first.order_key, first.replaces) == ("pr-7", None)
    first.ack()
    assert texts(bob) == ["two"]


def test_a_receiver_is_told_that_a_newer_message_of_the_same_sender_and_key_waits(room: Room) -> None:
    ada, eve, bob = room.agent("ada"), room.agent("eve"), room.agent("bob")
    ada.send("bob", {"text": "old"}, order_key="deploy")
    eve.send("bob", {"text": "another's"}, order_key="deploy")
    ada.send("eve", {"text": "elsewhere"}, order_key="deploy")
    message = bob.receive(timeout_s=0)

    assert not message.newer_waiting
    ada.send("bob", {"text": "new"}, order_key="deploy")
    assert message.newer_waiting


def test_a_message_without_an_order_key_has_nothing_behind_it(room: Room) -> None:
    ada, bob = room.agent("ada"), room.agent("bob")
    ada.send("bob", {"text": "one"})
    ada.send("bob", {"text": "two"})

    assert not bob.receive(timeout_s=0).newer_waiting


def test_withdrawing_says_whether_it_did(room: Room) -> None:
    ada, bob = room.agent("ada"), room.agent("bob")
    one, two = (ada.send("bob", {"text": text}) for text in ("one", "two"))

    assert ada.withdraw(one, "a mistake")
    held = bob.receive(timeout_s=0)
    assert not ada.withdraw(two)
    assert held.ack()
    assert [room.receipt(id).state for id in (one, two)] == ["withdrawn", "acked"]
    assert room.receipt(one).events[-1][3] == "a mistake"


def test_only_what_is_kept_and_ones_own_can_be_withdrawn_or_replaced(room: Room) -> None:
    ada, eve = room.agent("ada"), room.agent("eve")
    id = ada.send("bob", {"text": "one"})

    for act in (lambda: eve.withdraw(id), lambda: eve.send("bob", {"text": "two"}, replaces=id)):
        with pytest.raises(IdentityRefused, match="was sent by 'ada'"):
            act()
    for act in (lambda: ada.withdraw(NO_ID), lambda: ada.send("bob", {"text": "two"}, replaces=NO_ID)):
        with pytest.raises(UnknownMessage, match=NO_ID):
            act()
    assert texts(room.agent("bob")) == ["one"]


def test_a_message_replaces_another_and_many_may_be_sent_so_at_once(room: Room) -> None:
    ada, bob = room.agent("ada"), room.agent("bob")
    old = ada.send("bob", {"text": "old"})
    ada.send_many(
        [
            {"to": "bob", "payload": {"text": "new"}, "replaces": old},
            {"to": "bob", "payload": {"text": "first"}, "order_key": "k"},
            {"to": "bob", "payload": {"text": "second"}, "order_key": "k"},
        ]
    )

    assert [message.payload["text"] for message in iter(bob.poll, None)] == ["new", "first"]


def test_a_message_behind_another_says_why_it_waits(room: Room) -> None:
    ada = room.agent("ada")
    first, second = (ada.send("bob", {"text": text}, order_key="pr-7") for text in ("one", "two"))

    assert room.why(second).kind == "blocked"
    assert "pr-7" in room.why(second).text
    assert room.why(first).kind != "blocked"


def test_a_repeat_whose_replaced_message_is_gone_gives_the_first_id(room: Room) -> None:
    ada = room.agent("ada")
    old = ada.send("bob", {"text": "old"})
    new = ada.send("bob", {"text": "new"}, replaces=old, idempotency_key="once")
    room.purge(ids=[old])

    assert ada.send("bob", {"text": "new"}, replaces=old, idempotency_key="once") == new


def test_of_debounced_messages_the_newest_is_delivered_after_the_last(room: Room, clock: ManualClock) -> None:
    ada, bob = room.agent("ada"), room.agent("bob")
    for text in ("a", "ab", "abc"):
        ada.send("bob", {"text": text}, order_key="draft", debounce_s=10)
        clock.advance(4)

    assert texts(bob) == []
    clock.advance(7)
    assert texts(bob) == ["abc"]


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"debounce_s": 10}, "order_key: must be given with debounce_s"),
        ({"debounce_s": 0, "order_key": "k"}, "debounce_s"),
        ({"debounce_s": 10, "delay_s": 1, "order_key": "k"}, "cannot be combined with delay_s"),
        ({"order_key": ""}, "order_key: must not be empty"),
        ({"order_key": "x" * 256}, "order_key: must be at most 255 bytes"),
        ({"order_key": 7}, "order_key: must be text"),
        ({"replaces": 7}, "replaces: must be text"),
    ],
)
def test_bad_keys_are_refused_by_name_and_nothing_is_stored(room: Room, fields: dict[str, Any], named: str) -> None:
    with pytest.raises(InvalidMessage, match=named):
        room.agent("ada").send("bob", {"text": "x"}, **fields)
    with pytest.raises(InvalidMessage, match=named):
        room.agent("ada").send_many([{"to": "bob", "payload": {"text": "x"}, **fields}])
    assert room.stats().states["stored"] == 0


def test_an_asker_whose_question_is_withdrawn_is_told_so(tmp_path: Any) -> None:
    with postroom.open(f"sqlite:{tmp_path}/room") as room:
        ada = room.agent("ada")
        ends: list[BaseException] = []

        def ask() -> None:
            with pytest.raises(Withdrawn) as raised:
                ada.ask("bob", {"text": "deploy?"}, timeout_s=PATIENCE_S)
            ends.append(raised.value)

        asking = threading.Thread(target=ask)
        asking.start()
        until(lambda: room.peek(agent="bob"), "the question is not there")
        (question,) = room.peek(agent="bob")
        assert ada.withdraw(question.id)
        asking.join(PATIENCE_S)
        assert "withdrawn by its sender" in str(ends[0])
        with pytest.raises(NotAcked, match="withdrawn"):
            clash(room)


def clash(room: Room) -> None:
    """A send that waits for its ack, and is withdrawn meanwhile."""
    ada = room.agent("ada")

    def withdraw() -> None:
        until(lambda: room.peek(agent="eve"), "the message is not there")
        ada.withdraw(room.peek(agent="eve")[0].id)

    thread = threading.Thread(target=withdraw)
    thread.start()
    try:
        ada.send("eve", {"text": "x"}, wait="acked", timeout_s=PATIENCE_S)
    finally:
        thread.join()


def test_the_same_with_await() -> None:
    async def main() -> None:
        async with postroom.aio.open("memory:") as room:
            ada, bob = room.agent("ada"), room.agent("bob")
            old = await ada.send("bob", {"text": "old"}, order_key="k")
            gone = await ada.send("bob", {"text": "gone"}, order_key="k")
            message = await bob.receive(timeout_s=5)
            assert await message.newer_waiting
            assert await ada.withdraw(gone)
            assert not await ada.withdraw(old)
            assert not await message.newer_waiting
            with pytest.raises(IdentityRefused):
                await bob.send("ada", {"text": "x"}, replaces=old)

    asyncio.run(main())
