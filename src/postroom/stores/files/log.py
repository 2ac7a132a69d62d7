"""The write-ahead log of a files room: every step as one line, under one lock; the tree of files follows it.

`lock` is locked (flock, which the system frees with the process) for each step. `log` has one line for each step: a
checksum and JSON. A line that a killed process left unfinished does not count and is cut off by the next; one that was
whole and is no longer is damage, which is told and left as it is. `mark` says up to which place of the log the tree has
followed: the rest is done again by the next holder of the lock, and doing it twice does no harm. `keys` holds the last
microsecond that was given to a message, `turn` the moment in which somebody last looked at all folders.
"""

from __future__ import annotations

import fcntl
import os
import re
import struct
import threading
import zlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec

from postroom.core.clock import SYSTEM
from postroom.core.message import LedgerEntry
from postroom.core.system.files import lock_trouble, open_shared, sync_content, sync_folder
from postroom.errors import RoomBusy, RoomDamaged, RoomUnreachable
from postroom.stores.contract import in_the_middle

_PLACE: Final = struct.Struct("<q")
_LINE: Final = b"%08x "
_HEAD: Final = 9
_NEWLINE: Final = re.compile(rb"\n")
_ZEROS: Final = re.compile(rb"\0+")
#: So much of a log is read at once.
PORTION_BYTES: Final = 1024 * 1024
#: A disk writes so much at once, or a multiple of it.
SECTOR_BYTES: Final = 512
_FLAGS: Final = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
_LOOKING: Final = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW


class RowRecord(msgspec.Struct, array_like=True):
    """One row as a step left it: what may change of it, and for a new one the rest too."""

    key: int
    #: Where the file was, and where it belongs now.
    was: str
    path: str
    state: int
    wake_ms: int | None
    token: int
    deliveries: int
    claimed_by: str | None
    owner: str | None
    waiter: str | None
    last_delivered_ms: int | None
    error: str | None
    expires_ms: int | None
    since_ms: int
    #: New lines of the ledger; and the feed's line, when it is not the last of them.
    entries: list[LedgerEntry]
    news: LedgerEntry | None = None
    #: What never changes; None for a row that is known.
    fixed: list[Any] | None = None
    #: The feed's number, in the first line of a log; elsewhere it is the line's own place.
    number: int = 0


class LogRecord(msgspec.Struct, omit_defaults=True):
    """One step: the rows it changed, those it deleted (key, file, signal), cells and subscriptions."""

    rows: list[RowRecord] = []
    gone: list[tuple[int, str, str | None]] = []
    cells: list[tuple[str, int, str | None]] = []
    subscribers: list[tuple[str, str, int | None]] = []
    #: Only in the first line of a log: everything else that must be known, and the place its numbers begin from.
    base: int | None = None
    version: int = 0
    tally: list[tuple[str | None, bool, int]] = []


class _Unread(LogRecord):
    """A step whose rows were not read yet."""

    rows: list[msgspec.Raw] = []  # type: ignore[assignment]


class LogLine(NamedTuple):
    """A step in the log, the place where its line ends, and for each row the spot that tells of it."""

    place: int
    record: LogRecord
    spots: list[int]


#: A spot is the place of a row's text in the log and its length, as one number; 0 for what is too long for that.
_LENGTH_BITS: Final = 24
_ROWS: Final = b'{"rows":['
_encode: Final = msgspec.json.Encoder().encode
_decode: Final = msgspec.json.Decoder(_Unread).decode
_decode_row: Final = msgspec.json.Decoder(RowRecord).decode


def line_of(record: LogRecord) -> bytes:
    """A step as it is written down."""
    return _line_of(_encode(record))


def _line_of(text: bytes) -> bytes:
    return _LINE % zlib.crc32(text) + text + b"\n"


def _with_spots(record: LogRecord) -> tuple[bytes, list[int]]:
    """A step as it is written down, and where in the line the text of each row begins."""
    rows = [_encode(row) for row in record.rows]
    unread = _Unread(
        [msgspec.Raw(row) for row in rows], record.gone, record.cells, record.subscribers, record.base, record.version, record.tally
    )  # fmt: skip
    return _line_of(_encode(unread)), _spots(rows)


