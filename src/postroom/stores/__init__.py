"""Where messages are kept: one package for each scheme of a room's address, and those that other distributions add.

`contract` is the promise. `rules` and `pipes` are the parts that several stores share, `bells` and `liveness` those of
stores in a folder.

A distribution adds a store by an entry point in the group `postroom.stores`: the scheme is its name, the store's class
its object. The class is called as `cls(url, config, clock, create=create)`; `postroom.testing` is its suite.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

from postroom.core.clock import Clock
from postroom.core.config import FOLDER, Config, RoomUrl
from postroom.errors import RoomError, RoomUnreachable, RoomUnsafe

from .contract import Store

SCHEMES: Final = ("memory", "sqlite", "files", "nats")
ENTRY_POINTS: Final = "postroom.stores"


def open_store(url: RoomUrl, config: Config, clock: Clock, *, create: bool = True) -> Store:
    """Open the store that a room's address names. The module of a store is imported only when it is used.

    `create` False: a room on servers that is not there is not made, RoomNotFound says so. (A room in a folder is its
    folder.)

    Raises RoomError for a scheme that no store has; each store says what else can go wrong.
    """
    if url.scheme == "memory":
        from postroom.stores.memory.store import MemoryStore

        return MemoryStore(config, clock, name=url.rest)
    if url.scheme == "sqlite":
        from postroom.stores.sqlite.store import SqliteStore

        check_folder(Path(url.rest), shared=config.group)
        return SqliteStore(Path(url.rest), config, clock)
    if url.scheme == "files":
        from postroom.stores.files.store import FilesStore

        check_folder(Path(url.rest) / FOLDER, shared=config.group)
        return FilesStore(Path(url.rest), config, clock)
    if url.scheme == "nats":
        from postroom.stores.nats.store import NatsStore

        return NatsStore(url, config, clock, create=create)
    return _open_added(url, config, clock, create=create)


def _open_added(url: RoomUrl, config: Config, clock: Clock, *, create: bool) -> Store:
    """Open a store that another distribution adds."""
    from importlib.metadata import entry_points  # slow, and only for a scheme that is none of ours

    added = entry_points(group=ENTRY_POINTS)
    for each in added.select(name=url.scheme):
        try:
            store_class = each.load()
        except (ImportError, AttributeError) as error:
            raise RoomError(
                f"the store {url.scheme!r} ({each.value}) is installed and cannot be loaded: {error}; install it anew"
            ) from error
        store: Store = store_class(url, config, clock, create=create)
        return store
    known = ", ".join(f"{scheme}:" for scheme in (*SCHEMES, *sorted(added.names)))
    raise RoomError(f"no store is called {url.scheme!r} (in {url}); a room's address begins with one of: {known}")


def check_folder(folder: Path, *, shared: bool) -> None:
    """Raise RoomUnsafe when something in Postroom's own folder is a symbolic link, or belongs to another user.

    A link would lead what is written to it into another file. `shared`: the room is one of several users.
    """
    user = os.geteuid()
    try:
        with os.scandir(folder) as entries:
            parts = [entry for entry in entries if entry.is_symlink() or not (shared or _owner(entry) in (user, None))]
    except FileNotFoundError:
        return  # it is about to be made
    except OSError as error:
        raise RoomUnreachable(f"the room's folder {folder} cannot be read: {error.strerror}") from error
    if parts and parts[0].is_symlink():
        raise RoomUnsafe(f"{parts[0].path} is a symbolic link; nothing in a room's folder may be one: remove it")
    if parts:
        raise RoomUnsafe(
            f"{parts[0].path} belongs to another user than {user}; a room of several users is made with group=true"
        )


def _owner(entry: os.DirEntry[str]) -> int | None:
    try:
        return entry.stat(follow_symlinks=False).st_uid
    except FileNotFoundError:
        return None  # another process removed it meanwhile
