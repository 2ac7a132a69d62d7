"""What is true of the SQLite store in particular; what every store promises is in test_store_contract.py."""

from __future__ import annotations

import errno
import itertools
import os
import re
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import apsw
import pytest

from postroom.core import crashpoints
from postroom.core.clock import SYSTEM, ManualClock
from postroom.core.config import Config
from postroom.core.message import Draft, check
from postroom.core.states import PUBLIC_NAME, STATUS_WORD, State, judge
from postroom.core.system.files import file_system_type
from postroom.core.system.process import this_process
from postroom.errors import RoomBusy, RoomClosed, RoomDamaged, RoomError, RoomGone, RoomUnsafe
from postroom.stores.bells.bells import Watcher
from postroom.stores.contract import Delivery, Query, Waiter, Want, topic_to
from postroom.stores.sqlite import file, layout
from postroom.stores.sqlite.layout import ROWS_AT_ONCE, at_once, sqlite_is_safe
from postroom.stores.sqlite.store import SqliteStore


@pytest.fixture
def clock():
    return ManualClock()


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "room"


@pytest.fixture
def store(folder, clock):
    store = SqliteStore(folder, Config(), clock)
    yield store
    store.close()


#: An id as another room would give it.
SOME_ID = "01999999-9999-7999-8999-999999999999"


def draft(to_agent: str | None = "bob", **fields: object) -> Draft:
    return check(Draft(from_agent="ada", to_agent=to_agent, payload={"n": 1}, **fields))  # type: ignore[arg-type]


def bare(folder: Path) -> apsw.Connection:
    """The file, opened without Postroom."""
    return apsw.Connection(str(folder / "messages.db"))


def rows_of(folder: Path) -> list[tuple[Any, ...]]:
    """All that is kept of each message but its key, in their order."""
    database = bare(folder)
    columns = [name for _, name, *_ in database.execute("PRAGMA table_info(mail)") if name != "key"]
    return database.execute(f"SELECT {', '.join(columns)} FROM mail ORDER BY key").fetchall()


# Hints


def put_back(store: SqliteStore) -> None:
    (delivery,) = store.claim(Want(agent="bob", lease_s=30)).deliveries
    store.settle(delivery.ticket, "retry")


RINGING = {
    "a send": lambda store: store.put([draft()]),
    "several sends": lambda store: store.put([draft(), draft("cid")]),
    "a claim and a retry": put_back,
    "a cell": lambda store: store.cell_write("plan/a", 1),
}


@pytest.mark.parametrize("step", RINGING)
def test_a_bell_rings_when_what_it_rings_for_can_be_seen_by_others(step, store, folder, monkeypatch):
    store.put([draft()])
    other, versions = bare(folder), []
    version = other.execute("PRAGMA data_version").get
    monkeypatch.setattr(
        store._steps.bells, "ring", lambda *_: versions.append(other.execute("PRAGMA data_version").get)
    )
    RINGING[step](store)
    other.close()
    assert versions
    assert len({version, *versions}) == 1 + len(versions), "it rang before the commit"


# The plans of the statements


CLAIMS = (
    "claim_general",
    "claim_elsewhere",
    "claim_in_channel",
    "claim_for_anyone",
    "claim_by_key",
    "due",
    "ended_leases",
)


def plan_of(folder: Path, sql: str) -> list[str]:
    """How SQLite would run the statement, step by step."""
    bindings = (1,) * max(map(int, re.findall(r"\?(\d+)", sql)), default=0)
    db = bare(folder)
    db.create_scalar_function("tick", lambda *_: 1, 0)
    return [row[3] for row in db.execute(f"EXPLAIN QUERY PLAN {sql}", bindings)]


