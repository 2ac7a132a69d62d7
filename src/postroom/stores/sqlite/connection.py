"""One thread's connection to a room's file: guarded against re-entrance, and never closed in a forked child.

Python runs signal handlers between its own instructions, so also in the callbacks that SQLite makes in the middle of a
statement (`Numbers.tick`, the busy handler, the commit hook). A statement that such a handler runs on the same
connection becomes part of the statement around it: it has returned, and is undone when the outer statement fails. So
the handler gets a connection of its own; and it is refused where the outer statement holds the write lock, for which it
would wait in vain.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import apsw

from postroom.core.clock import Clock
from postroom.core.message import FRACTION_BITS, key_at
from postroom.core.system.files import lock_trouble, why_unwritable
from postroom.errors import RoomBusy, RoomClosed, RoomDamaged, RoomError, RoomUnreachable
from postroom.stores import layouts
from postroom.stores.contract import in_the_middle

from .rows import Row

#: A process that has made so many changes, without a pause of 2 ms between them, writes all the time.
_IN_A_ROW: Final = 16
_IN_A_ROW_SPAN: Final = 2 << FRACTION_BITS
#: The byte of the -shm file that a writer locks (the format of SQLite's wal-index).
_WRITE_LOCK_AT: Final = 120
#: The layout of the file that every statement here is written for (`layout.py`, `upgrade.py`).
LAYOUT: Final = 3
#: A commit that failed so may be there after a crash, all the same.
NOT_SYNCED: Final = (apsw.SQLITE_IOERR_FSYNC, apsw.SQLITE_IOERR_DIR_FSYNC)
#: What is said of a connection that another thread has closed, also between a statement and its rows.
_CLOSED: Final = (apsw.ConnectionClosedError, apsw.CursorClosedError)
#: What SQLite says where nothing can be written.
_CANNOT_WRITE: Final = (apsw.FullError, apsw.ReadOnlyError, apsw.CantOpenError, apsw.PermissionsError)
_changes: Final = apsw.Connection.changes


def in_our_words(error: apsw.Error, path: Path, connection: apsw.Connection | None = None) -> RoomError:
    """An error of SQLite as one of Postroom's, which says what to do. `connection` is the one that it came from."""
    if isinstance(error, apsw.BusyError | apsw.LockedError):
        return RoomBusy(lock_trouble(str(path), Path(f"{path}-shm"), _WRITE_LOCK_AT))
    if isinstance(error, _CLOSED):  # by another thread, which closes the room
        return RoomClosed(f"the room in {path.parent} is closed")
    if isinstance(error, apsw.CorruptError | apsw.NotADBError):
        return RoomDamaged(f"{path} is damaged ({error}); keep a copy of its folder, then restore or remove it")
    if isinstance(error, apsw.SQLError) and connection is not None:  # a table is not there under its name
        layout: Any = connection.execute("PRAGMA user_version").get
        if layout != LAYOUT:
            return layouts.upgraded(path, layout, LAYOUT)
    if getattr(error, "extendedresult", 0) in NOT_SYNCED:
        # it lies in the log, unseen; should all processes die before the next change, recovery finds it there
        return RoomUnreachable(
            f"the disk of {path} failed to sync ({error}); it was not done, but may be after a crash"
        )
    # of a full disk SQLite often says that it failed, when its shared memory cannot grow
    full = isinstance(error, apsw.IOError) and why_unwritable(path.parent, path)
    if full or isinstance(error, _CANNOT_WRITE):
        return RoomUnreachable(f"{path} cannot be written{_why_not(error, path, connection)}; nothing was changed")
    return RoomUnreachable(f"{path} could not be read or written ({error}); nothing was changed")


def _why_not(error: apsw.Error, path: Path, connection: apsw.Connection | None) -> str:
    """The cause, and what can still be done."""
    why = "its disk is full" if isinstance(error, apsw.FullError) else why_unwritable(path.parent, path)
    if why:
        return f": {why}. The room can be read but not written"
    if connection is not None and connection.readonly("main"):
        return ": it was opened read-only, when its folder could not be written. Reopen it"
    return f" ({error}); check who owns it and its folder, and its disk"


