"""One request to a worker, which is a future: it ends once, and its deadline is known."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from itertools import count
from typing import Any, Final

from postroom.core.clock import SYSTEM
from postroom.core.message import MAX_SPAN_S
from postroom.core.system.process import acquire_lock
from postroom.errors import InvalidMessage, WorkerError

from .evaluation import Evaluation

log = logging.getLogger("postroom")

_numbers = count(1)
_ending = threading.Lock()  # a deadline and a result may come together, and one of them is first
NEVER_NS: Final = 1 << 62


class Request:
    """An evaluation that was asked for. It ends once: with the last evaluation, or with the error that says why not.

    `evaluations` grows while it runs: a first look may come before the last word. Made by `submit` and `begin`.
    """

    __slots__ = (
        "_gate", "_listeners", "asked_ns", "attempt", "attempts", "deadline_ns", "done", "ended_ns", "error",
        "evaluations", "id", "message", "worker",
    )  # fmt: skip

    def __init__(self, message: Any, worker: str, timeout_s: float | None, attempts: int) -> None:
        if timeout_s is not None and not (type(timeout_s) in (int, float) and 0 <= timeout_s <= MAX_SPAN_S):
            raise InvalidMessage("timeout_s", f"must be 0 to {MAX_SPAN_S:.0f} seconds, or None, not {timeout_s!r}")
        if type(attempts) is not int or attempts < 1:
            raise InvalidMessage("attempts", f"must be a whole number of 1 or more, not {attempts!r}")
        self.id = next(_numbers)
        #: As it goes into a frame (`protocol.message_text`).
        self.message = message
        self.worker = worker
        self.asked_ns = SYSTEM.steady_ns()
        self.deadline_ns = NEVER_NS if timeout_s is None else self.asked_ns + int(timeout_s * 1e9)
        self.ended_ns = 0
        #: How often it was sent to a process, and how often it may be.
        self.attempt = 0
        self.attempts = attempts
        self.evaluations: list[Evaluation] = []
        self.error: WorkerError | None = None
        self.done = False
        self._gate = threading.Lock()
        self._gate.acquire()
        self._listeners: list[Callable[[Request], None]] = []

    def __repr__(self) -> str:
        state = "running" if not self.done else "failed" if self.error else "done"
        return f"<Request {self.id} to {self.worker}: {state}>"

    @property
    def evaluation(self) -> Evaluation | None:
        """The latest that is known; the last word when it is done."""
        return self.evaluations[-1] if self.evaluations else None

    @property
    def outcome(self) -> Evaluation | WorkerError | None:
        """What it ended with; None while it runs."""
        return None if not self.done else self.error if self.error is not None else self.evaluation

    def left_s(self) -> float | None:
        """Seconds until its deadline, never below 0; None when it has none."""
        return None if self.deadline_ns == NEVER_NS else max(0, self.deadline_ns - SYSTEM.steady_ns()) / 1e9

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait for its end; False when it still runs after that time.

        Its deadline is kept whether anybody waits or not.
        """
        if not self.done and acquire_lock(self._gate, timeout_s):
            self._gate.release()  # for the next thread that waits
        return self.done

    def result(self) -> Evaluation:
        """Wait for its end, and return the last word or raise what it ended with."""
        self.wait()
        if self.error is not None:
            raise self.error
        assert self.evaluations
        return self.evaluations[-1]

    def on_change(self, listener: Callable[[Request], None]) -> None:
        """Make a callback at every evaluation and at the end, in the thread that reads; also now if there was one.

        It must be quick, must not wait, and may be called twice for the same news.
        """
        self._listeners.append(listener)
        if self.done or self.evaluations:
            self._tell()

    # For the worker that it was asked of

    def add(self, evaluation: Evaluation) -> None:
        """One more evaluation came; more will."""
        with _ending:
            if self.done:
                return
            self.evaluations.append(evaluation)
        self._tell()

    def end(self, error: WorkerError | None = None, evaluation: Evaluation | None = None) -> bool:
        """It is over. Only the first end counts; returns whether this one did. Calls listeners: hold no lock."""
        with _ending:
            if self.done:
                return False
            if evaluation is not None:
                self.evaluations.append(evaluation)
            self.error = error
            self.ended_ns = SYSTEM.steady_ns()
            self.done = True
        self._gate.release()
        if self._listeners:
            self._tell()
        return True

    def _tell(self) -> None:
        for listener in tuple(self._listeners):
            try:
                listener(self)
            except Exception:
                log.exception("a listener of request %d failed", self.id, extra={"action": "pool_listener"})
