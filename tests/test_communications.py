from __future__ import annotations

import json
import multiprocessing
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import apsw
import pytest
from tests.support.watched_clock import WatchedClock

import postroom
from postroom import CommunicationSystem, InvalidMessage
from postroom.communications import Message
from postroom.core.clock import ManualClock, iso

COLUMNS = """
    id type version timestamp correlation_id from_agent to_agent channel priority payload status created_at expires_at
    delivery_count last_delivered_at error
""".split()

SPAWN = multiprocessing.get_context("spawn")


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def comm(tmp_path: Path, clock: ManualClock) -> Iterator[CommunicationSystem]:
    with CommunicationSystem(tmp_path, clock=clock) as comm:
        yield comm


@pytest.fixture
def live(tmp_path: Path) -> Iterator[CommunicationSystem]:
    """On the machine's own clock, for tests with threads and processes."""
    with CommunicationSystem(tmp_path) as comm:
        yield comm


def send(comm: CommunicationSystem, n: int = 0, **fields: Any) -> str:
    return comm.send_message("ada", "job", {"n": n}, **fields)


def waiting(comm: CommunicationSystem, agent: str = "bob", channel: str = "general") -> list[Any]:
    return [row["payload"]["n"] for row in comm.receive_messages(agent, [channel], limit=100)]


def rows(comm: CommunicationSystem, sql: str) -> list[dict[str, Any]]:
    """What somebody with an SQLite shell of their own would see."""
    connection = apsw.Connection(str(comm.db_path), flags=apsw.SQLITE_OPEN_READONLY)
    try:
        cursor = connection.execute(sql)
        return [dict(zip((column[0] for column in cursor.description), row, strict=True)) for row in cursor]
    finally:
        connection.close()


def row_of(comm: CommunicationSystem, id: str) -> dict[str, Any]:
    return rows(comm, f"SELECT * FROM messages WHERE id = '{id}'")[0]


def in_thread(work: Callable[[], Any]) -> Callable[[], Any]:
    """Begin the work in a thread; the function returned waits for it and gives its result."""
    result: list[Any] = []
    thread = threading.Thread(target=lambda: result.append(work()))
    thread.start()

    def join() -> Any:
        thread.join(30)
        assert not thread.is_alive()
        return result[0]

    return join


# Places


def test_everything_lies_where_the_source_says(tmp_path: Path) -> None:
    comm = CommunicationSystem(str(tmp_path))
    assert not (tmp_path / ".claude").exists()
    comm.initialize()
    assert comm.project_root == tmp_path.resolve()
    assert comm.db_path == tmp_path.resolve() / ".claude" / "communications" / "messages.db"
    assert comm.db_path.is_file()
    assert (tmp_path / ".claude" / "artifacts").is_dir()
    comm.close()


