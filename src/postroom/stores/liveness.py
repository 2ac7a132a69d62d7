"""Failure detection by kernel locks: a process of a room is alive while it holds the lock on its byte of one file.

A pid says nothing in another pid namespace, and nothing where /proc is missing or shows another namespace. A POSIX
record lock says the same to every process of one kernel. It belongs to one process, a fork does not inherit it, and the
kernel drops it when the process ends, however it ends. So each process that opens a room locks a byte of the file
`alive` in the room's folder. Which byte, its name says (`core.system.process.this_process`): a random number of 62
bits, so that no byte is ever used twice and an unlocked byte means that its process has gone, or has closed the room.

Beware: closing *any* descriptor of that file drops the process's lock. Only this module opens it,
with one descriptor for each file and process (tests/stores/test_liveness.py).
"""

from __future__ import annotations

import fcntl
import os
import stat
import struct
import sys
import threading
from pathlib import Path
from typing import Final

from postroom.core.system.files import close_all, is_local, open_shared
from postroom.core.system.process import byte_of, process_alive, sees_processes, this_process, without_byte

FILE: Final = "alive"
#: How the lives of others are judged, best first: by their locks, by pid and start time, or by their heartbeats alone.
BY_LOCKS: Final = "locks"
BY_PIDS: Final = "pids"
BY_HEARTBEATS: Final = "heartbeats"

_FLAGS: Final = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
#: `struct flock`: type, whence, start, length, pid on Linux; elsewhere start, length, pid, type, whence.
_TYPE_FIRST: Final = sys.platform == "linux"
_FLOCK: Final = struct.Struct("hhqqi" if _TYPE_FIRST else "qqihh")


class _Held:
    """A file `alive` that this process has open. The first descriptor is used; none is closed before all are."""

    __slots__ = ("descriptors", "users")

    def __init__(self) -> None:
        self.descriptors: list[int] = []
        self.users = 0

    def close(self) -> None:
        try:
            close_all(self.descriptors)
        finally:  # interrupted: nobody else knows them any more
            close_all(self.descriptors)


#: By device and inode: one file may have several paths.
_held: dict[tuple[int, int], _Held] = {}
_mutex = threading.RLock()  # reentrant: a signal handler may open a room, too


def _forked() -> None:
    """A process that was just forked off has no lock, and needs none of the descriptors."""
    global _mutex  # noqa: PLW0603  (another thread of the process before may have had it)
    _mutex = threading.RLock()
    for held in _held.values():
        held.close()
    _held.clear()


os.register_at_fork(after_in_child=_forked)


class Attendance:
    """This process's lock in one room, for as long as it has the room open, and a look at the locks of others."""

    def __init__(self, folder: Path, kind: str, *, mode: int = 0o600) -> None:
        """Lock this process's byte; `kind` is the folder's `file_system_type`.

        Never raises: where there is no lock that all processes see, others judge this process by its pid or its
        heartbeats, and `process` is a name without a byte.
        """
        self._pid = os.getpid()
        self._own = without_byte(this_process())
        #: Whether all processes that use this folder see the same locks. On network file systems, in folders that a
        #: virtual machine shares with its host, and on file systems that are not known here, that is not certain.
        self._reaches = is_local(folder, kind)
        self._identity: tuple[int, int] | None = None
        self._attend(folder / FILE, mode)
        #: The name under which this process stands in the room.
        self.process = this_process() if self.hold() and self._reaches else self._own

    def _attend(self, path: Path, mode: int) -> None:
        with _mutex:
            try:
                identity = _identity(os.stat(path, follow_symlinks=False))
            except OSError:
                identity = None
            if identity not in _held:
                try:
                    descriptor = _open(path, mode)
                except OSError:
                    return
                about = os.fstat(descriptor)
                identity = _identity(about)
                if not stat.S_ISREG(about.st_mode):
                    os.close(descriptor)
                    return
                held = _held.get(identity) or _Held()  # one that is there was given another path in this very moment
                held.descriptors.append(descriptor)
                _held[identity] = held
            assert identity is not None
            _held[identity].users += 1
            self._identity = identity

    def hold(self) -> bool:
        """Have the lock, also when somebody else's code in this process has closed the file. Whether it is had."""
        byte = byte_of(this_process())
        with _mutex:
            held = self._file()
            if held is None or byte is None:
                return False
            try:
                fcntl.lockf(held.descriptors[0], fcntl.LOCK_EX | fcntl.LOCK_NB, 1, byte)
            except OSError:  # a file system without locks
                return False
            return True

    def is_alive(self, process: str) -> bool | None:
        """Whether a process that stands in this room still has it open. None when that cannot be seen.

        A lock is proof of life. Without one a process that the pid shows to run is alive, too: it may have closed the
        room. Of all others a missing lock is proof of death where locks reach everybody.
        """
        if without_byte(process) == self._own:
            return True
        byte = byte_of(process)
        locked = None if byte is None else self._is_locked(byte, 1)
        if locked:
            return True
        seen = process_alive(process)
        if seen is None and locked is False and self._reaches:
            return False
        return seen

    def open_elsewhere(self) -> bool:
        """Whether another process has the room open, as far as locks tell."""
        return self._is_locked(0, 0) is True

    def open_twice(self) -> bool:
        """Whether the room is open a second time, in this process or in another."""
        with _mutex:
            held = self._file()
            return held is not None and (held.users > 1 or self.open_elsewhere())

    def judged_by(self) -> str:
        """How the lives of others are judged here: BY_LOCKS, BY_PIDS or BY_HEARTBEATS."""
        if self._reaches and self._file() is not None:
            return BY_LOCKS
        return BY_PIDS if sees_processes() else BY_HEARTBEATS

    def _file(self) -> _Held | None:
        """The file, while it is open in this process."""
        if self._identity is None or self._pid != os.getpid():
            return None
        return _held.get(self._identity)

    def _is_locked(self, start: int, length: int) -> bool | None:
        """Whether another process has locked one of these bytes; None when that cannot be told.

        A length of 0 is all.
        """
        with _mutex:  # or another thread may close it, and the number be given to another file
            held = self._file()
            if held is None:
                return None
            try:
                return _ask(held.descriptors[0], start, length)
            except OSError:
                return None

    def close(self) -> None:
        """Leave the room; the lock goes when nobody in this process has it open. Safe to call twice, and in a fork."""
        with _mutex:
            held, identity = self._file(), self._identity
            self._identity = None
            if held is None or identity is None:
                return
            held.users -= 1
            if held.users == 0:
                del _held[identity]
                held.close()


def _open(path: Path, mode: int) -> int:
    try:
        return open_shared(path, _FLAGS, mode)
    except OSError:  # it cannot be written: the locks of others can be looked at
        return os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)


def _ask(descriptor: int, start: int, length: int) -> bool:
    """Ask the kernel for a lock that would be in the way of ours. Our own never are."""
    lock, place = (fcntl.F_WRLCK, os.SEEK_SET), (start, length, 0)
    asked = _FLOCK.pack(*lock, *place) if _TYPE_FIRST else _FLOCK.pack(*place, *lock)
    kind = _FLOCK.unpack(fcntl.fcntl(descriptor, fcntl.F_GETLK, asked))[0 if _TYPE_FIRST else 3]
    return bool(kind != fcntl.F_UNLCK)


def _identity(about: os.stat_result) -> tuple[int, int]:
    return about.st_dev, about.st_ino
