"""Files and folders: private folders, opening without following links, syncing to disk, kinds of file systems."""

from __future__ import annotations

import fcntl
import mmap
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from . import LINUX, libc, ps
from .process import is_stopped

#: File systems on which SQLite's write-ahead log is not safe: their locks or shared memory do not reach other hosts.
NETWORK_FILE_SYSTEMS: Final = frozenset((
    "9p", "afs", "afpfs", "beegfs", "ceph", "cifs", "coda", "davfs", "fuse.ceph", "fuse.glusterfs", "fuse.rclone",
    "fuse.s3fs", "fuse.sshfs", "glusterfs", "gpfs", "lustre", "ncpfs", "nfs", "nfs4", "orangefs", "panfs",
    "pvfs2", "smb", "smb2", "smb3", "smbfs", "virtiofs", "webdav",
))  # fmt: skip

#: File systems of this kernel alone: every process that has a file there open sees the locks of all others. By name,
#: and by the number that the system gives where names cannot be read.
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
#: The same of other systems.
_LOCAL_ELSEWHERE: Final = frozenset(("apfs", "exfat", "ffs", "hammer2", "hfs", "msdos", "ufs"))


#: With less than this nothing can be begun on a disk.
_FULL_BYTES: Final = 64 * 1024


def file_system_type(path: Path) -> str:
    """The kind of file system that a folder lies on ("ext4", "nfs4", …), or "" where that cannot be told."""
    target = os.path.realpath(path)
    try:
        mounts = _mounts() if LINUX else ps.mounts(os.stat(target).st_dev)
    except OSError:
        return ""
    best, kind = "", ""
    for point, its_kind in mounts:
        inside = target == point or target.startswith(point.rstrip("/") + "/")
        if inside and len(point) >= len(best):
            best, kind = point, its_kind
    return kind


def _mounts() -> list[tuple[str, str]]:
    found = []
    for line in Path("/proc/self/mountinfo").read_text(encoding="utf-8", errors="surrogateescape").splitlines():
        left, _, right = line.partition(" - ")
        found.append((left.split()[4].replace("\\040", " "), right.split()[0]))
    return found


def is_local(folder: Path, kind: str) -> bool:
    """Whether a folder lies on a file system of this kernel alone; `kind` is its `file_system_type`.

    False: it may not.
    """
    if kind or not LINUX:
        return kind in LOCAL_FILE_SYSTEMS or (not LINUX and kind in _LOCAL_ELSEWHERE)
    return libc.file_system_number(folder) in LOCAL_FILE_SYSTEMS.values()


def why_unwritable(folder: Path, *files: Path) -> str:
    """Why nothing can be written to a folder, or to these files in it; "" where nothing speaks against it.

    A disk that is as good as full is named as well: for an error that has happened, the cause.
    """
    with suppress(OSError):
        about = os.statvfs(folder)
        if about.f_flag & os.ST_RDONLY:
            return "its file system is read-only"
        if not all(os.access(path, os.W_OK) for path in (folder, *files) if path.exists()):
            return "you may not write there (check its owner and its mode)"
        free = about.f_bfree if os.geteuid() == 0 else about.f_bavail
        if free * about.f_frsize < _FULL_BYTES or (about.f_files and not about.f_ffree):
            return "its disk is full"
    return ""


def no_follow(path: str, flags: int) -> int:
    """An `opener` for `open` that refuses a symbolic link: for files of a room whose folder others may have filled."""
    return os.open(path, flags | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)


def open_shared(path: Path, flags: int, mode: int) -> int:
    """Open a file, and make it with that mode: where the mode is for a group, whatever the umask is."""
    descriptor = os.open(path, flags, mode)
    if mode & 0o070:
        with suppress(PermissionError):  # another user's file, and that user has set its mode
            os.fchmod(descriptor, mode)
    return descriptor


def close_all(descriptors: list[int]) -> None:
    """Close descriptors, the last first, and take each out of the list.

    A signal whose handler raises leaves in the list what is still open, and nothing else: the next call closes the
    rest. Python looks for signals when `os.close` has returned, and nowhere between that and the `finally`
    (tests/faults/test_interrupts.py).
    """
    while descriptors:
        try:
            os.close(descriptors[-1])
        finally:
            descriptors.pop()


def map_part(descriptor: int, begin: int, size: int) -> mmap.mmap:
    """Map a part of a file, allocated before: writing to a hole on a full disk would end the process by SIGBUS."""
    if os.fstat(descriptor).st_size < begin + size:
        if LINUX and sys.platform == "linux":
            os.posix_fallocate(descriptor, begin, size)
        else:
            _fill(descriptor, begin + size)
    return mmap.mmap(descriptor, size, offset=begin)


