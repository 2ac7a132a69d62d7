"""Facts about time, messages and the operating system. Imports nothing of Postroom but its errors."""

from __future__ import annotations

from .system.startup import deferring

#: Needed by writers that lost a race, by rooms in a repository, for wrong names and for what hardly ever fails.
__getattr__ = deferring(__name__, "backoff", "git_index", "log", "near")
