"""The workers that `abort_latency.py` measures: in a module of their own, which costs a worker's process little to load."""

from __future__ import annotations

import os
import struct
import time

import postroom
from postroom.sessions.session import Session

WAITERS = 7
#: The receivers have been waiting for this long when the eighth raises.
SETTLED_S = 0.3
STAMP = struct.Struct("q")


@postroom.worker
def waiter(session: Session, path: str) -> None:
    """Waits for mail that never comes, and notes when it was told so."""
    fd = os.open(path, os.O_WRONLY | os.O_APPEND)
    session.mailbox.ready.send(1)
    try:
        session.mailbox.never.receive()
    except postroom.SessionFailed:
        os.write(fd, STAMP.pack(time.monotonic_ns()))
        raise


@postroom.worker
def raiser(session: Session, path: str) -> None:
    """Lets all others come to rest, then raises."""
    for _ in range(WAITERS):
        session.mailbox.ready.receive(30_000)
    time.sleep(SETTLED_S)
    fd = os.open(path, os.O_WRONLY | os.O_TRUNC)
    os.write(fd, STAMP.pack(time.monotonic_ns()))
    raise ValueError("on purpose")


@postroom.worker
def nothing(_session: Session) -> int:
    """The least a worker can do."""
    return 1
