"""What each work costs in processor time next to an earlier commit, in turns: did Postroom become dearer?

    python bench/micro/since.py 33b6b36 [--works W1,W2,...] [--pairs 10] [--scale 1] [--json]

Microseconds of processor time for one operation, of all processes of a work together and without their start. The two
programs take turns, which begins changing, each with a room of its own. Told are the medians, and of the ratio of each pair
the median, the lowest and the highest. The clone must have the commit.
"""

from __future__ import annotations

import argparse
import io
import json
import multiprocessing
import os
import statistics
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).parents[2]
FORK: Final = multiprocessing.get_context("fork")
PAYLOAD: Final = {"text": "x" * 160, "n": 1}
BATCH: Final = 100
PAUSE_S: Final = 0.02
PATIENCE_S: Final = 30

#: What one process of a work does with a room, so many times. Public names only, which both programs have.
Part = Callable[[Any, int], None]


def send(room: Any, count: int, to: str | None = "bob", channel: str = "general", pause_s: float = 0) -> None:
    ada = room.agent("ada")
    for _ in range(count):
        if pause_s:
            time.sleep(pause_s)
        ada.send(to, PAYLOAD, channel=channel)


def send_batches(room: Any, count: int) -> None:
    ada = room.agent("ada")
    for _ in range(0, count, BATCH):
        ada.send_many([{"to": "bob", "payload": PAYLOAD} for _ in range(BATCH)])


def receive(room: Any, count: int, channels: list[str] | None = None) -> None:
    bob = room.agent(f"bob{os.getpid()}" if channels else "bob")
    for _ in range(count):
        bob.receive(PATIENCE_S, channels=channels).ack()


def listen(room: Any, count: int, channels: list[str] | None = None) -> None:
    bob = room.agent(f"bob{os.getpid()}" if channels else "bob")
    messages = bob.listen(channels=channels, timeout_s=PATIENCE_S)
    for _ in range(count):
        next(messages)
    messages.close()


def ask(room: Any, count: int) -> None:
    ada = room.agent("ada")
    for _ in range(count):
        ada.ask("bob", PAYLOAD, PATIENCE_S)


def answer(room: Any, count: int) -> None:
    messages = room.agent("bob").listen(timeout_s=PATIENCE_S)
    for _ in range(count):
        message = next(messages)
        message.reply(message.payload)
    messages.close()


_TO_ALL: Final = partial(send, to=None, channel="work")

#: The parts of each work, and how many messages there are for each sender.
WORKS: Final[dict[str, tuple[int, list[Part]]]] = {
    "W1": (10_000, [send]),
    "W2": (40_000, [send_batches]),
    "W3": (4_000, [receive, send]),
    "W3 listen": (4_000, [listen, send]),
    "W4": (1_500, [partial(receive, channels=["work"]), _TO_ALL] * 4),
    "W4 listen": (1_500, [partial(listen, channels=["work"]), _TO_ALL] * 4),
    "W5": (120, [receive, partial(send, pause_s=PAUSE_S)]),
    "W6": (1_500, [answer, ask]),
}


def measure(work: str, scale: float, folder: str) -> float:
    """One measurement, with the Postroom that can be imported here."""
    import postroom

    count, parts = WORKS[work]
    count = max(BATCH, round(count * scale / BATCH) * BATCH)
    postroom.open(f"sqlite:{folder}").close()
    together, used_s = FORK.Barrier(len(parts)), FORK.SimpleQueue()

    def take_part(part: Part) -> None:
        with postroom.open(f"sqlite:{folder}") as room:
            room.agent("bob")
            together.wait(PATIENCE_S)
            before_s = time.process_time()
            part(room, count)
            used_s.put(time.process_time() - before_s)

    processes = [FORK.Process(target=take_part, args=(part,)) for part in parts]
    for process in processes:
        process.start()
    total_s: float = sum(used_s.get() for _ in processes)
    for process in processes:
        process.join()
    return total_s / (count * max(1, len(parts) // 2)) * 1e6


def measured_by(source: Path, work: str, scale: float) -> float:
    """One measurement in a program of its own, with the Postroom of that folder."""
    words = [sys.executable, __file__, "", "--works", work, "--scale", str(scale)]
    with tempfile.TemporaryDirectory(prefix="postroom-bench-") as folder:
        done = subprocess.run(
            [*words, "--measure", folder],
            env={**os.environ, "PYTHONPATH": str(source)},
            stdout=subprocess.PIPE,
            check=True,
            timeout=600,
        )
    return float(done.stdout)


def source_of(commit: str, folder: str) -> Path:
    """The sources of a commit, put into a folder."""
    packed = subprocess.run(["git", "archive", commit, "src"], cwd=ROOT, stdout=subprocess.PIPE, check=True).stdout
    with tarfile.open(fileobj=io.BytesIO(packed)) as archive:
        archive.extractall(folder, filter="data")
    return Path(folder) / "src"


def in_turns(commit: str, works: list[str], pairs: int, scale: float) -> dict[str, Any]:
    """What each work costs before and now, and the ratio of each pair."""
    before: dict[str, list[float]] = {work: [] for work in works}
    now: dict[str, list[float]] = {work: [] for work in works}
    with tempfile.TemporaryDirectory() as folder:
        old = source_of(commit, folder)
        for pair in range(pairs):
            for work in works:
                turns = [(old, before), (ROOT / "src", now)]
                for source, found in turns if pair % 2 else reversed(turns):
                    found[work].append(measured_by(source, work, scale))
            print(f"pair {pair + 1} of {pairs}", file=sys.stderr)
    return {
        work: {
            "before_us": statistics.median(before[work]),
            "now_us": statistics.median(now[work]),
            "ratios": sorted(new / old for new, old in zip(now[work], before[work], strict=True)),
        }
        for work in works
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("commit", help="the earlier commit")
    parser.add_argument("--works", default=",".join(WORKS))
    parser.add_argument("--pairs", type=int, default=10)
    parser.add_argument("--scale", type=float, default=1)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--measure", metavar="FOLDER", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.measure:
        print(measure(asked.works, asked.scale, asked.measure))
        return
    found = in_turns(asked.commit, asked.works.split(","), asked.pairs, asked.scale)
    if asked.json:
        print(json.dumps(found))
        return
    print(f"| work | at {asked.commit}, µs | now, µs | ratio | lowest to highest |\n| --- | --: | --: | --: | --: |")
    for work, each in found.items():
        ratios = each["ratios"]
        told = f"{statistics.median(ratios):.2f} | {ratios[0]:.2f} to {ratios[-1]:.2f}"
        print(f"| {work} | {each['before_us']:,.1f} | {each['now_us']:,.1f} | {told} |")


if __name__ == "__main__":
    main()
