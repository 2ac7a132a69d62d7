"""Short paths to folders whose own path is too long for a socket's name: a link in a private folder of this process.

The twin of /proc/self/fd, which only Linux has.
"""

from __future__ import annotations

import os
import re
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Final
from weakref import finalize

_LINK: Final = "s"
#: So many links a process may have, or find that others took its names.
_NAMES: Final = 100
#: The folders of links, by the process whose they are.
_FOLDER: Final = re.compile(r"postroom-([1-9][0-9]*)-[0-9]+")


class Shortcut:
    """A link to a folder. `path` is short where the path of temporary files is; it goes with this object."""

    def __init__(self, target: Path) -> None:
        """Raises OSError."""
        folder = _make_folder()
        self.path = f"{folder}/{_LINK}"
        self._end = finalize(self, _remove_if_ours, folder, os.getpid())
        os.symlink(target, self.path)

    def is_there(self) -> bool:
        """Whether it still leads there: what lies among temporary files for days is removed by some systems."""
        return os.path.islink(self.path)

    def remove(self) -> None:
        """Remove the link, and those of processes that were killed. Safe to call twice."""
        self._end()
        _remove_orphans()


def _make_folder() -> str:
    """A new folder that this user alone may enter. Its name says whose it is, and is no longer than need be.

    Raises OSError, also where others have taken all of the names.
    """
    for number in range(_NAMES):
        folder = f"{tempfile.gettempdir()}/postroom-{os.getpid()}-{number}"
        with suppress(FileExistsError):
            os.mkdir(folder, 0o700)
            return folder
    raise FileExistsError(f"{tempfile.gettempdir()} has {_NAMES} folders named postroom-{os.getpid()}-… already")


def _remove_if_ours(folder: str, pid: int) -> None:
    if os.getpid() == pid:  # a forked child leaves its parent's alone
        _remove(folder)


def _remove(folder: str) -> None:
    """Remove a folder with its link; one that has anything else in it is not ours, and stays."""
    with suppress(OSError):
        link = f"{folder}/{_LINK}"
        if os.listdir(folder) == [_LINK] and os.path.islink(link):
            os.unlink(link)
        os.rmdir(folder)


def _remove_orphans() -> None:
    """Remove what processes that were killed have left (tests/stores/test_bell_sockets.py)."""
    with suppress(OSError), os.scandir(tempfile.gettempdir()) as found:
        for each in found:
            match = _FOLDER.fullmatch(each.name)
            if match and each.stat(follow_symlinks=False).st_uid == os.geteuid() and _is_over(int(match[1])):
                _remove(each.path)


def _is_over(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    except (OSError, OverflowError):  # another user's, or no number of a process
        pass
    return False
