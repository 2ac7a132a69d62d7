"""The tables of the plain broker, as the debugging tips of its source document read them, and by its connection."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.test_communications import COLUMNS, rows, send, waiting

from postroom import CommunicationSystem, RoomError


@pytest.fixture
def comm(tmp_path: Path) -> Iterator[CommunicationSystem]:
    with CommunicationSystem(tmp_path) as comm:
        yield comm


def test_the_queries_of_the_debugging_tips_work(comm: CommunicationSystem) -> None:
    send(comm, 1)
    comm.claim_message("bob", send(comm, 2))
    comm.send_heartbeat("bob", "active", "reading")
    first, second = rows(comm, "SELECT * FROM messages")
    assert set(COLUMNS) <= set(first)
    assert (first["status"], second["status"]) == ("pending", "processing")
    assert json.loads(first["payload"]) == {"n": 1}
    assert rows(comm, "SELECT COUNT(*) AS n FROM messages WHERE status = 'pending'") == [{"n": 1}]
    (status,) = rows(comm, "SELECT * FROM agent_status")
    assert (status["agent_id"], status["current_task"]) == ("bob", "reading")
    assert rows(comm, "SELECT channel_name, agent_id, subscribed_at FROM channel_subscriptions") == []
    assert rows(comm, "SELECT id, original_message, error, moved_at, retry_count FROM dead_letter_queue") == []


def test_the_connection_reads_rows_by_place_and_by_name(comm: CommunicationSystem) -> None:
    send(comm, 1)
    send(comm, 2, to_agent="bob")
    comm.send_heartbeat("bob", "active", "reading")

    with comm.connection as conn:
        cursor = conn.execute("SELECT COUNT(*) FROM messages WHERE status = 'pending'")
        first = cursor.fetchone()
        assert first is not None
        assert first[0] == 2
        assert cursor.fetchone() is None

        cursor = conn.execute("SELECT * FROM agent_status")
        assert [dict(row) for row in cursor] == [comm.get_agent_health("bob")]

        (row,) = conn.execute(
            "SELECT from_agent, payload AS body FROM messages WHERE to_agent = ?", ("bob",)
        ).fetchall()
    assert (row["from_agent"], row["body"], row[0], row[-1]) == ("ada", '{"n":2}', "ada", '{"n":2}')
    assert (tuple(row), len(row), row.keys()) == (("ada", '{"n":2}'), 2, ["from_agent", "body"])
    with pytest.raises(IndexError, match=r"no column 'to'; the columns are from_agent, body"):
        row["to"]


@pytest.mark.parametrize(
    "sql",
    [
        "DELETE FROM messages",
        "INSERT INTO messages (id) VALUES ('x')",
        "UPDATE mail SET state = 2",
        "DROP VIEW messages",
    ],
)
def test_the_connection_changes_nothing(comm: CommunicationSystem, sql: str) -> None:
    send(comm, 1)
    with pytest.raises(RoomError, match=r"only reading is allowed here|cannot modify messages because it is a view"):
        comm.connection.execute(sql)
    assert waiting(comm) == [1]


def test_the_connection_answers_one_query_and_a_comment_behind_it_is_none(comm: CommunicationSystem) -> None:
    assert [dict(row) for row in comm.connection.execute("SELECT 1 AS a; -- one")] == [{"a": 1}]
    with pytest.raises(RoomError, match="only one query is answered"):
        comm.connection.execute("SELECT 1 AS a; SELECT 2 AS b")


@pytest.mark.parametrize("value", [object(), "\ud800"], ids=["no type of SQLite's", "no text"])
def test_a_value_that_no_query_can_have_is_told_as_every_other_fault_of_it(
    comm: CommunicationSystem, value: object
) -> None:
    with pytest.raises(RoomError, match="the query failed"):
        comm.connection.execute("SELECT ?", (value,))


@pytest.mark.skipif(shutil.which("sqlite3") is None, reason="there is no sqlite3 program on this machine")
def test_the_tables_can_be_read_with_the_sqlite_program(comm: CommunicationSystem) -> None:
    id = send(comm, 1)

    def shell(sql: str) -> list[dict[str, Any]]:
        done = subprocess.run(["sqlite3", "-json", comm.db_path, sql], capture_output=True, text=True, check=True)
        return json.loads(done.stdout) if done.stdout else []

    (row,) = shell("SELECT * FROM messages")
    assert (row["id"], row["status"], json.loads(row["payload"])) == (id, "pending", {"n": 1})
    assert shell("SELECT COUNT(*) AS n FROM messages WHERE status = 'pending'") == [{"n": 1}]
    assert shell("SELECT * FROM agent_status") == []
