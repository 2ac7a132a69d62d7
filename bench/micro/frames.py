"""What a request and its answer cost between two processes, by the way they are written and carried.

    python bench/micro/frames.py [--rounds 5] [--requests 20000]

One process asks, the other echoes, one after the other. Connection is `multiprocessing.Pipe`; socket is a socketpair with
a length of four bytes before each frame. The request is the dict of a small message.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import pickle
import socket
import statistics
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

import msgspec

MESSAGE = {"id": "m1", "content": "could somebody look at the build? " * 4, "sender_id": "ada", "n": 7}
Codec = tuple[Callable[[Any], bytes], Callable[[bytes], Any]]
CODECS: dict[str, Codec] = {
    "pickle": (pickle.dumps, pickle.loads),
    "json": (msgspec.json.Encoder().encode, msgspec.json.Decoder().decode),
    "msgpack": (msgspec.msgpack.Encoder().encode, msgspec.msgpack.Decoder().decode),
}
HEAD = 4


class SocketEnd:
    """One end of a socketpair, with frames."""

    def __init__(self, end: socket.socket, codec: Codec) -> None:
        self._end = end
        self._encode, self._decode = codec
        self._rest = b""

    def send(self, value: Any) -> None:
        """Write one frame with one call to the system."""
        frame = self._encode(value)
        self._end.send(len(frame).to_bytes(HEAD, "big") + frame)

    def recv(self) -> Any:
        """Read one frame, mostly with one call to the system."""
        while True:
            if len(self._rest) >= HEAD:
                size = HEAD + int.from_bytes(self._rest[:HEAD], "big")
                if len(self._rest) >= size:
                    frame, self._rest = self._rest[HEAD:size], self._rest[size:]
                    return self._decode(frame)
            more = self._end.recv(65536)
            if not more:
                raise EOFError
            self._rest += more


class BytesEnd:
    """One end of a Connection that carries bytes of ours."""

    def __init__(self, end: Connection, codec: Codec) -> None:
        self._end = end
        self._encode, self._decode = codec

    def send(self, value: Any) -> None:
        """Write one frame."""
        self._end.send_bytes(self._encode(value))

    def recv(self) -> Any:
        """Read one frame."""
        return self._decode(self._end.recv_bytes())


def ways() -> dict[str, Callable[[], tuple[Any, Any]]]:
    """Every way, as a function that makes its two ends."""

    def pipe() -> tuple[Any, Any]:
        return multiprocessing.Pipe()

    def by_pipe(codec: Codec) -> tuple[Any, Any]:
        ours, theirs = multiprocessing.Pipe()
        return BytesEnd(ours, codec), BytesEnd(theirs, codec)

    def by_socket(codec: Codec) -> tuple[Any, Any]:
        ours, theirs = socket.socketpair()
        return SocketEnd(ours, codec), SocketEnd(theirs, codec)

    found: dict[str, Callable[[], tuple[Any, Any]]] = {"Connection.send": pipe}
    for name, codec in CODECS.items():
        found[f"Connection, {name}"] = lambda codec=codec: by_pipe(codec)  # type: ignore[misc]
        found[f"socket, {name}"] = lambda codec=codec: by_socket(codec)  # type: ignore[misc]
    return found


def round_trip_us(make: Callable[[], tuple[Any, Any]], requests: int) -> float:
    """The median of one request and its echo."""
    ours, theirs = make()
    pid = os.fork()  # forked, here and only here: the program runs one thread
    if pid == 0:
        while (value := theirs.recv()) is not None:
            theirs.send(value)
        os._exit(0)
    spans = []
    for _ in range(requests):
        start = time.perf_counter_ns()
        ours.send(MESSAGE)
        ours.recv()
        spans.append(time.perf_counter_ns() - start)
    ours.send(None)
    os.waitpid(pid, 0)
    return statistics.median(spans) / 1000


def main() -> None:
    """Measure all ways in turns, and print their medians."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--requests", type=int, default=20_000)
    args = parser.parse_args()
    found: dict[str, list[float]] = {name: [] for name in ways()}
    for _ in range(args.rounds):
        for name, make in ways().items():
            found[name].append(round_trip_us(make, args.requests // args.rounds))
    floor = statistics.median(found["Connection.send"])
    for name, rounds in found.items():
        print(f"{name:<22} {statistics.median(rounds):>8.1f} µs   {statistics.median(rounds) / floor:.2f}")


if __name__ == "__main__":
    main()
