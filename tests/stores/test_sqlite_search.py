"""Full-text search in SQLite: what keeps the index, what clears it, and that nobody else pays for it."""

from __future__ import annotations

import importlib
import itertools
import json
import random
import re
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import apsw
import pytest

from postroom.core.clock import ManualClock
from postroom.core.config import Config
from postroom.core.message import Draft, check
from postroom.core.search_query import parse_query
from postroom.errors import RoomDamaged
from postroom.room import Room, open_room
from postroom.stores.contract import Query, Want
from postroom.stores.sqlite.store import SqliteStore

index = importlib.import_module("postroom.stores.sqlite.search")  # itself, and not what stands for it until it is used


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "room"


@pytest.fixture
def room(folder: Path) -> Iterator[Room]:
    with open_room(folder, clock=ManualClock()) as room:
        yield room


def send(room: Room, *texts: str) -> list[str]:
    return room.agent("ada", transient=True).send_many([{"to": "bob", "payload": {"text": text}} for text in texts])


def meta(room: Room) -> dict[str, Any]:
    store: Any = room.store
    return dict(store.read_only("SELECT name, value FROM meta")[1])


# Nobody pays who does not search

QUIET = """
import sys, postroom
with postroom.open(sys.argv[1]) as room:
    ada, bob = room.agent("ada"), room.agent("bob")
    ada.send("bob", {"text": "hello"})
    with bob.receive(timeout_s=5):
        pass
    room.gateway.sweep()
    room.purge(state="acked")
print([name for name in sys.modules if "search" in name])
print(room.url.rest)
"""


def test_without_a_search_nothing_is_loaded_and_nothing_is_made_for_it(folder: Path) -> None:
    done = subprocess.run([sys.executable, "-c", QUIET, str(folder)], capture_output=True, text=True, check=True)

    assert done.stdout.splitlines()[0] == "[]"
    connection = apsw.Connection(str(folder / "messages.db"))
    assert (
        connection.execute("SELECT name FROM sqlite_schema WHERE name LIKE 'mail_%' OR type = 'trigger'").fetchall()
        == []
    )
    connection.close()


def statements_of_a_message(room: Room) -> list[str]:
    """Every statement that runs for a message, from send to ack."""
    said: list[str] = []
    connection = room.store._file.connection()  # type: ignore[attr-defined]

    def note(_: object, sql: str, __: object) -> bool:
        said.append(sql)
        return True

    connection.exec_trace = note
    room.agent("ada", transient=True).send("bob", {"text": "hello"})
    (delivery,) = room.store.claim(Want(agent="bob", lease_s=30)).deliveries
    room.store.settle(delivery.ticket, "acked")
    connection.exec_trace = None
    return said


def test_the_way_of_a_message_is_the_same_with_an_index_and_without(room: Room) -> None:
    statements_of_a_message(room)  # which makes the agent known
    before = statements_of_a_message(room)
    assert room.search("hello")
    after = statements_of_a_message(room)

    assert after == before and len(before) < 8
    assert not any("mail_words" in sql or "meta" in sql for sql in after)


# Keeping it up


def test_a_sweep_brings_the_index_up_to_date_and_does_not_make_one(room: Room) -> None:
    send(room, "first")
    room.store.sweep()
    assert "search mark" not in meta(room)
    room.search("first")
    send(room, *map(str, range(1200)))
    behind = meta(room)["search mark"]

    room.store.sweep()

    assert meta(room)["search mark"] == room.store._file.execute("last_key")[0][0] > behind  # type: ignore[attr-defined]


