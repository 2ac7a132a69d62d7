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


def listening(host: str, port: int | None) -> socket.socket:
    """A socket that listens there. Without a port: on the usual one, or on any that is free."""
    return http_server.listening(host, *((DEFAULT_PORT, 0) if port is None else (port,)))


def address_of(sock: socket.socket, token: str) -> str:
    """What to open in a browser."""
    host, port = sock.getsockname()[:2]
    name = LOOPBACK if host in ("0.0.0.0", "::", *LOOPBACK_ADDRESSES) else f"[{host}]" if ":" in host else host  # noqa: S104
    return f"http://{name}:{port}/?token={token}"


async def _serve(
    room: Room,
    sock: socket.socket,
    token: str,
    hand: ByHand,
    names: Sequence[str],
    began: Callable[[Callable[[], None]], None],
    rates: RequestRates | None,
) -> int:
    """Serve until a signal comes, or until what `began` was given is called. Returns the signal, or 0."""
    hub = Hub(room)
    host, port = sock.getsockname()[:2]
    own = () if host in ("0.0.0.0", "::") else (f"[{host}]" if ":" in host else host,)  # noqa: S104
    app = application(hub, PageGuard(port, token, (*own, *names)), hand, rates)
    server = http_server.Server(app)
    loop = asyncio.get_running_loop()

    def stop() -> None:
        hub.stop()
        server.stop()

    try:
        began(lambda: _later(loop, stop))
        return await server.run_on(sock, stop)
    finally:
        hub.stop()
        await loop.run_in_executor(None, hub.close)


def _later(loop: asyncio.AbstractEventLoop, call: Callable[[], None]) -> None:
    loop.call_soon_threadsafe(call)


def serve(
    room: Room,
    sock: socket.socket,
    token: str,
    *,
    name: str = "human",
    who: str | None = None,
    names: Sequence[str] = (),
    began: Callable[[Callable[[], None]], None] = lambda _: None,
    rates: RequestRates | None = None,
) -> int:
    """Serve a room on a socket until SIGINT or SIGTERM; returns which, or 0. Every thread of its own is over then.

    `token` is the key to the page. `name` is whose deeds are done from it; once the room has tokens, `who` is the one that
    proves it. `began` is called when it is about to serve, with a function that ends it from any thread.
    """
    return asyncio.run(_serve(room, sock, token, ByHand(room, name, who), names, began, rates))
