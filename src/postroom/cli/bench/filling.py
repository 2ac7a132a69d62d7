"""W7: many messages put straight into a room's SQLite file, for sending a million of them takes too long."""

from __future__ import annotations

from pathlib import Path

import apsw

from postroom.core.clock import SYSTEM
from postroom.core.message import key_at
from postroom.stores.sqlite.layout import DATABASE

from .client import encode, make_payload
from .plan import SPREAD


def fill(database: apsw.Connection, count: int, to_agent: str, way: str) -> None:
    """Put messages into a room's file, quickly and as if they were sent a minute ago.

    Pending or finished ones for one agent; or pending ones spread over many agents in many channels.
    """
    first = key_at(SYSTEM.wall_ms() * 1_000_000 - 60_000_000_000)
    finished, spread = way == "finished", way not in ("pending", "finished")
    agent, channel = ("'a' || (n % :spread)", "'c' || (n / :spread % :spread)") if spread else (":agent", "'general'")
    state, change, claimed_by = ("2", ":first + :count + n", ":agent") if finished else ("0", "NULL", "NULL")
    ended, implied = (":first >> 21", "2") if finished else ("NULL", "0")
    insert = (
        "INSERT INTO mail (key, state, token, change, priority, to_agent, channel, from_agent, type, max_deliveries, "
        "sent_ms, delivery_count, claimed_by, last_delivered_ms, ended_ms, implied, payload) "
        "WITH RECURSIVE c(n) AS (SELECT :start UNION ALL SELECT n + 1 FROM c WHERE n + 1 < :end) "
        f"SELECT :first + n, {state}, :times, {change}, 5, {agent}, {channel}, 'sender', 'message', 3, :first >> 21, :times, "
        f"{claimed_by}, {ended}, {ended}, {implied}, :payload FROM c"
    )
    values = {"agent": to_agent, "spread": SPREAD, "first": first, "count": count, "times": int(finished)}
    values |= {"payload": encode(make_payload(0)).decode()}
    for start in range(0, count, 50_000):
        database.execute(insert, {**values, "start": start, "end": min(count, start + 50_000)})
    database.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE)


def fill_room(folder: Path, count: int, to_agent: str, way: str) -> None:
    """The same for a room that is open elsewhere."""
    database = apsw.Connection(str(folder / DATABASE), flags=apsw.SQLITE_OPEN_READWRITE)
    database.set_busy_timeout(10_000)
    try:
        fill(database, count, to_agent, way)
    finally:
        database.close()
