"""Where messages are kept: one module for each scheme of a room's address."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from ..clock import Clock
from ..config import Config, RoomUrl
from ..errors import RoomError
from ..store import Store

SCHEMES: Final = ("memory", "sqlite", "files", "nats")


def open_store(url: RoomUrl, config: Config, clock: Clock, *, create: bool = True) -> Store:
    """Open the store that a room's address names. The module of a store is imported only when it is used.

    `create` False: a room on servers that is not there is not made, RoomNotFound says so. (A room in a folder is its folder.)

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
    if url.scheme == "nats":
        from .nats import NatsStore

        return NatsStore(url, config, clock, create=create)
    known = ", ".join(f"{scheme}:" for scheme in SCHEMES)
    raise RoomError(f"no store is called {url.scheme!r} (in {url}); a room's address begins with one of: {known}")
