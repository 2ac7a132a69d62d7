"""A pool: many minds at once, restarts and their limit, recycling, queues, the end."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from tests.support import TESTS
from tests.support.patience import until

from postroom.errors import (
    EvaluatorFailed,
    InvalidMessage,
    PoolFailed,
    QueueFull,
    RequestDropped,
    WorkerDied,
    WorkerError,
    WorkerNotReady,
    WorkerStopped,
    WorkerTimeout,
)
from postroom.pools.evaluation import Evaluation
from postroom.pools.restarts import RestartPolicy
from postroom.pools.worker import PoolWorker

from .conftest import BUSY_S, say, wait_until_at_it

pytestmark = pytest.mark.slow  # real processes, killed and waited for; tests/pools/test_worker.py has quick ones

EVER = RestartPolicy(max_restarts=10_000, backoff_s=0)
NAMES = ["ada", "bob", "carl"]


def reasons(found: dict[str, Any]) -> dict[str, str]:
    return {name: each.reasoning for name, each in found.items()}


# Many at once


def test_a_process_that_the_system_refuses_costs_no_other_pool_its_workers(no_more_processes: Path, make_pool) -> None:
    busy = make_pool("act", workers=["ada"])
    pid = busy.workers["ada"].pid
    no_more_processes.touch()
    with pytest.raises(WorkerNotReady) as caught:
        make_pool("act", workers=["bob"])

    said = "worker bob could not be started: the system refused a process (Resource temporarily unavailable)"
    assert str(caught.value) == said
    no_more_processes.unlink()
    assert busy.evaluate(say("pid")).reasoning == str(pid)
    assert make_pool("act", workers=["bob"]).evaluate(say("say hi")).reasoning == "hi"


def test_all_workers_judge_a_message_at_the_same_time(make_pool, tmp_path: Path) -> None:
    pool = make_pool("act", workers=NAMES)
    found = pool.evaluate_message(say(f"meet {len(NAMES)} {tmp_path}"), timeout_s=30)

    assert reasons(found) == dict.fromkeys(NAMES, "met")
    assert {each.persona_id for each in found.values()} == set(NAMES)


def test_one_that_fails_costs_only_its_own_result(make_pool) -> None:
    pool = make_pool("act", workers=NAMES)
    bob = pool.workers["bob"]
    busy = bob.submit(say("sleep 60"), None)
    found = pool.evaluate_message(say("say hi"), timeout_s=0.5)

    assert isinstance(found.pop("bob"), WorkerTimeout)
    assert reasons(found) == {"ada": "hi", "carl": "hi"}
    bob.abort(busy)
    assert {type(each) for each in pool.evaluate_message(say("raises no")).values()} == {EvaluatorFailed}


def test_work_for_anybody_is_spread_over_all(make_pool) -> None:
    """In the original the first worker got everything."""
    pool = make_pool("act", workers=NAMES)
    with ThreadPoolExecutor(3) as threads:
        pids = set(threads.map(lambda _: pool.evaluate(say("pid")).reasoning, range(60)))
    assert pids == {str(worker.pid) for worker in pool.workers.values()}

    slow = [pool.submit(say("sleep 0.3")) for _ in range(3)]
    assert {request.worker for request in slow} == set(NAMES)
    assert [request.result().reasoning for request in slow] == ["slept"] * 3


def test_map_keeps_the_order_and_says_what_failed(make_pool) -> None:
    pool = make_pool("act", workers=NAMES)
    found = list(pool.map(say("raises no" if n == 50 else f"say {n}", id=f"m{n}") for n in range(100)))

    assert isinstance(found[50], EvaluatorFailed)
    assert [each.reasoning for each in found if isinstance(each, Evaluation)] == [str(n) for n in range(100) if n != 50]


def test_a_listener_hears_each_look_of_each_worker(make_pool) -> None:
    pool = make_pool("act", workers=["ada", "bob"])
    heard: list[tuple[str, int, bool]] = []
    requests = pool.begin(
        say("two_looks 0.1"),
        listener=lambda name, request: heard.append((name, len(request.evaluations), request.done)),
    )
    for request in requests.values():
        request.result()

    until(lambda: len(set(heard)) == 4, f"not all was heard: {heard}")
    assert {("ada", 1, False), ("ada", 2, True), ("bob", 1, False), ("bob", 2, True)} == set(heard)


def test_a_pool_without_workers_says_so(make_pool) -> None:
    pool = make_pool("act")

    assert pool.evaluate_message(say("say hi")) == {}
    with pytest.raises(WorkerNotReady, match="this pool has no workers"):
        pool.evaluate(say("say hi"))


def test_a_name_is_given_once(make_pool) -> None:
    pool = make_pool("act", workers=["ada"])
    with pytest.raises(InvalidMessage, match="this pool already has a worker 'ada'"):
        pool.initialize_worker("ada")
    with pytest.raises(InvalidMessage, match="name"):
        pool.initialize_worker("")


# Restarts


def test_the_others_keep_their_processes_when_one_dies(make_pool) -> None:
    pool = make_pool("act", workers=NAMES)
    before = {name: worker.pid for name, worker in pool.workers.items()}
    os.kill(before["bob"], signal.SIGKILL)
    until(lambda: pool.workers["bob"].pid not in (None, before["bob"]), "bob was not replaced")

    assert pool.workers["ada"].pid == before["ada"]
    assert pool.workers["carl"].pid == before["carl"]
    assert reasons(pool.evaluate_message(say("say hi"))) == dict.fromkeys(NAMES, "hi")


def test_one_that_dies_too_often_fails_the_pool_with_its_history(make_pool) -> None:
    pool = make_pool("act", workers=["ada", "bob"], restart=RestartPolicy(max_restarts=2, backoff_s=0.01))
    ada, bob = pool.workers["ada"], pool.workers["bob"]
    waiting = bob.submit(say("sleep 60"), None)
    for _ in range(3):
        with pytest.raises(WorkerDied):
            ada.evaluate(say("exit 7"))

    with pytest.raises(PoolFailed, match="worker ada will not be restarted: it ended 3 times within 5 s") as caught:
        waiting.result()
    assert [each["cause"] for each in caught.value.history] == ["died"] * 3
    assert "I have had enough" in str(caught.value)
    with pytest.raises(PoolFailed):
        pool.evaluate_message(say("say hi"))
    with pytest.raises(PoolFailed):
        ada.ping()
    assert (ada.state, bob.state) == ("failed", "failed")
    assert pool.failure is not None


def test_one_that_cannot_start_again_fails_the_pool(make_pool, tmp_path: Path) -> None:
    pool = make_pool("starts_once")
    ada = pool.initialize_worker("ada", mark=str(tmp_path / "mark"))
    with pytest.raises(WorkerDied):
        ada.evaluate(say("die"))
    with pytest.raises(
        PoolFailed, match="it could not start: could not load its evaluator: RuntimeError: no model any more"
    ):
        ada.evaluate(say("say hi"), timeout_s=20)

    assert [each["cause"] for each in pool.failure.history] == ["died", "boot"]


def test_a_worker_that_always_dies_is_not_restarted_in_a_hurry(make_pool) -> None:
    policy = RestartPolicy(max_restarts=4, period_s=60, backoff_s=0.05)
    ada = make_pool("act", workers=["ada"], restart=policy).workers["ada"]
    started = time.monotonic()
    deaths = 0
    while ada.state != "failed":
        try:
            ada.evaluate(say("die"), timeout_s=20)
        except WorkerDied:
            deaths += 1
        except PoolFailed:
            break

    assert deaths == 5
    assert time.monotonic() - started > (0.05 + 0.1 + 0.2) / 2


def test_killed_before_it_is_ready_it_is_replaced_and_nothing_is_orphaned(make_pool, tmp_path: Path) -> None:
    journal = tmp_path / "pids"
    pool = make_pool("noted_start", restart=EVER)
    ada = pool.initialize_worker("ada", journal=str(journal))
    for _ in range(10):
        before = len(journal.read_text().splitlines())
        pid = ada.pid  # none while the one before, which was killed as it began, is being replaced
        with suppress(ProcessLookupError):  # and that one may only just be known to be gone
            if pid is not None:
                os.kill(pid, signal.SIGKILL)
        request = ada.submit(say("say hi"), timeout_s=20, attempts=100)
        booting = next_pid(journal, before)
        with suppress(ProcessLookupError):
            os.kill(booting, signal.SIGKILL)  # it is about to say ready, or just did
        assert request.result().reasoning == "hi"
        until(lambda: ada.pid is not None, "it has no process")


def next_pid(journal: Path, before: int) -> int:
    """The pid of the newest process that noted its start, after so many before."""
    until(lambda: len(journal.read_text().splitlines()) > before, "it was not replaced")
    return int(journal.read_text().splitlines()[-1])


def test_the_fork_server_may_die_too(make_pool) -> None:
    from postroom.core.system.children import shared_server

    pool = make_pool("act", workers=["ada"], restart=EVER)
    ada = pool.workers["ada"]
    first = ada.pid
    shared_server()._process.kill()

    assert ada.evaluate(say("say hi"), timeout_s=20, attempts=5).reasoning == "hi"
    until(lambda: ada.pid not in (None, first), "it was not replaced")


# Recycling


def test_recycling_by_count_costs_no_request_and_never_two_at_once(make_pool) -> None:
    pool = make_pool("act", workers=NAMES, recycle_after=10)
    lowest: list[int] = []
    for name in NAMES:
        pool.workers[name].on(
            "exit", lambda event, detail: lowest.append(sum(w.pid is not None for w in pool.workers.values()))
        )
    rounds = 0
    while sum(worker.figures.counts["recycled"] for worker in pool.workers.values()) < 6:
        rounds += 1
        assert rounds < 200, "they are not recycled"
        with ThreadPoolExecutor(6) as threads:
            found = list(threads.map(lambda n: pool.evaluate(say(f"say {n}"), 20).reasoning, range(60)))
        assert found == [str(n) for n in range(60)]

    assert sum(worker.figures.counts["restarts"] for worker in pool.workers.values()) == 0
    assert min(lowest) >= len(NAMES) - 1


def test_recycling_by_memory_keeps_it_bounded(make_pool) -> None:
    pool = make_pool("act", workers=["ada"])
    used_mib = pool.workers["ada"].memory_bytes / 2**20
    pool.shutdown()
    limit_mib = used_mib + 20
    pool = make_pool("act", workers=["ada"], recycle_above_mib=limit_mib)
    ada = pool.workers["ada"]
    counts = ada.figures.counts
    for _ in range(2):
        recycled = counts["recycled"]
        while counts["recycled"] == recycled and ada.memory_bytes / 2**20 <= limit_mib:
            pool.evaluate(say("grow"), 20)
        # the old process goes on until the new one is ready, however long that takes
        until(lambda: counts["recycled"] > recycled or not pool.evaluate(say("say 1"), 20))  # noqa: B023
        until(lambda: ada.memory_bytes / 2**20 < limit_mib)


# Back-pressure


def test_refuse_says_so_and_counts(make_pool) -> None:
    pool = make_pool("act", workers=["ada"], queue_size=2, policy="refuse", in_hand=1)
    ada = pool.workers["ada"]
    under_way = [ada.submit(say("sleep 0.3")), ada.submit(say("say 1")), ada.submit(say("say 2"))]
    with pytest.raises(QueueFull, match="2 requests are already waiting for worker ada"):
        ada.submit(say("say 3"))
    assert isinstance(pool.evaluate_message(say("say 4"))["ada"], QueueFull)

    assert [request.result().reasoning for request in under_way] == ["slept", "1", "2"]
    assert ada.stats()["refused"] == 2


def test_with_a_queue_of_one_only_the_newest_matters(make_pool) -> None:
    """In the original what was dropped had been sent to the worker already."""
    pool = make_pool("act", workers=["ada"], queue_size=1, policy="drop_oldest")
    ada = pool.workers["ada"]
    running = ada.submit(say("sleep 0.3"))
    waiting = [ada.submit(say(f"say {n}")) for n in range(10)]

    assert running.result().reasoning == "slept"
    assert waiting[-1].result().reasoning == "9"
    for request in waiting[:-1]:
        with pytest.raises(RequestDropped, match=f"a newer request took the place of request {request.id}"):
            request.result()
    assert ada.stats()["dropped"] == 9
    assert ada.stats()["done"] == 2


def test_block_lets_callers_wait_and_loses_nothing(make_pool) -> None:
    pool = make_pool("act", workers=["ada"], queue_size=2, in_hand=1)
    ada = pool.workers["ada"]
    most = 0

    def ask(n: int) -> str:
        nonlocal most
        found: str = ada.evaluate(say(f"say {n}"), timeout_s=20).reasoning
        most = max(most, len(ada.requests))
        return found

    with ThreadPoolExecutor(10) as threads:
        assert list(threads.map(ask, range(200))) == [str(n) for n in range(200)]
    assert most <= 2

    held = [ada.submit(say("sleep 5"), None) for _ in range(3)]
    with pytest.raises(WorkerTimeout, match="no place in the queue of worker ada came free in time"):
        ada.submit(say("say hi"), timeout_s=0.1)
    for request in held:
        ada.abort(request)


@pytest.mark.parametrize(
    "settings", [{"policy": "pray"}, {"queue_size": 0}, {"queue_size": True}, {"in_hand": 0}, {"grace_s": -1}]
)
def test_settings_that_cannot_be_are_refused(make_pool, settings) -> None:
    with pytest.raises(InvalidMessage, match=next(iter(settings))):
        make_pool("act", **settings)


# The end


def test_drain_finishes_what_was_asked_and_takes_nothing_more(make_pool) -> None:
    pool = make_pool("act", workers=["ada", "bob"])
    requests = [pool.submit(say("sleep 0.02"), 20) for _ in range(20)]
    drained = threading.Thread(target=pool.drain)
    drained.start()
    until(lambda: pool._draining, "it does not drain")
    with pytest.raises(WorkerStopped, match="this pool is being drained"):
        pool.submit(say("say hi"))
    drained.join(20)

    assert [request.result().reasoning for request in requests] == ["slept"] * 20
    pool.shutdown()


def test_a_drain_that_takes_too_long_says_so(make_pool) -> None:
    pool = make_pool("act", workers=["ada"])
    request = pool.submit(say("sleep 60"), None)

    assert not pool.drain(timeout_s=0.1)
    pool.shutdown()
    with pytest.raises(WorkerStopped):
        request.result()


def test_shutdown_does_not_wait_for_what_the_workers_do(make_pool) -> None:
    pool = make_pool("act", workers=[f"w{n}" for n in range(6)])
    contents = ["sleep 60", "stubborn 60", "deaf", "spin 60", "stop"]
    requests = [pool.workers[f"w{n}"].submit(say(content), None) for n, content in enumerate(contents)]
    for n, content in enumerate(contents):
        wait_until_at_it(pool.workers[f"w{n}"], content)
    pids = [worker.pid for worker in pool.workers.values()]
    started = time.monotonic()
    pool.shutdown()
    took_s = time.monotonic() - started

    assert took_s < 0.5 + BUSY_S  # the grace; what the workers do takes a minute, or has no end
    for request in requests:
        assert isinstance(request.error, WorkerStopped)
    for pid in pids:
        assert not Path(f"/proc/{pid}").exists()
    pool.shutdown()
    with pytest.raises(WorkerStopped, match="this pool is shut down"):
        pool.evaluate_message(say("say hi"))


def test_a_worker_that_could_not_start_leaves_the_pool_as_it_was(make_pool) -> None:
    pool = make_pool("starts_once", workers={})
    with pytest.raises(WorkerNotReady, match="KeyError: 'mark'"):
        pool.initialize_workers({"ada": {}, "bob": {}})

    assert pool.workers == {}
    assert pool.failure is None


def test_the_parent_loop_is_one_thread_for_all_pools(make_pool) -> None:
    pools = [make_pool("plain", workers=NAMES) for _ in range(3)]

    assert sum(thread.name == "postroom pool" for thread in threading.enumerate()) == 1
    for pool in pools:
        assert len(pool.evaluate_message(say("hi"))) == 3


ORPHANS = """
import sys
sys.path.insert(0, {folder!r})
import postroom
if __name__ == "__main__":
    pool = postroom.WorkerPool("pools.minds:act", workers=["ada", "bob"])
    pool.workers["bob"].submit({{"id": "m", "content": "deaf"}}, None)
    print(*(worker.pid for worker in pool.workers.values()), flush=True)
    sys.stdin.read()
