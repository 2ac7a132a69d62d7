"""A recording of everything that processes do to the files of a room, in one order, and of the calls that returned.

`Recorder` appends events to one file that any number of processes share. An event and the change it tells of are made under
one lock, so the order of the recording is the order in which the changes were made. A sync is two events, its begin and its end:
only what was done before it began is safe once it has ended. tests/faults/after_a_cut.py makes disks from such recordings.

`recording` puts the recorder under everything that Postroom does, without Postroom knowing: SQLite's default file system (also
the zeros ahead of the log go through it), and the calls of `os` that make files and folders and sync folders. A write that went
past both would be found: no file may be opened by `os` that is there already, and the recording, played to its end, must give the
very bytes of the real files.
"""

from __future__ import annotations

import fcntl
import itertools
import os
import pickle
import random
import stat
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import apsw

from postroom.core.message import Draft
from postroom.core.states import State
from postroom.errors import RoomBusy
from postroom.stores.contract import Delivery, Store
from postroom.stores.sqlite import wal
from postroom.stores.sqlite.store import SqliteStore

from .rooms import letter, open_room, want

#: Events, as they stand in a recording; a handle is the process and a number.
#:   ("made", handle, path)           a new file is there       ("opened", handle, path, ahead)   one that was there
#:   ("folder", path, inode)          a new folder is there     ("renamed", path, path)           a folder
#:   ("deleted", path)
#:   ("wrote", handle, place, data)                             ("truncated", handle, size)
#:   ("sync", ticket, handle)         or, of a folder, ("sync", ticket, inode)
#:   ("synced", ticket)                                         ("returned", who, what, ids, value)
#:          what these ids must be from then on: a message in that state, a cell of that value; None: there
#:   ("rests",)                       nothing is under way     ("past", path)     opened where its writes are not seen
Event = tuple[Any, ...]
Handle = tuple[int, int]
#: The state of a message after each outcome, unless a retry was of its last delivery.
SETTLED_AS = {"acked": State.ACKED, "retry": State.DELAYED, "dead": State.DEAD, "answered": State.ANSWERED}


class Recorder:
    """Appends events to a file. Several of them, in several processes, may append to the same one."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        self._lock = threading.Lock()
        self._numbers = itertools.count()

    def handle(self) -> Handle:
        return os.getpid(), next(self._numbers)

    @contextmanager
    def in_order(self) -> Iterator[None]:
        """Nobody else changes anything, nor notes it."""
        with self._lock:
            fcntl.flock(self._file, fcntl.LOCK_EX)
            try:
                yield
            finally:
                fcntl.flock(self._file, fcntl.LOCK_UN)

    def append(self, *event: Any) -> None:
        """Only inside `in_order`."""
        os.write(self._file, pickle.dumps(event))

    def note(self, *event: Any) -> None:
        with self.in_order():
            self.append(*event)

    @contextmanager
    def syncing(self, what: Handle | int) -> Iterator[None]:
        ticket = self.handle()
        self.note("sync", ticket, what)
        yield
        self.note("synced", ticket)

    def close(self) -> None:
        os.close(self._file)


def read_recording(path: Path) -> list[Event]:
    """The events of a recording, in their order."""
    events: list[Event] = []
    with path.open("rb") as file:
        while file.peek(1):
            events.append(pickle.load(file))
    return events


class RecordingDisk(apsw.VFS):
    """SQLite's default file system while it is registered. Without `really_syncs` syncs are noted, and not made."""

    def __init__(self, recorder: Recorder, *, really_syncs: bool) -> None:
        self.base = apsw.vfs_names()[0]
        super().__init__("recording", self.base, makedefault=True)
        self.recorder = recorder
        self.really_syncs = really_syncs

    def xOpen(self, name: str | apsw.URIFilename | None, flags: list[int]) -> apsw.VFSFile:  # noqa: N802
        if name is None:  # a table that SQLite sorts; nobody needs it after a cut
            return apsw.VFSFile(self.base, name, flags)
        return _RecordedFile(self, name, flags)

    def xDelete(self, filename: str, syncdir: bool) -> None:  # noqa: N802
        with self.recorder.in_order():
            super().xDelete(filename, syncdir)
            self.recorder.append("deleted", filename)
        if syncdir:
            with self.recorder.syncing(_inode(os.path.dirname(filename))):
                pass


