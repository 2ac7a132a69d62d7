"""The sockets of a room's bells: Unix datagram sockets in a folder of the room, named by their slots.

Sockets in a folder reach every process that shares the folder: a socket's name is looked up in the file system, so
containers with a network namespace of their own are reached as well, and a stranger that may not enter the folder can
neither ring a bell nor take its name. (Abstract names belong to a network namespace, and to whichever user comes
first.)

A slot is owned by a kernel lock: an open-file-description lock (OFD lock) on the slot's byte of the page of flags; on
systems without those, a `flock` of a file of its own. The kernel drops it when the owner dies, in whichever
container that was. Only the owner removes what a dead process left under the slot's name, so two processes never replace
each other's sockets.

Nothing here belongs to a forked child: the child closes its copies, so that a name is free and a lock is dropped when
the process that took them ends.
"""

from __future__ import annotations

import _socket
import errno
import fcntl
import os
import socket
import stat
import struct
from contextlib import suppress
from io import FileIO
from pathlib import Path
from typing import Final
from weakref import WeakSet

from postroom.core.system import LINUX

from . import shortcuts

#: The folder of the sockets, beside the page of flags.
SOCKETS: Final = "sockets"
#: The longest name of a socket that every system takes, in bytes (Linux: 107).
_NAME_BYTES_MOST: Final = 103
_DIGITS: Final = 3
#: So many slots that are rung again and again have a socket of ours connected to them: a name that has to be looked up
#: is 1.7 µs of each ring.
_LINES_MOST: Final = 8
_FOLDER: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
#: `fcntl`'s command for OFD locks; None on systems that have none.
_LOCK: Final[int | None] = getattr(fcntl, "F_OFD_SETLK", None) if LINUX else None
#: The folder of the files that are locked instead, one for each slot.
LOCKS: Final = "locks"
#: C's `struct flock`: kind, from where, first byte, number of bytes, process (0 for OFD locks).
_FLOCK: Final = struct.Struct("hhqqi0q")


class NoBells(Exception):
    """This system or this folder has no means to wake others; watch instead."""


class _Descriptor(FileIO):
    """A descriptor that is closed with the last reference to this object, or before, and without a warning.

    The destructor is C. In one of Python's the handler of a signal may run, and Python prints and drops whatever is
    raised in a destructor: a Ctrl-C that came at that moment would be lost.
    """

    __del__ = FileIO.close