"""


def start_parent(folder: Path, number: int) -> subprocess.Popen[str]:
    """Start a program that has a pool."""
    program = folder / f"parent{number}.py"
    program.write_text(ORPHANS.format(folder=str(TESTS)), encoding="utf-8")
    return subprocess.Popen([sys.executable, str(program)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def kill_parent(parent: subprocess.Popen[str]) -> float:
    """Kill a program that has a pool; returns the seconds until all its workers were gone."""
    assert parent.stdout is not None
    assert parent.stdin is not None
    pids = [int(word) for word in parent.stdout.readline().split()]
    assert len(pids) == 2
    started = time.monotonic()
    parent.kill()
    until(lambda: not any(_runs(pid) for pid in pids), "an orphan is left")
    took_s = time.monotonic() - started
    parent.wait()
    parent.stdout.close()
    parent.stdin.close()
    return took_s


def _runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[0] not in (b"Z", b"X")
    except (FileNotFoundError, ProcessLookupError):
        return False


def test_no_worker_outlives_a_parent_that_is_killed(tmp_path: Path) -> None:
    parents = [start_parent(tmp_path, number) for number in range(3)]  # they start together, and end one by one
    assert max([kill_parent(parent) for parent in parents]) < BUSY_S


@pytest.mark.long
def test_no_worker_outlives_any_of_a_hundred_parents(tmp_path: Path) -> None:
    took = [kill_parent(start_parent(tmp_path, number)) for number in range(100)]
    print(f"100 parents killed: children gone after {max(took):.3f} s at most")
    assert max(took) < 2


def hang(ada: PoolWorker, number: int, timeout_s: float = 0.1) -> float:
    """Let a task of a worker hang; returns how long after its deadline it was gone."""
    pid = ada.pid
    content = ("deaf", "stubborn 60", "stop", "sleep 60")[number % 4]
    started = time.monotonic()
    with pytest.raises(WorkerTimeout):
        ada.evaluate(say(content), timeout_s)
    until(lambda: ada.load == 0, "it still runs")
    gone_s = time.monotonic() - started - timeout_s
    if ada.pid == pid and content != "sleep 60":  # called off before it began: a busy machine
        return hang(ada, number, timeout_s * 2)
    until(lambda: ada.pid is not None, "it was not replaced")
    return gone_s


def test_hung_tasks_are_gone_soon_after_their_deadline(make_pool) -> None:
    workers = make_pool("act", workers=["ada", "bob"], restart=EVER).workers
    with ThreadPoolExecutor(2) as threads:  # one hangs in all four ways while the other does
        took = list(threads.map(lambda ada: max(hang(ada, number) for number in range(4)), workers.values()))

    assert max(took) < 0.5 + BUSY_S  # the grace; the tasks take a minute, or have no end


@pytest.mark.long
def test_a_hundred_hung_tasks_are_gone_within_a_second_of_their_deadline(make_pool) -> None:
    pool = make_pool("act", workers=["ada"], restart=EVER)
    took = [hang(pool.workers["ada"], number) for number in range(100)]

    print(f"100 hung tasks: gone {max(took):.3f} s after their deadline at most")
    assert max(took) < 1


def ask_anything(pool: Any, number: int, seed: int, end: float) -> list[str]:
    """Ping, ask, abort and kill at random until that moment. Returns the answers that were somebody else's."""
    chance = random.Random(seed + number)
    wrong: list[str] = []
    asked = 0

    def evaluate(worker: Any) -> None:
        said = worker.evaluate(say(f"say {number}/{asked}"), 10).reasoning
        if said != f"{number}/{asked}":
            wrong.append(f"{number}/{asked} got {said}")

    def call_off(worker: Any) -> None:
        request = worker.submit(say("sleep 0.05"), 10)
        worker.abort(request if chance.random() < 0.5 else None)
        if not request.wait(20):
            wrong.append(f"{request} did not end")

    def kill(worker: Any) -> None:
        if chance.random() < 0.2 and worker.pid is not None:
            os.kill(worker.pid, signal.SIGKILL)

    acts = [
        lambda worker: worker.ping(10),
        evaluate,
        evaluate,
        lambda worker: worker.evaluate(say("sleep 0.2"), chance.random() * 0.1),
        call_off,
        kill,
    ]
    while time.monotonic() < end:
        asked += 1
        with suppress(WorkerError, ProcessLookupError):
            chance.choice(acts)(pool.workers[chance.choice(NAMES)])
    return wrong


