"""A program that starts children with too few descriptors, and tells what became of it: a line of JSON for each attempt.

A process of its own, with one thread: elsewhere the garbage collector, or a thread that ends, may let go of a descriptor in
the middle, and there is one for what should have none.
"""

from __future__ import annotations

import gc
import json
import os
import resource
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from postroom.core.system.children import ForkServer
from postroom.core.system.framing import send_frame

TARGET = "sessions.test_processes:answer"


def open_numbers() -> list[int]:
    """The descriptors that are open, but for that of the listing itself."""
    return sorted(
        number for number in map(int, os.listdir("/proc/self/fd")) if os.path.exists(f"/proc/self/fd/{number}")
    )


@contextmanager
def descriptors_left(count: int) -> Iterator[None]:
    """For a while this process may open so many files more, and then gets EMFILE."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    taken = open_numbers()
    free = (number for number in range(soft) if number not in taken)
    limit = [next(free) for _ in range(count + 1)][-1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def attempt(what: str, left: int, act: Callable[[], object]) -> None:
    """Do this with so many descriptors left, and tell how it ended and what it left open."""
    before, error = open_numbers(), ""
    with descriptors_left(left):
        try:
            act()
        except OSError as refused:
            error = refused.strerror or ""
    stays = [number for number in open_numbers() if number not in before]
    print(json.dumps({"what": what, "left": left, "error": error, "stays open": stays}), flush=True)


def main() -> None:
    """A child takes a socket and three pipes, each of two ends; a server two descriptors for its socket, and a pipe."""
    gc.disable()
    for left in range(3):
        attempt("server", left, ForkServer)
    server = ForkServer([TARGET.partition(":")[0]])
    for left in range(8):
        attempt("child", left, lambda: server.start(TARGET))
        child = server.start(TARGET)  # nothing is the worse for it
        send_frame(child.control, b"abc")
        print(json.dumps({"what": "next", "left": left, "ended": child.wait()}), flush=True)
        child.close()
    server.close()


if __name__ == "__main__":
    main()
