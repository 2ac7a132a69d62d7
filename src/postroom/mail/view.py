"""Looking at a room: its messages, receipts, threads and figures. Nothing here changes anything."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import Any, Final

from postroom.core import search_query
from postroom.core.clock import Clock, iso
from postroom.core.message import Message, MessageWithLedger
from postroom.core.moments import Moment, moment_ms
from postroom.core.states import OPEN, State, states_named
from postroom.errors import InvalidMessage, UnknownMessage
from postroom.stores.contract import FEED, Change, MailboxFigures, Query, Stats

from . import limiting, presence, reasons, receipts, searching, threads
from .gateway import Deadline, Gateway, Pause, Series
from .presence import AgentInfo
from .received import check_names, check_timeout, listed

#: Messages are read from the store in pages of this size.
PAGE: Final = 500


class RoomView:
    """What can be seen of an open room. Every method reads, and none of them changes anything."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway

    def receipt(self, id: str) -> receipts.Receipt:
        """What became of a message so far: its state and every step. UnknownMessage when it is not kept here."""
        message = self.get(id)
        known = message.to_agent is None or presence.is_known(self._gateway, message.to_agent)
        return receipts.receipt_of(message, recipient_known=known)

    def why(self, id: str | MessageWithLedger) -> reasons.Reason:
        """Why a message is where it is, and until when: not due, held, no receiver running, … UnknownMessage when not kept."""
        return reasons.why(self._gateway, self.get(id) if isinstance(id, str) else id)

    def get(self, id: str) -> MessageWithLedger:
        """One message with its ledger. UnknownMessage when it is not kept here."""
        message = self._gateway.open_store.get(id)
        if message is None:
            raise UnknownMessage(f"this room has no message {id}")
        return message

    def thread(self, id: str) -> list[Message]:
        """The whole conversation that a message belongs to, in the order in which it was sent; found from any of its messages.

        To it belong the message that began it, every answer, whatever was sent because of one of them (`cause`), and
        messages with the same correlation id. A message without such links is a thread of one. UnknownMessage when
        that message is not kept here; others that are no longer kept are left out.
        """
        return threads.thread_of(self._gateway.open_store, id)

    def peek(
        self,
        channels: Iterable[str] | None = None,
        agent: str | None = None,
        state: str | None = "pending",
        limit: int = 10,
        *,
        type: str | None = None,
        from_agent: str | None = None,
        correlation_id: str | None = None,
        order: str | None = None,
        to: str | None = None,
        answer_to: str | None = None,
        since: Moment | None = None,
        until: Moment | None = None,
        text: str | None = None,
    ) -> list[Message]:
        """Messages, without taking any: what `agent` could receive, or what is in the channels, for any agent.

        `state` is a word of receipts (stored, claimed, …), of the table (pending, processing, done, failed), or None for
        all. `order`: "claim" (as receivers get them: the default for what is pending), "oldest" or "newest".
        `since` and `until` are times (ISO 8601 text, datetimes, milliseconds) or spans ("2h"). `text` keeps messages
        whose payload has it, in large or small letters; all messages that fit the rest are read for it.
        """
        if order not in (None, "claim", "oldest", "newest"):
            raise InvalidMessage("order", f"must be claim, oldest or newest, not {order!r}")
        query = self._query(
            channels, agent, state, to, since, until,
            type=type, from_agent=from_agent, correlation_id=correlation_id, answer_to=answer_to,
            order=order or ("claim" if state == "pending" else "newest"), limit=checked_limit(limit),
        )  # fmt: skip
        store = self._gateway.open_store
        if text is None:
            return store.find(query).messages
        return list(islice(searching.containing(store, query, text), limit))

    def count(
        self,
        channels: Iterable[str] | None = None,
        agent: str | None = None,
        state: str | None = "pending",
        *,
        type: str | None = None,
        from_agent: str | None = None,
        correlation_id: str | None = None,
        to: str | None = None,
        answer_to: str | None = None,
        since: Moment | None = None,
        until: Moment | None = None,
        text: str | None = None,
    ) -> int:
        """How many messages there are that `peek` would show if it had no limit."""
        query = self._query(
            channels, agent, state, to, since, until,
            type=type, from_agent=from_agent, correlation_id=correlation_id, answer_to=answer_to,
        )  # fmt: skip
        store = self._gateway.open_store
        return store.count(query) if text is None else sum(1 for _ in searching.containing(store, query, text))

    def _query(
        self,
        channels: Iterable[str] | None,
        agent: str | None,
        state: str | None,
        to: str | None,
        since: Moment | None,
        until: Moment | None,
        **more: Any,
    ) -> Query:
        return Query(
            states=_states_in_mail(state, agent),
            channels=None if channels is None else listed(channels),
            visible_to=agent,
            to_agent=to,
            sent_after_ms=None if since is None else moment_ms(self._gateway.clock, "since", since),
            sent_before_ms=None if until is None else moment_ms(self._gateway.clock, "until", until),
            **more,
        )

    def search(
        self,
        text: str,
        limit: int = 20,
        *,
        agent: str | None = None,
        told: Callable[[int, int], object] | None = None,
    ) -> searching.Hits:
        """Full-text search, the newest hits first: `room.search("build failed from:ci after:2d")`.

        Words, in any order, large and small letters alike; "a phrase"; -without; begin*; and the fields `from:`, `to:`,
        `in:` (a channel), `type:`, `state:`, `before:` and `after:` (a time, or a span such as 2d). Words are looked for in
        the texts and numbers of payloads. `agent` keeps messages that this agent sent, gets or claimed last.

        Everything that was stored before the call is searched. In SQLite the first search makes an index, for which
        `told(done, total)` is called now and then; it lasts some seconds for a million messages. In other stores the latest
        10,000 messages are read, and the result's `note` says so when there are more. Raises InvalidMessage for a query
        that cannot be read.
        """
        if agent is not None:
            check_names(agent=agent)
        wanted = search_query.parse_query(text)
        query = search_of(wanted, self._gateway.clock, limit=checked_limit(limit), concerns=agent)
        return searching.with_terms(self._gateway.open_store, query, wanted.terms, told)

    def events(self, after: int = 0, limit: int = 1000) -> list[Change]:
        """The feed: every change above the number `after`, oldest first. Several changes of one message may be one."""
        return self._gateway.open_store.events(after, checked_limit(limit))

    def cursor(self) -> int:
        """The feed's number at this moment: `events(after=room.cursor())` is what comes from now on."""
        return self._gateway.open_store.number_at()

    def watch(self, after: int | None = None, timeout_s: float | None = None) -> Iterator[Change]:
        """Follow the feed, woken by every change: from the number `after`, or from now on.

        Never ends; with `timeout_s`, ends after that long without an event.
        """
        check_timeout(timeout_s)
        return self._gateway.each(self._watching(self.cursor() if after is None else after, timeout_s))

    def _watching(self, after: int, timeout_s: float | None) -> Series[Change]:
        with self._gateway.listen([FEED]) as waiter:
            while True:
                deadline = Deadline(self._gateway.clock, timeout_s)
                while not (changes := self.events(after)):
                    left_s = deadline.left_s()
                    if left_s == 0:
                        return
                    yield Pause(waiter, left_s)
                for change in changes:
                    yield change
                    after = change.number

    def stats(self) -> Stats:
        """Figures of this moment."""
        return self._gateway.open_store.stats()

    def mailboxes(self) -> list[MailboxFigures]:
        """The waiting mail, by recipient and channel."""
        return self.stats().mailboxes

    def agents(self) -> list[AgentInfo]:
        """All agents that were ever here, whether they run, and what waits for them."""
        self._gateway.check_open()
        return presence.agents(self._gateway)

    def waits(self) -> list[receipts.Wait]:
        """The askers that wait right now, and for whose answer; the longest wait first."""
        waiting = self._gateway.open_store.find_all(Query(states=OPEN, waiting=True, limit=PAGE))
        return [
            receipts.Wait(message.from_agent, message.to_agent, message.id, iso(message.timestamp_ms))
            for message in waiting
            if message.waiter is not None and self._gateway.store.process_alive(message.waiter) is not False
        ]

    def limits(self) -> limiting.RoomLimits:
        """The room's limits and pauses, with how many messages are claimed in each limited channel at this moment."""
        return limiting.look(self._gateway.open_store)

    def dead_letters(self, limit: int = 100) -> list[receipts.DeadLetter]:
        """Messages that were set aside, the oldest first, each with every attempt to deliver it."""
        dead = self._gateway.open_store.find(Query(states=frozenset({State.DEAD}), limit=checked_limit(limit))).messages
        kept = (self._gateway.store.get(message.id) for message in dead)
        return [
            receipts.dead_letter_of(message)
            for message in kept
            if message is not None and message.exact_state is State.DEAD
        ]


