"""All that differs between systems: processes and their start times, file systems, descriptors that wake."""

from __future__ import annotations

import os
import select
import struct
import sys
from collections.abc import Iterator
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import Any, Final, Protocol

from .clock import SYSTEM

LINUX: Final = sys.platform.startswith("linux")

#: File systems on which SQLite's write-ahead log is not safe: their locks or shared memory do not reach other hosts.
NETWORK_FILE_SYSTEMS: Final = frozenset(
    [
        "9p",
        "afs",
        "afpfs",
        "beegfs",
        "ceph",
        "cifs",
        "coda",
        "davfs",
        "fuse.ceph",
        "fuse.glusterfs",
        "fuse.rclone",
        "fuse.s3fs",
        "fuse.sshfs",
        "glusterfs",
        "gpfs",
        "lustre",
        "ncpfs",
        "nfs",
        "nfs4",
        "orangefs",
        "panfs",
        "pvfs2",
        "smb",
        "smb2",
        "smb3",
        "smbfs",
        "virtiofs",
        "webdav",
    ]
)


@lru_cache(maxsize=1)
def host_id() -> str:
    """A name for the set of processes whose pids can be told apart from here: this boot and this pid namespace."""
    try:
        namespace = str(os.stat("/proc/self/ns/pid").st_ino)
    except OSError:
        namespace = "0"
    return f"{SYSTEM.boot_id()[:13]}.{namespace}"


def process_started(pid: int) -> str | None:
    """When a process started, as text that differs for a later process with the same pid; None when there is none."""
    if LINUX:
        try:
            with open(f"/proc/{pid}/stat", "rb") as file:
                fields = file.read().rpartition(b")")[2].split()
        except (FileNotFoundError, ProcessLookupError):
            return None
        return None if fields[0] in (b"Z", b"X") else fields[19].decode()  # a zombie works no more
    import subprocess

    answer = subprocess.run(["ps", "-o", "lstart=", "-p", str(pid)], capture_output=True, text=True, check=False)
    return answer.stdout.strip().replace(" ", "_").replace(":", ".") or None


_this: tuple[int, str] = (0, "")


def this_process() -> str:
    """This process's own name, `host:pid:start`: no other process, before or after, has the same."""
    global _this  # noqa: PLW0603  (one process, one name)
    pid = os.getpid()
    if _this[0] != pid:
        _this = (pid, f"{host_id()}:{pid}:{process_started(pid)}")
    return _this[1]


def process_alive(name: str) -> bool | None:
    """Whether the process of that name still runs; None when that cannot be seen from here (another host)."""
    host, _, rest = name.partition(":")
    pid, _, started = rest.partition(":")
    if host != host_id() or not pid.isdigit():
        return None
    return process_started(int(pid)) == started


def processes_with(path: Path) -> list[int]:
    """The other processes that have a file open, as far as they can be seen from here (on Linux, those of this user)."""
    target = os.path.realpath(path)
    others = [
        int(name) for name in (os.listdir("/proc") if LINUX else ()) if name.isdigit() and int(name) != os.getpid()
    ]
    return sorted(pid for pid in others if target in _open_files(pid))


def _open_files(pid: int) -> Iterator[str]:
    with suppress(OSError):  # it ended, or belongs to somebody else
        for number in os.listdir(f"/proc/{pid}/fd"):
            with suppress(FileNotFoundError):  # closed a moment ago
                yield os.readlink(f"/proc/{pid}/fd/{number}")


def file_system_type(path: Path) -> str:
    """The kind of file system that a folder lies on ("ext4", "nfs4", …), or "" where that cannot be told."""
    try:
        mounts = Path("/proc/self/mountinfo").read_text(encoding="utf-8", errors="surrogateescape")
    except OSError:
        return ""
    target = os.path.realpath(path)
    best, kind = "", ""
    for line in mounts.splitlines():
        left, _, right = line.partition(" - ")
        point = left.split()[4].replace("\\040", " ")
        inside = target == point or target.startswith(point.rstrip("/") + "/")
        if inside and len(point) >= len(best):
            best, kind = point, right.split()[0]
    return kind