def _fill(descriptor: int, size: int) -> None:
    """Make a file that long, with zeros: one process at a time, so that none writes over what another has begun."""
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    try:
        end = os.fstat(descriptor).st_size
        os.pwrite(descriptor, bytes(max(0, size - end)), end)
    finally:
        fcntl.flock(descriptor, fcntl.LOCK_UN)


@contextmanager
def locked(path: Path, flags: int) -> Iterator[None]:
    """The block runs in one process at a time, of those that lock the same file or folder. Raises OSError."""
    descriptor = os.open(path, flags | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        # closing is not enough: a process that was forked off meanwhile has it open, too
        fcntl.flock(descriptor, fcntl.LOCK_UN)
        os.close(descriptor)


def lock_trouble(what: str, path: Path, place: int = 0) -> str:
    """One sentence about a lock on a byte of a file that was waited for in vain: which process has it, and what to do.

    The system's list of locks is read, and the file not opened: closing it would drop this process's own locks on it.
    """
    pid = _lock_holder(path, place)
    if pid is None:
        return f"other processes kept {what} locked for too long; nothing was changed, try again"
    if is_stopped(pid):
        return (
            f"process {pid} keeps {what} locked and is stopped, by Ctrl-Z or a debugger; nothing was changed: "
            f"let it continue (kill -CONT {pid}) or end it, then try again"
        )
    return f"process {pid} keeps {what} locked, and others may have before; nothing was changed, try again"


def _lock_holder(path: Path, place: int) -> int | None:
    """The other process that has locked a byte of a file for writing; None where that cannot be seen (not on Linux)."""
    if not LINUX:
        return None
    try:
        about = os.stat(path)
        locks = Path("/proc/locks").read_text(encoding="ascii")
    except OSError:
        return None
    file = f"{os.major(about.st_dev):02x}:{os.minor(about.st_dev):02x}:{about.st_ino}"
    for line in locks.splitlines():
        words = line.split()
        if len(words) != 8 or words[3] != "WRITE" or words[5] != file:  # lines of waiting processes have an arrow more
            continue
        pid, begin, end = int(words[4]), int(words[6]), words[7]
        if begin <= place and (end == "EOF" or place <= int(end)) and pid > 0 and pid != os.getpid():
            return pid
    return None


def write_file(path: Path, content: bytes) -> None:
    """Write one file, whole or not at all; its rights stay as they are. A link is followed: what it names is changed.

    The new content is written to a file of its own that must not be there: a link in its place is never written through.
    """
    path = Path(os.path.realpath(path))
    path.parent.mkdir(parents=True, exist_ok=True)
    new = path.with_name(f".{path.name}.{os.getpid()}.postroom-new")
    new.unlink(missing_ok=True)
    mode = path.stat().st_mode & 0o777 if path.exists() else None
    try:
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
        with open(os.open(new, flags, 0o666 if mode is None else 0o600), "wb") as file:
            if mode is not None:  # before the content comes: it may be private
                os.fchmod(file.fileno(), mode)
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        new.replace(path)
    except BaseException:
        new.unlink(missing_ok=True)
        raise


#: The names of the calls of `os` that make something survive a power cut.
SYNC_CALLS: Final = ("fsync", "fdatasync")


def sync_content(descriptor: int) -> None:
    """Make what was written to a file survive a power cut: its content and its length."""
    full: int | None = getattr(fcntl, "F_FULLFSYNC", None)
    if LINUX and sys.platform == "linux":
        os.fdatasync(descriptor)
    elif full is None:
        os.fsync(descriptor)
    else:  # macOS, where fsync leaves it in the disk's own memory
        fcntl.fcntl(descriptor, full)


def sync_folder(folder: Path) -> None:
    """Make the names in a folder survive a power cut; syncing a file does not sync the way to it."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sync_path_to(folder: Path) -> None:
    """Make the names in a folder survive a power cut, and all folders on the way to it, up to the mount point.

    For the process that makes a room: another process may have made a part of the way, and been killed before it synced
    that. A folder above that may not be read cannot be synced, and is passed over.
    """
    sync_folder(folder)
    device = folder.stat().st_dev
    for above in folder.resolve().parents:
        with suppress(PermissionError):
            if above.stat().st_dev != device:
                return
            sync_folder(above)


def make_private_folder(folder: Path, *, sync: bool = True) -> bool:
    """Make a folder that only its owner can enter, and those above it; with `sync` they survive a power cut.

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