class _RecordedFile(apsw.VFSFile):
    def __init__(self, disk: RecordingDisk, name: str | apsw.URIFilename, flags: list[int]) -> None:
        self._disk = disk
        self._recorder = recorder = disk.recorder
        self._handle = recorder.handle()
        self._path = path = name.filename() if isinstance(name, apsw.URIFilename) else name
        # SQLite's file system syncs the folder too, with the first sync of a log or journal that it may have made
        is_log, may_make = flags[0] & apsw.SQLITE_OPEN_WAL, flags[0] & apsw.SQLITE_OPEN_CREATE
        self._syncs_folder = bool(may_make and (is_log or flags[0] & apsw.SQLITE_OPEN_MAIN_JOURNAL))
        with recorder.in_order():
            was_there = os.path.exists(path)
            super().__init__(disk.base, name, flags)
            if was_there:
                recorder.append("opened", self._handle, path, bool(is_log and not may_make))
            else:
                recorder.append("made", self._handle, path)

    def xWrite(self, data: Any, offset: int) -> None:  # noqa: N802
        with self._recorder.in_order():
            super().xWrite(data, offset)
            self._recorder.append("wrote", self._handle, offset, bytes(data))

    def xTruncate(self, newsize: int) -> None:  # noqa: N802
        with self._recorder.in_order():
            super().xTruncate(newsize)
            self._recorder.append("truncated", self._handle, newsize)

    def xSync(self, flags: int) -> None:  # noqa: N802
        with self._recorder.syncing(self._handle):
            if self._disk.really_syncs:
                super().xSync(flags)
        if self._syncs_folder:
            self._syncs_folder = False
            with self._recorder.syncing(_inode(os.path.dirname(self._path))):
                pass


def _inode(path: str) -> int:
    return os.stat(path).st_ino


@contextmanager
def recording(path: Path, root: Path, *, really_syncs: bool = False) -> Iterator[Recorder]:
    """Record what this process does below `root`, while it lasts. What is open at its end must not be used afterwards."""
    recorder = Recorder(path)
    disk = RecordingDisk(recorder, really_syncs=really_syncs)
    os_open, os_mkdir, os_rename, os_fsync = os.open, os.mkdir, os.rename, os.fsync

    def opens(file: Any, flags: int, *more: Any, **named: Any) -> int:
        if not _is_database(file, root):
            return os_open(file, flags, *more, **named)
        with recorder.in_order():
            was_there = os.path.exists(file)
            descriptor = os_open(file, flags, *more, **named)
            recorder.append(*(("past", file) if was_there else ("made", recorder.handle(), os.fspath(file))))
        return descriptor

    def makes(folder: Any, *more: Any, **named: Any) -> None:
        with recorder.in_order():
            os_mkdir(folder, *more, **named)
            if Path(folder).is_relative_to(root):
                recorder.append("folder", os.fspath(folder), _inode(folder))

    def renames(was: Any, to: Any, **named: Any) -> None:
        with recorder.in_order():
            os_rename(was, to, **named)
            if Path(to).is_relative_to(root) and Path(to).is_dir():
                recorder.append("renamed", os.fspath(was), os.fspath(to))

    def syncs(descriptor: int) -> None:
        about = os.fstat(descriptor)
        if not stat.S_ISDIR(about.st_mode):
            os_fsync(descriptor)
            return
        with recorder.syncing(about.st_ino):
            if really_syncs:
                os_fsync(descriptor)

    with _in_place_of(os, open=opens, mkdir=makes, rename=renames, fsync=syncs):
        try:
            yield recorder
        finally:
            disk.unregister()
            apsw.set_default_vfs(disk.base)
            recorder.close()


@contextmanager
def _in_place_of(module: Any, **new: Any) -> Iterator[None]:
    """While it lasts, these names of a module mean something else."""
    before = {name: getattr(module, name) for name in new}
    vars(module).update(new)
    try:
        yield
    finally:
        vars(module).update(before)


def _is_database(file: Any, root: Path) -> bool:
    return (
        isinstance(file, str | Path) and Path(file).name.startswith("messages.db") and Path(file).is_relative_to(root)
    )


class Notes(Protocol):
    """Keeps what was seen, in its order."""

    def note(self, *event: Any) -> None: ...


