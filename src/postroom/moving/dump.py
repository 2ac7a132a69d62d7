"""The export of a room: JSON lines, which other programs can read, and which a backup holds compressed.

    {"postroom": "export", "version": 1, "room": …, "time": …}              the first line
    {"message": {…, "ledger": [["stored", 1763447000000, "ada", null], …]}}  each message, in the order of the room
    {"subscription": {"channel": …, "agent": …, "since_ms": …}}
    {"cell": {"name": …, "value": …}}                                        boards, agents, sessions, tokens, settings
    {"file": {"path": "artifacts/…", "at": 0, "data": "base64"}}             attached files and those of sessions
    {"end": {"messages": …, "cells": …, …, "sha256": …}}                     the last line; the digest is of all before it

Messages have every field of `postroom.Message` by its name (`docs/operations/export.md`): a new field travels by itself. A reader
ignores fields that it does not know. A file without the last line, or with another digest, is not whole.
"""

from __future__ import annotations

import gzip
import hashlib
import os
import re
import stat
import zlib
from base64 import b64decode, b64encode
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import IO, Any, Final, NamedTuple, cast

import msgspec

from postroom.core.clock import iso
from postroom.core.config import ARTIFACTS, prepare_types
from postroom.core.message import LedgerEntry, MessageWithLedger
from postroom.errors import RoomDamaged, RoomUnreachable
from postroom.mail import moved
from postroom.mail.housekeeping import KEEPER_CELL
from postroom.mail.presence import PROCESSES
from postroom.sessions.session import SESSIONS
from postroom.stores.contract import BUCKETS, FORGOTTEN, Cell, Query, Store, Subscription

VERSION: Final = 1
#: No line of an export is longer: a message has a megabyte, a cell too, and their ledgers little more.
MAX_LINE_BYTES: Final = 64 * 1024 * 1024
_FILE_BYTES: Final = 384 * 1024
_PAGE: Final = 200
_GZIP: Final = b"\x1f\x8b"
_DIGEST: Final = re.compile(r"[0-9a-f]{64}")
_ID: Final = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}")
#: Cells that are no part of what a room holds: of its store, of a move, of the process that keeps house.
NOT_CONTENT: Final = (FORGOTTEN, moved.CELL, KEEPER_CELL)
#: Nor are token buckets: they hold the time of this room, which begins anew in another.
_BUCKET_CELLS: Final = f"{BUCKETS}/"

Record = dict[str, Any]
Told = Callable[[str, int], object]


class FilePart(NamedTuple):
    """A piece of a file that lies beside the messages: its place below the room's folder, where it begins, its bytes."""

    path: str
    at: int
    data: bytes


#: What a room consists of, one after the other.
Part = MessageWithLedger | Subscription | Cell | FilePart


def is_content(cell: str) -> bool:
    """Whether a cell of that name is a part of what a room holds."""
    return cell not in NOT_CONTENT and not cell.startswith((_BUCKET_CELLS, PROCESSES))


def parts_of(store: Store, folder: Path | None) -> Iterator[Part]:
    """Everything in a room, messages first and in their order; a room that is in use may change meanwhile.

    In that order nothing is missed: a message that is stored together with the end of another comes after it.
    """
    yield from messages_of(store)
    yield from store.subscriptions()
    for cell in store.cell_scan(""):
        if is_content(cell.name):
            yield cell
    if folder is not None:
        yield from _files_of(folder)


def messages_of(store: Store) -> Iterator[MessageWithLedger]:
    """All messages with their ledgers, in the order of the room."""
    for message in store.find_all(Query(limit=_PAGE)):
        whole = store.get(message.id)
        if whole is not None:  # else it was deleted a moment ago
            yield whole


def _files_of(folder: Path) -> Iterator[FilePart]:
    for top in (ARTIFACTS, SESSIONS):
        for place, folders, names in os.walk(folder / top):
            folders.sort()
            for name in sorted(names):
                path = Path(place) / name
                relative = path.relative_to(folder).as_posix()
                if path_problem(relative) is None:
                    yield from _file_parts(path, relative)