@pytest.mark.parametrize(
    "name", [*CLAIMS, "ack", "finish", "take", "take_and_ack", "extend", "changed_after", "stored_after"]
)
def test_no_statement_in_the_way_of_a_message_scans_or_sorts(store, folder, name):
    store.put([draft(channel=channel) for channel in ("general", "reviews") for _ in range(50)])
    store.sweep()
    plan = plan_of(folder, store._file.statements[name])
    assert plan
    known = name in ("take", "take_and_ack")  # these compare the version of the limits: one search more
    limits = ["SCALAR SUBQUERY 1", "SEARCH cells USING PRIMARY KEY (name=?)"] if known else []
    assert plan[1:] == limits, plan
    assert plan[0].startswith("SEARCH mail"), plan


def test_the_next_timer_is_one_step_down_each_of_two_indexes(store, folder):
    plan = plan_of(folder, store._file.statements["next_timers"])
    reads = [step for step in plan if "mail" in step]
    assert len(reads) == 2, plan
    assert all(step.startswith("SEARCH mail USING") for step in reads), plan
    assert not [step for step in plan if "TEMP B-TREE" in step], plan


@pytest.mark.parametrize("fields", [{}, {"claimed_by": "bob"}, {"claimed_by": "bob", "channels": ("work",)}])
@pytest.mark.parametrize("order", ["oldest", "newest"])
def test_what_is_claimed_is_found_without_reading_everything(store, folder, fields, order, monkeypatch):
    """In a room of a million messages a look at what an agent holds reads the claims alone, with or without statistics."""
    store.put([draft() for _ in range(300)])
    store.claim(Want(agent="bob", lease_s=30, limit=3))
    asked = []
    select = store._file.select

    def spy(sql, bindings):
        asked.append((sql, bindings))
        return select(sql, bindings)

    monkeypatch.setattr(store._file, "select", spy)
    for gathered in (False, True):
        if gathered:
            bare(folder).execute("ANALYZE").fetchall()
        store.find(Query(states=frozenset({State.CLAIMED}), order=order, **fields))
        ((sql, bindings),) = asked
        plan = [row[3] for row in bare(folder).execute(f"EXPLAIN QUERY PLAN {sql}", bindings)]
        reads = [step for step in plan if "mail" in step]
        assert len(reads) == 2, plan
        assert reads[0].startswith("SEARCH mail USING INTEGER PRIMARY KEY (rowid=?)"), plan
        assert reads[1].startswith("SEARCH mail USING INDEX live (live_agent=? AND live_channel=?)"), plan
        asked.clear()


@pytest.mark.parametrize("order", ["oldest", "newest"])
@pytest.mark.parametrize("link", ["chain_id", "correlation_id", "answer_to"])
def test_the_links_of_a_thread_are_found_without_reading_everything(store, folder, link, order, monkeypatch):
    """In a room of a million messages a thread is a few searches in indexes, with or without statistics."""
    (first,) = store.put([draft()])
    store.put([draft(**{link: first}) for _ in range(3)] + [draft() for _ in range(300)])
    asked = []
    select = store._file.select

    def spy(sql, bindings):
        asked.append((sql, bindings))
        return select(sql, bindings)

    monkeypatch.setattr(store._file, "select", spy)
    for gathered in (False, True):
        if gathered:
            bare(folder).execute("ANALYZE").fetchall()
        assert len(store.find(Query(**{link: first}, order=order)).messages) == 3
        ((sql, bindings),) = asked
        plan = [row[3] for row in bare(folder).execute(f"EXPLAIN QUERY PLAN {sql}", bindings)]
        assert not [step for step in plan if re.match("SCAN (mail|answer)", step)], plan
        asked.clear()


def test_a_plain_message_of_a_batch_is_stored_as_one_by_itself_is(store, folder):
    store.put([draft()])
    store.put([draft(), draft()])
    asked: list[str] = []

    def note(_cursor: object, sql: str, _bindings: object) -> bool:
        asked.append(sql)
        return True

    store._file.connection().set_exec_trace(note)
    store.put([draft() for _ in range(ROWS_AT_ONCE + 2)])

    one = store._file.statements["insert_plain"]
    assert {one, at_once(one)} <= {*asked}
    assert len({*rows_of(folder)}) == 1


