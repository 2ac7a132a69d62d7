"""What waiting costs as more wait: receivers of one asyncio process, or processes that wait with a receiver each.

    python bench/micro/waiting.py [--tasks 1,1000,10000] [--processes 1,10,100,200] [--idle-s 30] [--wakes 100]

For each size: the share of a core that all waiting processes use while no message comes, and from before a send to after
the receive of one of them, one message every 20 ms, the median. Every receiver is an agent of its own. The same one is
woken each time: of a process that has not run for seconds nothing is in the caches any more, however many wait.
"""

from __future__ import annotations

import argparse
import asyncio
import multiprocessing
import statistics
import tempfile
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Final

import postroom
from postroom.core.clock import SYSTEM

SPAWN: Final = multiprocessing.get_context("spawn")
PAUSE_S: Final = 0.02
#: Registering and beginning to wait takes so long at most, for each receiver.
SETTLE_S: Final = 2.0


def tasks(url: str, pipe: Connection, first: int, count: int) -> None:
    """A process in which so many agents wait, and tell how long each message was on its way."""

    async def wait(room: postroom.aio.Room, number: int) -> None:
        agent = await room.agent(f"a{number}")
        waiting.append(number)
        if len(waiting) == count:
            pipe.send("ready")
        while True:
            async with await agent.receive(timeout_s=None) as message:
                pipe.send(SYSTEM.steady_ns() - message.payload["at"])

    async def main() -> None:
        async with postroom.aio.open(url) as room, asyncio.TaskGroup() as group:
            for number in range(first, first + count):
                group.create_task(wait(room, number))

    waiting: list[int] = []
    asyncio.run(main())


def receiver(url: str, pipe: Connection, number: int, _: int) -> None:
    """A process with one receiver that is not asynchronous."""
    with postroom.open(url) as room:
        agent = room.agent(f"a{number}")
        pipe.send("ready")
        while True:
            with agent.receive() as message:
                pipe.send(SYSTEM.steady_ns() - message.payload["at"])


def processor_s(pids: list[int]) -> float:
    """What these processes have used so far."""
    threads = [thread for pid in pids for thread in Path(f"/proc/{pid}/task").iterdir()]
    return sum(int((thread / "schedstat").read_text(encoding="ascii").split()[0]) for thread in threads) / 1e9


def measure(work: Callable[..., None], starts: list[tuple[int, int]], idle_s: float, wakes: int) -> tuple[float, float]:
    """The share of a core while nothing comes, and the median wake in milliseconds. `starts`: first agent and count."""
    with tempfile.TemporaryDirectory() as folder, postroom.open(f"sqlite:{folder}/room") as room:
        ends, processes = [], []
        try:
            for first, count in starts:
                here, there = SPAWN.Pipe()
                process = SPAWN.Process(target=work, args=(f"sqlite:{folder}/room", there, first, count))
                process.start()
                ends.append(here)
                processes.append(process)
            for end in ends:
                assert end.recv() == "ready"
            SYSTEM.sleep(SETTLE_S)
            pids = [process.pid for process in processes if process.pid is not None]
            before = processor_s(pids)
            SYSTEM.sleep(idle_s)
            share = (processor_s(pids) - before) / idle_s
            ada, took = room.agent("ada"), []
            for _ in range(wakes):
                SYSTEM.sleep(PAUSE_S)
                ada.send("a0", {"at": SYSTEM.steady_ns()})
                took.append(ends[0].recv() / 1e6)
            return share, statistics.median(took)
        finally:
            for process in processes:
                process.kill()
                process.join()


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--tasks", default="1,1000,10000", help="how many wait in one asyncio process")
    parser.add_argument("--processes", default="1,10,100,200", help="how many processes wait")
    parser.add_argument("--idle-s", type=float, default=30)
    parser.add_argument("--wakes", type=int, default=100)
    asked = parser.parse_args()
    print("| receivers | share of a core | of that for each | wake p50, ms |\n| --- | --: | --: | --: |")
    for size in filter(None, asked.tasks.split(",")):
        share, wake_ms = measure(tasks, [(0, int(size))], asked.idle_s, asked.wakes)
        print(f"| {int(size):,} in one process | {share:.2%} | {share / int(size):.4%} | {wake_ms:.3f} |", flush=True)
    for size in filter(None, asked.processes.split(",")):
        share, wake_ms = measure(receiver, [(number, 1) for number in range(int(size))], asked.idle_s, asked.wakes)
        print(f"| {int(size):,} processes | {share:.2%} | {share / int(size):.4%} | {wake_ms:.3f} |", flush=True)


if __name__ == "__main__":
    main()
