"""Opening a room: finding it, making it, and saying what is wrong when neither works."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from . import trust
from .clock import SYSTEM, Clock
from .config import (
    FOLDER,
    URL_VARIABLE,
    Config,
    RoomUrl,
    address_of,
    make_config,
    parse_url,
    room_folder,
    search_places,
)
from .desk import Desk
from .errors import RoomError, RoomNotAllowed, RoomNotFound
from .platform import make_private_folder
from .room import Room
from .store import Store
from .stores import open_store


def open_room(
    url: str | os.PathLike[str] | None = None, *, create: bool = True, clock: Clock = SYSTEM, **settings: Any
) -> Room:
    """Open the room at an address, such as "sqlite:.postroom", "memory:" or the path of a folder.

    Without an address: the one in $POSTROOM_URL, else the nearest `.postroom` above, else that of the repository's main
    worktree, else `./.postroom`, which is made. With `create` False nothing is made: RoomNotFound says where it looked.
    A room that is found so must have been made or allowed by this user on this machine: RoomNotAllowed says how to allow it.
    Settings are the fields of `Config` (sync="full", max_deliveries=5, …); the address may carry them too (?sync=full).
    Raises RoomError, with one sentence that says what to do.
    """
    return open_at_desk(Desk, url, create, clock, settings)


def open_at_desk(
    make_desk: Callable[[Store, Config, Clock], Desk],
    url: str | os.PathLike[str] | None,
    create: bool,
    clock: Clock,
    settings: dict[str, Any],
) -> Room:
    """The same, with a desk of the caller's choice between the room and its store."""
    address = _find(create) if url is None else parse_url(url if isinstance(url, str) else address_of(Path(url)))
    config = make_config(settings, address.options)
    folder = room_folder(address)
    if folder is not None:
        address = RoomUrl(address.scheme, str(folder), address.options)  # also right after a chdir
        if not create and not folder.is_dir():
            raise RoomNotFound(f"there is no room in {folder}; make one with `postroom init`")
        make_folder(folder)
    new = trust.place_of(address) if trust.is_new(address) else None
    room = Room(make_desk(open_store(address, config, clock, create=create), config, clock), address)
    if new is not None:
        with suppress(OSError):  # a user without a configuration names rooms by their address
            trust.allow_place(new, how="made", group=config.group)
    return room


def _find(create: bool) -> RoomUrl:
    found = trust.find_room()
    if found is not None:
        return parse_url(found.address)
    here = Path.cwd()
    if not create:
        elsewhere = [place for place in search_places(here) if place.parent not in (here, *here.parents)]
        looked = f"${URL_VARIABLE} (not set), {FOLDER} in {here} and in every folder above"
        looked += "".join(f", {place}" for place in elsewhere)
        raise RoomNotFound(f"found no room; looked at: {looked}. Make one with `postroom init`")
    if os.path.lexists(here / FOLDER):  # another user's, which the search passes over, or a link to nowhere
        raise RoomNotAllowed(trust.not_allowed(here / FOLDER, trust.judge_place(here / FOLDER).why))
    return parse_url(address_of(here / FOLDER))


def make_folder(folder: Path) -> None:
    """Make a room's folder, for its owner only, with a `.gitignore` that keeps its content out of repositories.

    The store syncs it when it makes the room. A folder that is there already is left as it is.
    """
    try:
        if make_private_folder(folder, sync=False):
            (folder / ".gitignore").write_text("*\n", encoding="ascii")
    except FileExistsError:
        raise RoomError(f"{folder} is a file; a room needs a folder") from None
    except OSError as error:
        raise RoomError(
            f"the room's folder {folder} cannot be made ({error.strerror}); choose a place that you may write to"
        ) from error
