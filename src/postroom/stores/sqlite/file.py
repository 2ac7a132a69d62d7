"""One open SQLite file: a connection for each thread, statements by name, transactions, and whether it is still there.

Opening is in `layout.py`, checkpoints are in `wal.py`. The rules, each of which somebody once broke with loss of data:

- Nobody else opens the database or its -shm: closing any descriptor of them drops this process's locks. The -wal has
  none.
- A write is one autocommit statement or begins with BEGIN IMMEDIATE; a read never becomes a write.
- No read transaction outlives the call that needed it, so a checkpoint can always reach the end of the log.
- A room that cannot be written is opened to be looked at (`looking.py`); each write says why it cannot be.
- A connection belongs to one thread, and runs one statement at a time (`connection.py`); a process that forked is told
  to open the room anew.
"""

from __future__ import annotations

import os
import sys
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from itertools import chain
from pathlib import Path
from typing import Any, Final

import apsw
import msgspec

from postroom.core.clock import SYSTEM, Clock
from postroom.core.config import Config
from postroom.core.system.process import current_pid
from postroom.errors import RoomBusy, RoomClosed, RoomError, RoomGone, RoomUnreachable, RoomUnsafe
from postroom.stores.liveness import Attendance

from . import looking
from .connection import Here, Numbers, ThreadConnection, in_our_words
from .contention import Crowd, Patience
from .layout import DATABASE, LOCK, ROWS_AT_ONCE, DatabaseLayout, at_once, opening, prepare, read_salt, refuse_unsafe
from .rows import Row
from .wal import KEPT_BYTES, WriteAheadLog

#: Others opened the room or closed it while it was opened to be looked at: so often it is tried anew.
_WAYS_TRIED: Final = 20
#: On macOS an fsync leaves what was written in the disk's own memory.
_FULL_SYNC: Final = "; PRAGMA fullfsync = 1" if sys.platform == "darwin" else ""
_WRITTEN: Final = "was opened or closed by others, which can write it,"
_last_rowid = apsw.Connection.last_insert_rowid


class _ThreadConnections(threading.local):
    """What a thread has of a file: its connection, from the first time that it is needed."""

    connection: ThreadConnection | None = None
    log: tuple[int, int] | None = None  # the identity of the write-ahead log that its connection has open
    log_to_sync: apsw.VFSFile | None = None  # the same, where its commits wait for the disk
    unsynced = False  # whether they do not wait just now


