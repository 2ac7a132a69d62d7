"""Content-addressed files beside the messages: the same file twice is one file."""

from __future__ import annotations

import atexit
import hashlib
import os
import re
import shutil
import tempfile
import threading
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from postroom.core.system.files import sync_folder
from postroom.errors import InvalidMessage, RoomUnreachable, UnknownMessage

CHUNK_BYTES: Final = 1024 * 1024
_NAME: Final = re.compile(r"sha256:([0-9a-f]{64})\Z")

_scratch_lock = threading.Lock()
_scratch: Path | None = None


def folder_for(room_folder: Path | None) -> Path:
    """Where a room keeps its files. Rooms without a folder share one that ends with the process."""
    return scratch_folder() if room_folder is None else room_folder / "artifacts"


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
        raise InvalidMessage(
            "path", f"{source} is {'a folder' if source.is_dir() else 'not there'}; a file was expected"
        )
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        digest, size = _copy_in(folder, source)
    except OSError as error:
        raise RoomUnreachable(f"{source} could not be kept: {error}") from error
    return {"artifact": f"sha256:{digest}", "name": source.name, "bytes": size, "path": str(folder / digest)}


def _copy_in(folder: Path, source: Path) -> tuple[str, int]:
    descriptor, temporary = tempfile.mkstemp(dir=folder, prefix=".new-")  # 0600
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
    if path.is_symlink() or not path.is_file():
        raise UnknownMessage(f"no file {name} is kept in this room")
    return path
