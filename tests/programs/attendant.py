"""A process that has a room open, and does what it is told on its input: one word a line, answered by a line."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import postroom
from postroom.store import Want


def main(url: str) -> None:
    room = postroom.open(url)
    store = room.store
    print(room.desk.process, flush=True)
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
            case ["claim"]:
                said = str(len(store.claim(Want(agent="bob", lease_s=600, owner=room.desk.process)).deliveries))
            case ["alive", name]:
                said = str(store.process_alive(name))
            case ["close"]:
                room.close()
        print(said, flush=True)


main(sys.argv[1])
