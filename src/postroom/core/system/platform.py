"""All that differs between systems: processes and their start times, file systems, descriptors that wake."""

from __future__ import annotations

import errno
import mmap
import os
import select
import struct
import sys
import threading
from collections.abc import Iterator
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, Protocol

from postroom.core.clock import SYSTEM

if TYPE_CHECKING:
    import ctypes

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

#: File systems of this kernel alone: every process that has a file there open sees the locks of all others. By name, and
#: by the number that the system gives where names cannot be read.
LOCAL_FILE_SYSTEMS: Final = {
    "bcachefs": 0xCA451A4E,
    "btrfs": 0x9123683E,
    "exfat": 0x2011BAB0,
    "ext2": 0xEF53,
    "ext3": 0xEF53,
    "ext4": 0xEF53,
    "f2fs": 0xF2F52010,
    "jfs": 0x3153464A,
    "nilfs2": 0x3434,
    "ntfs3": 0x7366746E,
    "overlay": 0x794C7630,
    "ramfs": 0x858458F6,
    "reiserfs": 0x52654973,
    "tmpfs": 0x01021994,
    "ubifs": 0x24051905,
    "vfat": 0x4D44,
    "xfs": 0x58465342,
    "zfs": 0x2FC12FC1,
}


@lru_cache(maxsize=1)
def host_id() -> str:
    """A name for the set of processes whose pids can be told apart from here: this boot and this pid namespace."""
    try:
        namespace = str(os.stat("/proc/self/ns/pid").st_ino)
    except OSError:
        namespace = "0"
    return f"{SYSTEM.boot_id()[:13]}.{namespace}"


@lru_cache(maxsize=1)
def sees_processes() -> bool:
    """Whether pids can be looked up here: /proc is mounted, and shows the pid namespace that this process is in.

    A sandbox may have no /proc, or that of the system around it, in which every pid is another process's.
    """
    if not LINUX:
        return True
    try:
        with open("/proc/self/status", "rb") as file:
            lines = file.read().split(b"\n")
    except OSError:
        return False
    # one number for each namespace, from that of /proc down to our own
    numbers = next((line.split()[1:] for line in lines if line.startswith(b"NSpid:")), None)
    if numbers is None:  # Linux before 4.1
        return os.readlink("/proc/self") == str(os.getpid())
    return numbers == [str(os.getpid()).encode()]


def process_started(pid: int) -> str | None:
    """When a process started, as text that differs for a later process with the same pid; None when there is none to see."""
    if LINUX:
        try:
            with open(f"/proc/{pid}/stat", "rb") as file:
                fields = file.read().rpartition(b")")[2].split()
        except (FileNotFoundError, ProcessLookupError, PermissionError):
            return None
        return None if fields[0] in (b"Z", b"X") else fields[19].decode()  # a zombie works no more
    import subprocess

    answer = subprocess.run(["ps", "-o", "lstart=", "-p", str(pid)], capture_output=True, text=True, check=False)
    return answer.stdout.strip().replace(" ", "_").replace(":", ".") or None


_this: tuple[int, str] = (0, "")
_pid = os.getpid()


def _note_pid() -> None:
    global _pid  # noqa: PLW0603  (one process, one number)
    _pid = os.getpid()
    host_id.cache_clear()  # a child may be the first in a new pid namespace
    sees_processes.cache_clear()


os.register_at_fork(after_in_child=_note_pid)


def current_pid() -> int:
    """This process's number, without asking the system for it each time: every step of a message checks it for forks."""
    return _pid


def this_process() -> str:
    """This process's own name, `host:pid:start+byte`: no other process, before or after, has the same.

    `byte` is a random number. In the rooms whose folder has locks, this process holds the lock on that byte of a file
    for as long as it has the room open (`stores/liveness.py`). Where no start time can be seen, chance stands in its place.
    """
    global _this  # noqa: PLW0603  (one process, one name)
    pid = os.getpid()
    if _this[0] != pid:
        byte = int.from_bytes(os.urandom(8), "big") >> 2  # an offset in a file has 63 bits
        started = process_started(pid) if sees_processes() else None
        _this = (pid, f"{host_id()}:{pid}:{started or f'{_UNSEEN}{byte:x}'}{_BYTE}{byte:x}")
    return _this[1]


