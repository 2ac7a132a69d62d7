"""What an operation costs as a SQLite room grows: curves over agents, messages, sessions and the size of an attached file.

    python bench/micro/growth.py [--of agents,messages,sessions,files] [--agents 10,100,...] [--messages 10,1000,...]
        [--sessions 1,10,...] [--megabytes 1,10,100] [--runs 20] [--rooms FOLDER] [--json]

Each curve is the processor time of one operation of the calling thread at each size, the median of all runs, and its ratio
to that at the smallest size. The rooms of all sizes are measured in turns, so that a busy machine disturbs all of them alike.
`status (command)` is the whole program with its start. With `--rooms`, rooms are kept there, and used again if they are
there already: filling one with a million messages takes a minute.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final

import postroom
from postroom.cli.top.picture import WINDOW_S, Lookout
from postroom.doors.web.hub import Hub
from postroom.room import Room
from postroom.sessions.report import list_sessions
from postroom.stores.contract import Want

#: More than any size here, so that nothing is forgotten.
KEPT: Final = "keep_count=100000000&keep_bytes=1000000000000"
AT_ONCE: Final = 1000
COMMANDS: Final = ("status", "peek", "mailboxes", "top --once")
COMMAND_RUNS: Final = 3
#: Lines of the page's first picture, so that the smallest room has as many.
LINES: Final = 10
Operation = Callable[[], object]
#: For each operation, microseconds by size.
Curves = dict[str, dict[int, float]]


def measured(rooms: dict[int, dict[str, Operation]], runs: int) -> Curves:
    """The median of each operation at each size, in turns."""
    took: dict[str, dict[int, list[float]]] = {}
    for run in range(runs + 2):
        for size, operations in rooms.items():
            for name, operation in operations.items():
                begin_ns = time.thread_time_ns()
                operation()
                us = (time.thread_time_ns() - begin_ns) / 1000
                if run > 1:  # the first ones warm up
                    took.setdefault(name, {}).setdefault(size, []).append(us)
    return {name: {size: statistics.median(each) for size, each in by_size.items()} for name, by_size in took.items()}


def commands(folders: dict[int, Path]) -> Curves:
    """The processor time of whole commands."""
    found: Curves = {}
    script = str(Path(sys.executable).with_name("postroom"))
    for name in COMMANDS:
        by_size: dict[int, list[float]] = {size: [] for size in folders}
        for run in range(COMMAND_RUNS + 1):
            for size, folder in folders.items():
                before = resource.getrusage(resource.RUSAGE_CHILDREN)
                words = [script, *name.split(), "--room", str(folder)]
                subprocess.run(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=True)
                after = resource.getrusage(resource.RUSAGE_CHILDREN)
                if run:
                    by_size[size].append((after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime) * 1e6)
        found[f"{name} (command)"] = {size: min(each) for size, each in by_size.items()}
    return found


def open_room(folder: Path) -> Room:
    return postroom.open(f"sqlite:{folder}?{KEPT}")


def settled(room: Room) -> Room:
    """A room after its housekeeping has come to everything, as one is that somebody has open for a while."""
    for _ in range(1000):
        began_ns = time.monotonic_ns()
        room.store.sweep()
        if time.monotonic_ns() - began_ns < 1_000_000_000:
            break
    return room


# Agents


def of_agents(place: Path, sizes: Sequence[int], runs: int) -> Curves:
    """Agents that are registered, one of which is used."""
    rooms: list[Room] = []
    operations: dict[int, dict[str, Operation]] = {}
    for size in sizes:
        room = open_room(place / f"agents-{size}")
        rooms.append(room)
        for number in range(size - len(room.agents())):
            room.agent(f"agent{number}", transient=True)
        operations[size] = {
            **mail_of(room, "agent0", "agent1"),
            "status": partial(status, room),
            "agents": room.agents,
        }
    found = measured(operations, runs)
    for room in rooms:
        room.close()
    return found


# Messages


def filled(folder: Path, size: int, *, finished: bool) -> Room:
    """A room with so many messages that wait for bob, or that he has acked."""
    room = open_room(folder)
    ada = room.agent("ada", transient=True)
    kept = sum(room.stats().states.values())
    for first in range(kept, size, AT_ONCE):
        batch = [{"to": "bob", "payload": {"n": n}} for n in range(first, min(size, first + AT_ONCE))]
        ada.send_many(batch)
        if finished:
            room.store.claim(Want(agent="bob", lease_s=30, limit=len(batch), settle=True))
    return settled(room)


def status(room: Room) -> None:
    """What `postroom status` asks."""
    room.stats(), room.agents(), room.waits(), room.limits(), room.schedules()


def of_messages(place: Path, sizes: Sequence[int], runs: int, *, finished: bool) -> Curves:
    """Messages that are kept. Those that are sent for the measurement are received, too."""
    kind = "finished" if finished else "pending"
    rooms = {size: filled(place / f"{kind}-{size}", size, finished=finished) for size in sizes}
    time.sleep(WINDOW_S + 1)  # `top` reads what happened just now
    loop = asyncio.new_event_loop()
    operations = {size: on_messages(room, loop) for size, room in rooms.items()}
    found = measured(operations, runs)
    for room in rooms.values():
        room.close()
    loop.close()
    found |= commands({size: place / f"{kind}-{size}" for size in sizes})
    return {f"{name}, {kind}": curve for name, curve in found.items()}


def on_messages(room: Room, loop: asyncio.AbstractEventLoop) -> dict[str, Operation]:
    id = room.peek(state=None, order="oldest", limit=1)[0].id

    async def hub_of_room() -> Hub:
        return Hub(room)

    hub = loop.run_until_complete(hub_of_room())

    def page() -> None:
        hub.reading.span()
        hub.reading.recent(LINES, {})
        hub.views.pulse()

    return {
        "peek": lambda: room.peek(limit=5),
        "receipt": lambda: room.receipt(id),
        "events": lambda: room.events(limit=5),
        "status": lambda: status(room),
        "the page's first picture": page,
        "top's first picture": lambda: Lookout(room).look(),
        **mail_of(room, "ada", "bob"),
    }


def mail_of(room: Room, sender: str, receiver: str) -> dict[str, Operation]:
    """A message that is sent, and one that is received."""
    ada, bob = room.agent(sender, transient=True), room.agent(receiver, transient=True)
    return {"send": lambda: ada.send(receiver, {"n": 1}), "receive + ack": lambda: bob.receive(timeout_s=0).ack()}


# Sessions


def open_session(room: Room) -> None:
    with room.session():
        pass


def of_sessions(place: Path, sizes: Sequence[int], runs: int) -> Curves:
    """Sessions that are kept: all of them but two have ended."""
    rooms: list[Room] = []
    operations: dict[int, dict[str, Operation]] = {}
    lists: dict[int, dict[str, Operation]] = {}
    for size in sizes:
        room = open_room(place / f"sessions-{size}")
        rooms.append(room)
        for _ in range(size - list_sessions(room.gateway)[1]):
            open_session(room)
        session = room.session().__enter__()
        box = session.mailbox["box"]
        operations[size] = {
            "send in a session": partial(box.send, 1),
            "a session, opened and ended": partial(open_session, room),
        }
        lists[size] = {
            "session list": partial(list_sessions, room.gateway, limit=50),
            "session list --all": partial(list_sessions, room.gateway),
        }
    # one after the other: long lists would empty the caches of the others
    found = measured(lists, min(runs, 10)) | measured(operations, runs)
    for room in rooms:
        room.close()
    return found


# Attached files


def of_files(place: Path, megabytes: Sequence[int], runs: int) -> Curves:
    """A file that is attached, per megabyte."""
    folder = place / "files"
    folder.mkdir(exist_ok=True)
    with open_room(place / "attached") as room:
        operations: dict[int, dict[str, Operation]] = {}
        for size in megabytes:
            path = folder / f"{size}"

            path.write_bytes(os.urandom(2**20) * size)
            operations[size] = {"attach a file, per MB": partial(attach, room, path)}
        found = measured(operations, min(runs, 3))
    return {name: {size: us / size for size, us in curve.items()} for name, curve in found.items()}


def attach(room: Room, path: Path) -> None:
    with open(path, "r+b") as file:
        file.write(os.urandom(16))  # another file: a known one is not kept twice
    room.attach(path)


def ratio(curve: dict[int, float]) -> float:
    """The largest size's cost in those of the smallest."""
    sizes = sorted(curve)
    return curve[sizes[-1]] / curve[sizes[0]]


