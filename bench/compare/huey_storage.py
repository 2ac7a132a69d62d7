"""huey's SQLite storage, below its task functions. Receiving deletes: there is no ack, and a receiver that dies loses it."""

from __future__ import annotations

from typing import Any

from postroom.cli.bench.client import Client, Payload, Setup, decode, encode

from .peer import ComparedPeer
from .polling import look_until
from .servers import package_version


class HueyClient(Client):
    """One file; a queue for each box."""

    def __init__(self, setup: Setup) -> None:
        super().__init__(setup)
        from huey import SqliteHuey

        def box(name: str) -> Any:
            return SqliteHuey(name, filename=f"{setup.address}/huey.db", timeout=30).storage

        self._mine, self._theirs = box(setup.me), box(setup.to)

    def send(self, payload: Payload) -> None:
        self._theirs.enqueue(encode(payload))

    def receive(self, timeout_s: float) -> tuple[Payload, None] | None:
        data = look_until(self._mine.dequeue, timeout_s)
        return None if data is None else (decode(data), None)

    def ack(self, handle: Any) -> None:
        pass

    def close(self) -> None:
        self._mine.close()
        self._theirs.close()


class HueyPeer(ComparedPeer):
    name = "huey"
    about = "SqliteHuey's storage, an fsync per call, at most once; receivers look every millisecond"
    not_measured = {"W2": "no batches", "W7": "filling it takes minutes"}

    @staticmethod
    def versions() -> dict[str, str]:
        return {"huey": package_version("huey")}

    @staticmethod
    def client(setup: Setup) -> Client:
        return HueyClient(setup)


PEER = HueyPeer
