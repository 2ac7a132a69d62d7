"""A process that has a room open, and does what it is told on its input: one word a line, answered by a line."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import postroom
from postroom.core.clock import SYSTEM, SystemClock
from postroom.core.message import Draft, check
from postroom.stores.contract import Want


class Container(SystemClock):
    """The kernel's clocks, under a boot id of its own."""

    def __init__(self, boot: str) -> None:
        super().__init__()
        self._boot_id = boot


def main(url: str, boot: str | None = None) -> None:
    room = postroom.open(url, clock=SYSTEM if boot is None else Container(boot))
    store = room.store
    print(room.gateway.process, flush=True)
    for line in sys.stdin:
        said = ""
        match line.split():
            case ["twice"]:  # open the room a second time, and close it again
                postroom.open(url).close()
            case ["fork"]:  # leave a child behind that has inherited every descriptor
                said = str(os.fork())
                if said == "0":
                    time.sleep(3600)
            case ["meddle", path]:  # what any code in this process may do: open the file, and close it
                Path(path).open("rb").close()
            case ["send"]:
                (said,) = store.put([check(Draft(from_agent="ada", to_agent="bob", payload={}))])
            case ["claim"]:
                said = str(len(store.claim(Want(agent="bob", lease_s=600, owner=room.gateway.process)).deliveries))
            case ["alive", name]:
                said = str(store.process_alive(name))
            case ["close"]:
                room.close()
        print(said, flush=True)


main(*sys.argv[1:])
