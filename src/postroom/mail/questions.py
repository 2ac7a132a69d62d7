"""Waiting for what becomes of a message: until it is acked, or until its answer is here. `answers` asks several agents."""

from __future__ import annotations

from collections.abc import Generator, Iterable
from contextlib import suppress
from typing import Any, Final

from postroom.core import near
from postroom.core.config import LEASE_S
from postroom.core.message import Draft, Message, MessageWithLedger
from postroom.core.states import FINISHED, State
from postroom.core.untrusted import quoted
from postroom.errors import (
    AskTimeout,
    InvalidMessage,
    NotAcked,
    NotAnswered,
    PeerGone,
    PostroomError,
    Refused,
    Withdrawn,
)
from postroom.stores.contract import Delivery, Query, Ticket, Waiter, Want, topic_message

from . import limiting, presence
from .gateway import Deadline, Gateway, Pause, Steps
from .leases import Terms
from .received import Received

#: What `send(wait=...)` may wait for, and the states in which it has come.
WAITS: Final = {
    "acked": frozenset({State.ACKED, State.ANSWERED}),
    "answered": frozenset({State.ANSWERED}),
}
#: An answer is settled at once, so nothing keeps its lease.
_AT_ONCE: Final = Terms(LEASE_S)


def check_wait(wait: str | None) -> None:
    """Raise InvalidMessage when there is no such thing to wait for."""
    if wait is not None and wait not in WAITS:
        raise InvalidMessage("wait", f"must be {' or '.join(WAITS)}, not {wait!r}")


def sending(
    gateway: Gateway, draft: Draft, wait: str, timeout_s: float | None, full_wait_s: float | None = 0
) -> Steps[str]:
    """Store a message; its id when it is acked (or answered). NotAcked when it ended otherwise, or not in time."""
    if full_wait_s == 0:
        (id,) = gateway.put([draft])
    else:
        id = yield from limiting.sending(gateway, draft, full_wait_s)
    deadline = Deadline(gateway.clock, timeout_s)
    with gateway.listen([topic_message(id)]) as waiter:
        while True:
            message = gateway.store.get(id)
            if message is None:
                raise NotAcked(f"message {id} is no longer stored, so its outcome is unknown", id)
            if message.exact_state in WAITS[wait]:
                return id
            if message.exact_state in FINISHED:
                raise NotAcked(f"message {id} {_ending(message)}, not {wait}", id)
            left_s = deadline.left_s()
            if left_s == 0:
                raise NotAcked(
                    f"{_peer_of(message)} has not {wait} message {id} within {timeout_s:g} s; it is still stored", id
                )
            yield Pause(waiter, left_s)


