"""A worker of a pool: a name with a mind of its own, and the supervisor of the process that lends it one.

The process may change; requests wait in a queue of the pool's process (`pools/queue.py`) and outlive it. When the
deadline of a request is over its caller is told at once, and the worker is told to stop; one that goes on is killed and
replaced.

All methods may be called from several threads. Processes are started, watched and ended in the loop's thread.
"""

from __future__ import annotations

import atexit
import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from copy import copy
from typing import Any, Final, Literal, Protocol

from postroom.core.clock import SYSTEM
from postroom.core.events import Hooks, Listener
from postroom.core.system.process import wait_event
from postroom.errors import (
    EvaluatorFailed,
    WorkerDied,
    WorkerError,
    WorkerNotReady,
    WorkerStopped,
    WorkerTimeout,
)

from .evaluation import Evaluation
from .loop import PoolLoop, Timer
from .plan import WorkerPlan
from .process import Life
from .protocol import Error, Ready, Result, message_text
from .queue import RequestQueue
from .request import Request
from .restarts import KEPT_EXITS, Cause, Exit, GiveUp, decide
from .stats import WorkerFigures

log = logging.getLogger("postroom")

State = Literal["starting", "ready", "restarting", "stopping", "stopped", "failed"]
EVENTS: Final = ("ready", "pong", "error", "exit")
PING_TIMEOUT_S: Final = 1.0
EVALUATE_TIMEOUT_S: Final = 5.0

#: Workers of a pool that was not shut down are killed as the program ends: that is no death to tell of.
#: The function that is registered last is called first, and `children`, which kills them, was imported above.
_program_ends = threading.Event()
atexit.register(_program_ends.set)


class WorkerOwner(Protocol):
    """The pool, as its workers see it. Called in the loop's thread."""

    hooks: Hooks

    def may_recycle(self, worker: PoolWorker) -> bool:
        """Whether it is this worker's turn to be replaced: one at a time.

        If not, it is asked again after its next task.
        """

    def give_up(self, worker: PoolWorker, reason: str) -> None:
        """A worker died too often, or could not start again."""

    def changed(self, worker: PoolWorker) -> None:
        """Its state or its process is another; when it is back, or over, another may be replaced. Must not wait."""


