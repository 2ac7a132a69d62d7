"""Watching folders, by inotify, kqueue or looking, and one thread that makes a callback when a file appears.

A watch is a hint: the names of files that may be new, or ANYTHING where the system cannot say which.
"""

from __future__ import annotations

import errno
import os
import select
import struct
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, NamedTuple

from postroom.core import log
from postroom.core.clock import SYSTEM

from . import LINUX, libc

#: Instead of a name: look at the whole folder. Instead of a folder: look at all of them (a queue ran over).
ANYTHING: Final = ""
#: How often to look where the system does not tell, and at a file that was made but may still be being written.
_LOOK_EVERY_S: Final = 0.1
#: A folder's time of change is believed when it is this old: file systems count time in ticks of some milliseconds.
_SETTLED_NS: Final = 50_000_000


class NoWatch(Exception):
    """A folder cannot be watched, or this user has no more watches; look by yourself now and then."""


class FolderNews(NamedTuple):
    """Something happened in a watched folder. `complete`: the file was moved there, or closed after writing."""

    folder: str
    name: str
    complete: bool


class _Watch:
    """Tells what was completed in some folders: moved there, or closed after writing."""

    #: How often `read` is to be called, where no descriptor tells when.
    look_every_s: float | None = None
    #: Whether it tells which file it was, and when one is closed after writing; or the folder alone.
    tells_files = False

    def __init__(self) -> None:
        self._names: dict[int, str] = {}  # the system's number of a watched folder -> what `read` calls it
        self._numbers: dict[str, int] = {}

    def __contains__(self, name: str) -> bool:
        return name in self._numbers


def watch_folders() -> FolderWatch:
    """A watch of no folder yet. Raises NoWatch: on Linux when this user has too many of them (128 unless set)."""
    if LINUX:
        return InotifyWatch()
    return KqueueWatch() if hasattr(select, "kqueue") else LookingWatch()


_EVENT: Final = struct.Struct("iIII")
_IN_CLOSE_WRITE: Final = 0x8
_IN_MOVED_TO: Final = 0x80
_IN_CREATE: Final = 0x100
_IN_Q_OVERFLOW: Final = 0x4000
_IN_IGNORED: Final = 0x8000
_IN_ONLYDIR: Final = 0x0100_0000
_IN_DONT_FOLLOW: Final = 0x0200_0000
_IN_ISDIR: Final = 0x4000_0000


