"""Checkpoints and syncs: the write-ahead log is kept short beside the calls that make it long, lengthened ahead of
commits, and synced without the write lock.

Left to itself SQLite copies the log back into the file (a checkpoint) in the very commit that made it too long. That
call then waits for the disk, a tenth of a second for 32 MB; and where other processes keep writing the log does not get
short by it, so that the next call waits again, and the next. Here a thread does it, once at a time, and asks the
writers to begin the log anew at its end.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable
from contextlib import closing, suppress
from enum import Enum
from pathlib import Path
from typing import Final

import apsw

from postroom.core.clock import SYSTEM, Clock
from postroom.core.system.process import join_thread, start_thread
from postroom.errors import RoomUnreachable

from .contention import Patience
from .layout import PAGE_BYTES

#: A checkpoint is made when the log has so many pages (20 MB). More often means more work, less often a longer
#: recovery.
LONG_PAGES: Final = 10_000
#: A log as long as this (50 MB) is checkpointed by the call that made it so long, or that call waits for the thread
#: that does.
TOO_LONG_PAGES: Final = 25_000
#: SQLite cuts the log's file to this size when the log begins anew.
KEPT_BYTES: Final = 40 * 1024 * 1024
#: After a checkpoint that a reader kept from its end, the next is no sooner than this.
_PAUSE_NS: Final = 200_000_000
_HOLD_UP_S: Final = 0.01
#: With sync=full the log is made longer ahead of what is written to it, by so much (2 MB), once it has some pages: a
#: disk syncs an overwritten block faster than one that makes a file longer (bench/README.md).
AHEAD_FROM_PAGES: Final = 48
AHEAD_PAGES: Final = 1000
_FRAME_BYTES: Final = PAGE_BYTES + 24  # a page in the log
_LOG_THAT_IS_THERE: Final = apsw.SQLITE_OPEN_WAL | apsw.SQLITE_OPEN_READWRITE
_ZEROS_BYTES: Final = 64 * 1024  # SQLite's file layer takes less than 128 KB at once
#: A checkpoint gives readers and writers so long to get out of the way; meanwhile nobody writes.
_PATIENCE_S: Final = 0.05
#: `tidy` makes a checkpoint no sooner than this after the last time: heartbeats alone are not worth one each.
_TIDY_PAUSE_NS: Final = 30_000_000_000


class Fold(Enum):
    """How a checkpoint, which folds the log back into the file, went."""

    DONE = "writers start it over"
    PINNED = "another process is reading from it"
    ELSEWHERE = "another process is working on it"


class Checkpointer:
    """Calls `fold` in a thread when the log is long. Safe to use from all threads of the process that made it.

    `fold` folds the log back, over a connection of its own.
    """

    def __init__(self, fold: Callable[[], Fold], clock: Clock, *, beside: bool = True) -> None:
        self._fold = fold
        self._clock = clock
        self._beside = beside
        self._lock = threading.RLock()  # a signal handler may come in the middle of what it guards
        self._thread: threading.Thread | None = None
        self._not_before_ns = 0
        self._closed = False

    def has_pages(self, pages: int) -> None:
        """A commit left the log this long."""
        if pages < LONG_PAGES or self._clock.steady_ns() < self._not_before_ns:
            return
        if not self._beside or pages >= TOO_LONG_PAGES:
            if self._fold_once() is Fold.ELSEWHERE and self._beside:
                SYSTEM.sleep(_HOLD_UP_S)  # else writers would outrun the disk, and the log would grow without end
        else:
            self.beside(self._fold_once)

    def _fold_once(self) -> Fold:
        fold = self._fold()
        if fold is Fold.PINNED:
            self._not_before_ns = self._clock.steady_ns() + _PAUSE_NS
        return fold

    def beside(self, work: Callable[[], object]) -> None:
        """Do something to the log in a thread, if nothing is done to it just now."""
        with self._lock:
            if self._thread is not None or self._closed:
                return
            self._thread = thread = threading.Thread(target=self._run, args=(work,), name="postroom log", daemon=True)
        try:
            start_thread(thread)
        except RuntimeError:  # the interpreter is about to end, or the system has no thread to give
            self._thread = None
        except BaseException:  # interrupted: it may run, or never will
            if not thread.is_alive():
                self._thread = None
            raise

    def _run(self, work: Callable[[], object]) -> None:
        try:
            work()
        finally:
            self._thread = None

    def close(self) -> None:
        """Make no more checkpoints. One that is under way is over when this returns."""
        with self._lock:
            self._closed = True
            thread = self._thread
        if thread is not None:
            join_thread(thread, None)


class WriteAheadLog:
    """The log of one file. `connect` opens a connection to the file, for one checkpoint or lengthening."""

    #: False lets the call that made the log long fold it back: for fault tests, which watch one thread's calls to the
    #: disk.
    folds_beside = True

    def __init__(
        self, database: Path, connect: Callable[[], apsw.Connection], clock: Clock, vfs: str | None, sync: str
    ) -> None:
        self.path = Path(f"{database}-wal")
        self._connect = connect
        self._vfs = vfs
        self._next_tidy_ns = 0
        self._failed = False  # whether a sync failed, and no checkpoint has made up for it
        self.checkpointer = Checkpointer(self.fold, clock, beside=self.folds_beside)
        #: The log is made longer when it has more pages than this; only with sync=full.
        self.lengthen_from = AHEAD_FROM_PAGES if sync == "full" and self.folds_beside else LONG_PAGES

    def hook(self) -> Callable[[apsw.Connection, str, int], int]:
        """The commit hook of connections.

        It does not keep the log: apsw's objects are not collected in a reference cycle.
        """
        known = weakref.ref(self)

        def committed(_connection: apsw.Connection, _name: str, pages: int) -> int:
            log = known()
            if log is not None and pages >= log.lengthen_from:
                log.committed(pages)
            return apsw.SQLITE_OK

        return committed

    def committed(self, pages: int) -> None:
        """A commit left the log this long."""
        if pages >= LONG_PAGES:
            self.checkpointer.has_pages(pages)
        elif pages >= self.lengthen_from:
            self.checkpointer.beside(self.lengthen)

    def lengthen(self) -> None:
        """Write zeros behind the end of the log, up to its usual length. SQLite takes them for what they are: nothing.

        The write lock is held, so that nobody adds to the log meanwhile; the disk is waited for without it. An error is
        ignored: commits then lengthen the log themselves. The zeros go through SQLite's own file layer, which the tests
        of power cuts replace (tests/faults/test_power_cut.py). No lock is lost by closing: this file has none.
        """
        self.lengthen_from += AHEAD_PAGES // 4  # not sooner, should it fail
        with suppress(apsw.Error), closing(self._connect()) as connection:
            connection.set_busy_handler(Patience(_PATIENCE_S))
            log = apsw.VFSFile(self._vfs or "", connection.filename_wal, [_LOG_THAT_IS_THERE, 0])
            try:
                connection.execute("BEGIN IMMEDIATE")
                size = log.xFileSize()
                until = max(size, min(size + AHEAD_PAGES * _FRAME_BYTES, LONG_PAGES * _FRAME_BYTES))
                for at in range(size, until, _ZEROS_BYTES):
                    log.xWrite(bytes(min(_ZEROS_BYTES, until - at)), at)
                connection.execute("ROLLBACK")
                log.xSync(apsw.SQLITE_SYNC_NORMAL)
                reaches = until // _FRAME_BYTES
                self.lengthen_from = LONG_PAGES if reaches >= LONG_PAGES else reaches - AHEAD_PAGES // 4
            finally:
                log.xClose()

    def open_to_sync(self) -> apsw.VFSFile:
        """The log as `sync` takes it. Each thread has its own: the system tells a failure once for each opened file."""
        return apsw.VFSFile(self._vfs or "", str(self.path), [_LOG_THAT_IS_THERE, 0])

    def sync(self, opened: apsw.VFSFile) -> None:
        """All that was committed before this call is on the disk when it returns.

        The log is one sequence, so this covers what other processes committed before, too. Many may do it at once: the
        system makes one flush of those that come together.

        Raises RoomUnreachable where the disk fails: what was committed is seen by all, and may not survive a power cut.
        A page that failed to reach the disk is not written again by the next sync, and what follows it in the log would
        be lost with it. So from then on only a checkpoint counts, which puts all of it into the database and begins the
        log anew (tests/faults/test_io_errors.py).
        """
        if not self._failed:
            try:
                opened.xSync(apsw.SQLITE_SYNC_NORMAL)
            except apsw.Error:
                self._failed = True
            else:
                return
        if self.fold() is not Fold.DONE:
            raise RoomUnreachable(
                f"the disk of {self.path} failed to sync; it was done, but may not survive a power cut"
            )
        self._failed = False

    def fold(self) -> Fold:
        """Fold the log back into the file: a checkpoint, after which writers begin the log anew.

        Most of it beside the writers, and only the little that came meanwhile while they wait. A checkpoint that fails
        is tried again when the log has grown: nothing is lost but the space.
        """
        fold = Fold.ELSEWHERE
        with suppress(apsw.Error), closing(self._connect()) as connection:
            connection.set_wal_hook(None)
            connection.set_busy_handler(Patience(_PATIENCE_S))
            connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_PASSIVE)
            fold = Fold.PINNED
            connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_PASSIVE)
            large = self.size_bytes() > KEPT_BYTES
            connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE if large else apsw.SQLITE_CHECKPOINT_RESTART)
            fold = Fold.DONE
        return fold

    def tidy(self, connection: apsw.Connection) -> bool:
        """A checkpoint where nobody is in the way; False when it is not yet time for one.

        Twice a minute at most, unless the log is large: more often it is most of what a room costs in which nothing
        happens (tests/faults/test_idle.py).
        """
        now_ns, is_large = SYSTEM.steady_ns(), self.size_bytes() > KEPT_BYTES
        if now_ns < self._next_tidy_ns and not is_large:
            return False
        self._next_tidy_ns = now_ns + _TIDY_PAUSE_NS
        if is_large:
            self.fold()
        else:
            connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_PASSIVE)
        return True

    def size_bytes(self) -> int:
        """The size of the log's file."""
        try:
            return os.stat(self.path).st_size
        except FileNotFoundError:
            return 0
