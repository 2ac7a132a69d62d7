"""One SQLite file, opened safely: connections, steps, numbers, and errors in Postroom's words.

With `sqlite_connection` this is the only module that touches apsw. The rules it keeps, each of which somebody once broke with loss of data:

- Nobody else opens the database or its -shm: closing any descriptor of them drops this process's locks. (The -wal has none.)
- A write is one autocommit statement or begins with BEGIN IMMEDIATE; a read never becomes a write.
- No read transaction outlives the call that needed it, so the log can always be folded back into the file.
- A connection belongs to one thread, and runs one statement at a time (`sqlite_connection`); a process that forked is told to open
  the room anew.
"""

from __future__ import annotations

import fcntl
import os
import re
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any, Final

import apsw
import msgspec

from postroom.core.clock import SYSTEM, Clock
from postroom.core.config import Config
from postroom.core.message import FRACTION_BITS, SALT_BITS, room_start_ms
from postroom.core.system.files import (
    NETWORK_FILE_SYSTEMS,
    file_system_type,
    lock_trouble,
    make_private_folder,
    sync_path_to,
)
from postroom.core.system.process import current_pid
from postroom.errors import RoomBusy, RoomClosed, RoomDamaged, RoomError, RoomGone, RoomUnreachable, RoomUnsafe
from postroom.stores.liveness import Attendance

from .connection import Here, Numbers, Row, ThreadConnection
from .contention import Crowd, Patience
from .wal import AHEAD_FROM_PAGES, AHEAD_PAGES, LONG_PAGES, Checkpointer, Fold

DATABASE: Final = "messages.db"
SCHEMA_VERSION: Final = 1
#: "POST" in the file's header, so that `file` and others can tell what it is.
APPLICATION_ID: Final = 0x504F5354
#: A claim or an ack changes a few rows here and there: small pages are less to write (bench/README.md).
PAGE_BYTES: Final = 2048
WAL_PAGES: Final = LONG_PAGES
_FRAME_BYTES: Final = PAGE_BYTES + 24  # a page in the log
WAL_KEPT_BYTES: Final = 40 * 1024 * 1024
_LOG_THAT_IS_THERE: Final = apsw.SQLITE_OPEN_WAL | apsw.SQLITE_OPEN_READWRITE
_ZEROS_BYTES: Final = 64 * 1024  # SQLite's file layer takes less than 128 KB at once
#: The byte of the -shm file that a writer locks (the format of SQLite's wal-index).
_WRITE_LOCK_AT: Final = 120
#: Who folds the log back gives others so long to get out of the way; meanwhile nobody writes.
_FOLD_PATIENCE_S: Final = 0.05
#: The file is tidied no sooner than this after the last time: heartbeats alone are not worth a fold each.
_TIDY_PAUSE_NS: Final = 30_000_000_000
_FOREIGN: Final = """SELECT type, name FROM sqlite_schema WHERE type = 'trigger'
    OR (type = 'view' AND name COLLATE NOCASE IN ('meta', 'mail', 'processes', 'cells', 'tally', 'channel_subscriptions'))"""


def sqlite_is_safe(version: str) -> bool:
    """Whether that SQLite keeps a write-ahead log with many writers whole.

    3.7.0 to 3.51.2 can lose a commit when two checkpoints race it; 3.44.6 and 3.50.7 have the repair, 3.52.0 was withdrawn.
    """
    parts = tuple(int(part) for part in version.split("."))
    if parts[:2] in ((3, 44), (3, 50)):
        return parts >= ((3, 44, 6) if parts[1] == 44 else (3, 50, 7))
    return parts >= (3, 51, 3) and parts[:2] != (3, 52)


def sqlite_version() -> str:
    """The version of the SQLite that rooms are kept with."""
    return apsw.sqlite_lib_version()


