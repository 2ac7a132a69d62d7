"""What is one in a process is one also for threads that come first together."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import pytest

from postroom.inference import evaluators, open_model, throttle

THREADS = 4
PATIENCE_S = 0.3


def slow(make: Callable[..., object]) -> Callable[..., object]:
    """The same function, which waits a while for the other threads to be in it, too."""
    together = threading.Barrier(THREADS)

    def run(*args: object) -> object:
        with suppress(threading.BrokenBarrierError):
            together.wait(PATIENCE_S)
        return make(*args)

    return run


def ids_seen_by_threads(find: Callable[[], object]) -> set[int]:
    with ThreadPoolExecutor(THREADS) as threads:
        found = list(threads.map(lambda _: find(), range(THREADS)))
    return {id(each) for each in found}


def test_threads_that_come_first_together_share_the_gate_to_a_server(monkeypatch: pytest.MonkeyPatch) -> None:
    """Failures that count in another breaker than the others' never open it."""
    monkeypatch.setattr(throttle, "Throttle", slow(throttle.Throttle))
    assert len(ids_seen_by_threads(lambda: throttle.gate_to("http://first-together.test:80"))) == 1


def test_threads_that_come_first_together_share_a_model(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(evaluators, "open_model", slow(open_model))
    assert len(ids_seen_by_threads(lambda: evaluators._model("mock:first-together"))) == 1
