"""A worker of a pool: a name with a mind of its own, and the process that lends it one. The process may change.

Requests wait here, in the pool's process, not in the worker: what waits can be dropped, and outlives a process that
dies. A request has a deadline, which this side keeps. When it is over the caller is told at once, and the worker is
told to stop; one that goes on is killed and replaced.

All methods may be called from several threads. What happens to processes happens in the loop's thread.
"""

from __future__ import annotations

import atexit
import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Any, Final, Literal, Protocol

from postroom.core.clock import SYSTEM
from postroom.core.events import Hooks, Listener
from postroom.core.system.process import current_pid
from postroom.errors import (
    EvaluationAborted,
    EvaluatorFailed,
    PoolFailed,
    QueueFull,
    RequestDropped,
    WorkerDied,
    WorkerError,
    WorkerNotReady,
    WorkerStopped,
    WorkerTimeout,
)

from .evaluation import Evaluation
from .loop import PoolLoop, Timer
from .process import Life
from .protocol import Error, Evaluate, Ping, Pong, Ready, Result, message_text
from .request import NEVER_NS, Backlog, Policy, Request
from .restarts import KEPT_EXITS, Cause, Exit, GiveUp, Recycling, RestartPolicy, decide
from .stats import WorkerFigures

log = logging.getLogger("postroom")

State = Literal["starting", "ready", "restarting", "stopping", "stopped", "failed"]
EVENTS: Final = ("ready", "pong", "error", "exit")
PING_TIMEOUT_S: Final = 1.0
EVALUATE_TIMEOUT_S: Final = 5.0
_ping_numbers = count(1)

#: Workers of a pool that was not shut down are killed as the program ends: that is no death to tell of.
#: What is registered last comes first, and `processes`, which kills them, was imported above.
_program_ends = threading.Event()
atexit.register(_program_ends.set)


@dataclass(frozen=True, slots=True)
class WorkerPlan:
    """How the workers of a pool are run."""

    evaluator: str
    queue_size: int = 1000
    policy: Policy = "block"
    #: How many requests a worker has in hand at once: one that it works on, the others to go on with at once.
    in_hand: int = 1
    start_timeout_s: float = 5.0
    #: How long a worker may take to stop an evaluation, or to end, before it is killed.
    grace_s: float = 0.5
    restart: RestartPolicy = field(default_factory=RestartPolicy)
    recycling: Recycling = field(default_factory=Recycling)
    show: bool = False


class WorkerOwner(Protocol):
    """The pool, as its workers see it. Called in the loop's thread."""

    def may_recycle(self, worker: PoolWorker) -> bool:
        """Whether it is this worker's turn to be replaced: one at a time.

        If not, it is asked again after its next task.
        """

    def recycled(self, worker: PoolWorker) -> None:
        """It is back, or over: another may have its turn."""

    def give_up(self, worker: PoolWorker, reason: str) -> None:
        """A worker died too often, or could not start again."""

    def ended(self, worker: PoolWorker) -> None:
        """It has no process any more, and will not get another."""

    def changed(self, worker: PoolWorker) -> None:
        """Its state or its process is another. Must not wait."""


class _PingWait:
    """A caller that waits for a pong."""

    __slots__ = ("busy_with", "done", "ended_ns", "gate")

    def __init__(self) -> None:
        self.done = False
        self.ended_ns = 0
        self.busy_with: int | None = None
        self.gate = threading.Lock()
        self.gate.acquire()

    def is_done(self) -> bool:
        return self.done

    def end(self, at_ns: int) -> None:
        self.ended_ns = at_ns
        self.done = True
        self.gate.release()


