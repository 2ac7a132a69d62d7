"""Threads: the whole conversation, in order, from any of its messages."""

from __future__ import annotations

import pytest

import postroom
from postroom import Agent, Room
from postroom.core.message import Draft, check


@pytest.fixture
def ada(room: Room) -> Agent:
    return room.agent("ada")


@pytest.fixture
def bob(room: Room) -> Agent:
    return room.agent("bob")


def threads(room: Room, ids: list[str]) -> list[list[str]]:
    """The thread of each of these messages, each kind once."""
    found: list[list[str]] = []
    for id in ids:
        thread = [message.id for message in room.thread(id)]
        if thread not in found:
            found.append(thread)
    return found


def test_answers_and_follow_ups_belong_to_the_message_that_led_to_them(room: Room, ada: Agent, bob: Agent) -> None:
    other = ada.send("bob", {"text": "something else"})
    bob.receive(timeout_s=0).ack()
    question = ada.send("bob", {"text": "ready?"})
    asked = bob.receive(timeout_s=0)
    aside = bob.send("cy", {"text": "is it ready?"}, cause=asked)
    forwarded = room.agent("cy").receive(timeout_s=0)
    forwarded.reply({"text": "yes"})
    said = bob.receive(timeout_s=0)
    asked.reply({"text": "it is"})
    answer = ada.receive(timeout_s=0)
    answer.reply({"text": "thanks"})
    follow_up = ada.send("bob", {"text": "one more thing"}, cause=answer)
    thanks = bob.receive(timeout_s=0).id

    whole = [question, aside, said.id, answer.id, thanks, follow_up]
    assert threads(room, whole) == [whole]
    assert [message.payload["text"] for message in room.thread(answer.id)] == [
        "ready?", "is it ready?", "yes", "it is", "thanks", "one more thing",
    ]  # fmt: skip
    assert threads(room, [other]) == [[other]]


def test_messages_with_one_correlation_id_are_one_thread_with_what_they_led_to(
    room: Room, ada: Agent, bob: Agent
) -> None:
    first = ada.send("bob", {}, correlation_id="pr-7")
    alone = ada.send("bob", {})
    bob.receive(timeout_s=0).reply({})
    answer = ada.receive(timeout_s=0).id
    second = bob.send("ada", {}, correlation_id="pr-7")
    ada.receive(timeout_s=0).reply({})
    bob.receive(timeout_s=0).ack()
    last = bob.receive(timeout_s=0).id

    whole = [first, answer, second, last]
    assert threads(room, whole) == [whole]
    assert threads(room, [alone]) == [[alone]]


def test_everybody_who_was_asked_at_once_has_a_thread(room: Room, ada: Agent, bob: Agent) -> None:
    ids = ada.send(["bob", "cy"], {})
    bob.receive(timeout_s=0).reply({})

    assert [len(thread) for thread in threads(room, ids)] == [2, 1]


def test_what_is_no_longer_kept_is_left_out(room: Room, ada: Agent, bob: Agent) -> None:
    first = ada.send("bob", {})
    asked = bob.receive(timeout_s=0)
    second = bob.send("cy", {}, cause=asked)
    third = bob.send("cy", {}, cause=asked)
    asked.ack()
    room.purge(ids=[first])

    assert threads(room, [second, third]) == [[second, third]]
    with pytest.raises(postroom.UnknownMessage, match=f"this room has no message {first}"):
        room.thread(first)


def test_an_answer_that_names_no_chain_belongs_to_its_question(room: Room, ada: Agent, bob: Agent) -> None:
    """As the answers of the board, and those that were written as files by hand."""
    question = ada.send("bob", {})
    ticket = bob.receive(timeout_s=0).ticket
    draft = check(Draft(from_agent="bob", to_agent="ada", payload={}, answer_to=question))
    (answer,) = room.gateway.settle(ticket, "answered", puts=[draft]).ids

    assert threads(room, [question, answer]) == [[question, answer]]


def test_looking_at_a_thread_changes_nothing(room: Room, ada: Agent, bob: Agent) -> None:
    id = ada.send("bob", {})
    before = room.cursor()

    room.thread(id)

    assert room.cursor() == before
    assert bob.receive(timeout_s=0).id == id
