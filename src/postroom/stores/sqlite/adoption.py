"""Migration: taking over a database that the source document's own broker made.

That broker keeps its `messages.db` in the very place where ours lies, with layout number 0 and tables of the same
names. Its rows become ours in one transaction; afterwards the layout equals a new one's
(tests/stores/test_sqlite_layout.py). Ids cannot be kept, because ours are made of the order of the room: each ledger
names the former id.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

import msgspec

from postroom.core.clock import from_iso
from postroom.core.message import FRACTION_BITS
from postroom.core.states import State

from .rows import ledger_text

Execute = Callable[[str, Sequence[Any]], list[tuple[Any, ...]]]

SOURCE_TABLES: Final = ("messages", "channel_subscriptions", "agent_status", "dead_letter_queue")

#: A processing message of the source has no lease, and its holder is unknown, so it is delivered again.
_STATE_OF: Final = {
    "pending": State.READY,
    "processing": State.READY,
    "done": State.ACKED,
    "failed": State.DEAD,
}

_COLUMNS: Final = (
    "id, type, timestamp, correlation_id, from_agent, to_agent, channel, priority, payload, status, created_at, "
    "expires_at, delivery_count, last_delivered_at, error"
)


def set_aside(execute: Execute) -> list[str]:
    """Rename the source's tables out of the way of ours. Returns those that were there; none without `messages`."""
    tables = {name for (name,) in execute("SELECT name FROM sqlite_schema WHERE type = 'table'", ())}
    there = [name for name in SOURCE_TABLES if name in tables] if "messages" in tables else []
    for name in there:
        execute(f"ALTER TABLE {name} RENAME TO source_{name}", ())
    return there


def take_over(execute: Execute, there: Sequence[str], wall_ms: int) -> None:
    """Copy the rows that were set aside into our tables, and drop theirs."""
    _messages(execute, wall_ms)
    if "dead_letter_queue" in there:
        _dead_letters(execute, wall_ms)
    if "agent_status" in there:
        _agents(execute, wall_ms)
    if "channel_subscriptions" in there:
        execute("INSERT INTO channel_subscriptions SELECT channel_name, agent_id, subscribed_at "
                "FROM source_channel_subscriptions", ())  # fmt: skip
    for name in there:
        execute(f"DROP TABLE source_{name}", ())


def _messages(execute: Execute, wall_ms: int) -> None:
    rows = execute(f"SELECT {_COLUMNS} FROM source_messages ORDER BY created_at, rowid", ())
    key = 0
    for row in rows:
        (id, type_, timestamp, correlation_id, from_agent, to_agent, channel, priority, payload, status, created_at,
         expires_at, delivery_count, last_delivered_at, error) = row  # fmt: skip
        state = _STATE_OF.get(status, State.DEAD)
        sent_ms = _time_ms(timestamp, wall_ms)
        stored_ms = _time_ms(created_at, sent_ms)
        key = max(stored_ms << FRACTION_BITS, key + 1)
        expires = None if expires_at is None else stored_ms + _time_ms(expires_at, sent_ms) - sent_ms
        _insert(
            execute,
            key=key,
            state=int(state),
            change=None if state is State.READY else key,
            wake_at=expires if state is State.READY else None,
            priority=min(10, max(1, int(priority))),
            to_agent=to_agent,
            channel=channel,
            from_agent=from_agent,
            type=type_,
            delivery_count=min(delivery_count or 0, 2) if state is State.READY else delivery_count or 0,
            max_deliveries=3,
            sent_ms=sent_ms,
            expires=expires,
            last_delivered_ms=_time_ms(last_delivered_at, None),
            correlation_id=correlation_id,
            error=error if error or state is not State.DEAD else "failed",
            ledger=ledger_text("imported", wall_ms, None, f"was {id}, {status}"),
            payload=_object(payload),
        )


def _dead_letters(execute: Execute, wall_ms: int) -> None:
    rows = execute("SELECT id, original_message, error, moved_at, retry_count FROM source_dead_letter_queue", ())
    for id, payload, error, moved_at, retries in rows:
        moved_ms = _time_ms(moved_at, wall_ms)
        highest = execute("SELECT coalesce(max(key), 0) + 1 FROM mail", ())[0][0]
        key = max(moved_ms << FRACTION_BITS, highest)
        _insert(
            execute,
            key=key,
            state=int(State.DEAD),
            change=key,
            priority=5,
            channel="general",
            from_agent="unknown",
            type="message",
            delivery_count=retries,
            max_deliveries=3,
            sent_ms=moved_ms,
            error=error,
            ledger=ledger_text("imported", wall_ms, None, f"was {id}, of which only the payload was kept"),
            payload=_object(payload),
        )


def _agents(execute: Execute, wall_ms: int) -> None:
    rows = execute("SELECT agent_id, status, current_task, last_heartbeat FROM source_agent_status", ())
    for agent, status, task, heartbeat in rows:
        at = _time_ms(heartbeat, wall_ms)
        value = {
            "status": status,
            "current_task": task,
            "heartbeat_ms": at,
            "first_seen_ms": at,
            "processes": [],
            "transient": True,
        }
        text = msgspec.json.encode(value).decode()
        execute("INSERT INTO cells (name, version, value) VALUES (?, 1, ?)", (f"agent/{agent}", text))


def _insert(execute: Execute, **values: Any) -> None:
    marks = ", ".join("?" * len(values))
    execute(f"INSERT INTO mail ({', '.join(values)}) VALUES ({marks})", tuple(values.values()))


def _time_ms(text: str | None, otherwise: Any) -> Any:
    try:
        return otherwise if text is None else from_iso(text)
    except ValueError:
        return otherwise


def _object(text: str) -> str:
    """The payload as the text of a JSON object, whatever it was."""
    try:
        value = msgspec.json.decode(text)
    except msgspec.DecodeError:
        value = text
    return text if isinstance(value, dict) else msgspec.json.encode({"value": value}).decode()