def _file_parts(path: Path, relative: str) -> Iterator[FilePart]:
    """The pieces of a regular file; links, pipes and what was removed meanwhile have none."""
    with suppress(OSError):
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        with os.fdopen(descriptor, "rb") as file:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                return
            at = 0
            while (data := file.read(_FILE_BYTES)) or at == 0:
                yield FilePart(relative, at, data)
                at += len(data)
                if not data:
                    return


def path_problem(path: object) -> str | None:
    """Why a file of an export may not be written there; None when it may. No path leaves the room's folder."""
    parts = path.split("/") if isinstance(path, str) else []
    plain = all(
        part and part.strip(".") and "\0" not in part and len(part.encode(errors="replace")) < 256 for part in parts
    )
    if parts[:1] == [ARTIFACTS]:
        return None if len(parts) == 2 and _DIGEST.fullmatch(parts[1]) else f"{path!r} is no name of an attached file"
    if parts[:1] == [SESSIONS] and len(parts) >= 3 and plain and len(parts) < 20:
        return None
    return f"{path!r} is no place for a file of a room"


# Writing


class DumpWriter:
    """Writes an export, line by line; `end` makes it whole."""

    def __init__(self, file: IO[bytes], room: str, wall_ms: int) -> None:
        self._file = file
        self._digest = hashlib.sha256()
        self.counts = {"messages": 0, "subscriptions": 0, "cells": 0, "files": 0}
        self._write({"postroom": "export", "version": VERSION, "room": room, "time": iso(wall_ms)})

    def _write(self, record: Record) -> None:
        line = msgspec.json.encode(record) + b"\n"
        self._digest.update(line)
        self._file.write(line)

    def add(self, part: Part) -> None:
        """Write one part of a room."""
        if isinstance(part, MessageWithLedger):
            self._count("messages", {"message": msgspec.to_builtins(part) | {"state": part.state}})
        elif isinstance(part, Subscription):
            self._count("subscriptions", {"subscription": part._asdict()})
        elif isinstance(part, Cell):
            self._count("cells", {"cell": {"name": part.name, "value": part.value}})
        else:
            self.counts["files"] += part.at == 0
            self._write({"file": {"path": part.path, "at": part.at, "data": b64encode(part.data).decode()}})

    def _count(self, kind: str, record: Record) -> None:
        self.counts[kind] += 1
        self._write(record)

    def end(self) -> None:
        """The last line."""
        self._write({"end": {**self.counts, "sha256": self._digest.hexdigest()}})


def write_backup(path: Path, room: str, wall_ms: int, parts: Iterable[Part], told: Told) -> dict[str, int]:
    """Write an export, compressed, under a name of its own, and put it in its place when it is whole and on the disk.

    After: the file is there, for its owner only. If it raised: nothing was left, and a file of that name is as it was.
    """
    draft = path.with_name(f".{path.name}.{os.getpid()}.new")
    try:
        descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            with os.fdopen(descriptor, "wb") as raw:
                with gzip.GzipFile(filename="", mode="wb", fileobj=raw, compresslevel=6, mtime=0) as file:
                    counts = write_parts(cast("IO[bytes]", file), room, wall_ms, parts, told)
                raw.flush()
                os.fsync(raw.fileno())
            os.rename(draft, path)
        except BaseException:
            draft.unlink(missing_ok=True)
            raise
    except OSError as error:
        raise RoomUnreachable(f"{path} cannot be written: {error.strerror or error}") from error
    return counts


def write_parts(file: IO[bytes], room: str, wall_ms: int, parts: Iterable[Part], told: Told) -> dict[str, int]:
    """Write a whole export. Returns how many of each kind there were."""
    writer = DumpWriter(file, room, wall_ms)
    for part in parts:
        writer.add(part)
        told("messages", writer.counts["messages"])
    writer.end()
    return writer.counts


# Reading


