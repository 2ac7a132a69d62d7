"""Whether git tracks what lies in a room's folder. The index is read as a file: git itself is never run in a foreign folder.

Git would run programs that the repository's own configuration names (core.fsmonitor, for one).
"""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import Final

from postroom.config import read_small

#: A larger index is not read: that of a repository with a million files has about 100 MB.
MAX_INDEX_BYTES: Final = 256 * 1024 * 1024
_ENTRY_BYTES: Final = 62  # before the name: ten numbers of four bytes, a hash of 20, two of flags
_LONG_HASH_BYTES: Final = 74  # the same with a hash of 32, in repositories that use SHA-256
_EXTENDED: Final = 0x4000


class UnreadableIndex(Exception):
    """The index has a form that is not known here, so nothing can be said."""


def tracked_in(place: Path) -> list[str]:
    """The names that git tracks below a folder, relative to it; none when it is in no repository.

    Raises UnreadableIndex.
    """
    place = Path(os.path.realpath(place))
    for root in place.parents:
        marker = root / ".git"
        if os.path.lexists(marker):
            folder = marker if marker.is_dir() else root / read_small(marker).partition(": ")[2]
            prefix = os.fsencode(place.relative_to(root)) + b"/"
            names = _names(_content(folder / "index"), prefix)
            return [os.fsdecode(name.removeprefix(prefix)) for name in names if name.startswith(prefix)]
    return []


def _content(path: Path) -> bytes:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        return b""
    except OSError as error:
        raise UnreadableIndex(f"{path} cannot be read ({error.strerror})") from None
    with os.fdopen(descriptor, "rb") as file:
        about = os.fstat(file.fileno())
        if not stat.S_ISREG(about.st_mode) or about.st_size > MAX_INDEX_BYTES:
            raise UnreadableIndex(f"{path} is no index, or too large")
        return file.read(MAX_INDEX_BYTES)


def _names(data: bytes, prefix: bytes) -> list[bytes]:
    """The names in an index, versions 2 to 4, with either kind of hash."""
    if not data:
        return []
    version, count = int.from_bytes(data[4:8]), int.from_bytes(data[8:12])
    if data[:4] != b"DIRC" or version not in (2, 3, 4):
        raise UnreadableIndex(f"an index of version {version} is not known")
    if b"link" in data[-4096:] and prefix not in data:
        raise UnreadableIndex("the index is split in two")
    for fixed in (_ENTRY_BYTES, _LONG_HASH_BYTES):
        try:
            return _walk(data, version, count, fixed)
        except (ValueError, IndexError):
            continue
    raise UnreadableIndex("the index is damaged")


def _walk(data: bytes, version: int, count: int, fixed: int) -> list[bytes]:
    names: list[bytes] = []
    at, before = 12, b""
    for _ in range(count):
        flags = int.from_bytes(data[at + fixed - 2 : at + fixed])
        head = fixed + (2 if flags & _EXTENDED else 0)
        begin = at + head
        if version == 4:  # the name is told by what it shares with the one before
            cut, begin = _number(data, begin)
            end = data.index(b"\0", begin)
            name = before[: len(before) - cut] + data[begin:end]
            at = end + 1
        else:
            end = data.index(b"\0", begin)
            name = data[begin:end]
            at += (head + len(name) + 8) // 8 * 8
        length = flags & 0xFFF
        if length not in (len(name), 0xFFF) or name <= before:
            raise ValueError("not the layout that was tried")
        names.append(name)
        before = name
    return names


def _number(data: bytes, at: int) -> tuple[int, int]:
    """A number as version 4 writes it, and where it ends."""
    value = data[at] & 0x7F
    while data[at] & 0x80:
        at += 1
        value = ((value + 1) << 7) | (data[at] & 0x7F)
    return value, at + 1
