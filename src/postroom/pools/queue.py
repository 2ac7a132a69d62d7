"""The requests of one worker: a bounded queue with back-pressure, those that its process has in hand, their deadlines.

Requests wait here, in the pool's process, not in the worker: one that waits can be dropped, and outlives a process that
dies. The deadline of a request is kept on this side, wherever the request is then.

All methods may be called from several threads.
"""

from __future__ import annotations

import threading
from collections import deque
from copy import copy

from postroom.core.clock import SYSTEM
from postroom.core.system.process import current_pid
from postroom.errors import (
    EvaluationAborted,
    QueueFull,
    RequestDropped,
    WorkerError,
    WorkerStopped,
    WorkerTimeout,
)

from .loop import PoolLoop
from .plan import WorkerPlan
from .process import Life
from .protocol import Evaluate
from .request import NEVER_NS, Request
from .stats import WorkerFigures


class RequestQueue:
    """Requests on their way to the process of a worker, which may change: `life` is the one that is there now."""

    def __init__(self, worker: str, plan: WorkerPlan, loop: PoolLoop, figures: WorkerFigures) -> None:
        self.life: Life | None = None
        #: The error that callers get from now on; None while it takes requests.
        self.refusal: WorkerError | None = None
        #: How many requests the pool gave it.
        self.given = 0
        self._worker = worker
        self._plan = plan
        self._loop = loop
        self._figures = figures
        self._pid = current_pid()
        self._waiting: deque[Request] = deque()
        self._promised = 0  # requests that the pool gave it and that are on their way
        self._lock = threading.Lock()
        self._left = threading.Condition(self._lock)  # a request left the queue or the process
        self._waiters = 0  # callers that wait for a place in the queue, or until there is nothing to do
        self._armed_ns = NEVER_NS  # when the loop will look at deadlines

    def __len__(self) -> int:
        """How many requests wait."""
        return len(self._waiting)

    @property
    def load(self) -> int:
        """How many requests there are: those that wait, are on their way here, or are in the process's hands."""
        life = self.life
        return len(self._waiting) + self._promised + (len(life.running) if life is not None else 0)

    def check_process(self) -> None:
        """Raise WorkerStopped in a fork of the process that it belongs to."""
        if current_pid() != self._pid:
            raise WorkerStopped(
                "this pool was made before the process forked; fork first, or make one in each", self._worker
            )

    # The way of a request

    def admit(self, request: Request) -> Life | None:
        """Send it, or let it wait. Returns the process whose answer is to be read. Raises when it is refused."""
        self.check_process()
        dropped: Request | None = None
        with self._lock:
            if self._is_full():
                self._wait_for_space(request)
            if self.refusal is not None:
                raise copy(self.refusal)
            life = self.life
            if life is not None and not self._waiting and self._has_hand_free(life):
                self._send(life, request)
                return life
            if self._is_full():  # the policy is drop_oldest
                dropped = self._waiting.popleft()
            self._waiting.append(request)
        if dropped is not None:
            said = f"a newer request took the place of request {dropped.id} in the queue of worker {self._worker}"
            self.end(dropped, RequestDropped(said, self._worker), "dropped")
        return None

    def _is_full(self) -> bool:
        return len(self._waiting) >= self._plan.queue_size

    def _wait_for_space(self, request: Request) -> None:
        """The queue is full: do as the policy says. With the lock, which is released while waiting."""
        if self._plan.policy == "drop_oldest":
            return
        if self._plan.policy == "refuse" or self._loop.is_here():
            self._figures.count("refused")
            raise QueueFull(f"{len(self)} requests are already waiting for worker {self._worker}", self._worker)
        self._waiters += 1
        try:
            while self._is_full() and self.refusal is None:
                left_s = request.left_s()
                if left_s == 0:
                    self._figures.count("timed_out")
                    said = f"no place in the queue of worker {self._worker} came free in time"
                    raise WorkerTimeout(said, self._worker)
                self._left.wait(left_s)
        finally:
            self._waiters -= 1

    def _has_hand_free(self, life: Life) -> bool:
        return life.takes_work and len(life.running) < self._plan.in_hand

    def _send(self, life: Life, request: Request) -> None:
        """Hand a request to a process. With the lock."""
        request.attempt += 1
        life.running[request.id] = request
        life.work.send(Evaluate(request.id, request.attempt, request.asked_ns, request.message))

    def _send_waiting(self, life: Life) -> None:
        """Hand over what waits, as far as the process has a hand free. With the lock."""
        while self._waiting and self._has_hand_free(life):
            request = self._waiting.popleft()
            if not request.done:  # else it ended while it waited
                self._send(life, request)
        self._stir()

    def answered(self, life: Life, number: int, attempt: int, *, final: bool) -> Request | None:
        """The open request that an answer belongs to. None, and counted, when there is none.

        After the last: the next.
        """
        with self._lock:
            request = life.running.pop(number, None) if final else life.running.get(number)
            if final and request is not None:
                life.tasks += 1
                self._send_waiting(life)
        if final:
            life.work.answered()
        if request is not None and not request.done and request.attempt == attempt:
            return request
        self._figures.count("unknown" if request is None else "late")
        return None

    def end(self, request: Request, error: WorkerError, counted: str) -> bool:
        """End a request with an error, and count it, unless it has ended. Hold no lock."""
        ended = request.end(error)
        if ended:
            self._figures.count(counted)
        return ended

    # Calling off

    def abort(self, request: Request | None) -> bool:
        """Call off this request, or else the one that runs. Returns whether there was one."""
        if request is None:
            with self._lock:
                request = next(iter(self.life.running.values()), None) if self.life is not None else None
        if request is None or request.done:
            return False
        _, life = self._withdraw(request)
        return self._call_off(request, life, self.aborted(), "aborted")

    def aborted(self) -> EvaluationAborted:
        """The error of a request that was called off."""
        return EvaluationAborted(f"worker {self._worker} was told to stop", self._worker)

    def overdue(self, request: Request) -> None:
        """Its deadline is over: tell the caller, and stop the worker if it works on it."""
        waited, life = self._withdraw(request)
        took_s = (SYSTEM.steady_ns() - request.asked_ns) / 1e9
        where = "was still queued" if waited else "was still running"
        said = f"request {request.id} to worker {self._worker} {where} after {took_s:.3f} s"
        self._call_off(request, life, WorkerTimeout(said, self._worker), "timed_out")

    def _withdraw(self, request: Request) -> tuple[bool, Life | None]:
        """Take it out of the queue; whether it was there. If it was not: the process that has it in hand."""
        with self._lock:
            life = self.life
            waited = request in self._waiting
            if waited:
                self._waiting.remove(request)
                self._stir()
            return waited, life if life is not None and request.id in life.running else None

    def _call_off(self, request: Request, life: Life | None, error: WorkerError, counted: str) -> bool:
        ended = self.end(request, error, counted)
        if ended and life is not None:
            life.call_off(request)
        return ended

    def keep_deadline(self, request: Request) -> None:
        """Let the loop keep a request's deadline: no thread waits for it."""
        with self._lock:
            if request.deadline_ns < self._armed_ns:
                self._armed_ns = request.deadline_ns
                self._loop.call_at(request.deadline_ns, self._look_at_deadlines)

    def _look_at_deadlines(self) -> None:
        now_ns = SYSTEM.steady_ns()
        with self._lock:
            running = self.life.running.values() if self.life is not None else ()
            open_ones = [request for request in (*running, *self._waiting) if not request.done]
            later = [each.deadline_ns for each in open_ones if now_ns < each.deadline_ns < NEVER_NS]
            self._armed_ns = min(later, default=NEVER_NS)
        for request in open_ones:
            if request.deadline_ns <= now_ns:
                self.overdue(request)
        if later:
            self._loop.call_at(self._armed_ns, self._look_at_deadlines)

    # For the pool

    def promise(self) -> None:
        """A request is on its way here: others may choose by that."""
        with self._lock:
            self._promised += 1
            self.given += 1

    def let_go(self) -> None:
        """That request is here, or will not come."""
        with self._lock:
            self._promised -= 1
            self._stir()

    def wait_idle(self, timeout_s: float | None) -> bool:
        """Wait until there is nothing to do; False when there still is after that time."""
        with self._lock:
            self._waiters += 1
            try:
                return self._left.wait_for(lambda: self.load == 0 or self.refusal is not None, timeout_s)
            finally:
                self._waiters -= 1

    def _stir(self) -> None:
        """Something left the queue or the process: threads that wait for that look. With the lock."""
        if self._waiters:
            self._left.notify_all()

    # Processes come and go

    def take_on(self, life: Life) -> None:
        """The process is ready: give it what waits."""
        with self._lock:
            life.ready = True
            if self.refusal is None:
                self._send_waiting(life)

    def retire(self, life: Life) -> bool:
        """Give the process nothing more. Returns whether it has nothing in hand."""
        with self._lock:
            life.retiring = True
            return not life.running

    def take_back(self, life: Life) -> list[Request]:
        """Requests that the process had in hand go back into the queue, if they may be tried again. Returns the others.

        It works on the first; those behind it were not begun.
        """
        with self._lock:
            if self.life is life:
                self.life = None
            ended = []
            for place, request in reversed(list(enumerate(life.running.values()))):
                if request.done:
                    continue
                if place > 0:
                    request.attempts += 1  # it was not begun: that did not count
                if request.attempt < request.attempts and self.refusal is None:
                    self._waiting.appendleft(request)  # it is the next again, whatever the size of the queue
                else:
                    ended.append(request)
            life.running.clear()
            self._stir()
        return ended

    def close(self, refusal: WorkerError) -> None:
        """Take nothing more, and tell all waiting callers. The first refusal stands."""
        with self._lock:
            self.refusal = refusal
            open_ones = [*self._waiting, *(self.life.running.values() if self.life is not None else ())]
            self._waiting.clear()
            self._stir()
        for request in open_ones:
            request.end(copy(refusal))