def test_whatever_many_threads_ask_while_workers_are_killed_every_call_ends(make_pool) -> None:
    """Nothing hangs, and each answer is its asker's own."""
    pool = make_pool("act", workers=NAMES, restart=EVER, grace_s=0.2, recycle_after=50)
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    end = time.monotonic() + 3
    with ThreadPoolExecutor(8) as threads:
        wrong = list(threads.map(lambda number: ask_anything(pool, number, seed, end), range(8)))

    assert wrong == [[]] * 8
    assert pool.failure is None
    assert pool.drain(20)
    stats = pool.stats()
    assert all(worker["done"] > 0 and worker["waiting"] == 0 for worker in stats.values())
    assert not any("unknown" in worker for worker in stats.values())


def test_errors_of_workers_are_all_of_one_family() -> None:
    for kind in (QueueFull, RequestDropped, WorkerDied, WorkerStopped, WorkerTimeout, PoolFailed, EvaluatorFailed):
        assert issubclass(kind, WorkerError)
    assert issubclass(WorkerTimeout, TimeoutError)


@pytest.mark.parametrize(
    ("settings", "fault"),
    [
        ({"prompt": object()}, "context.prompt: must be JSON, not object"),
        ({"temperature": float("nan")}, "context.temp"),
    ],
)
def test_settings_that_cannot_be_told_to_a_process_are_refused(make_pool, settings, fault) -> None:
    pool = make_pool("act")
    with pytest.raises(InvalidMessage, match=fault):
        pool.initialize_worker("ada", **settings)


