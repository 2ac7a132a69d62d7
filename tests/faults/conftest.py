"""Fixtures of the fault tests: a room's folder, and a nursery for children."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from .support import Nursery, seed


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Where the test's room is; nobody has made it yet."""
    return tmp_path / "room"


@pytest.fixture
def part(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    """Which part of a storm this is, see `in_parts`: its seeds are others than those of the parts before."""
    monkeypatch.setenv("POSTROOM_FAULTS_SEED", str(seed() + 10_000 * request.param))
    return int(request.param)


@pytest.fixture
def nursery(tmp_path: Path) -> Iterator[Nursery]:
    """A process that forks children for this test and takes them with it."""
    nursery = Nursery(tmp_path / "children.log", "journal", "rooms")
    yield nursery
    nursery.close()
