"""One thread's connection to a room's file: guarded against re-entrance, and never closed in a forked child.

Python runs the handlers of signals between its own instructions, so also in the functions that SQLite calls in the middle of a
statement (`Numbers.tick`, the busy handler, the hook after a commit). What such a handler does on the same connection becomes
part of the statement around it: it has returned, and is undone when that statement fails. So it gets a connection of its own; and
it is refused where the statement around it holds the write lock, for which it would wait in vain.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import Any, Final

import apsw

from postroom.core.clock import Clock
from postroom.core.message import FRACTION_BITS, key_at
from postroom.stores.contract import in_the_middle

#: A process that has made so many changes, without a pause of 2 ms between them, writes all the time.
_IN_A_ROW: Final = 16
_IN_A_ROW_SPAN: Final = 2 << FRACTION_BITS

Row = tuple[Any, ...]


class ThreadConnection:
    """A connection that runs one statement at a time, also where a signal's handler runs in the middle of one.

    The thread that owns it holds the only lasting reference, so this object goes with the thread, and closes the connection.
    `every` holds the connections themselves: in a forked child the interpreter takes the other threads' objects away, and
    closing a connection there would wait for ever for a lock of SQLite's that a thread of the parent held at the fork
    (tests/faults/test_forks.py).
    """

    __slots__ = ("_every", "_open", "_pid", "_spare", "raw", "running")

    def __init__(self, open_raw: Callable[[], apsw.Connection], every: set[apsw.Connection]) -> None:
        self.raw = open_raw()
        #: Whether this thread is in the middle of a statement. It covers what is asked of the connection right after the statement, too:
        #: a handler's own statement would change that answer.
        self.running = False
        self._open = open_raw
        self._spare: ThreadConnection | None = None
        self._every = every
        self._pid = os.getpid()
        every.add(self.raw)

    def rows(self, sql: str, bindings: Any = ()) -> list[Row]:
        """Run a statement to its end. (`SqliteFile.change` and `insert` say the same in their own words: each call costs.)"""
        if self.running:
            return self.free().rows(sql, bindings)
        self.running = True
        try:
            return self.raw.execute(sql, bindings).fetchall()
        finally:
            self.running = False

    def many(self, sql: str, rows: Iterable[Sequence[Any]]) -> None:
        """Run a statement once for each row."""
        if self.running:
            self.free().many(sql, rows)
            return
        self.running = True
        try:
            self.raw.executemany(sql, rows)
        finally:
            self.running = False

    def free(self) -> ThreadConnection:
        """The connection to use now: this one, or another where this one is in the middle of a statement.

        Raises RoomBusy, and nothing was changed, where that statement holds the write lock.
        """
        if not self.running:
            return self
        if self.raw.txn_state() == apsw.SQLITE_TXN_WRITE:
            raise in_the_middle()
        if self._spare is None:
            self._spare = ThreadConnection(self._open, self._every)
        return self._spare.free()

    def in_use(self) -> set[apsw.Connection]:
        """The connections that this thread is in the middle of a statement or a transaction with."""
        used = set() if self._spare is None else self._spare.in_use()
        with suppress(apsw.ConnectionClosedError):  # it was collected before
            if self.running or self.raw.in_transaction:
                used.add(self.raw)
        return used

    def __del__(self) -> None:
        # The system is asked: in a forked child this comes before `process` has noted the new number.
        with suppress(AttributeError):  # it could not be opened
            if os.getpid() == self._pid:
                self._every.discard(self.raw)
                self.raw.close()


class Here:
    """What this process knows of a file that it has open: who has, the last number given out, how it writes."""

    __slots__ = ("in_a_row", "last", "pid", "users")

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.users: set[object] = set()
        self.last = 0
        self.in_a_row = 0  # changes without a pause


class Numbers:
    """The numbers of a room, in the order of commits. Known to connections, and so it knows nothing that knows them: apsw's objects
    are not collected in a ring of references.
    """

    __slots__ = ("_clock", "here", "offset_ns")

    def __init__(self, clock: Clock, here: Here) -> None:
        self._clock = clock
        self.here = here
        self.offset_ns = 0

    def tick(self) -> int:
        """The next number of the room: the moment, or one more than the last where the clock stands still.

        Only for who holds the write lock. Then no two are alike, and they come in the order of the commits: the steady
        clock is the same for all processes of the machine, and passing the lock on takes longer than its step.
        """
        here, number = self.here, key_at(self._clock.steady_ns() + self.offset_ns)
        if number <= here.last:
            number = here.last + 1
        here.in_a_row = here.in_a_row + 1 if number - here.last < _IN_A_ROW_SPAN else 0
        here.last = number
        return number

    def writes_much(self) -> bool:
        """Whether this process has written a good deal just now, without a pause."""
        here = self.here
        now = key_at(self._clock.steady_ns() + self.offset_ns)
        return here.in_a_row >= _IN_A_ROW and now - here.last < _IN_A_ROW_SPAN
