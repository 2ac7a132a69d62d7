"""Serving a room on this machine, with uvicorn, until it is told to stop."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import socket
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from postroom.errors import PostroomError
from postroom.room import Room

from .app import Rates, application
from .by_hand import Hand
from .guard import LOOPBACK_ADDRESSES, Guard
from .hub import Hub

LOOPBACK: Final = "127.0.0.1"
#: POST on a telephone's keys.
DEFAULT_PORT: Final = 7678
#: Connections at once; pages keep one or two. More are told to come later, and twice as many are not listened to.
MAX_CONNECTIONS: Final = 200
#: A connection that has no request under way has this long to send one whole head, in seconds.
HEAD_S: Final = 10.0
SIGNALS: Final = (signal.SIGINT, signal.SIGTERM)


class CannotServe(PostroomError):
    """The address cannot be had."""


def listening(host: str, port: int | None) -> socket.socket:
    """A socket that listens there. Without a port: on the usual one, or on any that is free."""
    wanted = [DEFAULT_PORT, 0] if port is None else [port]
    for number in wanted:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        sock = socket.socket(family, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
        try:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            sock.bind((host, number))
            sock.listen(128)
        except OSError as error:
            sock.close()
            if number == wanted[-1]:
                raise CannotServe(f"cannot listen on {host}, port {number}: {error.strerror or error}") from None
        else:
            return sock
    raise AssertionError("the last one was tried")


def address_of(sock: socket.socket, token: str) -> str:
    """What to open in a browser."""
    host, port = sock.getsockname()[:2]
    name = LOOPBACK if host in ("0.0.0.0", "::", *LOOPBACK_ADDRESSES) else f"[{host}]" if ":" in host else host  # noqa: S104
    return f"http://{name}:{port}/?token={token}"


class _Server(uvicorn.Server):
    """Leaves signals to us, for the room is to be closed in order, whatever ended the server; and sleeps until it is told to
    stop, where uvicorn's own would look ten times a second.
    """

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self._told = asyncio.Event()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    async def main_loop(self) -> None:
        await self._told.wait()

    def stop(self) -> None:
        """Let it end."""
        self.should_exit = True
        self._told.set()


class _Impatient(H11Protocol):
    """A connection that is closed when it has had its time to say what it wants, however busily it sends a byte now and
    then. uvicorn's own would wait for ever (tests/web/test_slow.py). Once a request has begun, others watch over it: its
    body has a time of its own (`app.BODY_S`), and a stream goes on as long as it is wanted.
    """

    _late: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if len(self.connections) > 2 * MAX_CONNECTIONS:
            transport.abort()
        self._watch()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._watch()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_watch()
        super().connection_lost(exc)

    def _watch(self) -> None:
        if not getattr(
            self.cycle, "response_complete", True
        ):  # a request is under way; before the first there is no cycle
            self._stop_watch()
        elif self._late is None:
            self._late = self.loop.call_later(HEAD_S, self.transport.abort)

    def _stop_watch(self) -> None:
        if self._late is not None:
            self._late.cancel()
            self._late = None


async def _serve(
    room: Room,
    sock: socket.socket,
    token: str,
    hand: Hand,
    names: Sequence[str],
    began: Callable[[Callable[[], None]], None],
    rates: Rates | None,
) -> int:
    """Serve until a signal comes, or until what `began` was given is called. Returns the signal, or 0."""
    hub = Hub(room)
    host, port = sock.getsockname()[:2]
    own = () if host in ("0.0.0.0", "::") else (f"[{host}]" if ":" in host else host,)  # noqa: S104
    app = application(hub, Guard(port, token, (*own, *names)), hand, rates)
    config = uvicorn.Config(
        app, http=_Impatient, ws="none", lifespan="off", loop="asyncio", log_config=None, log_level="critical", access_log=False,
        server_header=False, date_header=False, proxy_headers=False, limit_concurrency=MAX_CONNECTIONS, timeout_graceful_shutdown=2,
    )  # fmt: skip
    server = _Server(config)
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(_note_fault)
    ended_by = 0

    def stop(number: int = 0) -> None:
        nonlocal ended_by
        ended_by = ended_by or number
        hub.stop()
        server.stop()

    for number in SIGNALS:
        with contextlib.suppress(ValueError, RuntimeError):  # not in the main thread: somebody else ends it
            loop.add_signal_handler(number, stop, number)
    try:
        began(lambda: _later(loop, stop))
        await server.serve(sockets=[sock])
    finally:
        hub.stop()
        for number in SIGNALS:
            with contextlib.suppress(ValueError, RuntimeError):
                loop.remove_signal_handler(number)
        await loop.run_in_executor(None, hub.close)
    return ended_by


def _note_fault(_: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """What a stranger's nonsense breaks in a connection ends that connection; it need not fill the terminal too."""
    import logging

    log = logging.getLogger("postroom")
    log.debug("a connection failed: %s", context.get("message"), exc_info=context.get("exception"))


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
    rates: Rates | None = None,
) -> int:
    """Serve a room on a socket until SIGINT or SIGTERM; returns which, or 0. Every thread of its own is over then.

    `token` is the key to the page. `name` is whose deeds are done from it; once the room has tokens, `who` is the one that
    proves it. `began` is called when it is about to serve, with a function that ends it from any thread.
    """
    return asyncio.run(_serve(room, sock, token, Hand(room, name, who), names, began, rates))
