"""Where messages are kept: one package for each scheme of a room's address, and those that other distributions add.

`contract` is the promise. `rules` and `pipes` are the parts that several stores share, `bells` and `liveness` those of
stores in a folder.

A distribution adds a store by an entry point in the group `postroom.stores`: the scheme is its name, the store's class
its object. The class is called as `cls(url, config, clock, create=create)`; `postroom.testing` is its suite.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Final

from postroom.core import trust
from postroom.core.clock import Clock
from postroom.core.config import FOLDER, FOLDER_SCHEMES, Config, RoomUrl, missing_part
from postroom.core.system.startup import deferring, load_target
from postroom.errors import RoomError, RoomUnreachable, RoomUnsafe

from .contract import Store

#: For rooms of other layouts, and for those with limits.
__getattr__ = deferring(__name__, "gates", "layouts")

#: The class of each scheme's store, loaded when a room has that scheme.
SCHEMES: Final = {
    "memory": "postroom.stores.memory.store:MemoryStore",
    "sqlite": "postroom.stores.sqlite.store:SqliteStore",
    "files": "postroom.stores.files.store:FilesStore",
    "nats": "postroom.stores.nats.store:NatsStore",
}
ENTRY_POINTS: Final = "postroom.stores"
#: Takes longer to load than a store, and is asked only for a scheme that is none of these.
_INSTALLED: Final = "importlib.metadata:entry_points"


def open_store(url: RoomUrl, config: Config, clock: Clock, *, create: bool = True) -> Store:
    """Open the store that a room's address names. The module of a store is imported only when it is used.

    `create` False: a room on servers that is not there is not made, RoomNotFound says so. (A room in a folder is its
    folder.)

    Raises RoomError for a scheme that no store has, RoomDamaged for a room in a folder whose messages are missing; each
    store says what else can go wrong.
    """
    store_class = load_target(SCHEMES[url.scheme]) if url.scheme in SCHEMES else _added(url)
    store: Store
    if url.scheme == "memory":
        store = store_class(config, clock, name=url.rest)
    elif url.scheme in FOLDER_SCHEMES:
        folder = Path(url.rest)
        check_folder(folder / FOLDER if url.scheme == "files" else folder, shared=config.group)
        if missing_part(url) is not None:
            trust.check_whole(url)
        store = store_class(folder, config, clock)
    else:
        store = store_class(url, config, clock, create=create)
    return store


def _added(url: RoomUrl) -> Any:
    """The class of a store that another distribution adds."""
    added = load_target(_INSTALLED)(group=ENTRY_POINTS)
    for each in added.select(name=url.scheme):
        try:
            return each.load()
        except (ImportError, AttributeError) as error:
            raise RoomError(
                f"the store {url.scheme!r} ({each.value}) is installed but cannot be loaded: {error}; reinstall it"
            ) from error
    known = ", ".join(f"{scheme}:" for scheme in (*SCHEMES, *sorted(added.names)))
    raise RoomError(f"there is no store {url.scheme!r} (in {url}); a room's address begins with one of: {known}")


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
        raise RoomUnsafe(f"{parts[0].path} is a symbolic link; a room's folder may not contain links: remove it")
    if parts:
        raise RoomUnsafe(
            f"{parts[0].path} does not belong to user {user}; make a room for several users with group=true"
        )


def _owner(entry: os.DirEntry[str]) -> int | None:
    try:
        return entry.stat(follow_symlinks=False).st_uid
    except FileNotFoundError:
        return None  # another process removed it meanwhile
