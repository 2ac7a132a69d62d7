"""A pool that takes its work from a room, and one that evaluates what is written there before anybody asks."""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from tests.support.patience import until

from postroom.errors import EvaluationAborted, InvalidMessage, PoolFailed, WorkerStopped
from postroom.pools.evaluation import Evaluation
from postroom.pools.message import as_message
from postroom.pools.pool import WorkerPool
from postroom.pools.restarts import RestartPolicy
from postroom.pools.worker import PoolWorker
from postroom.room import Room, open_room

pytestmark = pytest.mark.slow  # real processes and real rooms

EVER = RestartPolicy(max_restarts=1_000_000, backoff_s=0)
NAMES = ["ada", "bob", "carl"]


@pytest.fixture(params=["memory", "sqlite", "files"])
def room(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Room]:
    url = f"memory:{tmp_path.name}" if request.param == "memory" else f"{request.param}:{tmp_path}/room"
    with open_room(url) as opened:
        yield opened


@pytest.fixture
def sqlite_room(tmp_path: Path) -> Iterator[Callable[..., Room]]:
    rooms: list[Room] = []

    def make(**settings: Any) -> Room:
        rooms.append(open_room(f"sqlite:{tmp_path}/room", **settings))
        return rooms[-1]

    yield make
    for each in rooms:
        each.close()


class Serving:
    """A pool that serves a room in a thread."""

    def __init__(self, pool: WorkerPool, room: Room, **settings: Any) -> None:
        self.stop = threading.Event()
        self.error: BaseException | None = None
        self._settings = {"agent": "pool", "channels": ["tasks"], "stop": self.stop, **settings}
        self._thread = threading.Thread(target=self._run, args=(pool, room), daemon=True)
        self._thread.start()

    def _run(self, pool: WorkerPool, room: Room) -> None:
        try:
            pool.serve(room, **self._settings)
        except BaseException as error:
            self.error = error

    def __enter__(self) -> Serving:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop.set()
        self.join()

    def join(self) -> None:
        self._thread.join(30)
        assert not self._thread.is_alive(), "it still serves"


def put(room: Room, content: str, **more: Any) -> str:
    return room.agent("lead").send(None, {"text": content}, channel="tasks", **more)


def states(room: Room, ids: list[str]) -> Counter[str]:
    return Counter(room.receipt(id).state for id in ids)


# Taking work


def test_work_is_claimed_judged_and_acked(room: Room, make_pool) -> None:
    pool = make_pool("act", workers=NAMES)
    ids = [put(room, f"say {n}") for n in range(30)]
    with Serving(pool, room):
        until(lambda: states(room, ids) == {"acked": 30}, "not all was done")

    assert sum(worker.stats()["done"] for worker in pool.workers.values()) == 30
    assert room.agent("lead").poll() is None  # nobody asked: nobody is answered


def test_one_who_asks_gets_the_evaluation_as_the_answer(room: Room, make_pool) -> None:
    pool = make_pool("act", workers=["ada"])
    with Serving(pool, room, channels=None):
        answer = room.agent("lead").ask("pool", {"text": "say yes"}, timeout_s=20)

    assert answer.payload["reasoning"] == "yes"
    assert answer.payload["confidence"] == 0.6
    assert answer.payload["persona_id"] == "ada"


def test_the_result_goes_to_every_sender_when_told(sqlite_room, make_pool) -> None:
    room = sqlite_room()
    put(room, "say yes")
    with Serving(make_pool("act", workers=["ada"]), room, answer="always"):
        assert room.agent("lead").receive(20).payload["reasoning"] == "yes"
    with pytest.raises(InvalidMessage, match="answer: must be one of asked, always, never"):
        make_pool("act").serve(room, "pool", answer="loudly")


def test_an_evaluator_gets_the_envelope_and_the_words_of_the_source(room: Room) -> None:
    ada = room.agent("ada")
    message = as_message(room.get(ada.send("bob", {"text": "hi", "n": 1})))

    assert (message["content"], message["sender_id"], message["payload"]) == ("hi", "ada", {"text": "hi", "n": 1})
    assert as_message(room.get(ada.send("bob", {"n": 1})))["content"] == '{"n": 1}'


