"""One module for each group of commands."""

from __future__ import annotations

from postroom.core.system.startup import deferring

#: Few messages ask a person, and few programs that are run as an agent are hosted.
__getattr__ = deferring(__name__, "acp", "people")