def test_a_relative_root_is_the_folder_at_the_time_of_making(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with CommunicationSystem(".") as comm:
        monkeypatch.chdir("/")
        assert comm.project_root == tmp_path.resolve()


def test_a_root_with_odd_characters_is_just_a_folder(tmp_path: Path) -> None:
    root = tmp_path / "what? 100% #1 & más:x=y"
    with CommunicationSystem(root) as comm:
        send(comm)
        assert comm.db_path.is_file()
        assert waiting(comm) == [0]


def test_initialize_can_be_repeated_and_keeps_what_is_there(comm: CommunicationSystem) -> None:
    send(comm, 1)
    comm.initialize()
    assert waiting(comm) == [1]


def test_without_initialize_everything_just_works(tmp_path: Path) -> None:
    comm = CommunicationSystem(tmp_path)
    send(comm, 1)
    assert waiting(comm) == [1]
    comm.close()


def test_after_close_the_next_call_opens_it_again(tmp_path: Path) -> None:
    comm = CommunicationSystem(tmp_path)
    send(comm, 1)
    comm.close()
    comm.close()
    assert waiting(comm) == [1]
    comm.close()


# Sending and looking


def test_a_received_message_has_exactly_the_columns_of_the_source(
    comm: CommunicationSystem, clock: ManualClock
) -> None:
    id = comm.send_message("ada", "test.ping", {"message": "hello"})
    (row,) = comm.receive_messages("bob", ["general"])
    assert list(row) == COLUMNS
    now = iso(clock.wall_ms())
    assert row == {
        "id": id,
        "type": "test.ping",
        "version": "1.0",
        "timestamp": now,
        "correlation_id": None,
        "from_agent": "ada",
        "to_agent": None,
        "channel": "general",
        "priority": 5,
        "payload": {"message": "hello"},
        "status": "pending",
        "created_at": now,
        "expires_at": None,
        "delivery_count": 0,
        "last_delivered_at": None,
        "error": None,
    }


def test_every_argument_arrives(comm: CommunicationSystem, clock: ManualClock) -> None:
    comm.send_message("ada", "job", {"n": 1}, "bob", "work", 9, "c-1", 60)
    (row,) = comm.receive_messages("bob", ["work"])
    assert (row["to_agent"], row["channel"], row["priority"], row["correlation_id"]) == ("bob", "work", 9, "c-1")
    assert row["expires_at"] == iso(clock.wall_ms() + 60_000)


def test_an_invalid_message_names_every_fault_and_is_not_stored(comm: CommunicationSystem) -> None:
    with pytest.raises(ValueError, match=r"^Invalid message: ") as caught:
        comm.send_message("ada", "job", "text", priority=11, channel="")  # type: ignore[arg-type]
    assert isinstance(caught.value, InvalidMessage)
    assert "Priority must be 1-10" in str(caught.value)
    assert "Payload must be dict" in str(caught.value)
    assert "channel: must not be empty" in str(caught.value)
    assert rows(comm, "SELECT * FROM messages") == []


def test_faults_are_named_by_the_arguments_of_the_broker(comm: CommunicationSystem) -> None:
    with pytest.raises(InvalidMessage) as caught:
        comm.send_message("ada", "", {}, ttl_seconds=-1)
    assert [fault.field for fault in caught.value.faults] == ["message_type", "ttl_seconds"]


def test_a_single_channel_must_be_a_list_too(comm: CommunicationSystem) -> None:
    with pytest.raises(InvalidMessage, match=r"channels: must be a list of names, such as \['general'\]"):
        comm.receive_messages("bob", "general")
    with pytest.raises(InvalidMessage, match=r"channels: must be a list"):
        comm.wait_for_response("bob", "c-1", "general")


def test_the_highest_priority_comes_first_and_within_one_the_oldest(comm: CommunicationSystem) -> None:
    for n, priority in enumerate([5, 1, 10, 5, 10]):
        send(comm, n, priority=priority)
    assert waiting(comm) == [2, 4, 0, 3, 1]


def test_priorities_are_compared_across_channels(comm: CommunicationSystem) -> None:
    send(comm, 1, channel="a", priority=3)
    send(comm, 2, channel="b", priority=8, to_agent="bob")
    send(comm, 3, channel="c", priority=9)
    found = comm.receive_messages("bob", ["a", "b"])
    assert [row["payload"]["n"] for row in found] == [2, 1]


def test_at_most_limit_messages_are_shown(comm: CommunicationSystem) -> None:
    for n in range(12):
        send(comm, n)
    assert len(comm.receive_messages("bob", ["general"])) == 10
    assert len(comm.receive_messages("bob", ["general"], limit=3)) == 3
    assert comm.receive_messages("bob", ["general"], limit=0) == []
    assert len(comm.receive_messages("bob", ["general"], limit=-1)) == 12


def test_no_channels_no_messages(comm: CommunicationSystem) -> None:
    send(comm, to_agent="bob")
    assert comm.receive_messages("bob", []) == []
    assert comm.wait_for_response("bob", "c-1", [], timeout_seconds=0) is None


def test_mail_for_one_agent_is_not_shown_to_another(comm: CommunicationSystem) -> None:
    send(comm, 1, to_agent="bob")
    send(comm, 2, to_agent="cleo")
    send(comm, 3)
    assert waiting(comm, "bob") == [1, 3]
    assert waiting(comm, "cleo") == [2, 3]


def test_looking_takes_nothing(comm: CommunicationSystem) -> None:
    id = send(comm)
    before = row_of(comm, id)
    for _ in range(5):
        assert waiting(comm) == [0]
    assert row_of(comm, id) == before


def test_an_expired_message_is_not_shown_and_cannot_be_claimed(comm: CommunicationSystem, clock: ManualClock) -> None:
    id = send(comm, ttl_seconds=5)
    clock.advance(4.9)
    assert waiting(comm) == [0]
    clock.advance(0.1)
    assert waiting(comm) == []
    assert not comm.claim_message("bob", id)


# Claiming and completing


def test_a_message_is_claimed_once(comm: CommunicationSystem) -> None:
    id = send(comm)
    assert comm.claim_message("bob", id) is True
    assert comm.claim_message("bob", id) is False
    assert comm.claim_message("cleo", id) is False
    assert waiting(comm) == []
    row = row_of(comm, id)
    assert (row["status"], row["delivery_count"]) == ("processing", 1)
    assert row["last_delivered_at"] is not None


@pytest.mark.parametrize("id", ["", "no such message", "00000000-0000-7000-8000-000000000000"])
def test_what_is_not_there_can_be_neither_claimed_nor_completed(comm: CommunicationSystem, id: str) -> None:
    assert comm.claim_message("bob", id) is False
    comm.complete_message(id)
    comm.complete_message(id, error="lost")
    assert rows(comm, "SELECT * FROM messages") == []


def test_nobody_claims_the_mail_of_another(comm: CommunicationSystem) -> None:
    id = send(comm, to_agent="bob")
    assert not comm.claim_message("cleo", id)
    assert comm.claim_message("bob", id)


def test_of_many_threads_one_gets_the_claim(live: CommunicationSystem) -> None:
    for _ in range(10):
        id, start = send(live), threading.Barrier(4)

        def claim(name: str, id: str = id, start: threading.Barrier = start) -> bool:
            start.wait()
            return live.claim_message(name, id)

        joins = [in_thread(lambda name=name: claim(name)) for name in ("a", "b", "c", "d")]  # type: ignore[misc]
        assert sorted(join() for join in joins) == [False, False, False, True]


def test_a_completed_message_is_done(comm: CommunicationSystem) -> None:
    id = send(comm)
    comm.claim_message("bob", id)
    comm.complete_message(id)
    assert waiting(comm) == []
    row = row_of(comm, id)
    assert (row["status"], row["error"]) == ("done", None)


def test_completing_what_nobody_claimed_changes_nothing(comm: CommunicationSystem) -> None:
    id = send(comm)
    before = row_of(comm, id)
    comm.complete_message(id)
    comm.complete_message(id, error="no")
    assert row_of(comm, id) == before


def test_completing_twice_changes_nothing(comm: CommunicationSystem) -> None:
    id = send(comm)
    comm.claim_message("bob", id)
    comm.complete_message(id)
    before = row_of(comm, id)
    comm.complete_message(id)
    comm.complete_message(id, error="too late")
    assert row_of(comm, id) == before


def test_an_empty_error_is_none(comm: CommunicationSystem) -> None:
    id = send(comm)
    comm.claim_message("bob", id)
    comm.complete_message(id, error="")
    assert row_of(comm, id)["status"] == "done"


def test_a_failed_message_comes_again_later_each_time_and_is_set_aside_after_the_third(
    comm: CommunicationSystem, clock: ManualClock
) -> None:
    id = send(comm, 7)
    waited: list[float] = []
    for attempt in (1, 2):
        assert comm.claim_message("bob", id)
        comm.complete_message(id, error=f"failed {attempt}")
        assert not comm.claim_message("bob", id)
        step_s = 0.0
        while not waiting(comm):
            clock.advance(0.1)
            step_s += 0.1
        waited.append(step_s)
        (row,) = comm.receive_messages("bob", ["general"])
        assert (row["status"], row["error"], row["delivery_count"]) == ("pending", f"failed {attempt}", attempt)
    assert 0.5 <= waited[0] <= 1.1
    assert 1.0 <= waited[1] <= 2.1

    assert comm.claim_message("bob", id)
    comm.complete_message(id, error="failed 3")
    clock.advance(3600)
    assert waiting(comm) == []
    assert row_of(comm, id)["status"] == "failed"
    (dead,) = rows(comm, "SELECT * FROM dead_letter_queue")
    assert (dead["id"], dead["error"], dead["retry_count"]) == (id, "failed 3", 3)
    assert json.loads(dead["original_message"]) == {"n": 7}
    assert dead["moved_at"] is not None


def test_completing_a_message_that_waits_for_its_next_delivery_changes_nothing(
    comm: CommunicationSystem, clock: ManualClock
) -> None:
    id = send(comm)
    comm.claim_message("bob", id)
    comm.complete_message(id, error="first")
    comm.complete_message(id)
    clock.advance(10)
    comm.complete_message(id)
    assert comm.claim_message("dora", send(comm, 1))  # a claim also makes ready what is due
    comm.complete_message(id)
    assert waiting(comm) == [0]
    assert comm.claim_message("cleo", id)


def test_a_claim_nobody_completes_ends_after_ten_minutes(comm: CommunicationSystem, clock: ManualClock) -> None:
    id = send(comm)
    comm.claim_message("bob", id)
    clock.advance(599)
    assert waiting(comm, "cleo") == []
    clock.advance(2)
    assert waiting(comm, "cleo") == [0]
    assert comm.claim_message("cleo", id)
    assert row_of(comm, id)["delivery_count"] == 2


@pytest.mark.parametrize("released", [False, True])
def test_a_late_completion_counts_as_long_as_nobody_else_took_the_message(
    comm: CommunicationSystem, clock: ManualClock, released: bool
) -> None:
    id = send(comm)
    comm.claim_message("bob", id)
    clock.advance(3600)
    if released:
        assert comm.claim_message("dora", send(comm, 1))  # a claim also writes down which leases have ended
    assert waiting(comm) == [0]
    comm.complete_message(id)
    assert waiting(comm) == []
    assert row_of(comm, id)["status"] == "done"


def test_completing_ends_the_claim_of_whoever_holds_it_now(comm: CommunicationSystem, clock: ManualClock) -> None:
    id = send(comm)
    comm.claim_message("bob", id)
    clock.advance(601)
    comm.claim_message("cleo", id)
    comm.complete_message(id)
    row = row_of(comm, id)
    assert (row["status"], row["claimed_by"]) == ("done", "cleo")


def _claim_and_leave(root: str, id: str) -> None:
    assert CommunicationSystem(root).claim_message("bob", id)


@pytest.mark.slow
def test_a_claim_belongs_to_the_agent_and_outlives_the_process(live: CommunicationSystem) -> None:
    id = send(live)
    process = SPAWN.Process(target=_claim_and_leave, args=(str(live.project_root), id))
    process.start()
    process.join(30)
    assert process.exitcode == 0
    assert waiting(live) == []
    live.complete_message(id)
    assert row_of(live, id)["status"] == "done"


def _work(root: str, name: str, results: Any) -> None:
    done = []
    with CommunicationSystem(root) as comm:
        while found := comm.receive_messages(name, ["work"], limit=5):
            for row in found:
                if comm.claim_message(name, row["id"]):
                    comm.complete_message(row["id"])
                    done.append(row["payload"]["n"])
    results.put(done)


@pytest.mark.slow
def test_processes_share_a_channel_without_doing_anything_twice(live: CommunicationSystem) -> None:
    for n in range(60):
        send(live, n, channel="work")
    results = SPAWN.Queue()
    processes = [SPAWN.Process(target=_work, args=(str(live.project_root), f"w{i}", results)) for i in range(3)]
    for process in processes:
        process.start()
    done = sorted(n for _ in processes for n in results.get(timeout=60))
    for process in processes:
        process.join(30)
        assert process.exitcode == 0
    assert done == list(range(60))
    results.close()
    results.join_thread()


# Questions and answers


def ask(comm: CommunicationSystem, to_agent: str | None = "manager", correlation_id: str = "c-1") -> dict[str, Any]:
    id = comm.send_message(
        "ada", "context.query", {"query": "ui"}, to_agent=to_agent, priority=7, correlation_id=correlation_id
    )
    return next(row for row in comm.receive_messages("manager", ["general"], limit=-1) if row["id"] == id)


def test_a_response_goes_back_with_everything_that_belongs_to_the_question(comm: CommunicationSystem) -> None:
    question = ask(comm)
    id = comm.send_response(question, {"ui": "React"})
    (row,) = comm.receive_messages("ada", ["general"])
    assert row["id"] == id
    assert row["type"] == "context.query.response"
    assert (row["from_agent"], row["to_agent"]) == ("manager", "ada")
    assert (row["channel"], row["priority"], row["correlation_id"]) == ("general", 7, "c-1")
    assert row["payload"] == {"ui": "React"}


def test_an_artifact_is_added_without_touching_the_caller_s_payload(comm: CommunicationSystem) -> None:
    payload = {"ui": "React"}
    comm.send_response(ask(comm), payload, artifact_path=".claude/artifacts/ui.md")
    assert payload == {"ui": "React"}
    (row,) = comm.receive_messages("ada", ["general"])
    assert row["payload"] == {"ui": "React", "artifact_path": ".claude/artifacts/ui.md"}


def test_an_artifact_cannot_be_added_to_what_is_not_a_dict(comm: CommunicationSystem) -> None:
    with pytest.raises(InvalidMessage, match="Payload must be dict"):
        comm.send_response(ask(comm), [1], artifact_path="x")  # type: ignore[arg-type]


def test_a_question_to_nobody_is_answered_by_whoever_claimed_it(comm: CommunicationSystem) -> None:
    question = ask(comm, to_agent=None)
    comm.claim_message("manager", question["id"])
    comm.send_response(question, {"ui": "React"})
    comm.complete_message(question["id"])
    answer = comm.wait_for_response("ada", "c-1", ["general"], timeout_seconds=0)
    assert answer is not None
    assert answer["from_agent"] == "manager"


def test_a_question_to_nobody_that_nobody_claimed_is_answered_by_agents_that_name_themselves(
    comm: CommunicationSystem,
) -> None:
    question = ask(comm, to_agent=None)
    with pytest.raises(InvalidMessage, match=r"from_agent: .* claim it first, or name the agent that answers"):
        comm.send_response(question, {})
    assert len(rows(comm, "SELECT * FROM messages")) == 1

    for name in ("manager", "eve"):
        comm.send_response(question, {"by": name}, from_agent=name)

    answers = [comm.wait_for_response("ada", "c-1", ["general"], timeout_seconds=0) for _ in range(2)]
    assert [(row["from_agent"], row["payload"]) for row in answers if row] == [
        ("manager", {"by": "manager"}),
        ("eve", {"by": "eve"}),
    ]
    assert row_of(comm, question["id"])["status"] == "pending"


def test_an_answer_comes_from_the_agent_that_is_named_also_where_the_question_was_anothers(
    comm: CommunicationSystem,
) -> None:
    comm.send_response(ask(comm), {}, from_agent="deputy")
    (row,) = comm.receive_messages("ada", ["general"])
    assert row["from_agent"] == "deputy"


def test_a_question_without_a_correlation_id_gets_a_response_without_one(comm: CommunicationSystem) -> None:
    question = {"type": "q", "from_agent": "ada", "to_agent": "bob", "channel": "general", "priority": 5}
    comm.send_response(question, {"n": 1})
    (row,) = comm.receive_messages("ada", ["general"])
    assert row["correlation_id"] is None


def test_the_response_is_taken_and_done(comm: CommunicationSystem) -> None:
    id = comm.send_response(ask(comm), {"ui": "React"})
    answer = comm.wait_for_response("ada", "c-1", ["general"], timeout_seconds=0)
    assert answer is not None
    assert list(answer) == COLUMNS
    assert (answer["id"], answer["payload"]) == (id, {"ui": "React"})
    assert row_of(comm, id)["status"] == "done"
    assert comm.wait_for_response("ada", "c-1", ["general"], timeout_seconds=0) is None


def test_a_response_does_not_starve_behind_other_mail(comm: CommunicationSystem) -> None:
    for n in range(150):
        send(comm, n, to_agent="ada", priority=10)
        send(comm, n, priority=10)
    comm.send_response(ask(comm), {"ui": "React"})
    assert comm.wait_for_response("ada", "c-1", ["general"], timeout_seconds=0) is not None


def test_the_asker_never_gets_its_own_words_back(comm: CommunicationSystem) -> None:
    for n in range(150):
        send(comm, n, correlation_id="c-1")
        send(comm, n, to_agent="ada", correlation_id="c-1")
    assert comm.wait_for_response("ada", "c-1", ["general"], timeout_seconds=0) is None
    comm.send_response(ask(comm), {"ui": "React"})
    answer = comm.wait_for_response("ada", "c-1", ["general"], timeout_seconds=0)
    assert answer is not None
    assert answer["from_agent"] == "manager"


def test_only_the_named_channels_are_looked_in(comm: CommunicationSystem) -> None:
    comm.send_message("bob", "r", {}, to_agent="ada", channel="elsewhere", correlation_id="c-1")
    assert comm.wait_for_response("ada", "c-1", ["general"], timeout_seconds=0) is None
    assert comm.wait_for_response("ada", "c-1", ["general", "elsewhere"], timeout_seconds=0) is not None


def test_a_wait_that_ends_without_an_answer_takes_nothing(comm: CommunicationSystem) -> None:
    id = comm.send_message("bob", "r", {}, to_agent="ada", correlation_id="c-2")
    before = row_of(comm, id)
    assert comm.wait_for_response("ada", "c-1", ["general"], timeout_seconds=0) is None
    assert row_of(comm, id) == before


def test_a_waiting_asker_is_woken_and_does_not_poll(tmp_path: Path, in_background: Any) -> None:
    """Its clock stands still: an asker that looks from time to time would never look again."""
    clock = WatchedClock()
    with CommunicationSystem(tmp_path, clock=clock) as comm:
        for n in range(3):
            call = in_background(lambda n=n: comm.wait_for_response("ada", f"c-{n}", ["general"]))
            assert call.comes_to_wait(clock, 30)
            comm.send_response(ask(comm, correlation_id=f"c-{n}"), {"n": n})
            assert call.result()["payload"] == {"n": n}


def test_a_response_to_nobody_in_particular_is_found_too(live: CommunicationSystem) -> None:
    join = in_thread(lambda: live.wait_for_response("ada", "c-1", ["general"]))
    live.send_message("bob", "r", {"n": 1}, correlation_id="c-1")
    assert join()["payload"] == {"n": 1}


def test_one_response_answers_one_of_two_askers(live: CommunicationSystem) -> None:
    joins = [in_thread(lambda: live.wait_for_response("ada", "c-1", ["general"], timeout_seconds=1)) for _ in range(2)]
    live.send_message("bob", "r", {"n": 1}, to_agent="ada", correlation_id="c-1")
    answers = [join() for join in joins]
    assert sorted(answer is None for answer in answers) == [False, True]


# Health


def test_an_agent_never_heard_of_has_no_health(comm: CommunicationSystem) -> None:
    assert comm.get_agent_health("bob") is None


@pytest.mark.parametrize("done", ["nothing", "claimed", "completed", "failed"])
@pytest.mark.parametrize("to_agent", ["bob", None])
def test_an_agent_without_a_heartbeat_has_figures_as_soon_as_it_has_mail(
    comm: CommunicationSystem, done: str, to_agent: str | None
) -> None:
    id = send(comm, to_agent=to_agent)
    if done != "nothing":
        assert comm.claim_message("bob", id)
    if done in ("completed", "failed"):
        comm.complete_message(id, error="failed" if done == "failed" else None)

    health = comm.get_agent_health("bob")

    if done == "nothing" and to_agent is None:
        assert health is None  # it is anybody's
    else:
        assert health == {
            "agent_id": "bob",
            "status": "unknown",
            "current_task": None,
            "last_heartbeat": None,
            "messages_pending": int(done == "nothing"),
            "messages_processed": int(done == "completed"),
            "error_count": int(done == "failed"),
        }
    assert rows(comm, "SELECT * FROM agent_status") == []


def test_a_heartbeat_is_remembered_until_the_next(comm: CommunicationSystem, clock: ManualClock) -> None:
    comm.send_heartbeat("bob", "busy", current_task="reading")
    assert comm.get_agent_health("bob") == {
        "agent_id": "bob",
        "status": "busy",
        "current_task": "reading",
        "last_heartbeat": iso(clock.wall_ms()),
        "messages_pending": 0,
        "messages_processed": 0,
        "error_count": 0,
    }
    clock.advance(60)
    comm.send_heartbeat("bob")
    health = comm.get_agent_health("bob")
    assert health is not None
    assert (health["status"], health["current_task"]) == ("active", None)
    assert health["last_heartbeat"] == iso(clock.wall_ms())


def test_the_figures_of_an_agent_are_true(comm: CommunicationSystem) -> None:
    comm.send_heartbeat("bob")
    comm.send_heartbeat("cleo")
    ids = [send(comm, n, to_agent="bob", channel="general" if n % 2 else "work") for n in range(6)]
    for id in ids[:3]:
        assert comm.claim_message("bob", id)
    comm.complete_message(ids[0])
    comm.complete_message(ids[1], error="failed")
    anyone = send(comm)
    assert comm.claim_message("bob", anyone)
    comm.complete_message(anyone)

    health = comm.get_agent_health("bob")
    assert health is not None
    assert (health["messages_pending"], health["messages_processed"], health["error_count"]) == (3, 2, 1)
    assert rows(comm, "SELECT * FROM agent_status WHERE agent_id = 'bob'") == [health]
    other = comm.get_agent_health("cleo")
    assert other is not None
    assert (other["messages_pending"], other["messages_processed"], other["error_count"]) == (0, 0, 0)


# Expiry


def test_cleaning_up_deletes_what_expired_and_nothing_else(comm: CommunicationSystem, clock: ManualClock) -> None:
    for n in range(3):
        send(comm, n, ttl_seconds=5)
    kept = [
        send(comm, 10),
        send(comm, 11, ttl_seconds=500),
        send(comm, 12, ttl_seconds=5),
        send(comm, 13, ttl_seconds=5),
    ]
    comm.claim_message("bob", kept[2])
    comm.claim_message("bob", kept[3])
    comm.complete_message(kept[3])
    assert comm.cleanup_expired_messages() == 0
    clock.advance(6)
    assert comm.cleanup_expired_messages() == 3
    assert comm.cleanup_expired_messages() == 0
    assert [row["id"] for row in rows(comm, "SELECT id FROM messages ORDER BY key")] == kept


def test_cleaning_up_has_no_upper_limit(comm: CommunicationSystem, clock: ManualClock) -> None:
    for n in range(1005):
        send(comm, n, ttl_seconds=1)
    clock.advance(2)
    assert comm.cleanup_expired_messages() == 1005


# The library and the broker are two doors to one room


def test_the_library_reads_what_the_broker_sent_and_the_other_way_round(live: CommunicationSystem) -> None:
    with postroom.open(f"sqlite:{live.comm_dir}") as room:
        send(live, 1, to_agent="bob")
        with room.agent("bob").receive(timeout_s=5) as message:
            assert message.payload == {"n": 1}
        room.agent("bob").send("ada", {"n": 2})
        assert waiting(live, "ada") == [2]


def test_a_question_of_the_library_can_be_answered_through_the_broker(live: CommunicationSystem) -> None:
    with postroom.open(f"sqlite:{live.comm_dir}") as room:
        ada, manager = room.agent("ada"), room.agent("manager")
        join = in_thread(lambda: ada.ask("manager", {"q": 1}, timeout_s=20))
        with manager.receive(timeout_s=10) as message:
            live.send_response(message.to_dict(), {"ui": "React"})
            live.complete_message(message.id)
        assert join().payload == {"ui": "React"}


# Message


def test_a_created_message_is_complete_and_valid() -> None:
    message = Message.create("ada", "job", {"n": 1}, channel="work", priority=3, correlation_id="c", to_agent="bob")
    assert message.validate() == (True, [])
    values = message.to_dict()
    fields = """id type version timestamp from_agent channel priority payload correlation_id to_agent"""
    assert " ".join(values) == fields
    assert values["version"] == "1.0"
    assert values["timestamp"].endswith("Z")
    assert Message(**values) == message
    assert Message.create("ada", "job", {}).id != Message.create("ada", "job", {}).id


def test_a_message_lists_its_faults_in_the_words_of_the_source() -> None:
    message = Message.create("ada", "job", [], priority=0)  # type: ignore[arg-type]
    message.version = "2.0"
    faults = ["Priority must be 1-10", "Payload must be dict", "Unsupported version: 2.0"]
    assert message.validate() == (False, faults)
    for priority in (11, "5", None, 5.5, True):
        message.priority = priority  # type: ignore[assignment]
        assert message.validate()[1][0] == faults[0]


def test_the_dictionary_of_a_message_is_a_copy() -> None:
    message = Message.create("ada", "job", {"list": [1]})
    message.to_dict()["payload"]["list"].append(2)
    assert message.payload == {"list": [1]}
