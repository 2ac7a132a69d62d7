"""A program whose threads use a room while it forks.

    python -m faults.programs.forking URL FORKS WAY JOURNAL

WAY is what children do: leave (os._exit), end (the interpreter's own end), use (try the room, which is refused), or multiprocessing.
Ids that sends returned are written to the journal, one line each; at the end, how many children did not end as they should.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import warnings
from multiprocessing import get_context

import postroom
from postroom.core.clock import SYSTEM

#: A child that has done nothing else for so long hangs.
PATIENCE_S = 20
THREADS = 4


def work(room: postroom.Room, journal: int, stop: threading.Event, number: int) -> None:
    agent = room.agent(f"a{number}")
    while not stop.is_set():
        os.write(journal, f"S {agent.send(agent.name, {'pad': 'x' * 300})}\n".encode())
        message = agent.poll()
        if message is not None:
            message.ack()


def come_and_go(room: postroom.Room, journal: int, stop: threading.Event) -> None:
    """Threads that end leave nothing open."""
    while not stop.is_set():
        thread = threading.Thread(target=lambda: os.write(journal, f"S {room.agent('b').send('b', {})}\n".encode()))
        thread.start()
        thread.join()


def use(room: postroom.Room) -> None:
    """What a child may try. It gets an error that says what to do, and harms nobody."""
    try:
        room.agent("a0").send("a0", {})
    except postroom.RoomClosed:
        pass
    else:
        os._exit(3)
    try:
        postroom.open(str(room.url))
    except postroom.RoomError:
        room.close()
        os._exit(0)
    os._exit(4)


def fork(room: postroom.Room, way: str) -> int:
    child = os.fork()
    if child == 0:
        if way == "use":
            use(room)
        elif way == "end":
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            sys.exit(0)
        os._exit(0)
    return child


def ended_well(child: int) -> bool:
    until_ns = SYSTEM.steady_ns() + PATIENCE_S * 1_000_000_000
    while True:
        pid, status = os.waitpid(child, os.WNOHANG)
        if pid:
            return status == 0
        if SYSTEM.steady_ns() > until_ns:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            return False
        SYSTEM.sleep(0.0005)


def main(url: str, forks: int, way: str, path: str) -> None:
    warnings.simplefilter("ignore", DeprecationWarning)  # newer Pythons advise against forking beside threads
    journal = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    room = postroom.open(url)
    stop = threading.Event()
    threads = [threading.Thread(target=work, args=(room, journal, stop, n), daemon=True) for n in range(THREADS)]
    threads.append(threading.Thread(target=come_and_go, args=(room, journal, stop), daemon=True))
    for thread in threads:
        thread.start()
    bad = 0
    for _ in range(forks):
        if way == "multiprocessing":
            process = get_context("fork").Process(target=os.getpid)
            process.start()
            process.join(PATIENCE_S)
            bad += process.exitcode != 0
            process.kill()
        else:
            bad += not ended_well(fork(room, way))
    stop.set()
    for thread in threads:
        thread.join()
    os.write(journal, f"D {bad} {len(os.listdir('/proc/self/fd')) if os.path.isdir('/proc/self/fd') else 0}\n".encode())
    room.close()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), *sys.argv[3:])
