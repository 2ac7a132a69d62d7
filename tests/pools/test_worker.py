"""One worker: a process that is asked, hears, stops, dies and is replaced."""

from __future__ import annotations

import os
import re
import signal
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from tests.support.patience import until

from postroom.core.clock import SYSTEM
from postroom.errors import (
    EvaluationAborted,
    EvaluatorFailed,
    InvalidMessage,
    WorkerDied,
    WorkerNotReady,
    WorkerStopped,
    WorkerTimeout,
)
from postroom.pools import process
from postroom.pools.evaluation import Evaluation
from postroom.pools.pool import WorkerPool
from postroom.pools.protocol import Pong, Result
from postroom.pools.restarts import RestartPolicy

from .conftest import BUSY_S, runs, say, wait_until_at_it, wait_until_begun

EVER = RestartPolicy(max_restarts=10_000, backoff_s=0)


# Ready, ping, evaluate


def test_a_worker_is_ready_answers_pings_and_ends(make_pool) -> None:
    pool = make_pool("plain")
    ada = pool.initialize_worker("ada")

    assert pool.workers == {"ada": ada}
    assert ada.state == "ready"
    assert ada.pid not in (None, os.getpid())
    assert 0 < ada.ping() < 1000
    ada.shutdown()
    assert ada.state == "stopped"
    assert ada.pid is None
    with pytest.raises(WorkerStopped, match="worker ada is shut down"):
        ada.ping()


def test_an_evaluation_names_its_message_and_its_times_are_apart(make_pool) -> None:
    ada = make_pool("act").initialize_worker("ada")

    found = ada.evaluate(say("sleep 0.05", id="m-7"))

    assert (found.message_id, found.confidence, found.reasoning) == ("m-7", 0.6, "slept")
    assert found.persona_id == "ada"
    assert found.processing_time_ms >= 50
    assert 0 < found.queue_delay_ms < found.round_trip_ms
    assert found.round_trip_ms >= found.processing_time_ms + found.queue_delay_ms
    assert ada.memory_bytes > 1_000_000
    assert ada.stats()["processing_ms"]["number"] == 1


def test_waiting_in_the_queue_is_counted_as_waiting_and_not_as_work(make_pool) -> None:
    ada = make_pool("act").initialize_worker("ada")
    begun = time.monotonic()
    first = ada.submit(say("sleep 0.5"))
    second = ada.submit(say("say hi"))
    between_ms = (time.monotonic() - begun) * 1000  # the first may have worked for so long when the second came

    assert first.result().processing_time_ms >= 500
    assert second.result().queue_delay_ms >= 500 - between_ms
    assert second.result().processing_time_ms < 490


def test_the_settings_of_a_worker_reach_the_evaluator(make_pool) -> None:
    ada = make_pool("echo").initialize_worker("ada", model="llama3.2:3b", prompt="be brief")

    said = ada.evaluate(say("hi")).reasoning
    assert said == str({"persona_id": "ada", "model": "llama3.2:3b", "prompt": "be brief"})


@pytest.mark.slow
def test_a_ping_is_answered_while_the_worker_works(make_pool) -> None:
    ada = make_pool("act").initialize_worker("ada")
    for content in ("sleep 0.5", "spin 0.5"):
        request = ada.submit(say(content))
        wait_until_begun(ada)
        assert ada.ping() < 400
        assert request.result().confidence == 0.6


def test_a_ping_that_begins_as_the_process_ends_is_told_at_once_and_does_not_use_up_its_time(make_pool) -> None:
    ada = make_pool("plain").initialize_worker("ada")
    life = ada.requests.life
    ada.shutdown()
    assert life.ping(SYSTEM.steady_ns() + 10**8) is None  # else TimeoutError


def test_a_hundred_pings_at_once_get_a_hundred_answers(make_pool) -> None:
    ada = make_pool("plain").initialize_worker("ada")
    with ThreadPoolExecutor(100) as threads:
        found = list(threads.map(lambda _: ada.ping(), range(100)))

    assert len(found) == 100
    assert all(0 < latency_ms < 1000 * BUSY_S for latency_ms in found)
    assert ada.stats().get("late", 0) == 0