def load_statements(salt: int, columns: str) -> dict[str, str]:
    """The statements of schema.sql by name, with their placeholders filled in."""
    text = Path(__file__).with_name("schema.sql").read_text(encoding="utf-8")
    found: dict[str, str] = {}
    for part in text.split("\n-- name: ")[1:]:
        name, _, body = part.partition("\n")
        found[name.strip()] = body.strip()
    given = {"salt": str(salt), "columns": columns}
    return {name: _fill_in(body, {**found, **given}) for name, body in found.items()}


def _fill_in(text: str, parts: dict[str, str]) -> str:
    """Put the parts that a statement names in braces into it, and theirs into those."""
    return re.sub(r"\{(\w+)\}", lambda mark: _fill_in(parts[mark[1]], parts), text)


def in_our_words(error: apsw.Error, path: Path) -> RoomError:
    """What SQLite said, as an error that says what to do."""
    if isinstance(error, apsw.BusyError | apsw.LockedError):
        return RoomBusy(lock_trouble(str(path), Path(f"{path}-shm"), _WRITE_LOCK_AT))
    if isinstance(error, apsw.CorruptError | apsw.NotADBError):
        return RoomDamaged(f"{path} is damaged ({error}); keep a copy of its folder, then restore or remove it")
    if isinstance(error, apsw.FullError):
        return RoomUnreachable(f"the disk of {path} is full; nothing was changed")
    if isinstance(error, apsw.ReadOnlyError | apsw.CantOpenError | apsw.PermissionsError):
        return RoomUnreachable(f"{path} cannot be written ({error}); check who owns it and its folder, and its disk")
    if getattr(error, "extendedresult", 0) in (apsw.SQLITE_IOERR_FSYNC, apsw.SQLITE_IOERR_DIR_FSYNC):
        # it lies in the log, unseen; should all processes die before the next change, recovery finds it there
        return RoomUnreachable(f"the disk of {path} failed to sync ({error}); it is not done, but may be after a crash")
    return RoomUnreachable(f"{path} could not be read or written ({error}); nothing was changed")


class _ThreadConnections(threading.local):
    """What a thread has of a file: its connection, from the first time that it is asked for."""

    log: tuple[int, int] | None = None  # the identity of the write-ahead log that its connection has open
    unsynced = False  # whether its commits do not wait for the disk just now, where they should

    def __init__(self, open_connection: Callable[[], ThreadConnection]) -> None:
        self._open_connection = open_connection

    def __getattr__(self, name: str) -> ThreadConnection:
        if name != "connection":
            raise AttributeError(name)
        connection = self.connection = self._open_connection()
        return connection

    def in_use(self) -> set[apsw.Connection]:
        """The connections that this thread is in the middle of something with. It need not have any."""
        mine: ThreadConnection | None = self.__dict__.get("connection")
        return set() if mine is None else mine.in_use()


