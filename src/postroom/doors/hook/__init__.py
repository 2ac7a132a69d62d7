"""`postroom hook`: what agent programs call at each step."""

from __future__ import annotations

from postroom.core.system.startup import deferring

#: In most folders there is no room, and nothing to do; the terminals are those of Codex alone, and few tools edit.
__getattr__ = deferring(__name__, "codex_terminals", "command", "permissions", "tool_edits")
