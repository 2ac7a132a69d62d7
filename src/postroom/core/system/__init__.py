"""The operating system: processes, files, watched folders, forked children."""

from __future__ import annotations

from .startup import deferring

#: ctypes and subprocess: most processes watch no folder and start no other.
__getattr__ = deferring(__name__, "children", "libc", "ps")
