"""Every store keeps the contract: the suite of `postroom.testing`, once for each."""

from __future__ import annotations

import pytest

from postroom.clock import Clock
from postroom.config import Config
from postroom.store import Store
from postroom.testing import StoreContract


class TestMemoryStore(StoreContract):
    """The reference: what it does is what the contract means."""

    def open(self, clock: Clock, config: Config) -> Store:
        from postroom.stores.memory import MemoryStore

        return MemoryStore(config, clock)


class TestSqliteStore(StoreContract):
    """The store of everyday."""

    def open(self, clock: Clock, config: Config) -> Store:
        from postroom.stores.sqlite import SqliteStore

        return SqliteStore(self.folder, config, clock)


@pytest.mark.slow  # a store of files syncs its folders at every step
class TestFilesStore(StoreContract):
    """The store for agents that can only read and write files."""

    def open(self, clock: Clock, config: Config) -> Store:
        from postroom.stores.files import FilesStore

        return FilesStore(self.folder, config, clock)