def test_many_messages_are_indexed_in_steps_that_are_told(room: Room, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(index, "_INDEXED_AT_ONCE", 100)
    send(room, *["hay"] * 250)
    steps: list[tuple[int, int]] = []

    room.search("hay", told=lambda *step: steps.append(step))

    assert steps == [(100, 250), (200, 250), (250, 250)]
    monkeypatch.setattr(index, "_BYTES_AT_ONCE", 1000)
    send(room, *["x" * 600] * 5)
    room.search("hay", told=lambda *step: steps.append(step))
    assert steps[3:] == [(2, 5), (4, 5), (5, 5)]


def test_an_interrupted_first_search_keeps_what_it_has_and_the_next_goes_on(room: Room) -> None:
    send(room, *map(str, range(1300)))

    def interrupt(done: int, total: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        room.search("7", told=interrupt)
    left: list[int] = []
    assert len(room.search("7", told=lambda _, total: left.append(total))) == 1
    assert left[0] == 800


DIES = """
import sys, postroom
from postroom.core import crashpoints
room = postroom.open(sys.argv[1])
crashpoints.die_at("sqlite.written", times_passed=2)  # the index is made, and the first step is done
room.search("needle")
"""


def test_a_process_that_is_killed_while_it_indexes_leaves_an_index_that_misses_nothing(folder: Path) -> None:
    with open_room(folder) as room:
        ids = send(room, *(f"needle {n}" for n in range(1200)))
    died = subprocess.run([sys.executable, "-c", DIES, str(folder)], check=False)
    assert died.returncode == -9

    with open_room(folder) as room:
        found = room.search("needle", limit=5000)
        assert [message.id for message in found] == ids[::-1]


def test_searches_of_many_at_once_index_each_message_once(folder: Path) -> None:
    with open_room(folder) as room:
        ids = send(room, *(f"needle {n}" for n in range(3000)))
        counts: list[int] = []
        threads = [
            threading.Thread(target=lambda: counts.append(len(room.search("needle", limit=9999)))) for _ in range(4)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

        assert counts == [3000] * 4
        room.purge(ids=ids[:1000])  # which would spoil an index that has a message twice
        assert len(room.search("needle", limit=9999)) == 2000
    connection = apsw.Connection(str(folder / "messages.db"))
    connection.execute("INSERT INTO mail_words (mail_words) VALUES ('integrity-check')")
    connection.close()


def test_what_is_stored_while_others_search_is_in_the_next_search(folder: Path) -> None:
    """Every search finds all that was stored before it began, while another process's thread keeps sending."""
    over = threading.Event()
    with open_room(folder) as room, open_room(folder) as other:
        stored: list[str] = []

        def keep_sending() -> None:
            while not over.is_set():
                stored.append(other.agent("ci", transient=True).send("bob", {"text": "needle"}))

        sender = threading.Thread(target=keep_sending)
        sender.start()
        try:
            for _ in range(30):
                before = list(stored)
                found = {message.id for message in room.search("needle", limit=10**6)}
                assert found.issuperset(before)
        finally:
            over.set()
            sender.join()


def test_a_clock_that_was_set_back_does_not_hide_messages_from_before_and_after(folder: Path) -> None:
    clock = ManualClock()
    with open_room(folder, clock=clock) as room:
        (first,) = send(room, "needle one")
        early_ms = clock.wall_ms()
        clock.jump_wall(-50 * 3600)
        (second,) = send(room, "needle two")
        clock.jump_wall(100 * 3600)
        (third,) = send(room, "needle three")
        store, terms = room.store, parse_query("needle").terms

        def found(**times: Any) -> list[str]:
            page = store.find_text(Query(**times), terms)
            assert page is not None
            return [message.id for message in page.messages]

        assert found(sent_after_ms=early_ms) == [third, first]
        assert found(sent_before_ms=early_ms) == [second]
        assert found(sent_after_ms=early_ms - 1, sent_before_ms=early_ms + 1) == [first]
        assert found(sent_after_ms=early_ms + 10**9) == [] == found(sent_before_ms=0)


# Clearing it


def traces(folder: Path, word: str) -> list[str]:
    """The files of a room that have this word in them, wherever it stands.

    The index has words in small letters alone: what was sent in large ones stands so nowhere else.
    """
    return [path.name for path in folder.rglob("*") if path.is_file() and word.encode() in path.read_bytes()]


@pytest.mark.parametrize("count", [1, 50, 51, 700])
def test_of_purged_messages_no_word_is_left_in_any_file(folder: Path, count: int) -> None:
    with open_room(folder) as room:
        kept = send(room, *(f"ordinary{n} words" for n in range(300)))
        secret = send(room, *(f"XYLOPHONE{n} HUNTER2SECRET words" for n in range(count)))
        assert len(room.search("hunter2secret", limit=1000)) == count
        send(room, "more words")
        room.search("more")
        assert traces(folder, "hunter2secret")
        assert room.purge(ids=secret) == count

        assert not room.search("hunter2secret") and not room.search("xylophone*")
        assert len(room.search("words", limit=1000)) == len(kept) + 1
    assert traces(folder, "hunter2secret") == traces(folder, "xylophone") == []
    assert traces(folder, "HUNTER2SECRET") == []  # these were never claimed: SQLite wrote each of them once
    assert traces(folder, "ordinary1") == ["messages.db"]


@pytest.mark.parametrize("count", [20, 900])
def test_of_messages_that_are_kept_no_longer_no_word_is_left_after_some_sweeps(folder: Path, count: int) -> None:
    clock = ManualClock()
    with open_room(folder, clock=clock, keep_s=60) as room:
        send(room, *(f"XYLOPHONE{n} HUNTER2SECRET" for n in range(count)))
        while room.store.claim(Want(agent="bob", lease_s=1, limit=100, settle=True)).deliveries:
            pass
        send(room, "still there")
        assert room.search("hunter2secret")
        room.store.sweep()  # and the log lies in the file
        assert traces(folder, "hunter2secret")
        clock.advance(61)

        for _ in range(20):
            room.store.sweep()

        assert not room.search("hunter2secret") and len(room.search("still")) == 1
        assert meta(room).get("search merge", 0) == 0
    assert traces(folder, "hunter2secret") == traces(folder, "xylophone") == []


def test_no_statement_changes_what_the_index_was_made_of(room: Room) -> None:
    """To be taken out of the index a message must be as it was when it came in (`said` in schema.sql)."""
    statements = room.store._file.statements  # type: ignore[attr-defined]
    made_of = ("payload", "from_agent", "to_agent", "channel", "type", "sent_ms", "key")
    changing = [
        name
        for name, sql in statements.items()
        if sql.lstrip().startswith("UPDATE")
        and any(re.search(rf"[ ,(]{column} = ", sql.partition("WHERE")[0]) for column in made_of)
    ]

    assert changing == []


# Rooms of other kinds


def test_a_room_that_can_only_be_looked_at_is_searched_by_its_index_or_by_reading(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store: Any
    with open_room(folder) as room:
        send(room, "needle one", "needle two")
        store = room.store
        store._file.why_only_looking = "its disk is full"
        assert len(found := room.search("needle")) == 2 and found.read == 2
        assert "search mark" not in meta(room)
        store._file.why_only_looking = ""
        room.search("needle")
        store._file.why_only_looking = "its disk is full"
        assert room.search("needle").read is None  # the index is whole
        send(room, "needle three")
        assert len(found := room.search("needle")) == 3 and found.read == 3


def test_a_payload_that_is_no_json_does_not_keep_others_from_being_found(folder: Path) -> None:
    with open_room(folder) as room:
        send(room, "needle one", "needle two")
    connection = apsw.Connection(str(folder / "messages.db"))
    connection.execute("UPDATE mail SET payload = '{\"text' WHERE key = (SELECT min(key) FROM mail)")
    connection.close()

    with open_room(folder) as room:
        assert [message.payload for message in room.search("needle")] == [{"text": "needle two"}]


def test_a_view_in_the_place_of_the_index_is_refused(folder: Path) -> None:
    open_room(folder).close()
    connection = apsw.Connection(str(folder / "messages.db"))
    connection.execute("CREATE VIEW mail_words AS SELECT 1")
    connection.close()

    with pytest.raises(RoomDamaged, match="mail_words"):
        SqliteStore(folder, Config(), ManualClock())


# Speed


def words(seed: int) -> Iterator[str]:
    """Words as a language has them: a few are in most texts, most are in few."""
    chance = random.Random(seed)
    known = ["".join(chance.choices("abcdefghijklmnopqrstuvwxyz", k=chance.randint(3, 9))) for _ in range(20_000)]
    weights = list(itertools.accumulate(1 / (rank + 1) for rank in range(len(known))))
    while True:
        yield from chance.choices(known, cum_weights=weights, k=1000)


def p95_ms(room: Room, count: int, said: Iterator[str]) -> float:
    took = []
    for turn in range(count):
        one, two = next(said), next(said)
        query = (one, f"{one} {two}", f'"{one} {two}"', f"{one} -{two}", f"{one} from:agent-3", f"{one} after:1h")[
            turn % 6
        ]
        began = time.perf_counter()
        room.search(query)
        took.append((time.perf_counter() - began) * 1000)
    return statistics.quantiles(took, n=20)[-1]


@pytest.mark.long
def test_at_a_million_messages_95_of_100_searches_take_less_than_20_ms(folder: Path) -> None:
    said = words(1)
    with open_room(folder, keep_count=10**7, keep_bytes=10**11) as room:
        for turn in range(2000):
            drafts = [
                check(Draft(from_agent=f"agent-{turn % 20}", to_agent="bob", payload={"text": " ".join(itertools.islice(said, 12)), "n": turn}))
                for _ in range(500)
            ]  # fmt: skip
            room.store.put(drafts)
        room.search("warm")
        figure = min(p95_ms(room, 300, said) for _ in range(3))
        print(json.dumps({"messages": 1_000_000, "p95_ms": round(figure, 2)}))

        assert figure < 20
