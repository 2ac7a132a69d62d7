"""Short paths to folders whose own path is too long for a socket's name: a link in a private folder of this process.

The twin of /proc/self/fd, which only Linux has.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path
from weakref import finalize


class Shortcut:
    """A link to a folder. `path` is short where the path of temporary files is; it goes with this object."""

    def __init__(self, target: Path) -> None:
        """Raises OSError."""
        folder = tempfile.mkdtemp(prefix="postroom-")
        self.path = f"{folder}/s"
        self._end = finalize(self, _remove, folder, os.getpid())
        os.symlink(target, self.path)

    def is_there(self) -> bool:
        """Whether it still leads there: what lies among temporary files for days is removed by some systems."""
        return os.path.islink(self.path)

    def remove(self) -> None:
        """Remove the link. Safe to call twice."""
        self._end()


def _remove(folder: str, pid: int) -> None:
    if os.getpid() == pid:  # a forked child leaves its parent's alone
        shutil.rmtree(folder, ignore_errors=True)
