"""The agents that are connected over HTTP, as far as that can be known: those with a request or a stream under way.

A program that is between two calls looks like one that has ended. So an agent stays present for a while after its last
request, and after that counts as seen: askers do not take it for dead (`presence.is_running`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, MutableMapping
from contextlib import contextmanager
from http import HTTPStatus
from typing import Any, Final

from postroom import aio

from .guard import App, Receive, Scope, Send

#: The header that names a session of the older protocol.
_SESSION: Final = b"mcp-session-id"
#: Sessions of the older protocol that an agent may have over HTTP; the one that was silent longest ends for a new one.
MAX_SESSIONS: Final = 200
#: An agent without a request stays present for so long, in seconds.
LINGER_S: Final = 60.0


class Connections:
    """Counts the requests of each agent. One for each HTTP server."""

    def __init__(self, linger_s: float = LINGER_S) -> None:
        self._linger_s = linger_s
        self._requests: dict[str, int] = {}
        self._leaving: dict[str, asyncio.TimerHandle] = {}
        self._sessions: dict[str, dict[str, None]] = {}  # by agent, the one that was silent longest first

    def under_way(self, agent: str) -> int:
        """How many requests the agent has under way, with its streams."""
        return self._requests.get(agent, 0)

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

    def opened(self, agent: str, session: str) -> str | None:
        """The agent uses a session of the older protocol. Returns one of its others that has to end for it."""
        sessions = self._sessions.setdefault(agent, {})
        sessions.pop(session, None)
        sessions[session] = None  # the last now
        return next(iter(sessions)) if len(sessions) > MAX_SESSIONS else None

    def ended(self, agent: str, session: str) -> None:
        """A session is over."""
        self._sessions.get(agent, {}).pop(session, None)

    def _leave(self, room: aio.Room, agent: str) -> None:
        del self._leaving[agent]
        if not room.closed:
            room.post(lambda sync: sync.disconnect(agent))


async def session_of(app: App, scope: Scope, receive: Receive, send: Send) -> str | None:
    """Let the app answer; returns the session of the older protocol that the request is of, or that it has opened."""
    found = next((value for name, value in scope["headers"] if name == _SESSION), None)

    async def noting(message: MutableMapping[str, Any]) -> None:
        nonlocal found
        if message["type"] == "http.response.start":
            found = next((value for name, value in message["headers"] if name == _SESSION), found)
            found = found if message["status"] < HTTPStatus.BAD_REQUEST else None  # there is no such session
        await send(message)

    await app(scope, receive, noting)
    return None if found is None else found.decode("latin-1")


async def end_session(app: App, scope: Scope, session: str) -> None:
    """End a session as its client would."""
    kept = [(name, value) for name, value in scope["headers"] if name in (b"host", b"authorization", b"accept")]

    async def receive() -> MutableMapping[str, Any]:
        return {"type": "http.request", "body": b""}

    async def send(_: MutableMapping[str, Any]) -> None:
        pass

    headers = [*kept, (_SESSION, session.encode("latin-1"))]
    await app({**scope, "method": "DELETE", "headers": headers}, receive, send)
