"""An empty room in plain files, with a clock that stands still."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from postroom.core.clock import ManualClock
from postroom.core.config import Config
from postroom.stores.files.store import FilesStore


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "mailbox"


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def store(root: Path, clock: ManualClock) -> Iterator[FilesStore]:
    with closing(FilesStore(root, Config(), clock)) as store:
        yield store
