"""An adapter: nats-py's client as a room needs it. No other file imports nats-py, or uses its private names.

The extra `nats` pins the versions that have these names (tests/stores/test_nats_client.py).
"""

from __future__ import annotations

import asyncio
from typing import Any

from nats.aio.client import Client
from nats.errors import Error

from .access import Access, NotPrivate, check_private
from .callbacks import Ear, Troubled

__all__ = ["Error", "RoomClient"]


class RoomClient(Client):  # type: ignore[misc]
    """nats-py's client that says nothing where others could hear it, hears and speaks at once, and does not go deaf.

    By itself it uses TLS only if the server's first words, which anybody on the way can change, ask for it; and after a
    reconnect it shows its password to servers of which another server told (tests/stores/test_nats_secrets.py).

    By itself it writes in one task, reads the headers line by line and puts each message into a queue for another task:
    with that, one change took ten turns of the event loop. And by itself it ends its reading, with a line in the log
    and nothing else, when anything is raised there: the connection stands, and nothing is heard on it for half a
    minute.
    """

    def __init__(self, access: Access, troubled: Troubled) -> None:
        super().__init__()
        self._access = access
        self._troubled = troubled
        #: What the server that we are connected to says of itself.
        self.server: dict[str, Any] = {}
        self._ears: dict[int, Ear] = {}

    # Connecting

    async def _connect_to_server(self, s: Any) -> None:
        """Connect. What an attempt before has left is closed first: nats-py would forget it, and it stays open
        (tests/stores/test_nats_reconnect.py).
        """
        if self._transport is not None:
            self._transport.close()
        await super()._connect_to_server(s)

    # Secrets

    def _connect_command(self) -> bytes:
        """The first words to a server, with the secrets in them. Raises NotPrivate, and nothing was said."""
        writer = self._transport._io_writer  # noqa: SLF001
        try:
            check_private(self._access, self._current_server.uri, writer)
        except NotPrivate:
            self._transport.close()  # nats-py would still write there what waits to be written
            raise
        if writer.get_extra_info("ssl_object") is not None:
            # nats-py begins TLS below a stream that is not told of it and would be kept half open at its end, which TLS
            # cannot: asyncio then warns at each command (tests/cli/test_nats.py)
            writer.transport.get_protocol()._over_ssl = True  # noqa: SLF001
        said: bytes = super()._connect_command()
        return said

    async def _process_info(self, info: dict[str, Any], initial_connection: bool = False) -> None:
        """Of further servers the word of a server counts only where no secrets are shown to them."""
        self.server = info
        if self._access.has_secrets or self._access.wants_tls:
            info = {**info, "connect_urls": []}
        await super()._process_info(info, initial_connection)

    # Sending

    def send(self, subject: str, data: bytes, reply: str = "", head: str = "") -> None:
        """Write this to the connection now. Raises ConnectionError where there is none."""
        if not self.is_connected:
            raise ConnectionError
        to = f"{subject} {reply}" if reply else subject
        line = f"HPUB {to} {len(head)} {len(head) + len(data)}\r\n{head}" if head else f"PUB {to} {len(data)}\r\n"
        self._transport.write(b"%b%b\r\n" % (line.encode(), data))

    async def sent(self) -> None:
        """Back-pressure: wait until little of what was written is left to be sent."""
        await self._transport.drain()

    # Hearing

    async def hear(self, subject: str, ear: Ear, queue: str = "") -> Any:
        """Call the ear with all that comes under a subject, until the returned subscription is given to `unhear`."""
        subscription = await self.subscribe(subject, queue=queue)
        self._ears[subscription._id] = ear  # noqa: SLF001
        if self.is_connected:  # at once: nats-py would let our requests, and its own ping, overtake it
            self._transport.writelines(self._pending)
            self._pending.clear()
            self._pending_data_size = 0
        return subscription

    async def unhear(self, subscription: Any) -> None:
        self._ears.pop(subscription._id, None)  # noqa: SLF001
        await subscription.unsubscribe()

    async def _process_msg(self, sid: int, subject: bytes, reply: bytes, data: bytes, headers: bytes) -> None:
        ear = self._ears.get(sid)
        if ear is None:
            await super()._process_msg(sid, subject, reply, data, headers)
            return
        try:
            ear(bytes(subject), data, headers or b"")
        except Exception as error:  # noqa: BLE001  (nats-py would end its reading)
            await self._troubled(error)

    async def _process_pong(self) -> None:
        """The answer to a ping; the task that waited for it may have given up, which nats-py does not expect."""
        if self._pongs and self._pongs[0].done():
            self._pongs[0] = asyncio.get_running_loop().create_future()
        await super()._process_pong()

    async def _read_loop(self) -> None:
        self._ps.reset()  # the connection before may have left half a line
        await super()._read_loop()
        await self.force_reconnect()  # where it is neither closed nor cut off: an error ended the reading
