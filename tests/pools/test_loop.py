"""The loop that looks after workers: what it calls, and what it must not call any more."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from functools import partial
from itertools import count

import pytest
from tests.support.interrupting import interrupted_at
from tests.support.patience import until

from postroom.core.clock import SYSTEM
from postroom.pools.loop import PoolLoop


@pytest.fixture
def loop() -> Iterator[PoolLoop]:
    loop = PoolLoop()
    yield loop
    loop.stop()


def pipe_with_news() -> tuple[int, int]:
    told, tell = os.pipe()
    os.write(tell, b"!")
    return told, tell


def test_who_was_closed_a_moment_ago_is_not_called_for_news_that_came_before(loop: PoolLoop) -> None:
    """Both have news in the same look, and the first to be called closes the other, whose number is given out again."""
    pipes = [pipe_with_news(), pipe_with_news()]
    called: list[str] = []
    newer: list[int] = []
    over = threading.Event()

    def close_the_other(mine: int) -> None:
        called.append(f"the one at {mine}")
        other = next(told for told, _ in pipes if told != mine)
        loop.unwatch(mine)
        loop.unwatch(other)
        newer.extend(pipe_with_news())
        os.dup2(newer[0], other)  # closes what was there
        loop.watch(other, lambda: end(other))

    def end(other: int) -> None:
        called.append("the new one")
        loop.unwatch(other)
        over.set()

    def begin() -> None:
        for told, _ in pipes:
            loop.watch(told, partial(close_the_other, told))

    loop.call(begin)
    assert over.wait(10)
    assert len(called) == 2
    assert called[1] == "the new one"
    for descriptor in (*pipes[0], *pipes[1], *newer):
        os.close(descriptor)


def test_a_timer_that_another_one_called_off_in_the_same_moment_does_not_go_off(loop: PoolLoop) -> None:
    called: list[str] = []
    over = threading.Event()

    def begin() -> None:
        now_ns = SYSTEM.steady_ns()
        second = loop.call_at(now_ns, lambda: called.append("second"))

        def first() -> None:
            called.append("first")
            second.cancel()

        loop.call_at(now_ns - 1, first)
        loop.call_at(now_ns + 1, over.set)

    loop.call(begin)
    assert over.wait(10)
    assert called == ["first"]


def test_wherever_one_who_calls_is_interrupted_the_next_call_is_made(loop: PoolLoop) -> None:
    for step in count():
        until(lambda: loop._sleeps_until_ns, "it does not sleep")
        interrupted = interrupted_at(step, lambda: loop.call(lambda: None))
        over = threading.Event()
        loop.call(over.set)
        made = over.wait(10)
        os.write(loop._wake, b"!")  # so that the loop of a test that fails can be ended
        assert made, f"after an interrupt at step {step} it sleeps on"
        if not interrupted:
            break

    assert step > 2
