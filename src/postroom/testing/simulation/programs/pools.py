"""Pools: requests that workers do, hang at, or die of; and a pool that serves a room."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import Any, Final

from postroom.core.config import GRACE_S
from postroom.errors import PoolFailed, WorkerDied, WorkerError, WorkerStopped
from postroom.pools.evaluation import Evaluation
from postroom.pools.loop import PoolLoop
from postroom.pools.pool import WorkerPool
from postroom.pools.request import Request
from postroom.pools.rooms import Answering
from postroom.testing.simulation.broken import Broken
from postroom.testing.simulation.workers import EARLIER, SimulatedForkServer, SimulatedPoolLoop, play_workers

from .mail import serve
from .program import SECOND_NS, Program

#: A request that is late is ended within so many seconds: the looks of the loop.
_LATE_S: Final = 1.0
_WORKERS: Final = ("w1", "w2")


class SimulatedPool(WorkerPool):
    """A pool whose loop is a thread of the world, and which lets that one read all lines."""

    def __init__(self, program: Program) -> None:
        self._world = program.world
        super().__init__("simulated:mind", workers=_WORKERS, policy="refuse", in_hand=2)

    def _enter_loop(self) -> PoolLoop:
        return SimulatedPoolLoop(self._world)

    def _leave_loop(self) -> None:
        self._loop.stop()

    def evaluate(self, message: Mapping[str, Any], timeout_s: float | None = 5.0, *, attempts: int = 1) -> Evaluation:
        return self.submit(message, timeout_s, attempts=attempts).result()

    def close(self) -> None:
        """End its workers."""
        self.shutdown()


def _pool(program: Program) -> SimulatedPool:
    """The pool of this process; another, where the one before has failed."""
    program.agent()
    pool = program.kept.get("pool")
    if isinstance(pool, SimulatedPool) and pool.takes_work:
        return pool
    if pool is not None:
        program.kept.pop("pool").close()
    _server(program)
    made = program.kept["pool"] = SimulatedPool(program)
    program.tell("has a pool")
    return made


def _server(program: Program) -> SimulatedForkServer:
    """What starts the workers of all pools of this world."""
    if program.world.fork_server is None:
        program.world.fork_server = play_workers(program.world)
    assert isinstance(program.world.fork_server, SimulatedForkServer)
    return program.world.fork_server


def _pool_work(program: Program, count: int, attempts: int, timeout_s: float) -> None:
    """Give requests to the pool, and see what comes of each."""
    try:
        pool = _pool(program)
        asked_ns, stood_ns = program.clock.now_ns, program.stood_ns()
        requests = [pool.submit(program.payload() | {"id": "r"}, timeout_s, attempts=attempts) for _ in range(count)]
    except (PoolFailed, WorkerStopped, WorkerError) as error:
        program.tell(f"is told: {type(error).__name__}")
        return
    for request in requests:
        request.wait()
        spent_s = (program.clock.now_ns - asked_ns - program.stood_ns() + stood_ns) / SECOND_NS
        if spent_s > timeout_s + _LATE_S:
            raise Broken(f"{program.process!r} waited {spent_s:.1f} s for a request of {timeout_s:g} s")
        _judge_end(program, request, attempts)


def _judge_end(program: Program, request: Request, attempts: int) -> None:
    """A request has ended: with its own result, or for a reason that holds."""
    if any(evaluation.reasoning == EARLIER for evaluation in request.evaluations):
        raise Broken(f"{program.process!r} was told the result of an earlier try")
    begun = _server(program).begun[request.id]
    if isinstance(request.error, WorkerDied) and begun < attempts:
        raise Broken(
            f"{program.process!r} is told that a worker died {attempts} times at a request begun {begun} times"
        )
    if begun > attempts:
        raise Broken(f"a request of {attempts} tries was begun {begun} times")
    program.world.happened(
        "a request was done" if request.error is None else f"a request: {type(request.error).__name__}"
    )


def _pool_serve(program: Program, span_s: float, timeout_s: float) -> None:
    """Let a pool take what comes to this agent."""
    try:
        pool = _pool(program)
        pool.report_to(program.room, program.process.part.agent)
    except (PoolFailed, WorkerStopped, WorkerError) as error:
        program.tell(f"is told: {type(error).__name__}")
        return
    stop = threading.Event()
    answering = Answering(pool, program.agent(), None, timeout_s, None, "asked", stop, GRACE_S)
    serve(program, answering._judge, span_s, stop)


OPERATIONS: Final[dict[str, Callable[..., None]]] = {"pool work": _pool_work, "pool serve": _pool_serve}
