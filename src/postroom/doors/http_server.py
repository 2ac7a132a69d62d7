"""The hardened HTTP server of every HTTP door, on uvicorn: slow connections (slowloris) end, answers do not wait.

Guarantees (tests/doors/web/test_slow.py, tests/doors/test_http.py):

- A connection without a request under way has `HEAD_S` to send one whole head, and a request `BODY_S` to send its body,
  however busily it trickles. One that does not take its answers has `WRITE_S`.
- Of more than `MAX_CONNECTIONS` the one that has waited longest without a request is closed: connections that say nothing
  keep nobody out.
- Small answers on kept connections go out at once (TCP_NODELAY).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import socket
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, Final, Literal, cast

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from postroom.core.system import goodbye
from postroom.errors import PostroomError

LOOPBACK: Final = "127.0.0.1"
#: Connections at once; a client keeps one or two.
MAX_CONNECTIONS: Final = 200
#: A connection that has no request under way has this long to send one whole head, in seconds.
HEAD_S: Final = 10.0
#: A request has this long to send its body, in seconds. A door may allow less.
BODY_S: Final = 60.0
#: A client whose answers do not fit into the system's buffers has this long to read some of them, in seconds.
WRITE_S: Final = 60.0
#: Requests under way get this long to end when the server is told to stop, in seconds.
GRACE_S: Final = 2
SIGNALS: Final = (signal.SIGINT, signal.SIGTERM)


class CannotServe(PostroomError):
    """The address cannot be had."""


def listening(host: str, *ports: int) -> socket.socket:
    """A socket that listens there, on the first of the ports that can be had; 0 is any that is free."""
    for number in ports:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        # asyncio sets TCP_NODELAY only where the protocol is named; without it, an answer of two packets on a kept
        # connection waits 40 ms for the other side's delayed acknowledgement (tests/doors/web/test_slow.py)
        sock = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        try:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            sock.bind((host, number))
            sock.listen(128)
        except (OSError, OverflowError) as error:
            sock.close()
            if number == ports[-1]:
                why = getattr(error, "strerror", None) or error
                raise CannotServe(f"cannot listen on {host}, port {number}: {why}") from None
        else:
            return sock
    raise AssertionError("all were tried")


class TimedConnection(H11Protocol):
    """A connection that is closed when it has had its time to say what it wants. uvicorn's own would wait for ever.

    Once a request is whole, the door watches over it: a stream goes on as long as it is wanted.
    """

    _late: asyncio.TimerHandle | None = None
    _stuck: asyncio.TimerHandle | None = None
    #: Whether the timer is that of a head: the connection has no request under way.
    _is_waiting = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._watch()
        if len(self.connections) > MAX_CONNECTIONS:
            self._make_place()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._watch()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if not self.transport.is_closing():
            self._watch()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._stuck = self._stuck or self.loop.call_later(WRITE_S, self.transport.abort)

    def resume_writing(self) -> None:
        self._stop_waiting_for_reader()
        super().resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_waiting_for_reader()
        self._stop_watch()
        super().connection_lost(exc)

    def _watch(self) -> None:
        """Set the timer for what the connection owes now; one that runs for the same thing goes on."""
        under_way = not getattr(self.cycle, "response_complete", True)  # before the first request there is no cycle
        if under_way and self.conn.their_state is not h11.SEND_BODY:
            self._stop_watch()
        elif self._late is None or self._is_waiting == under_way:
            self._stop_watch()
            self._is_waiting = not under_way
            self._late = self.loop.call_later(BODY_S if under_way else HEAD_S, self.transport.abort)

    def _stop_watch(self) -> None:
        if self._late is not None:
            self._late.cancel()
            self._late = None

    def _stop_waiting_for_reader(self) -> None:
        if self._stuck is not None:
            self._stuck.cancel()
            self._stuck = None

    def _make_place(self) -> None:
        """Close the connection that has waited longest without a request; this one, where each of the others has one.

        More than the limit with a request under way are answered by uvicorn: 503.
        """
        waiting = {
            each: when for each in self.connections if (when := getattr(each, "waits_until_s", None)) is not None
        }
        if len(self.connections) > 2 * MAX_CONNECTIONS or len(waiting) > 1:
            longest = cast("TimedConnection", min(waiting, key=waiting.__getitem__))
            longest._stop_watch()  # noqa: SLF001  so that it is not chosen again before it is gone
            longest.transport.abort()

    @property
    def waits_until_s(self) -> float | None:
        """When its time for a head is over, by the loop's clock; None while a request is under way."""
        return self._late.when() if self._late is not None and self._is_waiting else None


class Server(uvicorn.Server):
    """Serves an ASGI application until `stop` is called.

    It leaves signals to `run_on`, since a room is closed in order whatever ended the server; and it sleeps until it is told
    to stop, where uvicorn's own looks ten times a second.
    """

    def __init__(self, app: Any, *, lifespan: Literal["on", "off"] = "off") -> None:
        config = uvicorn.Config(
            app, http=TimedConnection, ws="none", lifespan=lifespan, loop="asyncio", log_config=None, log_level="critical",
            access_log=False, server_header=False, date_header=False, proxy_headers=False,
            limit_concurrency=MAX_CONNECTIONS + 1, timeout_graceful_shutdown=GRACE_S,
        )  # fmt: skip
        super().__init__(config)
        self._told = asyncio.Event()
        self._ended_by = 0

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    async def main_loop(self) -> None:
        await self._told.wait()

    def stop(self) -> None:
        """Let it end."""
        self.should_exit = True
        self._told.set()

    async def run_on(self, sock: socket.socket, stop: Callable[[], None] | None = None) -> int:
        """Serve on the socket until told to stop, or until SIGINT or SIGTERM calls `stop`. Returns the signal, or 0.

        A second signal ends the process. Outside of the main thread no signal is heard.
        """
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(_note_fault)
        end_by = partial(self._end_by, stop=stop or self.stop)
        with contextlib.suppress(ValueError, RuntimeError):
            loop.add_signal_handler(signal.SIGINT, end_by, signal.SIGINT)
        try:
            with goodbye.heard(lambda: loop.call_soon_threadsafe(end_by, signal.SIGTERM)):
                await self.serve(sockets=[sock])
        finally:
            with contextlib.suppress(ValueError, RuntimeError):
                loop.remove_signal_handler(signal.SIGINT)
        return self._ended_by

    def _end_by(self, number: int, stop: Callable[[], None]) -> None:
        if self._ended_by:  # the second one
            os._exit(128 + number)
        self._ended_by = number
        stop()


def _note_fault(_: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """Malformed input of a stranger ends its connection; a traceback need not fill the terminal too."""
    log = logging.getLogger("postroom")
    log.debug("a connection failed: %s", context.get("message"), exc_info=context.get("exception"))
