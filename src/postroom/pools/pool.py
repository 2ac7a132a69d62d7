"""A pool of workers, each in a process of its own, that judge messages side by side.

    with postroom.WorkerPool(evaluator="postroom.inference:mock") as pool:
        pool.initialize_worker("ada")
        pool.initialize_worker("bob")
        print(pool.evaluate_message({"id": "m1", "content": "hi", "sender_id": "carl"}))

A worker that dies is replaced; one that dies again and again, or cannot start any more, fails the pool
(`pools/restarts.py`).
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from copy import copy
from types import MappingProxyType, TracebackType
from typing import Any, Final, Self

from postroom.core.clock import SYSTEM
from postroom.core.config import GRACE_S
from postroom.core.events import Hooks, Listener
from postroom.core.message import check_name
from postroom.core.system.process import current_pid
from postroom.errors import (
    EvaluationAborted,
    Fault,
    PoolFailed,
    WorkerError,
    WorkerNotReady,
    WorkerStopped,
    WorkerTimeout,
    raise_faults,
)
from postroom.room import Room

from .evaluation import Evaluation
from .loop import PoolLoop, enter, leave
from .plan import Policy, WorkerPlan
from .protocol import message_text, plain_text
from .report import Report
from .request import NEVER_NS, Request
from .restarts import Recycling, RestartPolicy
from .rooms import Answering, Following
from .worker import EVALUATE_TIMEOUT_S, EVENTS, PoolWorker

#: So many, unless told: enough for a worker that is done with one to find the next at once. One, where the oldest is
#: dropped.
IN_HAND: Final = 4
#: `map` has so many requests for each worker under way.
MAP_AHEAD: Final = 16

#: Called with a worker's name and its request, at each evaluation that comes and at the end.
ResultListener = Callable[[str, Request], None]


class WorkerPool:
    """Workers that share an evaluator ("module:function"), each with its own name, settings and process.

    - `queue_size`: how many requests may wait for a worker.
    - `policy`: what happens to one more. "block": its caller waits. "drop_oldest": the one that has waited longest is
      dropped; with `queue_size=1` only the newest matters. "refuse": QueueFull.
    - `in_hand`: how many requests a process is given at once, the current one included. Those cannot be dropped.
    - `start_timeout_s`: a worker that is not ready by then cannot start.
    - `grace_s`: a worker that does not stop when told to is killed after that time.
    - `restart`: how often a worker that dies is replaced.
    - `recycle_after`, `recycle_above_mib`: replace a process after that many evaluations, or when it uses that much
      memory; never two at once.
    - `show`: print what workers write.

    Close it (`with`, or `shutdown`): its processes and its share of the loop's thread end then.
    """

    def __init__(
        self,
        evaluator: str,
        *,
        workers: Mapping[str, Mapping[str, Any]] | Iterable[str] = (),
        queue_size: int = 1000,
        policy: Policy = "block",
        in_hand: int | None = None,
        start_timeout_s: float = 5.0,
        grace_s: float = 0.5,
        restart: RestartPolicy | None = None,
        recycle_after: int | None = None,
        recycle_above_mib: float | None = None,
        show: bool = False,
    ) -> None:
        if in_hand is None:
            in_hand = 1 if policy == "drop_oldest" else IN_HAND
        self._plan = WorkerPlan(
            evaluator=evaluator,
            queue_size=queue_size,
            policy=policy,
            in_hand=in_hand,
            start_timeout_s=start_timeout_s,
            grace_s=grace_s,
            restart=restart or RestartPolicy(),
            recycling=Recycling(recycle_after, recycle_above_mib),
            show=show,
        )
        self._workers: dict[str, PoolWorker] = {}
        self._starting: list[PoolWorker] = []
        #: The workers by name. A view: it changes as workers come and go.
        self.workers: Mapping[str, PoolWorker] = MappingProxyType(self._workers)
        #: Why the pool has failed, if it has.
        self.failure: PoolFailed | None = None
        self._lock = threading.Lock()
        #: Listeners to the events of all workers.
        self.hooks = Hooks()
        self._recycling: PoolWorker | None = None
        self._draining = False
        self._closed = False
        self._known: dict[str, dict[str, Request]] = {}  # evaluated before anybody asked (`follow`)
        self._services: list[Answering | Following] = []
        self._reports: list[Report] = []  # to the rooms that it works in
        self._pid = current_pid()
        self._loop = self._enter_loop()
        try:
            self.initialize_workers(workers if isinstance(workers, Mapping) else {name: {} for name in workers})
        except BaseException:
            self.shutdown()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: BaseException | None, traceback: TracebackType | None) -> None:
        self.shutdown()

    def __repr__(self) -> str:
        return f"<WorkerPool of {', '.join(self._workers) or 'no workers'}>"

    # Workers

    def initialize_worker(self, name: str, **context: Any) -> PoolWorker:
        """Start a worker and wait until it is ready. The settings reach the evaluator as its argument `context`.

        Raises WorkerNotReady, with the worker's last words, when it cannot start or is not ready in time: then the pool
        is as it was before.
        """
        return self.initialize_workers({name: context})[name]

    def initialize_workers(self, workers: Mapping[str, Mapping[str, Any]]) -> dict[str, PoolWorker]:
        """Start several workers at once, each with its settings; all of them, or none."""
        self._check_open()
        made: dict[str, PoolWorker] = {}
        for name, context in workers.items():
            faults: list[Fault] = []
            check_name("name", name, faults)
            plain_text("context", context, faults)
            if name in self._workers:
                faults.append(Fault("name", f"this pool already has a worker {name!r}"))
            raise_faults(faults)
            made[name] = PoolWorker(name, context, self._plan, self._loop, self)
        with self._lock:
            self._check_open()
            self._starting += made.values()  # closing the pool meanwhile ends them too
        try:
            for worker in made.values():
                self._loop.call(worker.start)
            for worker in made.values():
                worker.wait_ready()
            with self._lock:
                self._check_open()
                self._workers.update(made)
            self._tell_rooms()
        except BaseException:
            _end_all(made.values())
            raise
        finally:
            with self._lock:
                self._starting = [worker for worker in self._starting if worker not in made.values()]
        return made

    def on(self, event: str, listener: Listener) -> None:
        """Call `listener(event, detail)` at every such event of every worker, also of those that come later.

        Events: ready, pong, error, exit; `detail["worker"]` names the worker. See `PoolWorker.on`.
        """
        if event not in EVENTS:
            raise ValueError(f"there is no event {event!r}; the events are: {', '.join(EVENTS)}")
        self.hooks.on(event, listener)

    def stats(self) -> dict[str, dict[str, Any]]:
        """What each worker did and how it is, as plain data."""
        return {name: worker.stats() for name, worker in self._workers.items()}

    @property
    def evaluator(self) -> str:
        """What its workers run: "module:function"."""
        return self._plan.evaluator

    # Asking

    def evaluate_message(
        self, message: Mapping[str, Any], timeout_s: float | None = EVALUATE_TIMEOUT_S
    ) -> dict[str, Evaluation | WorkerError]:
        """Let all workers judge a message at the same time; returns what each thinks, or why it does not say.

        No worker waits for another, and one that fails costs only its own result. A message that was evaluated
        before the call (`follow`) is not evaluated again.
        """
        requests = self.begin(message, timeout_s)
        until_ns = NEVER_NS if timeout_s is None else SYSTEM.steady_ns() + int(timeout_s * 1e9)
        return {name: _outcome(request, until_ns) for name, request in requests.items()}

    def begin(
        self,
        message: Mapping[str, Any],
        timeout_s: float | None = EVALUATE_TIMEOUT_S,
        listener: ResultListener | None = None,
        *,
        skip: Container[object] = (),
        keep: int | None = None,
    ) -> dict[str, Request]:
        """The same without waiting: the request to each worker, by name. Each ends at its deadline at the latest.

        Workers in `skip` are not asked. With `keep` later calls find these requests, unless so many others were made
        since.

        `listener(name, request)` is called at each evaluation that comes (a first look, the last word) and at the end.
        """
        self._check_open()
        text = message_text(message)
        known = self._known.get(message["id"], {})
        requests, new = {}, []
        for name, worker in tuple(self._workers.items()):
            if name in skip:
                continue
            request = known.get(name)
            if request is None or request.error is not None:
                request = Request(text, worker.name, timeout_s, 1)
                new.append((worker, request))
            requests[name] = request
        if keep is not None:  # before a worker has it: a caller that asks from then on finds it
            self._remember(message["id"], requests, keep)
        _send_all(new)
        if listener is not None:
            for name, request in requests.items():
                request.on_change(lambda changed, name=name: listener(name, changed))  # type: ignore[misc]
        return requests

    def evaluate(
        self, message: Mapping[str, Any], timeout_s: float | None = EVALUATE_TIMEOUT_S, *, attempts: int = 1
    ) -> Evaluation:
        """Let one worker judge a message: the one that has least to do. See `PoolWorker.evaluate`."""
        worker = self._choose()
        try:
            return worker.evaluate(message, timeout_s, attempts=attempts)
        finally:
            worker.requests.let_go()

    @property
    def takes_work(self) -> bool:
        """Whether it can be asked: not when it has failed, is drained or is shut down."""
        return self.failure is None and not self._closed and not self._draining

    def submit(
        self, message: Mapping[str, Any], timeout_s: float | None = EVALUATE_TIMEOUT_S, *, attempts: int = 1
    ) -> Request:
        """The same without waiting."""
        worker = self._choose()
        try:
            return worker.submit(message, timeout_s, attempts=attempts)
        finally:
            worker.requests.let_go()

    def map(
        self, messages: Iterable[Mapping[str, Any]], timeout_s: float | None = EVALUATE_TIMEOUT_S, *, attempts: int = 1
    ) -> Iterator[Evaluation | WorkerError]:
        """Let the workers judge many messages, each by one of them; what came of each, in the order of the messages."""
        under_way: deque[Request] = deque()
        for message in messages:
            if len(under_way) >= MAP_AHEAD * max(1, len(self._workers)):
                under_way[len(under_way) // 2].wait()  # then half of them can be taken without waiting
                yield _outcome(under_way.popleft())
                while under_way and under_way[0].done:
                    yield _outcome(under_way.popleft())
            under_way.append(self.submit(message, timeout_s, attempts=attempts))
        while under_way:
            yield _outcome(under_way.popleft())

    def _choose(self) -> PoolWorker:
        """The worker that has least to do; among those, one that is ready. It is promised a request.

        One that is being started is better than one that is busy: it is there in a moment, and when the other is, is
        not known.
        """
        self._check_open()
        with self._lock:
            workers = [worker for worker in self._workers.values() if worker.takes_work]
            if not workers:
                raise WorkerNotReady("this pool has no workers; start one with initialize_worker(name)")
            chosen = min(workers, key=lambda worker: (worker.load, worker.state != "ready", worker.requests.given))
            chosen.requests.promise()
            return chosen

    def _check_open(self) -> None:
        if self.failure is not None:
            raise copy(self.failure)
        if self._closed or self._draining:
            raise WorkerStopped("this pool is shut down" if self._closed else "this pool is being drained")

    # Work from a room

    def serve(
        self,
        room: Room,
        agent: str,
        channels: Iterable[str] | None = None,
        *,
        timeout_s: float | None = None,
        lease_s: float | None = None,
        answer: str = "asked",
        stop: threading.Event | None = None,
        grace_s: float = GRACE_S,
    ) -> None:
        """Take messages from a room as that agent, let a free worker judge each, and settle it. Until `stop` is set.

        A message whose worker dies, or hangs for longer than `timeout_s`, is delivered again; after its last delivery
        it is a dead letter with the history of all. So is one whose evaluator fails, later. The result is the answer to
        the agent that asked; `answer` "always" sends it to every sender, "never" to none. Runs one message for each
        worker at a time. Returns when `stop` is set, the room is closed, the pool is drained or Ctrl-C is pressed, and
        the requests at work are done. On SIGTERM it returns after `grace_s` at the latest, as `Agent.serve` does.
        """
        stop = threading.Event() if stop is None else stop
        serving = Answering(self, room.agent(agent), channels, timeout_s, lease_s, answer, stop, grace_s)
        self._services.append(serving)
        try:
            self._check_open()  # not before: giving the pool up from now on ends this service too
            self.report_to(room, agent)
            serving.run()
        finally:
            self._services.remove(serving)

    def follow(
        self, room: Room, channels: Iterable[str], *, timeout_s: float | None = EVALUATE_TIMEOUT_S, keep: int = 1000
    ) -> Following:
        """Evaluate new messages of the channels as they come, by all workers, before they are asked for. Nothing is taken.

        `evaluate_message` and `begin` then find the results, or join the requests, of the last `keep` messages. Returns
        what follows: `close()` it, or use it as a context manager; it also ends with the pool.
        """
        self._check_open()
        following = Following(self, room, channels, timeout_s, keep)
        self.report_to(room)
        following.start()
        self._services.append(following)
        if self.failure is not None:  # meanwhile
            following.close(0)
        return following

    def report_to(self, room: Room, name: str | None = None) -> None:
        """Let a room know of its workers, their states and restarts, until the pool ends or the room is closed.

        The page shows it. `serve`, `follow` and a coordinator with a room do this by themselves. It returns at once,
        and twice is once; the pool has the first name that it is given, and that of its evaluator until then.
        """
        gateway = room.gateway
        gateway.check_open()
        with self._lock:
            self._check_open()  # with the lock: shutting the pool down meanwhile closes this report too
            self._reports = [report for report in self._reports if not report.closed]
            known = next((report for report in self._reports if report.gateway is gateway), None)
            if known is None:
                self._reports.append(Report(gateway, self, name))
            else:
                known.call_it(name)

    def _remember(self, message_id: str, requests: dict[str, Request], keep: int) -> None:
        """Let `begin` find these requests. The oldest of more than `keep` are forgotten."""
        with self._lock:
            self._known[message_id] = requests
            while len(self._known) > keep:
                del self._known[next(iter(self._known))]

    # The end

    def drain(self, timeout_s: float | None = None) -> bool:
        """Take nothing more, and wait for what runs and waits; False when something still does after that time.

        Rooms that it serves are served no more: claimed messages are finished, no others are claimed.
        """
        until_ns = None if timeout_s is None else SYSTEM.steady_ns() + int(timeout_s * 1e9)
        for service in tuple(self._services):
            service.close(_left_s(until_ns))
        self._draining = True
        return all(worker.requests.wait_idle(_left_s(until_ns)) for worker in tuple(self._workers.values()))

    def shutdown(self, drain_s: float = 0.0) -> None:
        """End all workers; with `drain_s`, after what runs is done, or after that time. Safe to call twice.

        Callers that still wait get WorkerStopped. After: no process of this pool runs; one that did not end within
        `grace_s` of being told to was killed.
        """
        if current_pid() != self._pid:
            self._closed = True  # the forked copy: everything in it belongs to the process before
            return
        with self._lock:
            if self._closed:
                return
            if not drain_s:
                self._closed = True
        if drain_s:
            self.drain(drain_s)
            self._closed = True
        with self._lock:
            workers = [*self._workers.values(), *self._starting]
        _end_all(workers)
        for service in tuple(self._services):
            service.close(0)
        with self._lock:
            reports, self._reports = self._reports, []
        for report in reports:
            report.close()
        self._leave_loop()

    def _enter_loop(self) -> PoolLoop:
        return enter()

    def _leave_loop(self) -> None:
        leave(self._loop)

    # For its workers, in the loop's thread

    def may_recycle(self, worker: PoolWorker) -> bool:
        if self._recycling is None:
            self._recycling = worker
        return self._recycling is worker

    def changed(self, worker: PoolWorker) -> None:
        if self._recycling is worker and (worker.pid is not None or worker.is_over):
            self._recycling = None
        if worker.is_over and self.takes_work and self._workers.get(worker.name) is worker:
            del self._workers[worker.name]  # it was shut down alone, and leaves the pool
        self._tell_rooms()

    def _tell_rooms(self) -> None:
        for report in self._reports:
            report.stir()

    def give_up(self, worker: PoolWorker, reason: str) -> None:
        said = f"worker {worker.name} will not be restarted: {reason}"
        history = [exit_._asdict() for exit_ in worker.exits]
        self.failure = PoolFailed(said, worker.name, worker.output, history)
        for each in self._workers.values():
            each.stop_with(self.failure, "failed")
        for service in tuple(self._services):
            service.close(0)  # one that waits for a message would learn of it from the next


def _send_all(requests: list[tuple[PoolWorker, Request]]) -> None:
    """Send each to its worker; it ends at once when the worker does not take it. None is left that would never end."""
    try:
        for worker, request in requests:
            try:
                worker.send(request)
            except WorkerError as error:
                request.end(error)
    except BaseException:  # an interrupt: others may have found these requests, and wait for them
        for _, request in requests:
            request.end(EvaluationAborted("it was interrupted before it reached the workers", request.worker))
        raise


def _outcome(request: Request, until_ns: int = NEVER_NS) -> Evaluation | WorkerError:
    """What a request ended with. One that may go on for longer than its asker waits was begun by somebody else."""
    if request.deadline_ns > until_ns and not request.wait(_left_s(until_ns)):
        return WorkerTimeout(f"worker {request.worker} was still working on request {request.id}", request.worker)
    request.wait()  # its deadline is kept
    outcome = request.outcome
    assert outcome is not None
    return outcome


def _end_all(workers: Iterable[PoolWorker]) -> None:
    workers = tuple(workers)
    for worker in workers:
        worker.begin_shutdown()
    for worker in workers:
        worker.wait_over()


def _left_s(until_ns: int | None) -> float | None:
    return None if until_ns is None else max(0, until_ns - SYSTEM.steady_ns()) / 1e9
