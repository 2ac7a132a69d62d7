"""Rooms in one SQLite file: any number of processes, no server."""

from __future__ import annotations

from postroom.core.system.startup import deferring

#: For the file of another broker, for a file of an older layout, and for one that cannot be written.
__getattr__ = deferring(__name__, "adoption", "looking", "upgrade")