class Worker:
    """Sends, claims and settles, one thing after the other, and notes each call that returned."""

    def __init__(self, who: str, recorder: Notes, open_store: Callable[[], Store], reopens: float = 0) -> None:
        self.store = open_store()
        self._open_store = open_store
        self._reopens = reopens
        self._who = who
        self._chance = random.Random(who)
        self._recorder = recorder
        self._held: list[Delivery] = []
        self._batches = 0
        self._cell = 0

    def one_thing(self) -> None:
        with suppress(RoomBusy):  # nothing was changed; on a slow machine others may keep the lock for long
            sends, settles = (self._send, self._send, self._send_three), (self._settle, self._settle, self._settle)
            self._chance.choice((*sends, *settles, self.claim, self._take, self._write_cell, self._sweep))()
        if self._chance.random() < self._reopens:
            self.store.close()
            self.store = self._open_store()

    def _returned(self, what: str, ids: list[str], value: int | None = None) -> None:
        self._recorder.note("returned", self._who, what, ids, value)

    def _letters(self, count: int, **fields: Any) -> list[Draft]:
        payload = {
            "who": self._who,
            "batch": self._batches,
            "of": count,
            "text": "x" * self._chance.randrange(5000 // count),
        }
        return [letter(payload=payload, **fields) for _ in range(count)]

    def _send(self, count: int = 1) -> None:
        self._returned("sent", self.store.put(self._letters(count)))
        self._batches += 1

    def _send_three(self) -> None:
        self._send(3)

    def claim(self) -> None:
        self._held += self.store.claim(want(limit=2)).deliveries

    def _take(self) -> None:
        """A claim that is an ack at once waits for the disk, unlike others."""
        taken = self.store.claim(want(settle=True)).deliveries
        self._returned("acked", [delivery.ticket.id for delivery in taken], State.ACKED)

    def _settle(self) -> None:
        if self._held:
            self.settle(self._chance.choice(("acked", "acked", "retry", "dead", "answered")))

    def settle(self, outcome: str) -> None:
        """Settle what was claimed last.

        A message that processes held when they ended may be at its last delivery: a retry sets it aside then.
        """
        message, ticket = self._held[-1].message, self._held[-1].ticket
        is_spent = outcome == "retry" and message.delivery_count >= message.max_deliveries
        answers = self._letters(1, answer_to=ticket.id) if outcome == "answered" else []
        claim_next = want() if self._chance.random() < 0.3 else None
        settled = self.store.settle(ticket, outcome, delay_s=1e6, puts=answers, claim_next=claim_next)
        assert settled.held and settled.state is (State.DEAD if is_spent else SETTLED_AS[outcome])
        self._returned(outcome, [ticket.id], settled.state)
        self._returned("sent", settled.ids)
        self._batches += len(answers)
        self._held[-1:] = [] if settled.claimed is None else settled.claimed.deliveries

    def _write_cell(self) -> None:
        name = f"power/{self._who}"
        self.store.cell_write(name, self._cell + 1)
        self._cell += 1
        self._returned("wrote", [name], self._cell)

    def _sweep(self) -> None:
        self.store.sweep()


def set_pages(long: int, ahead_from: int, ahead: int) -> AbstractContextManager[None]:
    """While it lasts, the log is folded back at so many pages, lengthened from so many, by so many."""
    return _in_place_of(wal, LONG_PAGES=long, AHEAD_FROM_PAGES=ahead_from, AHEAD_PAGES=ahead)


#: Stores that nobody closes, as if the power went.
_left_open: list[SqliteStore] = []


def work(root: str, room: str, to: str, who: str, calls: int, threads: int, pages: Sequence[int]) -> None:
    """One of several processes that use a room; each of its threads has a connection."""
    with recording(Path(to), Path(root), really_syncs=True) as recorder, set_pages(*pages):
        store = open_room(Path(root) / room, sync="full", busy_timeout_s=60)
        _left_open.append(store)
        store.stats()  # so that the connection of this thread is in use, and the log stays when the other threads end

        def work_as(name: str) -> None:
            worker = Worker(name, recorder, lambda: store)
            for _ in range(calls):
                worker.one_thing()

        in_threads([partial(work_as, f"{who}.{number}") for number in range(threads)])
        store._file.log.checkpointer.close()  # what is done to the log beside is over: the files are as the recording tells


def in_threads(works: Iterable[Callable[[], None]]) -> None:
    """Do these beside each other, and raise what one of them raised."""
    errors: list[BaseException] = []

    def run(call: Callable[[], None]) -> None:
        try:
            call()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(call,)) for call in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