#: Stands before the byte in a process's name; stands in the place of a start time that could not be seen.
_BYTE: Final = "+"
_UNSEEN: Final = "unseen-"


def without_byte(name: str) -> str:
    """A process's name as it stands in rooms that know nothing of its lock."""
    return name.partition(_BYTE)[0]


def byte_of(name: str) -> int | None:
    """The number of the byte that the process of that name has locked; None when the name has none."""
    try:
        return int(name.partition(_BYTE)[2], 16)
    except ValueError:
        return None


def process_name(pid: int) -> str | None:
    """The name of another process, which may be any program: without a byte. None when it does not run, or cannot be seen."""
    started = process_started(pid) if sees_processes() else None
    return None if started is None else f"{host_id()}:{pid}:{started}"


def process_alive(name: str) -> bool | None:
    """Whether the process of that name still runs, by its pid and start time.

    None when that cannot be seen from here: it is of another boot or pid namespace, hidden from this user, or there is
    no /proc of our own to look at.
    """
    name = without_byte(name)
    if name == without_byte(this_process()):
        return True
    host, _, rest = name.partition(":")
    pid, _, started = rest.partition(":")
    if host != host_id() or not pid.isdigit() or started.startswith(_UNSEEN) or not sees_processes():
        return None
    found = process_started(int(pid))
    return None if found is None and _is_hidden(int(pid)) else found == started


def _is_hidden(pid: int) -> bool:
    """Whether there is a process of that number which /proc does not show to this user (hidepid)."""
    try:
        os.kill(pid, 0)
    except PermissionError:
        return not os.access(f"/proc/{pid}/stat", os.R_OK)
    except (ProcessLookupError, OverflowError):
        pass
    return False


def processes_with(path: Path) -> list[int]:
    """The other processes that have a file open, as far as they can be seen from here (on Linux, those of this user)."""
    target = os.path.realpath(path)
    names = os.listdir("/proc") if LINUX and sees_processes() else []
    others = [int(name) for name in names if name.isdigit() and int(name) != os.getpid()]
    return sorted(pid for pid in others if target in _open_files(pid))


def _open_files(pid: int) -> Iterator[str]:
    with suppress(OSError):  # it ended, or belongs to somebody else
        for number in os.listdir(f"/proc/{pid}/fd"):
            with suppress(FileNotFoundError):  # closed a moment ago
                yield os.readlink(f"/proc/{pid}/fd/{number}")


def die_with_parent() -> bool:
    """Let the system kill this process with SIGKILL when the thread that started it ends. False where it cannot.

    The thread, not the process: only for children of programs with one thread.
    """
    return LINUX and _libc().prctl(_PR_SET_PDEATHSIG, 9, 0, 0, 0) == 0


def start_thread(thread: threading.Thread) -> None:
    """Start a thread. An interrupt reaches the caller as what the signal's handler raised, and leaves open whether the thread runs.

    CPython's own `start` makes a KeyError of it when it comes right after the thread began (tests/faults/test_interrupts.py).
    """
    try:
        thread.start()
    except KeyError as error:
        if error.__context__ is None:
            raise
        raise error.__context__ from None


def process_descriptor(pid: int) -> int | None:
    """A descriptor that can be read once the process is gone; None where the system has none, or it is gone already."""
    try:
        return os.pidfd_open(pid) if hasattr(os, "pidfd_open") else None
    except OSError:
        return None


def look_at_child(pid: int) -> Literal["runs", "ended", "broke"] | None:
    """How a child of this process fares; it broke when it was killed, or ended with another exit code than 0.

    It is not reaped by this look: its number stays its own. None where nothing can be seen: the system has no such look,
    or somebody else has reaped it.
    """
    if not hasattr(os, "waitid"):
        return None
    try:
        found = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT | os.WNOHANG)
    except ChildProcessError:
        return None
    if found is None:
        return "runs"
    return "ended" if (found.si_code, found.si_status) == (os.CLD_EXITED, 0) else "broke"


