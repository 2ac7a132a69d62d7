"""The disks that a power cut may leave, made from a recording (programs/power.py).

`Disk` plays a recording up to the cut. It keeps apart what is safe, because a sync began after it and ended before the cut, and
what came since. Of that, each sector of 512 bytes or 4 KB of each write is there, is not there or is rubbish, by chance and
whatever the order. The length of a file is on its own: it may have grown without the data (then zeros lie there, or rubbish, or
something that the file had there once), or not have grown although the data was written. A truncation happened or not. Names that
came or went in a folder since its last sync are there or not; without its name a folder is gone with all that is in it.

This is harsher than real disks, and allowed by what a system promises: fdatasync keeps data and the length to reach it, and fsync
of a folder keeps its names.
"""

from __future__ import annotations

import random
from collections.abc import Iterable
from pathlib import Path, PurePath
from typing import Any

from tests.faults.programs.power import Event, Handle

#: A change to a file: where, and the data; or the new size, and None.
Change = tuple[int, bytes | None]


class File:
    """One file: what is safe of it, and what was done to it since, each with the number of its event."""

    def __init__(self) -> None:
        self._safe = bytearray()
        self._since: list[tuple[int, Change]] = []
        self._once = bytearray()  # whatever lay at a place last, also behind a later end

    def change(self, number: int, place: int, data: bytes | None) -> None:
        self._since.append((number, (place, data)))
        if data is not None:
            _apply([(place, data)], self._once)

    def sync(self, began: int) -> None:
        """A sync that began at that event has ended."""
        done = 0
        while done < len(self._since) and self._since[done][0] < began:
            done += 1
        _apply((change for _, change in self._since[:done]), self._safe)
        del self._since[:done]

    def whole(self) -> bytes:
        """The file with all that was done to it."""
        return bytes(_apply((change for _, change in self._since), bytearray(self._safe)))

    def after_a_cut(self, chance: random.Random) -> bytes:
        changes = [change for _, change in self._since]
        mood = chance.choice(("none", "all", "first", "pieces", "pieces", "pieces"))
        if mood == "none" or not changes:
            return bytes(self._safe)
        if mood == "all":
            return self.whole()
        if mood == "first":
            return bytes(_apply(changes[: chance.randrange(len(changes) + 1)], bytearray(self._safe)))
        filling = chance.choice((b"", b"", chance.randbytes(4096), self._once))
        found = _apply(_pieces(changes, chance), bytearray(self._safe), filling)
        if chance.random() < 0.5:
            _resize(found, chance.choice(self._lengths(changes)), filling)
        return bytes(found)

    def _lengths(self, changes: list[Change]) -> list[int]:
        """How long the file was, since it was last synced."""
        lengths = [len(self._safe)]
        for place, data in changes:
            lengths.append(place if data is None else max(lengths[-1], place + len(data)))
        return lengths


