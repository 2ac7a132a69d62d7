"""Waiting for what becomes of one message: until it is acked, or until its answer is here."""

from __future__ import annotations

from typing import Final

from . import presence
from .config import LEASE_S
from .desk import Deadline, Desk, Pause, Steps
from .errors import AskTimeout, InvalidMessage, NotAcked, NotAnswered, PeerGone, Refused
from .message import Draft, Message
from .states import FINISHED, State
from .store import Delivery, Query, Ticket, Waiter, Want, topic_message

#: What `send(wait=...)` may wait for, and the states in which it has come.
WAITS: Final = {
    "acked": frozenset({State.ACKED, State.ANSWERED}),
    "answered": frozenset({State.ANSWERED}),
}


def check_wait(wait: str | None) -> None:
    """Raise InvalidMessage when there is no such thing to wait for."""
    if wait is not None and wait not in WAITS:
        raise InvalidMessage("wait", f"must be {' or '.join(WAITS)}, not {wait!r}")


def sending(desk: Desk, draft: Draft, wait: str, timeout_s: float | None) -> Steps[str]:
    """Store a message; its id when it is acked (or answered). NotAcked when it ended otherwise, or not in time."""
    (id,) = desk.put([draft])
    deadline = Deadline(desk.clock, timeout_s)
    with desk.listen([topic_message(id)]) as waiter:
        while True:
            message = desk.store.get(id)
            if message is None:
                raise NotAcked(f"message {id} is no longer kept; what became of it is not known", id)
            if message.state in WAITS[wait]:
                return id
            if message.state in FINISHED:
                raise NotAcked(f"message {id} {_ending(message)}, not {wait}", id)
            left_s = deadline.left_s()
            if left_s == 0:
                raise NotAcked(
                    f"{_peer_of(message)} has not {wait} message {id} within {timeout_s:g} s; it is still stored", id
                )
            yield Pause(waiter, left_s)


class Question:
    """A question that this process sends and waits to see answered.

    However the waiting ends, nobody waits afterwards: an answer that comes later is ordinary mail.
    """

    def __init__(self, desk: Desk, draft: Draft, timeout_s: float | None) -> None:
        self._desk = desk
        self._draft = draft
        self._asker = draft.from_agent
        self._peer = draft.to_agent
        self._timeout_s = timeout_s
        self._peer_ran = False
        self._id: str
        self._deadline: Deadline

    def steps(self) -> Steps[Delivery]:
        """The answer, acked. Raises Refused, NotAnswered, PeerGone or AskTimeout, each of which says what happened."""
        (self._id,) = self._desk.put([self._draft])
        self._deadline = Deadline(self._desk.clock, self._timeout_s)
        self._desk.question_begins(self._id)
        answered = False
        try:
            with self._desk.listen([topic_message(self._id)]) as waiter:
                delivery = yield from self._wait(waiter)
            answered = True
            return delivery
        finally:
            self._desk.question_ends(self._id, abandon=not answered)

    def _wait(self, waiter: Waiter) -> Steps[Delivery]:
        hinted, first_look = False, True
        while True:
            delivery = self._look()
            if delivery is not None:
                return delivery
            if not hinted and self._peer_is_gone(first_look):
                delivery = self._look()  # its last act may have been to answer
                if delivery is not None:
                    return delivery
                raise PeerGone(self._how_peer_went(), self._id)
            left_s = self._deadline.left_s()
            if left_s == 0:
                raise AskTimeout(self._why_late(), self._id)
            hinted = yield Pause(waiter, left_s)
            first_look = False

    def _look(self) -> Delivery | None:
        """The answer if it is here; None while the question is open; raises when it ended otherwise."""
        question = self._desk.store.get(self._id)
        if question is None:
            raise NotAnswered(f"question {self._id} is no longer kept", self._id)
        if question.state is State.ANSWERED:
            return self._take_answer(question)
        if question.state is State.REFUSED:
            reason = question.error or "no reason given"
            raise Refused(f"{_peer_of(question)} refused: {reason}", self._id, reason)
        if question.state in FINISHED:
            raise NotAnswered(f"question {self._id} {_ending(question)} without an answer", self._id)
        self._peer_ran |= question.claimed_by is not None
        return None

    def _take_answer(self, question: Message) -> Delivery:
        """Claim and ack the answer. One that was taken before (a question asked twice under one key) is read instead."""
        id = self._answer_id(question)
        want = Want(agent=self._asker, lease_s=LEASE_S, ids=(id,), owner=self._desk.process, settle=True)
        for delivery in self._desk.claim(want).deliveries:
            return delivery
        kept = self._desk.store.get(id)
        if kept is None:
            raise NotAnswered(f"the answer to question {self._id} is no longer kept", self._id)
        return Delivery(kept, Ticket(kept.id, kept.token, self._asker))

    def _answer_id(self, question: Message) -> str:
        for entry in reversed(question.ledger):
            if entry.event == "answered" and entry.detail:
                return entry.detail
        for message in self._desk.store.find(Query(answer_to=question.id, limit=1)).messages:
            return message.id
        raise NotAnswered(f"the answer to question {self._id} is no longer kept", self._id)

    # The one who was asked

    def _peer_is_gone(self, first_look: bool) -> bool:
        """Whether the peer ran while we waited and runs no more; or, where nobody says how long to wait, does not run."""
        if self._peer is None:
            return False
        value = presence.look(self._desk, self._peer)
        if first_look and value is not None and presence.ran_lately(self._desk, value):
            self._peer_ran = True
            return False
        running = None if value is None else presence.is_running(self._desk, value)
        if running:
            self._peer_ran = True
        return running is False and (self._peer_ran or self._timeout_s is None)

    def _how_peer_went(self) -> str:
        value = presence.look(self._desk, str(self._peer))
        stopped = value is not None and not value["processes"] and value["status"] != presence.GONE
        return f"{self._peer} {'stopped' if stopped else 'died'} without answering"

    def _why_late(self) -> str:
        late = f"no answer to question {self._id} within {self._timeout_s:g} s"
        if self._peer is not None and not presence.is_known(self._desk, self._peer):
            import difflib  # a millisecond of start-up that only a mistake needs

            near = difflib.get_close_matches(self._peer, presence.names(self._desk), n=1)
            hint = f"; did you mean {near[0]}?" if near else ""
            return f"{late}: nobody called {self._peer} has been seen in this room{hint}"
        question = self._desk.store.get(self._id)
        if question is not None and question.state is State.CLAIMED:
            return f"{late}: {question.claimed_by} has taken it but not answered yet"
        return f"{late}: {self._peer or 'nobody'} has not taken it{'' if self._peer else ' yet'}"


def _peer_of(message: Message) -> str:
    return message.claimed_by or message.to_agent or f"the first to claim in {message.channel}"


def _ending(message: Message) -> str:
    """What became of a message, as the middle of a sentence."""
    said = f" ({message.error})" if message.error else ""
    return {
        State.ACKED: f"was acked by {message.claimed_by}",
        State.ANSWERED: f"was answered by {message.claimed_by}",
        State.REFUSED: f"was refused by {message.claimed_by}{said}",
        State.EXPIRED: "expired",
        State.DEAD: f"was set aside as a dead letter{said}",
    }[message.state]