def kill_session(session: int) -> None:
    """Kill the processes of a session (as of setsid), and those that they start meanwhile. Linux only.

    The caller sees to it that the session's number is not given away meanwhile. A process belongs to the session of who
    started it, or to one with its own number: so whoever is found in it was started in it. Each is held by a descriptor
    while it is looked at and killed, so that it cannot be another that has got its number.
    """
    if not LINUX or not hasattr(os, "pidfd_open"):
        return
    import signal  # who only sends starts faster without it

    for _ in range(_KILL_ROUNDS):
        here = [int(name) for name in os.listdir("/proc") if name.isdigit() and _works_in(int(name), session)]
        if not here:  # nor did anybody start another meanwhile: who did would have been seen
            return
        for pid in here:
            descriptor = process_descriptor(pid)
            if descriptor is not None:
                with suppress(OSError):
                    if _works_in(pid, session):
                        signal.pidfd_send_signal(descriptor, signal.SIGKILL)
                os.close(descriptor)
        SYSTEM.sleep(_KILL_PAUSE_S)


def _works_in(pid: int, session: int) -> bool:
    """Whether a process belongs to that session, and is not just waiting to be reaped."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
    except OSError:  # it ended
        return False
    return int(fields[3]) == session and fields[0] not in (b"Z", b"X")


class MemoryGauge:
    """How much memory this process has in use. Made in the process that it is about; reading it costs microseconds."""

    def __init__(self) -> None:
        self._page_bytes = os.sysconf("SC_PAGE_SIZE")
        try:
            self._descriptor: int | None = os.open("/proc/self/statm", os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            self._descriptor = None

    def bytes(self) -> int:
        """Resident memory; where the system does not tell, the most there ever was."""
        if self._descriptor is not None:
            return int(os.pread(self._descriptor, 64, 0).split()[1]) * self._page_bytes
        import resource

        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return peak if sys.platform == "darwin" else peak * 1024


_PR_SET_PDEATHSIG: Final = 1
#: How often is looked for processes of a session that is to end, and how long it waits between two looks.
_KILL_ROUNDS: Final = 200
_KILL_PAUSE_S: Final = 0.005


@lru_cache(maxsize=1)
def _libc() -> ctypes.CDLL:
    import ctypes  # only for those who start processes or watch folders

    return ctypes.CDLL(None, use_errno=True)


def map_part(descriptor: int, begin: int, size: int) -> mmap.mmap:
    """Map a part of a file that is really on disk: writing to a hole of it on a full disk would end the process by SIGBUS."""
    if os.fstat(descriptor).st_size < begin + size:
        if hasattr(os, "posix_fallocate"):
            os.posix_fallocate(descriptor, begin, size)
        else:
            os.pwrite(descriptor, bytes(size), begin)
    return mmap.mmap(descriptor, size, offset=begin)


#: What happens to the names in a folder, as bits of inotify: written and closed, moved here, made.
CLOSED_AFTER_WRITE: Final = 0x008
MOVED_HERE: Final = 0x080
MADE: Final = 0x100


class FolderEvent(NamedTuple):
    """Something happened to a name in a watched folder; `what` is one or more of the bits above."""

    watch: int
    what: int
    name: str


class FolderEvents:
    """The system's own news of what happens in folders (inotify). One for each process: users have 128 at most."""

    _HEADER: Final = struct.Struct("iIII")

    def __init__(self) -> None:
        """Raises OSError where the system has no such thing."""
        if not LINUX:
            raise OSError(errno.ENOTSUP, "this system has no inotify")
        self._fd = self._checked(_libc().inotify_init1(os.O_CLOEXEC | os.O_NONBLOCK))

    def _checked(self, result: int) -> int:
        import ctypes

        if result < 0:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number))
        return result

    def fileno(self) -> int:
        return self._fd

    def add(self, folder: Path) -> int:
        """Watch a folder; the number that its events carry."""
        return self._checked(
            _libc().inotify_add_watch(self._fd, os.fsencode(folder), CLOSED_AFTER_WRITE | MOVED_HERE | MADE)
        )

    def remove(self, watch: int) -> None:
        """Watch it no more. The folder may be gone already."""
        _libc().inotify_rm_watch(self._fd, watch)

    def read(self) -> list[FolderEvent]:
        """What happened since the last time; never waits."""
        try:
            raw = os.read(self._fd, 64 * 1024)
        except BlockingIOError:
            return []
        found, at = [], 0
        while at < len(raw):
            watch, what, _, size = self._HEADER.unpack_from(raw, at)
            at += self._HEADER.size
            found.append(FolderEvent(watch, what, os.fsdecode(raw[at : at + size].rstrip(b"\0"))))
            at += size
        return found

    def close(self) -> None:
        os.close(self._fd)


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


