"""A receiver in a process of its own that waits for mail that does not come, and tells what that cost it.

    idle.py URL sync|aio|loops SECONDS

It first takes what there is for "bob" (at most a hundred messages), as one that works does, then waits as "nobody":
once, or as a thousand receivers in one loop ("loops"). Prints JSON: seconds it waited, processor time of all its threads meanwhile,
bytes of memory at the end and at most.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from pathlib import Path

import postroom
from postroom import aio

url, way, seconds = sys.argv[1], sys.argv[2], float(sys.argv[3])


def take_some(room: postroom.Room) -> None:
    bob = room.agent("bob")
    for _ in range(100):
        message = bob.poll()
        if message is None:
            return
        message.ack()


def memory_bytes() -> tuple[int, int]:
    """What is in memory now, and the most that ever was."""
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    kib = {line.partition(":")[0]: int(line.split()[1]) for line in lines if line.startswith("Vm")}
    return kib["VmRSS"] * 1024, kib["VmHWM"] * 1024


def wait(room: postroom.Room) -> tuple[float, float]:
    nobody = room.agent("nobody")
    started, used = time.monotonic(), time.process_time()
    try:
        nobody.receive(seconds)
    except postroom.ReceiveTimeout:
        return time.monotonic() - started, time.process_time() - used
    raise AssertionError("a message came")


async def wait_in_loop(count: int) -> tuple[float, float]:
    async with aio.open(url) as room:
        receivers = [room.agent("nobody" if n == 0 else f"nobody-{n % 10}") for n in range(count)]
        for receiver in set(receivers):
            await receiver
        waiting = [asyncio.create_task(receiver.receive()) for receiver in receivers]
        while len(room._worker.waits.pauses) < count:  # noqa: ASYNC110  nobody tells that somebody waits
            await asyncio.sleep(0.01)
        started, used = time.monotonic(), time.process_time()
        await asyncio.sleep(seconds)
        took = time.monotonic() - started, time.process_time() - used
        for each in waiting:
            each.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)
        return took


if way == "sync":
    with postroom.open(url) as room:
        take_some(room)
        waited_s, used_s = wait(room)
else:
    with postroom.open(url) as room:
        take_some(room)
    waited_s, used_s = asyncio.run(wait_in_loop(1 if way == "aio" else 1000))

now, most = memory_bytes()
print(json.dumps({"waited_s": waited_s, "used_s": used_s, "now": now, "most": most}))
