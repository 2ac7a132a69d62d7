"""Receivers, heirs, askers and servers that live in namespaces of their own."""

from __future__ import annotations

import random
import time

import postroom
from postroom import PostroomError, ReceiveTimeout

from .journal import Journal

#: No lease ends during a test: a message changes hands because its owner is seen to be gone, or not at all.
LEASE_S = 600.0


def holder(url: str, journal: str, agent: str, lease_s: float = LEASE_S) -> None:
    """Take one message and never let go of it. Nobody renews the lease, where it is short."""
    note = Journal(journal).note
    room = postroom.open(url)
    message = room.agent(agent).receive(timeout_s=60, lease_s=lease_s)
    note("held", message.id, agent)
    time.sleep(3600)


def heir(url: str, journal: str, agent: str) -> None:
    """Wait for a message as the same agent, and write down when it came."""
    note = Journal(journal).note
    with postroom.open(url) as room:
        bob = room.agent(agent)
        note("waits", "", agent)
        message = bob.receive(timeout_s=120, lease_s=LEASE_S)
        note("got", message.id, agent)
        message.ack()


def worker(url: str, journal: str, seed: int) -> None:
    """Receive for ever, work a moment on each message, and write down whether the ack still counted."""
    note, chance = Journal(journal).note, random.Random(seed)
    room = postroom.open(url, max_deliveries=1000)
    bob = room.agent("bob")
    note("up")
    while True:
        try:
            message = bob.receive(timeout_s=1, lease_s=LEASE_S)
        except ReceiveTimeout:
            continue
        note("claimed", message.id, message.token, message.delivery_count)
        time.sleep(chance.uniform(0.3, 2.0))  # longer than anybody needs to look who is gone
        note("acked", message.id, message.token, message.ack())


def server(url: str, journal: str) -> None:
    """Take one question, and work on it for ever."""
    note = Journal(journal).note
    room = postroom.open(url)
    oracle = room.agent("oracle")
    note("up")
    message = oracle.receive(timeout_s=60, lease_s=LEASE_S)
    note("asked", message.id)
    time.sleep(3600)


def asker(url: str, journal: str, name: str, peer: str) -> None:
    """Ask, for ever, and write down how that ended."""
    note = Journal(journal).note
    with postroom.open(url) as room:
        agent = room.agent(name)
        note("asks", name)
        try:
            agent.ask(peer, {}, timeout_s=None)
        except PostroomError as error:
            note("ended", name, type(error).__name__)
        else:
            note("ended", name, "answered")


def answerer(url: str, journal: str, name: str) -> None:
    """Answer a question whose asker has died meanwhile, and look whether its agent gets the answer as mail."""
    note = Journal(journal).note
    with postroom.open(url) as room:
        message = room.agent(name).receive(timeout_s=60, lease_s=LEASE_S)
        message.reply({"answer": 42})
        note("replied", message.answer_id)
        note("mail", room.agent(message.from_agent).receive(timeout_s=60).id)
