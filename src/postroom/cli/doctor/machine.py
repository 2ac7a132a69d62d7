"""The machine, and the place where the room lies: versions, limits, rights, the file system and its disk.

The database's file is only asked for its size and modes: to open it is the store's business alone.
"""

from __future__ import annotations

import os
import resource
import stat
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from postroom import __version__
from postroom.core import trust
from postroom.core.config import FOLDER, URL_VARIABLE, RoomUrl, address_of, search_places, shown_address
from postroom.core.git_index import UnreadableIndex, tracked_of_room
from postroom.core.system.files import NETWORK_FILE_SYSTEMS, file_system_type, why_unwritable
from postroom.errors import RoomNotAllowed

from . import FAIL, NAMED, OK, WARN, Check

MIN_PYTHON: Final = (3, 11)
MIN_DESCRIPTORS: Final = 256
#: With less than this the next message may not fit.
LITTLE_BYTES: Final = 64 * 1024**2
#: A room with its defaults may grow to this.
ENOUGH_BYTES: Final = 1024**3
DATABASE: Final = "messages.db"
#: File systems that are not kept, and until when they are.
FLEETING: Final = {
    "tmpfs": "until the next reboot",
    "ramfs": "until the next reboot",
    "overlay": "as long as the container",
    "overlayfs": "as long as the container",
}


def machine() -> Iterator[Check]:
    """The checks that need no room."""
    here = ".".join(map(str, sys.version_info[:3]))
    wanted = ".".join(map(str, MIN_PYTHON))
    fine = sys.version_info[:2] >= MIN_PYTHON
    yield Check("postroom", OK, f"version {__version__}")
    yield Check("python", OK if fine else FAIL, f"version {here}", "" if fine else f"use Python {wanted} or newer")
    yield sqlite()
    yield descriptors()


def sqlite() -> Check:
    """Whether this SQLite is one that keeps commits."""
    try:
        from postroom.stores.sqlite.layout import sqlite_is_safe, sqlite_version
    except ImportError as error:
        return Check("sqlite", FAIL, f"apsw cannot be loaded: {error}", "install apsw 3.51.3 or newer")
    version = sqlite_version()
    if sqlite_is_safe(version):
        return Check("sqlite", OK, f"version {version}")
    says = f"version {version} can lose commits from its write-ahead log"
    return Check("sqlite", FAIL, says, "install apsw 3.51.3 or newer")


