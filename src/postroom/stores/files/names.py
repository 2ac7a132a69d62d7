"""How the names of agents, channels and messages become the names of folders and files, and back.

A name that fits stands as it is: letters of ASCII, digits and `-_.@+=,`. Every other byte is percent-encoded, as are
a leading dot and a leading underscore, so that no name can be `..`, hidden, or one of ours (`_channel`). A name that
would be longer than a file's name may be is cut and ends in `~` and a digest; `.postroom/names/` tells the whole of it.
"""

from __future__ import annotations

import hashlib
import re
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Final
from urllib.parse import quote, unquote_to_bytes

from postroom.core.message import DEFAULT_TYPE, FRACTION_BITS, MAX_NAME_BYTES

#: No name in a folder may be longer, in bytes.
MAX_FILE_NAME: Final = 255
#: So much of a long name is shown before its digest, and so much of an action in a file's name.
SHOWN_BYTES: Final = 180
ACTION_BYTES: Final = 80
_SAFE: Final = "@+=,"  # besides what `quote` leaves alone: letters, digits and _.-~
_PIECES: Final = re.compile(r"%[0-9A-F]{2}|.")
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
#: `YYYYMMDDTHHMMSS.ffffffZ[-n]-action.json`; hand-written names may have a shorter time.
_MESSAGE_FILE: Final = re.compile(r"\d{4}-?\d\d-?\d\dT[0-9:.+-]*Z?(?:-\d+)?-(?P<action>.+)\.json", re.S)


@lru_cache(maxsize=4096)
def folder_of(name: str) -> str:
    """The folder of an agent or a channel. Two names never share one."""
    text = quote(name, safe=_SAFE).replace("~", "%7E")
    if text[:1] in ("", ".", "_"):
        text = f"%{ord(text[0]):02X}{text[1:]}" if text else "%"
    if len(text) <= MAX_FILE_NAME:
        return text
    return f"{_cut(text, SHOWN_BYTES)}~{hashlib.blake2b(name.encode(), digest_size=16).hexdigest()}"


def is_cut(folder: str) -> bool:
    """Whether a folder's name is only the beginning of a long name, with a digest."""
    return "~" in folder


@lru_cache(maxsize=4096)
def name_of(folder: str) -> str | None:
    """The name that a folder stands for, also where somebody made it by hand; None when it stands for none."""
    if not folder or folder[0] in "._" or is_cut(folder):
        return None
    try:
        name = unquote_to_bytes(folder).decode()
    except UnicodeError:
        return None
    bad = any(char < " " or char == "\x7f" for char in name)
    return None if bad or not 0 < len(name.encode()) <= MAX_NAME_BYTES else name


def _cut(text: str, size: int) -> str:
    """The beginning of an encoded name, not in the middle of a `%XX`."""
    kept = ""
    for piece in _PIECES.findall(text):
        if len(kept) + len(piece) > size:
            break
        kept += piece
    return kept


def stamp_of(us: int) -> str:
    """A moment in microseconds since 1970, as the names of files begin."""
    return (_EPOCH + timedelta(microseconds=us)).strftime("%Y%m%dT%H%M%S.%fZ")


def file_of(us: int, action: str) -> str:
    """The file name of a message that was stored at that moment."""
    return f"{stamp_of(us)}-{_cut(folder_of(action), ACTION_BYTES)}.json"


def another_of(name: str, count: int) -> str:
    """The same name with a number in it, for when there is one already: `…Z-2-action.json`."""
    stamp, dash, rest = name.partition("Z-")
    if dash and stamp[:1].isdigit():
        return f"{stamp}Z-{count}-{rest}"
    return f"{name.removesuffix('.json')[:200]}-{count}.json"


def action_of(file: str) -> str:
    """The action that a file's name tells; "message" when it tells none."""
    found = _MESSAGE_FILE.fullmatch(file)
    action = None if found is None else name_of(found["action"])
    return action or DEFAULT_TYPE


def is_message_file(file: str) -> bool:
    """Whether a file in an inbox is meant as a message: `*.json`, not hidden."""
    return file.endswith(".json") and not file.startswith(".")


def is_utf8(path: str) -> bool:
    """Whether a path can be written down as text: the system allows any bytes in a name."""
    try:
        path.encode()
    except UnicodeEncodeError:
        return False
    return True


def kept_as(key: int, file: str) -> str:
    """The name of a message's file outside the inbox: sorted by age, and never that of another message."""
    stem = file.encode("utf-8", "surrogateescape")[: MAX_FILE_NAME - 30].decode("utf-8", "ignore")
    return f"{key:016x}-{stem.removesuffix('.json')}.json"


def key_of_us(us: int) -> int:
    """The key of a message stored in that microsecond; no two messages share one."""
    ms, rest = divmod(us, 1000)
    return (ms << FRACTION_BITS) | ((rest << FRACTION_BITS) // 1000)


def us_of_key(key: int) -> int:
    """The microsecond of a key."""
    ms, fraction = key >> FRACTION_BITS, key & ((1 << FRACTION_BITS) - 1)
    return ms * 1000 + -(-fraction * 1000 >> FRACTION_BITS)