class SqliteFile:
    """The room's database file.

    `execute` runs a named statement; `begin` and `commit` make several of them one step.
    """

    def __init__(self, folder: Path, config: Config, clock: Clock, vfs: str | None = None) -> None:
        self.folder = folder
        self.path = folder / DATABASE
        self._config = config
        self._waits_for_disk = config.sync == "full"
        self._vfs = vfs
        self._mine = _ThreadConnections()
        #: Those of all threads; strong references: see ThreadConnection.
        self._connections: set[apsw.Connection] = set()
        self.log = WriteAheadLog(self.path, self._connect, clock, vfs, config.sync)
        self._crowd = Crowd(folder / LOCK)
        self._pid = current_pid()
        self._closed = False
        self._gone: str | None = None  # how the file was lost
        self._seen_bytes = 0  # how long it was at the last look
        self.numbers = Numbers(clock, Here(self._pid))
        #: Why the file is only looked at, where it cannot be written, and how (`looking.py`).
        self.why_only_looking = ""
        self._way: looking.Way | None = None
        kind = refuse_unsafe(folder)
        try:
            with opening(folder):
                layout = self._prepare(prepare, kind, clock)
        except RoomUnreachable:
            self.why_only_looking = looking.why_only_looking(self.path)
            if not self.why_only_looking:
                raise
            layout = self._look(kind, clock)
        self.salt, self.statements, self.offset_ns, last = layout
        self._identity = _identity(self.path)
        self.numbers.offset_ns = self.offset_ns
        self.numbers.here = self._come_in()
        self.numbers.here.last = max(self.numbers.here.last, last)
        _files.add(self)

    def _prepare(self, prepare: Callable[..., DatabaseLayout], kind: str, clock: Clock) -> DatabaseLayout:
        self._refuse_inherited()
        self.attendance = Attendance(self.folder, kind)
        try:
            return prepare(self.path, self._connect, clock, self.attendance)
        except BaseException:
            self.attendance.close()
            raise

    def _look(self, kind: str, clock: Clock) -> DatabaseLayout:
        """Open the file to look at it alone. Others may open or close the room meanwhile: then there is another way."""
        way = looking.way_to_look(self.path)
        for _ in range(_WAYS_TRIED):
            self._way = way
            try:
                layout = self._prepare(looking.look_at, kind, clock)
            except RoomError:
                way = looking.way_to_look(self.path)
                if way == self._way:
                    raise
                continue
            way = looking.way_to_look(self.path)
            if way == self._way:
                return layout
            self.attendance.close()
        raise RoomBusy(
            f"{self.path} is constantly opened and closed by other processes, and can only be read; try again"
        )

    def _come_in(self) -> Here:
        """Count as a user of the file in this process, until it is closed, or forgotten without that."""
        me = object()
        # first: an interrupt from here on leaves nothing behind
        self._leave = weakref.finalize(self, _leave, self._identity, me)
        self._leave.atexit = False
        here = _opened.setdefault(self._identity, Here(self._pid))
        here.users.add(me)
        return here

    def _refuse_inherited(self) -> None:
        """Refuse a file that was open when this process was forked: SQLite's notes on its locks came along, and lie.

        It would believe to hold locks that only the parent holds, and write where nobody reads
        (tests/stores/test_sqlite.py shows the loss).
        """
        before = _opened.get(_identity(self.path))
        if before is not None and before.pid != self._pid:
            raise RoomUnsafe(
                f"the room in {self.folder} was open when this process was forked off by {before.pid}, and SQLite cannot open "
                "a file twice across a fork; fork before you open the room, or start processes with spawn"
            )

    # Connections

    def _connect(self) -> apsw.Connection:
        connection = self._open(apsw.SQLITE_OPEN_READWRITE)
        # Without it this SQLite plans claims anew at every call, three times slower (tests/stores/test_sqlite.py counts
        # it).
        connection.config(apsw.SQLITE_DBCONFIG_ENABLE_QPSG, 1)
        # What the file's own views, checks and indexes may call: nothing that has an effect.
        connection.config(apsw.SQLITE_DBCONFIG_TRUSTED_SCHEMA, 0)
        connection.config(apsw.SQLITE_DBCONFIG_DEFENSIVE, 1)
        connection.set_busy_handler(Patience(self._config.busy_timeout_s))
        tick: Any = self.numbers.tick  # takes no arguments, and gets none
        connection.create_scalar_function("tick", tick, 0)
        connection.transaction_mode = "IMMEDIATE"
        connection.execute(
            f"PRAGMA synchronous = {'FULL' if self._waits_for_disk else 'NORMAL'}; PRAGMA mmap_size = 0; "
            f"PRAGMA wal_autocheckpoint = 0; PRAGMA journal_size_limit = {KEPT_BYTES}{_FULL_SYNC}"
        ).fetchall()
        connection.set_wal_hook(self.log.hook())
        return connection

    def _open(self, how: int) -> apsw.Connection:
        path, flags = str(self.path), how | apsw.SQLITE_OPEN_NOMUTEX
        if self._way is not None:
            path, flags = self._way.uri, apsw.SQLITE_OPEN_READONLY | apsw.SQLITE_OPEN_URI | apsw.SQLITE_OPEN_NOMUTEX
        return apsw.Connection(path, flags=flags, vfs=self._vfs)

    def connection(self) -> apsw.Connection:
        """This thread's connection."""
        return (self._mine.connection or self._connected()).free().raw

    def _connected(self) -> ThreadConnection:
        """For a thread that has none yet; or one of a room that was closed, or of a process that forked."""
        how = self.path, self._connect_thread, self._connections
        if self._way is None or self._way.written_at_ns is None:
            connection = ThreadConnection(*how)
        else:
            connection = looking.CheckedConnection(*how, self._check_unwritten)
        self._mine.connection = connection
        return connection

    def _connect_thread(self) -> apsw.Connection:
        if self._closed or self.inherited:
            raise self._unusable()
        self.check_there()
        try:
            connection = self._connect()
            found = read_salt(connection)  # which also opens the log
            to_sync = self.log.open_to_sync() if self._waits_for_disk and self._way is None else None
        except apsw.Error as error:
            self.check_there()  # removed a moment ago?
            if self._way not in (None, looking.way_to_look(self.path)):
                self.is_gone(_WRITTEN)
            raise in_our_words(error, self.path) from error
        if found != self.salt or _identity(self.path) != self._identity:
            connection.close()
            self.is_gone("was replaced by another room's file")
        self._mine.log, self._mine.log_to_sync = _identity(self.log.path), to_sync
        # with sync=full each write waits for the disk: there is nothing to be gained by resting
        crowd = self._crowd if to_sync is None else None
        connection.set_busy_handler(Patience(self._config.busy_timeout_s, crowd, self.numbers.writes_much))
        if to_sync is not None:
            # it waits by itself, when its commit has left the write lock to others (docs/design/sqlite.md)
            connection.execute("PRAGMA synchronous = NORMAL").fetchall()
            connection.set_wal_hook(self._commit_hook())
        return connection

    def _commit_hook(self) -> Callable[[apsw.Connection, str, int], int]:
        """The commit hook of connections whose commits wait for the disk. It does not keep the file, like the log's."""
        known = weakref.ref(self)

        def committed(_connection: apsw.Connection, _name: str, pages: int) -> int:
            file = known()
            if file is not None:
                if pages >= file.log.lengthen_from:
                    file.log.committed(pages)
                mine = file._mine  # noqa: SLF001  (it is its own)
                if mine.log_to_sync is not None and not mine.unsynced:
                    file.log.sync(mine.log_to_sync)
            return apsw.SQLITE_OK

        return committed

    def let_go_of_inherited(self) -> None:
        """Have no connections any more, and close none: for the copy of this object in a process that was forked off.

        Not even when the interpreter ends: closing would make a checkpoint, or delete the log, though it may be another
        by that time, with messages of which nobody here knows (tests/stores/test_sqlite.py); and a thread of the parent
        may have held SQLite's locks when it forked.
        """
        _Kept(self._mine, self._connections).keep_for_ever()
        self._mine, self._connections = _ThreadConnections(), set()

    @property
    def inherited(self) -> bool:
        """Whether this is the copy of another process's object, after a fork."""
        return self._pid != current_pid()

    def _unusable(self) -> RoomClosed:
        if self._closed:
            return RoomClosed(f"the room in {self.folder} is closed")
        return RoomClosed(
            f"the room in {self.folder} was opened by process {self._pid}, from which this process {current_pid()} was forked; "
            "fork before you open the room, or start processes with spawn"
        )

    # Statements

    def execute(self, name: str, bindings: Sequence[Any] = ()) -> list[Row]:
        """Run one named statement to its end; inside a transaction as part of it, else on its own."""
        return (self._mine.connection or self._connected()).rows(self.statements[name], bindings)

    def change(self, name: str, bindings: Sequence[Any]) -> int:
        """Run one named statement that gives no rows. Returns how many rows it changed."""
        return (self._mine.connection or self._connected()).change(self.statements[name], bindings)

    def insert(self, bindings: Sequence[Any]) -> int:
        """Store one message. Returns its key."""
        return (self._mine.connection or self._connected()).change(self.statements["insert"], bindings, _last_rowid)

    def insert_many(self, name: str, rows: Sequence[Row]) -> None:
        """Store messages whose keys are given, by the statement of that name. In a step."""
        connection, one = self._mine.connection or self._connected(), self.statements[name]
        count = len(rows) - len(rows) % ROWS_AT_ONCE
        if count:
            starts = range(0, count, ROWS_AT_ONCE)
            connection.many(at_once(one), [[*chain.from_iterable(rows[at : at + ROWS_AT_ONCE])] for at in starts])
        connection.many(one, rows[count:])

    def select(self, sql: str, bindings: Any = ()) -> list[Row]:
        """Run a reading statement that was put together."""
        return (self._mine.connection or self._connected()).rows(sql, bindings)

    # Transactions

    def begin(self) -> None:
        """Take the write lock: everything executed until `commit` is one step."""
        (self._mine.connection or self._connected()).change("BEGIN IMMEDIATE")

    def commit(self) -> None:
        """Keep the step.

        On failure nothing of it is kept, unless the error says that it was done: then the disk failed to sync it.
        """
        try:
            (self._mine.connection or self._connected()).change("COMMIT")
        except RoomError:
            self.roll_back()
            raise

    def roll_back(self) -> None:
        """Keep nothing of the step. Never raises: the first error is the one to tell."""
        connection = (self._mine.connection or self._connected()).free()
        with suppress(RoomError, apsw.ConnectionClosedError):
            if connection.raw.in_transaction:
                connection.rows("ROLLBACK")

    @contextmanager
    def unsynced(self) -> Iterator[None]:
        """Let the steps inside be kept by the system, and on disk only with the next step outside (for sync=full).

        Only in methods that are `whole`: where the block raises, `tidy_up` ends this.
        """
        self._mine.unsynced = True
        yield
        self._mine.unsynced = False

    def sync_what_is_there(self) -> None:
        """For a repeat that changes nothing: with sync=full, what others wrote is on the disk, whether they waited or not.

        Raises RoomUnreachable where the disk fails: it may not survive a power cut.
        """
        self.connection()  # which opens the log
        if self._mine.log_to_sync is not None:
            self.log.sync(self._mine.log_to_sync)

    def left_open(self) -> bool:
        """Whether this thread has begun something that it has not ended yet.

        Raises RoomBusy in the middle of a statement that writes: there nothing else can be done.
        """
        mine = self._mine
        connection = mine.connection or self._connected()
        if connection.running:
            connection = connection.free()
        try:
            return connection.raw.in_transaction or mine.unsynced
        except apsw.ConnectionClosedError as error:
            raise in_our_words(error, self.path) from None

    def tidy_up(self) -> None:
        """Leave nothing open that this thread has begun (see `whole`).

        Never raises: the error that ended it is told.
        """
        with suppress(RoomError):  # closed meanwhile
            self.roll_back()
            self._mine.unsynced = False

    # Looking after the file

    @contextmanager
    def _read_only(self) -> Iterator[apsw.Connection]:
        """A connection of its own that cannot write."""
        self.connection()  # closed and forked rooms say so
        try:
            with closing(self._open(apsw.SQLITE_OPEN_READONLY)) as connection:
                yield connection
        finally:
            self._check_unwritten()

    def read_only(self, sql: str, bindings: Any = ()) -> tuple[list[str], list[Row]]:
        """Run somebody's own SELECT on a connection that cannot write."""
        names: list[str] = []

        def note_names(running: apsw.Cursor, *_: object) -> bool:
            columns = [column[0] for column in running.get_description()]
            if names and columns:  # the rows of both would stand below the names of the second
                raise RoomError("only one query is answered: write one SELECT")
            names[:] = columns or names  # a comment behind it has none
            return True

        try:
            with self._read_only() as connection:
                connection.pragma("query_only", True)
                connection.set_authorizer(_only_reading)
                cursor = connection.cursor()
                cursor.exec_trace = note_names
                return names, cursor.execute(sql, bindings).fetchall()
        except apsw.AuthError as error:
            raise RoomError("only reading is allowed here: write a single SELECT") from error
        except (apsw.BusyError, apsw.CorruptError, apsw.IOError) as error:
            raise in_our_words(error, self.path) from error
        except (apsw.Error, TypeError, UnicodeEncodeError) as error:  # also a value that SQLite has no type for
            raise RoomError(f"the query failed: {error}") from error

    def faults(self, limit_s: float) -> list[str] | None:
        """What is wrong with the file: nothing is []; None when it could not be read through in that time."""
        until_ns = SYSTEM.steady_ns() + round(limit_s * 1e9)
        try:
            with self._read_only() as connection:
                connection.set_progress_handler(lambda: SYSTEM.steady_ns() > until_ns, 10_000)
                found = [str(row[0]) for row in connection.execute("PRAGMA quick_check")]
                return [] if found == ["ok"] else found
        except apsw.InterruptError:
            return None
        except apsw.CorruptError as error:
            return [str(error)]
        except apsw.Error as error:
            raise in_our_words(error, self.path) from error

    def copy_to(self, folder: Path) -> None:
        """Copy the file as it is at one moment, while others use it, into a folder: a room that nobody has open.

        By SQLite's own backup. Claims and waits of the copy belong to no process: they end by time.
        """
        copy, new = folder / self.path.name, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        try:
            os.close(os.open(copy, new, 0o600))
            with self._read_only() as source, closing(apsw.Connection(str(copy))) as target:
                source.set_busy_timeout(round(self._config.busy_timeout_s * 1000))
                with target.backup("main", source, "main") as backup:
                    backup.step()
                target.execute("DELETE FROM processes").fetchall()
        except apsw.Error as error:
            raise in_our_words(error, self.path) from error
        except OSError as error:
            raise RoomUnreachable(f"no copy of {self.path} can be made: {error.strerror}") from error

    def data_version(self) -> tuple[int, int]:
        """What changes when somebody has written: another connection, or one of this process."""
        return int(self.select("PRAGMA data_version")[0][0]), self.numbers.here.last

    def check_there(self) -> None:
        """Raise RoomGone when the file at our path, or its log, is no longer the open one; from then on always."""
        if self._gone is not None:
            raise RoomGone(self._gone)
        how = self._how_lost()
        if how is not None:
            self.is_gone(how)

    def _check_unwritten(self) -> None:
        """Raise RoomGone when a file that is read as it lies was written meanwhile: what was read may be torn."""
        way = self._way
        if way is not None and way.written_at_ns not in (None, os.stat(self.path).st_mtime_ns):
            self.is_gone(_WRITTEN)

    def _how_lost(self) -> str | None:
        """What happened to the file, as far as its names and its size tell; None when nothing did, or nobody can tell.

        A backup that is copied over it keeps its name and number. It is mostly smaller, and Postroom never makes the
        file smaller; and the log is deleted with it, so that this process would go on in a log that nobody else reads.
        The log stays for as long as a connection is open: each thread knows that of its own.
        """
        least_bytes = self._seen_bytes  # read before the look: another thread may see the file grow meanwhile
        try:
            about = os.stat(self.path)
            log = _identity(self.log.path)
        except (FileNotFoundError, NotADirectoryError):
            return "was deleted or moved away"
        except OSError:
            return None
        if (about.st_dev, about.st_ino) != self._identity:
            return "was replaced by another file"
        if self._way is not None and self._way.written_at_ns is not None:
            is_same = self._way.written_at_ns == about.st_mtime_ns and self._mine.log in (None, log)
            return None if is_same else _WRITTEN
        if about.st_size < least_bytes:
            return "was truncated, as when a backup is copied over it,"
        if self._mine.log not in (None, log):
            return "lost its log, which was deleted or replaced"
        self._seen_bytes = about.st_size
        return None

    def is_connected(self) -> bool:
        """Whether this thread has a connection."""
        return self._mine.log is not None

    def is_gone(self, how: str) -> None:
        """Raise RoomGone, from now on always."""
        self._gone = f"{self.path} {how} while the room was open; close the room and reopen it"
        raise RoomGone(self._gone)

    def tidy(self) -> None:
        """Make a checkpoint where nobody is in the way, now and then, and let SQLite refresh its statistics."""
        try:
            if self.log.tidy(self.connection()):
                self.select("PRAGMA optimize")
        except (apsw.BusyError, apsw.LockedError, RoomBusy):
            return  # somebody reads or writes: the next round will do
        except apsw.Error as error:
            raise in_our_words(error, self.path) from error

    def close(self) -> None:
        """Close every thread's connection. Safe to call twice, and in a fork, where nothing may be closed.

        A call that was interrupted is brought to its end by the next one.
        A connection in the middle of a statement stays open until that is over: then nobody knows it any more, and it
        closes itself.
        """
        if self.inherited:
            self._closed = True
            return
        self.log.checkpointer.close()
        self._closed = True
        mine = self._mine.connection
        in_use = set() if mine is None else mine.in_use()
        while self._connections:
            connection = self._connections.pop()
            if connection not in in_use:
                with suppress(apsw.Error, apsw.ThreadingViolationError):
                    connection.close()
        self._mine = _ThreadConnections()
        self._crowd.close()
        self.attendance.close()
        self._leave()