@pytest.mark.parametrize("fields", [{}, {"ttl_s": 9}])
def test_each_message_of_a_large_batch_is_stored_under_its_own_id(store, fields):
    drafts = [check(Draft("ada", {"n": n}, "bob", f"c{n}", **fields)) for n in range(2 * ROWS_AT_ONCE + 3)]
    stored = [store.get(id) for id in store.put(drafts)]

    assert [(each.payload, each.channel) for each in stored] == [(each.payload, each.channel) for each in drafts]
    assert {each.expires_at_ms is not None for each in stored} == {bool(fields)}


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("ttl_s", 9), ("delay_s", 1), ("correlation_id", "c"), ("idempotency_key", "k"), ("chain_id", "x"), ("hop_count", 2),
        ("lane", "human"), ("trace", "t"), ("publish", True), ("waiter", "host:1:2"), ("answer_to", SOME_ID),
        ("replay_of", SOME_ID), ("order_key", "o"), ("replaces", SOME_ID),
    ],
)  # fmt: skip
def test_a_message_of_a_batch_that_is_not_plain_is_stored_whole(store, folder, field, value):
    store.subscribe("general", "carol")
    store.put([draft(), draft(**{field: value})])
    store.put([draft(**{field: "k2" if field == "idempotency_key" else value})])

    plain, of_batch, by_itself = rows_of(folder)
    if field == "idempotency_key":
        of_batch = tuple("k2" if each == "k" else each for each in of_batch)
    if field == "order_key":  # it waits behind the one of the batch
        of_batch, by_itself = of_batch[1:], by_itself[1:]
    assert of_batch == by_itself
    assert of_batch != plain


def test_an_answer_has_no_entry_in_the_index_of_chains(store, folder):
    (first,) = store.put([draft()])
    store.put([draft(chain_id=first), draft(chain_id=first, answer_to=first)])

    entries = "SELECT count(*) FROM mail INDEXED BY chains WHERE chain_id IS NOT NULL AND answer_to IS NULL"
    assert bare(folder).execute(entries).fetchall() == [(1,)]


@pytest.mark.parametrize("name", ["insert", "take", "take_and_ack", "ack", "finish"])
def test_no_statement_in_the_way_of_a_message_makes_a_table_in_memory(store, name):
    assert "RETURNING" not in store._file.statements[name]


def test_claims_keep_their_plans_when_sqlite_has_gathered_statistics(store, folder):
    store.put([draft(channel=f"c{n % 7}", priority=1 + n % 10) for n in range(300)])
    bare(folder).execute("ANALYZE").fetchall()
    for name in CLAIMS:
        assert not [step for step in plan_of(folder, store._file.statements[name]) if "TEMP B-TREE" in step]


@pytest.mark.parametrize("name", [*CLAIMS, "claim_one", "claim_one_in_channel", "look", "take", "ack"])
def test_a_statement_in_the_way_of_a_message_is_planned_once(store, name):
    """Guards the QPSG setting: without it ORDER BY with bound values is planned anew at each call, many times slower."""
    store.put([draft() for _ in range(50)])
    planned = []

    def note(*what: object) -> int:
        planned.append(what)
        return apsw.SQLITE_OK

    def run(number: int) -> None:
        store._file.execute(name, [number] * places)

    places = max(map(int, re.findall(r"\?(\d+)", store._file.statements[name])))
    store._file.connection().set_authorizer(note)  # SQLite asks it what is allowed whenever it plans a statement
    run(1)
    assert planned
    planned.clear()
    for number in range(2, 10):
        run(number)
    assert planned == []


# The tables as the source document reads them


def test_the_schema_knows_the_same_states_as_the_table_of_states(store):
    rules = store._file.statements
    for state in State:
        store._file.select("BEGIN IMMEDIATE")
        store._file.execute(
            "insert",
            (1, int(state), None, 5, "b", "c", "a", "t", "1.0", 3, 0, *[None] * 4, 0, "agent", *[None] * 6, "{}"),
        )
        status = store._file.select("SELECT status FROM messages WHERE state = ?", (int(state),))[0][0]
        store._file.select("ROLLBACK")
        assert status == STATUS_WORD[state]
        assert re.search(rf"{int(state)} {state.name}\b", (Path(layout.__file__).with_name("schema.sql")).read_text())
    assert "{" not in rules["judged"]