def sync_folder(folder: Path) -> None:
    """Make the names in a folder survive a power cut; syncing a file does not sync the way to it."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def make_private_folder(folder: Path) -> bool:
    """Make a folder that only its owner can enter, and the folders above it; all are there after a power cut too.

    Returns False, and changes nothing, when it is there already. Raises OSError when it cannot be made.
    """
    missing = [place for place in (folder, *folder.parents) if not place.exists()]
    folder.parent.mkdir(parents=True, exist_ok=True)
    try:
        folder.mkdir(mode=0o700)
    except FileExistsError:
        if folder.is_dir():
            return False
        raise
    for made in missing:
        sync_folder(made.parent)
    return True


# Watching folders. A watch is a hint: names of files that may be new, or ANYTHING where it cannot say which.

#: Instead of a name: look at the whole folder. Instead of a folder: look at all of them (a queue ran over).
ANYTHING: Final = ""


class NoWatch(Exception):
    """This system has no means to watch folders, or no more of them; look by yourself now and then."""


class FolderWatch(Protocol):
    """Tells what was completed in some folders: moved there, or closed after writing.

    With inotify a file that appears by `os.link` is not told of, so that who makes files so does not wake watchers.
    """

    def add(self, folder: Path, name: str, *, of_folders: bool = False) -> None:
        """Watch a folder; `read` calls it `name`. `of_folders`: also tell of folders that are made in it. Twice is once.

        Raises NoWatch when it cannot be watched.
        """

    def __contains__(self, name: str) -> bool: ...

    def fileno(self) -> int:
        """A descriptor that can be read when there is something to tell."""

    def read(self) -> list[tuple[str, str]]:
        """What happened since the last call, without waiting: folder and name, or ANYTHING."""

    def close(self) -> None:
        """Stop watching."""


def watch_folders() -> FolderWatch:
    """A watch of no folder yet. Raises NoWatch: on Linux when this user has too many of them (128 unless set)."""
    return InotifyWatch() if LINUX else KqueueWatch()


_EVENT: Final = struct.Struct("iIII")
_IN_CLOSE_WRITE: Final = 0x8
_IN_MOVED_TO: Final = 0x80
_IN_CREATE: Final = 0x100
_IN_Q_OVERFLOW: Final = 0x4000
_IN_IGNORED: Final = 0x8000
_IN_ONLYDIR: Final = 0x0100_0000
_IN_DONT_FOLLOW: Final = 0x0200_0000
_IN_ISDIR: Final = 0x4000_0000


class InotifyWatch:
    """Folders watched by inotify."""

    def __init__(self) -> None:
        import ctypes  # only by those who watch

        self._errno = ctypes.get_errno
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._descriptor: int = self._libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
        if self._descriptor < 0:
            raise NoWatch(os.strerror(self._errno()))
        self._names: dict[int, str] = {}
        self._numbers: dict[str, int] = {}

    def add(self, folder: Path, name: str, *, of_folders: bool = False) -> None:
        flags = _IN_CLOSE_WRITE | _IN_MOVED_TO | _IN_ONLYDIR | _IN_DONT_FOLLOW | (_IN_CREATE if of_folders else 0)
        number = self._libc.inotify_add_watch(self._descriptor, os.fsencode(folder), flags)
        if number < 0:
            raise NoWatch(os.strerror(self._errno()))
        self._names[number] = name
        self._numbers[name] = number

    def __contains__(self, name: str) -> bool:
        return name in self._numbers

    def fileno(self) -> int:
        return self._descriptor

    def read(self) -> list[tuple[str, str]]:
        data = b""
        with suppress(BlockingIOError):  # to the end: there it stands when the queue ran over
            while more := os.read(self._descriptor, 256 * 1024):
                data += more
        found: list[tuple[str, str]] = []
        at = 0
        while at < len(data):
            number, mask, _, length = _EVENT.unpack_from(data, at)
            name = os.fsdecode(data[at + _EVENT.size : at + _EVENT.size + length].rstrip(b"\0"))
            at += _EVENT.size + length
            if mask & _IN_Q_OVERFLOW:
                found.append((ANYTHING, ANYTHING))
            elif mask & _IN_IGNORED:  # the folder is gone; one that gets its name later is another
                gone = self._names.pop(number, None)
                if gone is not None and self._numbers.get(gone) == number:
                    del self._numbers[gone]
            elif number in self._names and (mask & _IN_ISDIR or not mask & _IN_CREATE):
                found.append((self._names[number], name))
        return found

    def close(self) -> None:
        os.close(self._descriptor)


class KqueueWatch:
    """Folders watched by kqueue (BSD, macOS): it tells the folder, not the name."""

    def __init__(self) -> None:
        self._select: Any = select
        if not hasattr(select, "kqueue"):
            raise NoWatch("this system has neither inotify nor kqueue")
        self._queue = self._select.kqueue()
        self._names: dict[int, str] = {}
        self._numbers: dict[str, int] = {}

    def add(self, folder: Path, name: str, *, of_folders: bool = False) -> None:  # noqa: ARG002  (it tells all)
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

    def __contains__(self, name: str) -> bool:
        return name in self._numbers

    def fileno(self) -> int:
        number: int = self._queue.fileno()
        return number

    def read(self) -> list[tuple[str, str]]:
        told = self._queue.control(None, 1000, 0)
        return [(self._names[event.ident], ANYTHING) for event in told if event.ident in self._names]

    def close(self) -> None:
        for number in self._names:
            os.close(number)
        self._queue.close()


def gather(descriptors: list[int]) -> Any:
    """One object whose descriptor can be read when one of these can; `close()` lets go of it, not of them."""
    if hasattr(select, "epoll"):
        epoll = select.epoll()
        for descriptor in descriptors:
            epoll.register(descriptor, select.EPOLLIN)
        return epoll
    kq: Any = select
    queue = kq.kqueue()
    queue.control([kq.kevent(each, kq.KQ_FILTER_READ, kq.KQ_EV_ADD) for each in descriptors], 0)
    return queue
