"""Throughput of a crowd: eight senders and eight receivers of one queue, each a process of its own; a part of nats_rooms.py.

Every sender waits for the confirmation of each message before it sends the next; every receiver takes one, acks it and
waits for that. A figure is messages per second, from the word to begin until the last ack.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from importlib.util import find_spec
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Final

import nats

import postroom
from compare.redis_streams import RedisClient, RedisPeer
from compare.servers import program
from postroom.cli.bench.client import Setup
from postroom.core.clock import SYSTEM

CROWD: Final = 8
PAYLOAD: Final = {"text": "x" * 160, "n": 1}
RAW: Final = b'{"text":"' + b"x" * 160 + b'","n":1}'
SPAWN: Final = multiprocessing.get_context("spawn")
#: A receiver leaves when nothing came for so long.
IDLE_S: Final = 2.0

#: A step that sends one message; and one that takes and acks one, and says whether there was one.
Send = Callable[[], Any]
Take = Callable[[], bool]


def _send_many(pipe: Connection, send: Send, count: int) -> None:
    pipe.send("ready")
    pipe.recv()
    for _ in range(count):
        send()
    pipe.send(count)


def _take_all(pipe: Connection, take: Take) -> None:
    pipe.send("ready")
    pipe.recv()
    count, last_ns = 0, 0
    while take():
        count, last_ns = count + 1, SYSTEM.steady_ns()
    pipe.send((count, last_ns))


def room_sender(address: str, name: str, pipe: Connection, count: int) -> None:
    with postroom.open(f"nats://{address}/{name}") as room:
        ada = room.agent("ada")
        _send_many(pipe, lambda: ada.send(None, PAYLOAD, channel="work"), count)


def room_receiver(address: str, name: str, pipe: Connection, _count: int) -> None:
    with postroom.open(f"nats://{address}/{name}") as room:
        bob = room.agent("bob")

        def take() -> bool:
            try:
                return bob.receive(timeout_s=IDLE_S, channels=["work"]).ack()
            except postroom.ReceiveTimeout:
                return False

        _take_all(pipe, take)


def plain_sender(address: str, name: str, pipe: Connection, count: int) -> None:
    with _loop() as do:
        client = do(nats.connect([f"nats://{each}" for each in address.split(",")]))
        js = client.jetstream(timeout=30)
        _send_many(pipe, lambda: do(js.publish(name, RAW)), count)
        do(client.close())


def plain_receiver(address: str, name: str, pipe: Connection, _count: int) -> None:
    with _loop() as do:
        client = do(nats.connect([f"nats://{each}" for each in address.split(",")]))
        pull = do(client.jetstream(timeout=30).pull_subscribe(name, durable="worker"))

        async def one() -> bool:
            try:
                (message,) = await pull.fetch(1, timeout=IDLE_S)
            except TimeoutError:
                return False
            await message.ack_sync(timeout=30)
            return True

        _take_all(pipe, lambda: bool(do(one())))
        do(client.close())


@contextmanager
def _loop() -> Iterator[Callable[[Any], Any]]:
    loop = asyncio.new_event_loop()
    try:
        yield loop.run_until_complete
    finally:
        loop.close()


def redis_sender(address: str, name: str, pipe: Connection, count: int) -> None:
    client = RedisClient(Setup(address=address, me=name, to=name))
    _send_many(pipe, lambda: client.send(PAYLOAD), count)


def redis_receiver(address: str, name: str, pipe: Connection, _count: int) -> None:
    client = RedisClient(Setup(address=address, me=name, to=name))

    def take() -> bool:
        found = client.receive(IDLE_S)
        if found is not None:
            client.ack(found[1])
        return found is not None

    _take_all(pipe, take)


def _per_second(sender: Any, receiver: Any, address: str, name: str, count: int) -> float:
    """Messages per second through the crowd, each of whose senders sends so many."""
    with ExitStack() as helpers:
        crowd = [helpers.enter_context(_helper(work, address, name, count)) for work in [sender, receiver] * CROWD]
        assert [pipe.recv() for pipe in crowd] == ["ready"] * len(crowd)
        began_ns = SYSTEM.steady_ns()
        for pipe in crowd:
            pipe.send("go")
        told = [pipe.recv() for pipe in crowd]
    taken = [each for each in told if isinstance(each, tuple)]
    assert sum(each for each, _ in taken) >= CROWD * count
    took_ns: int = max(last_ns for _, last_ns in taken) - began_ns
    return CROWD * count / took_ns * 1e9


@contextmanager
def _helper(work: Any, address: str, name: str, count: int) -> Iterator[Connection]:
    here, there = SPAWN.Pipe()
    process = SPAWN.Process(target=work, args=(address, name, there, count))
    process.start()
    try:
        yield here
    finally:
        process.join(30)
        if process.is_alive():
            process.kill()
            process.join()


def measure_crowd(address: str, copies: int, count: int, number: int) -> dict[str, float]:
    """Messages per second: a room, plain JetStream and, where it is here, Redis streams that sync every change."""
    name = f"crowd-{number}"
    figures = {"crowd": _per_second(room_sender, room_receiver, address, name, count)}
    with _loop() as do:
        client = do(nats.connect([f"nats://{each}" for each in address.split(",")]))
        js = client.jetstream(timeout=30)
        do(js.add_stream(name=name, subjects=[name], num_replicas=copies))
        do(js.pull_subscribe(name, durable="worker"))
        figures["plain crowd"] = _per_second(plain_sender, plain_receiver, address, name, count)
        do(client.close())
    if copies == 1 and program("redis-server") is not None and find_spec("redis") is not None:
        with (
            tempfile.TemporaryDirectory(prefix="postroom-bench-") as folder,
            RedisPeer.serve(Path(folder), "full") as at,
        ):
            figures["redis crowd"] = _per_second(redis_sender, redis_receiver, at, name, count)
    return figures
