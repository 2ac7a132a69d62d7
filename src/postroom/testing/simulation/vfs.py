"""The file system of SQLite in a simulated world: the system's own, between which and SQLite a simulated disk stands."""

from __future__ import annotations

import os
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any, Final

import apsw

from postroom.core.clock import Chance
from postroom.stores.sqlite.layout import DATABASE

from .cut_files import CutFile
from .disk import SimulatedDisk
from .process import Process

_numbers: Final = count(1)
#: What a call that fails says, by turns.
_WRITE_FAILS: Final = (apsw.SQLITE_IOERR_WRITE, apsw.SQLITE_FULL)


class RoomVfs(apsw.VFS):
    """One room's file system. `running` tells which process runs; `keeps` lets it keep what a power cut could take."""

    def __init__(self, disk: SimulatedDisk, running: Callable[[], Process | None], *, keeps: bool) -> None:
        self.name = f"simulated-{next(_numbers)}"
        super().__init__(self.name, "")
        self.disk = disk
        self._running = running
        self._keeps = keeps
        self._files: dict[str, CutFile] = {}
        self._named: set[str] = set()  # those whose names a cut cannot take
        self._removed: dict[str, CutFile] = {}  # those that may be back after a cut
        #: The process whose files are closed because it is dead.
        self.closing: Process | None = None

    def owner(self) -> Process | None:
        """The process that a call is made by."""
        return self.closing or self._running()

    def xOpen(self, name: str | apsw.URIFilename | None, flags: list[int]) -> apsw.VFSFile:  # noqa: N802
        if name is None:  # a table that SQLite sorts
            return apsw.VFSFile("", name, flags)
        return _RoomFile(self, name, flags)

    def xDelete(self, filename: str, syncdir: bool) -> None:  # noqa: N802
        if self.disk.place(self.owner(), f"delete {_short(filename)}"):
            self.disk.changes += 1
            super().xDelete(filename, syncdir)
            file = self._files.pop(filename, None)
            if file is not None and filename in self._named:
                self._removed[filename] = file

    def kept(self, path: str) -> CutFile | None:
        """What a power cut would leave of a file; None where no power is ever cut."""
        if not self._keeps:
            return None
        if path not in self._files:
            there = Path(path).read_bytes() if os.path.exists(path) else b""
            self._files[path] = CutFile(there)
            if there:
                self._named.add(path)
        return self._files[path]

    def synced(self, path: str) -> None:
        """A file was synced, and with it its name."""
        self._named.add(path)
        self._removed.pop(path, None)

    def after_a_cut(self, chance: Chance) -> dict[str, bytes | None]:
        """What is found when the power is back; None for a file that is gone."""
        found: dict[str, bytes | None] = {}
        for path in sorted({*self._files, *self._removed}):
            file = self._files.get(path)
            if path not in self._named or file is None:
                file = chance.choice((file, self._removed.get(path)))
            found[path] = None if file is None else file.after_a_cut(chance)
        self._files.clear()
        self._removed.clear()
        self._named.clear()
        return found


class _RoomFile(apsw.VFSFile):
    def __init__(self, vfs: RoomVfs, name: str | apsw.URIFilename, flags: list[int]) -> None:
        self._path = name.filename() if isinstance(name, apsw.URIFilename) else name
        self._vfs = vfs
        self._disk = vfs.disk
        self._owner = vfs.owner()
        self._kept = vfs.kept(self._path)
        self._told = {what: f"{what} {_short(self._path)}" for what in ("lock", "sync", "truncate", "write")}
        super().__init__("", name, flags)

    def xRead(self, amount: int, offset: int) -> bytes:  # noqa: N802
        try:
            self._disk.read(self._owner)
        except OSError:
            raise apsw.exception_for(apsw.SQLITE_IOERR_READ) from None
        return super().xRead(amount, offset)

    def xWrite(self, data: Any, offset: int) -> None:  # noqa: N802
        def do_part(share: float) -> None:
            self._write(bytes(data)[: round(len(data) * share)], offset)

        if self._place("write", do_part):
            self._write(data, offset)

    def _write(self, data: Any, offset: int) -> None:
        self._disk.changes += 1
        super().xWrite(data, offset)
        if self._kept is not None:
            self._kept.change(0, offset, bytes(data))

    def _place(self, what: str, do_part: Callable[[float], None]) -> bool:
        try:
            return self._disk.place(self._owner, self._told[what], do_part)
        except OSError:
            code = _WRITE_FAILS[self._disk.changes % 2] if what == "write" else apsw.SQLITE_IOERR_FSYNC
            raise apsw.exception_for(code) from None

    def xSync(self, flags: int) -> None:  # noqa: N802
        """Nothing is waited for: the files are in memory."""
        if self._place("sync", _nothing):
            if self._path.endswith(DATABASE):
                self._disk.happened("the log was folded back into the file")
            if self._kept is not None:
                self._kept.sync(1)
                self._vfs.synced(self._path)

    def xTruncate(self, newsize: int) -> None:  # noqa: N802
        if self._disk.place(self._owner, self._told["truncate"]):
            self._disk.changes += 1
            super().xTruncate(newsize)
            if self._kept is not None:
                self._kept.change(0, newsize, None)

    def xLock(self, level: int) -> None:  # noqa: N802
        """A dead process gets no lock: it would fold the log back, as the last one out."""
        if not self._disk.place(self._owner, self._told["lock"]):
            raise apsw.BusyError("simulated: the process is dead")
        super().xLock(level)


def _nothing(_: float) -> None:
    pass


def _short(path: str) -> str:
    return os.path.basename(path)