class Question(Generator[Pause, bool, Received]):
    """A question that this process sends and waits to see answered; the steps to the answer, acked.

    With `settle` False the answer is only claimed: a door acks it when it has handed it over. If it does not, the answer is
    ordinary mail again.

    They raise Refused, NotAnswered, PeerGone or AskTimeout, each of which says what happened. However the waiting ends,
    nobody waits afterwards: an answer that comes later is ordinary mail.

    A caller that takes many questions through their steps at once may store several in one commit (`draft`, `stored`),
    and take several answers in one (`find_answer`, `give`; see `take_answers`). One that waits for several questions with
    one waiter takes no steps: it calls `look` and `look_for_peer`, and ends each with `late` (`answers.Answers`).
    """

    def __init__(self, gateway: Gateway, draft: Draft, timeout_s: float | None, *, settle: bool = True) -> None:
        self.draft = draft
        self.settle = settle
        self._gateway = gateway
        self._asker = draft.from_agent
        self._peer = draft.to_agent
        self._timeout_s = timeout_s
        self._peer_ran = False
        self._id = ""
        self._seen: MessageWithLedger | None = None  # the question, as somebody has just read it
        self._answer: Delivery | None = None  # what somebody has just taken
        self._deadline: Deadline
        self._steps = self._ask()

    def send(self, hinted: bool | None) -> Pause:
        return next(self._steps) if hinted is None else self._steps.send(hinted)

    def throw(self, *error: Any) -> Pause:
        return self._steps.throw(*error)

    def close(self) -> None:
        self._steps.close()

    def stored(self, id: str) -> None:
        """The draft is stored already, under this id. Before the first step."""
        self._id = id

    def _ask(self) -> Steps[Received]:
        if self._id:
            self._gateway.question_begins(self._id)
        else:
            self._id = self._gateway.ask(self.draft)
        self._deadline = Deadline(self._gateway.clock, self._timeout_s)
        answered = False
        try:
            with self._gateway.listen([topic_message(self._id)]) as waiter:
                delivery = yield from self._wait(waiter)
            answered = True
            return self.received(delivery)
        finally:
            self._gateway.question_ends(self._id, abandon=not answered)

    def _wait(self, waiter: Waiter) -> Steps[Delivery]:
        hinted, first_look = False, True
        while True:
            delivery = (self._take_held() if hinted else None) or self.look()
            if delivery is None and not hinted:
                delivery = self.look_for_peer(first_look)
            if delivery is not None:
                return delivery
            left_s = self._deadline.left_s()
            if left_s == 0:
                raise self.late(self._gateway.store.get(self._id))
            hinted = yield Pause(waiter, left_s)
            first_look = False

    def _take_held(self) -> Delivery | None:
        """The answer, at once, where a hint says that it may be here: mostly it is, and no question is read."""
        if self._seen is not None or self._answer is not None:
            return None  # somebody has looked already
        return self._gateway.claim_answer(self._id, _want(self._gateway, self._asker, settle=self.settle))

    def look(self) -> Delivery | None:
        """The answer if it is here; None while the question is open; raises when it ended otherwise."""
        question, self._seen = self._seen or self._gateway.store.get(self._id), None
        if question is None:
            raise NotAnswered(f"question {self._id} is no longer stored", self._id)
        if question.exact_state is State.ANSWERED:
            return self._answer or self._take_answer(question)
        if question.exact_state is State.REFUSED:
            reason = question.error or "no reason given"
            raise Refused(f"{_peer_of(question)} refused: {reason}", self._id, reason)
        if question.exact_state is State.WITHDRAWN:
            raise Withdrawn(f"question {self._id} {_ending(question)}", self._id)
        if question.exact_state in FINISHED:
            # dead, and nobody has written it yet: most likely because the peer's process is gone
            if question.ledger[-1].event == "claimed" and self._peer_is_gone(first_look=False):
                raise PeerGone(self._how_peer_went(), self._id)
            raise NotAnswered(f"question {self._id} {_ending(question)} without an answer", self._id)
        self.note_open(question)
        return None

    def note_open(self, question: Message) -> None:
        """The question was just read, and was still open: a peer that has claimed it has run."""
        self._peer_ran |= question.claimed_by is not None

    def _take_answer(self, question: MessageWithLedger) -> Delivery:
        """Claim and ack the answer.

        One that was taken before (a question asked twice under one key) is read instead.
        """
        id = self._answer_id(question)
        for delivery in _claim(self._gateway, self._asker, (id,), settle=self.settle):
            return delivery
        kept = self._gateway.store.get(id)
        if kept is None:
            raise NotAnswered(f"the answer to question {self._id} is no longer stored", self._id)
        return Delivery(kept, Ticket(kept.id, kept.token, self._asker))

    def find_answer(self) -> str | None:
        """Read the question, and give the id of its answer when it is there.

        Then the next step does not read it again.
        """
        question = self._gateway.store.get(self._id)
        if question is None or question.exact_state is not State.ANSWERED:
            return None  # what may still change is read anew by the step, after it has taken the hint
        self._seen = question
        return self._answer_id(question)

    def give(self, answer: Delivery) -> None:
        """The answer was taken already. The next step returns it."""
        self._answer = answer

    def received(self, answer: Delivery) -> Received:
        """An answer that was taken, as its asker gets it."""
        return Received(self._gateway, answer, _AT_ONCE, settled=True if self.settle else None)

    def _answer_id(self, question: MessageWithLedger) -> str:
        for entry in reversed(question.ledger):
            if entry.event == "answered" and entry.detail:
                return entry.detail
        for message in self._gateway.store.find(Query(answer_to=question.id, limit=1)).messages:
            return message.id
        raise NotAnswered(f"the answer to question {self._id} is no longer stored", self._id)

    # The peer that was asked

    def look_for_peer(self, first_look: bool) -> Delivery | None:
        """None while the peer may still answer. Raises PeerGone, unless its last act was to answer."""
        if not self._peer_is_gone(first_look):
            return None
        delivery = self.look()
        if delivery is None:
            raise PeerGone(self._how_peer_went(), self._id)
        return delivery

    def _peer_is_gone(self, first_look: bool) -> bool:
        """Whether the peer ran while we waited and runs no more; without a time-out, whether it does not run."""
        if self._peer is None:
            return False
        value = presence.look(self._gateway, self._peer)
        if first_look and value is not None and presence.ran_lately(self._gateway, value):
            self._peer_ran = True
            return False
        running = None if value is None else presence.is_running(self._gateway, value)
        if running:
            self._peer_ran = True
        return running is False and (self._peer_ran or self._timeout_s is None)

    def _how_peer_went(self) -> str:
        value = presence.look(self._gateway, str(self._peer))
        stopped = value is not None and not value["processes"] and value["status"] != presence.GONE
        return f"{self._peer} {'stopped' if stopped else 'died'} without answering"

    def late(self, question: Message | None) -> AskTimeout:
        """The error for a question whose time is over; `question` is how it stands."""
        return AskTimeout(self._why_late(question), self._id)

    def _why_late(self, question: Message | None) -> str:
        late = f"no answer to question {self._id} within {self._timeout_s:g} s"
        if self._peer is not None and not presence.is_known(self._gateway, self._peer):
            meant = near.nearest(self._peer, presence.names(self._gateway))
            hint = f"; did you mean {quoted(meant)}?" if meant else ""
            return f"{late}: {quoted(self._peer)} has not joined this room yet{hint}"
        if question is not None and question.exact_state is State.CLAIMED:
            return f"{late}: {quoted(question.claimed_by or '')} has taken it but not answered yet"
        return f"{late}: {self._peer or 'nobody'} has not taken it yet"


def take_answers(gateway: Gateway, questions: Iterable[Question]) -> None:
    """Look at questions to whose askers a hint came, and take the answers that are here: in one step for each asker.

    What was found, each finds at its next step. Whatever goes wrong here goes wrong there too, and is told there.
    """
    found: dict[tuple[str, bool], dict[str, Question]] = {}
    with suppress(PostroomError):
        for question in questions:
            id = question.find_answer()
            if id is not None:
                found.setdefault((question.draft.from_agent, question.settle), {})[id] = question
        for (asker, settle), answers in found.items():
            for delivery in _claim(gateway, asker, tuple(answers), settle=settle):
                answers[delivery.message.id].give(delivery)


def _claim(gateway: Gateway, asker: str, ids: tuple[str, ...], *, settle: bool) -> list[Delivery]:
    return gateway.claim(_want(gateway, asker, ids, settle=settle)).deliveries


def _want(gateway: Gateway, asker: str, ids: tuple[str, ...] = (), *, settle: bool) -> Want:
    return Want(agent=asker, lease_s=LEASE_S, ids=ids, owner=gateway.process, settle=settle)


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
        State.WITHDRAWN: "was withdrawn by its sender",
    }[message.exact_state]
