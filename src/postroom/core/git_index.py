"""Whether git tracks what lies in a room's folder, by git's index: git itself is never run in a foreign folder.

Git would run programs that the repository's own configuration names (core.fsmonitor, for one).
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from .config import FILES_MARK, FOLDER, RoomUrl, read_small, room_folder

#: A larger index is not read: that of a repository with a million files has about 100 MB.
MAX_INDEX_BYTES: Final = 256 * 1024 * 1024
_ENTRY_BYTES: Final = 62  # before the name: ten numbers of four bytes, a hash of 20, two of flags
_LONG_HASH_BYTES: Final = 74  # the same with a hash of 32, in repositories that use SHA-256
_EXTENDED: Final = 0x4000
#: Limits on what a damaged or hostile index can make us do: no path, and no number before one, is longer.
_MAX_NAME_BYTES: Final = 4096
_MAX_NUMBER_BYTES: Final = 5
#: Git may track these: a pointer is how a team shares the address of its room.
_MAY_BE_TRACKED: Final = ("room", ".gitignore")
#: Beside Postroom's own folder, the parts of a room of files whose content is taken for messages, tasks or decisions.
_PARTS_OF_FILES: Final = ("inbox", "outbox", "board")


class UnreadableIndex(Exception):
    """The index has a form that is not known here, so nothing can be said."""


def tracked_of_room(place: Path, url: RoomUrl) -> list[str]:
    """What git tracks of the room that a `.postroom` folder means, and that a pull could replace: paths below the room.

    The pointer, and files in mailboxes that begin with a dot, may be tracked. Raises UnreadableIndex.
    """
    found = [name for name in tracked_in(place) if name not in _MAY_BE_TRACKED]
    folder = room_folder(url)
    if folder is None:
        return found
    own = folder / FOLDER if url.scheme == "files" else folder
    if own != place and not _is_inside(own, place):
        found += [name for name in tracked_in(own) if name not in _MAY_BE_TRACKED]
    if url.scheme == "files" or os.path.lexists(folder / FOLDER / FILES_MARK):
        for part in _PARTS_OF_FILES:
            names = tracked_in(folder / part)
            found += [f"{part}/{name}" for name in names if not os.path.basename(name).startswith(".")]
    return found


def _is_inside(folder: Path, other: Path) -> bool:
    return Path(os.path.realpath(folder)).is_relative_to(os.path.realpath(other))


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
            return [os.fsdecode(name.removeprefix(prefix)) for name in _names(_content(folder / "index"), prefix)]
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
        return file.read(about.st_size)


def _names(data: bytes, prefix: bytes) -> list[bytes]:
    """The names in an index that begin so; versions 2 to 4, with either kind of hash."""
    if not data:
        return []
    version, count = int.from_bytes(data[4:8]), int.from_bytes(data[8:12])
    if data[:4] != b"DIRC" or version not in (2, 3, 4):
        raise UnreadableIndex(f"an index of version {version} is not known")
    if prefix not in data:
        if b"link" in data[-4096:]:
            raise UnreadableIndex("the index is split in two")
        if version != 4:  # which writes of a name only how it differs from the one before
            return []
    found = [_walk(data, version, count, fixed, prefix) for fixed in (_ENTRY_BYTES, _LONG_HASH_BYTES)]
    # Both are looked at: a hash can be chosen so that the wrong layout seems to fit, and shows nothing.
    if found == [None, None]:
        raise UnreadableIndex("the index is damaged")
    return found[0] or found[1] or []


def _walk(data: bytes, version: int, count: int, fixed: int, prefix: bytes) -> list[bytes] | None:
    """The names that begin so, if the entries have the layout that is tried."""
    try:
        return list(_matching(data, version, count, fixed, prefix))
    except (ValueError, IndexError):
        return None


def _matching(data: bytes, version: int, count: int, fixed: int, prefix: bytes) -> Iterator[bytes]:
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
        if length not in (len(name), 0xFFF) or name < before or len(name) > _MAX_NAME_BYTES:
            raise ValueError("not the layout that was tried")
        if name.startswith(prefix):
            yield name
        elif name > prefix:
            return  # they are in order
        before = name


def _number(data: bytes, at: int) -> tuple[int, int]:
    """A number as version 4 writes it, and where it ends."""
    value, first = data[at] & 0x7F, at
    while data[at] & 0x80:
        at += 1
        if at - first >= _MAX_NUMBER_BYTES:
            raise ValueError("no number is so long")
        value = ((value + 1) << 7) | (data[at] & 0x7F)
    return value, at + 1
