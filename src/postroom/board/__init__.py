"""Tasks that agents take, each by one owner, and files that they reserve."""

from __future__ import annotations

from postroom.core.system.startup import deferring

#: Many rooms have neither tasks nor reserved files, and one that has the one may not have the other.
__getattr__ = deferring(__name__, "board", "recent_edits", "records", "reservations")
