"""litequeue: a table in SQLite; pop locks a row, done ends it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from postroom.cli.bench.client import Client, Payload, Setup, decode, encode

from .peer import ComparedPeer
from .polling import look_until
from .servers import package_version


class LiteQueueClient(Client):
    """A file for each box, as its author advises."""

    def __init__(self, setup: Setup) -> None:
        super().__init__(setup)
        from litequeue import LiteQueue

        self._mine = LiteQueue(f"{setup.address}/{setup.me}.db", timeout=30)
        self._theirs = LiteQueue(f"{setup.address}/{setup.to}.db", timeout=30)

    def send(self, payload: Payload) -> None:
        self._theirs.put(encode(payload).decode())

    def send_batch(self, payloads: Sequence[Payload]) -> None:
        with self._theirs.transaction(mode="IMMEDIATE"):
            for payload in payloads:
                self._theirs.put(encode(payload).decode())

    def receive(self, timeout_s: float) -> tuple[Payload, str] | None:
        message = look_until(self._mine.pop, timeout_s)
        return None if message is None else (decode(message.data), message.message_id)

    def ack(self, handle: Any) -> None:
        self._mine.done(handle)

    def close(self) -> None:
        self._mine.close()
        self._theirs.close()


class LiteQueuePeer(ComparedPeer):
    name = "litequeue"
    about = "SQLite, WAL, synchronous=NORMAL; receivers look every millisecond"
    most_pending = 100_000

    @staticmethod
    def versions() -> dict[str, str]:
        return {"litequeue": package_version("litequeue")}

    @staticmethod
    def client(setup: Setup) -> Client:
        return LiteQueueClient(setup)


PEER = LiteQueuePeer
