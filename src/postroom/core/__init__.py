"""Facts about time, messages and the operating system. Imports nothing of Postroom but its errors."""

from __future__ import annotations

from .system.startup import deferring

#: Needed by writers that lost a race, by rooms in a repository, for wrong names, for what hardly ever fails, for work that
#: lasts and for searches.
__getattr__ = deferring(__name__, "backoff", "chore", "git_index", "log", "near", "search_query", "trust", "untrusted")
