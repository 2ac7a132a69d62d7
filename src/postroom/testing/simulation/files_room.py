"""A files room in a simulated world: real files in a real folder, with a simulated disk between them and the store.

The store's calls to the system go through the module `os`. While a room is simulated, those that change a file or a
name are asked about first (`SimulatedDisk.place`). Bells and watches are as they are: what they tell is there when the
step that caused it is over, so that nothing is left to chance.
"""

from __future__ import annotations

import os
import shutil
import stat
import tempfile
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, Final

from postroom.core.system.files import SYNC_CALLS
from postroom.stores.contract import Store
from postroom.stores.files.store import FilesStore

from .disk import FILES_POINTS, SimulatedDisk
from .process import Process
from .rooms import MEMORY, SimulatedAttendance, abandon_bells, without_spinning
from .world import World

#: The calls that change something; those of which a part can be done have that part made of their second argument.
_CALLS: Final = ("pwrite", "ftruncate", "link", "rename", "unlink", "mkdir", *SYNC_CALLS)
#: So that some schedules come to a log that is written anew.
_GROWTH_BYTES: Final = 4096
#: Those that do not fail: taking away what is not needed any more.
_NEVER_FAIL: Final = ("unlink",)


class FilesRoom:
    """A room in a folder, which each process of a world opens for itself, with a store and bells of its own."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._spinning = without_spinning()
        self._place = Path(tempfile.mkdtemp(prefix="postroom-", dir=MEMORY))
        self._folder = self._place / "room"
        self._stores: dict[str, list[FilesStore]] = {}
        self._growth_bytes, FilesStore.log_growth_bytes = FilesStore.log_growth_bytes, _GROWTH_BYTES
        with closing(self._look_at(self._folder)) as store:
            self._base_ns = store._about.base_ns
        self.disk = SimulatedDisk(world, FILES_POINTS)
        self._real = {name: getattr(os, name) for name in _CALLS if hasattr(os, name)}
        for name, call in self._real.items():
            setattr(os, name, self._asked_about(name, call))

    def _asked_about(self, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        disk = self.disk

        def ask(*args: Any, **kwargs: Any) -> Any:
            if disk.running is None:
                return call(*args, **kwargs)

            def do_part(share: float) -> None:
                disk.changes += 1
                if name == "pwrite":
                    call(args[0], bytes(args[1])[: round(len(args[1]) * share)], args[2])
                elif share == 1:
                    call(*args, **kwargs)

            if not disk.place(disk.running, name, None if name in _NEVER_FAIL else do_part):
                return len(args[1]) if name == "pwrite" else None
            disk.changes += 1
            return call(*args, **kwargs)

        return ask

    def open(self, process: str) -> Store:
        store = FilesStore(self._folder, self._world.config, self._world.clock)
        real = store._attendance  # which is closed with the store's other parts
        store._attendance = SimulatedAttendance(real, process, self._world.is_alive)
        store._tree.process = process
        self._stores.setdefault(process, []).append(store)
        return store

    def room_ms(self) -> int:
        return (self._base_ns + self._world.clock.steady_ns()) // 1_000_000

    def drop(self, process: Process) -> None:
        """A process is dead: its files are closed, which frees its locks, and nothing is written by that."""
        self.disk.dead.add(process)
        for store in self._stores.pop(process.name, []):
            abandon_bells(store._bells)
            store._bells = None
            store.close()

    @contextmanager
    def look(self) -> Iterator[Store]:
        """The room, as one more process would find it now: in a copy, since the first to come ends what others began."""
        with tempfile.TemporaryDirectory(prefix="postroom-look-", dir=MEMORY) as place:
            copy = Path(place, "room")
            _copy(self._folder, copy, {})
            with closing(self._look_at(copy)) as store:
                yield store

    def _look_at(self, folder: Path) -> FilesStore:
        return FilesStore(folder, self._world.config, self._world.clock)

    def close(self) -> None:
        for stores in self._stores.values():
            for store in stores:
                store.close()
        for name, call in self._real.items():
            setattr(os, name, call)
        self.disk.close()
        FilesStore.log_growth_bytes = self._growth_bytes
        self._spinning()
        shutil.rmtree(self._place, ignore_errors=True)


def _copy(folder: Path, to: Path, known: dict[int, Path]) -> None:
    """Copy the files of a folder; a file of two names stays one, and sockets are left out."""
    to.mkdir(mode=0o700)
    for entry in sorted(os.scandir(folder), key=lambda each: each.name):
        about = entry.stat(follow_symlinks=False)
        place = to / entry.name
        if stat.S_ISDIR(about.st_mode):
            _copy(Path(entry.path), place, known)
        elif about.st_ino in known:
            os.link(known[about.st_ino], place)
        elif stat.S_ISREG(about.st_mode):
            shutil.copy2(entry.path, place)
            known[about.st_ino] = place
