"""A message in the hands of its receiver, and what the receiver may say of it."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterable
from contextlib import suppress
from operator import attrgetter
from types import TracebackType
from typing import Any, Final, NamedTuple, Self
from weakref import ref

from postroom.core.backoff import backoff_s
from postroom.core.message import MAX_SPAN_S, Draft, Message, MessageWithLedger, check, check_name, check_span
from postroom.core.states import NOTES, WITHDRAWABLE, State
from postroom.errors import Fault, IdentityRefused, InvalidMessage, LateAck, PostroomError, TooManyHops, raise_faults
from postroom.stores.contract import Delivery, Query, Settled, Ticket, Want

from .gateway import Gateway
from .leases import Terms

#: Reasons and errors are kept in the ledger up to this many characters.
MAX_REASON_CHARS: Final = 4000
UNSEEN: Final = "the receiver left before seeing it"
TOLD_TO_STOP: Final = "the receiver was told to stop"


class Settlement(NamedTuple):
    """What becomes of a message: the store's outcome, the reason, the delay before the next delivery, the answer."""

    outcome: str
    detail: str | None = None
    delay_s: float = 0
    answer: Draft | None = None


ACKED: Final = Settlement("acked")
#: What only the holder of a message makes of it.
_SAID: Final = (State.ACKED, State.ANSWERED, State.REFUSED)
#: An answer, in a store's words.
_WORDS: Final = ("answered", "refused")
#: The type of questions to people, which are answered through `people` alone.
QUESTION: Final = "question.person"
#: Chain id, hop count and trace of a message that no other one caused.
NO_CAUSE: Final[tuple[str | None, int, str | None]] = (None, 0, None)


def _of_message(name: str, doc: str) -> Any:
    """A property that reads a field of the message behind it."""
    return property(attrgetter(f"message.{name}"), doc=doc)


class Envelope:
    """A claimed message as its receiver reads it."""

    __slots__ = ("_ticket", "message")

    def __init__(self, message: Message, ticket: Ticket) -> None:
        self._ticket = ticket
        #: The whole record, as it was when it was claimed.
        self.message: Message = message

    id: str = _of_message("id", "The message's id.")
    type: str = _of_message("type", "What kind of message it is; `serve` chooses the function by it.")
    version: str = _of_message("version", "The version of the envelope's format.")
    payload: dict[str, Any] = _of_message("payload", "The message's content.")
    from_agent: str = _of_message("from_agent", "The agent that sent it.")
    to_agent: str | None = _of_message(
        "to_agent", "The agent it was sent to; None when it was for the first to claim it."
    )
    channel: str = _of_message("channel", "The channel it was sent in.")
    priority: int = _of_message("priority", "From 1 to 10; 10 comes first.")
    timestamp: str = _of_message("timestamp", "When it was sent, as ISO 8601 text.")
    correlation_id: str | None = _of_message(
        "correlation_id",
        "The id of the conversation it belongs to, as the sender gave it; None when the sender gave none.",
    )
    expires_at: str | None = _of_message("expires_at", "When it expires, as ISO 8601 text; None when it never does.")
    delivery_count: int = _of_message("delivery_count", "How many times it was delivered, this time included.")
    chain_id: str | None = _of_message(
        "chain_id", "The id of the message that started the chain of causes; None when this one started it."
    )
    hop_count: int = _of_message("hop_count", "How many messages caused each other before this one.")
    lane: str = _of_message("lane", "The word `agent`, or `human` when a person sent it.")
    trace: str | None = _of_message("trace", "The sender's trace context.")
    order_key: str | None = _of_message(
        "order_key",
        "Messages of one key in one mailbox are delivered one at a time, in order; None when it has no key.",
    )
    replaces: str | None = _of_message(
        "replaces", "The id of the message that its sender wanted to replace with this one; None when there is none."
    )

    @property
    def token(self) -> int:
        """The claim's fencing token: grows with every claim of this message. For receivers that write elsewhere."""
        return self._ticket.token

    @property
    def ticket(self) -> Ticket:
        """What the store asks for to settle it."""
        return self._ticket

    def to_dict(self) -> dict[str, Any]:
        """The envelope as plain data."""
        return self.message.to_dict()

    def __repr__(self) -> str:
        return f"<Received {self.id} {self.type!r} from {self.from_agent!r}, delivery {self.delivery_count}>"