@pytest.mark.slow
def test_ten_thousand_pings_in_a_row_without_an_error(make_pool) -> None:
    ada = make_pool("plain").initialize_worker("ada")
    found = [ada.ping() for _ in range(10_000)]

    assert sum(found) / len(found) < 10
    assert not {"late", "unknown", "pings_lost"} & set(ada.stats())


def test_messages_of_a_megabyte_and_numbers_of_any_size_pass(make_pool) -> None:
    ada = make_pool("act").initialize_worker("ada")
    large = "ü" * 1_000_000

    assert ada.evaluate(say(f"say {large}")).reasoning == large
    assert ada.evaluate({**say("say hi"), "n": 2**80}).reasoning == "hi"


@pytest.mark.parametrize("message", ["hi", {"content": "no id"}, {"id": "m", "content": {1, 2}}])
def test_what_is_no_message_is_refused_and_costs_nothing(make_pool, message) -> None:
    ada = make_pool("plain").initialize_worker("ada")
    with pytest.raises(InvalidMessage, match="message"):
        ada.evaluate(message)

    assert ada.load == 0
    assert ada.ping() > 0


# A result goes to the request that it names


def test_answers_go_to_those_who_asked_however_many_ask_at_once(make_pool) -> None:
    """In the original any result ended any wait."""
    ada = make_pool("act").initialize_worker("ada")
    with ThreadPoolExecutor(8) as threads:
        found = list(threads.map(lambda n: ada.evaluate(say(f"say {n}", id=f"m{n}"), 20), range(400)))

    assert [(each.message_id, each.reasoning) for each in found] == [(f"m{n}", str(n)) for n in range(400)]


def test_an_evaluator_that_names_another_message_does_not_mislead(make_pool) -> None:
    ada = make_pool("act").initialize_worker("ada")

    assert ada.evaluate(say("wrong_id", id="mine")).message_id == "mine"


def test_results_of_no_request_and_of_an_earlier_attempt_are_counted_and_dropped(make_pool) -> None:
    ada = make_pool("act").initialize_worker("ada")
    request = ada.submit(say("sleep 0.3"))
    until(lambda: ada.requests.life.running, "it was not sent")
    # frames are handed to it as if its process had said them; so many answers more are then expected
    made_up = Evaluation("other", 0.1)
    ada.requests.life.work.expect(1)
    ada.requests.life.side.expect(1)
    ada.take_work(ada.requests.life, [Result(request.id, 7, False, made_up, 1), Result(10**9, 1, True, made_up, 1)])
    ada.requests.life.take_side([Pong(10**9, None, 1)])

    assert ada.figures.counts["late"] == 2
    assert ada.figures.counts["unknown"] == 1
    assert request.result().reasoning == "slept"
    assert len(request.evaluations) == 1


# Two looks


def test_a_first_look_is_there_before_the_last_word(make_pool) -> None:
    ada = make_pool("act").initialize_worker("ada")
    seen: list[tuple[int, bool]] = []
    request = ada.submit(say("two_looks 0.3"))
    request.on_change(lambda changed: seen.append((len(changed.evaluations), changed.done)))
    until(lambda: request.evaluations, "no first look came")

    assert not request.done
    assert request.evaluation is not None
    assert (request.evaluation.stage, request.evaluation.confidence) == ("quick", 0.4)
    last = request.result()
    assert (last.stage, last.confidence) == ("deep", 0.9)
    assert [each.stage for each in request.evaluations] == ["quick", "deep"]
    assert last.round_trip_ms > request.evaluations[0].round_trip_ms
    until(lambda: seen[-1:] == [(2, True)], "the last word was not told")  # by the thread that reads, perhaps later
    assert ada.stats()["done"] == 1


def test_a_look_that_is_the_only_one_is_the_last(make_pool) -> None:
    ada = make_pool("act").initialize_worker("ada")
    request = ada.submit(say("one_look"))

    assert request.result().reasoning == "not for me"
    assert [each.stage for each in request.evaluations] == ["quick", "quick"]