def _spots(rows: Sequence[Any]) -> list[int]:
    """The spots of the rows of a line that begins at 0."""
    at, spots = _HEAD + len(_ROWS), []
    for row in rows:
        spots.append(0 if len(row) >> _LENGTH_BITS else at << _LENGTH_BITS | len(row))
        at += len(row) + 1
    return spots


def _moved_by(spots: list[int], start: int) -> list[int]:
    return [spot and spot + (start << _LENGTH_BITS) for spot in spots]


class Log:
    """The log, its lock and its marks, in the folder `.postroom` of a room."""

    def __init__(self, folder: Path, busy_timeout_s: float, mode: int, *, looks: bool = False) -> None:
        """`looks`: nothing can be written here, so nothing is made either."""
        #: Where it lies; the room says when its layout is known.
        self.path = folder / "log"
        self._folder = folder
        self._busy_timeout_s = busy_timeout_s
        self._mode = mode
        self._looks = looks
        flags = _LOOKING if looks else _FLAGS
        self._lock = open_shared(folder / "lock", flags, mode)
        self._keys = open_shared(folder / "keys", flags, mode)
        self._mark = open_shared(folder / "mark", flags, mode)
        self._turn = open_shared(folder / "turn", flags, mode)
        self._threads = threading.RLock()
        self._reserving = False
        self._holder: object | None = None  # the step that has the lock
        self._file = -1
        self._inode = -1
        #: Up to where it was read.
        self.place = 0
        self.base = 0

    # Locks

    @contextmanager
    def locked(self) -> Iterator[None]:
        """No other process writes meanwhile; threads are the caller's business.

        Raises RoomBusy when somebody does for too long.
        """
        me = self._holder = object()
        try:
            self._wait_for(self._lock)
            yield
        finally:
            # an interrupted `with` may end late, when it is collected: the lock is somebody else's by then
            if self._holder is me:
                self.unlock()

    def unlock(self) -> None:
        """Let others write, whether or not this process had the lock. Nobody here may be in the middle of a step."""
        fcntl.flock(self._lock, fcntl.LOCK_UN)
        self._holder = None

    def _wait_for(self, descriptor: int) -> None:
        until_ns, pause_s = 0, 0.00005
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return
            except BlockingIOError:
                now_ns = SYSTEM.steady_ns()
                until_ns = until_ns or now_ns + int(self._busy_timeout_s * 1e9)
                if now_ns >= until_ns:
                    raise RoomBusy(self._trouble(descriptor)) from None
            SYSTEM.sleep(pause_s)
            pause_s = min(pause_s * 1.5, 0.002)

    def _trouble(self, descriptor: int) -> str:
        return lock_trouble(str(self._folder), self._folder / ("lock" if descriptor == self._lock else "keys"))

    def reserve(self, now_us: int, count: int) -> int:
        """Take so many microseconds for new messages, behind all that were taken before; the first of them."""
        with self._threads:  # flock keeps out other processes, not other threads
            if self._reserving:  # a signal's handler in the middle of this: it would get the same numbers
                raise in_the_middle()
            self._reserving = True
            try:
                self._wait_for(self._keys)
                last = _read_place(self._keys)
                first = max(now_us, last + 1)
                os.pwrite(self._keys, _PLACE.pack(first + count - 1), 0)
                return first
            finally:
                self._reserving = False
                fcntl.flock(self._keys, fcntl.LOCK_UN)

    def take_turn(self, now_ns: int, span_ns: int) -> bool:
        """Whether nobody took a turn within that span of the steady clock; then it is taken.

        Two may take it at once.
        """
        last_ns = _read_place(self._turn)
        if last_ns <= now_ns < last_ns + span_ns:  # a later one is from before a boot
            return False
        with suppress(OSError):  # others look as well, then
            os.pwrite(self._turn, _PLACE.pack(now_ns), 0)
        return True

    def last_key_us(self) -> int:
        """The last microsecond that was taken."""
        return _read_place(self._keys)

    # Reading

    def is_new(self) -> bool:
        """Whether there is another log than the one that is open: the first, or a shorter one with the same meaning.

        Raises FileNotFoundError when there is none.
        """
        return os.stat(self.path, follow_symlinks=False).st_ino != self._inode

    def reopen(self) -> None:
        """Begin to read the log that is there now."""
        descriptor = os.open(self.path, _LOOKING if self._looks else os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
        if self._file >= 0:
            os.close(self._file)
        self._file, self._inode = descriptor, os.fstat(descriptor).st_ino
        self.place = self.base = 0

    def size(self) -> int:
        """How long it is."""
        return os.fstat(self._file).st_size

    def read_on(self) -> Iterator[LogLine]:
        """The steps that were written since the last call.

        A long log is read portion by portion, so that it never lies in memory as a whole. Raises RoomDamaged behind the last
        line before the damage.
        """
        if self.size() == self.place:
            return
        portion_bytes = PORTION_BYTES
        while self.place + portion_bytes < self.size():
            found, end, _ = self._look(self.place, self.place + portion_bytes)
            portion_bytes = PORTION_BYTES if found else 2 * portion_bytes
            yield from self._read(found, end)
        found, end, damage = self._look(self.place, self.size())
        if damage and self._holder is None:
            with self.locked():  # it may have been a tail that somebody was cutting off and writing anew
                found, end, damage = self._look(self.place, self.size())
        if damage:
            raise self._damaged(end, damage)
        yield from self._read(found, end)

    def _read(self, found: list[LogLine], end: int) -> Iterator[LogLine]:
        self.place = end
        for line in found:
            if line.record.base is not None:
                self.base = line.record.base
            yield line

    def lines_after(self, place: int) -> list[LogLine]:
        """The steps of the log that is open which end behind that place, as far as it was read.

        Raises RoomDamaged when they cannot be read again.
        """
        found, end, damage = self._look(place, self.place)
        if end != self.place and place:  # no line ends there
            return self.lines_after(0)
        if end != self.place:
            raise self._damaged(end, damage or self.place - end)
        return found

    def row_at(self, spot: int) -> RowRecord:
        """A row as the log that is open has it at a spot."""
        return _decode_row(os.pread(self._file, spot & ((1 << _LENGTH_BITS) - 1), spot >> _LENGTH_BITS))

    def _look(self, start: int, stop: int) -> tuple[list[LogLine], int, int]:
        """The whole lines of a part of the log, the place where they end, and how many bytes of damage follow there."""
        data = os.pread(self._file, stop - start, start) if stop > start else b""
        found = list(_lines(data, start))
        end = found[-1].place if found else start
        return found, end, _damage(data[end - start :], end)

    def _damaged(self, place: int, size: int) -> RoomDamaged:
        """The error for so many bytes of damage, which are whole lines."""
        first = os.pread(self._file, place, 0).count(b"\n") + 1
        last = first + os.pread(self._file, size - 1, place).count(b"\n")
        return RoomDamaged(
            f"{self.path} is damaged: its bytes {place} to {place + size} differ from what was written; nothing was changed. "
            "Stop every process that uses the room and keep a copy of its folder; then put the log of a backup there, or take out what "
            f"is damaged, and what it told is forgotten: sed -i.damaged {first},{last}d '{self.path}'"
        )

    # Writing. The caller has the lock, and everything before was ended.

    def append(self, record: LogRecord, *, sync: bool, unread: bool = False) -> LogLine:
        """Write a step down; its line. Raises RoomUnreachable: then it does not count.

        `unread`: by somebody who has not read the log to its end, and will read this line like those of others.
        """
        line, spots = _with_spots(record)
        start = self.size() if unread else self.place
        try:
            written = os.pwrite(self._file, line, start)
            while written < len(line):
                written += os.pwrite(self._file, line[written:], start + written)
            if sync:
                sync_content(self._file)
        except OSError as error:
            os.ftruncate(self._file, start)
            raise RoomUnreachable(
                f"{self.path} could not be written ({error.strerror}); nothing was changed"
            ) from error
        if not unread:
            self.place = start + len(line)
        return LogLine(start + len(line), record, _moved_by(spots, start))

    def sync(self) -> None:
        """Make what stands in the log survive a power cut. Raises RoomUnreachable when the disk does not take it."""
        try:
            sync_content(self._file)
        except OSError as error:
            raise RoomUnreachable(f"{self.path} could not be synced ({error.strerror}); nothing was changed") from error

    def mark(self) -> int:
        """Up to where the tree has followed."""
        return _read_place(self._mark)

    def set_mark(self, place: int) -> None:
        os.pwrite(self._mark, _PLACE.pack(place), 0)

    def begin_anew(self, records: Iterable[LogRecord]) -> None:
        """Put a few lines in the place of the whole log; they mean the same. Others see that there is another log."""
        size = 0
        new = self.path.with_name("log.new")
        descriptor = open_shared(new, _FLAGS | os.O_TRUNC, self._mode)
        try:
            with os.fdopen(os.dup(descriptor), "wb") as file:
                for record in records:
                    size += file.write(line_of(record))
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        self.set_mark(size)
        os.rename(new, self.path)
        sync_folder(self._folder)  # or the old one might be back after a power cut, without what comes from now on

    def cut_off(self) -> None:
        """Cut off what a killed process left unfinished. The caller has the lock, and has read everything.

        Raises RoomUnreachable, and nothing was changed.
        """
        try:
            os.ftruncate(self._file, self.place)
        except OSError as error:
            raise RoomUnreachable(
                f"{self.path} could not be truncated ({error.strerror}); nothing was changed"
            ) from error

    def close(self) -> None:
        """Let go of all files. Safe to call twice; a call that was interrupted leaves the rest to the next."""
        for name in ("_lock", "_keys", "_mark", "_turn", "_file"):
            descriptor: int = getattr(self, name)
            if descriptor >= 0:
                try:
                    os.close(descriptor)
                finally:
                    setattr(self, name, -1)


def _read_place(descriptor: int) -> int:
    data = os.pread(descriptor, _PLACE.size, 0)
    return int(_PLACE.unpack(data)[0]) if len(data) == _PLACE.size else 0


def _lines(data: bytes, place: int) -> Iterator[LogLine]:
    """The whole lines of a piece of a log that begins at that place."""
    start = 0
    while (text := _text_at(data, start)) is not None:
        step = _decode(text)
        spots = _moved_by(_spots(step.rows), place + start) if text.startswith(_ROWS) else [0] * len(step.rows)
        start += _HEAD + len(text) + 1
        record = LogRecord([_decode_row(row) for row in step.rows], step.gone, step.cells, step.subscribers, step.base, step.version, step.tally)  # fmt: skip
        yield LogLine(place + start, record, spots)


def _text_at(data: bytes, start: int) -> bytes | None:
    """What the line says that begins there; None when it is not whole."""
    end = data.find(b"\n", start)
    text = data[start + _HEAD : end]
    return text if end >= 0 and data[start : start + _HEAD] == _LINE % zlib.crc32(text) else None


def _damage(rest: bytes, place: int) -> int:
    """Of the bytes behind the last whole line: how many were whole lines once. 0 for a line that is being written.

    A line whose writer died counts as being written.

    Nobody writes behind a line that is not whole, so where a whole line follows, that one was whole as well. Only a
    power cut may leave what was written later and not what was written before: that reads as zeros, up to the end of a
    sector. The first line of a log is on the disk before the log has its name (tests/faults/test_files_damage.py).
    """
    ends = [newline.end() for newline in _NEWLINE.finditer(rest)]
    followed = next((end for end in ends if _text_at(rest, end) is not None), 0)
    size = followed or (ends[0] if ends and place == 0 else 0)
    cut = any((place + zeros.end()) % SECTOR_BYTES == 0 for zeros in _ZEROS.finditer(rest[:size]))
    return 0 if cut else size
