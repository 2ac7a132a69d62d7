from __future__ import annotations

import functools
import math
import multiprocessing
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from postroom.core.clock import SYSTEM, ManualClock
from postroom.core.config import Config, parse_url
from postroom.core.limits import CircuitBreaker, CircuitState, TokenBucket
from postroom.errors import CircuitOpen, PostroomError, RateLimited, RoomBusy
from postroom.mail.rate_limit import SenderLimit
from postroom.stores import cells, open_store
from postroom.stores.contract import ANY, Store
from postroom.stores.memory.store import MemoryStore


class DozingClock(ManualClock):
    """Sleeping takes no real time: it moves the clock on, after telling whoever wants to know."""

    def __init__(self, while_asleep: Callable[[], None] = lambda: None) -> None:
        super().__init__()
        self.slept: list[float] = []
        self.while_asleep = while_asleep

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.while_asleep()
        self.advance(seconds)


@pytest.fixture
def hasty_threads() -> Iterator[None]:
    """Let threads interrupt each other as often as they can."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


def run_together(count: int, work: Callable[[], None]) -> None:
    start = threading.Barrier(count)

    def begin() -> None:
        start.wait()
        work()

    threads = [threading.Thread(target=begin) for _ in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
        assert not thread.is_alive()


# TokenBucket


def test_a_bucket_gives_what_it_holds_and_then_what_drips_in() -> None:
    clock = ManualClock()
    bucket = TokenBucket(10, 2.0, clock=clock)
    assert [bucket.consume() for _ in range(11)] == [True] * 10 + [False]
    clock.advance(0.4)
    assert not bucket.consume()
    clock.advance(0.1)
    assert bucket.consume()
    assert not bucket.consume()


def test_a_bucket_never_holds_more_than_its_capacity() -> None:
    clock = ManualClock()
    bucket = TokenBucket(capacity=3, refill_rate=100.0, clock=clock)
    clock.advance(3600)
    assert bucket.tokens == bucket.capacity == 3
    assert not bucket.consume(4)
    assert bucket.consume(3)
    assert bucket.tokens == 0
    assert bucket.refill_rate == 100.0


def test_a_refused_consume_takes_nothing() -> None:
    bucket = TokenBucket(2, 0, clock=ManualClock())
    assert not bucket.consume(3)
    assert bucket.consume(2)


def test_the_tokens_of_a_bucket_can_be_set_up_to_its_capacity() -> None:
    bucket = TokenBucket(5, 1, clock=ManualClock())
    bucket.tokens = 1
    assert bucket.consume()
    assert not bucket.consume()
    bucket.tokens = 99
    assert bucket.tokens == 5


def test_the_wall_clock_gives_a_bucket_no_tokens() -> None:
    clock = ManualClock()
    bucket = TokenBucket(1, 1, clock=clock)
    assert bucket.consume()
    clock.jump_wall(3600)
    assert not bucket.consume()
    clock.jump_wall(-7200)
    clock.advance(1)
    assert bucket.consume()


def test_waiting_for_a_token_sleeps_once_and_exactly_long_enough() -> None:
    clock = DozingClock()
    bucket = TokenBucket(5, 2.0, clock=clock)
    assert bucket.consume(5)
    assert bucket.wait_for_token(3)
    assert clock.slept == [1.5]
    assert bucket.tokens == 0


def test_a_token_that_is_there_is_not_waited_for() -> None:
    clock = DozingClock()
    assert TokenBucket(1, 1, clock=clock).wait_for_token()
    assert sum(clock.slept) == 0


def test_waiting_ends_with_false_when_the_time_is_over_and_takes_nothing() -> None:
    clock = DozingClock()
    bucket = TokenBucket(4, 1.0, clock=clock)
    assert bucket.consume(4)
    assert not bucket.wait_for_token(3, timeout=2)
    assert clock.slept == [2]
    assert bucket.tokens == 2


def test_a_bucket_that_never_refills_lets_waiters_go_after_their_time() -> None:
    clock = DozingClock()
    bucket = TokenBucket(1, 0, clock=clock)
    assert bucket.consume()
    assert not bucket.wait_for_token(timeout=10)
    assert clock.slept == [10]


def test_more_tokens_than_fit_are_refused_without_waiting() -> None:
    clock = DozingClock()
    bucket = TokenBucket(2, 1, clock=clock)
    assert not bucket.wait_for_token(3)
    assert clock.slept == []
    assert bucket.tokens == 2


def test_a_waiter_is_not_overtaken_by_those_who_come_later() -> None:
    overtook: list[bool] = []
    clock = DozingClock(lambda: overtook.append(bucket.consume()))
    bucket = TokenBucket(5, 1, clock=clock)
    assert bucket.consume(4)
    assert bucket.wait_for_token(5)
    assert overtook == [False]


def test_an_interrupted_waiter_gives_its_tokens_back() -> None:
    def interrupt() -> None:
        raise KeyboardInterrupt

    clock = DozingClock(interrupt)
    bucket = TokenBucket(2, 1, clock=clock)
    assert bucket.consume(1)
    with pytest.raises(KeyboardInterrupt):
        bucket.wait_for_token(2)
    assert bucket.tokens == 1


def test_waiting_works_on_the_clock_of_the_machine() -> None:
    bucket = TokenBucket(1, 50)
    before_ns = SYSTEM.steady_ns()
    assert bucket.consume()
    assert bucket.wait_for_token(timeout=5)
    assert SYSTEM.steady_ns() - before_ns >= 19_000_000


@pytest.mark.usefixtures("hasty_threads")
def test_threads_never_get_more_tokens_than_there_are() -> None:
    bucket = TokenBucket(1000, 0, clock=ManualClock())
    got: list[int] = []
    run_together(8, lambda: got.append(sum(bucket.consume() for _ in range(500))))
    assert sum(got) == 1000


@pytest.mark.usefixtures("hasty_threads")
def test_the_holder_of_a_buckets_lock_looks_and_takes_in_one_step() -> None:
    bucket = TokenBucket(1000, 0, clock=ManualClock())
    got: list[int] = []

    def take_in_pairs() -> None:
        for _ in range(100):
            with bucket.lock:
                if bucket.tokens >= 2:
                    bucket.tokens -= 2
                    got.append(2)
            got.extend([1] * bucket.consume())

    run_together(8, take_in_pairs)

    assert sum(got) == 1000


def test_a_bucket_tells_when_it_was_last_refilled() -> None:
    clock = ManualClock()
    bucket = TokenBucket(5, 1, clock=clock)
    begun_s = clock.wall_ms() / 1000
    clock.advance(2)
    assert bucket.last_refill == begun_s
    assert bucket.consume()
    assert bucket.last_refill == begun_s + 2


@pytest.mark.parametrize(
    "make",
    [
        lambda: TokenBucket(0, 1),
        lambda: TokenBucket(math.nan, 1),
        lambda: TokenBucket(1, -1),
        lambda: TokenBucket(1, 1).consume(-1),
        lambda: TokenBucket(1, 1).wait_for_token(-1),
        lambda: CircuitBreaker(failure_threshold=0),
        lambda: CircuitBreaker(timeout=-1),
    ],
)
def test_limits_that_make_no_sense_are_refused(make: Callable[[], object]) -> None:
    with pytest.raises(ValueError, match="must be"):
        make()


# CircuitBreaker


class Trouble(Exception):
    pass


def fail() -> None:
    raise Trouble


def broken_breaker(clock: ManualClock, failures: int = 2) -> CircuitBreaker:
    breaker = CircuitBreaker(failure_threshold=failures, timeout=60, clock=clock)
    for _ in range(failures):
        with pytest.raises(Trouble):
            breaker.call(fail)
    assert breaker.state is CircuitState.OPEN
    return breaker


def test_a_closed_circuit_passes_arguments_results_and_errors() -> None:
    breaker = CircuitBreaker()
    assert (breaker.failure_threshold, breaker.timeout) == (5, 60)
    assert (breaker.state, breaker.failures, breaker.last_failure_time) == (CircuitState.CLOSED, 0, None)
    assert breaker.call(divmod, 7, 2) == (3, 1)
    assert breaker.call(sorted, [1, 3, 2], reverse=True) == [3, 2, 1]
    with pytest.raises(ZeroDivisionError):
        breaker.call(divmod, 1, 0)
    assert breaker.failures == 1


def test_enough_failures_open_the_circuit_and_nothing_is_called_any_more() -> None:
    breaker = broken_breaker(ManualClock())
    called: list[int] = []
    with pytest.raises(CircuitOpen, match=r"^Circuit breaker OPEN for append$") as caught:
        breaker.call(called.append, 1)
    assert called == []
    assert isinstance(caught.value, PostroomError)
    assert breaker.failures == 2


def test_a_success_between_failures_starts_the_count_anew() -> None:
    breaker = CircuitBreaker(failure_threshold=2, clock=ManualClock())
    for _ in range(5):
        with pytest.raises(Trouble):
            breaker.call(fail)
        breaker.call(int)
        assert breaker.failures == 0
    assert breaker.state is CircuitState.CLOSED


def test_after_its_rest_a_success_closes_the_circuit() -> None:
    clock = ManualClock()
    breaker = broken_breaker(clock)
    clock.advance(59)
    with pytest.raises(CircuitOpen):
        breaker.call(int)
    clock.advance(1)
    assert breaker.call(int) == 0
    assert (breaker.state, breaker.failures) == (CircuitState.CLOSED, 0)


def test_a_failed_probe_opens_the_circuit_for_another_rest() -> None:
    clock = ManualClock()
    breaker = broken_breaker(clock, failures=3)
    clock.advance(60)
    with pytest.raises(Trouble):
        breaker.call(fail)
    assert breaker.state is CircuitState.OPEN
    clock.advance(59)
    with pytest.raises(CircuitOpen):
        breaker.call(int)
    clock.advance(1)
    breaker.call(int)


def test_while_a_probe_is_out_nobody_else_passes() -> None:
    clock = ManualClock()
    breaker = broken_breaker(clock)
    clock.advance(60)

    def probe() -> str:
        assert breaker.state is CircuitState.HALF_OPEN
        with pytest.raises(CircuitOpen):
            breaker.call(int)
        return "came back"

    assert breaker.call(probe) == "came back"
    assert breaker.call(int) == 0


@pytest.mark.usefixtures("hasty_threads")
def test_of_many_threads_exactly_one_is_the_probe() -> None:
    clock = ManualClock()
    breaker = broken_breaker(clock)
    clock.advance(60)
    refused = threading.Semaphore(0)
    probes: list[int] = []

    def probe() -> None:
        probes.append(1)
        for _ in range(7):  # it comes back only when all the others were refused
            assert refused.acquire(timeout=10)

    def work() -> None:
        try:
            breaker.call(probe)
        except CircuitOpen:
            refused.release()

    run_together(8, work)
    assert len(probes) == 1
    assert breaker.state is CircuitState.CLOSED


def test_an_interrupted_probe_leaves_the_next_caller_to_try() -> None:
    clock = ManualClock()
    breaker = broken_breaker(clock)
    clock.advance(60)

    def interrupted() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        breaker.call(interrupted)
    assert breaker.failures == 2
    assert breaker.call(int) == 0
    assert breaker.state is CircuitState.CLOSED


def test_an_interruption_is_not_a_failure() -> None:
    breaker = CircuitBreaker(failure_threshold=1, clock=ManualClock())
    with pytest.raises(SystemExit):
        breaker.call(sys.exit)
    assert (breaker.state, breaker.failures) == (CircuitState.CLOSED, 0)


def test_a_call_from_before_the_circuit_opened_has_no_say_after_it() -> None:
    clock = ManualClock()
    breaker = CircuitBreaker(failure_threshold=1, timeout=60, clock=clock)

    def slow_success() -> None:
        with pytest.raises(Trouble):
            breaker.call(fail)  # meanwhile another call opens the circuit

    breaker.call(slow_success)
    assert (breaker.state, breaker.failures) == (CircuitState.OPEN, 1)

    clock.advance(60)
    breaker.call(int)

    def slow_failure() -> None:
        with pytest.raises(Trouble):
            breaker.call(fail)
        clock.advance(50)
        raise Trouble

    with pytest.raises(Trouble):
        breaker.call(slow_failure)
    clock.advance(10)  # 60 s after the failure that opened it, though 10 s after the late one
    breaker.call(int)


def test_the_time_of_the_last_failure_is_told_as_people_count_but_not_judged_by() -> None:
    clock = ManualClock(wall_ms=1_800_000_000_000)
    breaker = broken_breaker(clock)
    assert breaker.last_failure_time == 1_800_000_000
    clock.jump_wall(3600)
    with pytest.raises(CircuitOpen):
        breaker.call(int)
    clock.jump_wall(-7200)
    clock.advance(60)
    breaker.call(int)


def test_a_function_without_a_name_can_be_called_too() -> None:
    breaker = broken_breaker(ManualClock())
    with pytest.raises(CircuitOpen, match=r"Circuit breaker OPEN for functools\.partial"):
        breaker.call(functools.partial(int, "7"))


def test_a_function_may_have_an_argument_called_func() -> None:
    def double(func: int) -> int:
        return 2 * func

    assert CircuitBreaker().call(double, func=4) == 8


# SenderLimit


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture(params=["memory:", "sqlite"])
def store(request: pytest.FixtureRequest, tmp_path: Path, clock: ManualClock) -> Iterator[Store]:
    url = request.param if request.param == "memory:" else f"sqlite:{tmp_path / 'room'}"
    with_closing = open_store(parse_url(url), Config(), clock)
    yield with_closing
    with_closing.close()


def test_a_sender_may_send_its_burst_and_then_its_rate(store: Store, clock: ManualClock) -> None:
    limit = SenderLimit(store, 2, 3, clock)
    for _ in range(3):
        limit.take("ada")
    with pytest.raises(
        RateLimited, match=r"ada may send 2 messages per second here \(3 at once\); try again in 0\.5"
    ) as err:
        limit.take("ada")
    assert err.value.retry_after_s == 0.5
    clock.advance(0.4)
    with pytest.raises(RateLimited) as err:
        limit.take("ada")
    clock.advance(err.value.retry_after_s)
    limit.take("ada")


def test_senders_have_buckets_of_their_own(store: Store, clock: ManualClock) -> None:
    limit = SenderLimit(store, 1, 1, clock)
    limit.take("ada")
    limit.take("bob")
    with pytest.raises(RateLimited):
        limit.take("ada")


def test_two_limits_on_one_room_share_the_buckets(store: Store, clock: ManualClock) -> None:
    SenderLimit(store, 1, 2, clock).take("ada")
    SenderLimit(store, 1, 2, clock).take("ada")
    with pytest.raises(RateLimited):
        SenderLimit(store, 1, 2, clock).take("ada")


def test_a_batch_is_counted_whole_or_not_at_all(store: Store, clock: ManualClock) -> None:
    limit = SenderLimit(store, 1, 5, clock)
    limit.take("ada", 3)
    with pytest.raises(RateLimited) as err:
        limit.take("ada", 3)
    assert err.value.retry_after_s == 1
    limit.take("ada", 2)


def test_a_batch_larger_than_the_burst_is_told_that_it_never_passes(store: Store, clock: ManualClock) -> None:
    with pytest.raises(RateLimited, match="at most 5 messages at once here, not 6; send fewer at a time") as err:
        SenderLimit(store, 1, 5, clock).take("ada", 6)
    assert err.value.retry_after_s == math.inf
    assert store.cell_read("limit/ada") is None


def test_without_a_burst_a_second_s_worth_may_come_at_once(store: Store, clock: ManualClock) -> None:
    assert SenderLimit(store, 2.5, None, clock).burst == 3
    assert SenderLimit(store, 0.1, None, clock).burst == 1


def test_the_wall_clock_frees_no_sender_and_locks_none_out(store: Store, clock: ManualClock) -> None:
    limit = SenderLimit(store, 1, 1, clock)
    limit.take("ada")
    clock.jump_wall(3600)
    with pytest.raises(RateLimited):
        limit.take("ada")
    clock.jump_wall(-7200)
    clock.advance(1)
    limit.take("ada")


def test_after_a_restart_of_the_machine_the_buckets_are_full(store: Store, clock: ManualClock) -> None:
    limit = SenderLimit(store, 0.001, 1, clock)
    limit.take("ada")
    clock.reboot()
    limit.take("ada")
    with pytest.raises(RateLimited):
        limit.take("ada")


def test_a_faster_rate_is_not_held_back_by_what_a_slower_one_left(store: Store, clock: ManualClock) -> None:
    SenderLimit(store, 0.001, 1, clock).take("ada")
    fast = SenderLimit(store, 10, 1, clock)
    with pytest.raises(RateLimited) as err:
        fast.take("ada")
    assert err.value.retry_after_s == pytest.approx(0.1)


@pytest.mark.usefixtures("hasty_threads")
def test_threads_together_never_pass_more_than_the_burst(store: Store, clock: ManualClock) -> None:
    limit = SenderLimit(store, 1, 50, clock)
    passed: list[int] = []

    def work() -> None:
        for _ in range(10):
            try:
                limit.take("ada")
                passed.append(1)
            except RateLimited:
                pass

    run_together(8, work)
    assert len(passed) == 50


def _send_until_limited(folder: str, burst: int, results: Any) -> None:
    store = open_store(parse_url(f"sqlite:{folder}"), Config(), SYSTEM)
    limit = SenderLimit(store, 0.001, burst, SYSTEM)
    passed = 0
    try:
        while True:
            limit.take("ada")
            passed += 1
    except RateLimited:
        results.put(passed)
    store.close()


@pytest.mark.slow
def test_processes_together_never_pass_more_than_the_burst(tmp_path: Path) -> None:
    spawn = multiprocessing.get_context("spawn")
    results = spawn.Queue()
    folder = str(tmp_path / "room")
    processes = [spawn.Process(target=_send_until_limited, args=(folder, 60, results)) for _ in range(3)]
    for process in processes:
        process.start()
    assert sum(results.get(timeout=30) for _ in processes) == 60
    for process in processes:
        process.join(10)
        assert process.exitcode == 0
    results.close()
    results.join_thread()


class CrowdedStore(MemoryStore):
    """Somebody else always writes the cell a moment earlier."""

    def cell_write(self, name: str, value: Any, expect: int = ANY) -> int | None:
        if name.startswith("limit/"):
            super().cell_write(name, {"boot_id": "another", "full_ns": 0})
        return super().cell_write(name, value, expect)


def test_a_sender_that_never_wins_the_bucket_is_told_to_try_again(
    clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cells, "TRIES", 8)
    store = CrowdedStore(Config(), clock)
    with pytest.raises(RoomBusy, match="too many processes are sending as ada at once; try again"):
        SenderLimit(store, 10, 10, clock).take("ada")
    store.close()


@pytest.mark.parametrize(("rate_per_s", "burst"), [(0, 1), (-1, 1), (math.inf, 1), (math.nan, 1), (1, 0)])
def test_rates_that_make_no_sense_are_refused(clock: ManualClock, rate_per_s: float, burst: int) -> None:
    store = MemoryStore(Config(), clock)
    with pytest.raises(ValueError, match="must be"):
        SenderLimit(store, rate_per_s, burst, clock)
    store.close()