# What goes wrong in an evaluator


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("raises out of ideas", "ValueError: out of ideas"),
        ("nonsense", "must return an Evaluation or a dict of its fields, not int"),
        ("too_sure", "confidence must be a number from 0 to 1, not 1.5"),
        ("no_look", "gave no evaluation"),
        ("half_an_emoji", "UnicodeEncodeError: .*surrogates not allowed"),
        ("half_an_emoji_at_first", "UnicodeEncodeError: .*surrogates not allowed"),
        ("raises_half_an_emoji", r"ValueError: cut \\ud83d"),
        ("raises_speechless", r"_SpeechlessError: \(it cannot say what\)"),
    ],
)
def test_an_evaluator_that_fails_is_told_with_its_traceback_and_the_worker_lives(make_pool, content, said) -> None:
    """In the original the manager read the error from a field that the worker did not send."""
    ada = make_pool("act").initialize_worker("ada")
    pid = ada.pid
    errors: list[dict[str, Any]] = []
    ada.on("error", lambda event, detail: errors.append(dict(detail)))
    with pytest.raises(EvaluatorFailed, match=said) as caught:
        ada.evaluate(say(content))

    assert caught.value.worker == "ada"
    assert "Traceback" in caught.value.trace
    assert len(errors) == 1
    assert re.search(said, errors[0]["error"])
    assert ada.evaluate(say("say fine")).reasoning == "fine"
    assert ada.pid == pid
    assert not {"late", "unknown"} & set(ada.stats())