@pytest.mark.parametrize("gone", ["", "7", "6, 7"])
def test_a_state_is_judged_alike_in_sql_and_in_python(store, gone):
    rule = store._file.statements["judged"].replace("/*gone*/", gone)
    times = (None, 5, 10, 15)
    for state, wake_at, expires, spent in itertools.product(State, times, times, (False, True)):
        sql = (
            f"SELECT {rule} FROM (SELECT :state AS state, :wake_at AS wake_at, :expires AS expires, "
            ":count AS delivery_count, 3 AS max_deliveries, 7 AS owner)"
        )
        bindings = {"state": int(state), "wake_at": wake_at, "expires": expires, "count": 3 if spent else 1, "now": 10}
        ends = 10 if gone and state is State.CLAIMED else wake_at
        assert store._file.select(sql, bindings)[0][0] == judge(state, ends, expires, spent, 10)


def test_the_debugging_queries_of_the_source_work_on_the_file_itself(store, folder):
    store.cell_write("agent/bob", {"status": "active", "current_task": "T1", "heartbeat_ms": 0, "first_seen_ms": 0})
    sent = store.put([draft(), draft(), draft(max_deliveries=1)])
    for outcome in ("acked", "dead"):
        store.settle(store.claim(Want(agent="bob", lease_s=9)).deliveries[0].ticket, outcome, detail="why")
    with bare(folder) as db:
        columns = [name for name, *_ in db.execute("SELECT * FROM messages").get_description()]
        pending = db.execute("SELECT COUNT(*) FROM messages WHERE status = 'pending'").fetchall()
        agents = db.execute("SELECT * FROM agent_status").fetchall()
        dead = db.execute("SELECT id, original_message, error, retry_count FROM dead_letter_queue").fetchall()
        ids = [id for (id,) in db.execute("SELECT id FROM messages ORDER BY key")]
    assert {"id", "type", "timestamp", "from_agent", "payload", "status", "created_at", "expires_at", "error"} <= set(
        columns
    )
    assert pending == [(1,)]
    assert agents == [("bob", "active", "T1", "1970-01-01T00:00:00.000Z", 1, 1, 1)]
    assert dead == [(sent[1], '{"n":1}', "why", 1)]
    assert ids == sent


def test_what_an_agent_did_stays_counted_when_the_messages_are_forgotten(folder, clock):
    store = SqliteStore(folder, Config(keep_count=0), clock)
    store.cell_write("agent/bob", {"status": "active", "heartbeat_ms": 0})
    store.put([draft() for _ in range(5)])
    for _ in range(5):
        store.claim(Want(agent="bob", lease_s=9, settle=True))
    assert store.sweep().purged == 5
    assert store.read_only("SELECT messages_processed FROM agent_status")[1] == [(5,)]
    assert store.stats().states["acked"] == 0
    store.close()


# Claims that had to wait for the write lock


@pytest.fixture
def a_wait_for_the_lock(store, clock, monkeypatch):
    """Call it, and from then on who writes several things gets the lock only after six seconds."""
    begin = store._file.begin

    def wait_and_begin() -> None:
        clock.advance(6)
        begin()

    return lambda: monkeypatch.setattr(store._file, "begin", wait_and_begin)


def test_a_claim_that_waited_for_the_lock_has_its_whole_lease(store, clock, a_wait_for_the_lock):
    store.put([draft()])
    a_wait_for_the_lock()
    (delivery,) = store.claim(Want(agent="bob", lease_s=5)).deliveries
    assert delivery.message.lease_until_ms == clock.wall_ms() + 5000
    assert delivery.message.delivery_count == 1


def test_a_message_that_expired_while_the_claim_waited_for_the_lock_is_not_given(store, a_wait_for_the_lock):
    (id,) = store.put([draft(ttl_s=3)])
    a_wait_for_the_lock()
    assert store.claim(Want(agent="bob", lease_s=30)).deliveries == []
    assert store.get(id).exact_state is State.EXPIRED


