"""A room: where agents meet, and where everything they sent can be looked at; and `open_room`, which finds or makes one."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import Any, Final, Self, TypeVar

from postroom.board import board as boards
from postroom.board import reservations as reserved_files
from postroom.core.clock import SYSTEM, Clock, iso
from postroom.core.config import (
    FOLDER,
    MAKING_MARK,
    URL_VARIABLE,
    Config,
    RoomUrl,
    address_of,
    is_new,
    make_config,
    parse_url,
    place_of,
    room_folder,
    search_places,
)
from postroom.core.events import Hooks
from postroom.core.message import DEFAULT_CHANNEL, DEFAULT_PRIORITY, Message, MessageWithLedger
from postroom.core.moments import Moment, is_cursor, moment_ms
from postroom.core.states import FINISHED, OPEN, State, states_named
from postroom.core.system.files import make_private_folder
from postroom.mail.agent import Agent
from postroom.mail.gateway import Deadline, Gateway, Pause, Series
from postroom.mail.housekeeping import Upkeep
from postroom.mail.moved import check_not_moved
from postroom.mail.presence import AgentInfo
from postroom.mail.received import check_names, check_timeout, listed
from postroom.mail.redacting import REDACTION_CELL
from postroom.mail.ticker import Ticker
from postroom.sessions import session as sessions
from postroom.stores.contract import FEED, Change, MailboxFigures, Query, Stats, Store

from .core import search_query, trust
from .errors import (
    IdentityRefused,
    InvalidMessage,
    RoomClosed,
    RoomError,
    RoomMoved,
    RoomNotAllowed,
    RoomNotFound,
    UnknownMessage,
)
from .mail import (
    attachments,
    presence,
    reasons,
    receipts,
    redaction_rules,
    replaying,
    retaining,
    searching,
    threads,
    tokens,
)  # fmt: skip
from .mail import groups as agent_groups
from .mail import schedule as timetable
from .stores import open_store

T = TypeVar("T")

#: Messages are read from the store in pages of this size.
PAGE: Final = 500


class Room:
    """An open room. Shared by all threads of its process; another process opens it for itself."""

    def __init__(self, gateway: Gateway, url: RoomUrl) -> None:
        self.url = url  # its address; as text it is shown without a password
        #: The folder that the room lives in; None when it lives elsewhere.
        self.folder: Path | None = room_folder(url)
        self._gateway = gateway
        self._upkeep = Upkeep(self._gateway, self.folder)
        self._ticker = Ticker(self._gateway)
        self._lock = threading.RLock()  # a signal's handler may come in the middle of what it guards
        self._agents: dict[tuple[str, bool], Agent] = {}
        self._parts: dict[Callable[[Gateway], Any], Any] = {}
        self._ticker.look()

    @property
    def store(self) -> Store:
        """The store of the messages, for programs that need more than a room offers; hooks and limits do not see it."""
        return self._gateway.store

    @property
    def gateway(self) -> Gateway:
        """The checked way to the store, for programs that build on rooms: it checks, counts and tells the hooks."""
        return self._gateway

    @property
    def config(self) -> Config:
        """The settings that it was opened with."""
        return self._gateway.config

    @property
    def clock(self) -> Clock:
        """Where its time comes from."""
        return self._gateway.clock

    @property
    def hooks(self) -> Hooks:
        """Listeners to every step: `room.hooks.on("after_send", fn)`."""
        return self._gateway.hooks

    def agent(self, name: str, *, transient: bool = False) -> Agent:
        """The agent of that name, registered. The same one each time.

        An agent counts as alive until the room closes. A transient one, for programs that do one thing and exit, is
        only recorded as seen, and its claims outlive the program.
        """
        self._gateway.check_open()
        if self.closed:  # nobody would mark it stopped any more
            raise RoomClosed("this room is being closed")
        with self._lock:
            agent = Agent(self._gateway, name, transient=transient)
            known = self._agents.get((name, transient))
            if known is not None:
                return known
            presence.enter(self._gateway, name, transient=transient)
            if not transient:
                self._upkeep.look_after(name)
            return self._agents.setdefault((name, transient), agent)

    def connect(self, name: str) -> None:
        """Connect an agent that lives elsewhere through this process, as an MCP server does. Idempotent.

        It is present until `disconnect`, or until the room closes, which marks it stopped.
        """
        self._gateway.check_open()
        check_names(name=name)
        with self._lock:
            self._upkeep.connect(name)

    def disconnect(self, name: str) -> None:
        """End its connection. It is then recorded as seen, unless another process has it open."""
        self._gateway.check_open()
        with self._lock:
            self._upkeep.disconnect(name)

    # Sessions

    def session(self, id: str | None = None, *, name: str | None = None) -> sessions.Session:
        """Open a session; with an id, join one that is open, as the member of that name.

        Joining raises SessionFailed, Deadlock or SessionEnded at once when it has ended, UnknownSession when there is none.
        """
        self._gateway.check_open()
        host = sessions.SessionHome(self._gateway, self.url.with_secrets(), self.folder)
        return sessions.open_session(host) if id is None else sessions.join_session(host, id, name)

    @property
    def board(self) -> boards.Board:
        """The room's tasks."""
        return self._part(boards.Board)

    @property
    def groups(self) -> agent_groups.Groups:
        """The room's groups of agents."""
        return self._part(agent_groups.Groups)

    def reserve(
        self,
        globs: Iterable[str],
        agent: str,
        ttl_s: float = 600,
        *,
        exclusive: bool = True,
        why: str | None = None,
        transient: bool = False,
        process: str | None = None,
    ) -> reserved_files.Reservation:
        """Record that an agent is working on files, such as "src/api/**", so that others keep out of its way. Advisory.

        It ends with `ttl_s`, its release, or this process; a transient one belongs to the agent and outlives the process
        (unless `process` names another to end with). Shared ones (`exclusive=False`) may overlap. Raises
        ReservationConflict, naming the holder and what it works on, when another agent's overlaps: then nothing
        was reserved.
        """
        process = process if transient else self._gateway.process
        return self._reservations().reserve(globs, agent, ttl_s, exclusive=exclusive, why=why, process=process)

    def reservations(self) -> list[reserved_files.Reserved]:
        """The current reservations, oldest first."""
        return self._reservations().all()

    def unreserve(self, agent: str, globs: Iterable[str] | None = None) -> list[str]:
        """Take these patterns (None: all) out of an agent's reservations. Returns those that were taken out."""
        return self._reservations().drop(agent, globs)

    def reserved_by_others(self, paths: Iterable[str], agent: str | None) -> dict[str, str]:
        """Those of these files that another agent has reserved for itself alone, each with its holder."""
        return self._reservations().in_the_way(paths, agent)

    def _reservations(self) -> reserved_files.Reservations:
        self._gateway.check_open()
        return self._part(reserved_files.Reservations)

    def _part(self, kind: Callable[[Gateway], T]) -> T:
        """The room's one part of that kind, made when it is first needed."""
        with self._lock:
            part = self._parts.get(kind) or kind(self._gateway)
            made: T = self._parts.setdefault(kind, part)  # a signal's handler may have made one meanwhile
            return made

    # Schedules

    def schedule(
        self,
        name: str,
        *,
        every_s: float | None = None,
        cron: str | None = None,
        to: str | None = None,
        channel: str = DEFAULT_CHANNEL,
        payload: dict[str, Any] | None = None,
        type: str = "tick",
        zone: str = "UTC",
        missed: str = "one",
        priority: int = DEFAULT_PRIORITY,
        ttl_s: float | None = None,
        by: str = "schedule",
    ) -> timetable.Schedule:
        """Send a message every so often, or at the times of a cron expression ("0 9 * * 1-5") in a time zone.

        One message for each tick, however many processes have the room open; any of them sends it. `missed` says what
        becomes of ticks that nobody could send in time: "skip" (none of them), "one" (one message for all of them) or
        "all" (each; of more than 1,000 the latest). Its `correlation_id` is the schedule's name and the tick's time.
        `by` is the sender, to whom answers go.

        Idempotent: a schedule of that name that is just as asked for goes on; any other is replaced, and counts from now.
        Raises InvalidMessage that names everything that is wrong: then nothing has changed.
        """
        definition = {
            "every_ms": timetable.every_ms(every_s), "cron": cron, "zone": zone, "missed": missed, "to": to,
            "channel": channel, "type": type, "payload": {} if payload is None else payload, "priority": priority,
            "ttl_s": ttl_s, "by": by,
        }  # fmt: skip
        return self._ticker.add(name, definition)

    def unschedule(self, name: str) -> bool:
        """Take a schedule away. What it has sent stays. Returns whether there was one."""
        return self._ticker.remove(name)

    def schedules(self) -> list[timetable.Schedule]:
        """The room's schedules, in the order of their names, each with its next and its last tick."""
        return self._ticker.all()

    # Looking, which changes nothing

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
            order=order or ("claim" if state == "pending" else "newest"), limit=_checked_limit(limit),
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
            sent_after_ms=None if since is None else moment_ms(self.clock, "since", since),
            sent_before_ms=None if until is None else moment_ms(self.clock, "until", until),
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
        query = search_of(wanted, self.clock, limit=_checked_limit(limit), concerns=agent)
        return searching.with_terms(self._gateway.open_store, query, wanted.terms, told)

    def events(self, after: int = 0, limit: int = 1000) -> list[Change]:
        """The feed: every change above the number `after`, oldest first. Several changes of one message may be one."""
        return self._gateway.open_store.events(after, _checked_limit(limit))

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
                deadline = Deadline(self.clock, timeout_s)
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

    def dead_letters(self, limit: int = 100) -> list[receipts.DeadLetter]:
        """Messages that were set aside, the oldest first, each with every attempt to deliver it."""
        dead = self._gateway.open_store.find(
            Query(states=frozenset({State.DEAD}), limit=_checked_limit(limit))
        ).messages
        kept = (self._gateway.store.get(message.id) for message in dead)
        return [
            receipts.dead_letter_of(message)
            for message in kept
            if message is not None and message.exact_state is State.DEAD
        ]

    # Acting on what is kept

    def requeue(self, id: str | Iterable[str]) -> list[str]:
        """Put dead, refused or expired messages back, with their delivery counts reset. Returns those that were put back.

        A single id that is not kept here is UnknownMessage.
        """
        if isinstance(id, str):
            self.get(id)
            id = [id]
        return self._gateway.open_store.requeue(list(id))

    def purge(
        self,
        *,
        state: str | None = None,
        channels: Iterable[str] | None = None,
        to: str | None = None,
        before: Moment | None = None,
        ids: Iterable[str] | None = None,
        limit: int = 1_000_000,
    ) -> int:
        """Delete messages for good: finished ones, unless `state` names others. Returns how many. Claimed ones stay.

        `ids` limits it to these, finished or not, which also withdraws a message that is still waiting.
        `before`: sent before that time (ISO 8601 text, a datetime, milliseconds) or longer ago than a span ("1h").
        """
        self._gateway.check_open()
        query = Query(
            ids=None if ids is None else listed(ids, "ids", "ids"),
            states=FINISHED if state is None and ids is None else _states(state),
            channels=None if channels is None else listed(channels),
            to_agent=to,
            sent_before_ms=None if before is None else moment_ms(self.clock, "before", before),
            limit=_checked_limit(limit),
        )
        return self._gateway.store.purge(query)

    # What is stored

    def redact(self, name: str, pattern: str | None = None) -> list[redaction_rules.Rule]:
        """From now on, let no sender store what a rule finds: "[redacted: NAME]" stands in its place.

        `name` is a rule that ships ("github token", …), or "all" for all of those; with `pattern`, a regular expression, it
        is the name of a rule of your own. Rules apply to the payloads of messages, and to the reasons and errors in their
        ledgers. They are kept in the room: this process honours a new one at once, every other sender within two seconds.
        What is stored already stays as it is, and so do attached files, cells and tasks. Returns all rules of the room.
        Raises InvalidMessage for a name that is not known, and for a pattern that could take too long; nothing was changed.
        """
        rules = redaction_rules.add(self._gateway.open_store, REDACTION_CELL, name, pattern)
        self._gateway.redaction.forget()
        return rules

    def unredact(self, name: str) -> bool:
        """Remove a redaction rule, or "all" of them. Whether it was there."""
        removed = redaction_rules.remove(self._gateway.open_store, REDACTION_CELL, name)
        self._gateway.redaction.forget()
        return removed

    def redactions(self) -> list[redaction_rules.Rule]:
        """The redaction rules of the room, by name."""
        cell = self._gateway.open_store.cell_read(REDACTION_CELL)
        return redaction_rules.rules_in(None if cell is None else cell.value)

    def retention(
        self,
        channel: str | None = None,
        *,
        age_s: float | None = None,
        count: int | None = None,
        bytes: int | None = None,
    ) -> dict[str, retaining.Retention]:
        """Keep less of a channel's finished messages than the room's own limits do. Returns the limits of every channel.

        Those sent more than `age_s` ago are deleted, and of the others all but the newest `count`, and all but the newest whose
        payloads have `bytes` together. What is given replaces what the channel had; a channel alone has none any more; without
        a channel nothing changes. Messages that wait, are claimed or are dead are never deleted by this.
        The limits are kept in the room, and applied about once a minute by a process that has it open with an agent.
        Raises InvalidMessage for a wrong value; nothing was changed.
        """
        limits = retaining.Retention(age_s, count, bytes)
        if channel is not None:
            retaining.change(self._gateway.open_store, channel, limits)
        elif limits != retaining.Retention():
            raise InvalidMessage("channel", "must say which channel the limits are for")
        return retaining.read(self._gateway.open_store)

    def replay(
        self,
        since: Moment,
        *,
        channel: str | None = None,
        to: str | None = None,
        from_agent: str | None = None,
        type: str | None = None,
        state: str | None = None,
        limit: int | None = None,
        by: str | None = None,
        dry_run: bool = False,
        told: Callable[[list[str], int], object] | None = None,
        _lane: str = "agent",
    ) -> list[str]:
        """Send messages from the past again, oldest first, each marked with `replay_of`. Returns the new ids.

        `since` is a time (ISO 8601 text, a datetime, milliseconds), a span ("2h") or a position in the feed. Each message
        is sent once: a replay counts as the message that it repeats. They go to the same channel and expire no more;
        answers are ordinary mail. What is still waiting is sent again too, unless `state` says otherwise.

        They come from `by`, in its lane and never in that of the first sender, whom `room.get(replay_of)` names. Without
        `by` they come from their first senders, in the lane of agents; in a room with tokens that is IdentityRefused,
        and nothing is sent.

        All of them are sent unless `limit` says how many; `dry_run` sends none, and returns the ids of those that would be
        sent. `told(ids, found)` is called before the first, with [], and after each page that is stored, with its new ids;
        `found` is how many there are. An error, its own too, ends the replay: the pages told of are sent.
        """
        self._gateway.check_open()
        if limit is not None:
            _checked_limit(limit)
        if by is not None:
            check_names(by=by)
        elif tokens.has_tokens(self._gateway):
            raise IdentityRefused(
                "this room has tokens, so no agent acts for another: name the agent that replays, with by=NAME"
            )
        query = Query(
            states=_states(state) if state is not None else frozenset(State) - {State.AWAITED},
            channels=None if channel is None else (channel,),
            to_agent=to,
            from_agent=from_agent,
            type=type,
            sent_after_ms=None if is_cursor(since) else moment_ms(self.clock, "since", since) - 1,
            limit=PAGE,
        )
        found = replaying.originals(self._gateway, query, self._stored_after(since) if is_cursor(since) else None)
        if told is not None:
            told([], len(found))
        if dry_run:
            return found[:limit]
        sent: list[str] = []
        for ids in replaying.send_again(self._gateway, query, found[:limit], by, _lane):
            sent += ids
            if told is not None:
                told(ids, len(found))
        return sent

    def _stored_after(self, cursor: Moment) -> set[str]:
        changes = self._changes(cursor if isinstance(cursor, int) else 0)
        return {change.message.id for change in changes if change.event == "stored"}

    # Files

    def attach(self, path: str | os.PathLike[str]) -> dict[str, Any]:
        """Keep a copy of a file of any size, and return a reference to put into a payload.

        It is kept by content under the room's `artifacts/`: {"artifact": "sha256:…", "name", "bytes", "path"}, until no
        kept message (and no task) refers to it, and for a day at least. A room without a folder keeps it until this
        process ends.
        """
        self._gateway.check_open()
        return attachments.keep(attachments.folder_for(self.folder), Path(path).absolute())

    def artifact(self, reference: Mapping[str, Any] | str) -> Path:
        """The stored file behind a reference, wherever the room is now. UnknownMessage when it is not here."""
        self._gateway.check_open()
        return attachments.find(attachments.folder_for(self.folder), reference)

    # The end

    @property
    def closed(self) -> bool:
        """Whether the room was closed."""
        return self._gateway.closing

    def close(self) -> None:
        """Release everything: agents are marked stopped, unsettled claims go back, waiters get RoomClosed.

        Functions that `serve` runs may finish first. Safe to call twice; after a call that was interrupted (Ctrl-C), the next one does
        the rest. In a signal's handler that interrupted a step of the room, claims are not given back here: they end with the process.
        """
        self._gateway.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<Room {self.url}{' closed' if self.closed else ''}>"

    # Parts of the above

    def _changes(self, after: int) -> Iterator[Change]:
        while changes := self._gateway.store.events(after, PAGE):
            yield from changes
            after = changes[-1].number


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
        states=_states(fields.get("state")),
        sent_before_ms=None if before is None else moment_ms(clock, "before", before),
        sent_after_ms=None if after is None else moment_ms(clock, "after", after),
        order="newest",
        **more,
    )


