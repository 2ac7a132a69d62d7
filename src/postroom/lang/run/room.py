"""Opens the room of a run: the one that was named or is found; when there is none, one that is gone after the run."""

from __future__ import annotations

import os
import tempfile
from contextlib import ExitStack
from pathlib import Path

from postroom.core.config import FOLDER, URL_VARIABLE
from postroom.errors import RoomNotFound
from postroom.mail import tokens
from postroom.room import Room, open_room


def open_run_room(url: str | None, stack: ExitStack) -> Room:
    """The room, which `stack` closes. Raises RoomError when a room that was named is not there."""
    try:
        room = open_room(url, create=False)
    except RoomNotFound:
        if url is not None or os.environ.get(URL_VARIABLE):
            raise  # it was named
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="postroom-run-"))
        room = open_room(Path(folder) / FOLDER)
    stack.callback(room.close)
    # its workers send: in a room with tokens a program is let in by one, as every command that speaks is
    if tokens.has_tokens(room.gateway):
        tokens.prove(room.gateway, None, tokens.token_in(os.environ), "postroom run")
    return room
