"""Memoization that holds among threads: one value for each key in a process.

`functools.cache` calls the function twice when two threads come first together, and each goes on with its own value.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class OncePerKey(Generic[T]):
    """A function whose value for each key is made once, under a lock; a value that is there is found without it."""

    def __init__(self, make: Callable[[str], T]) -> None:
        self._make = make
        self._made: dict[str, T] = {}
        self._renew_lock()
        os.register_at_fork(after_in_child=self._renew_lock)  # another thread of the parent may have held it

    def __call__(self, key: str) -> T:
        if key not in self._made:
            with self._lock:
                if key not in self._made:
                    self._made[key] = self._make(key)
        return self._made[key]

    def forget(self) -> None:
        self._made.clear()

    def _renew_lock(self) -> None:
        self._lock = threading.RLock()  # a signal's handler may come in the middle