def _states(state: str | None) -> frozenset[State] | None:
    if state is None:
        return None
    try:
        return states_named(state)
    except ValueError as error:
        raise InvalidMessage("state", str(error)) from None


def _states_in_mail(state: str | None, agent: str | None) -> frozenset[State] | None:
    """The states; of an agent's mail, an answer that is held for an asker is not in it."""
    states = _states(state)
    return states if agent is None else (states or frozenset(State)) - {State.AWAITED}


def _checked_limit(limit: int) -> int:
    if type(limit) is not int or limit < 1:
        raise InvalidMessage("limit", f"must be a whole number of 1 or more, not {limit!r}")
    return limit


def open_room(
    url: str | os.PathLike[str] | None = None, *, create: bool = True, clock: Clock = SYSTEM, **settings: Any
) -> Room:
    """Open the room at an address, such as "sqlite:.postroom", "memory:" or the path of a folder.

    Without an address: the one in $POSTROOM_URL, else the nearest `.postroom` above, else that of the repository's main
    worktree, else `./.postroom`, which is made. With `create` False nothing is made: RoomNotFound says where it looked.
    A room found this way must have been made or allowed by this user on this machine: RoomNotAllowed says how to allow it.
    Settings are the fields of `Config` (sync="full", max_deliveries=5, …); the address may carry them too (?sync=full).
    Raises RoomError, with one sentence that says what to do.
    """
    return open_through(Gateway, url, create, clock, settings)