class Received(Envelope):
    """A claimed message. It belongs to its receiver until the receiver settles it, or until the lease ends.

    The lease is extended for as long as this object is there, its process runs and `max_hold_s` has not passed, unless the
    receiver asked for a fixed one (`lease_s`).

    `ack`, `retry`, `dead`, `reply`, `refuse` settle it. Each returns whether it counted, after that is committed: False
    means that the message was settled before or belongs to another by now, and that nothing was changed. One that
    raises has changed nothing; it may be tried again.

    As a context manager it acks at the end of the block and retries if the block raises, unless the block settled it.
    An ack there that came too late is a `LateAck`: a warning, or raised where the receiver asked for `late="raise"`.
    """

    __slots__ = ("__weakref__", "_gateway", "answer_id", "claimed_ns", "holder", "settled", "since_ns", "terms")

    #: What keeps the message, where another object does: it is held for as long as either is there.
    holder: object

    def __init__(
        self, gateway: Gateway, delivery: Delivery, terms: Terms, *, claimed_ns: int = 0, settled: bool | None = None
    ) -> None:
        self.message, self._ticket = delivery.message, delivery.ticket
        self._gateway = gateway
        #: How it is held, and since when (the steady clock); one that was claimed ahead was so before.
        self.terms = terms
        self.since_ns = gateway.now_ns
        self.claimed_ns = claimed_ns or gateway.now_ns
        #: None while it is the receiver's to settle; then whether settling counted.
        self.settled: bool | None = settled
        #: The id of the answer, after a `reply` that counted.
        self.answer_id: str | None = None
        if terms.hold_ns and settled is None:
            leases = gateway.leases
            leases.held[delivery.ticket] = ref(self)
            if terms.lease_s < leases.short_s:
                leases.in_time(terms.lease_s)

    @property
    def newer_waiting(self) -> bool:
        """Whether a newer message of the same sender and order key waits behind this one, as the room is now."""
        message = self.message
        if message.order_key is None:
            return False
        query = Query(
            order_key=message.order_key,
            from_agent=message.from_agent,
            to_agent=message.to_agent,
            channels=(message.channel,),
            states=WITHDRAWABLE,
            order="newest",
            limit=20,
        )
        waiting = self._gateway.open_store.find_all(query)
        return any(each.id > message.id and each.to_agent == message.to_agent for each in waiting)

    # What the receiver may say

    def ack(self) -> bool:
        """It is done."""
        return self.conclude(ACKED).held

    def retry(self, reason: str | None = None, delay_s: float | None = None) -> bool:
        """It failed; deliver it again after `delay_s` (None: later with each delivery).

        On the last allowed delivery it is set aside as a dead letter instead, and this still returns True. In a channel with
        `pass_failed` (see `Room.limit`) that happens to a message with an order key at its first failure.
        """
        return self.conclude(self.retry_verdict(reason, delay_s)).held

    def dead(self, reason: str) -> bool:
        """It can never work: set it aside as a dead letter."""
        return self.conclude(Settlement("dead", words("reason", reason))).held

    def refuse(self, reason: str) -> bool:
        """Say no. The message ends, and its asker gets `Refused` with the reason."""
        return self.conclude(Settlement("refused", words("reason", reason))).held

    def reply(
        self, payload: dict[str, Any], *, type: str | None = None, ttl_s: float | None = None, _lane: str = "agent"
    ) -> bool:
        """Answer it and end it, together or not at all.

        The answer goes to the sender in the same channel with the same priority; its type is the message's own with
        ".response" behind it, its correlation id the message's own, or else the message's id.
        Raises InvalidMessage, and the message stays claimed, when the answer is not valid.
        """
        return self.conclude(self.answer_verdict(payload, type=type, ttl_s=ttl_s, lane=_lane)).held

    def extend(self, lease_s: float | None = None) -> bool:
        """Keep it for that many seconds from now (None: for as long as it was claimed for). False when it is lost.

        Heartbeats never shorten a lease, so this is also for a process that is about to be stopped for a while.
        """
        span_s = self.terms.lease_s if lease_s is None else check_seconds("lease_s", lease_s, zero=False)
        self._gateway.check_open()
        return self._gateway.store.extend(self._ticket, span_s)

    # The same, for loops that settle one message and claim the next in one step

    def conclude(self, verdict: Settlement, claim_next: Want | None = None) -> Settled:
        """Settle it, and claim the next one in the same step. One that was settled here before is left alone."""
        if verdict.outcome in _WORDS and self.type == QUESTION:
            raise IdentityRefused(
                "a question to a person is answered by a person: `postroom reply` with a person's token, "
                "the page, or `room.people.answer`"
            )
        if self.settled is not None:
            claimed = None if claim_next is None else self._gateway.claim(claim_next)
            return Settled(held=False, state=None, ids=[], claimed=claimed)
        settled = self._gateway.settle(
            self._ticket,
            verdict.outcome,
            detail=verdict.detail,
            delay_s=verdict.delay_s,
            puts=() if verdict.answer is None else (verdict.answer,),
            claim_next=claim_next,
        )
        self.settled = settled.held
        if settled.ids:
            self.answer_id = settled.ids[0]
        return settled

    def retry_verdict(
        self, reason: str | BaseException | None, delay_s: float | None = None, *, failed: bool = True
    ) -> Settlement:
        """Deliver it again, after the usual delay unless one is given.

        In a channel that lets others of an order key pass (`pass_failed`), one that failed is set aside instead.
        """
        if failed and self.order_key is not None and self._gateway.sets_failed_aside(self.channel):
            return Settlement("dead", "it failed" if reason is None else words("reason", reason))
        if delay_s is None:
            delay_s = backoff_s(self.delivery_count, self._gateway.clock.random())
        else:
            check_seconds("delay_s", delay_s)
        return Settlement("retry", None if reason is None else words("reason", reason), delay_s)

    def answer_verdict(
        self, payload: dict[str, Any], *, type: str | None = None, ttl_s: float | None = None, lane: str = "agent"
    ) -> Settlement:
        """End it with this answer; InvalidMessage when the answer is not valid."""
        chain_id, hop_count, trace = follow(self, self._gateway.config.max_hops)
        answer = Draft(
            from_agent=self._ticket.agent,
            payload=payload,
            to_agent=self.from_agent,
            channel=self.channel,
            type=f"{self.type}.response" if type is None else type,
            priority=self.priority,
            ttl_s=ttl_s,
            correlation_id=self.correlation_id or self.id,
            chain_id=chain_id,
            hop_count=hop_count,
            lane=lane,
            trace=trace,
            max_deliveries=self._gateway.config.max_deliveries,
            answer_to=self.id,
        )
        return Settlement("answered", answer=check(answer, self._gateway.config.max_payload_bytes))

    def give_back(self, error: BaseException | str) -> None:
        """Let others have it, because this receiver failed or left. Never raises: the end of the lease does the same.

        When the program was stopped (Ctrl-C, the end of a loop), the message is not at fault: it is back at once.
        """
        if self.settled is not None:
            return
        failed = isinstance(error, Exception)
        try:
            self.conclude(self.retry_verdict(error, None if failed else 0, failed=failed))
        except PostroomError as trouble:
            if isinstance(error, BaseException):
                error.add_note(f"Postroom could not give the message back at once: {trouble}")
        finally:
            self.let_go()

    def return_unseen(self, why: str = UNSEEN) -> None:
        """Let others have it, as if it had not been claimed. Never raises, like `give_back`."""
        unseen = self._gateway.unseen
        unseen.add(self._ticket)  # should that fail, the room that is closed says the same
        try:
            with suppress(PostroomError):
                self.conclude(Settlement("returned", why))
        finally:
            self.let_go()
            if self.settled is not None:
                unseen.discard(self._ticket)

    def let_go(self) -> None:
        """Nobody will settle it here any more: unless that was done, it ends with its lease, which is extended no more.

        A block, a loop or `serve` that is over says so where the room was too busy to record its end: the program may
        have the object for long after that.
        """
        held = self._gateway.leases.held
        if self._ticket in held:
            held[self._ticket] = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: BaseException | None, traceback: TracebackType | None) -> None:
        if error is not None:
            self.give_back(error)
        elif self.settled is None:
            try:
                counted = self.ack()
            except BaseException:
                self.let_go()
                raise
            if not counted and self.was_late():
                self.tell_late()

    def was_late(self) -> bool:
        """Whether a word that did not count came too late. It did not where the same claim was settled elsewhere."""
        try:
            found = self._gateway.store.get(self.id)
        except PostroomError:
            return True
        return found is None or found.token != self.token or found.exact_state not in _SAID

    def tell_late(self) -> None:
        """Its ack, for which nobody sees the result, came too late: warn of it, or raise it."""
        late = LateAck(self.id, self.delivery_count)
        if self.terms.late_raises:
            raise late
        level, frame = 1, sys._getframe()  # noqa: SLF001  the line of the program that had the message
        while frame.f_back is not None and frame.f_globals.get("__name__", "").startswith("postroom."):
            level, frame = level + 1, frame.f_back
        warnings.warn(late, stacklevel=level)


