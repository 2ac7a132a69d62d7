"""What a room in files costs as it keeps more: memory, opening, send, claim and ack, beside ten finished messages and a hundred thousand.

    .venv/bin/python bench/micro/growth_files.py [--sizes 10,1000,10000,100000] [--rounds 200] [--json]

Each size has a room, and a process of its own that opens it. They take turns, so that whatever else the machine does meets all
of them. Told are the processor time of a step (the median), the processor time of opening, the memory of a process that has
opened the room and taken these steps, next to one of the smallest room, for each kept message, and the memory at its highest.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from unittest.mock import patch

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


def measured(took: list[float], act: Callable[[], Any]) -> Any:
    """What a call gives; what it costs goes to `took`, in microseconds of the processor."""
    begun_ns = time.process_time_ns()
    told = act()
    took.append((time.process_time_ns() - begun_ns) / 1000)
    return told


def work(url: str) -> None:
    """The process of one room: it opens it, and takes a round of steps for each line that it reads."""
    took: dict[str, list[float]] = {step: [] for step in STEPS}
    opening: list[float] = []
    with measured(opening, lambda: postroom.open(url)) as room:
        alice, bob = room.agent("alice"), room.agent("bob")
        measured(opening, room.store.number_at)  # a room is read with the first look
        print("ready", flush=True)
        for _ in sys.stdin:
            measured(took["send"], lambda: alice.send("bob", PAYLOAD))
            message = measured(took["claim"], lambda: bob.receive(timeout_s=0))
            measured(took["ack"], message.ack)
            print("done", flush=True)
        figures = {step: statistics.median(took[step]) for step in STEPS}
        told = {"open_ms": sum(opening) / 1000, "memory": memory_bytes("VmRSS"), "highest": memory_bytes("VmHWM")}
        print(json.dumps(figures | told), flush=True)


def measure(sizes: list[int], rounds: int) -> dict[int, dict[str, float]]:
    """The figures of a room of each size."""
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        workers = {}
        for size in sizes:
            url = f"files:{folder}/{size}"
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
    parser.add_argument("--sizes", default="10,1000,10000,100000")
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--work")
    asked = parser.parse_args()
    if asked.work:
        work(asked.work)
        return
    found = measure([int(size) for size in asked.sizes.split(",")], asked.rounds)
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
