"""Pools for tests, and a check that nothing of them is left: no process, no thread, no descriptor."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from tests.support import TESTS
from tests.support.patience import until

from postroom.core.system.children import Child, shared_server
from postroom.core.system.process import process_started, stat_fields
from postroom.errors import WorkerTimeout
from postroom.pools.line import Line
from postroom.pools.pool import WorkerPool
from postroom.pools.worker import PoolWorker

PATIENCE_S = 20.0
#: What a machine that does other things too may add to a time that is promised; far less than the work that is ended.
BUSY_S = 10.0
MINDS = "pools.minds"


@pytest.fixture(autouse=True, scope="session")
def minds_can_be_imported() -> None:
    folder = str(TESTS)
    if folder not in sys.path:
        sys.path.insert(0, folder)


@pytest.fixture
def make_pool(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., WorkerPool]]:
    """Makes pools; afterwards they are shut down, and nothing may be left of them."""
    shared_server(["postroom.pools.worker_main"])  # stays: it is not a part of any pool
    lines: list[Line] = []
    children: list[Child] = []
    open_line, open_child = Line.__init__, Child.__init__

    def note_line(line: Line, *given: Any) -> None:
        lines.append(line)
        open_line(line, *given)

    def note_child(child: Child, *given: Any) -> None:
        children.append(child)
        open_child(child, *given)

    monkeypatch.setattr(Line, "__init__", note_line)
    monkeypatch.setattr(Child, "__init__", note_child)
    pools: list[WorkerPool] = []

    def make(evaluator: str = "act", **settings: Any) -> WorkerPool:
        pools.append(WorkerPool(evaluator if ":" in evaluator else f"{MINDS}:{evaluator}", **settings))
        return pools[-1]

    yield make
    for pool in pools:
        pool.shutdown()
    assert [line for line in lines if line._end.fileno() != -1] == [], "lines are left open"
    assert [child for child in children if child.status != -1] == [], "pipes of processes are left open"
    ours = ("postroom pool", "postroom follow")
    until(lambda: not threads_named(ours), f"threads are left: {threads_named(ours)}")


def threads_named(beginnings: tuple[str, ...]) -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith(beginnings)]


def wait_until_begun(worker: PoolWorker) -> None:
    """Wait until a worker says that it is at work."""
    busy: list[int | None] = []
    forget = worker.on("pong", lambda event, detail: busy.append(detail["busy_with"]))
    until(lambda: worker.ping(PATIENCE_S) and busy[-1] is not None, "it does not begin")
    forget()


def wait_until_at_it(worker: PoolWorker, content: str) -> None:
    """The same, also for a worker that cannot say so: one that was stopped, or holds its interpreter."""
    if content not in ("deaf", "stop"):
        wait_until_begun(worker)
        return
    state = b"T" if content == "stop" else b"R"
    until(lambda: stat_fields(worker.pid or 0)[0] == state and not answers(worker), "it does not begin")


def answers(worker: PoolWorker) -> bool:
    """Whether a worker answers a ping at once."""
    try:
        return worker.ping(0.02) > 0
    except WorkerTimeout:
        return False


def runs(pid: int) -> bool:
    """Whether a process of that pid works, and is not just waiting to be forgotten."""
    return process_started(pid) is not None


def say(content: str, id: str = "m1") -> dict[str, Any]:
    """A message that tells `minds.act` what to do."""
    return {"id": id, "content": content, "sender_id": "tester"}