# Safety


@pytest.mark.parametrize(
    ("version", "safe"),
    [
        ("3.7.0", False), ("3.40.1", False), ("3.44.5", False), ("3.44.6", True), ("3.45.1", False), ("3.50.6", False),
        ("3.50.7", True), ("3.51.0", False), ("3.51.2", False), ("3.51.3", True), ("3.52.0", False), ("3.53.0", True),
        ("3.54.1", True), ("4.0.0", True),
    ],
)  # fmt: skip
def test_sqlite_versions_that_can_lose_a_commit_are_refused(version, safe, monkeypatch, folder):
    assert sqlite_is_safe(version) is safe
    monkeypatch.setattr(apsw, "sqlite_lib_version", lambda: version)
    if not safe:
        with pytest.raises(RoomUnsafe, match=re.escape(version)):
            SqliteStore(folder, Config(), SYSTEM)


def test_a_network_file_system_is_refused_with_the_reason(monkeypatch, folder):
    monkeypatch.setattr(layout, "file_system_type", lambda _: "nfs4")
    with pytest.raises(RoomUnsafe, match="network file system .nfs4.*local disk"):
        SqliteStore(folder, Config(), SYSTEM)
    assert not folder.exists()


def test_the_file_system_of_a_folder_is_found_by_its_longest_mount_point():
    assert file_system_type(Path("/proc/self")) == "proc"


def test_only_the_owner_may_read_a_room(store, folder):
    store.put([draft()])
    assert folder.stat().st_mode & 0o777 == 0o700
    assert {name: (folder / name).stat().st_mode & 0o777 for name in os.listdir(folder)} == dict.fromkeys(
        os.listdir(folder), 0o600
    )


@pytest.mark.parametrize(("attempt", "error"), [("use", RoomClosed), ("open", RoomUnsafe)])
def test_a_fork_is_refused_the_room_that_was_open_before_it_and_harms_nothing(store, folder, attempt, error):
    """SQLite in a fork believes to hold its parent's locks: a send there would return and reach nobody."""
    store.put([draft()])
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            (store if attempt == "use" else SqliteStore(folder, Config(), SYSTEM)).put([draft()])
        except error as refusal:
            os.write(write, str(refusal).encode())
        store.close()
        os._exit(0)
    os.waitpid(child, 0)
    os.close(write)  # so that a child that said nothing is the end of the file, not a wait for ever
    assert b"fork before you open the room" in os.read(read, 4096)
    store.put([draft()])
    assert store.stats().states["stored"] == 2
    os.close(read)


def test_a_fork_may_open_a_room_that_was_closed_before_it(folder):
    store = SqliteStore(folder, Config(), SYSTEM)
    again = SqliteStore(folder, Config(), SYSTEM)
    store.close()
    again.close()
    child = os.fork()
    if child == 0:
        SqliteStore(folder, Config(), SYSTEM).put([draft()])
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    store = SqliteStore(folder, Config(), SYSTEM)
    assert store.stats().states["stored"] == 1
    store.close()


#: Forks a child that never touches the room; closes it; then somebody else sends and is killed. Then the child ends as programs do.
_FORKS_AND_GOES_ON = """
import os, signal, subprocess, sys
import postroom
address, told_from = sys.argv[1], os.pipe()
room = postroom.open(address)
room.agent("ada").send("bob", {"n": 0})
child = os.fork()
if child == 0:
    os.read(told_from[0], 1)
    sys.exit(0)
room.close()
sends = "import os, sys, postroom; print(postroom.open(sys.argv[1]).agent('ada').send('bob', {})); sys.stdout.flush(); os.kill(os.getpid(), 9)"
id = subprocess.run([sys.executable, "-c", sends, address], capture_output=True, text=True).stdout.strip()
os.write(told_from[1], b"!")
assert os.waitpid(child, 0)[1] == 0
print(postroom.open(address).receipt(id).state)
"""