@pytest.mark.parametrize(("name", "value"), [("timeout_s", -1), ("timeout_s", float("nan")), ("attempts", 0)])
def test_a_deadline_that_cannot_be_is_refused(make_pool, name, value) -> None:
    pool = make_pool("act", workers=["ada"])
    with pytest.raises(InvalidMessage, match=name):
        pool.evaluate(say("say hi"), **{name: value})

    assert pool.workers["ada"].load == 0


def test_a_pool_that_is_closed_while_it_starts_a_worker_leaves_none_behind(make_pool) -> None:
    pool = make_pool("slow_to_start", start_timeout_s=20)
    caught: list[BaseException] = []

    def start() -> None:
        try:
            pool.initialize_worker("ada")
        except BaseException as error:
            caught.append(error)

    starting = threading.Thread(target=start)
    starting.start()
    until(lambda: pool._starting and pool._starting[0].requests.life is not None, "it is not started")
    pool.shutdown()
    starting.join(30)

    assert [type(error) for error in caught] in ([WorkerStopped], [WorkerNotReady])


FORKS = """
import os, sys
sys.path.insert(0, {folder!r})
import postroom
if __name__ == "__main__":
    with postroom.WorkerPool("pools.minds:act", workers=["ada"]) as pool:
        pid = os.fork()
        if pid == 0:
            try:
                pool.evaluate({{"id": "m", "content": "say hi"}})
            except postroom.WorkerStopped as error:
                print(error, flush=True)
            pool.shutdown()
            with postroom.WorkerPool("pools.minds:act", workers=["ada"]) as another:
                print(another.evaluate({{"id": "m", "content": "say of my own"}}).reasoning, flush=True)
            os._exit(0)
        os.waitpid(pid, 0)
        print(pool.evaluate({{"id": "m", "content": "say hi"}}).reasoning)
"""


