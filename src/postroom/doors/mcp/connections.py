"""The agents that are connected over HTTP, as far as that can be known: those with a request or a stream under way.

A program that is between two calls looks like one that has ended. So an agent stays present for a while after its last
request, and after that counts as seen: askers do not take it for dead (`presence.is_running`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from postroom import aio

#: An agent without a request stays present for so long, in seconds.
LINGER_S: Final = 60.0


class Connections:
    """Counts the requests of each agent. One for each HTTP server."""

    def __init__(self, linger_s: float = LINGER_S) -> None:
        self._linger_s = linger_s
        self._requests: dict[str, int] = {}
        self._leaving: dict[str, asyncio.TimerHandle] = {}

    @contextmanager
    def here(self, room: aio.Room, agent: str) -> Iterator[None]:
        """A request of the agent, from its head to the end of its answer, however long that streams."""
        leaving = self._leaving.pop(agent, None)
        if leaving is not None:
            leaving.cancel()
        elif agent not in self._requests:
            room.post(lambda sync: sync.connect(agent))
        self._requests[agent] = self._requests.get(agent, 0) + 1
        try:
            yield
        finally:
            self._requests[agent] -= 1
            if self._requests[agent] == 0:
                del self._requests[agent]
                later = asyncio.get_running_loop().call_later
                self._leaving[agent] = later(self._linger_s, self._leave, room, agent)

    def _leave(self, room: aio.Room, agent: str) -> None:
        del self._leaving[agent]
        if not room.closed:
            room.post(lambda sync: sync.disconnect(agent))
