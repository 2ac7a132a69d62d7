"""SIGTERM as a goodbye: a program that serves is told to stop, and ends in order instead of being killed.

The handler only tells listeners, which set a latch: it may come between any two steps of the main thread, where nothing
may be taken, written or locked (tests/faults/test_goodbyes.py). The loops that wait see the latch. A second SIGTERM ends
the process at once.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Final, NoReturn

#: Exit status of a process that SIGTERM ended, as shells count it.
TERMINATED: Final = 128 + signal.SIGTERM

_listeners: list[Callable[[], object]] = []
_pid = 0  # the process that installed the handler: a fork inherits it
_said = False  # SIGTERM came while somebody listened


@contextmanager
def heard(tell: Callable[[], object]) -> Iterator[bool]:
    """While the block lasts, SIGTERM calls `tell` instead of ending the process. Gives whether it does.

    `tell` runs inside the signal's handler: it sets a latch, and must not raise. Only in the main thread, and only while
    SIGTERM has its default action: a handler that the program installed is never replaced. A listener that comes after
    the goodbye, inside the block of another, is told at once.
    """
    global _pid, _said
    if threading.current_thread() is not threading.main_thread():
        yield False
        return
    if _pid != os.getpid():
        _listeners.clear()  # those of the process before a fork
    if not _listeners and signal.getsignal(signal.SIGTERM) not in (signal.SIG_DFL, _on_signal, _end_at_once):
        yield False
        return
    try:
        _listeners.append(tell)
        if len(_listeners) == 1:
            _pid, _said = os.getpid(), False
            signal.signal(signal.SIGTERM, _on_signal)
        elif _said:
            tell()
        yield True
    finally:
        with suppress(ValueError):
            _listeners.remove(tell)
        if not _listeners and signal.getsignal(signal.SIGTERM) in (_on_signal, _end_at_once):
            signal.signal(signal.SIGTERM, signal.SIG_DFL)


def is_said() -> bool:
    """Whether SIGTERM came, and a listener is still about to leave."""
    return _said and bool(_listeners)


def next_one_ends() -> None:
    """The next SIGTERM ends the process, whatever it is doing.

    The first process of a container would not even notice the default action: the kernel keeps it from its init.
    """
    signal.signal(signal.SIGTERM, _end_at_once if os.getpid() == 1 else signal.SIG_DFL)


def _on_signal(_number: int, _frame: object) -> None:
    next_one_ends()
    if not _listeners or os.getpid() != _pid:  # the last listener just left, or this is a fork that never listened
        os.kill(os.getpid(), signal.SIGTERM)
        return
    global _said  # noqa: PLW0603
    _said = True
    for tell in tuple(_listeners):
        tell()


def _end_at_once(_number: int, _frame: object) -> NoReturn:
    os._exit(TERMINATED)
