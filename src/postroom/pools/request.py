"""One request to a worker, which is a future; and the bounded queue in which requests wait, with its back-pressure."""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable
from itertools import count
from typing import Any, Final, Literal

from postroom.core.clock import SYSTEM
from postroom.core.message import MAX_SPAN_S
from postroom.errors import InvalidMessage, WorkerError

from .evaluation import Evaluation

log = logging.getLogger("postroom")

_numbers = count(1)
_ending = threading.Lock()  # a deadline and a result may come together, and one of them is first
Policy = Literal["block", "drop_oldest", "refuse"]
POLICIES: Final[tuple[Policy, ...]] = ("block", "drop_oldest", "refuse")
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

    def is_done(self) -> bool:
        return self.done

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait for its end; False when it still runs after that time.

        Its deadline is kept whether anybody waits or not.
        """
        if not self.done and self._gate.acquire(timeout=-1 if timeout_s is None else max(0.0, timeout_s)):
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


class Backlog:
    """The requests that wait for a worker, in order: at most `size` of them. No lock of its own."""

    def __init__(self, size: int, policy: Policy) -> None:
        if policy not in POLICIES:
            raise InvalidMessage("policy", f"must be one of {', '.join(POLICIES)}, not {policy!r}")
        if type(size) is not int or size < 1:
            raise InvalidMessage("queue_size", f"must be a whole number of 1 or more, not {size!r}")
        self.size = size
        self.policy = policy
        self._waiting: deque[Request] = deque()

    def __len__(self) -> int:
        return len(self._waiting)

    @property
    def full(self) -> bool:
        return len(self._waiting) >= self.size

    def add(self, request: Request) -> Request | None:
        """Let it wait. Returns the request that had to go for it.

        Not to be called when it is full, but for drop_oldest.
        """
        dropped = self._waiting.popleft() if self.full else None
        self._waiting.append(request)
        return dropped

    def put_back(self, request: Request) -> None:
        """It was sent, and was not begun: it is the next again, whatever the size."""
        self._waiting.appendleft(request)

    def next(self) -> Request | None:
        """The one that waits longest; those that ended while they waited are passed over."""
        while self._waiting:
            request = self._waiting.popleft()
            if not request.done:
                return request
        return None

    def remove(self, request: Request) -> bool:
        """Take one out. False when it is not here."""
        try:
            self._waiting.remove(request)
        except ValueError:
            return False
        return True

    def take_all(self) -> list[Request]:
        """Take everything out."""
        found = [request for request in self._waiting if not request.done]
        self._waiting.clear()
        return found

    def __iter__(self) -> Any:
        return iter(tuple(self._waiting))
