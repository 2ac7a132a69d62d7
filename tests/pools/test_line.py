"""One end of a line to a worker: whoever waits reads, and an interrupt at any step leaves nobody waiting."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import suppress
from itertools import count
from typing import Any

import pytest
from tests.support.interrupting import interrupted_at
from tests.support.patience import until

from postroom.core.clock import SYSTEM
from postroom.pools.line import Line
from postroom.pools.loop import PoolLoop
from postroom.pools.protocol import Ping, Pong, pack

PATIENCE_S = 10


@pytest.fixture
def loop() -> Iterator[PoolLoop]:
    loop = PoolLoop()
    yield loop
    loop.stop()


class Talk:
    """A line, with the test at its other end."""

    def __init__(self, loop: PoolLoop) -> None:
        ours, self.other = socket.socketpair()
        self.answers: list[int] = []
        self.gone = threading.Event()
        self.loop = loop
        self.line = Line(ours, loop, self._take, self.gone.set)

    def _take(self, frames: Any) -> None:
        for frame in frames:
            self.line.answered()
            self.answers.append(frame.ping)

    def answer(self, number: int) -> None:
        self.other.sendall(pack(Pong(number, None, 0)))

    def ask(self) -> None:
        """Send a ping and read until it is answered."""
        self.line.send(Ping(1))
        self.line.read_until(lambda: bool(self.answers), SYSTEM.steady_ns() + PATIENCE_S * 10**9)

    def end(self) -> None:
        """The process has ended: the line must be over in a moment."""
        self.loop.call(self.line.finish)
        assert self.gone.wait(PATIENCE_S), "the line never ends"
        self.close()

    def close(self) -> None:
        self.loop.call(self.line.close)
        self.other.close()


def test_one_who_asks_reads_the_answer_and_leaves_what_is_for_others_to_the_loop(loop: PoolLoop) -> None:
    talk = Talk(loop)
    talk.line.expect(1)
    talk.answer(1)
    talk.ask()
    assert talk.answers == [1]

    talk.answer(2)
    until(lambda: talk.answers == [1, 2], "nobody reads any more")
    talk.end()


@pytest.mark.parametrize("others", [0, 1])
def test_wherever_one_who_reads_is_interrupted_the_line_comes_to_its_end(loop: PoolLoop, others: int) -> None:
    for step in count():
        talk = Talk(loop)
        talk.line.expect(others)
        talk.answer(1)
        interrupted = interrupted_at(step, talk.ask)
        talk.end()
        if not interrupted:
            break

    assert step > 20


def test_wherever_one_who_reads_is_interrupted_the_others_are_answered_or_told(loop: PoolLoop) -> None:
    for step in count():
        talk = Talk(loop)
        came: list[int] = []

        def another_comes_meanwhile(talk: Talk = talk, came: list[int] = came) -> bool:
            if not came:
                talk.line.expect(1)
                talk.line.leave_to_loop()
                talk.answer(1)
                came.append(2)
            return bool(talk.answers)

        talk.line.send(Ping(1))
        until_ns = SYSTEM.steady_ns() + PATIENCE_S * 10**9
        interrupted = interrupted_at(step, lambda: talk.line.read_until(another_comes_meanwhile, until_ns))  # noqa: B023
        if came:
            with suppress(BrokenPipeError):
                talk.answer(2)
            until(lambda: 2 in talk.answers or talk.gone.is_set(), f"nobody reads after an interrupt at step {step}")  # noqa: B023
        talk.end()
        if not interrupted:
            break

    assert step > 20


def leave_without_a_word(talk: Talk, monkeypatch: pytest.MonkeyPatch) -> None:
    """Read, and be interrupted at the end and again while tidying up."""

    def interrupt() -> None:
        raise KeyboardInterrupt

    talk.answer(1)
    with monkeypatch.context() as patch:
        patch.setattr(talk.line, "_leave", interrupt)
        with pytest.raises(KeyboardInterrupt):
            talk.ask()


def test_who_left_without_a_word_is_missed_by_the_next_who_reads(
    loop: PoolLoop, monkeypatch: pytest.MonkeyPatch
) -> None:
    for leave_to in ("itself", "the loop"):
        talk = Talk(loop)
        leave_without_a_word(talk, monkeypatch)
        if leave_to == "itself":
            talk.line.read_until(lambda: False, SYSTEM.steady_ns() + PATIENCE_S * 10**9)
        else:
            talk.line.leave_to_loop()

        assert talk.gone.wait(PATIENCE_S)
        assert talk.line.broken == "was killed: the reading of its line was interrupted"
        talk.close()


def test_who_left_without_a_word_does_not_keep_the_line_from_its_end(
    loop: PoolLoop, monkeypatch: pytest.MonkeyPatch
) -> None:
    talk = Talk(loop)
    leave_without_a_word(talk, monkeypatch)
    talk.end()


def test_who_leaves_without_a_word_after_the_end_is_missed_in_a_moment(
    loop: PoolLoop, monkeypatch: pytest.MonkeyPatch
) -> None:
    talk = Talk(loop)
    held_up, may_go_on = threading.Event(), threading.Event()

    def hold_up(frames: Any) -> None:
        held_up.set()
        assert may_go_on.wait(PATIENCE_S)

    monkeypatch.setattr(talk.line, "_take", hold_up)
    reading = threading.Thread(target=lambda: leave_without_a_word(talk, monkeypatch))
    reading.start()
    assert held_up.wait(PATIENCE_S)
    loop.call(talk.line.finish)
    looked = threading.Event()
    loop.call(looked.set)
    assert looked.wait(PATIENCE_S)
    assert not talk.gone.is_set()  # somebody still reads

    may_go_on.set()
    assert talk.gone.wait(PATIENCE_S)
    reading.join(PATIENCE_S)
    talk.close()
