"""persist-queue's SQLiteAckQueue. Its own blocking `get` does not see what other processes put, so receivers look."""

from __future__ import annotations

from typing import Any

from postroom.cli.bench.client import Client, Payload, Setup

from .peer import ComparedPeer
from .polling import look_until
from .servers import package_version


class PersistQueueClient(Client):
    """A folder for each box."""

    def __init__(self, setup: Setup) -> None:
        super().__init__(setup)
        from persistqueue import SQLiteAckQueue

        def box(name: str) -> Any:
            return SQLiteAckQueue(f"{setup.address}/{name}", auto_resume=False, multithreading=True, timeout=30.0)

        self._mine, self._theirs = box(setup.me), box(setup.to)

    def send(self, payload: Payload) -> None:
        self._theirs.put(payload)

    def receive(self, timeout_s: float) -> tuple[Payload, int] | None:
        found = look_until(self._look, timeout_s)
        return None if found is None else (found["data"], found["pqid"])

    def _look(self) -> dict[str, Any] | None:
        from persistqueue import Empty

        try:
            found: dict[str, Any] = self._mine.get(block=False, raw=True)
        except Empty:
            return None
        return found

    def ack(self, handle: Any) -> None:
        self._mine.ack(id=handle)

    def prefill(self, count: int) -> None:
        from postroom.cli.bench.client import make_payload

        for number in range(count):
            self._mine.put(make_payload(number))

    def close(self) -> None:
        self._mine.close()
        self._theirs.close()


class PersistQueuePeer(ComparedPeer):
    name = "persist-queue"
    about = "SQLiteAckQueue, an fsync per call, pickle; receivers look every millisecond"
    not_measured = {"W2": "no batches", "W7": "filling it takes minutes"}

    @staticmethod
    def versions() -> dict[str, str]:
        return {"persist-queue": package_version("persist-queue")}

    @staticmethod
    def client(setup: Setup) -> Client:
        return PersistQueueClient(setup)


PEER = PersistQueuePeer