def search_of(wanted: search_query.SearchQuery, clock: Clock, **more: Any) -> Query:
    """What the fields of a search mean, as a query; `more` are other parts of it. InvalidMessage for a wrong value."""
    fields = wanted.fields
    for name in fields.keys() & {"from", "to", "in", "type"}:
        check_names(**{name: fields[name]})
    before, after = fields.get("before"), fields.get("after")
    return Query(
        from_agent=fields.get("from"),
        to_agent=fields.get("to"),
        channels=(fields["in"],) if "in" in fields else None,
        type=fields.get("type"),
        states=states_of(fields.get("state")),
        sent_before_ms=None if before is None else moment_ms(clock, "before", before),
        sent_after_ms=None if after is None else moment_ms(clock, "after", after),
        order="newest",
        **more,
    )


def states_of(state: str | None) -> frozenset[State] | None:
    """The states that a word of receipts or of the table names; None for all. InvalidMessage for another word."""
    if state is None:
        return None
    try:
        return states_named(state)
    except ValueError as error:
        raise InvalidMessage("state", str(error)) from None


def _states_in_mail(state: str | None, agent: str | None) -> frozenset[State] | None:
    """The states; of an agent's mail, an answer that is held for an asker is not in it."""
    states = states_of(state)
    return states if agent is None else (states or frozenset(State)) - {State.AWAITED}


def checked_limit(limit: int) -> int:
    """The limit, or InvalidMessage."""
    if type(limit) is not int or limit < 1:
        raise InvalidMessage("limit", f"must be a whole number of 1 or more, not {limit!r}")
    return limit
