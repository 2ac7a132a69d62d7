"""The disks that a power cut may leave, made from a recording (programs/power.py, programs/system_calls.py).

`Disk` plays a recording up to the cut. It keeps apart what is safe, because a sync began after it and ended before the cut, and
what came since. Of that, each sector of 512 bytes or 4 KB of each write is there, is not there or is rubbish, by chance and
whatever the order. The length of a file is on its own: it may have grown without the data (then zeros lie there, or rubbish, or
something that the file had there once), or not have grown although the data was written. A truncation happened or not.

Names that came or went in a folder since its last sync are there or not, in one of two ways. With a journal, all that happened to
names up to some moment is there, and nothing since. Without one, the same holds of each file by itself: its links, moves and
removals are lost from some moment on, whatever became of other files. A move takes one name and gives another in one step, or the
file has both. Without its name a folder is gone with all that is in it.

This is harsher than real disks, and allowed by what a system promises: fdatasync keeps data and the length to reach it, and fsync
of a folder keeps its names. Where a recording names files by their paths, it is a disk like those of Linux, which go beyond that:
what is synced keeps the names that it has, and so do the folders on the way to it.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import Any

from tests.faults.programs.power import Event, Handle

from postroom.testing.simulation.cut_files import CutFile


class Folder:
    """One folder: the names in it, as whoever looks sees them, and what became of names here since they were synced."""

    def __init__(self) -> None:
        self.now: dict[str, CutFile | Folder] = {}
        self.since: list[NameChange] = []

    def sync(self, began: int) -> None:
        """A sync that began at that event has ended."""
        _keep(self.since, began)


@dataclass(eq=False, slots=True)
class NameChange:
    """One thing loses a name, or gets one, or gets one for another in one step."""

    number: int
    what: CutFile | Folder
    gone: tuple[Folder, str] | None = None
    came: tuple[Folder, str] | None = None
    safe: bool = False


def _keep(since: list[NameChange], began: int) -> None:
    """What happened before that event is safe; the rest stays in the list."""
    for change in since:
        change.safe = change.safe or change.number < began
    since[:] = [change for change in since if not change.safe]


Names = dict[Folder, dict[str, CutFile | Folder]]


@dataclass(eq=False, slots=True)
class Sync:
    """A sync under way: when it began, and of what; and that with the folders on the way to it, if their names are kept."""

    began: int
    what: CutFile | Folder
    way: Sequence[CutFile | Folder] = ()


class Disk:
    """The files below a folder, as a recording tells of them."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._top = Folder()
        self._inodes: dict[int, Folder] = {root.stat().st_ino: self._top}
        self._handles: dict[Handle, CutFile] = {}
        self._syncs: dict[Handle, Sync] = {}
        self._names: list[NameChange] = []
        self._names_of: dict[CutFile | Folder, list[NameChange]] = {}  # what happened to its names, and is not safe
        self._number = 0

    def play(self, event: Event) -> None:
        """One more event."""
        self._number += 1
        if event[0] in ("returned", "rests", "past"):
            return
        kind, first, *rest = event
        if kind == "wrote":
            self._file(first).change(self._number, *rest)
        elif kind == "truncated":
            self._file(first).change(self._number, rest[0], None)
        elif kind == "sync":
            self._begin_sync(first, rest[0])
        elif kind == "synced":
            self._end_sync(first)
        else:
            self._play_name(kind, first, *rest)

    def _file(self, of: Handle | str) -> CutFile:
        found = self._at(of) if isinstance(of, str) else self._handles[of]
        assert isinstance(found, CutFile), f"{of} is a folder"
        return found

    def _at(self, path: str) -> CutFile | Folder:
        if PurePath(path) == self._root:
            return self._top
        folder, name = self._place(path)
        return folder.now[name]

    def _begin_sync(self, ticket: Handle, of: Any) -> None:
        if isinstance(of, str):
            above = [str(path) for path in PurePath(of).parents if path.is_relative_to(self._root)]
            self._syncs[ticket] = Sync(self._number, self._at(of), [self._at(path) for path in (of, *above)])
            return
        what = self._inodes.get(of) if isinstance(of, int) else self._handles[of]
        if what is not None:  # else it is a folder above
            self._syncs[ticket] = Sync(self._number, what)

    def _end_sync(self, ticket: Handle) -> None:
        sync = self._syncs.pop(ticket, None)
        if sync is not None:
            sync.what.sync(sync.began)
            for each in sync.way:
                _keep(self._names_of.get(each, []), sync.began)

    def _play_name(self, kind: str, first: Any, *rest: Any) -> None:
        """A name came, or went, or was used."""
        if kind == "folder":
            made = self._inodes[rest[0]] = Folder()
            self._rename(made, came=self._place(first))
        elif kind == "deleted":
            folder, name = self._place(first)
            self._rename(folder.now[name], gone=(folder, name))
        elif kind in ("renamed", "linked"):
            folder, name = self._place(first)
            gone = (folder, name) if kind == "renamed" else None
            self._rename(folder.now[name], gone=gone, came=self._place(rest[0]))
        else:
            folder, name = self._place(rest[0])
            there = folder.now.get(name)
            if kind == "made":
                there = CutFile()
                self._rename(there, came=(folder, name))
            assert isinstance(there, CutFile), f"{rest[0]} was there before anybody made it"
            self._handles[first] = there

    def _rename(
        self, what: CutFile | Folder, gone: tuple[Folder, str] | None = None, came: tuple[Folder, str] | None = None
    ) -> None:
        change = NameChange(self._number, what, gone, came)
        _apply_name(change, lambda folder: folder.now)
        self._names.append(change)
        self._names_of.setdefault(what, []).append(change)
        for folder, _ in filter(None, (gone, came)):
            folder.since.append(change)

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
        names = self._names_after_a_cut(chance)
        found = _files(self._top, lambda folder: names.get(folder, {}), PurePath())
        return {path: file.after_a_cut(chance) for path, file in found}

    def leave(self, place: Path, chance: random.Random, *, rubbish: float = 0.05) -> None:
        """Lay out what is found when the power is back, below a new folder: with folders that are empty, and a file of
        two names as one file.
        """
        place.mkdir(mode=0o700, parents=True)
        names = self._names_after_a_cut(chance)
        first_names: dict[Any, Path] = {}

        def lay(folder: Folder, at: Path) -> None:
            for name, there in sorted(names.get(folder, {}).items()):
                if isinstance(there, Folder):
                    (at / name).mkdir(mode=0o700)
                    lay(there, at / name)
                elif there in first_names:
                    (at / name).hardlink_to(first_names[there])
                else:
                    (at / name).write_bytes(there.after_a_cut(chance, rubbish, in_order=True))
                    first_names[there] = at / name

        lay(self._top, place)

    def _names_after_a_cut(self, chance: random.Random) -> Names:
        """The names in each folder."""
        found: Names = {}
        for change in self._kept_in_order(chance) if chance.random() < 0.5 else self._kept_by_file(chance):
            _apply_name(change, lambda folder: found.setdefault(folder, {}))
        return found

    def _kept_in_order(self, chance: random.Random) -> Sequence[NameChange]:
        safe = max((place for place, change in enumerate(self._names, 1) if change.safe), default=0)
        return self._names[: chance.randint(safe, len(self._names))]

    def _kept_by_file(self, chance: random.Random) -> Iterable[NameChange]:
        changes: dict[CutFile | Folder, list[NameChange]] = {}
        for change in self._names:
            changes.setdefault(change.what, []).append(change)
        kept: set[NameChange] = set()
        mood = chance.choice((0.1, 0.5, 0.9))
        for of_it in changes.values():
            safe = max((place for place, change in enumerate(of_it, 1) if change.safe), default=0)
            more = len(of_it) - safe
            kept.update(
                of_it[: safe + (chance.randint(0, more) if chance.random() < 0.5 else more * (chance.random() < mood))]
            )
        return [
            NameChange(change.number, change.what, came=change.came)
            if change.gone and change.came and not change.safe and chance.random() < 0.1
            else change
            for change in self._names
            if change in kept
        ]


