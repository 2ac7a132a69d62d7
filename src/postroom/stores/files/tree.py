"""The folder tree of a files room: every path is opened step by step from its root, and no symbolic link is followed.

Paths here are text relative to the root, with slashes. Files appear whole (`os.link` of a finished one) or are replaced
whole (`os.rename`), so that no reader ever sees half of one.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from io import FileIO
from itertools import count
from pathlib import Path
from typing import Final, NamedTuple, TypeVar

from postroom.core.clock import SYSTEM
from postroom.core.config import FOLDER
from postroom.core.system.process import this_process, without_byte

T = TypeVar("T")

OWN: Final = FOLDER
TEMP: Final = f"{OWN}/new"
_FOLDER: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
#: So many folders are kept open.
_OPEN_FOLDERS: Final = 256


class NotAFile(OSError):
    """What lies there is a symbolic link, a folder, a pipe or larger than any message."""


class FileSignature(NamedTuple):
    """What lies at a path, as far as it can be told without reading it: another after every change by hand."""

    mode: int
    inode: int
    size: int
    #: When its content changed, as its writer says; and when the system noted a change of it.
    changed_ns: int
    noted_ns: int

    @property
    def unchanged_ns(self) -> int:
        """How long it has been as it is: it knows that also for commands that end long before its time is over.

        By the system's own note, which a write or a move renews and nobody sets; `cp -p` makes a new file look old by
        the other (tests/stores/files/test_broken.py).
        """
        return SYSTEM.wall_ms() * 1_000_000 - self.noted_ns


class Tree:
    """One folder and everything below it. Not for several threads at once, but for `temp` and `sync`."""

    def __init__(self, root: Path, *, group: bool = False) -> None:
        self.root = root
        self._folder_mode = 0o2770 if group else 0o700
        self._file_mode = 0o660 if group else 0o600
        self._root = os.open(root, _FOLDER)
        #: The name of this process that temporary files carry.
        self.process = without_byte(this_process())
        self._folders: dict[str, int] = {}
        self._counter = count(1)  # one step of the interpreter each: also for threads, and for handlers of signals
        self._temp = self.folder(TEMP, make=True, sync=False)

    # Folders

    def is_there(self) -> bool:
        """Whether the root, and Postroom's own folder in it, still lie where they were opened.

        True where nobody can tell.
        """
        try:
            return all(
                os.path.samestat(os.fstat(descriptor), os.stat(path))
                for descriptor, path in ((self._root, self.root), (self._temp, self.root / TEMP))
            )
        except (FileNotFoundError, NotADirectoryError):
            return False
        except OSError:
            return True

    def folder(self, path: str, *, make: bool = False, sync: bool = True) -> int:
        """A descriptor of a folder, "" for the room's, to be used at once.

        Raises FileNotFoundError, or NotADirectoryError for a link.
        """
        if not path:
            return self._root
        known = self._folders.get(path)
        if known is not None:
            return known
        here = self._root
        opened: list[int] = []
        try:
            for part in path.split("/"):
                here = self._enter(here, part, make=make, sync=sync)
                opened.append(here)
        except BaseException:
            for descriptor in opened:
                os.close(descriptor)
            raise
        for descriptor in opened[:-1]:
            os.close(descriptor)
        if len(self._folders) >= _OPEN_FOLDERS:
            self._shut(next(name for name in self._folders if name != TEMP))
        self._folders[path] = here
        return here

    def _enter(self, parent: int, name: str, *, make: bool, sync: bool) -> int:
        try:
            return os.open(name, _FOLDER, dir_fd=parent)
        except FileNotFoundError:
            if not make:
                raise
        with suppress(FileExistsError):
            os.mkdir(name, self._folder_mode, dir_fd=parent)
            os.chmod(name, self._folder_mode, dir_fd=parent)  # whatever the umask is
            if sync:
                os.fsync(parent)
        return os.open(name, _FOLDER, dir_fd=parent)

    def _with_folder(self, path: str, act: Callable[[int], T], *, make: bool = False) -> T:
        """Act in a folder; once more when somebody removed it and made it anew since we opened it."""
        known = path in self._folders
        try:
            return act(self.folder(path, make=make))
        except FileNotFoundError:
            if not known or not self._forget(path):
                raise
        return act(self.folder(path, make=make))

    def _forget(self, path: str) -> bool:
        """Close a folder that is no longer where it was. False when it is."""
        if path == TEMP:
            return False
        here = os.fstat(self._folders[path])
        with suppress(OSError):
            there = os.stat(self.root / path, follow_symlinks=False)
            if (here.st_dev, here.st_ino) == (there.st_dev, there.st_ino):
                return False
        self._shut(path)
        return True

    def _shut(self, path: str) -> None:
        """Close a folder and forget it: both, or neither, also when a signal comes (see `close_all`)."""
        try:
            os.close(self._folders[path])
        finally:
            del self._folders[path]

    def look_again(self) -> None:
        """Forget folders that were moved away, or replaced, since they were opened."""
        for path in list(self._folders):
            self._forget(path)

    def names(self, folder: str) -> list[str]:
        """What lies in a folder; nothing when there is none, or a link in its place."""
        try:
            return self._with_folder(folder, os.listdir)
        except (FileNotFoundError, NotADirectoryError):
            return []
        except OSError as error:
            if error.errno == errno.ELOOP:
                return []
            raise

    def folders(self, folder: str) -> list[str]:
        """The real folders in a folder."""
        return [name for name in self.names(folder) if self.kind(f"{folder}/{name}") == stat.S_IFDIR]

    def changed_ns(self, folder: str) -> int:
        """When a folder's list of names last changed; -1 when it is not there."""
        try:
            return os.stat(self.root / folder, follow_symlinks=False).st_mtime_ns
        except OSError:
            return -1

    # Files

    def kind(self, path: str) -> int | None:
        """What lies at a path (`stat.S_IFREG`, …); None for nothing."""
        found = self.signature(path)
        return None if found is None else stat.S_IFMT(found.mode)

    def signature(self, path: str) -> FileSignature | None:
        """What lies at a path; None for nothing."""
        folder, _, name = path.rpartition("/")
        try:
            about = self._with_folder(folder, lambda fd: os.stat(name, dir_fd=fd, follow_symlinks=False))
        except OSError as error:
            if error.errno in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.ENAMETOOLONG):
                return None
            raise
        return FileSignature(about.st_mode, about.st_ino, about.st_size, about.st_mtime_ns, about.st_ctime_ns)

    def read(self, path: str, most_bytes: int) -> bytes:
        """The content of a file. Raises FileNotFoundError, or NotAFile for what is no plain file or too large."""
        folder, _, name = path.rpartition("/")
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC  # opening a pipe must not wait
        try:
            descriptor = self._with_folder(folder, lambda fd: os.open(name, flags, dir_fd=fd))
        except FileNotFoundError:
            raise
        except OSError as error:
            raise NotAFile(error.errno, f"{path} cannot be opened as a regular file ({error.strerror})") from error
        try:
            about = os.fstat(descriptor)
            if not stat.S_ISREG(about.st_mode):
                raise NotAFile(errno.EINVAL, f"{path} is not a regular file")
            if about.st_size > most_bytes:
                raise NotAFile(errno.EFBIG, f"{path} is {about.st_size} bytes long; the limit is {most_bytes}")
            return _read_all(descriptor, about.st_size)
        finally:
            os.close(descriptor)

    def temp(self, data: bytes, *, sync: bool = True) -> str:
        """Write a new file where nobody looks; its path. It is on the disk when this returns."""
        name = self._temp_name()
        # One call in C from the system's answer to an object that closes itself: making a file takes long, and a signal
        # that comes meanwhile is handled right after it, before any variable has the number
        # (tests/faults/test_handlers.py).
        opener = partial(os.open, mode=self._file_mode, dir_fd=self._temp)
        try:
            with FileIO(name, "x", opener=opener) as file:
                os.fchmod(file.fileno(), self._file_mode)
                written = file.write(data)
                while written < len(data):
                    written += file.write(data[written:])
                if sync:
                    os.fsync(file.fileno())
        except BaseException:
            self.drop(name)
            raise
        return f"{TEMP}/{name}"

    def _temp_name(self) -> str:
        """A name that tells whose it is, so that others can clear up behind a process that died."""
        return f"{self.process}~{id(self):x}~{next(self._counter)}"

    def replace(self, path: str, data: bytes) -> None:
        """Give a file another content: readers see the old one or the new one, whole."""
        self.rename(self.temp(data), path)

    def link(self, was: str, path: str) -> None:
        """Let a file appear under another name too. Raises FileExistsError instead of overwriting one."""
        with self._both(was, path) as (from_folder, name, to_folder, new_name):
            os.link(name, new_name, src_dir_fd=from_folder, dst_dir_fd=to_folder, follow_symlinks=False)

    def rename(self, was: str, path: str) -> None:
        """Move a file in one step: of several who try, one succeeds, and the others get FileNotFoundError."""
        with self._both(was, path) as (from_folder, name, to_folder, new_name):
            os.rename(name, new_name, src_dir_fd=from_folder, dst_dir_fd=to_folder)

    @contextmanager
    def _both(self, was: str, path: str) -> Iterator[tuple[int, str, int, str]]:
        (from_folder, _, name), (to_folder, _, new_name) = was.rpartition("/"), path.rpartition("/")
        for folder in {from_folder, to_folder} - {TEMP}:
            if folder in self._folders and os.fstat(self._folders[folder]).st_nlink == 0:  # removed
                self._shut(folder)
        to_descriptor = self.folder(to_folder, make=True) if to_folder else self._root
        from_descriptor = self.folder(from_folder)
        if to_folder and to_folder not in self._folders:  # opening the one may have closed the other
            to_descriptor = self.folder(to_folder)
        yield from_descriptor, name, to_descriptor, new_name

    def unlink(self, path: str) -> None:
        """Remove a file; nothing happens when there is none."""
        folder, _, name = path.rpartition("/")
        with suppress(FileNotFoundError):
            self._with_folder(folder, lambda fd: os.unlink(name, dir_fd=fd))

    def copy(self, path: str) -> str:
        """A further name of a file, where nobody looks; its path."""
        place = f"{TEMP}/{self._temp_name()}"
        self.link(path, place)
        return place

    def tell(self, path: str, text: str) -> None:
        """Write a small file, unless there is one."""
        if self.signature(path) is None:
            self.replace(path, text.encode())

    def same(self, path: str, other: str) -> bool:
        """Whether two paths are names of one file."""
        here, there = self.signature(path), self.signature(other)
        return here is not None and there is not None and here.inode == there.inode

    def drop(self, temp: str) -> None:
        """Remove a file that `temp` made, from any thread, also when another has closed the tree meanwhile."""
        name = temp.rpartition("/")[2]
        with suppress(FileNotFoundError):
            try:
                os.unlink(name, dir_fd=self._temp)
            except OSError:
                if self._temp >= 0:
                    raise
                os.unlink(self.root / TEMP / name)

    def hold(self, folder: str) -> int:
        """A descriptor of a folder for `sync`, of the caller's own."""
        return os.dup(self.folder(folder))

    def sync(self, *folders: str) -> None:
        """Make the names in some folders survive a power cut."""
        for folder in folders:
            os.fsync(self.folder(folder) if folder else self._root)

    def close(self) -> None:
        """Let go of all folders. Safe to call twice; a call that was interrupted leaves the rest to the next."""
        self._temp = -1  # first: other threads must not find another folder under its number
        while self._folders:
            self._shut(next(iter(self._folders)))
        if self._root >= 0:
            try:
                os.close(self._root)
            finally:
                self._root = -1


def _read_all(descriptor: int, size: int) -> bytes:
    data = os.read(descriptor, size + 1)
    while len(data) < size and (more := os.read(descriptor, size + 1 - len(data))):
        data += more
    return data
