"""Rooms in plain files, for everybody who can read and write files."""

from __future__ import annotations

from postroom.core.system.startup import deferring

#: For a room of an older layout.
__getattr__ = deferring(__name__, "upgrade")