def test_a_message_that_kills_its_worker_is_set_aside_and_the_pool_goes_on(sqlite_room, make_pool) -> None:
    room = sqlite_room(max_deliveries=3)
    pool = make_pool("act", workers=["ada"], restart=EVER)
    poison, food = put(room, "die"), put(room, "say hi")
    with Serving(pool, room):
        until(lambda: states(room, [poison, food]) == {"dead": 1, "acked": 1}, "it is not set aside")

    (letter,) = room.dead_letters()
    assert letter.id == poison
    assert "WorkerDied" in letter.error
    assert len(letter.attempts) == 3
    assert pool.workers["ada"].stats()["restarts"] == 3


def test_a_message_that_hangs_is_tried_again_and_set_aside(sqlite_room, make_pool) -> None:
    room = sqlite_room(max_deliveries=2)
    pool = make_pool("act", workers=["ada"], grace_s=0.2)
    hung = put(room, "sleep 60")
    with Serving(pool, room, timeout_s=0.2):
        until(lambda: states(room, [hung]) == {"dead": 1}, "it is not set aside")

    assert "WorkerTimeout" in room.dead_letters()[0].error


def test_an_evaluator_that_fails_has_its_message_delivered_again_later(sqlite_room, make_pool) -> None:
    room = sqlite_room()
    id = put(room, "raises oh")
    with Serving(make_pool("act", workers=["ada"]), room):
        until(lambda: room.receipt(id).events[-1].event == "retried", "it was not given back")

    assert "EvaluatorFailed" in str(room.receipt(id).events[-1].detail)


def test_a_pool_that_fails_gives_its_work_back_unseen(sqlite_room, make_pool) -> None:
    room = sqlite_room(max_deliveries=100)
    pool = make_pool("act", workers=["ada", "bob"], restart=RestartPolicy(max_restarts=1))
    put(room, "sleep 60")
    deadly = put(room, "die")
    serving = Serving(pool, room)
    serving.join()

    assert isinstance(serving.error, PoolFailed)
    assert room.receipt(deadly).state == "stored"
    assert states(room, [message.id for message in room.peek(channels=["tasks"])]) == {"stored": 2}


def test_a_pool_that_fails_while_nothing_comes_ends_its_serving_and_following(room: Room, make_pool) -> None:
    pool = make_pool("act", workers=["ada"], restart=RestartPolicy(max_restarts=0))
    serving = Serving(pool, room)
    following = pool.follow(room, ["general"])
    until(lambda: len(pool._services) == 2, "it does not serve")
    os.kill(pool.workers["ada"].pid, signal.SIGKILL)
    serving.join()
    following._thread.join(30)

    assert isinstance(serving.error, PoolFailed)
    assert not following._thread.is_alive()


def test_shutting_the_pool_down_ends_the_serving_and_loses_nothing(room: Room, make_pool) -> None:
    pool = make_pool("act", workers=["ada", "bob"])
    ids = [put(room, "sleep 0.05") for _ in range(20)]
    serving = Serving(pool, room)
    until(lambda: states(room, ids)["acked"] >= 3, "nothing is done")
    pool.shutdown()
    serving.join()

    assert set(states(room, ids)) == {"acked", "stored"}
    assert serving.error is None or isinstance(serving.error, WorkerStopped)


def test_a_worker_that_leaves_does_not_end_the_serving(sqlite_room, make_pool) -> None:
    room = sqlite_room()
    pool = make_pool("act", workers=["ada", "bob"])
    ids = [put(room, "sleep 0.02") for _ in range(20)]
    with Serving(pool, room):
        until(lambda: states(room, ids)["acked"] >= 3, "nothing is done")
        pool.workers["ada"].shutdown()
        until(lambda: states(room, ids) == {"acked": 20}, "it was not done by the other")

    assert list(pool.workers) == ["bob"]
    assert pool.initialize_worker("ada").ping() > 0


# Drains and kills, with a journal of what was run


def task(room: Room, journal: Path, n: int, work_s: float = 0.0) -> str:
    payload = {"n": n, "journal": str(journal), "work_s": work_s}
    return room.agent("lead").send(None, payload, channel="tasks")


