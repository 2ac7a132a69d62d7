"""How long until somebody who waits is woken by a file that another program drops: Postroom next to bare inotify.

    .venv/bin/python bench/micro/files_wake.py [COUNT]

One process drops files, by a move, as a careful program does. Another waits for them, in turns: with nothing but inotify and
poll; with a waiter of a room of files; and with `agent.receive()`, which also makes a message of the file, claims it and
gives it. The clock runs from just before the move to just after the wait returned.
"""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import postroom
from postroom.core.system.watch import watch_folders
from postroom.stores.contract import topic_to

PAUSE_S = 0.004


def drop(folder: Path, name: str) -> None:
    """Leave one file, with the moment of its move in it."""
    half = folder.parent.parent / f".{name}"
    half.write_text(json.dumps({"from": "dropper", "payload": {"at_ns": time.monotonic_ns()}}), encoding="ascii")
    half.rename(folder / name)


def dropper() -> None:
    """Drop a file whenever a line with its place is read, after a short pause."""
    for line in sys.stdin:
        time.sleep(PAUSE_S)
        folder, name = line.split()
        drop(Path(folder), name)


def sent_ns(path: Path) -> int:
    """The moment that a dropped file tells."""
    at_ns: int = json.loads(path.read_bytes())["payload"]["at_ns"]
    return at_ns


def measure(count: int, ask: Callable[[str, str], None], root: Path) -> dict[str, list[int]]:
    """Nanoseconds to wake, of each kind, taken in turns."""
    found: dict[str, list[int]] = {"bare inotify": [], "waiter": [], "receive": []}
    bare, waited = root / "elsewhere" / "bare", root / "room" / "inbox" / "waiter"
    bare.mkdir(parents=True)
    with postroom.open(f"files:{root / 'room'}") as room:
        waited.mkdir()
        (root / "room/inbox/bob").mkdir()
        agent = room.agent("bob")
        watch = watch_folders()
        watch.add(bare, "bare")
        poll = select.poll()
        poll.register(watch.fileno(), select.POLLIN)
        waiter = room.store.listen([topic_to("waiter")])
        for number in range(count):
            name = f"{number:06d}.json"
            ask(str(bare), name)
            poll.poll()
            watch.read()
            found["bare inotify"].append(time.monotonic_ns() - sent_ns(bare / name))
            while waiter.wait(0):  # hints of what was dropped before
                pass
            ask(str(waited), name)
            while not (waited / name).exists():
                waiter.wait(10)
            found["waiter"].append(time.monotonic_ns() - sent_ns(waited / name))
            ask(str(root / "room/inbox/bob"), name)
            message = agent.receive(timeout_s=10)
            found["receive"].append(time.monotonic_ns() - message.payload["at_ns"])
            message.ack()
        waiter.close()
        watch.close()
    return found


def main() -> None:
    """Measure, and print."""
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 500
    words = [sys.executable, __file__, "--drop"]
    with (
        tempfile.TemporaryDirectory(prefix="postroom-wake-") as folder,
        subprocess.Popen(words, stdin=subprocess.PIPE, text=True, bufsize=1) as child,
    ):
        pipe = child.stdin
        assert pipe is not None

        def ask(place: str, name: str) -> None:
            pipe.write(f"{place} {name}\n")
            pipe.flush()

        found = measure(count, ask, Path(folder))
        pipe.close()
    floor = sorted(found["bare inotify"])[count // 2]
    print(f"waking on a dropped file, {count} of each in turns, {os.cpu_count()} processors")
    for kind, spans in found.items():
        spans.sort()
        half, late = spans[count // 2], spans[count * 99 // 100]
        print(f"{kind:>14}: p50 {half / 1000:7.0f} µs   p99 {late / 1000:7.0f} µs   {half / floor:.2f} x bare inotify")


if __name__ == "__main__":
    if sys.argv[1:] == ["--drop"]:
        dropper()
    else:
        main()
