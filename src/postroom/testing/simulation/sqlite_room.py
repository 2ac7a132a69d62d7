"""A SQLite room in a simulated world: real files and real SQLite, on a disk that fails, tears and forgets."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Final

from postroom.core import crashpoints
from postroom.core.clock import Chance
from postroom.stores.contract import Store
from postroom.stores.sqlite import wal
from postroom.stores.sqlite.layout import DATABASE
from postroom.stores.sqlite.store import SqliteStore

from .broken import Broken
from .disk import SQLITE_POINTS, SimulatedDisk
from .process import Process
from .rooms import MEMORY, SimulatedAttendance, abandon_bells, may_cut_power, without_spinning
from .vfs import RoomVfs
from .world import World

_LOG: Final = f"{DATABASE}-wal"
_SHARED_MEMORY: Final = f"{DATABASE}-shm"
#: A checkpoint is made when the log has so many pages, by the call that made it so long: most schedules come to one.
_LONG_PAGES: Final = 60
#: The folder of a new room, to be copied, and what it adds to the steady clock: making one costs more than a schedule.
_template: list[tuple[tempfile.TemporaryDirectory[str], int]] = []


class SqliteRoom:
    """A room in a file, which each process of a world opens for itself, with connections and bells of its own."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._spinning = without_spinning()
        self._folds = wal.LONG_PAGES, wal.WriteAheadLog.folds_beside
        _fold_at(_LONG_PAGES, beside=False)
        self._folder = Path(tempfile.mkdtemp(prefix="postroom-", dir=MEMORY))
        template, self._offset_ns = self._new_room()
        shutil.copyfile(template / DATABASE, self._folder / DATABASE)
        self.disk = SimulatedDisk(world, SQLITE_POINTS)
        self.disk.on_death = self._remember
        crashpoints.at("sqlite.committed", self._rings)
        self._vfs = RoomVfs(self.disk, world.running, keeps=may_cut_power(world.plan))
        self._shared_memory: bytes | None = None  # as a process that died inside a step left it
        self._stores: dict[str, list[SqliteStore]] = {}

    def _new_room(self) -> tuple[Path, int]:
        if not _template:
            folder = tempfile.TemporaryDirectory(prefix="postroom-new-", dir=MEMORY)
            store = self._look_at(Path(folder.name))
            _template.append((folder, store._file.offset_ns))
            store.close()
        folder, offset_ns = _template[0]
        return Path(folder.name), offset_ns

    def open(self, process: str) -> Store:
        if not self._is_open() and self._has_log():
            self._world.happened("a log that nobody had closed was recovered")
        store = SqliteStore(self._folder, self._world.config, self._world.clock, vfs=self._vfs.name)
        file = store._file
        file.attendance = SimulatedAttendance(file.attendance, process, self._world.is_alive)
        self._stores.setdefault(process, []).append(store)
        self._offset_ns = file.offset_ns
        return store

    def _is_open(self) -> bool:
        """Whether a process that lives has the file open."""
        return any(store._file._connections for stores in self._stores.values() for store in stores)

    def _has_log(self) -> bool:
        log = self._folder / _LOG
        return log.exists() and log.stat().st_size > 0

    def room_ms(self) -> int:
        return (self._world.clock.steady_ns() + self._offset_ns) // 1_000_000

    def _rings(self) -> None:
        """A process is about to ring for a step: everybody must be able to see it."""
        process = self._world.running()
        stores = [] if process is None else self._stores.get(process.name, [])
        if any(each.in_transaction for store in stores for each in store._file._connections):
            self._world.fail(Broken(f"{process!r} rings for what nobody else can see yet"))
        self.disk.point("sqlite.committed")

    # Deaths

    def _remember(self) -> None:
        with suppress(FileNotFoundError):
            self._shared_memory = (self._folder / _SHARED_MEMORY).read_bytes()

    def drop(self, process: Process) -> None:
        """A process is dead: its files are closed, which frees its locks, and nothing is written by that.

        SQLite tidies up the shared memory of the log where a transaction is rolled back. A dead process does not, so
        what it left there is put back: nobody else has run meanwhile.
        """
        if self._shared_memory is None:
            self._remember()
        self.disk.dead.add(process)
        self._vfs.closing = process
        for store in self._stores.pop(process.name, []):
            abandon_bells(store._steps.bells)
            store._steps.bells = None
            connections = store._file._connections
            while connections:
                connections.pop().close(True)
            store._file.close()
        self._vfs.closing = None
        image, self._shared_memory = self._shared_memory, None
        if image is not None and (self._folder / _SHARED_MEMORY).exists():
            with open(self._folder / _SHARED_MEMORY, "r+b") as file:
                file.write(image)

    def cut_power(self, chance: Chance) -> None:
        """All processes are dead, and were dropped: of what was not synced, any part is lost."""
        for path, content in self._vfs.after_a_cut(chance).items():
            if content is None:
                Path(path).unlink(missing_ok=True)
            else:
                Path(path).write_bytes(content)
        (self._folder / _SHARED_MEMORY).unlink(missing_ok=True)
        self.disk.is_off = False

    # Looking

    @contextmanager
    def look(self) -> Iterator[Store]:
        """The room, as one more process would find it now; nothing is changed by that.

        While others have it open, what they see counts. Else it is what recovery makes of the log: in a copy.
        """
        with tempfile.TemporaryDirectory(prefix="postroom-look-", dir=MEMORY) as copy:
            folder = self._folder
            if not self._is_open():
                folder = Path(copy)
                for name in (DATABASE, _LOG):
                    with suppress(FileNotFoundError):
                        shutil.copyfile(self._folder / name, folder / name)
            with closing(self._look_at(folder)) as store:
                yield store

    def _look_at(self, folder: Path) -> SqliteStore:
        return SqliteStore(folder, self._world.config, self._world.clock)

    def faults(self, store: Store) -> list[str]:
        """What is wrong with the file that a look has open."""
        assert isinstance(store, SqliteStore)
        return store._file.faults(60.0) or []

    def close(self) -> None:
        for stores in self._stores.values():
            for store in stores:
                store.close()
        self.disk.close()
        self._vfs.unregister()
        _fold_at(self._folds[0], beside=self._folds[1])
        self._spinning()
        shutil.rmtree(self._folder, ignore_errors=True)


def _fold_at(pages: int, *, beside: bool) -> None:
    vars(wal)["LONG_PAGES"] = pages
    wal.WriteAheadLog.folds_beside = beside