class PoolWorker:
    """One worker. Made by `WorkerPool.initialize_worker`."""

    def __init__(
        self, name: str, context: Mapping[str, Any], plan: WorkerPlan, loop: PoolLoop, keeper: WorkerOwner
    ) -> None:
        self.name = name  # by which the pool knows it
        self.context = {"persona_id": name, **context}  # what it was given to work with: persona, model, prompt
        self.figures = WorkerFigures()  # what it has done so far
        self.exits: list[Exit] = []  # unexpected exits of its process, the last hundred
        #: Its requests. For the pool.
        self.requests = RequestQueue(name, plan, loop, self.figures)
        self._plan = plan
        self._loop = loop
        self._keeper = keeper
        self._hooks = Hooks()
        self._phase: State = "starting"  # as long as it takes work
        self._end_state: State | None = None
        self._restart_timer: Timer | None = None
        self._started = threading.Event()  # ready for the first time, or never
        self._over = threading.Event()

    def __repr__(self) -> str:
        return f"<PoolWorker {self.name!r}, {self.state}, pid {self.pid}>"

    # What it is

    @property
    def state(self) -> State:
        """What it is at; "ready" also while a process that was used up is replaced by the next."""
        return self._end_state or self._phase

    @property
    def pid(self) -> int | None:
        """The id of its process; None while it has none that is ready."""
        life = self.requests.life
        return life.pid if life is not None and life.ready else None

    @property
    def load(self) -> int:
        """How many requests it has: those that wait, and those in hand."""
        return self.requests.load

    @property
    def takes_work(self) -> bool:
        """Whether it can be asked: not when it is shut down, or about to be."""
        return self.requests.refusal is None

    @property
    def is_over(self) -> bool:
        """Whether it has no process any more, and will not get another."""
        return self._end_state is not None and self.requests.life is None

    @property
    def memory_bytes(self) -> int:
        """Resident memory of its process, as it was told last."""
        life = self.requests.life
        return life.memory_bytes if life is not None else 0

    @property
    def output(self) -> str:
        """The end of what its process wrote."""
        life = self.requests.life
        return life.written if life is not None else ""

    def stats(self) -> dict[str, Any]:
        """Its figures, as plain data."""
        now = {"state": self.state, "pid": self.pid, "memory_bytes": self.memory_bytes, "waiting": len(self.requests)}
        return {**now, **self.figures.to_dict()}

    def on(self, event: str, listener: Listener) -> Callable[[], None]:
        """Call `listener(event, detail)` at every such event: ready, pong, error (of the evaluator) or exit.

        It is called in the thread that sees the event; it must be quick, and must not wait. Returns a function that
        ends it.
        """
        if event not in EVENTS:
            raise ValueError(f"there is no event {event!r}; the events are: {', '.join(EVENTS)}")
        return self._hooks.on(event, listener)

    def _tell(self, event: str, **detail: Any) -> None:
        for hooks in (self._keeper.hooks, self._hooks):
            if hooks.listeners:
                try:
                    hooks.tell(event, worker=self.name, **detail)
                except Exception:
                    said = "a listener to %s of worker %s failed"
                    log.exception(said, event, self.name, extra={"action": "pool_event"})

    # Asking

    def ping(self, timeout_s: float = PING_TIMEOUT_S) -> float:
        """Ask whether it is there; returns the milliseconds until it said so. Also answered while it works.

        Raises WorkerTimeout when no answer came in time, WorkerError when it has no process just now.
        """
        self.requests.check_process()
        life = self.requests.life
        if life is None or not life.ready:
            self._raise_refusal()
            raise WorkerNotReady(f"worker {self.name} is not ready: it is {self.state}", self.name)
        started_ns = SYSTEM.steady_ns()
        try:
            pinged = life.ping(started_ns + int(timeout_s * 1e9))
        except TimeoutError:
            self.figures.count("pings_lost")
            said = f"worker {self.name} did not answer a ping within {timeout_s:g} s"
            raise WorkerTimeout(said, self.name) from None
        if pinged is None:
            raise WorkerDied(f"worker {self.name} ended while it was pinged", self.name)
        latency_ms = (pinged[0] - started_ns) / 1e6
        self._tell("pong", latency_ms=latency_ms, busy_with=pinged[1])
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
            life = self.requests.admit(request)
            if life is not None:
                life.work.read_until(lambda: request.done, request.deadline_ns)
            if not request.wait(request.left_s()):
                self.requests.overdue(request)
        except BaseException:
            self.abort(request)  # Ctrl-C: its caller has left
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
        life = self.requests.admit(request)
        self.requests.keep_deadline(request)
        if life is not None:
            life.work.leave_to_loop()

    def abort(self, request: Request | None = None) -> bool:
        """Call off an evaluation: that of this request, or else the one that runs. Its waiter gets EvaluationAborted.

        Returns whether there was one. A worker that goes on with it for longer than the grace is killed and replaced.
        """
        return self.requests.abort(request)

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
        request = self.requests.answered(life, frame.request, frame.attempt, final=frame.final)
        if frame.final:
            self._consider_recycling(life)
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
        request = self.requests.answered(life, frame.request, frame.attempt, final=True)
        self._consider_recycling(life)
        if request is None:
            return
        if frame.kind == "aborted":
            self.requests.end(request, self.requests.aborted(), "aborted")
            return
        said = f"the evaluator of worker {self.name} failed: {frame.text}"
        self.requests.end(request, EvaluatorFailed(said, self.name, frame.trace), "failed")
        self._tell("error", error=said, trace=frame.trace, request=frame.request)

    def _take_ready(self, life: Life, frame: Ready) -> None:
        life.work.answered()
        life.pid, life.memory_bytes = frame.pid, frame.memory_bytes
        self._phase = "ready"
        self.requests.take_on(life)
        boot_ms = (SYSTEM.steady_ns() - life.born_ns) / 1e6
        self._started.set()
        self._keeper.changed(self)
        self._tell("ready", pid=frame.pid, boot_ms=boot_ms)

    # Processes, in the loop's thread

    def wait_ready(self) -> None:
        """Wait until it is ready for the first time; raises WorkerNotReady, with its last words, when it is not."""
        wait_event(self._started, None)
        self._raise_refusal()

    def _raise_refusal(self) -> None:
        if self.requests.refusal is not None:
            raise copy(self.requests.refusal)  # each caller raises one of its own

    def start(self) -> None:
        """Start a process. `wait_ready` waits for the first one."""
        self._restart_timer = None
        if not self.takes_work:
            return
        try:
            self.requests.life = Life(self, self._plan, self.context, self._loop)
        except Exception as error:  # noqa: BLE001  no descriptors left, for instance: waiting callers must hear of it
            self._cannot_start(f"could not be started: {type(error).__name__}: {error}")

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
        if life is not self.requests.life or life.asked is not None or not self.takes_work:
            return
        if not life.retiring and not self._keeper.may_recycle(self):
            return
        if self.requests.retire(life):  # else it is asked again after its next task
            life.end("recycle")

    def life_over(self, life: Life) -> None:
        """A process has ended: the callers of its requests are told, and the next step is decided."""
        for request in self.requests.take_back(life):
            said = f"worker {self.name} {life.say_how()} while it worked on request {request.id}"
            self.requests.end(request, WorkerDied(said, self.name, life.written), "died")
        how = life.ended
        assert how is not None
        self._tell("exit", pid=life.pid, code=how.code, signal=how.signal, text=life.say_how(), asked=life.asked)
        if not self.takes_work:
            self._finished()
        elif life.asked == "recycle":
            self.figures.count("recycled")
            self.start()
        else:
            self._supervise(life)
        self._keeper.changed(self)

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
        log.warning("worker %s %s; it will be restarted", self.name, how, extra={"action": "worker_restart"})
        self._phase = "restarting"
        self._restart_timer = self._loop.call_at(SYSTEM.steady_ns() + int(decision.delay_s * 1e9), self.start)

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
        return wait_event(self._over, timeout_s)

    def stop_with(self, refusal: WorkerError, state: State) -> None:
        """Take nothing more, tell all waiting callers, and end the process. In the loop's thread."""
        if not self.takes_work:
            return
        self._end_state = state
        self.requests.close(refusal)
        if self._restart_timer is not None:
            self._restart_timer.cancel()
        life = self.requests.life
        if life is None:
            self._finished()
        elif life.asked is None:
            life.end("shutdown")
        self._keeper.changed(self)

    def _finished(self) -> None:
        if self._end_state == "stopping":
            self._end_state = "stopped"
        self._keeper.changed(self)
        self._started.set()
        self._over.set()


def _cause(life: Life) -> Cause:
    if not life.ready and (life.boot_error or life.killed_because or (life.ended and life.ended.code is not None)):
        return "boot"
    return "hung" if life.killed_because else "died"


def _quoted(written: str) -> str:
    """The last words of a process, for the end of a sentence."""
    return f"; its last output:\n{written[-2000:]}" if written else ""