def test_a_fork_that_ends_takes_nothing_along_that_others_have_sent_since(folder):
    """At its end the interpreter closes what was inherited. SQLite must not delete the log then: it is another by now."""
    run = subprocess.run(
        [sys.executable, "-c", _FORKS_AND_GOES_ON, f"sqlite:{folder}"], capture_output=True, text=True, timeout=60
    )
    assert run.stdout == "stored\n", run.stderr


def test_a_process_that_is_forked_off_while_a_room_is_opened_keeps_nobody_out(folder, monkeypatch):
    """It has the door's file open, too, and would keep the lock for as long as it runs."""
    told, tell = os.pipe()
    prepare = layout.prepare
    children = []

    def prepare_and_fork(*args: Any) -> layout.DatabaseLayout:
        children.append(os.fork())
        if children[-1] == 0:
            os.read(told, 1)
            os._exit(0)
        return prepare(*args)

    monkeypatch.setattr(file, "prepare", prepare_and_fork)
    SqliteStore(folder, Config(), SYSTEM).close()
    monkeypatch.setattr(file, "prepare", prepare)
    opening = threading.Thread(target=lambda: SqliteStore(folder, Config(), SYSTEM).close(), daemon=True)
    opening.start()
    opening.join(10)
    kept_out = opening.is_alive()
    os.write(tell, b"!")
    os.waitpid(children[0], 0)
    opening.join()
    os.close(told)
    os.close(tell)
    assert not kept_out


def test_who_has_no_descriptors_left_to_be_woken_by_watches(store, monkeypatch):
    def none_left(*_: object) -> Waiter:
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(store._steps.bells, "listen", none_left)
    with store.listen(["to/bob"]) as waiter:
        assert isinstance(waiter, Watcher)


def test_cells_are_found_whatever_their_names_begin_with(store):
    names = [f"agent/{name}" for name in ("a", "\U0010ffff", "\U0010ffff" * 3)]
    for name in names:
        store.cell_write(name, 1)
    assert [cell.name for cell in store.cell_scan("agent/")] == names


# Those who died, and many timers at once


@pytest.mark.parametrize("way", ["claim", "settle"])
def test_what_a_dead_process_held_comes_back_also_where_there_is_always_something_else(store, clock, monkeypatch, way):
    """Who always finds mail never looks in vain: it must look for the dead all the same."""
    urgent, *_ = store.put([draft(priority=9), draft(), draft(), draft()])
    assert store.claim(Want(agent="bob", lease_s=600, owner="gone")).deliveries[0].message.id == urgent
    (first,) = store.claim(Want(agent="bob", lease_s=600)).deliveries
    monkeypatch.setattr(store._file.attendance, "is_alive", lambda name: name != "gone")
    clock.advance(1)
    want = Want(agent="bob", lease_s=600)
    claimed = store.claim(want) if way == "claim" else store.settle(first.ticket, "acked", claim_next=want).claimed
    assert claimed.deliveries[0].message.id == urgent


@pytest.mark.parametrize("step", ["claim", "sweep", "purge"])
def test_many_timers_that_ran_out_are_acted_on_in_portions_so_that_others_get_in(store, clock, step):
    store.put([draft(ttl_s=1) for _ in range(1300)])
    store.put([draft("carl", delay_s=2)])
    clock.advance(3)
    acted: list[int] = []
    crashpoints.at("sqlite.begun", lambda: acted.append(0))
    crashpoints.at("sqlite.expired", lambda: acted.append(acted.pop() + 1))
    try:
        if step == "claim":
            assert len(store.claim(Want(agent="carl", lease_s=9)).deliveries) == 1
        elif step == "sweep":
            assert store.sweep().expired == 1300
        else:
            assert store.purge(Query(states=frozenset({State.EXPIRED}), limit=2000)) == 1300
    finally:
        crashpoints.forget()
    assert sum(acted) == 1300
    assert max(acted) <= 1000


