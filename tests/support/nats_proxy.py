"""A network that can be cut: a proxy on loopback that passes bytes on, or keeps them back in one direction or both.

Kept back, nothing is lost and nothing is closed, as when a cable is pulled: whoever waits hears nothing, and may give up.
"""

from __future__ import annotations

import selectors
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest


class Proxy:
    """Passes connections to a server on. `cut` says which ways are closed."""

    def __init__(self, port: int) -> None:
        self._target = ("127.0.0.1", port)
        self._door = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._door.getsockname()[1]
        self.to_server = True
        self.to_client = True
        self._stop = False
        self._drops = 0
        #: Set while something is kept back on its way to the client.
        self.keeps_back = threading.Event()
        self._threads = [threading.Thread(target=self._accept, daemon=True)]
        self._threads[0].start()

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def cut(self, *, to_server: bool, to_client: bool) -> None:
        """Close these ways, open the others."""
        self.to_server, self.to_client = not to_server, not to_client
        self.keeps_back.clear()

    def drop(self) -> None:
        """End all connections that there are now."""
        self._drops += 1

    def _accept(self) -> None:
        self._door.settimeout(0.05)
        while not self._stop:
            try:
                client, _ = self._door.accept()
            except TimeoutError:
                continue
            except OSError:
                return
            thread = threading.Thread(target=self._serve, args=(client,), daemon=True)
            self._threads.append(thread)
            thread.start()

    def _serve(self, client: socket.socket) -> None:
        with client:
            while not (self.to_server and self.to_client):  # the handshake of TCP would not come through either
                if self._stop:
                    return
                threading.Event().wait(0.05)
            try:
                server = socket.create_connection(self._target, timeout=2)
            except OSError:
                return
            with server, selectors.DefaultSelector() as ready:
                ready.register(client, selectors.EVENT_READ, server)
                ready.register(server, selectors.EVENT_READ, client)
                self._pass_on(client, ready)

    def _pass_on(self, client: socket.socket, ready: selectors.BaseSelector) -> None:
        drops = self._drops
        while not self._stop and drops == self._drops:
            for key, _ in ready.select(0.05):
                is_open = self.to_server if key.fileobj is client else self.to_client
                if not is_open:
                    if key.fileobj is not client:
                        self.keeps_back.set()
                    threading.Event().wait(0.02)
                    continue
                try:
                    data = key.fileobj.recv(65536)  # type: ignore[union-attr]
                    if not data:
                        return
                    key.data.sendall(data)
                except OSError:
                    return

    def close(self) -> None:
        self._stop = True
        self._door.close()
        for thread in self._threads:
            thread.join()


@contextmanager
def impatience(store: Any) -> Iterator[None]:
    """The store waits for a tenth of a second only. To be used where no answer can come, however long it waits."""
    connection = store._room.wire.connection
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(connection, "timeout_s", 0.1)
        patch.setattr(connection, "_attempt_s", 0.1)
        yield
