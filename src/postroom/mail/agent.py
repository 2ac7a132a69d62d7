"""An agent: a name in a room, and everything that can be done in that name."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import EllipsisType
from typing import Any, Final, TypedDict, Unpack, overload

from msgspec import structs

from postroom.core import untrusted
from postroom.core.config import AGENT_LEASE_S, GRACE_S, LEASE_S
from postroom.core.message import (
    DEFAULT_CHANNEL,
    DEFAULT_PRIORITY,
    DEFAULT_TYPE,
    GROUP_SIGN,
    Draft,
    Message,
    check_name,
)
from postroom.errors import Fault, InvalidMessage, ReceiveTimeout, UnknownMessage, raise_faults
from postroom.stores.contract import Delivery, Want

from . import answers, groups, limiting, presence, questions, receiving, serving
from .gateway import Gateway, Latch, Series, Steps
from .leases import Terms, hold_ns
from .received import (
    NO_CAUSE,
    Envelope,
    Received,
    check_names,
    check_seconds,
    check_timeout,
    current_claim,
    follow,
    listed,
    words,
)
from .waiting import Inbox

#: The most that a receiver keeps a message: seconds, None for no limit, or ... for what the room says.
MaxHold = float | EllipsisType | None
#: Recipients of `send`, more than one; not a union, which would be made anew at every send.
_SEVERAL: Final = (list, tuple)
LOOP_ENDED = "the loop ended before it was settled"


class SendOptions(TypedDict, total=False):
    """What `Agent.send` takes by name."""

    type: str
    channel: str
    priority: int
    ttl_s: float | None
    delay_s: float
    correlation_id: str | None
    idempotency_key: str | None
    order_key: str | None
    replaces: str | None
    debounce_s: float | None
    full_wait_s: float | None
    wait: str | None
    timeout_s: float | None
    cause: Envelope | Message | None
    trace: str | None
    _lane: str


class Agent:
    """One agent of a room. All methods may be called from several threads at once.

    Claims belong to this process and end with it. Those of a transient agent belong to the agent: they end by time
    alone (ten minutes), so that another process of the same agent can settle them.
    """

    def __init__(self, gateway: Gateway, name: str, *, transient: bool = False) -> None:
        check_names(name=name)
        if name.startswith(GROUP_SIGN):
            raise InvalidMessage("name", f"must not begin with {GROUP_SIGN}, which begins the address of a group")
        self.name = name  # its name in the room
        self.transient = transient  # whether it was only seen, and its claims outlive the program
        self._gateway = gateway
        self._waited = False  # whether the last `receive` found nothing at first
        self._usual_want = Want(
            agent=name, lease_s=AGENT_LEASE_S if transient else LEASE_S, owner=None if transient else gateway.process
        )
        self._usual = (self._usual_want, self._terms(None, ..., keeps=not transient))

    def __repr__(self) -> str:
        return f"<Agent {self.name!r}>"

    # Sending

    @overload
    def send(self, to: str | None, payload: dict[str, Any], **more: Unpack[SendOptions]) -> str: ...
    @overload
    def send(
        self, to: list[str] | tuple[str, ...], payload: dict[str, Any], **more: Unpack[SendOptions]
    ) -> list[str]: ...
    def send(
        self,
        to: str | list[str] | tuple[str, ...] | None,
        payload: dict[str, Any],
        *,
        type: str = DEFAULT_TYPE,
        channel: str = DEFAULT_CHANNEL,
        priority: int = DEFAULT_PRIORITY,
        ttl_s: float | None = None,
        delay_s: float = 0,
        correlation_id: str | None = None,
        idempotency_key: str | None = None,
        order_key: str | None = None,
        replaces: str | None = None,
        debounce_s: float | None = None,
        full_wait_s: float | None = 0,
        wait: str | None = None,
        timeout_s: float | None = None,
        cause: Envelope | Message | None = None,
        trace: str | None = None,
        _lane: str = "agent",
    ) -> str | list[str]:
        """Send a message to one agent; to None, to the first agent to claim it in the channel. Returns its id.

        To a list of names, each gets a message of its own, and a list of ids is returned. All are stored in one step or
        none; a name that is given twice gets one. "@reviewers" in a list is a group: its members at this moment, but not
        the sender itself (see `Groups`).

        When this returns, the message is stored, even if this process dies now. It may not have been seen yet.
        With `wait="acked"` the receiver has acked (or answered) it, with `wait="answered"` answered it. Raises NotAcked,
        with the id, when that did not happen within `timeout_s` (None: no limit) or can no longer happen; the message
        stays stored then.
        Messages of one `order_key` in one mailbox (recipient and channel) are delivered one at a time and in order.
        Different keys run side by side. A message that fails blocks its key while it is retried.
        `replaces` is the id of an earlier message of this agent, which is withdrawn in the same step if no receiver has
        it; this one is stored in any case. With `debounce_s` every waiting message of this agent and `order_key` in that
        mailbox is replaced, and this one is delivered after that long unless another replaces it.
        Into a mailbox that is full (`room.limit`) it raises MailboxFull; with `full_wait_s` it first waits that long for
        space (None: for ever).
        `cause` is the message that led to this one: hops are counted along such chains, and TooManyHops
        ends a loop of agents that keep each other busy. Raises InvalidMessage, RateLimited: nothing was stored.
        """
        several = None
        if to.__class__ is not str and isinstance(to, _SEVERAL):
            several, to = to, None
        if wait is not None:
            questions.check_wait(wait)
        if timeout_s is not None:
            check_timeout(timeout_s)
        config = self._gateway.config
        chain_id, hop_count, inherited = NO_CAUSE if cause is None else follow(cause, config.max_hops)
        draft = Draft(
            self.name,
            payload,
            to_agent=to,
            channel=channel,
            type=type,
            priority=priority,
            ttl_s=ttl_s,
            delay_s=delay_s,
            correlation_id=correlation_id,
            idempotency_key=idempotency_key,
            chain_id=chain_id,
            hop_count=hop_count,
            lane=_lane,
            trace=inherited if trace is None else trace,
            max_deliveries=config.max_deliveries,
        )
        if (
            order_key is not None or replaces is not None or debounce_s is not None
        ):  # what most do not have costs nothing
            _order(draft, order_key, replaces, debounce_s)
        if several is not None:
            return self._send_each(several, draft, wait, full_wait_s)
        if wait is not None:
            return self._gateway.finish(questions.sending(self._gateway, draft, wait, timeout_s, full_wait_s))
        if full_wait_s != 0:
            return self._gateway.finish(limiting.sending(self._gateway, draft, full_wait_s))
        return self._gateway.send(draft)

    def _send_each(self, names: Sequence[str], draft: Draft, wait: str | None, full_wait_s: float | None) -> list[str]:
        if wait is not None:
            raise InvalidMessage("wait", "waits for one recipient; `ask_many` waits for the answers of several")
        if draft.replaces is not None:
            raise InvalidMessage("replaces", "replaces one message, so it needs one recipient")
        if full_wait_s != 0:
            return self._gateway.finish(self._sending_each(names, draft, full_wait_s))
        return self._gateway.work(lambda: self._gateway.put([*self._drafts_to(names, "to", draft).values()]))

    def _sending_each(self, names: Sequence[str], draft: Draft, full_wait_s: float | None) -> Steps[list[str]]:
        drafts = [*self._drafts_to(names, "to", draft).values()]
        return (yield from limiting.putting(self._gateway, drafts, full_wait_s))

    def send_many(self, messages: Iterable[Mapping[str, Any]], *, _lane: str = "agent") -> list[str]:
        """Send several messages, all or none, in one step.

        Each is a dict of `send`'s arguments: to, payload, type, …
        """
        drafts: list[Draft] = []
        faults: list[Fault] = []
        given: Iterable[Any] = messages
        most = self._gateway.config.max_deliveries
        for index, message in enumerate(given):
            if message.__class__ is not dict and not isinstance(message, Mapping):
                faults.append(Fault(f"messages[{index}]", f"must be a dict, not {message.__class__.__name__}"))
            elif _PLAIN_FIELDS.issuperset(message):  # most: a third of what the general way costs
                to, channel = message.get("to"), message.get("channel", DEFAULT_CHANNEL)
                drafts.append(Draft(self.name, message.get("payload"), to, channel, lane=_lane, max_deliveries=most))
            elif _BATCH_FIELDS.issuperset(message):
                drafts.append(self._draft(**message, lane=_lane))
            else:
                unknown = [name for name in message if name not in _BATCH_FIELDS]
                faults += [Fault(f"messages[{index}].{name}", "is not an argument of send_many") for name in unknown]
        raise_faults(faults)
        return self._gateway.put(drafts) if drafts else []

    def withdraw(self, id: str, reason: str | None = None) -> bool:
        """Take back a message of this agent that no receiver has. Returns whether that was done.

        False, and nothing changed, when a receiver has it or it has ended. A question that is withdrawn ends for its
        asker with `Withdrawn`. UnknownMessage when no such message is kept; IdentityRefused when it is another agent's.
        """
        return self._gateway.withdraw(id, self.name, None if reason is None else words("reason", reason))

    def publish(
        self,
        channel: str,
        payload: dict[str, Any],
        *,
        type: str = DEFAULT_TYPE,
        priority: int = DEFAULT_PRIORITY,
        ttl_s: float | None = None,
        delay_s: float = 0,
        correlation_id: str | None = None,
        cause: Envelope | Message | None = None,
        trace: str | None = None,
        _lane: str = "agent",
    ) -> list[str]:
        """Send a copy to every subscriber of the channel. Returns the ids, one for each; [] when there are no subscribers."""
        draft = self._draft(
            payload,
            type=type,
            channel=channel,
            priority=priority,
            ttl_s=ttl_s,
            delay_s=delay_s,
            correlation_id=correlation_id,
            cause=cause,
            trace=trace,
            lane=_lane,
        )
        draft.publish = True
        return self._gateway.put([draft])

    def subscribe(self, channel: str) -> None:
        """Get a copy of everything that is published in the channel from now on. Idempotent."""
        check_names(channel=channel)
        self._gateway.open_store.subscribe(channel, self.name)

    def unsubscribe(self, channel: str) -> bool:
        """Stop getting copies; those already received stay. False when it was not subscribed."""
        check_names(channel=channel)
        return self._gateway.open_store.unsubscribe(channel, self.name)

    # Receiving

    def receive(
        self,
        timeout_s: float | None = None,
        *,
        channels: Iterable[str] | None = None,
        lease_s: float | None = None,
        max_hold_s: MaxHold = ...,
        late: str = "warn",
    ) -> Received:
        """Claim the next message, waiting for one; ReceiveTimeout when none came in `timeout_s` (None: wait forever).

        Without channels: everything addressed to this agent, and the copies of its subscriptions. With channels: what
        is in those, addressed to it or to any agent.

        It belongs to this receiver for as long as the process runs and has the object: its lease of 30 s is extended
        again and again. `max_hold_s` is the most that it can be held (None: no limit; by default the room's setting, an
        hour). A process that is stopped or frozen loses it at the end of the lease. With `lease_s` alone the lease is
        fixed: it ends after that time, unless `extend` is called. With both, it is that lease which is extended.
        `late` "raise" makes an error of the warning (`LateAck`) that a block gives when its ack came too late.
        """
        want, terms = self._asked(channels, lease_s, max_hold_s, late)
        check_timeout(timeout_s)
        gateway = self._gateway
        if gateway.claims_in_callers_thread and not (self._waited or gateway.closing or timeout_s == 0):
            # mail that is there needs no deadline, no waiter and no generator: a fifteenth of receive and ack
            for delivery in gateway.claim(want).deliveries:
                return Received(gateway, delivery, terms)
            self._waited = True
        return gateway.finish(self._receiving(want, terms, timeout_s))

    def _receiving(self, want: Want, terms: Terms, timeout_s: float | None) -> Steps[Received]:
        with Inbox(self._gateway, want, arm_first=self._waited) as inbox:
            delivery = yield from inbox.steps(timeout_s)
            self._waited = inbox.waited
        if delivery is None:
            where = f" in {', '.join(want.channels)}" if want.channels else ""
            raise ReceiveTimeout(f"no message for {self.name}{where} within {timeout_s:g} s")
        return Received(self._gateway, delivery, terms)

    def poll(
        self,
        *,
        channels: Iterable[str] | None = None,
        lease_s: float | None = None,
        max_hold_s: MaxHold = ...,
        late: str = "warn",
    ) -> Received | None:
        """The same without waiting: a message, or None when there is none."""
        want, terms = self._asked(channels, lease_s, max_hold_s, late)
        for delivery in self._gateway.claim(want).deliveries:
            return Received(self._gateway, delivery, terms)
        return None

    def listen(
        self,
        *,
        channels: Iterable[str] | None = None,
        lease_s: float | None = None,
        max_hold_s: MaxHold = ...,
        timeout_s: float | None = None,
        prefetch: int = 1,
        late: str = "warn",
        _stop: Latch | None = None,
    ) -> Iterator[Received]:
        """One message after another, without end; with `timeout_s`, until none came for that long.

        When the loop's body comes round without having settled its message, that is acked and the next one claimed in
        one step. A loop that ends in the middle (`break`, or an error in its body) has not said that it was done: the
        message is delivered again. Call `m.ack()` before a `break` that follows good work.
        Messages are held as with `receive`; `max_hold_s` counts for each round of the loop. An ack that came too late is
        a `LateAck`: a warning, or with `late="raise"` an error that ends the loop.
        `prefetch` claims up to that many in one step, for short work in bulk. They are this loop's from then on: no
        other receiver gets them while it lives. One whose lease ended before its turn came, because it is fixed (`lease_s`)
        or the process stood still, is extended, or skipped when another receiver has it. Those that the loop never
        reached go back as if never claimed.
        """
        self._gateway.check_open()
        want, terms = self._asked(channels, lease_s, max_hold_s, late)
        check_timeout(timeout_s)
        if type(prefetch) is not int or not 1 <= prefetch <= receiving.MAX_PREFETCH:
            limits = f"from 1 to {receiving.MAX_PREFETCH}"
            raise InvalidMessage("prefetch", f"must be a whole number {limits}, not {prefetch!r}")
        ahead = receiving.Prefetcher(self._gateway, want, terms, prefetch)
        return self._gateway.each(self._listening(want, timeout_s, ahead, _stop))

    def _listening(
        self, want: Want, timeout_s: float | None, ahead: receiving.Prefetcher, stop: Latch | None
    ) -> Series[Received]:
        with ahead, Inbox(self._gateway, want) as inbox:
            delivery, claimed_ns = (yield from inbox.steps(timeout_s, stop)), 0
            while delivery is not None:
                message = Received(self._gateway, delivery, ahead.terms, claimed_ns=claimed_ns)
                try:
                    yield message
                    delivery, claimed_ns = ahead.after(message), ahead.claimed_ns
                except GeneratorExit:
                    message.give_back(LOOP_ENDED)
                    raise
                except BaseException:
                    message.let_go()
                    raise
                if delivery is None:
                    delivery, claimed_ns = (yield from inbox.steps(timeout_s, stop, arm_first=ahead.looked)), 0

    def serve(
        self,
        handlers: Mapping[str, serving.Handler],
        concurrency: int = 4,
        *,
        channels: Iterable[str] | None = None,
        lease_s: float | None = None,
        max_hold_s: MaxHold = ...,
        stop: threading.Event | None = None,
        grace_s: float = GRACE_S,
    ) -> None:
        """Answer messages with functions, by their type; "*" is for every other type.

        A function gets the message and returns the payload of the answer, or None, which acks it. If it raises, the
        message is delivered again later, and set aside with the error after the last delivery. A type without a
        function is refused. Leases are extended while a function runs, for `max_hold_s` at most (see `receive`).
        Runs `concurrency` messages at a time, in threads. Returns when `stop` is set, the room is closed or Ctrl-C is
        pressed, after the running functions have finished. On SIGTERM (in the main thread of a program that has no
        handler for it) they have `grace_s` to finish; what still runs then goes back without counting the delivery.
        A second SIGTERM ends the process at once.
        """
        want, terms = self._serving(channels, lease_s, max_hold_s)
        serving.Serving(self._gateway, want, terms, handlers, concurrency, stop, grace_s).run()

    def claimed(self, id: str) -> Received:
        """A message that this agent holds already, perhaps claimed by an earlier process of the same agent.

        Raises UnknownMessage when it is not kept here, InvalidMessage naming its holder when it is another's.
        """
        message = self._gateway.open_store.get(id)
        if message is None:
            raise UnknownMessage(f"this room has no message {id}")
        ticket = current_claim(message)
        if ticket is None:
            raise InvalidMessage("id", f"no agent holds message {id}: it is {message.state}")
        if ticket.agent != self.name:
            raise InvalidMessage("id", f"message {id} is held by {untrusted.quoted(ticket.agent)}, not by {self.name}")
        known = self._gateway.leases.held.get(ticket)  # None: a fixed lease, or not this room's to keep or give back
        holder = None if known is None else known()
        terms = self._terms(None, ..., keeps=known is not None and holder is None)
        if terms.hold_ns:  # its object was dropped: nobody knows how much is left of its lease
            self._gateway.store.heartbeat([ticket], terms.lease_s)
        found = Received(self._gateway, Delivery(message, ticket), terms)
        found.holder = holder
        return found

    # Asking

    def ask(
        self,
        to: str | None,
        payload: dict[str, Any],
        timeout_s: float | None = 30,
        *,
        type: str = DEFAULT_TYPE,
        channel: str = DEFAULT_CHANNEL,
        priority: int = DEFAULT_PRIORITY,
        ttl_s: float | None = None,
        delay_s: float = 0,
        correlation_id: str | None = None,
        idempotency_key: str | None = None,
        cause: Envelope | Message | None = None,
        trace: str | None = None,
        _lane: str = "agent",
        _settle: bool = True,
    ) -> Received:
        """Send a question and return its answer, which is acked already. `receive` does not see that answer.

        Raises Refused (with the reason), NotAnswered (ended without an answer: acked, expired, dead), Withdrawn (taken
        back or replaced), PeerGone (the peer ran while we waited, and died or stopped), AskTimeout. In all these cases the question stays as it is, and
        an answer that comes later is ordinary mail. `timeout_s` None waits as long as the peer runs.
        """
        check_timeout(timeout_s)
        draft = self._draft(
            payload,
            to,
            type=type,
            channel=channel,
            priority=priority,
            ttl_s=ttl_s,
            delay_s=delay_s,
            correlation_id=correlation_id,
            idempotency_key=idempotency_key,
            cause=cause,
            trace=trace,
            lane=_lane,
        )
        draft.waiter = self._gateway.process
        return self._gateway.finish(questions.Question(self._gateway, draft, timeout_s, settle=_settle))

    def ask_many(
        self,
        names: Iterable[str],
        payload: dict[str, Any],
        enough: str | int = "all",
        timeout_s: float | None = 30,
        *,
        type: str = DEFAULT_TYPE,
        channel: str = DEFAULT_CHANNEL,
        priority: int = DEFAULT_PRIORITY,
        ttl_s: float | None = None,
        correlation_id: str | None = None,
        idempotency_key: str | None = None,
        cause: Envelope | Message | None = None,
        trace: str | None = None,
        _lane: str = "agent",
        _settle: bool = True,
    ) -> answers.Answers:
        """Ask several agents at once. Iterating over the result gives each answer as it comes.

        When this returns, all questions are stored, in one step. The waiting ends when `enough` have answered ("all",
        "any" or a number), when nobody is left to wait for, or after `timeout_s` (None: as long as the
        peers run). The result has `answers` and `missing`, both by name, and `enough`; see `Answers`. An agent that
        refuses, dies or is late is in `missing`, with the error that `ask` would raise: nothing is raised for it.
        Answers that had come together with the last one needed are given too. Those that come later are ordinary mail.
        Raises InvalidMessage, RateLimited: nothing was stored.
        """
        check_timeout(timeout_s)
        draft = self._draft(
            payload,
            type=type,
            channel=channel,
            priority=priority,
            ttl_s=ttl_s,
            correlation_id=correlation_id,
            idempotency_key=idempotency_key,
            cause=cause,
            trace=trace,
            lane=_lane,
        )
        draft.waiter = self._gateway.process
        drafts = self._drafts_to(listed(names, "names"), "names", draft)
        needed = answers.needed_of(enough, len(drafts))
        asked = answers.Questions(self._gateway, drafts, needed, timeout_s, settle=_settle)
        return answers.Answers(self._gateway, asked)

    # Being here

    def heartbeat(self, status: str = "active", current_task: str | None = None) -> None:
        """Report this agent's status and current task. While it is open, its heartbeat is also sent automatically."""
        check_names(status=status, **({} if current_task is None else {"current_task": current_task}))
        self._gateway.check_open()
        presence.beat(self._gateway, self.name, status, current_task)

    # Parts of the above

    def _draft(
        self,
        payload: Any = None,
        to: str | None = None,
        *,
        type: str = DEFAULT_TYPE,
        channel: str = DEFAULT_CHANNEL,
        priority: int = DEFAULT_PRIORITY,
        ttl_s: float | None = None,
        delay_s: float = 0,
        correlation_id: str | None = None,
        idempotency_key: str | None = None,
        order_key: str | None = None,
        replaces: str | None = None,
        debounce_s: float | None = None,
        cause: Envelope | Message | None = None,
        trace: str | None = None,
        lane: str,
    ) -> Draft:
        """What this agent says, as a draft; `send` makes its own, so that it is one call less."""
        config = self._gateway.config
        chain_id, hop_count, inherited = NO_CAUSE if cause is None else follow(cause, config.max_hops)
        draft = Draft(
            self.name,
            payload,
            to_agent=to,
            channel=channel,
            type=type,
            priority=priority,
            ttl_s=ttl_s,
            delay_s=delay_s,
            correlation_id=correlation_id,
            idempotency_key=idempotency_key,
            chain_id=chain_id,
            hop_count=hop_count,
            lane=lane,
            trace=inherited if trace is None else trace,
            max_deliveries=config.max_deliveries,
        )
        if order_key is not None or replaces is not None or debounce_s is not None:
            _order(draft, order_key, replaces, debounce_s)
        return draft

    def _drafts_to(self, names: Sequence[str], field: str, draft: Draft) -> dict[str, Draft]:
        """The draft for each recipient, by name: groups are replaced by their members, and a name given twice counts once.

        A key is that of each by itself: "deploy-7/bob". So a repeat is sent once to each, also when there are others.
        """
        check_names(**{f"{field}[{place}]": name for place, name in enumerate(names)})
        found = groups.Groups(self._gateway).expand(names, self.name)
        if not found:
            raise InvalidMessage(field, "must name at least one agent")
        key = draft.idempotency_key
        keys = {name: None if key is None else f"{key}/{name}" for name in found}
        return {name: structs.replace(draft, to_agent=name, idempotency_key=keys[name]) for name in found}

    def _want(self, channels: Iterable[str] | None, lease_s: float | None) -> Want:
        self._gateway.check_open()
        usual = self._usual_want
        if channels is None and lease_s is None:
            return usual
        return Want(
            agent=self.name,
            lease_s=self._lease_s(lease_s),
            channels=None if channels is None else _checked_channels(channels),
            owner=usual.owner,
        )

    def _asked(
        self, channels: Iterable[str] | None, lease_s: float | None, max_hold_s: MaxHold, late: str
    ) -> tuple[Want, Terms]:
        """What is to be claimed, and how it is held.

        Heartbeats extend the usual lease, and a given one only where it is said how long at most.
        """
        if channels is None and lease_s is None and max_hold_s is ... and late == "warn":
            return self._usual
        want = self._want(channels, lease_s)
        if late not in ("warn", "raise"):
            raise InvalidMessage("late", f"must be warn or raise, not {late!r}")
        keeps = not self.transient and (lease_s is None or max_hold_s is not ...)
        return want, self._terms(lease_s, max_hold_s, keeps=keeps, late_raises=late == "raise")

    def _serving(
        self, channels: Iterable[str] | None, lease_s: float | None, max_hold_s: MaxHold
    ) -> tuple[Want, Terms]:
        """What `serve` takes, and how it holds that: also a given lease is extended."""
        return self._want(channels, lease_s), self._terms(lease_s, max_hold_s, keeps=True)

    def _terms(self, lease_s: float | None, max_hold_s: MaxHold, *, keeps: bool, late_raises: bool = False) -> Terms:
        if max_hold_s is ...:
            max_hold_s = self._gateway.config.max_hold_s
        elif max_hold_s is not None:
            check_seconds("max_hold_s", max_hold_s, zero=False)
        return Terms(self._lease_s(lease_s), hold_ns(max_hold_s) if keeps else 0, late_raises=late_raises)

    def _lease_s(self, lease_s: float | None) -> float:
        return self._usual_want.lease_s if lease_s is None else check_seconds("lease_s", lease_s, zero=False)


#: What a message of `send_many` may say: everything that `send` takes but the waiting.
_PLAIN_FIELDS = frozenset({"to", "payload", "channel"})
_BATCH_FIELDS = frozenset(Agent.send.__annotations__) - {"return", "wait", "timeout_s", "full_wait_s", "_lane"}


def _order(draft: Draft, order_key: str | None, replaces: str | None, debounce_s: float | None) -> None:
    """Give a draft its place among the others of its sender."""
    draft.order_key, draft.replaces = order_key, replaces
    if debounce_s is not None:
        draft.debounce, draft.delay_s = True, _debounced(debounce_s, draft.delay_s)


def _debounced(debounce_s: float, delay_s: float) -> float:
    """The delay of a debounced message."""
    if delay_s:
        raise InvalidMessage("debounce_s", "cannot be combined with delay_s: it is the delay")
    return check_seconds("debounce_s", debounce_s, zero=False)


def _checked_channels(channels: Iterable[str]) -> tuple[str, ...]:
    named = listed(channels)
    faults: list[Fault] = [] if named else [Fault("channels", "must name at least one channel")]
    for channel in named:
        check_name("channels", channel, faults)
    raise_faults(faults)
    return named