def test_a_worker_that_ends_is_not_said_to_be_killed_when_its_status_comes_late(
    make_pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its line ends before its status comes. The patience for that is over when it has ended, and not been asked how."""
    take_status = process.Life._on_status

    def killed_before(life: process.Life) -> None:
        if life.ready:  # what came at its start was its number
            life.kill("was killed: it hung up")
        take_status(life)

    monkeypatch.setattr(process.Life, "_on_status", killed_before)
    ada = make_pool("act").initialize_worker("ada")
    with pytest.raises(WorkerDied, match="exit code 3"):
        ada.evaluate(say("exit 3"))


@pytest.mark.parametrize(("content", "how"), [("die", "signal 9"), ("exit 3", "exit code 3"), ("hang_up", "hung up")])
def test_a_worker_that_dies_at_work_is_replaced_and_its_asker_is_told(make_pool, content, how) -> None:
    """In the original a worker that died was not started again."""
    ada = make_pool("act").initialize_worker("ada")
    pid = ada.pid
    exits: list[dict[str, Any]] = []
    ada.on("exit", lambda event, detail: exits.append(dict(detail)))
    with pytest.raises(WorkerDied, match=how) as caught:
        ada.evaluate(say(content))

    assert caught.value.worker == "ada"
    if content.startswith("exit"):
        assert caught.value.output == "I have had enough"
    assert ada.evaluate(say("say back")).reasoning == "back"
    assert ada.pid != pid
    assert [each["pid"] for each in exits] == [pid]
    assert ada.stats()["restarts"] == 1


@pytest.mark.slow
def test_a_request_may_be_tried_again_when_its_worker_dies(make_pool, tmp_path) -> None:
    ada = make_pool("act").initialize_worker("ada")
    request = ada.submit(say("sleep 0.3"), attempts=2)
    until(lambda: request.attempt == 1, "it was not sent")
    os.kill(ada.pid, signal.SIGKILL)

    assert request.result().reasoning == "slept"
    assert request.attempt == 2


def test_requests_that_wait_outlive_the_process(make_pool) -> None:
    ada = make_pool("act").initialize_worker("ada")
    doomed = ada.submit(say("die"))
    others = [ada.submit(say(f"say {n}")) for n in range(20)]

    with pytest.raises(WorkerDied):
        doomed.result()
    assert [request.result().reasoning for request in others] == [str(n) for n in range(20)]


# Deadlines


@pytest.mark.parametrize("content", ["sleep 60", "spin 60", "two_looks 60"])
def test_what_can_be_stopped_is_stopped_at_its_deadline_and_the_worker_lives(make_pool, content) -> None:
    ada = make_pool("act").initialize_worker("ada")
    pid = ada.pid
    started = time.monotonic()
    with pytest.raises(WorkerTimeout, match=r"worker ada was still running after \d"):
        ada.evaluate(say(content), timeout_s=0.1)
    assert time.monotonic() - started < 0.5 + BUSY_S

    assert ada.evaluate(say("say next")).reasoning == "next"
    assert ada.pid == pid


@pytest.mark.slow
@pytest.mark.parametrize("content", ["deaf", "stubborn 60", "stop"])
def test_what_cannot_be_stopped_is_killed_and_replaced(make_pool, content) -> None:
    """In the original a timeout did not stop the worker."""
    ada = make_pool("act", grace_s=0.3).initialize_worker("ada")
    pid = ada.pid
    exits: list[dict[str, Any]] = []
    ada.on("exit", lambda event, detail: exits.append(dict(detail)))
    started = time.monotonic()

    def hang() -> bool:
        """On a busy machine time may be over before the worker begins: that request is taken back, and nobody killed."""
        with pytest.raises(WorkerTimeout):
            ada.evaluate(say(content), timeout_s=0.1)
        return bool(exits)

    until(hang, "it was not killed")

    assert time.monotonic() - started < 0.1 + 0.3 + BUSY_S
    assert exits[0]["pid"] == pid
    assert exits[0]["text"].startswith("was killed: it continued request")
    assert ada.evaluate(say("say next"), timeout_s=20).reasoning == "next"
    assert ada.exits[0].cause == "hung"


@pytest.mark.slow
def test_a_worker_that_hangs_says_where_before_it_is_killed(make_pool) -> None:
    ada = make_pool("act", grace_s=1).initialize_worker("ada")
    words: list[str] = []
    life = ada.requests.life

    def hang() -> bool:
        with pytest.raises(WorkerTimeout):
            ada.evaluate(say("deaf"), timeout_s=0.1)
        return ada.requests.life is not life

    until(hang, "it was not killed")
    words.append(life.written)

    assert "most recent call first" in words[0]
    assert "minds.py" in words[0]


def test_what_a_worker_has_started_goes_on_when_the_worker_is_asked_where_it_is(make_pool) -> None:
    """The signal for that ends programs that do not expect it: a model's server, for instance."""
    ada = make_pool("act").initialize_worker("ada")
    hired = int(ada.evaluate(say("hire")).reasoning)
    request = ada.submit(say("sleep 60"), None)
    wait_until_begun(ada)
    ada.requests.life._dump(request)
    until(lambda: "most recent call first" in ada.output, "it did not say where it is")

    assert runs(hired)
    ada.abort(request)
    ada.shutdown()
    until(lambda: not runs(hired), "it outlived its worker")


@pytest.mark.slow
def test_one_that_waits_behind_others_has_its_deadline_kept_and_nobody_is_killed(make_pool) -> None:
    ada = make_pool("act", grace_s=0.1).initialize_worker("ada")
    pid = ada.pid
    first = ada.submit(say("sleep 0.6"))
    with pytest.raises(WorkerTimeout, match="worker ada"):
        ada.evaluate(say("say hi"), timeout_s=0.1)

    assert first.result().reasoning == "slept"
    assert ada.evaluate(say("say hi")).reasoning == "hi"
    assert ada.pid == pid


def test_a_thousand_timeouts_leave_nothing_behind(make_pool) -> None:
    """In the original each timeout left a listener."""
    pool = make_pool("act", in_hand=1)
    ada = pool.initialize_worker("ada")
    hold = ada.submit(say("sleep 3"), timeout_s=20)
    for _ in range(1000):
        with pytest.raises(WorkerTimeout):
            ada.evaluate(say("say hi"), timeout_s=0)
    assert ada.load == 1
    assert len(ada.requests) == 0
    assert ada.requests.life._pings == {}
    ada.abort(hold)


@pytest.mark.slow
def test_the_loop_keeps_the_deadline_of_what_nobody_waits_for(make_pool) -> None:
    ada = make_pool("act").initialize_worker("ada")
    long, short = ada.submit(say("sleep 60"), 0.4), ada.submit(say("sleep 60"), 0.1)
    until(lambda: short.done, "the deadline was not kept")
    assert not long.done
    until(lambda: long.done, "the deadline was not kept")

    assert isinstance(short.error, WorkerTimeout)
    assert isinstance(long.error, WorkerTimeout)
    assert ada.stats()["timed_out"] == 2


@pytest.mark.slow
def test_requests_with_and_without_a_deadline_go_together(make_pool) -> None:
    ada = make_pool("act").initialize_worker("ada")
    endless, short = ada.submit(say("sleep 0.5"), None), ada.submit(say("sleep 60"), 0.1)
    with pytest.raises(WorkerTimeout):
        short.result()

    assert endless.result().reasoning == "slept"
    assert ada.evaluate(say("say hi"), timeout_s=None).reasoning == "hi"


def stop(pid: int) -> None:
    """Stop a process, and wait until it stands."""
    os.kill(pid, signal.SIGSTOP)
    until(lambda: Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T", "it does not stop")


def test_a_ping_to_a_worker_that_is_stopped_runs_out_of_time(make_pool) -> None:
    ada = make_pool("plain").initialize_worker("ada")
    stop(ada.pid)
    with pytest.raises(WorkerTimeout, match="worker ada did not answer a ping within 0.1 s"):
        ada.ping(timeout_s=0.1)

    os.kill(ada.pid, signal.SIGCONT)
    assert ada.ping(timeout_s=20) > 0
    until(lambda: ada.figures.counts["late"] == 1, "the late pong was not counted")


@pytest.fixture
def signals_all_the_time() -> Iterator[None]:
    """A signal every 20 ms, as a program with a timer gets them; ten seconds of them."""
    left = 500

    def count(*_: object) -> None:
        nonlocal left
        left -= 1
        if left == 0:  # so that one who waits for a pause between two of them is late, and does not hang
            signal.setitimer(signal.ITIMER_REAL, 0)

    before = signal.signal(signal.SIGALRM, count)
    signal.setitimer(signal.ITIMER_REAL, 0.02, 0.02)
    yield
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, before)


def test_a_deadline_is_kept_in_a_program_that_gets_signals_all_the_time(make_pool, signals_all_the_time: None) -> None:
    """Python repeats a read that a signal interrupts, and the system would count its time from the beginning."""
    ada = make_pool("act").initialize_worker("ada")
    started = time.monotonic()
    with pytest.raises(WorkerTimeout):
        ada.evaluate(say("sleep 60"), timeout_s=0.2)
    stop(ada.pid)
    with pytest.raises(WorkerTimeout):
        ada.ping(timeout_s=0.2)

    assert time.monotonic() - started < 0.5 + BUSY_S
    os.kill(ada.pid, signal.SIGCONT)


@pytest.mark.slow
def test_a_large_message_to_a_worker_that_is_stopped_blocks_nobody(make_pool) -> None:
    ada = make_pool("act", grace_s=0.1, restart=EVER).initialize_worker("ada")
    stop(ada.pid)
    with pytest.raises(WorkerTimeout):
        ada.evaluate(say("say " + "x" * 5_000_000), timeout_s=0.2)

    assert ada.evaluate(say("say " + "x" * 5_000_000), timeout_s=20).confidence == 0.6


# Abort


def test_abort_calls_off_what_runs_and_the_worker_goes_on(make_pool) -> None:
    ada = make_pool("act").initialize_worker("ada")
    pid = ada.pid
    request = ada.submit(say("sleep 60"))
    until(lambda: request.attempt == 1, "it was not sent")

    assert ada.abort()
    with pytest.raises(EvaluationAborted, match="worker ada was told to stop"):
        request.result()
    assert ada.evaluate(say("say next")).reasoning == "next"
    assert ada.pid == pid
    assert not ada.abort()
    assert ada.stats()["aborted"] == 1


def test_abort_wakes_one_who_waits_for_the_result_himself(make_pool) -> None:
    ada = make_pool("act").initialize_worker("ada")
    caught: list[BaseException] = []

    def ask() -> None:
        try:
            ada.evaluate(say("sleep 60"), timeout_s=50)
        except EvaluationAborted as error:
            caught.append(error)

    asking = threading.Thread(target=ask)
    asking.start()
    until(lambda: ada.load == 1, "it was not sent")
    ada.abort()
    asking.join(20)

    assert len(caught) == 1


@pytest.mark.slow
def test_what_only_waits_can_be_called_off_too(make_pool) -> None:
    ada = make_pool("act", in_hand=1).initialize_worker("ada")
    running, waiting = ada.submit(say("sleep 0.3")), ada.submit(say("say hi"))

    assert ada.abort(waiting)
    assert not ada.abort(waiting)
    with pytest.raises(EvaluationAborted):
        waiting.result()
    assert running.result().reasoning == "slept"


def test_aborts_never_hit_the_request_that_follows(make_pool) -> None:
    """An abort that comes as its request ends must not end the next one."""
    ada = make_pool("act").initialize_worker("ada")
    for n in range(200):
        first, second = ada.submit(say("say first")), ada.submit(say(f"say {n}"))
        ada.abort(first)
        assert second.result().reasoning == str(n)


@pytest.mark.slow
def test_a_worker_that_does_not_stop_when_told_is_killed(make_pool) -> None:
    ada = make_pool("act", grace_s=0.2).initialize_worker("ada")
    pid = ada.pid
    request = ada.submit(say("stubborn 60"), None)
    wait_until_begun(ada)
    ada.abort()
    until(lambda: ada.pid not in (pid, None), "it was not replaced")

    assert isinstance(request.error, EvaluationAborted)


# Starting


@pytest.mark.slow
def test_a_worker_that_is_not_ready_in_time_is_an_error_with_its_last_words(make_pool) -> None:
    pool = make_pool("slow_to_start", start_timeout_s=0.5)
    with pytest.raises(WorkerNotReady, match="worker ada was not ready within 0.5 s") as caught:
        pool.initialize_worker("ada")

    assert "loading a large model" in str(caught.value)
    assert caught.value.output == "loading a large model"
    assert pool.workers == {}


@pytest.mark.parametrize(
    ("evaluator", "said"),
    [
        ("broken_from_the_start", "RuntimeError: no model"),
        ("nobody", "AttributeError: module 'pools.minds' has no attribute 'nobody'"),
        ("no.such.module:nobody", "ModuleNotFoundError: No module named 'no'"),
    ],
)
def test_a_worker_that_cannot_start_is_an_error_at_once(make_pool, evaluator, said) -> None:
    pool = make_pool(evaluator)
    with pytest.raises(WorkerNotReady, match=f"could not load its evaluator: {said}"):
        pool.initialize_worker("ada")

    assert pool.failure is None


@pytest.mark.parametrize("evaluator", ["postroom.inference", "", ":mock", "module:", "__main__:f", 7])
def test_an_evaluator_that_cannot_be_one_is_refused(evaluator) -> None:
    with pytest.raises(InvalidMessage, match="evaluator: must"):
        WorkerPool(evaluator)


# Events


def test_events_can_be_listened_to_and_a_listener_that_fails_harms_nobody(make_pool) -> None:
    pool = make_pool("act")
    heard: list[tuple[str, str]] = []
    pool.on("ready", lambda event, detail: heard.append((event, detail["worker"])))
    pool.on("ready", lambda event, detail: 1 / 0)
    ada = pool.initialize_worker("ada")
    forget = ada.on("pong", lambda event, detail: heard.append((event, detail["worker"])))
    ada.on("exit", lambda event, detail: heard.append((event, detail["asked"])))
    ada.ping()
    forget()
    ada.ping()
    ada.shutdown()

    assert heard == [("ready", "ada"), ("pong", "ada"), ("exit", "shutdown")]
    with pytest.raises(ValueError, match="there is no event 'boom'"):
        ada.on("boom", print)


@pytest.mark.slow
@pytest.mark.parametrize("content", ["sleep 60", "stubborn 60", "deaf"])
def test_shutting_down_a_worker_does_not_wait_for_its_work(make_pool, content) -> None:
    pool = make_pool("act")
    ada = pool.initialize_worker("ada")
    request = ada.submit(say(content), None)
    wait_until_at_it(ada, content)
    started = time.monotonic()
    pool.shutdown()
    took_s = time.monotonic() - started

    assert took_s < 0.5 + BUSY_S  # the grace; the work takes a minute, or has no end
    with pytest.raises(WorkerStopped):
        request.result()
