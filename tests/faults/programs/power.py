"""A disk whose power can be cut: what was written and not synced may be there afterwards, or not, or in pieces.

Every file keeps two things apart: what is safe, because a sync came after it, and the writes since then. At the cut
each sector of those writes is kept, lost or turned to rubbish, by chance. A file that was made or deleted without a
sync of the folder may be there or not. This is harsher than real disks, and allowed by what SQLite is promised by a system.
"""

from __future__ import annotations

import os
import random
from pathlib import Path
from typing import Any

import apsw


class Platter:
    """One file: what is safe of it, and what was done to it since."""

    def __init__(self, safe: bytes | None) -> None:
        self.safe = safe  # None: it may not be there at all after a cut
        self.since: list[tuple[int, bytes | None]] = []  # (place, data), or (new size, None)
        self.deleted = False

    def sync(self) -> None:
        self.safe = bytes(self._after(self.since))
        self.since = []

    def _after(self, changes: list[tuple[int, bytes | None]]) -> bytearray:
        content = bytearray(self.safe or b"")
        for place, data in changes:
            if data is None:
                del content[place:]
                content.extend(bytes(place - len(content)))
            else:
                content.extend(bytes(max(0, place + len(data) - len(content))))
                content[place : place + len(data)] = data
        return content

    def after_a_cut(self, chance: random.Random) -> bytes | None:
        """What is found when the power is back; None when the file is not there."""
        if self.deleted and chance.random() < 0.5:
            return None
        if self.safe is None and chance.random() < 0.3:
            return None
        mood = chance.choice(("none", "all", "first", "pieces", "pieces"))
        if mood == "none":
            return self.safe or b""
        if mood == "all":
            return bytes(self._after(self.since))
        if mood == "first":
            return bytes(self._after(self.since[: chance.randrange(len(self.since) + 1)]))
        return bytes(self._after(_pieces(self.since, chance)))


def _pieces(changes: list[tuple[int, bytes | None]], chance: random.Random) -> list[tuple[int, bytes | None]]:
    """The changes in sectors, some of them lost, some of them rubbish."""
    sector = chance.choice((512, 4096))
    kept_of_ten = chance.choice((1, 5, 9))
    found: list[tuple[int, bytes | None]] = []
    for place, data in changes:
        if data is None:
            found += [(place, None)] if chance.random() < 0.5 else []
            continue
        at = place
        while at < place + len(data):
            end = min(place + len(data), (at // sector + 1) * sector)
            if chance.randrange(10) < kept_of_ten:
                rubbish = chance.random() < 0.05
                found.append((at, chance.randbytes(end - at) if rubbish else data[at - place : end - place]))
            at = end
    return found


class PowerDisk(apsw.VFS):
    """A file system over the system's own. At the cut `image` becomes what is left; what comes later is a ghost's work."""

    def __init__(self, name: str, chance: random.Random, cut_at: int) -> None:
        super().__init__(name, "")
        self.name = name
        self.image: dict[str, bytes] | None = None
        self._chance = chance
        self._left = cut_at
        self._platters: dict[str, Platter] = {}

    def xOpen(self, name: str | apsw.URIFilename | None, flags: list[int]) -> apsw.VFSFile:  # noqa: N802
        path = name.filename() if isinstance(name, apsw.URIFilename) else str(name)
        platter = self._platters.get(path)
        if platter is None or platter.deleted:
            # a file that was there before belongs to the folder already; a new one is safe when it is first synced
            platter = self._platters[path] = Platter(b"" if os.path.exists(path) else None)
        return _PowerFile(self, platter, name, flags)

    def xDelete(self, filename: str, syncdir: bool) -> None:  # noqa: N802
        self.tick()
        if filename in self._platters:
            self._platters[filename].deleted = True
            if syncdir:
                del self._platters[filename]
        super().xDelete(filename, syncdir)

    def tick(self) -> None:
        """One more change is under way; the power goes at the one that was chosen."""
        self._left -= 1
        if self._left == 0 and self.image is None:
            self.cut()

    def sync_folder(self) -> None:
        """What was made is there, and what was deleted is gone, whatever comes."""
        self._platters = {path: platter for path, platter in self._platters.items() if not platter.deleted}
        for platter in self._platters.values():
            platter.safe = platter.safe or b""

    def cut(self) -> None:
        """Cut the power now."""
        found = {path: platter.after_a_cut(self._chance) for path, platter in self._platters.items()}
        self.image = {Path(path).name: content for path, content in found.items() if content is not None}


class _PowerFile(apsw.VFSFile):
    def __init__(
        self, disk: PowerDisk, platter: Platter, name: str | apsw.URIFilename | None, flags: list[int]
    ) -> None:
        # SQLite syncs the folder too with the first sync of a log or journal that it may have made
        kinds = apsw.SQLITE_OPEN_WAL | apsw.SQLITE_OPEN_MAIN_JOURNAL
        self._syncs_folder = bool(flags[0] & apsw.SQLITE_OPEN_CREATE and flags[0] & kinds)
        super().__init__("", name, flags)
        self._disk = disk
        self._platter = platter

    def xWrite(self, data: Any, offset: int) -> None:  # noqa: N802
        self._platter.since.append((offset, bytes(data)))
        self._disk.tick()
        super().xWrite(data, offset)

    def xTruncate(self, newsize: int) -> None:  # noqa: N802
        self._platter.since.append((newsize, None))
        self._disk.tick()
        super().xTruncate(newsize)

    def xSync(self, flags: int) -> None:  # noqa: N802
        self._disk.tick()
        self._platter.sync()
        if self._syncs_folder:
            self._disk.sync_folder()
            self._syncs_folder = False
