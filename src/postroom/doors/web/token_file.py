"""The page's token in a file, so that bookmarks and scrapes outlive a restart of the server.

The file must be its user's own, as an SSH key must (tests/cli/test_web.py).
"""

from __future__ import annotations

import os
import re
import stat
import tempfile
from pathlib import Path
from typing import Final

from postroom.errors import PostroomError

from .guard import new_token

VARIABLE: Final = "POSTROOM_WEB_TOKEN_FILE"
#: What is shorter can be guessed, given time. A new token has 43 characters.
MIN_CHARACTERS: Final = 32
MAX_CHARACTERS: Final = 256
#: It stands in addresses, cookies and headers, and needs no quoting in any of them.
_TOKEN: Final = re.compile(rf"[A-Za-z0-9._~-]{{{MIN_CHARACTERS},{MAX_CHARACTERS}}}")


def token_in(path: Path) -> str:
    """The token in a private file, which is made with a new one when it is not there. PostroomError says what is wrong."""
    try:
        if not path.exists():
            _make(path)
        return _read(path)
    except OSError as error:
        raise PostroomError(f"the token file {path} cannot be used: {error.strerror or error}") from None


def _read(path: Path) -> str:
    # not blocking: a named pipe would keep the start waiting for somebody to write into it
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    with open(descriptor, "rb") as file:
        about = os.fstat(descriptor)
        if not stat.S_ISREG(about.st_mode):
            raise PostroomError(f"the token file {path} is not a regular file")
        if about.st_uid != os.geteuid():
            raise PostroomError(f"the token file {path} belongs to user {about.st_uid}, not to you ({os.geteuid()})")
        if about.st_mode & 0o077:
            mode = stat.S_IMODE(about.st_mode)
            raise PostroomError(f"others can read the token file {path} (mode {mode:04o}): chmod 600 {path}")
        text = file.read(MAX_CHARACTERS + 16).decode("ascii", "replace").strip()
    if not _TOKEN.fullmatch(text):
        needed = f"{MIN_CHARACTERS} to {MAX_CHARACTERS} letters, digits or any of . _ ~ -"
        raise PostroomError(
            f"the token file {path} must hold one token of {needed}; it has {len(text)} characters. "
            "Remove it, and the next start makes a good one"
        )
    return text


def _make(path: Path) -> None:
    """Make the file, whole or not at all; when another start was faster, its file stays."""
    descriptor, half = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with open(descriptor, "w", encoding="ascii") as file:
            file.write(f"{new_token()}\n")
        os.link(half, path)
    except FileExistsError:
        pass
    finally:
        os.unlink(half)