def runs_of(journal: Path) -> tuple[Counter[int], Counter[int]]:
    """How often each task was begun, and how often it was ended."""
    began: Counter[int] = Counter()
    ended: Counter[int] = Counter()
    for line in journal.read_text(encoding="utf-8").splitlines():
        word, n, _ = line.split()
        (began if word == "began" else ended)[int(n)] += 1
    return began, ended


def drains(make_pool, room: Room, journal: Path, rounds: int) -> tuple[int, int]:
    """Serve and drain, again and again, under load. Returns how many tasks there were, and how many were run twice."""
    ids: list[str] = []
    journal.touch()
    chance = random.Random(7)
    for round_ in range(rounds):
        ids += [task(room, journal, len(ids) + n, 0.002) for n in range(10)]
        with WorkerPool("pools.minds:task", workers=["ada", "bob"]) as pool:
            serving = Serving(pool, room)
            time.sleep(chance.random() * 0.03)
            if round_ % 2:
                serving.stop.set()
                serving.join()
            else:
                assert pool.drain(20)
                serving.join()
            # on a busy machine the pool may be drained before its thread comes to serve: then it says so
            assert serving.error is None or (round_ % 2 == 0 and isinstance(serving.error, WorkerStopped))
        assert set(states(room, ids[-30:])) <= {"acked", "stored"}
    with WorkerPool("pools.minds:task", workers=["ada", "bob"]) as pool, Serving(pool, room):
        until(lambda: room.stats().states["acked"] == len(ids), "tasks are left")
    assert states(room, ids) == {"acked": len(ids)}
    began, ended = runs_of(journal)
    assert set(began) == set(ended) == set(range(len(ids))), "a task was lost"
    assert began == ended, "a task was begun and not ended"
    return len(ids), sum(began.values()) - len(ids)


def test_drains_lose_nothing_and_run_nothing_twice(sqlite_room, tmp_path: Path, make_pool) -> None:
    assert drains(make_pool, sqlite_room(), tmp_path / "journal", 12) == (120, 0)


@pytest.mark.long
def test_two_hundred_drains_lose_nothing(sqlite_room, tmp_path: Path, make_pool) -> None:
    tasks, twice = drains(make_pool, sqlite_room(), tmp_path / "journal", 200)

    print(f"200 drains over {tasks} tasks: none lost, {twice} run twice")
    assert twice == 0


def kill_storm(room: Room, pool: WorkerPool, journal: Path, tasks: int, kills: int) -> dict[str, int]:
    """Kill workers at random moments while tasks flow. Returns the figures."""
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    chance = random.Random(seed)
    journal.touch()
    ids: list[str] = []

    def send(count: int) -> None:
        payloads = [{"n": len(ids) + n, "journal": str(journal), "work_s": 0.002} for n in range(count)]
        ids.extend(room.agent("lead").send_many({"to": None, "payload": p, "channel": "tasks"} for p in payloads))

    send(tasks)
    with Serving(pool, room):
        while deaths(pool) < kills:
            done = sum(worker.figures.counts["done"] for worker in pool.workers.values())
            if done > len(ids) - 100:  # a quick pool has done nearly all of them before it was killed often enough
                send(200)
            pid = chance.choice(list(pool.workers.values())).pid
            if pid is not None:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(chance.random() * 0.02)
        until(lambda: room.stats().states["acked"] == len(ids), "tasks are left", 120)
    assert states(room, ids) == {"acked": len(ids)}
    began, ended = runs_of(journal)
    assert set(ended) == set(range(len(ids))), "a task was lost"
    executions = sum(began.values())
    assert executions <= len(ids) + deaths(pool)
    return {"tasks": len(ids), "kills": deaths(pool), "executions": executions}


def deaths(pool: WorkerPool) -> int:
    """How many processes of the pool were killed: a signal to one that is dying already does not count."""
    return sum(worker.figures.counts["restarts"] for worker in pool.workers.values())


def test_kills_of_workers_lose_no_task_and_cost_one_execution_each(sqlite_room, tmp_path: Path, make_pool) -> None:
    pool = make_pool("task", workers=NAMES, restart=EVER)
    room = sqlite_room(max_deliveries=1000)
    figures = kill_storm(room, pool, tmp_path / "journal", 1_000, 60)

    print(figures)


