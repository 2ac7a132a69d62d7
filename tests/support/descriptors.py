"""Which descriptors this process has open, by what they are open on.

A count says nothing: earlier tests leave closed rooms to the garbage collector, which lets go of their descriptors at any
moment. What was opened since a moment, and is still open, is the doing of the test alone.
"""

from __future__ import annotations

import gc
import os
from collections import Counter
from contextlib import suppress

import pytest

needs_proc = pytest.mark.skipif(
    not os.path.isdir("/proc/self/fd"), reason="only /proc tells what descriptors are open on"
)


def open_now(*, collected: bool = True) -> Counter[str]:
    """What the descriptors of this process are open on, and how often: paths, and pipes and sockets by their numbers.

    `collected` False: with what is still to be collected. Empty where the system does not tell.
    """
    if collected:
        gc.collect()
    found: Counter[str] = Counter()
    for number in os.listdir("/proc/self/fd") if os.path.isdir("/proc/self/fd") else ():
        with suppress(FileNotFoundError):  # that of the listing itself, or one that another thread closes
            found[os.readlink(f"/proc/self/fd/{number}")] += 1
    return found


def opened_since(before: Counter[str]) -> list[str]:
    """What is open now and was not then. What was closed since does not matter."""
    if not open_now(collected=False) - before:
        return []
    return sorted((open_now() - before).elements())