def _resize(content: bytearray, size: int, filling: bytes | bytearray) -> None:
    """Cut it off, or fill it up: with what the filling has at that place (a short one is repeated), else with zeros."""
    del content[size:]
    start = len(content)
    if start < size and 0 < len(filling) <= 4096:
        content.extend((filling * ((size - start) // len(filling) + 1))[: size - start])
    elif start < size:
        content.extend(filling[start:size])
        content.extend(bytes(size - len(content)))


def _apply(changes: Iterable[Change], content: bytearray, filling: bytes | bytearray = b"") -> bytearray:
    for place, data in changes:
        if data is None:
            _resize(content, place, filling)
        else:
            if place > len(content):
                _resize(content, place, filling)
            content[place : place + len(data)] = data
    return content


def _pieces(changes: list[Change], chance: random.Random) -> list[Change]:
    """The changes in sectors, some of them lost, some of them rubbish."""
    sector = chance.choice((512, 4096))
    kept = chance.choice((0.1, 0.5, 0.9))
    found: list[Change] = []
    for place, data in changes:
        if data is None:
            found += [(place, None)] if chance.random() < 0.5 else []
            continue
        at, end = place, place + len(data)
        while at < end:
            to = min(end, (at // sector + 1) * sector)
            if chance.random() < kept:
                rubbish = chance.random() < 0.05
                found.append((at, chance.randbytes(to - at) if rubbish else data[at - place : to - place]))
            at = to
    return found


class Folder:
    """One folder: the names in it that are safe, and those that came or went since."""

    def __init__(self) -> None:
        self._safe: dict[str, File | Folder] = {}
        self._since: list[tuple[int, str, File | Folder | None]] = []
        self.now: dict[str, File | Folder] = {}

    def change(self, number: int, name: str, to: File | Folder | None) -> None:
        self._since.append((number, name, to))
        if to is None:
            del self.now[name]
        else:
            self.now[name] = to

    def sync(self, began: int) -> None:
        while self._since and self._since[0][0] < began:
            _, name, to = self._since.pop(0)
            if to is None:
                self._safe.pop(name, None)
            else:
                self._safe[name] = to

    def after_a_cut(self, chance: random.Random) -> dict[str, File | Folder]:
        could_be: dict[str, list[File | Folder | None]] = {name: [there] for name, there in self._safe.items()}
        for _, name, to in self._since:
            could_be.setdefault(name, [None]).append(to)
        found = {name: chance.choice(which) for name, which in could_be.items()}
        return {name: there for name, there in found.items() if there is not None}


class Disk:
    """The files below a folder, as a recording tells of them."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._top = Folder()
        self._inodes: dict[int, Folder] = {root.stat().st_ino: self._top}
        self._handles: dict[Handle, File] = {}
        self._syncs: dict[Handle, tuple[int, File | Folder]] = {}
        self._number = 0

    def play(self, event: Event) -> None:
        """One more event."""
        self._number += 1
        if event[0] in ("returned", "rests", "past"):
            return
        kind, first, *rest = event
        if kind == "wrote":
            self._handles[first].change(self._number, *rest)
        elif kind == "truncated":
            self._handles[first].change(self._number, rest[0], None)
        elif kind == "sync":
            self._begin_sync(first, rest[0])
        elif kind == "synced":
            if first in self._syncs:
                began, what = self._syncs.pop(first)
                what.sync(began)
        else:
            self._play_name(kind, first, *rest)

    def _begin_sync(self, ticket: Handle, of: Any) -> None:
        what = self._inodes.get(of) if isinstance(of, int) else self._handles[of]
        if what is not None:  # else it is a folder above
            self._syncs[ticket] = (self._number, what)

    def _play_name(self, kind: str, first: Any, *rest: Any) -> None:
        """A name came, or went, or was used."""
        if kind == "folder":
            made = self._inodes[rest[0]] = Folder()
            folder, name = self._place(first)
            folder.change(self._number, name, made)
        elif kind == "deleted":
            folder, name = self._place(first)
            folder.change(self._number, name, None)
        elif kind == "renamed":
            (folder, name), (to_folder, to_name) = self._place(first), self._place(rest[0])
            moved = folder.now[name]
            folder.change(self._number, name, None)
            to_folder.change(self._number, to_name, moved)
        else:
            folder, name = self._place(rest[0])
            there = folder.now.get(name)
            if kind == "made":
                there = File()
                folder.change(self._number, name, there)
            assert isinstance(there, File), f"{rest[0]} was there before anybody made it"
            self._handles[first] = there

    def _place(self, path: str) -> tuple[Folder, str]:
        *above, name = PurePath(path).relative_to(self._root).parts
        folder = self._top
        for part in above:
            below = folder.now[part]
            assert isinstance(below, Folder)
            folder = below
        return folder, name

    def whole(self) -> dict[str, bytes]:
        """The files with all that was done to them, by their paths below the root."""
        return {path: file.whole() for path, file in _files(self._top, lambda folder: folder.now, PurePath())}

    def after_a_cut(self, chance: random.Random) -> dict[str, bytes]:
        """The files that are found when the power is back."""
        found = _files(self._top, lambda folder: folder.after_a_cut(chance), PurePath())
        return {path: file.after_a_cut(chance) for path, file in found}


def _files(folder: Folder, look: Any, at: PurePath) -> Iterable[tuple[str, File]]:
    for name, there in look(folder).items():
        if isinstance(there, File):
            yield str(at / name), there
        else:
            yield from _files(there, look, at / name)
