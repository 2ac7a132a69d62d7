"""Where messages are kept: one module for each scheme of a room's address."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from ..clock import Clock
from ..config import Config, RoomUrl
from ..errors import RoomError
from ..store import Store

SCHEMES: Final = ("memory", "sqlite", "files")


def open_store(url: RoomUrl, config: Config, clock: Clock) -> Store:
    """Open the store that a room's address names. The module of a store is imported only when it is used.

    Raises RoomError for a scheme that no store has; each store says what else can go wrong.
    """
    if url.scheme == "memory":
        from .memory import MemoryStore

        return MemoryStore(config, clock, name=url.rest)
    if url.scheme == "sqlite":
        from .sqlite import SqliteStore

        return SqliteStore(Path(url.rest), config, clock)
    if url.scheme == "files":
        from .files import FilesStore

        return FilesStore(Path(url.rest), config, clock)
    known = ", ".join(f"{scheme}:" for scheme in SCHEMES)
    raise RoomError(f"no store is called {url.scheme!r} (in {url}); a room's address begins with one of: {known}")
