"""Filling a room with what another one held: messages, subscriptions, cells and files, each once however often it is tried."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Final

import msgspec

from postroom.core.config import ARTIFACTS
from postroom.core.crashpoints import reached
from postroom.core.message import MessageWithLedger
from postroom.core.system.files import make_private_folder, sync_folder
from postroom.errors import RoomError, RoomUnreachable
from postroom.sessions import record as session_records
from postroom.sessions.session import SESSIONS
from postroom.stores.contract import Cell, Query, Store, Subscription

from .dump import FilePart, Part, Told, is_content
from .rest import cell_at_rest, message_at_rest

#: Messages that are taken over in one step: so many at most, of about so many bytes.
_TOGETHER: Final = 200
_BYTES_TOGETHER: Final = 4_000_000


def check_fillable(store: Store, room: str, *, used: bool, needs_ways: str) -> None:
    """Raise RoomError when that room cannot take over another's messages, or (unless `used`) has some of its own."""
    if not store.restores:
        raise RoomError(f"the store of {room} ({type(store).__name__}) cannot take over messages of another room")
    if not used and store.find(Query(limit=1)).messages:
        raise RoomError(f"{room} has messages already; {needs_ways}. Nothing was changed")


class Filling:
    """Puts the parts of one room into another. What is there already stays as it is."""

    def __init__(self, store: Store, folder: Path | None, why: str, told: Told, least_token: int = 0) -> None:
        self._store = store
        self._folder = folder
        self._why = why
        self._told = told
        self._least_token = least_token
        self._together: list[MessageWithLedger] = []
        self._size = 0
        #: The file that is being written: its place, its draft, and the digest so far.
        self._writing: tuple[Path, Path, hashlib._Hash] | None = None
        self.counts = {"messages": 0, "subscriptions": 0, "cells": 0, "files": 0}
        #: Files that the room has no place for.
        self.left_out = 0

    def add_all(self, parts: Iterable[Part]) -> None:
        """Put everything in, and all of it is kept when this returns."""
        for part in parts:
            if isinstance(part, MessageWithLedger):
                self._add_message(part)
                continue
            self._flush()
            if not isinstance(part, FilePart):
                self._finish_file()
            if isinstance(part, Subscription):
                self._store.subscribe(part.channel, part.agent)
                self._count("subscriptions")
            elif isinstance(part, Cell):
                self._add_cell(part)
            else:
                self._add_file(part)
        self._flush()
        self._finish_file()

    def _count(self, kind: str, more: int = 1) -> None:
        self.counts[kind] += more
        self._told(kind, self.counts[kind])

    def _add_message(self, message: MessageWithLedger) -> None:
        size = len(msgspec.json.encode(message.payload))
        if len(self._together) >= _TOGETHER or self._size + size > _BYTES_TOGETHER:
            self._flush()
        rested = message_at_rest(message, self._store.clock.wall_ms(), self._why, self._least_token)
        self._together.append(rested)
        self._size += size

    def _flush(self) -> None:
        if self._together:
            self._store.restore(self._together)
            reached("moving.restored")
            self._count("messages", len(self._together))
            self._together, self._size = [], 0

    def _add_cell(self, cell: Cell) -> None:
        if not is_content(cell.name):  # only a file that somebody made by hand has those
            return
        value = cell_at_rest(cell)
        if self._folder is not None and session_records.is_record(cell.name) and isinstance(value, dict):
            value = value | {"folder": str(self._folder / SESSIONS / Path(str(value.get("folder"))).name)}
        self._store.cell_write(cell.name, value, expect=0)
        reached("moving.cell")
        self._count("cells")

    def _add_file(self, part: FilePart) -> None:
        """Take a piece of a file; `path_problem` has passed its place, and no link on the way to it is followed."""
        if self._folder is None:
            self.left_out += part.at == 0
            return
        path = self._folder / part.path
        draft = path.with_name(f".new-{path.name}")
        if not part.at:
            self._finish_file()
            make_folders(self._folder, part.path)
        try:
            how = os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC | (0 if part.at else os.O_TRUNC)
            with os.fdopen(os.open(draft, how, 0o600), "r+b" if part.at else "wb") as file:
                file.seek(part.at)
                file.write(part.data)
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            raise RoomUnreachable(f"{path} cannot be written: {error.strerror}") from error
        if self._writing is None:
            self._writing = path, draft, hashlib.sha256()
        self._writing[2].update(part.data)

    def _finish_file(self) -> None:
        """Put the file that was written in its place; an attached one only if it is what its name says."""
        if self._writing is None:
            return
        path, draft, digest = self._writing
        self._writing = None
        if path.parent.name == ARTIFACTS and path.name != digest.hexdigest():
            draft.unlink()
            self.left_out += 1
            return
        os.replace(draft, path)
        sync_folder(path.parent)
        reached("moving.file")
        self._count("files")


def make_folders(folder: Path, path: str) -> None:
    """Make the folders of a file below the room's own. Raises RoomUnreachable where something else is in the way."""
    place = folder
    for name in path.split("/")[:-1]:
        place /= name
        if place.is_symlink():
            raise RoomUnreachable(f"{place} is not a usable folder: it is a symbolic link; remove it")
        try:
            if not place.is_dir():
                make_private_folder(place)
        except OSError as error:
            raise RoomUnreachable(f"{place} is not a usable folder: {error.strerror}") from error
