"""Files, as programs read and write them: text in UTF-8; bytes that are none survive being read and written again."""

from __future__ import annotations

import os
from typing import Any

from postroom.lang.values import values
from postroom.lang.values.kinds import shown
from postroom.lang.values.raised import WrongValue


def _path(name: str, path: object) -> str:
    if not isinstance(path, str) or not path or "\0" in path:
        raise WrongValue(f"{name} needs the name of a file, not {shown(path)}")
    return path


def read(path: object) -> str:
    """The text of a file."""
    wanted = _path("read()", path)
    try:
        with open(wanted, encoding="utf-8", errors="surrogateescape", newline="") as file:
            return file.read()
    except OSError as error:
        raise WrongValue(f"{wanted} cannot be read: {error.strerror}") from None


def write(path: object, value: Any) -> None:
    """Make the file anew: a string as it is, any other value as JSON."""
    _write(_path("write()", path), value, "w")


def exists(path: object) -> bool:
    """Whether there is such a file or folder."""
    return os.path.exists(_path("exists()", path))


def write_file(value: Any, op: str, target: object) -> Any:
    """`value > "file"`, `value >> "file"`: a string as it is, any other value as JSON. Two numbers are compared."""
    if values.is_number(value) and values.is_number(target) and op == ">":
        return values.more(value, target)
    _write(_path(op, target), value, "w" if op == ">" else "a")
    return None


def _write(path: str, value: Any, mode: str) -> None:
    said = value if isinstance(value, str) else values.pretty(value) + "\n"
    try:
        with open(path, mode, encoding="utf-8", errors="surrogateescape", newline="") as file:
            file.write(said)
    except OSError as error:
        raise WrongValue(f"{path} cannot be written: {error.strerror}") from None