def shown(curves: Curves) -> str:
    lines = []
    for name, curve in curves.items():
        points = "  ".join(f"{size:,}: {us:,.0f}" for size, us in sorted(curve.items()))
        lines.append(f"{name:<42} {ratio(curve):5.2f}   {points}")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    sizes: Any = lambda text: [int(size) for size in text.split(",")]  # noqa: E731
    parser.add_argument("--of", default="agents,messages,sessions,files")
    parser.add_argument("--agents", type=sizes, default=[10, 100, 1000, 10_000])
    parser.add_argument("--messages", type=sizes, default=[10, 1000, 100_000, 1_000_000])
    parser.add_argument("--sessions", type=sizes, default=[1, 10, 100, 1000])
    parser.add_argument("--megabytes", type=sizes, default=[1, 10, 100])
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--rooms", type=Path)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    curves: Curves = {}
    with tempfile.TemporaryDirectory() as own:
        place = args.rooms or Path(own)
        place.mkdir(parents=True, exist_ok=True)
        for kind in args.of.split(","):
            if kind == "agents":
                curves |= {f"{name}, agents": each for name, each in of_agents(place, args.agents, args.runs).items()}
            elif kind == "messages":
                for finished in (False, True):
                    curves |= of_messages(place, args.messages, args.runs, finished=finished)
            elif kind == "sessions":
                curves |= of_sessions(place, args.sessions, args.runs)
            elif kind == "files":
                curves |= of_files(place, args.megabytes, args.runs)
    if args.json:
        print(json.dumps({name: {"us": curve, "ratio": ratio(curve)} for name, curve in curves.items()}))
        return
    print(
        f"load {os.getloadavg()[0]:.1f}; microseconds of processor time; the ratio is that of the largest to the smallest"
    )
    print(shown(curves))


if __name__ == "__main__":
    main()
