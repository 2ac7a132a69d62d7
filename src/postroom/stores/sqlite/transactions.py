"""Transactions of the SQLite store, rolled back whatever ends them, and what all parts of the store share.

A signal handler (Ctrl-C, an alarm) may raise between any two instructions of Python: also when a `with` has not quite
begun, or is about to end. A transaction that stays open then locks every other process out, and the thread's next write
goes into it, to be lost with it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import wraps
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar

from postroom.core import crashpoints
from postroom.core.clock import Clock
from postroom.core.message import key_of
from postroom.stores.bells.bells import Bells
from postroom.stores.contract import FEED, in_the_middle

from .file import SqliteFile
from .rows import Row, Rows, StepTime


class Transaction:
    """One write transaction at one moment of the room; its end rings the bells."""

    __slots__ = ("_first", "_moment", "_steps")

    def __init__(self, steps: Transactions) -> None:
        self._steps = steps

    def __enter__(self) -> StepTime:
        steps = self._steps
        steps.file.begin()
        # under the lock, however long it took to get it: leases and expiry count from here
        # (tests/stores/test_sqlite.py)
        self._moment = moment = steps.moment()
        self._first = steps.file.numbers.here.last
        crashpoints.reached("sqlite.begun")
        return moment

    def __exit__(self, kind: object, error: object, traceback: object) -> None:
        file, moment = self._steps.file, self._moment
        if kind is not None:
            file.roll_back()
            return
        crashpoints.reached("sqlite.written")
        file.commit()
        # only where something changed
        if file.numbers.here.last != self._first or moment.one_each or len(moment.everyone) > 1:
            self._steps.ring(moment)


class Transactions:
    """What the parts of the store share: the file, the room's time, the bells, caches of keys and process numbers."""

    def __init__(self, file: SqliteFile, clock: Clock, bells: Bells | None) -> None:
        self.file = file
        self.clock = clock
        self.bells = bells
        self.rows = Rows(file.salt)
        #: The keys of messages that were claimed lately: settling them need not work the keys out of the ids.
        self.keys: dict[str, int] = {}
        #: The processes that stand in the room, by their numbers and by their names.
        self.names: dict[int, str] = {}
        self._processes: dict[str, int] = {}

    def moment(self) -> StepTime:
        """The times of a step that begins now."""
        clock = self.clock
        return StepTime((clock.steady_ns() + self.file.offset_ns) // 1_000_000, clock.wall_ms(), {FEED}, [])

    def step(self) -> Transaction:
        """One write transaction at one moment, and the bells after it."""
        return Transaction(self)

    def ring(self, moment: StepTime) -> None:
        """Wake the waiters that a committed step concerns."""
        crashpoints.reached("sqlite.committed")
        bells = self.bells  # once: another thread may close the room meanwhile
        if bells is not None:
            bells.ring(moment.everyone, moment.one_each)

    def key(self, id: str) -> int:
        """The key of an id; -1, which no message has, for ids of other rooms that brought no message here."""
        key = self.keys.get(id)
        if key is None:
            key = key_of(id, self.file.salt)
        if key is None:
            moved = self.file.execute("key_of_moved", (id,))
            key = moved[0][0] if moved else -1
        return key

    # Processes that hold or wait

    def waiter_of(self, question: str) -> int | None:
        """The number of the process that waits for the answer to a question."""
        rows = self.file.execute("waiter_of", (self.key(question),))
        return rows[0][0] if rows else None

    def learn_processes(self) -> list[Row]:
        """Read anew which processes stand in the room."""
        rows = self.file.execute("processes")
        self.names = dict(rows)
        self._processes = {name: number for number, name in rows}
        return rows

    def enrol(self, name: str | None) -> None:
        """Make a process known before the step that needs its number: no rolled-back step leaves a false one."""
        if name is not None and name not in self._processes:
            number = self.file.execute("process_add", (name,))[0][0]
            self._processes[name] = number
            self.names[number] = name

    def process_id(self, name: str) -> int:
        """The number of an enrolled process (enrolled anew, should others have forgotten it a moment ago)."""
        number = self._processes.get(name)
        return self.file.execute("process_add", (name,))[0][0] if number is None else number


class _FilePart(Protocol):
    """A part of a store that keeps a room in a file."""

    _file: SqliteFile


_K = TypeVar("_K", bound=_FilePart)
_P = ParamSpec("_P")
_T = TypeVar("_T")


def whole(method: Callable[Concatenate[_K, _P], _T]) -> Callable[Concatenate[_K, _P], _T]:
    """Let nothing of an earlier step be open when the method begins, and nothing of its own when it raised.

    tests/faults/test_interrupts.py interrupts steps at every moment at which they can be.
    """

    @wraps(method)
    def run(self: _K, /, *args: _P.args, **kwargs: _P.kwargs) -> _T:
        if self._file.left_open():
            if _is_within_another(self._file):  # it would only be done when that is, and undone with it
                raise in_the_middle()
            self._file.tidy_up()  # a call that was interrupted while it tidied up itself has left this
        try:
            return method(self, *args, **kwargs)
        except BaseException:
            self._file.tidy_up()
            raise

    return run


_CODE = whole(lambda _: None).__code__


def _is_within_another(file: SqliteFile) -> bool:
    """Whether this thread is in the middle of another step, whose transaction this is.

    A signal handler, or an object that is collected, may use the room, too.
    """
    frame: Any = sys._getframe(1).f_back  # noqa: SLF001  (inspect, which has the same, takes long to load)
    while frame is not None:
        if frame.f_code is _CODE and frame.f_locals["self"]._file is file:  # noqa: SLF001
            return True
        frame = frame.f_back
    return False