def open_through(
    make_gateway: Callable[[Store, Config, Clock], Gateway],
    url: str | os.PathLike[str] | None,
    create: bool,
    clock: Clock,
    settings: dict[str, Any],
) -> Room:
    """The same, with a gateway of the caller's choice between the room and its store."""
    room = open_even_if_moved(make_gateway, url, create, clock, settings)
    try:
        check_not_moved(room.store)
    except RoomMoved:
        room.store.close()
        room.close()
        raise
    except RoomError:
        pass  # a room that cannot be read says so at its first step
    return room


def open_even_if_moved(
    make_gateway: Callable[[Store, Config, Clock], Gateway],
    url: str | os.PathLike[str] | None,
    create: bool,
    clock: Clock,
    settings: dict[str, Any],
) -> Room:
    """The same, of a room that was moved too, or that a move is filling: for moves, and for looking at what is left."""
    address = _find(create) if url is None else parse_url(url if isinstance(url, str) else address_of(Path(url)))
    config = make_config(settings, address.options)
    folder = room_folder(address)
    if folder is not None:
        address = RoomUrl(address.scheme, str(folder), address.options)  # also right after a chdir
        if not create and (not folder.is_dir() or (is_new(address) and trust.lost_part(address) is None)):
            raise RoomNotFound(f"there is no room in {folder}; make one with `postroom init`")
        if place_of(address) != folder:
            make_folder(folder)  # mailboxes, in which the room's own folder is to lie
        if is_new(address):
            with suppress(OSError):  # a user without a configuration names rooms by their address
                trust.prepare_place(address, group=config.group)
        if place_of(address) == folder:
            make_folder(folder)
    room = Room(make_gateway(open_store(address, config, clock, create=create), config, clock), address)
    place = place_of(address)
    if place is not None and os.path.lexists(place / MAKING_MARK):  # left by this process, or one that was killed
        trust.finish_place(place)
    return room


