"""Fixtures of the fault tests: a room's folder, a nursery for children, and figures shown at the end of the run."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from .support import Nursery

_figures: list[str] = []


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Where the test's room is; nobody has made it yet."""
    return tmp_path / "room"


@pytest.fixture
def nursery(tmp_path: Path) -> Iterator[Nursery]:
    """A process that forks children for this test and takes them with it."""
    nursery = Nursery(tmp_path / "children.log", "journal", "rooms")
    yield nursery
    nursery.close()


@pytest.fixture
def figure() -> Callable[[str], None]:
    """Tell a measured figure; it is shown at the end of the run."""
    return _figures.append


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if _figures:
        terminalreporter.section("figures of the fault tests")
        for line in _figures:
            terminalreporter.line(line)