def follow(cause: Envelope | Message | None, max_hops: int) -> tuple[str | None, int, str | None]:
    """Chain id, hop count and trace of a message that another one caused. Raises TooManyHops."""
    if cause is None:
        return NO_CAUSE
    if not isinstance(cause, Envelope | Message):
        raise InvalidMessage("cause", f"must be a received message, not {type(cause).__name__}")
    chain_id, hop_count = cause.chain_id or cause.id, cause.hop_count + 1
    if hop_count > max_hops:
        raise TooManyHops(
            "hop_count",
            f"the chain of messages that began with {chain_id} would be {hop_count} hops long; "
            f"this room allows {max_hops} (max_hops)",
        )
    return chain_id, hop_count, cause.trace


def current_claim(message: MessageWithLedger) -> Ticket | None:
    """The ticket of the claim that still counts; None when nobody holds the message.

    Not by the state: an ended lease counts until somebody takes the message.
    """
    changes = [entry.event for entry in message.ledger if entry.event not in NOTES]
    if message.claimed_by is None or changes[-1:] not in (["claimed"], ["released"]):
        return None
    return Ticket(message.id, message.token, message.claimed_by)


def listed(values: Iterable[str], field: str = "channels", what: str = "names") -> tuple[str, ...]:
    """The channels, or other texts; InvalidMessage for a single text, which would be a list of its letters."""
    if isinstance(values, str):
        raise InvalidMessage(field, f"must be a list of {what}, such as [{values!r}]")
    return tuple(values)


