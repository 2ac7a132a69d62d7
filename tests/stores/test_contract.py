"""Every store keeps the contract: the suite of `postroom.testing`, once for each."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

import pytest
from tests.support.nats_servers import room_name, shared_server

from postroom.core.clock import SYSTEM, Clock
from postroom.core.config import Config, parse_url
from postroom.stores import open_store
from postroom.stores.contract import Store
from postroom.testing import StoreContract


@pytest.fixture
def tmp_path(in_memory: Path) -> Path:
    """The contract is not about the disk."""
    return in_memory


class TestMemoryStore(StoreContract):
    """The reference: what it does is what the contract means."""

    lacks = ("durable", "shared", "switchboard")

    def open(self, clock: Clock, config: Config) -> Store:
        from postroom.stores.memory.store import MemoryStore

        return MemoryStore(config, clock)


class TestSqliteStore(StoreContract):
    """The store of everyday."""

    def open(self, clock: Clock, config: Config) -> Store:
        from postroom.stores.sqlite.store import SqliteStore

        return SqliteStore(self.folder, config, clock)


@pytest.mark.slow  # a store of files syncs its folders at every step
class TestFilesStore(StoreContract):
    """The store for agents that can only read and write files."""

    lacks = ("switchboard",)

    def open(self, clock: Clock, config: Config) -> Store:
        from postroom.stores.files.store import FilesStore

        return FilesStore(self.folder, config, clock)


@pytest.mark.slow
class TestNatsStore(StoreContract):
    """The store of many machines, on a real server."""

    lacks = ("exact_fifo", "switchboard")

    def open(self, clock: Clock, config: Config) -> Store:
        from postroom.stores.nats.store import NatsStore

        if not self.folder.exists():  # one room for each test, whatever its folder is called
            self.folder.mkdir()
            (self.folder / "name").write_text(room_name())
        name = (self.folder / "name").read_text()
        return NatsStore(parse_url(f"nats://{shared_server().address}/{name}"), config, clock)


@pytest.mark.skipif(not Path("/proc/self/fd").is_dir(), reason="this system does not tell which descriptors are open")
@pytest.mark.parametrize("scheme", ["sqlite", "files"])
def test_a_closed_store_keeps_no_descriptor_though_somebody_still_knows_it(scheme: str, tmp_path: Path) -> None:
    closed = []
    for number in range(3):
        store = open_store(parse_url(f"{scheme}:{tmp_path}/{number}"), Config(), SYSTEM)
        store.cell_write("a", 1)
        assert open_below(tmp_path)
        closed.append(store)
        store.close()
        assert open_below(tmp_path) == []


def open_below(folder: Path) -> list[str]:
    """The files below a folder that this process has open, whatever else it has."""
    found = []
    for number in os.listdir("/proc/self/fd"):
        with suppress(FileNotFoundError):  # the one of the list itself, or another thread's
            found.append(os.readlink(f"/proc/self/fd/{number}"))
    return [path for path in found if path.startswith(f"{folder}/")]
