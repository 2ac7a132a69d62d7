"""Some hours of work in a room in files, by several stores and in several processes. For strace to record."""

from __future__ import annotations

import os
import random
import sys
from functools import partial
from pathlib import Path

from postroom.core import crashpoints
from postroom.core.clock import SYSTEM, Clock, ManualClock
from postroom.core.config import Config
from postroom.stores.files.store import FilesStore

from .power import Worker
from .system_calls import TOLD, Teller

#: A log of so many bytes is written anew, so that a short day has several.
LOG_BYTES = 4000
#: Where one of several processes dies: a step is in the log, and the tree has not followed.
DEATH = "files.logged"


def open_files(folder: Path, sync: str, clock: Clock) -> FilesStore:
    store = FilesStore(folder, Config(sync=sync, busy_timeout_s=60), clock)
    store.log_growth_bytes = LOG_BYTES
    return store


def work(root: Path, room: str, syncs: list[str], calls: int, chance: random.Random, clock: Clock) -> None:
    """Several stores work, one thing after the other, and are closed."""
    teller, name = Teller(root.with_name(TOLD)), chance.random()
    workers = [
        Worker(f"{sync}.{number}.{name}", teller, partial(open_files, root / room, sync, clock), reopens=0.03)
        for number, sync in enumerate(syncs)
    ]
    for _ in range(calls):
        chance.choice(workers).one_thing()
        if isinstance(clock, ManualClock):
            clock.advance(0.01)
    for worker in workers:
        worker.store.close()


def crowd(root: Path, room: str, syncs: list[str], calls: int, seed: str) -> None:
    """Each store in a process of its own, beside the others; and one more, which dies in the middle of a step."""
    pids = []
    for number, sync in enumerate((*syncs, "full")):
        pid = os.fork()
        if pid == 0:
            if number == len(syncs):
                crashpoints.at(DEATH, partial(os._exit, 0))
            work(root, room, [sync], calls, random.Random(f"{seed}{number}"), SYSTEM)
            os._exit(0)
        pids.append(pid)
    assert {os.waitpid(pid, 0)[1] for pid in pids} == {0}


def main(root: str, room: str, syncs: str, calls: str, seed: str, way: str) -> None:
    if way == "crowd":
        crowd(Path(root), room, syncs.split(","), int(calls), seed)
    else:
        work(Path(root), room, syncs.split(","), int(calls), random.Random(seed), ManualClock(SYSTEM.wall_ms()))


if __name__ == "__main__":
    main(*sys.argv[1:])
