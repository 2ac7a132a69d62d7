"""What spinning gains (stores/bells/spinning.py): a wake-up (W5) and a question with its answer (W6), with it and without.

    .venv/bin/python bench/micro/spinning.py [SECONDS]

Two rooms, one with spinning and one without, each with a peer in a process of its own. They take turns every 40 questions (or 20
messages, one every 20 ms), so that whatever else the machine does meets both. Prints the medians of both, and the median of
the ratios of neighbours.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from statistics import median

import postroom
from postroom.stores.bells.spinning import VARIABLE

PAUSE_S = 0.02
QUESTIONS = 40
MESSAGES = 20


def peer(url: str) -> None:
    """The other process: answers questions, and tells how long messages were under way."""
    with postroom.open(url) as room:
        print("ready", flush=True)
        for message in room.agent("peer").listen():
            if message.type == "question":
                message.reply({})
            else:
                print(time.monotonic_ns() - message.payload["sent_ns"], flush=True)


class Pair:
    """A room with a peer in another process, spinning or not."""

    def __init__(self, folder: str, spins: str, stack: ExitStack) -> None:
        os.environ[VARIABLE] = spins
        url = f"sqlite:{folder}/room{spins}"
        self._agent = stack.enter_context(postroom.open(url)).agent("me")
        command = [sys.executable, __file__, "peer", url]
        process = stack.enter_context(subprocess.Popen(command, stdout=subprocess.PIPE, text=True))
        stack.callback(process.kill)
        assert process.stdout is not None
        self._told = process.stdout
        self._told.readline()

    def wake_ns(self) -> int:
        """From a send to the peer that got it."""
        time.sleep(PAUSE_S)
        self._agent.send("peer", {"sent_ns": time.monotonic_ns()})
        return int(self._told.readline())

    def ask_ns(self) -> int:
        """From a question to its answer."""
        begun_ns = time.monotonic_ns()
        self._agent.ask("peer", {}, type="question")
        return time.monotonic_ns() - begun_ns


def measure(name: str, without: Callable[[], int], spinning: Callable[[], int], count: int, seconds: float) -> None:
    """Both ways in turns, and what they took."""
    took_us: dict[Callable[[], int], list[float]] = {without: [], spinning: []}
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        for way in sorted(took_us, key=lambda way: (way is spinning) == len(took_us[way]) % 2):
            way()
            took_us[way].append(median(way() for _ in range(count)) / 1000)
    ratio = median(on / off for off, on in zip(took_us[without], took_us[spinning], strict=True))
    off_us, on_us = median(took_us[without]), median(took_us[spinning])
    print(f"{name}: {on_us:.0f} us with, {off_us:.0f} us without, ratio {ratio:.3f} of {len(took_us[without])} pairs")


def main(seconds: float) -> None:
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        without, spinning = Pair(folder, "0", stack), Pair(folder, "1", stack)
        measure("W5", without.wake_ns, spinning.wake_ns, MESSAGES, seconds / 2)
        measure("W6", without.ask_ns, spinning.ask_ns, QUESTIONS, seconds / 2)


if __name__ == "__main__":
    if sys.argv[1:2] == ["peer"]:
        peer(sys.argv[2])
    else:
        main(float(sys.argv[1]) if sys.argv[1:] else 60)