class SqliteFile:
    """The room's database file. `execute` runs a named statement; `begin` and `commit` make several of them one step."""

    #: False lets the call that made the log long fold it back: for fault tests, which watch one thread's calls to the disk.
    folds_beside = True

    def __init__(self, folder: Path, config: Config, clock: Clock, columns: str, vfs: str | None = None) -> None:
        self.folder = folder
        self.path = folder / DATABASE
        self._config = config
        self._clock = clock
        self._columns = columns
        self._vfs = vfs
        self._next_tidy_ns = 0
        self._mine = _ThreadConnections(self._open_connection)
        #: Those of all threads; strong references: see ThreadConnection.
        self._connections: set[apsw.Connection] = set()
        self._log = Checkpointer(self._fold, clock, beside=self.folds_beside)
        #: The log is made longer when it has more pages than this; only with sync=full.
        waits_for_disk = config.sync == "full" and self.folds_beside
        self.lengthen_from = AHEAD_FROM_PAGES if waits_for_disk else WAL_PAGES
        self._crowd = Crowd(folder / "lock")
        self._pid = current_pid()
        self._closed = False
        self._gone: str | None = None  # how the file was lost
        self._seen_bytes = 0  # how long it was at the last look
        self._log_path = Path(f"{self.path}-wal")
        self._numbers = Numbers(clock, Here(self._pid))
        self.tick, self._writes_much = self._numbers.tick, self._numbers.writes_much
        kind = _gate(folder)
        with self._door():
            self._refuse_inherited()
            self.attendance = Attendance(folder, kind)
            try:
                last = self._prepare()
            except BaseException:
                self.attendance.close()
                raise
        self._identity = _identity(self.path)
        self._numbers.offset_ns = self.offset_ns
        self._here = self._numbers.here = self._come_in()
        self._here.last = max(self._here.last, last)
        _files.add(self)

    def _come_in(self) -> Here:
        """Be one of those who have the file open in this process, until it is closed, or forgotten without that."""
        me = object()
        # first: an interrupt from here on leaves nothing behind
        self._leave = weakref.finalize(self, _leave, self._identity, me)
        self._leave.atexit = False
        here = _opened.setdefault(self._identity, Here(self._pid))
        here.users.add(me)
        return here

    # Opening

    @contextmanager
    def _door(self) -> Iterator[None]:
        """One process at a time makes or migrates the file: two that switch a new file to WAL at once get "locked"."""
        self._make_folder()
        try:
            descriptor = os.open(self.folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX)
                yield
            finally:
                # closing is not enough: a process that was forked off meanwhile has it open, too
                fcntl.flock(descriptor, fcntl.LOCK_UN)
                os.close(descriptor)
        except OSError as error:
            raise RoomUnreachable(f"the room's folder {self.folder} cannot be used: {error}") from error

    def _make_folder(self) -> None:
        try:
            make_private_folder(self.folder, sync=False)  # that is done with the schema
        except OSError as error:
            raise RoomUnreachable(f"the room's folder {self.folder} cannot be made: {error}") from error
        if not os.access(self.folder, os.W_OK | os.X_OK):
            raise RoomUnreachable(f"the room's folder {self.folder} cannot be written; choose another, or its owner's")

    def _refuse_inherited(self) -> None:
        """Refuse a file that was open when this process was forked off: SQLite's notes on its locks came along, and lie.

        It would believe to hold locks that only the process before holds, and write where nobody reads
        (tests/stores/test_sqlite.py shows the loss).
        """
        before = _opened.get(_identity(self.path))
        if before is not None and before.pid != self._pid:
            raise RoomUnsafe(
                f"the room in {self.folder} was open when this process was forked off by {before.pid}, and SQLite cannot open "
                "a file twice across a fork; fork before you open the room, or start processes with spawn"
            )

    def _prepare(self) -> int:
        """Make the file, or check it. Returns the highest number in it."""
        self._create_empty()
        connection = None
        try:
            connection = self._connect()
            version = connection.pragma("user_version")
            self._refuse_foreign(connection)
            if version == 0:
                sync_path_to(self.folder)
                self._make_schema(connection)
            elif version != SCHEMA_VERSION:
                raise RoomDamaged(
                    f"{self.path} has layout {version} and this Postroom knows layout {SCHEMA_VERSION}; "
                    "use the newer Postroom that made it"
                )
            self.salt = self._number(self._meta(connection, "salt"))
            self.statements = load_statements(self.salt, self._columns)
            last: Any = connection.execute(self.statements["last_number"]).get
            self.offset_ns = self._room_time_offset(connection, last)
            return int(last)
        except apsw.Error as error:
            raise in_our_words(error, self.path) from error
        finally:
            if connection is not None:
                connection.close()

    def _create_empty(self) -> None:
        """Make the file ourselves, so that nobody else may read it. Only when it is not there: see the rule on closing."""
        with suppress(FileExistsError):
            os.close(os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))

    def _make_schema(self, connection: apsw.Connection) -> None:
        """Lay the tables out, in a new file or in one that the source document's broker made."""
        import secrets  # these two only when a room is made

        from .adoption import is_source_layout, set_aside, take_over

        salt = secrets.randbits(SALT_BITS)
        connection.execute(f"PRAGMA page_size = {PAGE_BYTES}").fetchall()
        connection.execute("PRAGMA journal_mode = WAL").fetchall()

        def execute(sql: str, bindings: Sequence[Any]) -> list[Row]:
            return connection.execute(sql, bindings).fetchall()

        with connection:
            there = set_aside(execute) if is_source_layout(execute) else []
            execute(load_statements(salt, "key")["schema"], ())
            execute("INSERT INTO meta VALUES ('salt', ?)", (salt,))
            if there:
                take_over(execute, there, self._clock.wall_ms())
            execute(f"PRAGMA application_id = {APPLICATION_ID}", ())
            execute(f"PRAGMA user_version = {SCHEMA_VERSION}", ())

    def _room_time_offset(self, connection: apsw.Connection, last: int) -> int:
        """What to add to the steady clock to get room time: fixed by the first opener after each boot, for all.

        Containers on one kernel may show different boot ids, and have one steady clock. So a time that others use now is
        kept, whatever boot it is named after; only one that lies behind the room's messages is of another clock.
        """
        name = f"epoch:{self._clock.boot_id()}"
        known: list[Any] = connection.execute("SELECT name, value FROM meta WHERE name GLOB 'epoch:*'").fetchall()
        for boot, value in known:
            offset = self._number(value)
            in_time = (self._clock.steady_ns() + offset) // 1_000_000 >= last >> FRACTION_BITS
            if boot == name or (in_time and self.attendance.open_twice()):
                return offset
        start_ms = room_start_ms(self._clock, (last >> FRACTION_BITS) + 1)
        offset = start_ms * 1_000_000 - self._clock.steady_ns()
        with connection:
            connection.execute("DELETE FROM meta WHERE name GLOB 'epoch:*'")
            connection.execute("INSERT INTO meta VALUES (?, ?)", (name, offset))
        return offset

    def _refuse_foreign(self, connection: apsw.Connection) -> None:
        """Refuse a trigger, and a view in a table's place, which may count for ever (tests/stores/test_sqlite_hostile.py)."""
        foreign: list[Any] = connection.execute(_FOREIGN).fetchall()
        if foreign:
            raise RoomDamaged(
                f"{self.path} has the {foreign[0][0]} {foreign[0][1]!r}, which Postroom did not make; remove it"
            )

    def _number(self, value: Any) -> int:
        """A number that the file keeps about itself. Raises RoomDamaged when it is none."""
        if isinstance(value, int) and abs(value) < 1 << 62:
            return value
        raise RoomDamaged(f"{self.path} has no number where one of the room belongs; it was damaged, or made by others")

    @staticmethod
    def _meta(connection: apsw.Connection, name: str) -> Any:
        rows = connection.execute("SELECT value FROM meta WHERE name = ?", (name,)).fetchall()
        return rows[0][0] if rows else None

    def _connect(self) -> apsw.Connection:
        flags = apsw.SQLITE_OPEN_READWRITE | apsw.SQLITE_OPEN_NOMUTEX
        connection = apsw.Connection(str(self.path), flags=flags, vfs=self._vfs)
        # Without it this SQLite plans claims anew at every call, three times slower (tests/stores/test_sqlite.py counts it).
        connection.config(apsw.SQLITE_DBCONFIG_ENABLE_QPSG, 1)
        # What the file's own views, checks and indexes may call: nothing that has an effect.
        connection.config(apsw.SQLITE_DBCONFIG_TRUSTED_SCHEMA, 0)
        connection.config(apsw.SQLITE_DBCONFIG_DEFENSIVE, 1)
        connection.set_busy_handler(Patience(self._config.busy_timeout_s))
        tick: Any = self._numbers.tick  # takes no arguments, and gets none
        connection.create_scalar_function("tick", tick, 0)
        connection.transaction_mode = "IMMEDIATE"
        synchronous = "FULL" if self._config.sync == "full" else "NORMAL"
        for pragma in (
            f"synchronous = {synchronous}",
            "mmap_size = 0",
            "wal_autocheckpoint = 0",
            f"journal_size_limit = {WAL_KEPT_BYTES}",
        ):
            connection.execute(f"PRAGMA {pragma}").fetchall()
        connection.set_wal_hook(_tell_of_commits(weakref.ref(self)))
        return connection

    def committed(self, pages: int) -> None:
        """A commit left the log this long."""
        if pages >= WAL_PAGES:
            self._log.has_pages(pages, WAL_PAGES)
        elif pages >= self.lengthen_from:
            self._log.beside(self._lengthen_log)

    def _lengthen_log(self) -> None:
        """Write zeros behind the end of the log, up to its usual length. SQLite takes them for what they are: nothing.

        The write lock is held, so that nobody adds to the log meanwhile; the disk is waited for without it. An error is ignored:
        commits then lengthen the log themselves. The zeros go through SQLite's own file layer, which the tests of power cuts replace
        (tests/faults/test_power_cut.py). No lock is lost by closing: this file has none.
        """
        self.lengthen_from += AHEAD_PAGES // 4  # not sooner, should it fail
        with suppress(apsw.Error), closing(self._connect()) as connection:
            connection.set_busy_handler(Patience(_FOLD_PATIENCE_S))
            log = apsw.VFSFile(self._vfs or "", connection.filename_wal, [_LOG_THAT_IS_THERE, 0])
            try:
                connection.execute("BEGIN IMMEDIATE")
                size = log.xFileSize()
                until = max(size, min(size + AHEAD_PAGES * _FRAME_BYTES, WAL_PAGES * _FRAME_BYTES))
                for at in range(size, until, _ZEROS_BYTES):
                    log.xWrite(bytes(min(_ZEROS_BYTES, until - at)), at)
                connection.execute("ROLLBACK")
                log.xSync(apsw.SQLITE_SYNC_NORMAL)
                reaches = until // _FRAME_BYTES
                self.lengthen_from = WAL_PAGES if reaches >= WAL_PAGES else reaches - AHEAD_PAGES // 4
            finally:
                log.xClose()

    def _fold(self) -> Fold:
        """Fold the log back into the file.

        Most of it beside the writers, and only the little that came meanwhile while they wait. What fails here is tried
        again when the log has grown: nothing is lost but the space.
        """
        fold = Fold.ELSEWHERE
        try:
            connection = self._connect()
        except apsw.Error:
            return fold
        try:
            connection.set_wal_hook(None)
            connection.set_busy_handler(Patience(_FOLD_PATIENCE_S))
            connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_PASSIVE)
            fold = Fold.PINNED
            connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_PASSIVE)
            large = self.wal_bytes() > WAL_KEPT_BYTES
            connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE if large else apsw.SQLITE_CHECKPOINT_RESTART)
            fold = Fold.DONE
        except apsw.Error:
            pass
        finally:
            connection.close()
        return fold

    # Use

    def connection(self) -> apsw.Connection:
        """This thread's connection."""
        return self._mine.connection.free().raw

    def _open_connection(self) -> ThreadConnection:
        """For a thread that has none yet; or one of a room that was closed, or of a process that forked."""
        return ThreadConnection(self._connect_thread, self._connections)

    def _connect_thread(self) -> apsw.Connection:
        if self._closed or self._pid != current_pid():
            raise self._unusable()
        self.check_there()
        try:
            connection = self._connect()
            found = self._meta(connection, "salt")  # which also opens the log
        except apsw.Error as error:
            self.check_there()  # removed a moment ago?
            raise in_our_words(error, self.path) from error
        if found != self.salt or _identity(self.path) != self._identity:
            connection.close()
            self.is_gone("was replaced by another room's file")
        self._mine.log = _identity(self._log_path)
        # with sync=full each write waits for the disk: there is nothing to be gained by resting
        crowd = None if self._config.sync == "full" else self._crowd
        connection.set_busy_handler(Patience(self._config.busy_timeout_s, crowd, self._writes_much))
        return connection

    def let_go_of_inherited(self) -> None:
        """Have no connections any more, and close none: for the copy of this object in a process that was forked off.

        Not even when the interpreter ends: closing would fold the log back, or delete it, though it may be another by that time, with
        messages of which nobody here knows (tests/stores/test_sqlite.py); and a thread of the parent may have held SQLite's locks when it forked.
        """
        _Kept(self._mine, self._connections).keep_for_ever()
        self._mine, self._connections = _ThreadConnections(self._open_connection), set()

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

    def execute(self, name: str, bindings: Sequence[Any] = ()) -> list[Row]:
        """Run one named statement to its end; inside `transaction` as part of it, else on its own."""
        connection = self._mine.connection
        try:
            return connection.rows(self.statements[name], bindings)
        except apsw.Error as error:
            raise in_our_words(error, self.path) from error

    def change(self, name: str, bindings: Sequence[Any]) -> int:
        """Run one named statement that gives no rows. Returns how many rows it changed."""
        connection = self._mine.connection
        if connection.running:
            connection = connection.free()
        connection.running = True
        try:
            connection.raw.execute(self.statements[name], bindings)
            return connection.raw.changes()
        except apsw.Error as error:
            raise in_our_words(error, self.path) from error
        finally:
            connection.running = False

    def insert(self, bindings: Sequence[Any]) -> int:
        """Store one message. Returns its key."""
        connection = self._mine.connection
        if connection.running:
            connection = connection.free()
        connection.running = True
        try:
            connection.raw.execute(self.statements["insert"], bindings)
            return connection.raw.last_insert_rowid()
        except apsw.Error as error:
            raise in_our_words(error, self.path) from error
        finally:
            connection.running = False

    def insert_many(self, rows: Iterable[Sequence[Any]]) -> None:
        """Store messages whose keys are given."""
        try:
            self._mine.connection.many(self.statements["insert"], rows)
        except apsw.Error as error:
            raise in_our_words(error, self.path) from error

    def ticks(self, count: int) -> range:
        """The next numbers of the room, so many; like `tick`."""
        first = self.tick()
        self._here.last = first + count - 1
        return range(first, first + count)

    @property
    def last_number(self) -> int:
        """The last number that this process gave out, or found."""
        return self._here.last

    def select(self, sql: str, bindings: Any = ()) -> list[Row]:
        """Run a reading statement that was put together."""
        connection = self._mine.connection
        try:
            return connection.rows(sql, bindings)
        except apsw.Error as error:
            raise in_our_words(error, self.path) from error

    def begin(self) -> None:
        """Take the write lock: everything executed until `commit` is one step."""
        connection = self._mine.connection
        if connection.running:
            connection = connection.free()
        connection.running = True
        try:
            connection.raw.execute("BEGIN IMMEDIATE")
        except apsw.Error as error:
            raise in_our_words(error, self.path) from error
        finally:
            connection.running = False

    @contextmanager
    def unsynced(self) -> Iterator[None]:
        """Let the steps inside be kept by the system, and on disk only with the next step outside (for sync=full).

        Only in methods that are `whole`: where the block raises, `tidy_up` ends this.
        """
        self._mine.unsynced = True
        self.select("PRAGMA synchronous = NORMAL")
        yield
        self._sync_again()

    def _sync_again(self) -> None:
        self.select("PRAGMA synchronous = FULL")
        self._mine.unsynced = False

    def left_open(self) -> bool:
        """Whether this thread has begun something that it has not ended yet.

        Raises RoomBusy in the middle of a statement that writes: there nothing else can be done.
        """
        mine = self._mine
        connection = mine.connection
        if connection.running:
            connection = connection.free()
        return connection.raw.in_transaction or mine.unsynced

    def tidy_up(self) -> None:
        """Leave nothing open that this thread has begun (see sqlite_whole.py). Never raises: what ended it is told."""
        with suppress(RoomError):  # closed meanwhile
            self.roll_back()
            if self._mine.unsynced:
                self._sync_again()

    def commit(self) -> None:
        """Keep the step. On failure nothing of it is kept."""
        connection = self._mine.connection
        if connection.running:
            connection = connection.free()
        connection.running = True
        try:
            connection.raw.execute("COMMIT")
        except apsw.Error as error:
            connection.running = False
            self.roll_back()
            raise in_our_words(error, self.path) from error
        finally:
            connection.running = False

    def roll_back(self) -> None:
        """Keep nothing of the step. Never raises: the first error is the one to tell."""
        connection = self._mine.connection.free()
        if connection.raw.in_transaction:
            with suppress(apsw.Error):
                connection.rows("ROLLBACK")

    def read_only(self, sql: str) -> tuple[list[str], list[Row]]:
        """Run somebody's own SELECT on a connection that cannot write."""
        self.connection()  # closed and forked rooms say so
        connection = apsw.Connection(str(self.path), flags=apsw.SQLITE_OPEN_READONLY, vfs=self._vfs)
        try:
            connection.pragma("query_only", True)
            connection.set_authorizer(_only_reading)
            cursor = connection.cursor()
            names: list[str] = []

            def note_names(running: apsw.Cursor, *_: object) -> bool:
                names[:] = [column[0] for column in running.get_description()]
                return True

            cursor.exec_trace = note_names
            return names, cursor.execute(sql).fetchall()
        except apsw.AuthError as error:
            raise RoomError("only reading is allowed here: write one SELECT") from error
        except (apsw.BusyError, apsw.CorruptError, apsw.IOError) as error:
            raise in_our_words(error, self.path) from error
        except apsw.Error as error:
            raise RoomError(f"that query does not work: {error}") from error
        finally:
            connection.close()

    def faults(self, limit_s: float) -> list[str] | None:
        """What is wrong with the file: nothing is []; None when it could not be read through in that time."""
        self.connection()  # closed and forked rooms say so
        until_ns = SYSTEM.steady_ns() + round(limit_s * 1e9)
        connection = apsw.Connection(str(self.path), flags=apsw.SQLITE_OPEN_READONLY, vfs=self._vfs)
        try:
            connection.set_progress_handler(lambda: SYSTEM.steady_ns() > until_ns, 10_000)
            found = [str(row[0]) for row in connection.execute("PRAGMA quick_check")]
            return [] if found == ["ok"] else found
        except apsw.InterruptError:
            return None
        except apsw.CorruptError as error:
            return [str(error)]
        except apsw.Error as error:
            raise in_our_words(error, self.path) from error
        finally:
            connection.close()

    def data_version(self) -> tuple[int, int]:
        """What changes when somebody has written: another connection, or one of this process."""
        return int(self.select("PRAGMA data_version")[0][0]), self.last_number

    def check_there(self) -> None:
        """Raise RoomGone when the file at our path, or its log, is no longer the one that is open; from then on always."""
        if self._gone is None:
            how = self._how_lost()
            if how is not None:
                self.is_gone(how)
        if self._gone is not None:
            raise RoomGone(self._gone)

    def _how_lost(self) -> str | None:
        """What happened to the file, as far as its names and its size tell; None when nothing did, or nobody can tell.

        A backup that is copied over it keeps its name and number. It is mostly smaller, and Postroom never makes the file smaller;
        and the log is deleted with it, so that this process would go on in a log that nobody else reads. The log stays for as
        long as a connection is open: each thread knows that of its own.
        """
        least_bytes = self._seen_bytes  # read before the look: another thread may see the file grow meanwhile
        try:
            about = os.stat(self.path)
            log = _identity(self._log_path)
        except (FileNotFoundError, NotADirectoryError):
            return "was deleted or moved away"
        except OSError:
            return None
        if (about.st_dev, about.st_ino) != self._identity:
            return "was replaced by another file"
        if about.st_size < least_bytes:
            return "was made shorter, as by a backup that is copied over it,"
        if self._mine.log not in (None, log):
            return "lost its log, which was deleted or replaced"
        self._seen_bytes = about.st_size
        return None

    def is_connected(self) -> bool:
        """Whether this thread has a connection."""
        return self._mine.log is not None

    def is_gone(self, how: str) -> None:
        """Raise RoomGone, from now on always."""
        self._gone = f"{self.path} {how} while the room was open; close the room and open it anew"
        raise RoomGone(self._gone)

    def wal_bytes(self) -> int:
        """The size of the write-ahead log."""
        try:
            return os.stat(f"{self.path}-wal").st_size
        except FileNotFoundError:
            return 0

    def tidy(self) -> None:
        """Fold the log back into the file where nobody is in the way, and let SQLite refresh its statistics.

        Twice a minute at most, unless the log is large: more often it is most of what a room costs in which nothing happens
        (tests/faults/test_idle.py).
        """
        connection, now_ns = self.connection(), SYSTEM.steady_ns()
        is_large = self.wal_bytes() > WAL_KEPT_BYTES
        if now_ns < self._next_tidy_ns and not is_large:
            return
        self._next_tidy_ns = now_ns + _TIDY_PAUSE_NS
        try:
            if is_large:
                self._fold()
            else:
                connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_PASSIVE)
            self.select("PRAGMA optimize")
        except (apsw.BusyError, apsw.LockedError, RoomBusy):
            return  # somebody reads or writes: the next round will do
        except apsw.Error as error:
            raise in_our_words(error, self.path) from error

    def close(self) -> None:
        """Close every thread's connection. Safe to call twice, and in a fork (where nothing may be closed); also after one that was
        interrupted, which it brings to its end.

        A connection in the middle of a statement stays open until that is over: then nobody knows it any more, and it closes itself.
        """
        if self._pid != current_pid():
            self._closed = True
            return
        self._log.close()
        self._closed = True
        in_use = self._mine.in_use()
        while self._connections:
            connection = self._connections.pop()
            if connection not in in_use:
                with suppress(apsw.Error, apsw.ThreadingViolationError):
                    connection.close()
        self._mine = _ThreadConnections(self._open_connection)
        self._crowd.close()
        self.attendance.close()
        self._leave()


