"""Some work in a room on a NATS server of its own, which is killed at the end. For strace to record, with the server."""

from __future__ import annotations

import random
import subprocess
import sys
from functools import partial
from pathlib import Path

from postroom.core.clock import SYSTEM
from postroom.core.config import Config, parse_url
from postroom.errors import RoomUnreachable
from postroom.stores.nats.store import NatsStore

from .power import Worker
from .system_calls import Teller


def open_nats(url: str) -> NatsStore:
    while True:
        try:
            return NatsStore(parse_url(url), Config(), SYSTEM)
        except RoomUnreachable:  # it has just been started
            SYSTEM.sleep(0.1)


def main(told: str, url: str, calls: str, seed: str, *server: str) -> None:
    process = subprocess.Popen(server, stdin=subprocess.DEVNULL)
    try:
        teller, chance = Teller(Path(told)), random.Random(seed)
        workers = [Worker(f"{name}.{seed}", teller, partial(open_nats, url)) for name in ("one", "two")]
        for _ in range(int(calls)):
            chance.choice(workers).one_thing()
        for worker in workers:
            worker.store.close()
    finally:
        process.kill()
        process.wait()


if __name__ == "__main__":
    main(*sys.argv[1:])