class _Kept(msgspec.Struct, gc=False):
    """Never let go, not even when the interpreter ends: it refers to itself, unknown to the garbage collector."""

    mine: _ThreadConnections
    connections: set[apsw.Connection]
    module: Any = apsw  # which closes all connections when it goes
    itself: Any = None

    def keep_for_ever(self) -> None:
        self.itself = self


_files: weakref.WeakSet[SqliteFile] = weakref.WeakSet()


def _forked() -> None:
    """In a process that was just forked off, no thread has a connection."""
    for file in tuple(_files):
        file.let_go_of_inherited()


os.register_at_fork(after_in_child=_forked)

#: Files that are open in this process (or were, in the one it was forked from), by device and inode.
_opened: dict[tuple[int, int], Here] = {}


def _leave(identity: tuple[int, int], me: object) -> None:
    """One user of a file in this process has it open no more.

    A file that was open before a fork stays known: it is refused.
    """
    here = _opened.get(identity)
    if here is not None and here.pid == os.getpid():
        here.users.discard(me)
        if not here.users:
            _opened.pop(identity, None)


def _identity(path: Path) -> tuple[int, int]:
    """What the file at a path is, whatever it is called; (0, 0) when there is none."""
    try:
        about = os.stat(path)
    except (FileNotFoundError, NotADirectoryError):
        return (0, 0)
    return (about.st_dev, about.st_ino)


def _only_reading(operation: int, *_: Any) -> int:
    allowed = (apsw.SQLITE_SELECT, apsw.SQLITE_READ, apsw.SQLITE_FUNCTION, apsw.SQLITE_RECURSIVE)
    return apsw.SQLITE_OK if operation in allowed else apsw.SQLITE_DENY