def descriptors() -> Check:
    """Whether this process may open enough files: a waiting thread takes one, a connection three."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    says = "no limit" if soft == resource.RLIM_INFINITY else f"a process may open {soft} files"
    if soft == resource.RLIM_INFINITY or soft >= MIN_DESCRIPTORS:
        return Check("descriptors", OK, says)
    return Check("descriptors", WARN, says, "raise it before you start many agents in one process: ulimit -n 1024")


# --- where the room is ---------------------------------------------------------------------------------------------


def find(named: str | None) -> tuple[str | None, list[Check]]:
    """The address of the room, and how it was found or where it was looked for."""
    if named:
        return named, [Check("room", OK, f"{shown_address(named)}, named by --room")]
    here = Path.cwd()
    passed = list(_passed_over(here))
    try:
        found = trust.find_room(here)
    except RoomNotAllowed as error:
        return None, [*passed, Check("room", FAIL, str(error), "check what it is, then: postroom allow")]
    if found is None:
        places = ", ".join(str(place) for place in search_places(here))
        says = f"none was found; looked at ${URL_VARIABLE} (not set), {places}"
        return None, [*passed, Check("room", FAIL, says, "make one with `postroom init`, or name one with --room")]
    how = f"named by ${URL_VARIABLE}" if os.environ.get(URL_VARIABLE) else f"found from {here}"
    return found.address, [*passed, Check("room", OK, f"{shown_address(found.address)}, {how}")]


def _passed_over(here: Path) -> Iterator[Check]:
    """Rooms of other users on the way; they are never used unless somebody names them."""
    if os.environ.get(URL_VARIABLE):
        return
    for place, owner in trust.passed_over(here).items():
        says = f"{place} belongs to user {owner} and was skipped"
        yield Check("other room", WARN, says, f"name it if you trust it: --room {address_of(place)}")


def place(folder: Path) -> Iterator[Check]:
    """The folder, its file system and its disk."""
    yield rights(folder)
    yield tracked(folder)
    yield file_system(folder)
    yield space(folder)


def rights(folder: Path) -> Check:
    """Whether the folder is ours, and ours alone."""
    try:
        about = folder.stat()
        parts = [path for path in folder.iterdir() if path.name.startswith(DATABASE)]
        open_to_others = [path for path in (folder, *parts) if path.stat().st_mode & 0o077]
    except OSError as error:
        return Check("rights", FAIL, f"{folder} cannot be read: {error.strerror}", "check who owns it")
    mode = f"{stat.S_IMODE(about.st_mode):04o}"
    if not os.access(folder, os.W_OK | os.X_OK):
        says = f"{folder} (user {about.st_uid}, mode {mode}) cannot be written: {why_unwritable(folder)}"
        return Check("rights", FAIL, says, "it can be read; to write, run as its owner, or choose another room")
    if about.st_uid != os.geteuid():
        says = f"{folder} belongs to user {about.st_uid}, and you are {os.geteuid()}"
        return Check("rights", WARN, says, "to share a room between users, use a NATS server")
    if open_to_others:
        says = "others on this machine can access " + ", ".join(path.name for path in open_to_others)
        return Check("rights", WARN, says, f"close it: chmod -R go= '{folder}'")
    return Check("rights", OK, f"yours alone (mode {mode})")


def tracked(folder: Path) -> Check:
    """Whether git keeps the room's files: then each pull could bring other messages into it."""
    files = (folder / FOLDER).is_dir()
    own = folder / FOLDER if files else folder
    try:
        names = tracked_of_room(own, RoomUrl("files" if files else "sqlite", str(folder), {}))
    except UnreadableIndex as error:
        return Check("git", WARN, f"cannot tell whether it tracks the room: {error}", "check with git ls-files")
    if names:
        says = f"git tracks {', '.join(names[:NAMED])} in {own}, so any pull could change the room's messages"
        return Check("git", FAIL, says, f"untrack it: git rm -r --cached {FOLDER}")
    return Check("git", OK, "tracks nothing of the room")


def file_system(folder: Path) -> Check:
    """Whether the file system can hold a write-ahead log, and for how long it holds anything."""
    kind = file_system_type(folder)
    if kind in NETWORK_FILE_SYSTEMS:
        says = f"{kind} is a network file system, where SQLite's locks do not hold"
        return Check("file system", FAIL, says, "put the room on a local disk")
    if kind in FLEETING:
        says = f"{kind}: files there last only {FLEETING[kind]}"
        return Check("file system", WARN, says, f"for messages that must last, put {FOLDER} on a disk")
    return Check("file system", OK, kind or "its type is unknown on this system")


def space(folder: Path) -> Check:
    """Whether the disk has room left."""
    disk = os.statvfs(folder)
    free_bytes = disk.f_bavail * disk.f_frsize
    says = f"{free_bytes / 1024**3:.1f} GB free"
    if disk.f_files and not disk.f_favail:
        return Check("disk", FAIL, "no more files can be created: the disk is out of inodes", "remove files")
    if free_bytes < LITTLE_BYTES:
        return Check("disk", FAIL, f"{free_bytes / 1024**2:.0f} MB free", "free some space: sends will fail soon")
    if free_bytes < ENOUGH_BYTES:
        return Check("disk", WARN, says, "free some space, or keep less: keep_bytes, keep_count and keep_s of the room")
    return Check("disk", OK, says)