class ThreadConnection:
    """A connection that runs one statement at a time, also where a signal handler runs in the middle of one.

    The thread that owns it holds the only lasting reference, so this object goes with the thread, and closes the
    connection. `every` holds the connections themselves: in a forked child the interpreter takes the other threads'
    objects away, and closing a connection there would wait for ever for a lock of SQLite's that a thread of the parent
    held at the fork (tests/faults/test_forks.py).
    """

    __slots__ = ("_every", "_open", "_path", "_pid", "_spare", "raw", "running")

    def __init__(self, path: Path, open_raw: Callable[[], apsw.Connection], every: set[apsw.Connection]) -> None:
        self.raw = open_raw()
        #: Whether this thread is in the middle of a statement. The flag also covers the question that follows a
        #: statement (how many rows it changed): a handler's own statement would change the answer.
        self.running = False
        self._path = path
        self._open = open_raw
        self._spare: ThreadConnection | None = None
        self._every = every
        self._pid = os.getpid()
        every.add(self.raw)

    def rows(self, sql: str, bindings: Any = ()) -> list[Row]:
        """Run a statement to its end."""
        if self.running:
            return self.free().rows(sql, bindings)
        self.running = True
        try:
            return self.raw.execute(sql, bindings).fetchall()
        except apsw.Error as error:
            raise in_our_words(error, self._path, self.raw) from error
        finally:
            self.running = False

    def change(self, sql: str, bindings: Sequence[Any] = (), ask: Callable[[apsw.Connection], int] = _changes) -> int:
        """Run a statement that gives no rows.

        Returns how many rows it changed, or what else is asked right after it.
        """
        if self.running:
            return self.free().change(sql, bindings, ask)
        self.running = True
        try:
            self.raw.execute(sql, bindings)
            return ask(self.raw)
        except apsw.Error as error:
            raise in_our_words(error, self._path, self.raw) from error
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
        except apsw.Error as error:
            raise in_our_words(error, self._path, self.raw) from error
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
            self._spare = ThreadConnection(self._path, self._open, self._every)
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
        try:
            if os.getpid() == self._pid:
                self._every.discard(self.raw)
                self.raw.close()
        except (AttributeError, TypeError):  # it could not be opened; or Python ends
            pass


class Here:
    """What this process knows of a file that it has open: its users, the last number given out, how it writes."""

    __slots__ = ("in_a_row", "last", "pid", "users")

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.users: set[object] = set()
        self.last = 0
        self.in_a_row = 0  # changes without a pause


class Numbers:
    """The numbers of a room, in the order of commits: a hybrid logical clock.

    Connections refer to it, so it refers to nothing that refers to them: apsw's objects are not collected in a
    reference cycle.
    """

    __slots__ = ("_clock", "here", "offset_ns")

    def __init__(self, clock: Clock, here: Here) -> None:
        self._clock = clock
        self.here = here
        self.offset_ns = 0

    def tick(self) -> int:
        """The next number of the room: the moment, or one more than the last where the clock stands still.

        Only for holders of the write lock. Then no two are alike, and they come in the order of the commits: the steady
        clock is the same for all processes of the machine, and passing the lock on takes longer than its step.
        """
        here, number = self.here, key_at(self._clock.steady_ns() + self.offset_ns)
        if number <= here.last:
            number = here.last + 1
        here.in_a_row = here.in_a_row + 1 if number - here.last < _IN_A_ROW_SPAN else 0
        here.last = number
        return number

    def ticks(self, count: int) -> range:
        """The next numbers of the room, so many; like `tick`."""
        first = self.tick()
        self.here.last = first + count - 1
        return range(first, first + count)

    def writes_much(self) -> bool:
        """Whether this process has written a good deal just now, without a pause."""
        here = self.here
        now = key_at(self._clock.steady_ns() + self.offset_ns)
        return here.in_a_row >= _IN_A_ROW and now - here.last < _IN_A_ROW_SPAN
