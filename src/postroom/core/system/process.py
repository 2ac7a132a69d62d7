"""Processes: their ids, names that no later process gets, and whether they are alive (by pid and start time)."""

from __future__ import annotations

import os
import select
import sys
import threading
from collections.abc import Iterator
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

from postroom.core.clock import SYSTEM

from . import LINUX, ps

#: States of a process that works no more, and is only waiting to be reaped (a zombie).
ENDED: Final = (b"Z", b"X")
#: Stands before the byte in a process's name; stands in the place of a start time that could not be seen.
_BYTE: Final = "+"
_UNSEEN: Final = "unseen-"


@lru_cache(maxsize=1)
def host_id() -> str:
    """A name for the set of processes whose pids can be told apart from here: this boot and this pid namespace."""
    try:
        namespace = str(os.stat("/proc/self/ns/pid").st_ino) if LINUX else "0"
    except OSError:
        namespace = "0"
    return f"{SYSTEM.boot_id()[:13]}.{namespace}"


@lru_cache(maxsize=1)
def sees_processes() -> bool:
    """Whether pids can be looked up here: /proc is mounted, and shows the pid namespace that this process is in.

    A sandbox may have no /proc, or that of the system around it, in which every pid is another process's. Not on Linux:
    whether `ps` is there, and sees this process.
    """
    try:
        if not LINUX:
            return process_started(os.getpid()) is not None
        with open("/proc/self/status", "rb") as file:
            lines = file.read().split(b"\n")
    except OSError:
        return False
    # one number for each namespace, from that of /proc down to our own
    numbers = next((line.split()[1:] for line in lines if line.startswith(b"NSpid:")), None)
    if numbers is None:  # Linux before 4.1
        return os.readlink("/proc/self") == str(os.getpid())
    return numbers == [str(os.getpid()).encode()]


def stat_fields(pid: int) -> list[bytes]:
    """What /proc/PID/stat tells after the program's name: state, parent, group, session, and so on.

    Linux only; raises OSError.
    """
    with open(f"/proc/{pid}/stat", "rb") as file:
        return file.read().rpartition(b")")[2].split()


def process_started(pid: int) -> str | None:
    """When a process started, as text that differs for a later process with the same pid; None when none is seen.

    Raises OSError when it cannot be looked up now: no descriptor, or no process to ask `ps` with, is left.
    """
    if LINUX:
        try:
            fields = stat_fields(pid)
        except (FileNotFoundError, ProcessLookupError, PermissionError):
            return None
        return None if fields[0] in ENDED else fields[19].decode()
    return ps.started(pid)


_this: tuple[int, str] = (0, "")
_pid = os.getpid()


def _note_pid() -> None:
    global _pid  # noqa: PLW0603  (one process, one number)
    _pid = os.getpid()
    host_id.cache_clear()  # a child may be the first in a new pid namespace
    sees_processes.cache_clear()


os.register_at_fork(after_in_child=_note_pid)


def current_pid() -> int:
    """This process's pid, from a cache: every step of a message checks it for forks."""
    return _pid


def this_process() -> str:
    """This process's own name, `host:pid:start+byte`: no other process, before or after, has the same.

    `byte` is a random number. In the rooms whose folder has locks, this process holds the lock on that byte of a file
    for as long as it has the room open (`stores/liveness.py`). Where no start time can be seen, chance stands in its
    place.
    """
    global _this  # noqa: PLW0603  (one process, one name)
    pid = os.getpid()
    if _this[0] != pid:
        byte = int.from_bytes(os.urandom(8), "big") >> 2  # an offset in a file has 63 bits
        started = _started_if_seen(pid)
        _this = (pid, f"{host_id()}:{pid}:{started or f'{_UNSEEN}{byte:x}'}{_BYTE}{byte:x}")
    return _this[1]


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
    """The name of another process, which may be any program: without a byte.

    None when it does not run, or cannot be seen.
    """
    started = _started_if_seen(pid)
    return None if started is None else f"{host_id()}:{pid}:{started}"


def _started_if_seen(pid: int) -> str | None:
    with suppress(OSError):
        return process_started(pid) if sees_processes() else None
    return None


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
    try:
        found = process_started(int(pid))
    except OSError:  # not to be seen is not to be gone (tests/core/test_portable.py)
        return None
    return None if found is None and _is_hidden(int(pid)) else found == started


def _is_hidden(pid: int) -> bool:
    """Whether there is a process of that number which is not shown to this user (hidepid)."""
    try:
        os.kill(pid, 0)
    except PermissionError:
        return not LINUX or not os.access(f"/proc/{pid}/stat", os.R_OK)
    except (ProcessLookupError, OverflowError):
        pass
    return False


