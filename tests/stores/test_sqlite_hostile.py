"""A database that others made: whatever its schema and its numbers are, opening it ends, with one sentence."""

from __future__ import annotations

from pathlib import Path

import apsw
import pytest

import postroom
from postroom.errors import RoomDamaged

FOR_EVER = "WITH RECURSIVE c(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM c)"


@pytest.fixture
def place(tmp_path: Path) -> Path:
    with postroom.open(tmp_path / "room") as room:
        room.agent("ada").send("bob", {"text": "hello"})
    return tmp_path / "room"


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        (["ALTER TABLE meta RENAME TO m", f"CREATE VIEW meta AS {FOR_EVER} SELECT 'salt' AS name, x AS value FROM c"], "view 'meta'"),
        (["ALTER TABLE cells RENAME TO m", f"CREATE VIEW Cells AS {FOR_EVER} SELECT m.* FROM m, c"], "view 'Cells'"),
        ([f"CREATE TRIGGER t AFTER INSERT ON mail BEGIN UPDATE mail SET lane = 'human' WHERE key IN ({FOR_EVER} SELECT x FROM c); END"], "trigger 't'"),
        (["CREATE TRIGGER t AFTER INSERT ON mail BEGIN UPDATE mail SET lane = 'human'; END", "PRAGMA user_version = 0"], "trigger 't'"),
        (["UPDATE meta SET value = 'x' WHERE name = 'salt'"], "lacks a number"),
        (["DELETE FROM meta WHERE name = 'salt'"], "lacks a number"),
        (["UPDATE meta SET value = 'x' WHERE name GLOB 'epoch:*'"], "lacks a number"),
        (["UPDATE meta SET value = 9223372036854775807 WHERE name GLOB 'epoch:*'"], "lacks a number"),
    ],
)  # fmt: skip
def test_a_database_that_others_made_is_refused_in_a_sentence(place: Path, changes: list[str], problem: str) -> None:
    connection = apsw.Connection(str(place / "messages.db"))
    for change in changes:
        connection.execute(change)
    connection.close()
    with pytest.raises(RoomDamaged, match=problem):
        postroom.open(place)