def _find(create: bool) -> RoomUrl:
    found = trust.find_room()
    if found is not None:
        return parse_url(found.address)
    here = Path.cwd()
    if not create:
        elsewhere = [place for place in search_places(here) if place.parent not in (here, *here.parents)]
        looked = f"${URL_VARIABLE} (not set), {FOLDER} in {here} and in every folder above"
        looked += "".join(f", {place}" for place in elsewhere)
        others = "".join(
            f"{place} belongs to user {owner} and was skipped: name it if you trust it, --room {address_of(place)}; "
            for place, owner in trust.passed_over(here).items()
        )
        found_no = "found no room of yours" if others else "found no room"
        raise RoomNotFound(f"{found_no}; {others}looked at: {looked}. Make one with `postroom init`")
    if os.path.lexists(here / FOLDER):  # another user's, which the search passes over, or a link to nowhere
        verdict = trust.judge_place(here / FOLDER)
        if not verdict.why:  # another process has just made it
            return parse_url(verdict.address)
        raise RoomNotAllowed(trust.not_allowed(here / FOLDER, verdict.why))
    return parse_url(address_of(here / FOLDER))


def make_folder(folder: Path) -> None:
    """Make a room's folder, for its owner only, with a `.gitignore` that keeps its content out of repositories.

    The store syncs it when it makes the room. A folder that is there already is left as it is.
    """
    try:
        if make_private_folder(folder, sync=False):
            (folder / ".gitignore").write_text("*\n", encoding="ascii")
    except FileExistsError:
        raise RoomError(f"{folder} is a file; a room needs a folder") from None
    except OSError as error:
        raise RoomError(
            f"the room's folder {folder} cannot be made ({error.strerror}); choose a folder that you can write to"
        ) from error
