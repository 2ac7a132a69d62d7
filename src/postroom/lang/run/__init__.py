"""Running programs: their entry, prompts, commands and reports."""

from __future__ import annotations

from postroom.core.system.startup import deferring

#: Many programs send nothing.
__getattr__ = deferring(__name__, "room")
