"""A chore takes its steps when they are due or when it is nudged, outlives its failures, and ends when it is told to."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from queue import SimpleQueue

import pytest

from postroom.core.chore import Chore
from postroom.core.clock import SYSTEM, ManualClock
from postroom.errors import RoomBusy, RoomClosed

PATIENCE_S = 20.0


def wait_for(true: Callable[[], bool]) -> None:
    until_ns = SYSTEM.steady_ns() + PATIENCE_S * 1e9
    while not true():
        assert SYSTEM.steady_ns() < until_ns
        SYSTEM.sleep(0.002)


class Steps:
    """A step that tells of each time it is taken, with the thread's name; `then` is what it does."""

    def __init__(self, then: Callable[[], float | None] = lambda: None) -> None:
        self.taken: SimpleQueue[str] = SimpleQueue()
        self._then = then

    def __call__(self) -> float | None:
        self.taken.put(threading.current_thread().name)
        return self._then()

    def next(self) -> str:
        return self.taken.get(timeout=PATIENCE_S)


@pytest.fixture
def make() -> Iterator[Callable[..., Chore]]:
    made: list[Chore] = []

    def make_chore(step: Callable[[], float | None], clock: object = SYSTEM, **how: object) -> Chore:
        made.append(Chore("a chore", step, clock, **how))  # type: ignore[arg-type]
        return made[-1]

    yield make_chore
    for chore in made:
        chore.close()


def is_running() -> bool:
    return any(thread.name == "a chore" for thread in threading.enumerate())


def test_steps_come_every_so_often_in_the_clocks_time(make) -> None:
    clock, steps = ManualClock(), Steps()
    make(steps, clock, every_s=30).start()
    for _ in range(3):
        assert steps.taken.empty()
        clock.advance(31)
        assert steps.next() == "a chore"


def test_a_nudge_makes_a_step_at_once_and_starts_what_was_not_started(make) -> None:
    clock, steps = ManualClock(), Steps()
    chore = make(steps, clock)
    for _ in range(3):
        chore.nudge()
        steps.next()


def test_a_nudge_in_the_middle_of_a_step_makes_another(make) -> None:
    begun, go_on = threading.Event(), threading.Event()

    def hold_up() -> None:
        begun.set()
        assert go_on.wait(PATIENCE_S)

    chore = make(steps := Steps(hold_up))
    chore.nudge()
    assert begun.wait(PATIENCE_S)
    chore.nudge()
    chore.nudge()
    go_on.set()
    steps.next()
    steps.next()
    chore.close()
    assert steps.taken.empty()


def test_nudges_that_come_together_make_one_step(make) -> None:
    chore = make(steps := Steps(), gather_s=0.5)
    for _ in range(5):
        chore.nudge()
    steps.next()
    chore.close()
    assert steps.taken.empty()


def test_a_step_says_when_the_next_is_due(make) -> None:
    clock = ManualClock()
    steps = Steps(lambda: 5)
    make(steps, clock, every_s=1000, first_s=0).start()
    steps.next()
    clock.advance(6)
    steps.next()


@pytest.mark.parametrize("how", [{}, {"every_s": 1000.0}])
def test_closing_ends_the_thread_that_sleeps_and_nothing_starts_it_again(make, how: dict[str, float]) -> None:
    ended: list[str] = []
    chore = make(steps := Steps(), last=lambda: ended.append(threading.current_thread().name), **how)
    chore.start()
    assert is_running()
    chore.close()
    assert not is_running()
    assert ended == ["a chore"]
    chore.close()
    chore.start()
    chore.nudge()
    assert chore.closed
    assert not is_running()
    assert steps.taken.empty()


def test_closing_waits_for_the_step_that_is_taken_and_no_longer_than_told(make) -> None:
    begun, go_on = threading.Event(), threading.Event()

    def hold_up() -> None:
        begun.set()
        assert go_on.wait(PATIENCE_S)

    chore = make(hold_up, first_s=0)
    chore.start()
    assert begun.wait(PATIENCE_S)
    chore.close(0.01)
    assert is_running()
    go_on.set()
    chore.close()
    assert not is_running()


def test_a_step_may_last_and_is_woken_by_nudges_and_by_closing(make) -> None:
    rounds: SimpleQueue[bool] = SimpleQueue()

    def last_long() -> None:
        while not chore.closed:
            chore.clear()
            rounds.put(chore.closed)
            chore.wait(PATIENCE_S)

    chore = make(last_long, first_s=0)
    for _ in range(3):
        chore.nudge()
        assert rounds.get(timeout=PATIENCE_S) is False
    assert chore.is_alive()
    chore.close()
    assert not chore.is_alive()


def test_a_step_may_close_its_own_chore(make) -> None:
    def close() -> None:
        chore.close()

    chore = make(steps := Steps(close), first_s=0, every_s=0)
    chore.start()
    steps.next()
    wait_for(lambda: not is_running())
    assert steps.taken.empty()


@pytest.mark.parametrize(("error", "level"), [(OSError("no disk"), "ERROR"), (RoomBusy("busy"), "DEBUG")])
def test_of_failures_in_a_row_one_is_logged_and_the_chore_goes_on(
    make, error: Exception, level: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, "postroom")
    troubles = [error, error, None, error]

    def fail() -> None:
        trouble = troubles.pop(0) if troubles else None
        if trouble is not None:
            raise trouble

    chore = make(steps := Steps(fail))
    for _ in range(5):
        chore.nudge()
        steps.next()
    chore.close()
    assert [(record.levelname, record.action) for record in caplog.records] == [(level, "chore_failed")] * 2  # type: ignore[attr-defined]


def test_a_room_that_is_over_ends_it_without_a_word(make, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "postroom")
    ended = threading.Event()

    def end() -> None:
        raise RoomClosed("over")

    make(end, first_s=0, last=ended.set).start()
    assert ended.wait(PATIENCE_S)
    wait_for(lambda: not is_running())
    assert caplog.records == []


def test_an_interrupted_start_can_be_made_again(make, monkeypatch: pytest.MonkeyPatch) -> None:
    def be_interrupted(_: threading.Thread) -> None:
        raise KeyboardInterrupt

    chore = make(steps := Steps(), first_s=0)
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", be_interrupted)
        with pytest.raises(KeyboardInterrupt):
            chore.start()
    chore.start()
    steps.next()


def test_a_forked_child_has_no_part_in_it(make) -> None:
    chore = make(steps := Steps())
    chore.nudge()
    steps.next()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of forking with threads
        child = os.fork()
    if child == 0:
        chore.nudge()
        chore.start()
        chore.close()
        os._exit(0 if not is_running() else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert is_running()
    assert steps.taken.empty()
    chore.nudge()
    steps.next()


def test_it_keeps_no_program_from_ending() -> None:
    program = (
        "from postroom.core.chore import Chore; from postroom.core.clock import SYSTEM; import time\n"
        "for pause_s in (None, 0, 1000):\n"
        "    Chore('a chore', time.monotonic, SYSTEM, every_s=pause_s).nudge()\n"
        "kept = Chore('a chore', lambda: 0, SYSTEM, first_s=0)\nkept.start()\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_step_that_takes_the_nudge_of_the_end_ends_all_the_same(make) -> None:
    lasting = threading.Event()

    def step() -> float:
        lasting.set()
        while not chore.wait(None):
            chore.clear()
        chore.clear()
        return 1000.0

    chore = make(step, ManualClock(), first_s=0)
    chore.start()
    assert lasting.wait(PATIENCE_S)

    chore.close(PATIENCE_S)

    assert not chore.is_alive()