def test_a_room_that_others_keep_locked_says_so_and_changes_nothing(folder):
    store = SqliteStore(folder, Config(busy_timeout_s=0.1), SYSTEM)
    with bare(folder) as other:
        other.execute("INSERT INTO cells VALUES ('x', 1, '1')")
        with pytest.raises(RoomBusy, match="try again"):
            store.put([draft()])
    store.put([draft()])
    assert store.stats().states["stored"] == 1
    store.close()


def test_a_layout_of_a_later_postroom_is_left_alone(store, folder):
    store.close()
    bare(folder).execute("PRAGMA user_version = 99").fetchall()
    with pytest.raises(RoomDamaged, match="layout 99"):
        SqliteStore(folder, Config(), SYSTEM)


def test_a_file_that_is_no_database_is_left_alone(folder):
    folder.mkdir()
    (folder / "messages.db").write_bytes(b"this is not a database, whatever its name says" * 100)
    with pytest.raises(RoomDamaged, match="damaged"):
        SqliteStore(folder, Config(), SYSTEM)
    assert (folder / "messages.db").read_bytes().startswith(b"this is not")


def test_a_room_that_was_deleted_while_open_says_so_instead_of_waiting_for_ever(folder):
    store = SqliteStore(folder, Config(), SYSTEM)
    store.put([draft(to_agent="eve")])
    os.rename(folder / "messages.db", folder / "elsewhere.db")
    with pytest.raises(RoomGone, match="was deleted or moved away while the room was open"):
        store.check_there()
    os.rename(folder / "elsewhere.db", folder / "messages.db")
    with pytest.raises(RoomGone):
        store.check_there()
    store.close()


def test_the_read_only_door_reads_and_does_nothing_else(store, tmp_path):
    ids = store.put([draft()])
    assert store.read_only("SELECT id FROM messages WHERE to_agent = 'bob'") == (["id"], [(ids[0],)])
    for attempt in (
        "DELETE FROM messages",
        "UPDATE messages SET state = 2",
        f"ATTACH '{tmp_path}/x.db' AS x",
        "PRAGMA user_version = 7",
        "SELECT 1; DELETE FROM messages",
        "CREATE TABLE x (y)",
        "SELECT * FROM nothing_here",
    ):
        with pytest.raises(RoomError):
            store.read_only(attempt)
    assert store.stats().states["stored"] == 1


def test_nobody_holds_the_log_open_while_waiting(folder):
    """A read transaction that stays open would keep the write-ahead log from being folded back."""
    store = SqliteStore(folder, Config(), SYSTEM)
    ready = threading.Event()

    def receive() -> None:
        with store.listen([topic_to("bob")]) as waiter:
            assert store.claim(Want(agent="bob", lease_s=9)).deliveries == []
            ready.set()
            assert waiter.wait(10)

    receiver = threading.Thread(target=receive)
    receiver.start()
    assert ready.wait(10)
    store.put([draft(to_agent="eve")])
    busy, *_ = bare(folder).execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()[0]
    store.put([draft()])
    receiver.join()
    store.close()
    assert busy == 0


def test_keeping_history_leaves_nothing_behind_in_the_indexes_of_claims(store, folder):
    store.put([draft(channel=channel) for channel in ("general", "reviews") for _ in range(200)])
    while store.claim(Want(agent="bob", lease_s=9, settle=True, limit=50)).deliveries:
        pass
    with bare(folder) as db:
        for index in ("live", "ready_elsewhere", "ready_in_channel", "timers"):
            sql = str(db.execute("SELECT sql FROM sqlite_schema WHERE name = ?", (index,)).fetchall()[0][0])
            condition = sql.partition("WHERE")[2]
            assert db.execute(f"SELECT count(*) FROM mail WHERE {condition}").fetchall() == [(0,)]


