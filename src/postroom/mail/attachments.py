"""Content-addressed files beside the messages: the same file twice is one file, and goes with its last message."""

from __future__ import annotations

import atexit
import hashlib
import os
import re
import shutil
import stat
import tempfile
import threading
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import msgspec

from postroom.core.config import ARTIFACTS
from postroom.core.crashpoints import reached
from postroom.core.system.files import locked, sync_folder
from postroom.errors import InvalidMessage, RoomUnreachable, UnknownMessage
from postroom.stores.contract import Query, Store

CHUNK_BYTES: Final = 1024 * 1024
_NAME: Final = re.compile(r"sha256:([0-9a-f]{64})\Z")
_DIGEST: Final = re.compile(r"[0-9a-f]{64}")
_DIGITS: Final = re.compile(rb"[0-9a-f]{64,}")
#: Copies that are being made, and files that are to be deleted, are called so.
_HALF: Final = ".new-"
_ASIDE: Final = ".gone-"
#: A file that nothing refers to stays for so long after it was attached.
GRACE_S: Final = 86_400.0
#: Clocks of the processes of a room differ by less than this.
_CLOCKS_APART_MS: Final = 60_000
_PAGE: Final = 100

_scratch_lock = threading.Lock()
_scratch: Path | None = None


def folder_for(room_folder: Path | None) -> Path:
    """Where a room keeps its files. Rooms without a folder share one that ends with the process."""
    return scratch_folder() if room_folder is None else room_folder / ARTIFACTS


def scratch_folder() -> Path:
    """A folder of this process, removed when it ends."""
    global _scratch  # noqa: PLW0603  one for each process
    with _scratch_lock:
        if _scratch is None:
            _scratch = Path(tempfile.mkdtemp(prefix="postroom-artifacts-"))
            atexit.register(_remove, _scratch, os.getpid())
        return _scratch


def _remove(folder: Path, pid: int) -> None:
    if os.getpid() == pid:  # not from a forked copy
        shutil.rmtree(folder, ignore_errors=True)


def keep(folder: Path, source: Path) -> dict[str, Any]:
    """Keep a copy of a file, and return the reference to it.

    After: the copy is whole and on disk, or not there at all.
    """
    if not source.is_file():
        what = "a folder" if source.is_dir() else "a pipe or a device" if source.exists() else "not there"
        raise InvalidMessage("path", f"{source} is {what}; a file was expected")
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        digest, size = _copy_in(folder, source)
    except OSError as error:
        raise RoomUnreachable(f"{source} could not be stored: {error}") from error
    return {"artifact": f"sha256:{digest}", "name": source.name, "bytes": size, "path": str(folder / digest)}


def _copy_in(folder: Path, source: Path) -> tuple[str, int]:
    descriptor, temporary = tempfile.mkstemp(dir=folder, prefix=_HALF)  # 0600
    try:
        with open(descriptor, "wb") as target, open(source, "rb") as file:
            digest, size = hashlib.sha256(), 0
            while chunk := file.read(CHUNK_BYTES):
                digest.update(chunk)
                size += target.write(chunk)
            target.flush()
            os.fsync(target.fileno())
        os.rename(temporary, folder / digest.hexdigest())
    except BaseException:
        with suppress(OSError):
            os.unlink(temporary)
        raise
    sync_folder(folder)
    return digest.hexdigest(), size


def references(payload: Any) -> Iterator[Mapping[str, Any]]:
    """The references that stand in a payload, wherever in it."""
    todo = [payload]
    while todo:
        value = todo.pop()
        if isinstance(value, dict):
            if isinstance(name := value.get("artifact"), str) and _NAME.match(name):
                yield value
            todo += reversed(value.values())
        elif isinstance(value, list):
            todo += reversed(value)


def find(folder: Path, reference: Mapping[str, Any] | str) -> Path:
    """The file behind a reference. Only the digest is trusted, so no reference leads out of the folder."""
    name = reference.get("artifact") if isinstance(reference, Mapping) else reference
    match = _NAME.match(name) if isinstance(name, str) else None
    if match is None:
        raise InvalidMessage("artifact", f"must be sha256: and 64 hexadecimal digits, not {name!r}")
    path = folder / match[1]
    if not path.is_symlink() and not path.is_file():
        with suppress(OSError):  # it is perhaps about to be deleted: not now
            _bring_back(folder, match[1])
    if path.is_symlink() or not path.is_file():
        raise UnknownMessage(f"this room has no file {name}")
    return path


# Deleting what nothing refers to any more


def tidy(store: Store, folder: Path) -> int:
    """Delete the files that nothing kept refers to; see `tidying`. Returns how many."""
    return sum(tidying(store, folder))


