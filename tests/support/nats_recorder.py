"""A stranger's server: it says what a NATS server says first, and keeps all that it is told."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from postroom.core.clock import SYSTEM

PATIENCE_S = 60.0


class Recorder:
    """Says INFO to everybody who comes, then listens. With `welcoming` it answers as if all were well, and hangs up."""

    def __init__(self, host: str = "127.0.0.1", *, welcoming: bool = False, **info: Any) -> None:
        self._socket = socket.create_server((host, 0))
        self.address = f"{host}:{self._socket.getsockname()[1]}"
        self._welcoming = welcoming
        told = {"server_id": "X", "version": "2.14.0", "proto": 1, "headers": True, "max_payload": 1048576} | info
        self._info = f"INFO {json.dumps({'jetstream': True, 'auth_required': True, 'nonce': 'bm9uY2U'} | told)}\r\n"
        self.came = 0
        self.got = b""
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        with suppress(OSError):
            while True:
                visitor, _ = self._socket.accept()
                self.came += 1
                with visitor, suppress(OSError):
                    self._listen_to(visitor)

    def _listen_to(self, visitor: socket.socket) -> None:
        visitor.settimeout(2)
        visitor.sendall(self._info.encode())
        while True:
            said = visitor.recv(65536)
            if not said:
                return
            self.got += said
            if not self._welcoming:
                visitor.sendall(b"-ERR 'Authorization Violation'\r\n")
                return
            if b"PING" in said:
                visitor.sendall(b"PONG\r\n")
                return

    def await_visits(self, count: int) -> None:
        """Wait until so many have come."""
        until_ns = SYSTEM.steady_ns() + int(PATIENCE_S * 1e9)
        while self.came < count:
            assert SYSTEM.steady_ns() < until_ns, f"only {self.came} came"
            SYSTEM.sleep(0.02)

    def close(self) -> None:
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
        self._thread.join(10)


@contextmanager
def recording(**options: Any) -> Iterator[Recorder]:
    """A stranger's server, gone afterwards."""
    recorder = Recorder(**options)
    try:
        yield recorder
    finally:
        recorder.close()