class InotifyWatch(_Watch):
    """Folders watched by inotify.

    A file that appears by `os.link` is not told of, so that a process that makes files so does not wake watchers.
    """

    tells_files = True

    def __init__(self) -> None:
        super().__init__()
        self._call = libc.call
        self._tells_files: set[str] = set()
        try:
            self._descriptor = self._call("inotify_init1", os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError as error:
            raise NoWatch(error.strerror) from error

    def add(self, folder: Path, name: str, *, of_folders: bool = False, of_files: bool = False) -> None:
        """Watch a folder; `read` calls it `name`. Twice is once.

        `of_folders`: also tell of folders that are made in it. `of_files`: also tell of files that are made in it,
        before they are complete, and of links. Raises NoWatch when it cannot be watched.
        """
        made = _IN_CREATE if of_folders or of_files else 0
        flags = _IN_CLOSE_WRITE | _IN_MOVED_TO | _IN_ONLYDIR | _IN_DONT_FOLLOW | made
        try:
            number = self._call("inotify_add_watch", self._descriptor, os.fsencode(folder), flags)
        except OSError as error:
            raise NoWatch(error.strerror) from error
        self._names[number] = name
        self._numbers[name] = number
        if of_files:
            self._tells_files.add(name)

    def remove(self, name: str) -> None:
        """Watch a folder no more. It may be gone already, and it may never have been watched."""
        number = self._numbers.pop(name, None)
        self._tells_files.discard(name)
        if number is not None and self._names.pop(number, None) is not None:
            with suppress(OSError):  # the folder is gone, and its watch with it
                self._call("inotify_rm_watch", self._descriptor, number)

    def fileno(self) -> int:
        """A descriptor that can be read when there is something to tell."""
        return self._descriptor

    def read(self) -> list[FolderNews]:
        """What happened since the last call, without waiting."""
        data = b""
        with suppress(BlockingIOError):  # to the end: there it stands when the queue ran over
            while more := os.read(self._descriptor, 256 * 1024):
                data += more
        found: list[FolderNews] = []
        at = 0
        while at < len(data):
            number, mask, _, length = _EVENT.unpack_from(data, at)
            name = os.fsdecode(data[at + _EVENT.size : at + _EVENT.size + length].rstrip(b"\0"))
            at += _EVENT.size + length
            folder = self._names.get(number)
            if mask & _IN_Q_OVERFLOW:
                found.append(FolderNews(ANYTHING, ANYTHING, complete=False))
            elif folder is None:
                continue
            elif mask & _IN_IGNORED:  # the folder is gone; one that gets its name later is another
                del self._names[number]
                if self._numbers.get(folder) == number:
                    del self._numbers[folder]
            elif mask & _IN_ISDIR or not mask & _IN_CREATE or folder in self._tells_files:
                found.append(FolderNews(folder, name, complete=not mask & _IN_CREATE))
        return found

    def close(self) -> None:
        """Stop watching. Safe to call twice; a call that was interrupted can be made again."""
        if self._descriptor >= 0:
            try:
                os.close(self._descriptor)
            finally:
                self._descriptor = -1


class KqueueWatch(_Watch):
    """The same by kqueue (BSD, macOS): it tells the folder, not the name."""

    def __init__(self) -> None:
        super().__init__()
        self._select: Any = select
        self._queue = self._select.kqueue()

    def add(self, folder: Path, name: str, *, of_folders: bool = False, of_files: bool = False) -> None:
        del of_folders, of_files  # it tells all
        if name in self._numbers:
            return
        try:
            number = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        except OSError as error:
            raise NoWatch(str(error)) from error
        kq = self._select
        flags, what = kq.KQ_EV_ADD | kq.KQ_EV_CLEAR, kq.KQ_NOTE_WRITE | kq.KQ_NOTE_EXTEND
        self._queue.control([kq.kevent(number, kq.KQ_FILTER_VNODE, flags, what)], 0)
        self._names[number] = name
        self._numbers[name] = number

    def remove(self, name: str) -> None:
        number = self._numbers.pop(name, None)
        if number is not None:
            del self._names[number]
            os.close(number)  # which ends its events too

    def fileno(self) -> int:
        number: int = self._queue.fileno()
        return number

    def read(self) -> list[FolderNews]:
        told = self._queue.control(None, 1000, 0)
        folders = [self._names[event.ident] for event in told if event.ident in self._names]
        return [FolderNews(folder, ANYTHING, complete=False) for folder in folders]

    def close(self) -> None:
        while self._names:
            number = next(iter(self._names))
            try:
                os.close(number)
            finally:
                del self._names[number]
        self._queue.close()


class LookingWatch(_Watch):
    """The same by looking when a folder last changed, where the system tells nothing. It tells the folder, not the name.

    A file that is written later is not told of again: its folder does not change.
    """

    look_every_s = _LOOK_EVERY_S

    def __init__(self) -> None:
        super().__init__()
        self._folders: dict[str, Path] = {}
        #: When a folder changed; and what was in it, while it may have changed again in the same tick.
        self._seen: dict[str, tuple[int, frozenset[str] | None]] = {}

    def add(self, folder: Path, name: str, *, of_folders: bool = False, of_files: bool = False) -> None:
        del of_folders, of_files
        if name in self._numbers:
            return
        try:
            self._seen[name] = self._look(folder, (-1, None))
        except OSError as error:
            raise NoWatch(str(error)) from error
        self._folders[name] = folder
        self._numbers[name] = 0

    def _look(self, folder: Path, before: tuple[int, frozenset[str] | None]) -> tuple[int, frozenset[str] | None]:
        changed_ns = os.stat(folder, follow_symlinks=False).st_mtime_ns
        if before == (changed_ns, None):
            return before
        settled = SYSTEM.wall_ms() * 1_000_000 - changed_ns >= _SETTLED_NS
        names = frozenset(os.listdir(folder))
        return changed_ns, None if settled and names == before[1] else names

    def remove(self, name: str) -> None:
        if self._numbers.pop(name, None) is not None:
            del self._folders[name], self._seen[name]

    def fileno(self) -> int:
        raise OSError(errno.ENOTSUP, "this watch looks, and has no descriptor to wait on")

    def read(self) -> list[FolderNews]:
        found = []
        for name, folder in tuple(self._folders.items()):
            before = self._seen[name]
            try:
                now = self._seen[name] = self._look(folder, before)
            except OSError:  # the folder is gone; one that gets its name later is another
                self.remove(name)
                continue
            if now[0] != before[0] or (now[1] is not None and now[1] != before[1]):
                found.append(FolderNews(name, ANYTHING, complete=False))
        return found

    def close(self) -> None:
        """There is nothing to let go of."""


FolderWatch = InotifyWatch | KqueueWatch | LookingWatch


def gather(descriptors: list[int]) -> Any:
    """One object whose descriptor can be read when one of these can; `close()` lets go of it, not of them."""
    if LINUX and sys.platform == "linux":
        epoll = select.epoll()
        for descriptor in descriptors:
            epoll.register(descriptor, select.EPOLLIN)
        return epoll
    kq: Any = select
    queue = kq.kqueue()
    queue.control([kq.kevent(each, kq.KQ_FILTER_READ, kq.KQ_EV_ADD) for each in descriptors], 0)
    return queue


#: How long the end of a watch waits for a callback that runs.
_LAST_CALL_S: Final = 5.0

#: Called with whether the file is known to be complete; returns whether it has heard enough.
OnFile = Callable[[bool], bool]


class _AwaitedFile:
    """One file that is waited for."""

    def __init__(self, folder: Path, name: str, on_file: OnFile) -> None:
        self.folder = folder
        self.name = name
        self.path = folder / name
        self._on_file = on_file
        self._looked = self._signature()  # when there was no other way to see it
        self.is_watched = False  # else it must be looked at by turns
        self.over = False
        self.again = False
        self._fails = False
        self.idle = threading.Event()
        self.idle.set()

    def tell(self, complete: bool) -> None:
        self.idle.clear()  # before the look at `over`: see FileListener._forget
        try:
            if not self.over:
                self.again = not complete
                self.over = self._on_file(complete)
                self._fails = False
        except Exception as error:  # noqa: BLE001  the thread is that of all other callbacks, too
            if not self._fails:  # of failures in a row the first is logged
                extra = {"action": "callback_failed"}
                log.LOG.error("the callback for %s failed", self.path, exc_info=error, extra=extra)
            self._fails = True
        finally:
            self.idle.set()

    def look(self, news: list[FolderNews]) -> None:
        """See whether the file is there, by what happened."""
        about = [each for each in news if each.folder in (str(self.folder), ANYTHING)]
        exact = [each.complete for each in about if each.name == self.name]
        if exact:
            self.tell(complete=any(exact))
        elif self.again or not self.is_watched or any(each.name == ANYTHING for each in about):
            # the second look at a file that was seen half-written, or the only way to see it at all
            before, self._looked = self._looked, self._signature()
            if self._looked is not None and (self.again or self._looked != before):
                self.tell(complete=self.again)

    def _signature(self) -> tuple[int, int, int] | None:
        """What tells a file from what it was before; None when there is none."""
        try:
            about = os.stat(self.path)
        except OSError:
            return None
        return about.st_ino, about.st_mtime_ns, about.st_size


class FileListener:
    """Makes a callback when a file appears. One thread for each process (see LISTENER), and none while nobody listens.

    Where the system cannot tell, the folders are looked at ten times a second. A callback that raises is logged, and
    made again when the file appears again.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._pid = os.getpid()
        self._files: list[_AwaitedFile] = []
        self._watch: FolderWatch | None = None
        self._told, self._tell = -1, -1
        self._thread: threading.Thread | None = None

    def on_file(self, folder: Path, name: str, on_file: OnFile) -> Callable[[], None]:
        """Make a callback when a file of that name appears, from the listener's thread; returns a function to end it.

        A file that is there already is not told of. When the function returns, no callback runs, unless it was called
        in one, or one took longer than `_LAST_CALL_S`.
        """
        file = _AwaitedFile(folder, name, on_file)
        with self._lock:
            if self._pid != os.getpid():  # forked: the thread is the other process's
                self._pid, self._files, self._watch, self._told = os.getpid(), [], None, -1
            if not self._files:
                self._begin()
            if self._watch is not None:
                with suppress(NoWatch):  # too many watches, or the folder is gone: it is looked at by turns
                    self._watch.add(folder, str(folder), of_files=True)
                    file.is_watched = True
            self._files.append(file)
            os.write(self._tell, b"!")
        return lambda: self._forget(file)

    def _forget(self, file: _AwaitedFile) -> None:
        self._take_out(file)
        if self._pid == os.getpid() and threading.current_thread() is not self._thread:
            file.idle.wait(_LAST_CALL_S)  # or it would use a room that its owner has closed

    def _take_out(self, file: _AwaitedFile) -> None:
        with self._lock:
            file.over = True
            if self._pid != os.getpid() or file not in self._files:
                return
            self._files.remove(file)
            if self._watch is not None and not any(other.folder == file.folder for other in self._files):
                self._watch.remove(str(file.folder))
            os.write(self._tell, b"!")

    def _begin(self) -> None:
        if self._told >= 0:
            return  # the thread is about to end for lack of work, and finds some
        try:
            self._watch = watch_folders()
        except NoWatch:
            self._watch = None
        self._told, self._tell = os.pipe()
        self._thread = threading.Thread(target=self._run, name="postroom folder watch", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while True:
            with self._lock:
                if not self._files:
                    self._end()
                    return
                watch, told, files = self._watch, self._told, tuple(self._files)
            ends = [told] if watch is None or watch.look_every_s is not None else [told, watch.fileno()]
            looks = len(ends) == 1 or any(file.again or not file.is_watched for file in files)
            ready = SYSTEM.wait_readable(ends, _LOOK_EVERY_S if looks else None)
            if told in ready:
                os.read(told, 4096)
            with self._lock:  # which adding and removing a folder hold too
                news = watch.read() if watch is not None and (len(ends) == 1 or ends[1] in ready) else []
                files = tuple(self._files)  # again: what was just read may be about one that came while we waited
            for file in files:
                file.look(news)

    def _end(self) -> None:
        """Nobody listens any more. The caller holds the lock."""
        if self._watch is not None:
            self._watch.close()
        os.close(self._told)
        os.close(self._tell)
        self._watch, self._told, self._tell = None, -1, -1


LISTENER: Final = FileListener()
