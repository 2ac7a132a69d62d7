"""A connection to a NATS server that was not made in the end is closed before the next attempt."""

from __future__ import annotations

import asyncio

from tests.support.patience import PATIENCE_S

from postroom.stores.nats.access import Access
from postroom.stores.nats.client import RoomClient

INFO = b'INFO {"server_id": "a", "version": "2.10.0", "max_payload": 1048576, "headers": true}\r\n'
ATTEMPTS_IN_VAIN = 4


class MoodyServer:
    """Lets the first connection in and ends it, says to the next ones what no client understands, then lets one in."""

    def __init__(self) -> None:
        self.came = 0
        self.ends: list[asyncio.Event] = []
        self.is_back = asyncio.Event()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.came += 1
        if 1 < self.came <= 1 + ATTEMPTS_IN_VAIN:
            self.ends.append(end := asyncio.Event())
            writer.write(b"What do you want?\r\n")
            await reader.read()  # to its end, which is the client's to make
            end.set()
        else:
            is_first = self.came == 1
            writer.write(INFO)
            while (line := await reader.readline()) and line != b"PING\r\n":
                pass
            writer.write(b"PONG\r\n")
            if not is_first:
                self.is_back.set()
                await reader.read()
        writer.close()


async def connect_and_lose_it() -> None:
    told: list[Exception] = []

    async def note(error: Exception) -> None:
        told.append(error)

    moody = MoodyServer()
    async with await asyncio.start_server(moody.serve, "127.0.0.1", 0) as server:
        address = f"nats://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        client = RoomClient(Access(servers=(address,)), note)
        await client.connect(address, max_reconnect_attempts=-1, reconnect_time_wait=0.001, error_cb=note)
        async with asyncio.timeout(PATIENCE_S):
            await moody.is_back.wait()
            assert len(moody.ends) == ATTEMPTS_IN_VAIN
            for end in moody.ends:
                await end.wait()
        await client.close()
    assert sum("expecting INFO" in str(error) for error in told) == ATTEMPTS_IN_VAIN


def test_attempts_to_reconnect_that_come_to_nothing_leave_no_connection_open() -> None:
    asyncio.run(connect_and_lose_it())