def test_a_fork_of_the_program_has_no_part_in_the_pool(tmp_path: Path) -> None:
    program = tmp_path / "forks.py"
    program.write_text(FORKS.format(folder=str(TESTS)), encoding="utf-8")
    done = subprocess.run([sys.executable, str(program)], capture_output=True, text=True, timeout=60, check=True)

    assert done.stdout.splitlines() == [
        "this pool was made before the process forked; fork first, or make one in each",
        "of my own",
        "hi",
    ]


INTERRUPTED = """
import os, signal, sys, threading
sys.path.insert(0, {folder!r})
import postroom
if __name__ == "__main__":
    with postroom.WorkerPool("pools.minds:act", workers=["ada"]) as pool:
        threading.Timer(0.3, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
        try:
            pool.evaluate({{"id": "m", "content": "sleep 60"}}, timeout_s=50)
        except KeyboardInterrupt:
            print("interrupted", flush=True)
        print(pool.evaluate({{"id": "m", "content": "say on we go"}}, timeout_s=50).reasoning)
"""


def test_a_ctrl_c_calls_off_what_was_waited_for_and_the_pool_goes_on(tmp_path: Path) -> None:
    program = tmp_path / "interrupted.py"
    program.write_text(INTERRUPTED.format(folder=str(TESTS)), encoding="utf-8")
    done = subprocess.run([sys.executable, str(program)], capture_output=True, text=True, timeout=60, check=True)

    assert done.stdout.splitlines() == ["interrupted", "on we go"]


FORGETS = """
import atexit, logging, sys
sys.path.insert(0, {folder!r})
import postroom
if __name__ == "__main__":
    logging.basicConfig(format="%(message)s")
    pools = []
    atexit.register(lambda: [pool.shutdown() for pool in pools if sys.argv[1] == "late"])
    pools.append(postroom.WorkerPool("pools.minds:act", workers=["ada", "bob"]))
    print(pools[0].evaluate({{"id": "m", "content": "say hi"}}).reasoning)
"""


@pytest.mark.parametrize("shut_down", ["never", "late"])
def test_a_program_that_does_not_shut_its_pool_down_ends_without_a_word(tmp_path: Path, shut_down: str) -> None:
    program = tmp_path / "forgets.py"
    program.write_text(FORGETS.format(folder=str(TESTS)), encoding="utf-8")
    words = [sys.executable, str(program), shut_down]
    done = subprocess.run(words, capture_output=True, text=True, timeout=60, check=True)

    assert (done.stdout, done.stderr) == ("hi\n", "")
