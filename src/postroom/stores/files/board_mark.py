"""What a process knows of the board's two files before it reads them: `.postroom/board`, as they were written last.

Files that look as they were written there are ours, and nobody has edited them, however far they lie behind the cells.
It is only a hint: where it is missing or out of date, the files are read, and nothing in them is taken up twice.
"""

from __future__ import annotations

import os
import struct
from pathlib import Path
from typing import Final, NamedTuple

from postroom.core.system.files import open_shared

from .tree import FileSignature

_SIGNATURE: Final = "qQqqq"
_FORM: Final = struct.Struct(f"<3q{_SIGNATURE}{_SIGNATURE}")
_FLAGS: Final = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
_ABSENT: Final = FileSignature(0, 0, 0, 0, 0)


class Written(NamedTuple):
    """The last writing of the board's files."""

    #: The change of the board that they tell of last, by its number in the log.
    number: int
    #: When they were written, by the steady clock, and how long that took.
    at_ns: int
    took_ns: int
    status: FileSignature
    claims: FileSignature


NEVER: Final = Written(-1, 0, 0, _ABSENT, _ABSENT)


class BoardMark:
    """The mark of one room. Its users have the lock."""

    def __init__(self, path: Path, mode: int) -> None:
        self._file = open_shared(path, _FLAGS, mode)

    def read(self) -> Written:
        """The last writing; `NEVER` where none is known."""
        data = os.pread(self._file, _FORM.size, 0)
        if len(data) < _FORM.size:
            return NEVER
        number, at_ns, took_ns, *signatures = _FORM.unpack(data)
        return Written(number, at_ns, took_ns, FileSignature(*signatures[:5]), FileSignature(*signatures[5:]))

    def write(self, written: Written) -> None:
        """From now on this is the last writing."""
        head = (written.number, written.at_ns, written.took_ns)
        os.pwrite(self._file, _FORM.pack(*head, *written.status, *written.claims), 0)

    def close(self) -> None:
        """Let go of the file. Safe to call twice."""
        if self._file >= 0:
            try:
                os.close(self._file)
            finally:
                self._file = -1