def tidying(store: Store, folder: Path) -> Iterator[int]:
    """Delete the files that nothing kept refers to, in steps of a page of messages; each gives how many were deleted.

    A file is referred to by its digest in the payload of a kept message, or in a cell (of a task, say). One that was
    attached within a day stays in any case: its message may be on its way. A file is first put aside under another name,
    where `find` still sees it, then looked for once more in what was sent meanwhile, and only then deleted; what a dead
    process left aside is judged anew (tests/mail/test_attachments.py).

    Only in a folder that `keep` has made: a room of files may lie in a project that has one of that name already.
    """
    started_ms = store.clock.wall_ms()
    chosen = _unsure(folder, started_ms) if _is_ours(folder) else []
    unread = set(chosen)
    for page in _pages(store, Query(limit=_PAGE)) if chosen else ():
        unread -= _named_in(page, unread)
        yield 0
    unread -= _named_in((cell.value for cell in store.cell_scan("")), unread) if chosen else set()
    if chosen:
        yield _delete(store, folder, chosen, unread, started_ms)


def _delete(store: Store, folder: Path, chosen: list[str], unread: set[str], started_ms: int) -> int:
    """Delete those of the chosen files that are `unread`, and still are when they are out of the way."""
    # Only one process at a time puts files aside: another could put a new file in the place of one that is to go.
    with locked(folder, os.O_RDONLY | os.O_DIRECTORY):
        for digest in unread:
            with suppress(FileNotFoundError):
                os.rename(folder / digest, folder / (_ASIDE + digest))
            reached("attachments.aside")
        again = Query(sent_after_ms=started_ms - _CLOCKS_APART_MS, limit=_PAGE)
        late = {digest for page in _pages(store, again) for digest in _named_in(page, unread)} if unread else set()
        late |= _named_in((cell.value for cell in store.cell_scan("")), unread) if unread else set()
        return sum(_judge(folder, digest, started_ms, kept=digest not in unread - late) for digest in chosen)


def _is_ours(folder: Path) -> bool:
    """Whether `keep` has made the folder, as far as its owner and mode tell: nobody else may enter it."""
    with suppress(OSError):
        about = os.lstat(folder)
        return stat.S_ISDIR(about.st_mode) and about.st_uid == os.geteuid() and not about.st_mode & 0o077
    return False


def _unsure(folder: Path, now_ms: int) -> list[str]:
    """The digests of the files that may have to go: old ones, and those that were put aside. Removes old half copies."""
    found = []
    with suppress(FileNotFoundError), os.scandir(folder) as entries:
        for entry in entries:
            name = entry.name.removeprefix(_ASIDE)
            with suppress(OSError):
                if entry.is_file(follow_symlinks=False) and (name != entry.name or _is_old(entry.path, now_ms)):
                    if _DIGEST.fullmatch(name):
                        found.append(name)
                    elif name.startswith(_HALF):
                        os.unlink(entry.path)
    return found


def _is_old(path: str | Path, now_ms: int) -> bool:
    return now_ms - os.stat(path).st_mtime_ns // 1_000_000 > GRACE_S * 1000


def _pages(store: Store, query: Query) -> Iterator[list[Any]]:
    page = store.find(query)
    yield [message.payload for message in page.messages]
    while page.cursor is not None:
        page = store.find(query, page.cursor)
        yield [message.payload for message in page.messages]


def _named_in(values: Iterable[Any], digests: Collection[str]) -> set[str]:
    """Those of the digests that may be meant somewhere in JSON values, also in the middle of other digits.

    One place after the other is looked up: a payload may be a megabyte of nothing but such digits.
    """
    found: set[str] = set()
    for run in _DIGITS.finditer(msgspec.json.encode(list(values))):
        digits = run[0].decode()
        found.update(part for at in range(len(digits) - 63) if (part := digits[at : at + 64]) in digests)
    return found


def _judge(folder: Path, digest: str, now_ms: int, *, kept: bool) -> bool:
    """Bring a file that was put aside back, if it is referred to or was just attached; else delete it."""
    aside = folder / (_ASIDE + digest)
    with suppress(FileNotFoundError):
        if kept or not _is_old(aside, now_ms):
            _bring_back(folder, digest)
        else:
            os.unlink(aside)
            return True
    return False


def _bring_back(folder: Path, digest: str) -> None:
    aside, path = folder / (_ASIDE + digest), folder / digest
    try:
        os.link(aside, path)
    except FileNotFoundError:
        raise
    except FileExistsError:  # it was attached anew
        os.unlink(aside)
    except OSError:  # a file system without hard links
        os.rename(aside, path)
    else:
        os.unlink(aside)
