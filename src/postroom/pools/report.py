"""The status report of pools to the rooms that they work in: one cell for each, written by the pool while it lives.

    pool/<id>   {"name", "evaluator", "process", "since_ms", "beat_ms", "failure", "workers": [...]}

A pool writes its cell when a worker's state changes, and every few seconds while its figures do: never in the thread
that looks after the workers, and once for many changes that come together. The cell is deleted when the pool ends or
lets go of the room. One that was killed cannot do that: its process is seen to be gone, nobody is shown its cell any
more, and the next pool of the room deletes it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

from postroom.core.chore import Chore
from postroom.core.clock import SYSTEM, iso
from postroom.core.config import HEARTBEAT_S
from postroom.core.system.process import current_pid
from postroom.errors import PostroomError
from postroom.mail.gateway import Gateway
from postroom.stores.contract import Cell

if TYPE_CHECKING:
    from .worker import PoolWorker

CELLS: Final = "pool/"
#: Changes that come within this time are written as one, in seconds.
FOLD_S: Final = 0.05
#: A pool that has nothing new to tell says that it is there, after so long.
BEAT_S: Final = 2 * HEARTBEAT_S
#: Closing waits no longer than this for the last word of a pool to be written, in seconds.
LAST_WORD_S: Final = 0.5
#: A pool whose process nobody here can see counts as gone after this silence, in seconds.
SILENCE_S: Final = 6 * HEARTBEAT_S
#: Of how a process ended, and of why the pool failed, so much is told.
MAX_TEXT: Final = 400
#: Of the workers of one pool, so many are told of one by one.
MAX_WORKERS: Final = 100
#: What a worker's line counts, of all that its figures do.
COUNTED: Final = ("done", "failed", "restarts", "recycled")

Value = dict[str, Any]


class PoolWorkerInfo(NamedTuple):
    """One worker of a pool: its state and process, its counts, and how a process of it ended last when not told to."""

    name: str
    state: str
    pid: int | None
    waiting: int
    done: int
    failed: int
    restarts: int
    recycled: int
    last_exit: str | None
    last_exit_ms: int | None


class PoolInfo(NamedTuple):
    """One pool that works in a room. `more`: so many workers are not listed."""

    id: str
    name: str
    evaluator: str
    process: str
    since: str
    failure: str | None
    workers: list[PoolWorkerInfo]
    more: int


class Reported(Protocol):
    """A pool, as far as a room is told of it (`pool.WorkerPool`)."""

    @property
    def workers(self) -> Mapping[str, PoolWorker]: ...
    @property
    def evaluator(self) -> str: ...
    @property
    def failure(self) -> Exception | None: ...


def pools(gateway: Gateway) -> list[PoolInfo]:
    """The pools that work in the room at this moment, the oldest first. Changes nothing."""
    found = [cell for cell in gateway.store.cell_scan(CELLS) if is_live(gateway, cell)]
    return [_info(cell) for cell in sorted(found, key=lambda cell: (cell.value["since_ms"], cell.name))]


def is_live(gateway: Gateway, cell: Cell) -> bool:
    """Whether the pool of a cell still runs, as far as can be seen from here."""
    seen = gateway.store.process_alive(cell.value["process"])
    if seen is None:  # on another machine: it is judged by its last word
        return abs(gateway.clock.wall_ms() - int(cell.value["beat_ms"])) < SILENCE_S * 1000
    return seen


def _info(cell: Cell) -> PoolInfo:
    told = cell.value
    return PoolInfo(
        id=cell.name.removeprefix(CELLS),
        since=iso(told["since_ms"]),
        workers=[PoolWorkerInfo(**worker) for worker in told["workers"]],
        **{name: told[name] for name in ("name", "evaluator", "process", "failure", "more")},
    )


class Report:
    """Tells one room of one pool, from now until it is closed, the room is, or the process ends.

    Its own thread does the writing: a room that is busy or away holds up neither the workers nor their callers.
    A write that fails is made good by the next one.
    """

    def __init__(self, gateway: Gateway, pool: Reported, name: str | None) -> None:
        self.name = name
        self.gateway = gateway
        self._pool = pool
        self._since_ms = gateway.clock.wall_ms()
        self._steady_s = SYSTEM.steady_ns() / 1e9  # exits are told by the steady clock
        self._cell = f"{CELLS}{self._since_ms:x}-{current_pid()}-{round(gateway.clock.random() * 2**32):08x}"
        self._last: Value | None = None
        self._forget: Callable[[], None] = gateway.at_close(self.close)
        self._chore = Chore(
            "postroom pool report",
            self._tell,
            gateway.clock,
            every_s=HEARTBEAT_S,
            first_s=0,
            gather_s=FOLD_S,
            last=self._take_back,
        )
        self._chore.start()

    @property
    def closed(self) -> bool:
        return self._chore.closed

    def call_it(self, name: str | None) -> None:
        """The pool has that name from now on, if it had none."""
        if self.name is None and name is not None:
            self.name = name
            self.stir()

    def stir(self) -> None:
        """Something changed. Returns at once."""
        self._chore.nudge()

    def close(self) -> None:
        """Take the pool out of the room. After: its cell is gone, or will be as soon as the room answers.

        Safe to call twice.
        """
        forget, self._forget = self._forget, lambda: None  # nothing points back here then: its pipes are closed at once
        forget()
        self._chore.close(LAST_WORD_S)

    # In its own thread

    def _tell(self) -> None:
        try:
            if self._last is None:
                self._clear_away()
        finally:
            self._write()

    def _take_back(self) -> None:
        with suppress(PostroomError):  # the room is over, busy, or its server is away
            self.gateway.store.cell_write(self._cell, None)

    def _clear_away(self) -> None:
        """Delete what pools that were killed left behind."""
        for cell in self.gateway.store.cell_scan(CELLS):
            if not is_live(self.gateway, cell):
                self.gateway.store.cell_write(cell.name, None, expect=cell.version)

    def _write(self) -> None:
        now_ms = self.gateway.clock.wall_ms()
        value, last = self._value(now_ms), self._last
        if last is None or value != last | {"beat_ms": now_ms} or now_ms - last["beat_ms"] >= BEAT_S * 1000:
            self.gateway.store.cell_write(self._cell, value)
            self._last = value

    def _value(self, now_ms: int) -> Value:
        pool = self._pool
        workers = list(pool.workers.values())
        return {
            "name": self.name or pool.evaluator,
            "evaluator": pool.evaluator,
            "process": self.gateway.process,
            "since_ms": self._since_ms,
            "beat_ms": now_ms,
            "failure": None if pool.failure is None else str(pool.failure)[:MAX_TEXT],
            "workers": [self._line(worker) for worker in workers[:MAX_WORKERS]],
            "more": max(0, len(workers) - MAX_WORKERS),
        }

    def _line(self, worker: PoolWorker) -> Value:
        """What is told of one worker."""
        counts = worker.figures.counts
        last = worker.exits[-1] if worker.exits else None
        return {
            "name": worker.name,
            "state": worker.state,
            "pid": worker.pid,
            "waiting": worker.load,
            **{name: counts.get(name, 0) for name in COUNTED},
            "last_exit": None if last is None else last.text[:MAX_TEXT],
            "last_exit_ms": None if last is None else self._since_ms + round((last.at_s - self._steady_s) * 1000),
        }
