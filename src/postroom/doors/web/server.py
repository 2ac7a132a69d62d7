"""Serving a room on this machine until it is told to stop."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Sequence
from typing import Final

from postroom.doors import http_server
from postroom.doors.http_server import LOOPBACK
from postroom.room import Room

from .app import RequestRates, application
from .by_hand import ByHand
from .guard import LOOPBACK_ADDRESSES, PageGuard
from .hub import Hub

#: POST on a telephone's keys.
DEFAULT_PORT: Final = 7678


#: Addresses that mean every one of this machine.
_EVERYWHERE: Final = ("0.0.0.0", "::")  # noqa: S104


def _bracketed(host: str) -> str:
    """A host as it stands in an address."""
    return f"[{host}]" if ":" in host else host


def listening(host: str, port: int | None) -> socket.socket:
    """A socket that listens there. Without a port: on the usual one, or on any that is free."""
    return http_server.listening(host, *((DEFAULT_PORT, 0) if port is None else (port,)))


def address_of(sock: socket.socket, token: str) -> str:
    """The address to open in a browser."""
    host, port = sock.getsockname()[:2]
    name = LOOPBACK if host in (*_EVERYWHERE, *LOOPBACK_ADDRESSES) else _bracketed(host)
    return f"http://{name}:{port}/?token={token}"


def serve(
    room: Room,
    sock: socket.socket,
    token: str,
    *,
    name: str = "human",
    who: str | None = None,
    names: Sequence[str] = (),
    began: Callable[[Callable[[], object]], None] = lambda _: None,
    rates: RequestRates | None = None,
) -> int:
    """Serve a room on a socket until SIGINT or SIGTERM; returns which, or 0. Every thread of its own is over then.

    `token` is the key to the page. `name` is the actor of its deeds; once the room has tokens, `who` is the token that
    proves it. `began` is called when it is about to serve, with a function that ends it from any thread.
    """
    host, port = sock.getsockname()[:2]
    own = () if host in _EVERYWHERE else (_bracketed(host),)
    guard = PageGuard(port, token, (*own, *names))

    async def serving() -> int:
        hub = Hub(room)
        server = http_server.Server(application(hub, guard, ByHand(room, name, who), rates))
        loop = asyncio.get_running_loop()

        def stop() -> None:
            hub.stop()
            server.stop()

        try:
            began(lambda: loop.call_soon_threadsafe(stop))
            return await server.run_on(sock, stop)
        finally:
            hub.stop()
            await loop.run_in_executor(None, hub.close)

    return asyncio.run(serving())