def is_stopped(pid: int) -> bool:
    """Whether a process is held by Ctrl-Z or by a debugger; False where that cannot be seen."""
    try:
        return stat_fields(pid)[0] in (b"T", b"t") if LINUX else ps.is_stopped(pid)
    except OSError:
        return False


def processes_with(path: Path) -> list[int]:
    """The other processes that have a file open, as far as they can be seen (those of this user)."""
    if not LINUX:
        return ps.users_of(path)
    target = os.path.realpath(path)
    names = os.listdir("/proc") if sees_processes() else []
    others = [int(name) for name in names if name.isdigit() and int(name) != os.getpid()]
    return sorted(pid for pid in others if target in _open_files(pid))


def _open_files(pid: int) -> Iterator[str]:
    with suppress(OSError):  # it ended, or belongs to somebody else
        for number in os.listdir(f"/proc/{pid}/fd"):
            with suppress(FileNotFoundError):  # closed a moment ago
                yield os.readlink(f"/proc/{pid}/fd/{number}")


def process_descriptor(pid: int) -> int | None:
    """A descriptor that can be read once the process is gone; None when it is gone, or where there is none.

    A pidfd on Linux, a kqueue on BSD and macOS. Elsewhere only children have one: a thread waits for them.
    """
    try:
        if LINUX and sys.platform == "linux":
            return os.pidfd_open(pid) if hasattr(os, "pidfd_open") else None
        return _queue_for_end(pid) if hasattr(select, "kqueue") else _pipe_for_end(pid)
    except OSError:
        return None


def _queue_for_end(pid: int) -> int:
    kq: Any = select
    with kq.kqueue() as queue:
        flags = kq.KQ_EV_ADD | kq.KQ_EV_ONESHOT
        queue.control([kq.kevent(pid, kq.KQ_FILTER_PROC, flags, kq.KQ_NOTE_EXIT)], 0)
        return os.dup(queue.fileno())


def _pipe_for_end(pid: int) -> int:
    """The end of a pipe whose other end is closed when a child has ended. The child is not reaped by that."""
    system: Any = os  # macOS has no `waitid`, but kqueues
    wait = system.waitid
    wait(os.P_PID, pid, os.WEXITED | os.WNOWAIT | os.WNOHANG)  # raises ChildProcessError: not a child of ours
    read, write = os.pipe()

    def run() -> None:
        with suppress(ChildProcessError):  # reaped meanwhile
            wait(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
        os.close(write)

    start_thread(threading.Thread(target=run, name="postroom child watch", daemon=True))
    return read


def core_count() -> int:
    """How many cores this process may use, as far as the system tells; or how many there are."""
    if LINUX and sys.platform == "linux":
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


class Threads:
    """How threads are begun and waited for. The simulation of `postroom.testing` has a way of its own."""

    def start(self, thread: threading.Thread) -> None:
        """Let it run."""
        thread.start()

    def join(self, thread: threading.Thread, timeout_s: float | None) -> None:
        """Wait until it is over, or time ran out; not for one that never began, nor for the caller's own."""
        if thread.ident is not None and thread is not threading.current_thread():
            thread.join(timeout_s)

    def wait_for(self, event: threading.Event, timeout_s: float | None) -> bool:
        """Wait until an event is set; False when it is not after that time."""
        return event.wait(timeout_s)

    def acquire(self, lock: threading.Lock, timeout_s: float | None) -> bool:
        """Take a lock; False when another has it all that time."""
        return lock.acquire(timeout=-1 if timeout_s is None else max(0.0, timeout_s))


_threads = Threads()


def play_threads(threads: Threads) -> Threads:
    """For the simulation: begin and await threads in this way from now on. Returns the way that was in use."""
    global _threads
    before, _threads = _threads, threads
    return before


def join_thread(thread: threading.Thread, timeout_s: float | None) -> None:
    """Wait until a thread that `start_thread` was asked to start is over, or time ran out; never for the caller's own."""
    _threads.join(thread, timeout_s)


def wait_event(event: threading.Event, timeout_s: float | None) -> bool:
    """Wait until another thread has set an event; False when it has not after that time."""
    return _threads.wait_for(event, timeout_s)


def acquire_lock(lock: threading.Lock, timeout_s: float | None) -> bool:
    """Take a lock that another thread lets go of; False when it has not after that time."""
    return _threads.acquire(lock, timeout_s)


def start_thread(thread: threading.Thread) -> None:
    """Start a thread. An interrupt raises what the signal's handler raised, and leaves open whether the thread runs.

    CPython's own `start` makes a KeyError of it when it comes right after the thread began
    (tests/faults/test_interrupts.py).
    """
    try:
        _threads.start(thread)
    except KeyError as error:
        if error.__context__ is None:
            raise
        raise error.__context__ from None
