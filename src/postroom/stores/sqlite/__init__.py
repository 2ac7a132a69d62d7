"""Rooms in one SQLite file: any number of processes, no server."""

from __future__ import annotations

from postroom.core.system.startup import deferring

#: For the file of another broker, for a file of an older layout, for one that cannot be written, and for searches.
__getattr__ = deferring(__name__, "adoption", "looking", "search", "upgrade")
