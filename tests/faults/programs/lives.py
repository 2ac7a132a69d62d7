"""Receivers that die with a message in their hands, and those who wait to take over; askers, and those they ask."""

from __future__ import annotations

import time

import postroom
from postroom import PostroomError

from .journal import Journal


def holder(folder: str, journal: str, lease_s: float = 600) -> None:
    """Take one message and never let go of it."""
    note = Journal(journal).note
    room = postroom.open(f"sqlite:{folder}")
    message = room.agent("bob").receive(timeout_s=30, lease_s=lease_s)
    note("held", message.id, message.token, message.delivery_count)
    time.sleep(3600)


def heir(folder: str, journal: str) -> None:
    """Wait for a message as the same agent in another process, and write down when it came."""
    note = Journal(journal).note
    with postroom.open(f"sqlite:{folder}") as room:
        bob = room.agent("bob")
        note("waits")
        message = bob.receive(timeout_s=30)
        note("got", message.id, message.token, message.delivery_count)
        note("acked", message.ack())


def asker(folder: str, journal: str) -> None:
    """Ask bob something, and write down how that ended."""
    note = Journal(journal).note
    with postroom.open(f"sqlite:{folder}", max_deliveries=1) as room:
        note("asks")
        try:
            room.agent("ada").ask("bob", {}, timeout_s=30)
        except PostroomError as error:
            note("ended", type(error).__name__, str(error))
        else:
            note("ended", "answered", "")


def patient_asker(folder: str, journal: str) -> None:
    """Ask bob something and wait for ever: this one is killed."""
    note = Journal(journal).note
    room = postroom.open(f"sqlite:{folder}")
    ada = room.agent("ada")
    note("asks")
    ada.ask("bob", {}, timeout_s=3600)


def answerer(folder: str, journal: str) -> None:
    """Take one question and answer it, whoever still wants to know."""
    note = Journal(journal).note
    with postroom.open(f"sqlite:{folder}") as room:
        message = room.agent("bob").receive(timeout_s=30)
        note("answered", message.id, message.reply({"answer": 42}), message.answer_id)


def one_shot(folder: str, journal: str) -> None:
    """What a command does: take one message for the agent, and end."""
    with postroom.open(f"sqlite:{folder}") as room:
        message = room.agent("bob", transient=True).poll()
        assert message is not None
        Journal(journal).note("held", message.id)
