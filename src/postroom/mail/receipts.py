"""What the room can tell of a message afterwards: receipts, and the history of dead letters."""

from __future__ import annotations

from typing import Final, NamedTuple

from postroom.core.clock import iso
from postroom.core.message import LedgerEntry, MessageWithLedger

#: Ledger events that end one delivery without ending the message well.
_FAILED: Final = frozenset({"retried", "released", "dead"})


class Event(NamedTuple):
    """One line of a message's ledger; the time is ISO 8601 text."""

    event: str  # what happened: stored, claimed, acked, …
    time: str  # when, as ISO 8601 text
    agent: str | None  # through whom
    detail: str | None  # what was said, such as the reason


class Receipt(NamedTuple):
    """What became of a message so far. `state`: stored, claimed, acked, answered, refused, expired or dead."""

    id: str  # the message's
    state: str  # where it stands
    #: Whether an agent of the recipient's name was ever in the room; True for mail to no particular agent.
    recipient_known: bool
    events: list[Event]  # every step so far, the oldest first
    message: MessageWithLedger  # the message itself


class Attempt(NamedTuple):
    """One delivery that failed: its receiver, from when to when, and the error."""

    agent: str | None  # the receiver
    claimed_at: str  # from when, as ISO 8601 text
    ended_at: str  # to when
    error: str | None  # why it failed


class DeadLetter(NamedTuple):
    """A message that was set aside, with every attempt to deliver it."""

    id: str  # the message's
    error: str | None  # why it was set aside
    attempts: list[Attempt]  # each delivery that failed
    message: MessageWithLedger  # the message itself


class Wait(NamedTuple):
    """An asker that waits for an answer right now; `peer` None: the first to claim the question."""

    asker: str  # the agent that waits
    peer: str | None  # whose answer it waits for
    question_id: str  # the question's message
    since: str  # since when, as ISO 8601 text


def receipt_of(message: MessageWithLedger, *, recipient_known: bool) -> Receipt:
    """The receipt of a message that was read with its ledger."""
    return Receipt(message.id, message.state, recipient_known, events_of(message), message)


def events_of(message: MessageWithLedger) -> list[Event]:
    """The ledger of a message, for people and programs to read."""
    return [Event(entry.event, iso(entry.time_ms), entry.agent, entry.detail) for entry in message.ledger]


def dead_letter_of(message: MessageWithLedger) -> DeadLetter:
    """The dead letter of a message that was read with its ledger."""
    return DeadLetter(message.id, message.error, attempts_of(message), message)


def attempts_of(message: MessageWithLedger) -> list[Attempt]:
    """Every delivery that failed, in order: each claim with what ended it."""
    attempts: list[Attempt] = []
    claim: LedgerEntry | None = None
    for entry in message.ledger:
        if entry.event == "claimed":
            claim = entry
        elif entry.event in _FAILED and claim is not None:
            attempts.append(Attempt(claim.agent, iso(claim.time_ms), iso(entry.time_ms), entry.detail))
            claim = None
    return attempts
