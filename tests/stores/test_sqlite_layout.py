"""The layout of the file: versions, and taking over a database that the source document's broker made."""

from __future__ import annotations

import json

import apsw
import pytest

from postroom.core.clock import ManualClock
from postroom.core.config import Config
from postroom.core.states import State
from postroom.stores.contract import Query, Want
from postroom.stores.sqlite.store import SqliteStore

SOURCE_LAYOUT = """
CREATE TABLE messages (
    id TEXT PRIMARY KEY, type TEXT NOT NULL, version TEXT NOT NULL, timestamp TEXT NOT NULL, correlation_id TEXT,
    from_agent TEXT NOT NULL, to_agent TEXT, channel TEXT NOT NULL, priority INTEGER NOT NULL DEFAULT 5,
    payload TEXT NOT NULL, status TEXT NOT NULL DEFAULT 'pending', created_at TEXT NOT NULL, expires_at TEXT,
    delivery_count INTEGER DEFAULT 0, last_delivered_at TEXT, error TEXT);
CREATE INDEX idx_ready_messages ON messages(channel, status, priority DESC, timestamp) WHERE status = 'pending';
CREATE INDEX idx_correlation ON messages(correlation_id) WHERE correlation_id IS NOT NULL;
CREATE TABLE channel_subscriptions (channel_name TEXT NOT NULL, agent_id TEXT NOT NULL, subscribed_at TEXT NOT NULL,
    PRIMARY KEY (channel_name, agent_id));
CREATE TABLE agent_status (agent_id TEXT PRIMARY KEY, status TEXT NOT NULL, current_task TEXT,
    last_heartbeat TEXT NOT NULL, messages_pending INTEGER DEFAULT 0, messages_processed INTEGER DEFAULT 0,
    error_count INTEGER DEFAULT 0);
CREATE TABLE dead_letter_queue (id TEXT PRIMARY KEY, original_message TEXT NOT NULL, error TEXT NOT NULL,
    moved_at TEXT NOT NULL, retry_count INTEGER NOT NULL);
"""


def layout(folder):
    """All tables, indexes and views of a room's file, with the room's own share of its ids taken out."""
    with apsw.Connection(str(folder / "messages.db")) as db:
        salt = str(db.execute("SELECT value FROM meta WHERE name = 'salt'").fetchall()[0][0])
        rows = db.execute("SELECT type, name, tbl_name, sql FROM sqlite_schema ORDER BY name").fetchall()
        version = db.execute("PRAGMA user_version").fetchall()
    return version, [(kind, name, table, str(sql).replace(salt, "SALT")) for kind, name, table, sql in rows]


@pytest.fixture
def source_room(tmp_path):
    """A folder as the source document's broker leaves it behind."""
    folder = tmp_path / "source"
    folder.mkdir()
    db = apsw.Connection(str(folder / "messages.db"))
    db.execute("PRAGMA journal_mode = WAL").fetchall()
    with db:
        db.execute(SOURCE_LAYOUT).fetchall()
        for n, (status, count) in enumerate(
            [("pending", 0), ("processing", 1), ("done", 1), ("failed", 2), ("pending", 7)]
        ):
            db.execute(
                "INSERT INTO messages VALUES (?,?,'1.0',?,?,'ada','bob','general',?,?,?,?,?,?,NULL,NULL)",
                (f"old-{n}", "greeting", f"2026-01-01T00:00:0{n}.000001Z", None, 5, json.dumps({"n": n}), status,
                 f"2026-01-01T00:00:0{n}.000001Z", "2126-01-01T00:00:00Z" if n == 0 else None, count),
            )  # fmt: skip
        db.execute("INSERT INTO dead_letter_queue VALUES ('old-9', '[1]', 'broke', '2026-01-01T00:00:09Z', 3)")
        db.execute("INSERT INTO agent_status VALUES ('bob', 'active', 'T1', '2026-01-01T00:00:00Z', 0, 0, 0)")
        db.execute("INSERT INTO channel_subscriptions VALUES ('news', 'bob', '2026-01-01T00:00:00Z')")
    return folder


def test_a_migrated_database_equals_a_fresh_one(source_room, tmp_path):
    SqliteStore(source_room, Config(), ManualClock()).close()
    SqliteStore(tmp_path / "fresh", Config(), ManualClock()).close()
    assert layout(source_room) == layout(tmp_path / "fresh")


def test_messages_of_the_source_broker_are_taken_over_in_order(source_room):
    store = SqliteStore(source_room, Config(), ManualClock())
    messages = store.find(Query()).messages
    assert [message.payload for message in messages] == [{"n": n} for n in range(5)] + [{"value": [1]}]
    assert [message.exact_state for message in messages] == [
        State.READY, State.READY, State.ACKED, State.DEAD, State.READY, State.DEAD,
    ]  # fmt: skip
    first = store.get(messages[0].id)
    assert first is not None
    assert first.ledger[1].detail == "was old-0, pending"
    assert messages[0].expires_at == "2126-01-01T00:00:00.000Z"
    assert messages[5].error == "broke"
    store.close()


def test_a_message_taken_over_can_be_claimed_and_acked(source_room):
    store = SqliteStore(source_room, Config(), ManualClock())
    claimed = [store.claim(Want(agent="bob", lease_s=9)).deliveries[0] for _ in range(3)]
    assert [delivery.message.payload["n"] for delivery in claimed] == [0, 1, 4]
    assert all(store.settle(delivery.ticket, "acked").held for delivery in claimed)
    store.close()


def test_agents_and_subscriptions_of_the_source_broker_are_taken_over(source_room):
    store = SqliteStore(source_room, Config(), ManualClock())
    assert [cell.value["current_task"] for cell in store.cell_scan("agent/")] == ["T1"]
    assert [(found.channel, found.agent) for found in store.subscriptions()] == [("news", "bob")]
    assert store.read_only("SELECT agent_id, messages_pending FROM agent_status")[1] == [("bob", 3)]
    store.close()


def test_opening_twice_takes_over_once(source_room):
    SqliteStore(source_room, Config(), ManualClock()).close()
    store = SqliteStore(source_room, Config(), ManualClock())
    assert len(store.find(Query()).messages) == 6
    store.close()