def words(field: str, value: str | BaseException) -> str:
    """A reason as text that every store can keep. An exception becomes "TypeError: its message"."""
    if isinstance(value, BaseException):
        text = _exception_text(value)
    elif isinstance(value, str):
        text = value
    else:
        raise InvalidMessage(field, f"must be text, not {type(value).__name__}")
    text = text.encode("utf-8", "backslashreplace").decode()
    return text if len(text) <= MAX_REASON_CHARS else text[:MAX_REASON_CHARS] + "… (cut)"


def _exception_text(error: BaseException) -> str:
    try:
        said = str(error)
    except Exception:  # noqa: BLE001  a broken __str__ must not keep a failure from being recorded
        said = "(it cannot say what)"
    return f"{type(error).__name__}: {said}" if said else type(error).__name__


def check_seconds(field: str, value: float, *, zero: bool = True) -> float:
    """The span of time, or InvalidMessage that names the argument."""
    if type(value) in (int, float) and 0 < value <= MAX_SPAN_S:  # the usual
        return value
    faults: list[Fault] = []
    check_span(field, value, faults, zero=zero)
    raise_faults(faults)
    return value


def check_timeout(timeout_s: float | None) -> None:
    """Raise InvalidMessage for what is no time to wait; None is for ever."""
    if timeout_s is not None:
        check_seconds("timeout_s", timeout_s)


def check_names(**values: object) -> None:
    """Raise InvalidMessage for names of agents or channels that are not valid, by argument."""
    faults: list[Fault] = []
    for field, value in values.items():
        check_name(field, value, faults)
    raise_faults(faults)
