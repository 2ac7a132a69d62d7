"""How others come in: hooks, MCP, the page, and what is installed into agent programs. Only cli imports a door."""

from __future__ import annotations

from postroom.core.system.startup import deferring

#: Most steps of an agent edit nothing.
__getattr__ = deferring(__name__, "edits")