class _Socket(socket.socket):
    """A datagram socket that does not block, and is closed in the same way when nothing refers to it any more.

    An interrupt of a room that opens may come between the socket and its first owner (tests/stores/test_bell_sockets.py:
    test_a_socket_that_was_dropped_is_closed_without_a_word).
    """

    __slots__ = ()
    __del__ = _socket.socket.close  # of C, where that of the standard library's class is Python

    def __init__(self) -> None:
        super().__init__(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.setblocking(False)


class BellSockets:
    """The sockets of one room, as one `Bells` object uses them. Any thread may call any method; no method waits."""

    def __init__(self, page: Path, *, group: bool = False) -> None:
        """`page` is the file of flags, which exists. Raises OSError."""
        #: True in a forked child: nothing here may be used there, and the page of flags is not to be touched.
        self.inherited = False
        self._folder = Path(os.path.abspath(page.parent))
        self._group = group
        self._owner = os.stat(self._folder).st_uid
        self._prefix = ""  # the names without their numbers, once the folder is known to be in order
        self._addresses: dict[int, bytes] = {}  # of names that were seen to be sockets
        self._lines: dict[int, _Descriptor] = {}
        self._taken: dict[int, object] = {}
        self._lock_files: dict[int, _Descriptor] = {}  # of the slots that are taken; none with OFD locks
        self._closed = False
        # Opened anew: a map of the page is kept by forked children, with the open file that it was made of and its
        # locks.
        self._locks = _Descriptor(os.open(page, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW), "r+b")
        self._sender = _Socket()
        self._open: set[FileIO | socket.socket] = {self._sender, self._locks}
        self._folders: list[int] = []  # descriptors that the prefix names, or did
        self._shortcut: shortcuts.Shortcut | None = None
        _all.add(self)

    # Ringing

    def ring(self, slot: int) -> bool:
        """Send a datagram to a slot. False when nobody has it."""
        line = self._lines.get(slot)
        if line is None:
            return self._ring_by_name(slot)
        try:
            line.write(b"!")  # or not, when its queue is full of hints
        except OSError:  # the owner of the slot is gone, and another process may have it now
            self._lines.pop(slot, None)  # not closed here: another thread may be about to write to it
            return self._ring_by_name(slot)
        return True

    def _ring_by_name(self, slot: int) -> bool:
        self._renew_shortcut()
        known = slot in self._addresses
        address = self._addresses.get(slot) or self._address(slot)
        if not address:
            return False
        try:
            self._sender.sendto(b"!", address)
        except BlockingIOError:
            return True
        except OSError as error:
            return error.errno not in (errno.ECONNREFUSED, errno.ENOENT)
        if known and len(self._lines) < _LINES_MOST:
            self._connect(slot, address)
        return True

    def _connect(self, slot: int, address: bytes) -> None:
        """Ring the slot through a line of its own from now on."""
        with suppress(OSError), _Socket() as line:
            line.connect(address)
            self._lines[slot] = _Descriptor(line.detach(), "wb")

    def _address(self, slot: int) -> bytes:
        """The name of a slot's socket, if there is one. No symbolic link is followed, as the name or as the folder."""
        try:
            address = os.fsencode(f"{self._prefix or self._enter()}{slot}")
            if not stat.S_ISSOCK(os.lstat(address).st_mode):
                return b""
        except (OSError, NoBells):
            return b""
        if not self._group:  # a member of the group might put something else there
            self._addresses[slot] = address
        return address

    # Slots

    def take(self, slot: int) -> socket.socket | None:
        """The slot's socket; None when somebody else has the slot. Raises NoBells where no socket can be had at all.

        It may race with `close` in another thread. Here the slot is noted first and `_closed` is read then; there
        `_closed` is set first and the slots are looked at then. So either this call sees that the bells are closed, or
        `close` sees the slot and leaves the rest to `_free`.
        """
        mine = object()
        if self._taken.setdefault(slot, mine) is not mine:
            return None
        bound = None
        try:
            if self._closed:
                raise NoBells("the room was closed meanwhile")
            self._renew_shortcut()
            name = f"{self._prefix or self._enter(make=True)}{slot}"
            if self._lock(slot, fcntl.F_WRLCK):
                bound = self._bind(name)
        except OSError as error:
            if error.errno in (errno.EADDRINUSE, errno.EISDIR):
                return None  # somebody put something else there
            self._prefix = ""  # the folder may have been removed; it is made again
            self._addresses.clear()
            raise NoBells(f"no socket can be made in {self._folder / SOCKETS}: {error.strerror or error}") from error
        finally:
            if bound is None:
                self._free(slot)
        return bound

    def _bind(self, name: str) -> socket.socket:
        with suppress(FileNotFoundError):
            os.unlink(name)  # of a process that was killed
        bound = _Socket()
        self._open.add(bound)  # before it has a name: a fork from now on leaves none with the child
        try:
            bound.bind(os.fsencode(name))
            self._share(name, 0o660)
        except BaseException:
            self.let_go(bound)
            raise
        return bound

    def give_back(self, slot: int, bound: socket.socket) -> None:
        """Close a slot's socket, and free the slot and its name."""
        if not self.inherited:
            with suppress(OSError):
                os.unlink(f"{self._prefix}{slot}")
            self.let_go(bound)
            self._free(slot)

    def _free(self, slot: int) -> None:
        with suppress(OSError, ValueError):  # or all was closed before, and the lock went with it
            self._lock(slot, fcntl.F_UNLCK)
        self._taken.pop(slot, None)
        if self._closed:
            self.close()

    def _lock(self, slot: int, kind: int) -> bool:
        """Take or drop the lock of a slot. False when another process has it."""
        if _LOCK is None:
            return self._lock_file(slot) if kind == fcntl.F_WRLCK else self._unlock_file(slot)
        try:
            fcntl.fcntl(self._locks.fileno(), _LOCK, _FLOCK.pack(kind, os.SEEK_SET, slot, 1, 0))
        except (BlockingIOError, PermissionError):
            return False
        return True

    def _lock_file(self, slot: int) -> bool:
        """Lock the file of a slot. False when another process has it. It stays: removing it would be a race."""
        place = self._make(LOCKS)
        name = f"{place}/{slot}"
        file = _Descriptor(os.open(name, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600), "r+b")
        self._open.add(file)  # before it is locked: a fork from now on leaves no lock with the child
        try:
            with suppress(PermissionError):  # another user made it, and has shared it
                self._share(name, 0o660)
            fcntl.flock(file.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self.let_go(file)
            return False
        except BaseException:
            self.let_go(file)
            raise
        self._lock_files[slot] = file
        return True

    def _unlock_file(self, slot: int) -> bool:
        held = self._lock_files.pop(slot, None)
        if held is not None:
            self.let_go(held)
        return True

    # The folder

    def _enter(self, *, make: bool = False) -> str:
        """The prefix of the names of sockets.

        Raises OSError and NoBells when the folder cannot be used, or is not there.
        """
        place = self._make(SOCKETS) if make else self._folder / SOCKETS
        folder = os.open(place, _FOLDER)
        try:
            about = os.fstat(folder)
            ours = self._group or about.st_uid in (self._owner, os.geteuid())
            if not ours or about.st_mode & (0o002 if self._group else 0o022):
                raise NoBells(f"{place} is not the room's own (user {about.st_uid}, mode {about.st_mode & 0o7777:04o})")
            prefix = f"{place}/"
            if len(os.fsencode(prefix)) + _DIGITS > _NAME_BYTES_MOST:
                prefix = self._shorten(place, folder)
        finally:
            if folder not in self._folders:
                os.close(folder)
        self._prefix = prefix
        return prefix

    def _make(self, name: str) -> Path:
        """A folder of the room, made if it is not there."""
        place = self._folder / name
        with suppress(FileExistsError):
            place.mkdir(mode=0o700)
            self._share(str(place), 0o2770)
        return place

    def _shorten(self, place: Path, folder: int) -> str:
        """A shorter prefix for a folder whose path is too long: through /proc, or through a link to it."""
        if LINUX:
            prefix = f"/proc/self/fd/{folder}/"
            if not os.path.isdir(prefix):
                raise NoBells(f"the path of {place} is too long for sockets, and /proc is not there to shorten it")
            self._folders.append(folder)
            return prefix
        if self._shortcut is None:
            self._shortcut = shortcuts.Shortcut(place)
        prefix = f"{self._shortcut.path}/"
        if len(os.fsencode(prefix)) + _DIGITS > _NAME_BYTES_MOST:
            raise NoBells(f"the path of {place} is too long for sockets, and so is that of the temporary files")
        return prefix

    def _renew_shortcut(self) -> None:
        """Have the prefix made anew where the link that it begins with was removed (tests/core/test_portable.py)."""
        if self._shortcut is not None and not self._shortcut.is_there():
            self._shortcut, self._prefix = None, ""
            self._addresses.clear()

    def _share(self, name: str, mode: int) -> None:
        """Share a name with the users of the room: its owner, where root made it in a container, and the group."""
        if os.geteuid() == 0 and self._owner != 0:
            with suppress(OSError):  # a user that this container does not know
                os.chown(name, self._owner, -1)
        if self._group:
            os.chmod(name, mode)

    # Descriptors

    def let_go(self, descriptor: FileIO | socket.socket) -> None:
        """Close a descriptor that was kept."""
        self._open.discard(descriptor)
        descriptor.close()

    def close(self) -> None:
        """Ring no more. Slots that are still taken stay so until they are given back."""
        self._closed = True
        self.let_go(self._sender)
        if not self._taken:
            self._close_all()

    def _close_all(self) -> None:
        self._lock_files.clear()
        if self._shortcut is not None and not self.inherited:
            self._shortcut.remove()
            self._shortcut = None
        self._lines = {}  # each is closed when no thread writes to it any more
        opened, self._open = self._open, set()
        for each in opened:
            each.close()
        while self._folders:
            os.close(self._folders.pop())

    def let_go_of_inherited(self) -> None:
        """In a forked child: close the copies. No lock is taken here, since a thread of the parent may have held it."""
        self.inherited = True
        self._close_all()


#: Of this process. Weak: a room that is forgotten lets go of its descriptors.
_all: Final[WeakSet[BellSockets]] = WeakSet()


def _forked() -> None:
    for sockets in list(_all):
        sockets.let_go_of_inherited()


os.register_at_fork(after_in_child=_forked)