@pytest.mark.long
def test_a_thousand_kills_over_ten_thousand_tasks(sqlite_room, tmp_path: Path, make_pool) -> None:
    pool = make_pool("task", workers=[*NAMES, "dora"], restart=EVER)
    room = sqlite_room(max_deliveries=1000)
    figures = kill_storm(room, pool, tmp_path / "journal", 10_000, 1_000)

    print(f"1,000 kills over 10,000 tasks: {figures}")


# Before anybody asks


def test_who_asks_while_the_workers_are_given_a_message_finds_that_evaluation(
    room: Room, make_pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    pool, message, found = make_pool("act", workers=["ada"]), as_message(room.get(put(room, "hello"))), []
    send = PoolWorker.send

    def ask_first(worker: PoolWorker, request: Any) -> None:
        monkeypatch.undo()
        found.append(pool.begin(message)["ada"] is request)
        send(worker, request)

    monkeypatch.setattr(PoolWorker, "send", ask_first)
    begun = pool.begin(message, keep=10)["ada"]
    begun.wait()

    assert found == [True]


def test_an_interrupt_while_the_workers_are_given_a_message_leaves_nobody_waiting(
    room: Room, make_pool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pool, message = make_pool("act", workers=["ada", "bob"]), as_message(room.get(put(room, f"note {tmp_path}/runs")))
    begun: list[Any] = []

    def interrupt(_: PoolWorker, request: Any) -> None:
        begun.extend(pool._known[message["id"]].values())
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(PoolWorker, "send", interrupt)
        pool.begin(message, keep=10)

    assert [type(request.error) for request in begun] == [EvaluationAborted] * 2
    assert {type(each) for each in pool.evaluate_message(message).values()} == {Evaluation}


def test_new_messages_are_evaluated_before_anybody_asks(room: Room, make_pool, tmp_path: Path) -> None:
    journal = tmp_path / "runs"
    journal.touch()
    pool = make_pool("act", workers=["ada", "bob"])
    old = put(room, f"note {journal}")
    with pool.follow(room, ["tasks"]) as following:
        new = put(room, f"note {journal}")
        room.agent("lead").send(None, {"text": f"note {journal}"}, channel="elsewhere")
        until(lambda: len(journal.read_text().splitlines()) == 2, "it was not evaluated")
        found = pool.evaluate_message(as_message(room.get(new)))

        assert following.count == 1
    assert {type(each) for each in found.values()} == {Evaluation}
    assert journal.read_text().splitlines() == [new, new]  # once by each, and not again
    assert room.receipt(new).state == room.receipt(old).state == "stored"  # nothing was taken
    pool.evaluate_message(as_message(room.get(old)))
    assert len(journal.read_text().splitlines()) == 4


def test_one_who_asks_while_it_is_evaluated_joins_in(sqlite_room, make_pool) -> None:
    room = sqlite_room()
    pool = make_pool("act", workers=["ada"])
    with pool.follow(room, ["tasks"], timeout_s=20):
        id = put(room, "sleep 0.5")
        until(lambda: pool.workers["ada"].load == 1, "it was not given to ada")
        message = as_message(room.get(id))
        too_soon = pool.evaluate_message(message, timeout_s=0.05)["ada"]
        found = pool.evaluate_message(message, timeout_s=20)["ada"]

    assert "was still working on request" in str(too_soon)
    assert isinstance(found, Evaluation)
    assert pool.workers["ada"].stats()["done"] == 1


def test_following_ends_with_the_pool_and_with_the_room(sqlite_room, make_pool) -> None:
    room = sqlite_room()
    first = make_pool("plain", workers=["ada"])
    following = first.follow(room, ["tasks"])
    first.shutdown()
    until(lambda: not following._thread.is_alive(), "it goes on without its pool")

    second = make_pool("plain", workers=["ada"])
    following = second.follow(room, ["tasks"])
    room.close()
    until(lambda: not following._thread.is_alive(), "it goes on without its room")
    with pytest.raises(InvalidMessage, match="channels: must name at least one"):
        second.follow(sqlite_room(), [])