class PoolWorker:
    """One worker. Made by `WorkerPool.initialize_worker`."""

    def __init__(
        self, name: str, context: Mapping[str, Any], plan: WorkerPlan, loop: PoolLoop, keeper: WorkerOwner
    ) -> None:
        self.name = name
        self.context = {"persona_id": name, **context}
        self.figures = WorkerFigures()
        self.exits: list[Exit] = []
        self.state: State = "starting"
        self._pid = current_pid()
        self._plan = plan
        self._loop = loop
        self._keeper = keeper
        self._hooks = Hooks()
        self._lock = threading.Lock()
        self._space = threading.Condition(self._lock)
        self._idle = threading.Condition(self._lock)
        self._blocked = 0  # callers that wait for a place in the queue
        self._waiters = 0  # callers that wait until it has nothing to do
        self.given = 0  # requests that the pool gave it
        self._promised = 0  # requests that were given to this worker and are on their way
        self._backlog = Backlog(plan.queue_size, plan.policy)
        self._life: Life | None = None
        self._pings: dict[int, _PingWait] = {}
        self._armed_ns = NEVER_NS  # when the loop will look at deadlines
        self._restart_timer: Timer | None = None
        self._started = threading.Event()  # ready for the first time, or never
        self._over = threading.Event()
        self._refusal: WorkerError | None = None  # the error that later callers get

    def __repr__(self) -> str:
        return f"<PoolWorker {self.name!r}, {self.state}, pid {self.pid}>"

    # What it is

    @property
    def pid(self) -> int | None:
        """The id of its process; None while it has none that is ready."""
        life = self._life
        return life.pid if life is not None and life.ready else None

    @property
    def load(self) -> int:
        """How many requests it has: those that wait, and those in hand."""
        life = self._life
        return len(self._backlog) + self._promised + (len(life.running) if life is not None else 0)

    @property
    def takes_work(self) -> bool:
        """Whether it can be asked: not when it is shut down, or about to be."""
        return self._refusal is None

    @property
    def memory_bytes(self) -> int:
        """Resident memory of its process, as it was told last."""
        life = self._life
        return life.memory_bytes if life is not None else 0

    @property
    def output(self) -> str:
        """The end of what its process wrote."""
        life = self._life
        return life.written if life is not None else ""

    def stats(self) -> dict[str, Any]:
        """Its figures, as plain data."""
        now = {"state": self.state, "pid": self.pid, "memory_bytes": self.memory_bytes, "waiting": len(self._backlog)}
        return {**now, **self.figures.to_dict()}

    def on(self, event: str, listener: Listener) -> Callable[[], None]:
        """Call `listener(event, detail)` at every such event: ready, pong, error (of the evaluator) or exit.

        It is called in the thread that sees the event; it must be quick, and must not wait. Returns a function that
        ends it.
        """
        if event not in EVENTS:
            raise ValueError(f"there is no event {event!r}; there are: {', '.join(EVENTS)}")
        return self._hooks.on(event, listener)

    def _tell(self, event: str, **detail: Any) -> None:
        if self._hooks.listeners:
            try:
                self._hooks.tell(event, worker=self.name, **detail)
            except Exception:
                log.exception("a listener to %s of worker %s failed", event, self.name, extra={"action": "pool_event"})

    # Asking

    def ping(self, timeout_s: float = PING_TIMEOUT_S) -> float:
        """Ask whether it is there; returns the milliseconds until it said so. Also answered while it works.

        Raises WorkerTimeout when no answer came in time, WorkerError when it has no process just now.
        """
        self._check_process()
        life = self._life
        if life is None or not life.ready:
            raise self._refused() or WorkerNotReady(f"worker {self.name} is not ready: it is {self.state}", self.name)
        wait = _PingWait()
        number = next(_ping_numbers)
        self._pings[number] = wait
        started_ns = SYSTEM.steady_ns()
        until_ns = started_ns + int(timeout_s * 1e9)
        life.side.send(Ping(number))
        life.side.read_until(wait.is_done, until_ns)
        if not wait.done:
            wait.gate.acquire(timeout=max(0.0, (until_ns - SYSTEM.steady_ns()) / 1e9))
        self._pings.pop(number, None)
        if not wait.ended_ns:
            if wait.done:
                raise WorkerDied(f"worker {self.name} ended while it was pinged", self.name)
            self.figures.count("pings_lost")
            raise WorkerTimeout(f"worker {self.name} did not answer a ping within {timeout_s:g} s", self.name)
        latency_ms = (wait.ended_ns - started_ns) / 1e6
        self._tell("pong", latency_ms=latency_ms, busy_with=wait.busy_with)
        return latency_ms

    def evaluate(
        self, message: Mapping[str, Any], timeout_s: float | None = EVALUATE_TIMEOUT_S, *, attempts: int = 1
    ) -> Evaluation:
        """Let it judge a message, and return what it thinks.

        Raises WorkerTimeout after `timeout_s` (None: never), wherever the request is then; WorkerDied when the process
        ended under it `attempts` times; EvaluatorFailed, EvaluationAborted, RequestDropped, QueueFull, WorkerStopped,
        PoolFailed.
        """
        request = Request(message_text(message), self.name, timeout_s, attempts)
        try:
            life = self._admit(request)
            if life is not None:
                life.work.read_until(request.is_done, request.deadline_ns)
            if not request.wait(_left_s(request)):
                self._overdue(request)
        except BaseException:
            self.abort(request)  # Ctrl-C: nobody waits for it any more
            raise
        return request.result()

    def submit(
        self, message: Mapping[str, Any], timeout_s: float | None = EVALUATE_TIMEOUT_S, *, attempts: int = 1
    ) -> Request:
        """The same, without waiting for the end. Waits only for a place in the queue, where the policy is to block."""
        request = Request(message_text(message), self.name, timeout_s, attempts)
        self.send(request)
        return request

    def send(self, request: Request) -> None:
        """Send a request that was made already, and leave it to the loop. Raises when it is refused."""
        life = self._admit(request)
        self._keep_deadline(request)
        if life is not None:
            life.work.leave_to_loop()

    def abort(self, request: Request | None = None) -> bool:
        """Call off an evaluation: that of this request, or else the one that runs. Its waiter gets EvaluationAborted.

        Returns whether there was one. A worker that goes on with it for longer than the grace is killed and replaced.
        """
        with self._lock:
            life = self._life
            if request is None and life is not None:
                request = next(iter(life.running.values()), None)
            if request is None or request.done:
                return False
            waiting = self._backlog.remove(request)
            self._stir()
        called_off = self._end(request, EvaluationAborted(f"worker {self.name} was told to stop", self.name), "aborted")
        if not waiting and life is not None and request.id in life.running:
            life.call_off(request, self._plan.grace_s)
        return called_off

    # The way of a request

    def _refused(self) -> WorkerError | None:
        """The error for a caller that asks when nobody will answer any more."""
        refusal = self._refusal
        return None if refusal is None else _again(refusal)

    def _check_process(self) -> None:
        if current_pid() != self._pid:
            raise WorkerStopped(
                "this pool was made before the process forked; fork first, or make one in each", self.name
            )

    def _admit(self, request: Request) -> Life | None:
        """Send it, or let it wait. Returns the process whose answer is to be read. Raises when it is refused."""
        self._check_process()
        dropped: Request | None = None
        sent_to: Life | None = None
        with self._lock:
            if self._backlog.full:
                self._wait_for_space(request)
            refusal = self._refused()
            if refusal is not None:
                raise refusal
            life = self._life
            if life is not None and not len(self._backlog) and self._has_hand_free(life):
                self._send(life, request)
                sent_to = life
            else:
                dropped = self._backlog.add(request)
        if dropped is not None:
            said = f"a newer request took the place of request {dropped.id} in the queue of worker {self.name}"
            self._end(dropped, RequestDropped(said, self.name), "dropped")
        return sent_to

    def _wait_for_space(self, request: Request) -> None:
        """The queue is full: do as the policy says. With the lock, which is released while waiting."""
        policy = self._backlog.policy
        if policy == "drop_oldest":
            return
        if policy == "refuse" or self._loop.is_here():
            self.figures.count("refused")
            raise QueueFull(f"{len(self._backlog)} requests wait for worker {self.name} already", self.name)
        self._blocked += 1
        try:
            while self._backlog.full and self._refusal is None:
                left_s = _left_s(request)
                if left_s == 0:
                    self.figures.count("timed_out")
                    raise WorkerTimeout(f"no place in the queue of worker {self.name} came free in time", self.name)
                self._space.wait(left_s)
        finally:
            self._blocked -= 1

    def _has_hand_free(self, life: Life) -> bool:
        return life.takes_work and len(life.running) < self._plan.in_hand

    def _send(self, life: Life, request: Request) -> None:
        """Hand a request to a process. With the lock."""
        request.attempt += 1
        life.running[request.id] = request
        life.work.send(Evaluate(request.id, request.attempt, request.asked_ns, request.message))

    def _send_waiting(self, life: Life) -> None:
        """Hand over what waits, as far as the process has a hand free. With the lock."""
        while self._has_hand_free(life):
            request = self._backlog.next()
            if request is None:
                return
            self._send(life, request)
            self._stir()

    def _end(self, request: Request, error: WorkerError, counted: str) -> bool:
        """End a request with an error, and count it. Hold no lock."""
        ended = request.end(error)
        if ended:
            self.figures.count(counted)
        return ended

    # Deadlines

    def _keep_deadline(self, request: Request) -> None:
        """Let the loop keep a request's deadline: nobody else does."""
        with self._lock:
            sooner = request.deadline_ns < self._armed_ns
            if sooner:
                self._armed_ns = request.deadline_ns
        if sooner:
            self._loop.call_at(request.deadline_ns, self._look_at_deadlines)

    def _look_at_deadlines(self) -> None:
        now_ns = SYSTEM.steady_ns()
        with self._lock:
            life = self._life
            requests = [*(life.running.values() if life is not None else ()), *self._backlog]
            open_ones = [request for request in requests if not request.done]
            later = [each.deadline_ns for each in open_ones if now_ns < each.deadline_ns < NEVER_NS]
            self._armed_ns = min(later, default=NEVER_NS)
        for request in open_ones:
            if request.deadline_ns <= now_ns:
                self._overdue(request)
        if later:
            self._loop.call_at(self._armed_ns, self._look_at_deadlines)

    def _overdue(self, request: Request) -> None:
        """Its deadline is over: tell the caller, and stop the worker if it works on it."""
        with self._lock:
            life = self._life
            waited = self._backlog.remove(request)
            self._stir()
            running = life is not None and request.id in life.running
        took_s = (SYSTEM.steady_ns() - request.asked_ns) / 1e9
        where = "still waited for it" if waited else "was still at it"
        said = f"request {request.id} to worker {self.name} {where} after {took_s:.3f} s"
        if self._end(request, WorkerTimeout(said, self.name), "timed_out") and running and life is not None:
            life.call_off(request, self._plan.grace_s)

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
        """Wait until it has nothing to do; False when it still has after that time."""
        with self._lock:
            self._waiters += 1
            try:
                return self._idle.wait_for(lambda: self.load == 0 or self._refusal is not None, timeout_s)
            finally:
                self._waiters -= 1

    def _stir(self) -> None:
        """Something left the queue or the process: threads that wait for that look. With the lock."""
        if self._blocked:
            self._space.notify()
        if self._waiters:
            self._idle.notify_all()

    # What the process says (in the thread that reads)

    def take_work(self, life: Life, frames: Sequence[Any]) -> None:
        """See what came over the work line."""
        for frame in frames:
            if isinstance(frame, Result):
                self._take_result(life, frame)
            elif isinstance(frame, Error):
                self._take_error(life, frame)
            elif isinstance(frame, Ready):
                self._take_ready(life, frame)

    def _take_result(self, life: Life, frame: Result) -> None:
        life.memory_bytes = frame.memory_bytes
        request = self._answered(life, frame.request, frame.attempt, final=frame.final)
        if request is None:
            return
        round_trip_ms = (SYSTEM.steady_ns() - request.asked_ns) / 1e6
        evaluation = frame.evaluation.with_times(round_trip_ms=round_trip_ms, persona_id=self.name)
        if not frame.final:
            request.add(evaluation)
        else:
            self.figures.add(evaluation)
            request.end(None, evaluation)

    def _take_error(self, life: Life, frame: Error) -> None:
        life.memory_bytes = frame.memory_bytes
        if frame.kind == "boot":
            life.boot_error = frame.text
            return
        request = self._answered(life, frame.request, frame.attempt, final=True)
        if request is None:
            return
        if frame.kind == "aborted":
            self._end(request, EvaluationAborted(f"worker {self.name} was told to stop", self.name), "aborted")
            return
        said = f"the evaluator of worker {self.name} failed: {frame.text}"
        self._end(request, EvaluatorFailed(said, self.name, frame.trace), "failed")
        self._tell("error", error=said, trace=frame.trace, request=frame.request)

    def _answered(self, life: Life, number: int, attempt: int, *, final: bool) -> Request | None:
        """The open request that an answer belongs to. None, and counted, when there is none.

        After the last: the next.
        """
        with self._lock:
            request = life.running.pop(number, None) if final else life.running.get(number)
            if final and request is not None:
                life.tasks += 1
                self._send_waiting(life)
                self._stir()
        if final:
            life.work.answered()
            self._consider_recycling(life)
        if request is None:
            self.figures.count("unknown")
            return None
        if request.done or request.attempt != attempt:
            self.figures.count("late")
            return None
        return request

    def take_side(self, life: Life, frames: Sequence[Any]) -> None:
        """See what came over the side line."""
        now_ns = SYSTEM.steady_ns()
        for frame in frames:
            if isinstance(frame, Pong):
                life.memory_bytes = frame.memory_bytes
                life.side.answered()
                wait = self._pings.pop(frame.ping, None)
                if wait is None:
                    self.figures.count("late")
                else:
                    wait.busy_with = frame.busy_with
                    wait.end(now_ns)

    def _take_ready(self, life: Life, frame: Ready) -> None:
        life.work.answered()
        life.pid, life.memory_bytes = frame.pid, frame.memory_bytes
        with self._lock:
            life.ready = True
            if self._refusal is None:
                self.state = "ready"
                self._send_waiting(life)
        boot_ms = (SYSTEM.steady_ns() - life.born_ns) / 1e6
        self._started.set()
        self._keeper.recycled(self)
        self._keeper.changed(self)
        self._tell("ready", pid=frame.pid, boot_ms=boot_ms)

    # Processes, in the loop's thread

    def wait_ready(self) -> None:
        """Wait until it is ready for the first time; raises WorkerNotReady, with its last words, when it is not."""
        self._started.wait()
        if self._refusal is not None:
            raise _again(self._refusal)

    def begin(self) -> None:
        """Start its process; `wait_ready` waits for it."""
        self._loop.call(self._begin)

    def _begin(self) -> None:
        """Start a process."""
        self._restart_timer = None
        if self._refusal is not None:
            return
        try:
            life = Life(self, self._plan.evaluator, self.context, self._loop, show=self._plan.show)
        except Exception as error:  # noqa: BLE001  no descriptors left, for instance: waiting callers must hear of it
            self._cannot_start(f"could not be started: {type(error).__name__}: {error}")
            return
        late_s = self._plan.start_timeout_s
        life.after(late_s, lambda: None if life.ready else life.kill(f"was not ready within {late_s:g} s"))
        with self._lock:
            self._life = life
        life.work.expect(1)
        life.work.leave_to_loop()

    def _cannot_start(self, how: str) -> None:
        """There is no process, and no use in trying again."""
        self.exits = [*self.exits, Exit(SYSTEM.steady_ns() / 1e9, "boot", how)]
        if self._started.is_set():
            self._keeper.give_up(self, how)
        else:
            self.stop_with(WorkerNotReady(f"worker {self.name} {how}", self.name), "failed")

    def _consider_recycling(self, life: Life) -> None:
        recycling = self._plan.recycling
        if recycling.due(life.tasks, life.memory_bytes, life.chance) and life.asked is None:
            self._loop.call(lambda: self._recycle(life))

    def _recycle(self, life: Life) -> None:
        """Replace the process when it has nothing in hand, if it is this worker's turn."""
        if life is not self._life or life.asked is not None or self._refusal is not None:
            return
        if not life.retiring and not self._keeper.may_recycle(self):
            return
        with self._lock:
            life.retiring = True
            busy = bool(life.running)
        if not busy:  # else it is asked again after its next task
            life.end("recycle", self._plan.grace_s)

    def life_over(self, life: Life) -> None:
        """A process has ended: what was in its hands is told, and what follows is decided."""
        self._end_pings()
        ended = self._take_back(life)
        for request in ended:
            said = f"worker {self.name} {life.say_how()} while it worked on request {request.id}"
            self._end(request, WorkerDied(said, self.name, life.written), "died")
        how = life.ended
        assert how is not None
        self._tell("exit", pid=life.pid, code=how.code, signal=how.signal, text=life.say_how(), asked=life.asked)
        if self._refusal is not None:
            self._finished()
        elif life.asked == "recycle":
            self.figures.count("recycled")
            self._begin()
        else:
            self._supervise(life)
        self._keeper.changed(self)

    def _take_back(self, life: Life) -> list[Request]:
        """What the process had in hand goes back into the queue, as far as it may be tried again. Returns the others.

        It works on the first; those behind it were not begun.
        """
        with self._lock:
            if self._life is life:
                self._life = None
            ended = []
            for place, request in reversed(list(enumerate(life.running.values()))):
                if request.done:
                    continue
                if place > 0:
                    request.attempts += 1  # it was not begun: that did not count
                if request.attempt < request.attempts and self._refusal is None:
                    self._backlog.put_back(request)
                else:
                    ended.append(request)
            life.running.clear()
            self._stir()
        return ended

    def _supervise(self, life: Life) -> None:
        """Nobody asked for this end: start another process, or give up."""
        if _program_ends.is_set():
            self.stop_with(WorkerStopped(f"worker {self.name} ended with the program", self.name), "stopped")
            return
        how = life.say_how()
        self.exits = [*self.exits, Exit(SYSTEM.steady_ns() / 1e9, _cause(life), how)]
        self.exits = self.exits[-max(KEPT_EXITS, self._plan.restart.max_restarts + 1) :]
        if not self._started.is_set():  # the caller that started it is told, and decides
            words = f"worker {self.name} {how}"
            self.stop_with(WorkerNotReady(f"{words}{_quoted(life.written)}", self.name, life.written), "failed")
            return
        decision = decide(self.exits, self._plan.restart, SYSTEM.random())
        if isinstance(decision, GiveUp):
            self._keeper.give_up(self, f"{decision.reason}{_quoted(life.written)}")
            return
        self.figures.count("restarts")
        log.warning("worker %s %s; it is started again", self.name, how, extra={"action": "worker_restart"})
        with self._lock:
            self.state = "restarting"
        self._restart_timer = self._loop.call_at(SYSTEM.steady_ns() + int(decision.delay_s * 1e9), self._begin)

    def _end_pings(self) -> None:
        while self._pings:
            try:
                _, wait = self._pings.popitem()
            except KeyError:
                break
            wait.end(0)

    # The end

    def shutdown(self, timeout_s: float | None = None) -> None:
        """End the process and wait until it has. Callers that wait for a result get WorkerStopped.

        Safe to call twice.
        """
        self.begin_shutdown()
        self.wait_over(timeout_s)

    def begin_shutdown(self) -> None:
        """Tell it to end; `wait_over` waits for it."""
        self._loop.call(
            lambda: self.stop_with(WorkerStopped(f"worker {self.name} is shut down", self.name), "stopping")
        )

    def wait_over(self, timeout_s: float | None = None) -> bool:
        """Wait until its process has ended for good; False when it has not after that time."""
        return self._over.wait(timeout_s)

    def stop_with(self, refusal: WorkerError, state: State) -> None:
        """Take nothing more, tell all waiting callers, and end the process. In the loop's thread."""
        if self._refusal is not None:
            return
        with self._lock:
            self._refusal = refusal
            self.state = state
            life = self._life
            waiting = [*self._backlog.take_all(), *(life.running.values() if life is not None else ())]
            self._space.notify_all()
            self._idle.notify_all()
        for request in waiting:
            request.end(_again(refusal))
        if self._restart_timer is not None:
            self._restart_timer.cancel()
        if life is None:
            self._finished()
        elif life.asked is None:
            life.end("shutdown", self._plan.grace_s)
        self._keeper.changed(self)

    def _finished(self) -> None:
        with self._lock:
            if self.state == "stopping":
                self.state = "stopped"
        self._keeper.recycled(self)
        self._keeper.ended(self)
        self._started.set()
        self._over.set()


def _left_s(request: Request) -> float | None:
    """Seconds until its deadline, never below 0; None when it has none."""
    if request.deadline_ns == NEVER_NS:
        return None
    return max(0, request.deadline_ns - SYSTEM.steady_ns()) / 1e9


def _cause(life: Life) -> Cause:
    if not life.ready and (life.boot_error or life.killed_because or (life.ended and life.ended.code is not None)):
        return "boot"
    return "hung" if life.killed_because else "died"


def _quoted(written: str) -> str:
    """The last words of a process, for the end of a sentence."""
    return f"; the last that it wrote:\n{written[-2000:]}" if written else ""


def _again(error: WorkerError) -> WorkerError:
    """The same error anew: each caller raises one of its own."""
    if isinstance(error, PoolFailed):
        return PoolFailed(str(error), error.worker, error.output, error.history)
    return type(error)(str(error), error.worker, error.output)
