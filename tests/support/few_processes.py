"""Imported in a fork server: the system refuses it every process while a file is there, as at a limit of processes."""

from __future__ import annotations

import errno
import os

VARIABLE = "TEST_NO_MORE_PROCESSES"

_fork = os.fork


def fork() -> int:
    if os.path.exists(os.environ.get(VARIABLE, "")):
        raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))
    return _fork()


if VARIABLE in os.environ:
    os.fork = fork
