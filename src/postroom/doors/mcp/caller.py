"""The caller of a tool: an agent whose name is proved, and the way to tell it that a call goes on."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final, NamedTuple

#: Tells a waiting caller of progress: seconds that have passed, seconds in all, and what is waited for.
Progress = Callable[[float, float, str], Awaitable[None]]

DOOR: Final = "mcp"


class Caller(NamedTuple):
    """The calling agent, as its credential says."""

    agent: str
    lane: str = "agent"
