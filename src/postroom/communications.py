"""The plain broker: send, look, claim, complete, with plain dictionaries and one call per step.

It is a second door to the same room that `postroom.open` opens, in the folder `.claude/communications` of a project:
what is sent through one is received through the other. Nothing here keeps messages; the store does.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Self, cast

from postroom.core.backoff import backoff_s
from postroom.core.clock import SYSTEM, Clock, iso
from postroom.core.config import AGENT_LEASE_S, Config, RoomUrl
from postroom.core.states import State
from postroom.mail.gateway import Deadline, Gateway
from postroom.mail.received import Settlement, check_names, current_claim, follow, listed, words
from postroom.stores.contract import Query, Want, topic_to

from .core import message as envelope
from .errors import InvalidMessage, RoomUnsafe
from .mail import presence
from .room import make_folder
from .stores import open_store

if TYPE_CHECKING:
    from .stores.sqlite.store import SqliteStore

READY: Final = frozenset({State.READY})
#: The status of an agent that never said how it is.
UNKNOWN: Final = "unknown"
#: What `send_message` calls the fields of an envelope, where that differs.
_ARGUMENTS: Final = {"type": "message_type", "ttl_s": "ttl_seconds"}
#: Messages are counted and deleted so many at a time.
_PAGE: Final = 1000


@dataclass
class Message:
    """An envelope to fill in by hand; `CommunicationSystem.send_message` makes its own."""

    id: str  # a UUID
    type: str  # what kind of message it is
    version: str  # of the envelope's format
    timestamp: str  # when it was made, as ISO 8601 text
    from_agent: str  # who sends it
    channel: str  # where
    priority: int  # from 1 to 10; 10 comes first
    payload: dict[str, Any]  # the content: a JSON object
    correlation_id: str | None = None  # what it belongs to
    to_agent: str | None = None  # the recipient; None: the first agent to claim it

    @classmethod
    def create(
        cls,
        from_agent: str,
        message_type: str,
        payload: dict[str, Any],
        *,
        channel: str = envelope.DEFAULT_CHANNEL,
        priority: int = envelope.DEFAULT_PRIORITY,
        correlation_id: str | None = None,
        to_agent: str | None = None,
    ) -> Message:
        """A message of now, with a new id."""
        now_ms = SYSTEM.wall_ms()
        return cls(
            id=envelope.id_of(envelope.key_at(now_ms * 1_000_000), int(SYSTEM.random() * 2**envelope.SALT_BITS)),
            type=message_type,
            version=envelope.VERSION,
            timestamp=iso(now_ms),
            from_agent=from_agent,
            channel=channel,
            priority=priority,
            payload=payload,
            correlation_id=correlation_id,
            to_agent=to_agent,
        )

    def to_dict(self) -> dict[str, Any]:
        """The fields as a dictionary of its own: changing it does not change the message."""
        return asdict(self)

    def validate(self) -> tuple[bool, list[str]]:
        """Whether it is valid, and a sentence for every fault. `send_message` checks more than this."""
        errors: list[str] = []
        payload: object = self.payload  # somebody may have put anything there
        if type(self.priority) is not int or not 1 <= self.priority <= 10:
            errors.append("Priority must be 1-10")
        if not isinstance(payload, dict):
            errors.append("Payload must be dict")
        if self.version != envelope.VERSION:
            errors.append(f"Unsupported version: {self.version}")
        return (not errors, errors)


class TableRow:
    """A row of a query, to be read by place and by name, and made a dictionary with `dict(row)`."""

    __slots__ = ("_columns", "_values")

    def __init__(self, columns: list[str], values: tuple[Any, ...]) -> None:
        self._columns = columns
        self._values = values

    def keys(self) -> list[str]:
        """The names of the columns."""
        return self._columns

    def __getitem__(self, place: int | str) -> Any:
        if not isinstance(place, str):
            return self._values[place]
        if place not in self._columns:
            raise IndexError(f"no column {place!r}; the columns are {', '.join(self._columns)}")
        return self._values[self._columns.index(place)]

    def __iter__(self) -> Iterator[Any]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)


class TableCursor:
    """The rows of a query, each given once."""

    def __init__(self, columns: list[str], rows: list[tuple[Any, ...]]) -> None:
        self._left = iter([TableRow(columns, row) for row in rows])

    def __iter__(self) -> Iterator[TableRow]:
        return self._left

    def fetchone(self) -> TableRow | None:
        """The next row; None when all were given."""
        return next(self._left, None)

    def fetchall(self) -> list[TableRow]:
        """All rows that were not given yet."""
        return list(self._left)


class TableConnection:
    """The tables of the broker, for reading. It holds no transaction: `with` is allowed and does nothing."""

    def __init__(self, store: SqliteStore) -> None:
        self._store = store

    def execute(self, sql: str, parameters: Sequence[Any] | Mapping[str, Any] = ()) -> TableCursor:
        """Run one SELECT. Raises RoomError for anything else, and when the query does not work."""
        return TableCursor(*self._store.read_only(sql, parameters))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass


class CommunicationSystem:
    """A message broker in a project's folder. May be shared by threads; every process makes its own.

    Claims belong to the agent that is named, not to the process that made the call, and end after ten minutes.
    Every method works without `initialize`, which only does its work earlier.
    """

    def __init__(self, project_root: str | Path, *, clock: Clock = SYSTEM) -> None:
        self.project_root = Path(project_root).resolve()  # the project's folder
        self.comm_dir = self.project_root / ".claude" / "communications"  # where the broker keeps its files
        self.db_path = self.comm_dir / "messages.db"  # its database
        self._clock = clock
        self._lock = threading.Lock()
        self._opened: Gateway | None = None
        self._finalize: weakref.finalize[..., Any] | None = None

    @property
    def _gateway(self) -> Gateway:
        """The room, opened when it is first needed."""
        with self._lock:
            if self._opened is None:
                if Path(os.path.realpath(self.comm_dir)) != self.comm_dir:
                    raise RoomUnsafe(
                        f"{self.comm_dir} links to {os.path.realpath(self.comm_dir)}; remove the link first"
                    )
                make_folder(self.comm_dir)
                (self.project_root / ".claude" / "artifacts").mkdir(exist_ok=True)
                url, config = RoomUrl("sqlite", str(self.comm_dir), {}), Config()
                self._opened = Gateway(open_store(url, config, self._clock), config, self._clock)
                # Programs written for the source document never close. Not at exit, though: their threads may still work.
                self._finalize = weakref.finalize(self, self._opened.close)
                self._finalize.atexit = False
            return self._opened

    @property
    def connection(self) -> TableConnection:
        """The tables, for queries of your own. Only for reading: messages are stored and settled by the methods."""
        return TableConnection(cast("SqliteStore", self._gateway.open_store))

    def initialize(self) -> None:
        """Make the folders and the database where they are not there yet. Repeating it changes nothing."""
        self._gateway.check_open()

    def close(self) -> None:
        """Let go of the database. A later call opens it again."""
        with self._lock:
            self._opened = None
            finalize, self._finalize = self._finalize, None
        if finalize is not None:
            finalize()

    def __enter__(self) -> Self:
        self.initialize()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # Messages

    def send_message(
        self,
        from_agent: str,
        message_type: str,
        payload: dict[str, Any],
        to_agent: str | None = None,
        channel: str = "general",
        priority: int = 5,
        correlation_id: str | None = None,
        ttl_seconds: float | None = None,
    ) -> str:
        """Store a message, to one agent or to the first to claim it in the channel, and return its id.

        Raises InvalidMessage (a ValueError) that names every fault; nothing is stored then.
        """
        draft = envelope.Draft(
            from_agent=from_agent,
            type=message_type,
            payload=payload,
            to_agent=to_agent,
            channel=channel,
            priority=priority,
            correlation_id=correlation_id,
            ttl_s=ttl_seconds or None,
        )
        try:
            return self._gateway.send(draft)
        except InvalidMessage as error:  # in the words of this door's arguments
            faults = [fault._replace(field=_ARGUMENTS.get(fault.field, fault.field)) for fault in error.faults]
            raise InvalidMessage(faults) from None

    def receive_messages(self, agent_id: str, channels: Sequence[str], limit: int = 10) -> list[dict[str, Any]]:
        """What the agent could claim in these channels, best first. Takes nothing: claim what you want to work on."""
        named = listed(channels)
        if not named or not limit:
            return []
        query = Query(
            states=READY,
            channels=named,
            visible_to=agent_id,
            order="claim",
            limit=limit if limit > 0 else 2**31 - 1,
        )
        return [_row(message) for message in self._find(query)]

    def claim_message(self, agent_id: str, message_id: str) -> bool:
        """Take a message that waits. False when it is another's, was taken before, or is not there (any more)."""
        want = Want(agent=agent_id, lease_s=AGENT_LEASE_S, ids=(message_id,), owner=None)
        return bool(self._gateway.claim(want).deliveries)

    def complete_message(self, message_id: str, error: str | None = None) -> None:
        """End the current claim on a message, of any agent; nothing happens when there is none.

        Without an error it is done. With one it is delivered again, later each time, and set aside as a dead letter
        when the third delivery fails.
        """
        gateway, tried = self._gateway, None
        gateway.check_open()
        while (found := gateway.store.get(message_id)) is not None:
            ticket = current_claim(found)
            if ticket is None or ticket == tried:
                return
            end = self._failed(found, error) if error else self._done(found)
            if gateway.settle(ticket, end.outcome, detail=end.detail, delay_s=end.delay_s).held:
                return
            tried = ticket  # somebody else took it since we looked: look again

    def _done(self, message: envelope.Message) -> Settlement:
        """Answered when a response was sent: an asker that came through the library waits for that."""
        for answer in self._find(Query(answer_to=message.id, limit=1)):
            return Settlement("answered", answer.id)
        return Settlement("acked")

    def _failed(self, message: envelope.Message, error: str) -> Settlement:
        return Settlement("retry", words("error", error), backoff_s(message.delivery_count, self._clock.random()))

    # Questions and answers

    def send_response(
        self,
        original_message: dict[str, Any],
        response_payload: dict[str, Any],
        artifact_path: str | None = None,
        *,
        from_agent: str | None = None,
    ) -> str:
        """Answer a message that was received: back to its sender, with its correlation id. Returns the answer's id.

        The answer comes from `from_agent`, else from the agent it was addressed to, else from the agent that claimed
        it; InvalidMessage when there is none of them. The caller's payload is not changed.
        """
        if artifact_path and isinstance(response_payload, dict):
            response_payload = {**response_payload, "artifact_path": artifact_path}
        question = self._question(original_message)
        chain_id, hop_count, trace = follow(question, self._gateway.config.max_hops)
        draft = envelope.Draft(
            from_agent=from_agent or original_message["to_agent"] or _claimer(original_message, question),
            type=original_message["type"] + ".response",
            payload=response_payload,
            to_agent=original_message["from_agent"],
            channel=original_message["channel"],
            priority=original_message["priority"],
            correlation_id=original_message.get("correlation_id"),
            chain_id=chain_id,
            hop_count=hop_count,
            trace=trace,
            answer_to=None if question is None else question.id,
        )
        (id,) = self._gateway.put([draft], limited=False)
        return id

    def _question(self, original_message: dict[str, Any]) -> envelope.Message | None:
        """The message that a response is for, if this room keeps it."""
        self._gateway.check_open()
        id = original_message.get("id")
        return None if id is None else self._gateway.store.get(id)

    def wait_for_response(
        self, agent_id: str, correlation_id: str, channels: Sequence[str], timeout_seconds: float = 30.0
    ) -> dict[str, Any] | None:
        """Take the first message with this correlation id that another agent sent; None when none came in time.

        However much other mail waits, it is looked up by its correlation id; the wait ends as soon as it is stored.
        """
        gateway, deadline, named = self._gateway, Deadline(self._clock, timeout_seconds), listed(channels)
        # Not the channels' own topics: they wake one waiter for each message, and that one should be able to take it. A
        # response that is addressed to nobody is found by the look that is made every second anyway.
        with gateway.listen([topic_to(agent_id)]) as waiter:
            while True:
                response = self._take_response(agent_id, correlation_id, named)
                left_s = deadline.left_s()
                if response is not None or left_s == 0:
                    return response
                gateway.wait(waiter, left_s)

    def _take_response(self, agent_id: str, correlation_id: str, channels: tuple[str, ...]) -> dict[str, Any] | None:
        for id in self._responses(agent_id, correlation_id, channels):
            want = Want(agent=agent_id, lease_s=AGENT_LEASE_S, ids=(id,), owner=None, settle=True)
            for delivery in self._gateway.claim(want).deliveries:
                return _row(delivery.message)
        return None

    def _responses(self, agent_id: str, correlation_id: str, channels: tuple[str, ...]) -> Iterator[str]:
        """Ids of the responses that wait, the first stored first. Not the asker's own words, however many there are."""
        if channels:
            query = Query(states=READY, channels=channels, visible_to=agent_id, correlation_id=correlation_id)
            yield from (message.id for message in self._find(query) if message.from_agent != agent_id)

    # Health

    def send_heartbeat(self, agent_id: str, status: str = "active", current_task: str | None = None) -> None:
        """Say that an agent is alive, and what it does."""
        check_names(agent_id=agent_id, status=status)
        self._gateway.check_open()
        task = None if current_task is None else words("current_task", current_task)
        presence.beat(self._gateway, agent_id, status, task)

    def get_agent_health(self, agent_id: str) -> dict[str, Any] | None:
        """What is known of an agent, with figures of this moment; None when it was never heard of.

        An agent that has mail or had some, and never sent a heartbeat, is "unknown" and has no `last_heartbeat`.
        """
        self._gateway.check_open()
        known, figures = presence.look(self._gateway, agent_id), self._figures(agent_id)
        if known is None and not (any(figures.values()) or presence.held_by(self._gateway, agent_id)):
            return None
        return {
            "agent_id": agent_id,
            "status": UNKNOWN if known is None else known["status"],
            "current_task": None if known is None else known["current_task"],
            "last_heartbeat": None if known is None else iso(presence.last_heard(self._gateway, known)["heartbeat_ms"]),
            **figures,
        }

    def _figures(self, agent_id: str) -> dict[str, int]:
        """What waits for an agent, what it finished, and what failed in its hands and nobody has finished since."""
        work = self._gateway.store.work_of(agent_id)
        boxes = self._gateway.store.stats().mailboxes
        return {
            "messages_pending": sum(box.depth for box in boxes if box.to_agent == agent_id),
            "messages_processed": work.processed,
            "error_count": work.errors,
        }

    def cleanup_expired_messages(self) -> int:
        """Delete the messages whose time to live ended before a receiver finished them. Returns how many.

        Also does the room's maintenance, as every open room with agents does automatically: see `Store.sweep`.
        """
        self._gateway.sweep()
        query = Query(states=frozenset({State.EXPIRED}), limit=_PAGE)
        deleted = count = self._gateway.store.purge(query)
        while count == _PAGE:
            count = self._gateway.store.purge(query)
            deleted += count
        return deleted

    def _find(self, query: Query) -> Iterator[envelope.Message]:
        return self._gateway.open_store.find_all(query)


def _claimer(original_message: dict[str, Any], question: envelope.Message | None) -> str:
    """The agent that answers a message which was not sent to a particular agent: its claimer."""
    if question is None or question.claimed_by is None:
        sent = f"message {original_message.get('id')} was not sent to a particular agent"
        raise InvalidMessage("from_agent", f"{sent}: claim it first, or name the agent that answers (from_agent=...)")
    return question.claimed_by


def _row(message: envelope.Message) -> dict[str, Any]:
    """A message with the names of the columns of the table `messages`."""
    last_ms = message.last_delivered_ms
    return {
        "id": message.id,
        "type": message.type,
        "version": message.version,
        "timestamp": message.timestamp,
        "correlation_id": message.correlation_id,
        "from_agent": message.from_agent,
        "to_agent": message.to_agent,
        "channel": message.channel,
        "priority": message.priority,
        "payload": message.payload,
        "status": message.status,
        "created_at": message.timestamp,
        "expires_at": message.expires_at,
        "delivery_count": message.delivery_count,
        "last_delivered_at": None if last_ms is None else iso(last_ms),
        "error": message.error,
    }