def no_follow(path: str, flags: int) -> int:
    """An `opener` for `open`, which refuses a symbolic link: for files of a room whose folder others may have filled."""
    return os.open(path, flags | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)


def is_local(folder: Path, kind: str) -> bool:
    """Whether a folder lies on a file system of this kernel alone; `kind` is its `file_system_type`. False: it may not."""
    if kind or not LINUX:
        return kind in LOCAL_FILE_SYSTEMS
    import ctypes  # only where /proc does not tell

    answer = ctypes.create_string_buffer(512)  # its first word is the kind, the rest differs between machines
    if _libc().statfs(os.fsencode(folder), answer) != 0:
        return False
    return ctypes.c_ulong.from_buffer(answer).value & 0xFFFF_FFFF in LOCAL_FILE_SYSTEMS.values()


def open_shared(path: Path, flags: int, mode: int) -> int:
    """Open a file, and make it with that mode: where the mode is for a group, whatever the umask is."""
    descriptor = os.open(path, flags, mode)
    if mode & 0o070:
        with suppress(PermissionError):  # another user's, who has seen to it
            os.fchmod(descriptor, mode)
    return descriptor


def lock_trouble(what: str, path: Path, place: int = 0) -> str:
    """One sentence for those who waited in vain for the lock on a byte of a file: which process has it, and what to do.

    The system's list of locks is read, and the file not opened: closing it would drop this process's own locks on it.
    """
    pid = _lock_holder(path, place)
    if pid is None:
        return f"others kept {what} locked for too long; nothing was changed, try again"
    if _is_stopped(pid):
        return (
            f"process {pid} keeps {what} locked and is stopped, by Ctrl-Z or a debugger; nothing was changed: "
            f"let it go on (kill -CONT {pid}) or end it, then try again"
        )
    return f"process {pid} keeps {what} locked, and others may have before; nothing was changed, try again"


def _lock_holder(path: Path, place: int) -> int | None:
    """The other process that has locked a byte of a file for writing; None where that cannot be seen (only on Linux)."""
    try:
        about = os.stat(path)
        locks = Path("/proc/locks").read_text(encoding="ascii")
    except OSError:
        return None
    file = f"{os.major(about.st_dev):02x}:{os.minor(about.st_dev):02x}:{about.st_ino}"
    for line in locks.splitlines():
        words = line.split()
        if len(words) != 8 or words[3] != "WRITE" or words[5] != file:  # those who wait have an arrow more
            continue
        pid, begin, end = int(words[4]), int(words[6]), words[7]
        if begin <= place and (end == "EOF" or place <= int(end)) and pid > 0 and pid != os.getpid():
            return pid
    return None


def _is_stopped(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return file.read().rpartition(b")")[2].split()[0] in (b"T", b"t")
    except OSError:
        return False


def sync_folder(folder: Path) -> None:
    """Make the names in a folder survive a power cut; syncing a file does not sync the way to it."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sync_path_to(folder: Path) -> None:
    """Make the names in a folder survive a power cut, and all folders on the way to it, up to the mount point.

    For the process that makes a room: another process may have made a part of the way, and been killed before it synced that. A
    folder above that may not be read cannot be synced, and is passed over.
    """
    sync_folder(folder)
    device = folder.stat().st_dev
    for above in folder.resolve().parents:
        with suppress(PermissionError):
            if above.stat().st_dev != device:
                return
            sync_folder(above)


def make_private_folder(folder: Path, *, sync: bool = True) -> bool:
    """Make a folder that only its owner can enter, and the folders above it; with `sync` all are there after a power cut too.

    Returns False, and changes nothing, when it is there already. Raises OSError when it cannot be made.
    """
    missing = [place for place in (folder, *folder.parents) if sync and not place.exists()]
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
