"""Sessions: members that talk through mailboxes, run in processes of their own, and fail together."""

from __future__ import annotations

from postroom.core.system.startup import deferring

#: Most rooms are used without a session.
__getattr__ = deferring(__name__, "runners", "session")
