"""What the room can tell of a message afterwards: receipts, and the history of dead letters."""

from __future__ import annotations

from typing import Final, NamedTuple

from postroom.core.clock import iso
from postroom.core.message import LedgerEntry, MessageWithLedger

#: Ledger events that end one delivery without ending the message well.
_FAILED: Final = frozenset({"retried", "released", "dead"})


class Event(NamedTuple):
    """One line of a message's ledger; the time is ISO 8601 text."""

    event: str
    time: str
    agent: str | None
    detail: str | None


class Receipt(NamedTuple):
    """What became of a message so far. `state`: stored, claimed, acked, answered, refused, expired or dead."""

    id: str
    state: str
    #: Whether somebody of the recipient's name was ever in the room; True for mail to nobody in particular.
    recipient_known: bool
    events: list[Event]
    message: MessageWithLedger


class Attempt(NamedTuple):
    """One delivery that failed: its receiver, from when to when, and the error."""

    agent: str | None
    claimed_at: str
    ended_at: str
    error: str | None


class DeadLetter(NamedTuple):
    """A message that was set aside, with every attempt to deliver it."""

    id: str
    error: str | None
    attempts: list[Attempt]
    message: MessageWithLedger


class Wait(NamedTuple):
    """An asker that waits for an answer right now; `peer` None: the first to claim the question."""

    asker: str
    peer: str | None
    question_id: str
    since: str


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