def _apply_name(change: NameChange, look: Any) -> None:
    if change.gone is not None:
        folder, name = change.gone
        if look(folder).get(name) is change.what:
            del look(folder)[name]
    if change.came is not None:
        folder, name = change.came
        look(folder)[name] = change.what


def _files(folder: Folder, look: Any, at: PurePath) -> Iterable[tuple[str, CutFile]]:
    for name, there in look(folder).items():
        if isinstance(there, CutFile):
            yield str(at / name), there
        else:
            yield from _files(there, look, at / name)


def is_whole(root: Path, events: Iterable[Event], but: Callable[[str], bool] = lambda _: False) -> bool:
    """Whether a recording by paths tells of all that was done: played to its end, it gives the files that are there."""
    disk = Disk(root)
    for event in events:
        disk.play(event)
    files = [path for path in root.rglob("*") if path.is_file() and not but(str(path))]
    return disk.whole() == {str(path.relative_to(root)): path.read_bytes() for path in files}


def points_of(events: Sequence[Event], cuts: int, chance: random.Random) -> list[int]:
    """When to cut: after so many events. Half of the cuts come when a call has just returned."""
    returned = [number for number, event in enumerate(events, 1) if event[0] == "returned"]
    return [
        chance.choice(returned) if returned and chance.random() < 0.5 else chance.randrange(len(events) + 1)
        for _ in range(cuts)
    ]