def test_finished_messages_are_forgotten_by_age_by_number_and_by_size_and_dead_ones_are_not(folder, clock):
    store = SqliteStore(folder, Config(keep_s=60, keep_count=50), clock)
    store.put([draft(max_deliveries=1) for _ in range(80)])
    store.settle(store.claim(Want(agent="bob", lease_s=9)).deliveries[0].ticket, "dead", detail="why")
    for _ in range(79):
        store.claim(Want(agent="bob", lease_s=9, settle=True))
    assert store.sweep().purged == 29
    clock.advance(59)
    assert store.sweep().purged == 0
    clock.advance(2)
    assert store.sweep().purged == 50
    assert store.stats().states["dead"] == 1
    assert len(store.find(Query(states=frozenset({State.DEAD}))).messages) == 1
    store.close()


def test_finished_messages_are_forgotten_when_they_take_too_much_room(folder, clock):
    store = SqliteStore(folder, Config(keep_bytes=400_000), clock)
    big = check(Draft(from_agent="ada", to_agent="bob", payload={"text": "x" * 10_000}))
    store.put([big for _ in range(100)])
    while store.claim(Want(agent="bob", lease_s=9, settle=True, limit=50)).deliveries:
        pass
    purged = store.sweep().purged
    assert 50 <= purged <= 75
    store.close()


def test_numbers_are_not_given_twice_after_everything_was_deleted_and_the_clock_went_back(folder, clock):
    store = SqliteStore(folder, Config(), clock)
    first = store.put([draft() for _ in range(3)])
    assert store.purge(Query(limit=10)) == 3
    store.close()
    clock.reboot()
    clock.jump_wall(-3600)
    store = SqliteStore(folder, Config(), clock)
    second = store.put([draft()])
    assert second[0] > first[-1]
    store.close()


def test_every_public_name_of_a_state_can_be_counted(store):
    assert set(store.stats().states) == set(PUBLIC_NAME.values())


@pytest.mark.parametrize("settle", [True, False])
def test_an_answer_that_became_ordinary_mail_a_moment_ago_is_not_taken_from_who_has_it(
    store: SqliteStore, settle: bool
) -> None:
    """Between reading and taking, the asker's other thread gives up, and somebody else claims the answer."""
    (question,) = store.put([draft(waiter=this_process())])
    (delivery,) = store.claim(Want(agent="bob", lease_s=30)).deliveries
    answer = check(Draft(from_agent="bob", to_agent="ada", payload={}, answer_to=question))
    store.settle(delivery.ticket, "answered", puts=[answer])
    taken: list[Delivery] = []

    def give_up() -> None:
        crashpoints.forget()
        if settle:  # otherwise it is taken under the write lock, and nobody can come in between
            store.abandon(question)
            taken.extend(store.claim(Want(agent="ada", lease_s=30)).deliveries)

    crashpoints.at("sqlite.begun", give_up)
    try:
        found = store.claim_answer(question, Want(agent="ada", lease_s=30, settle=settle))
    finally:
        crashpoints.forget()
    assert [delivery is None for delivery in (found, *taken)] == ([True, False] if settle else [False])
    held = taken[0] if taken else found
    assert held is not None
    assert store.settle(held.ticket, "acked").held


@pytest.mark.parametrize("moment", ["before it begins", "in its step", "between a statement and its rows"])
def test_a_call_that_is_overtaken_by_the_end_of_the_room_says_that_it_is_closed(store, moment, monkeypatch):
    file = store._file

    def close() -> None:
        for connection in tuple(file._connections):
            connection.close()  # as another thread does, in the middle of closing the room

    store.put([draft()])
    if moment == "before it begins":
        close()
    elif moment == "between a statement and its rows":
        mine = file._mine.connection
        real = mine.raw

        class ClosedByAnother:
            def execute(self, *statement: Any) -> Any:
                cursor = real.execute(*statement)
                close()
                return cursor

            def __getattr__(self, name: str) -> Any:
                return getattr(real, name)

        mine.raw = ClosedByAnother()
    else:
        begin = file.begin

        def begin_and_close() -> None:
            begin()
            close()

        monkeypatch.setattr(file, "begin", begin_and_close)
    with pytest.raises(RoomClosed, match="is closed"):
        store.claim(Want(agent="bob", lease_s=1))
