"""The operating system: processes, files, watched folders, forked children."""

from __future__ import annotations

from .startup import deferring

#: ctypes, signal and subprocess: most processes watch no folder, serve nobody and start no other.
__getattr__ = deferring(__name__, "children", "goodbye", "libc", "ps")