class Dump:
    """An export or a backup that was read through once and is whole."""

    def __init__(self, path: Path) -> None:
        """Raises RoomDamaged, with what is wrong and where; RoomUnreachable when it cannot be read."""
        self.path = path
        self.head: Record = {}
        self.counts: dict[str, int] = {}
        for _ in self.parts():
            pass

    def parts(self) -> Iterator[Part]:
        """Everything in it, in its order."""
        digest, number = hashlib.sha256(), 0
        try:
            with open(self.path, "rb") as raw:
                packed = raw.peek(2)[:2] == _GZIP
                file = cast("IO[bytes]", gzip.GzipFile(fileobj=raw)) if packed else cast("IO[bytes]", raw)
                while line := file.readline(MAX_LINE_BYTES):
                    number += 1
                    record = self._decode(line, number)
                    if number == 1:
                        self._check_head(record)
                    elif "end" in record:
                        self._check_end(record["end"], digest.hexdigest(), number)
                        if file.readline(1):
                            raise self._damaged("goes on after its last line", number)
                        return
                    else:
                        yield self._part(record, number)
                    digest.update(line)
        except (EOFError, gzip.BadGzipFile, OSError) as error:
            if isinstance(error, OSError) and not isinstance(error, gzip.BadGzipFile) and error.errno is not None:
                raise RoomUnreachable(f"{self.path} cannot be read: {error.strerror}") from error
            raise self._damaged(f"is cut off or spoilt ({error})", number) from error
        except zlib.error as error:
            raise self._damaged(f"is spoilt ({error})", number) from error
        raise self._damaged("is cut off: its last line is missing" if number else "is empty", number)

    def _damaged(self, what: str, number: int) -> RoomDamaged:
        where = f", at line {number}" if number else ""
        return RoomDamaged(f"{self.path} {what}{where}; nothing was changed")

    def _decode(self, line: bytes, number: int) -> Record:
        try:
            record = msgspec.json.decode(line)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            if number == 1:
                raise self._damaged("is neither an export nor a backup of Postroom", 0) from None
            raise self._damaged(f"has a line that is not JSON ({error})", number) from None
        if not isinstance(record, dict):
            raise self._damaged("has a line that is not a JSON object", number)
        return record

    def _check_head(self, record: Record) -> None:
        if record.get("postroom") != "export":
            raise self._damaged("is neither an export nor a backup of Postroom", 0)
        version = record.get("version")
        if type(version) is not int or not 1 <= version <= VERSION:
            raise RoomDamaged(
                f"{self.path} has version {version!r} of the format, and this Postroom reads versions up to {VERSION}; "
                "it was written by a newer Postroom: upgrade this one. Nothing was changed"
            )
        self.head = record

    def _check_end(self, end: Any, digest: str, number: int) -> None:
        if not isinstance(end, dict) or end.get("sha256") != digest:
            raise self._damaged("is spoilt: its content does not match its checksum", number)
        self.counts = {name: count for name, count in end.items() if type(count) is int}

    def _part(self, record: Record, number: int) -> Part:
        try:
            return _part_of(record)
        except (KeyError, TypeError, ValueError, msgspec.MsgspecError) as error:
            raise self._damaged(f"has a line that cannot be used ({error})", number) from None


def _part_of(record: Record) -> Part:
    if "message" in record:
        message = msgspec.convert(record["message"], MessageWithLedger)
        problem = _message_problem(message)
        if problem:
            raise ValueError(problem)
        return message
    if "subscription" in record:
        return Subscription(**msgspec.convert(record["subscription"], dict[str, Any]))
    if "cell" in record:
        return Cell(msgspec.convert(record["cell"]["name"], str), 0, record["cell"]["value"])
    piece = record["file"]
    problem = path_problem(piece["path"])
    if problem:
        raise ValueError(problem)
    return FilePart(piece["path"], msgspec.convert(piece["at"], int), b64decode(piece["data"], validate=True))


def _message_problem(message: MessageWithLedger) -> str | None:
    """Why a message cannot be one of a room."""
    if not _ID.fullmatch(message.id):
        return f"{message.id!r} is no id of a message"
    if not message.ledger or not all(isinstance(line, LedgerEntry) for line in message.ledger):
        return f"{message.id} has no ledger"
    if not 1 <= message.priority <= 10 or not 0 <= message.token < 2**53:
        return f"{message.id} has a priority or a token that no message has"
    return None


prepare_types(MessageWithLedger)