def _tell_of_commits(known: weakref.ref[SqliteFile]) -> Callable[[apsw.Connection, str, int], int]:
    """The hook after commits. It does not keep the file: apsw's objects are not collected in a ring of references."""

    def committed(_connection: apsw.Connection, _name: str, pages: int) -> int:
        file = known()
        if file is not None and pages >= file.lengthen_from:
            file.committed(pages)
        return apsw.SQLITE_OK

    return committed


class _Kept(msgspec.Struct, gc=False):
    """What is never let go, not even when the interpreter ends: it refers to itself, and the collector does not know it."""

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
    """One of those who had a file open in this process has it no more. What was open before a fork stays known: it is refused here."""
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


def _gate(folder: Path) -> str:
    """Refuse a SQLite or a file system that could lose messages. Returns the kind of file system."""
    version = apsw.sqlite_lib_version()
    if not sqlite_is_safe(version):
        raise RoomUnsafe(
            f"SQLite {version} can lose commits of a write-ahead log; install apsw with SQLite 3.51.3 or newer"
        )
    existing = next(place for place in (folder, *folder.parents) if place.exists())
    kind = file_system_type(existing)
    if kind in NETWORK_FILE_SYSTEMS:
        raise RoomUnsafe(
            f"{folder} lies on a network file system ({kind}), where the locks and the shared memory of SQLite's "
            "write-ahead log do not hold; put the room on a local disk, or use nats:// for several machines"
        )
    return kind


def _only_reading(operation: int, *_: Any) -> int:
    allowed = (apsw.SQLITE_SELECT, apsw.SQLITE_READ, apsw.SQLITE_FUNCTION, apsw.SQLITE_RECURSIVE)
    return apsw.SQLITE_OK if operation in allowed else apsw.SQLITE_DENY
