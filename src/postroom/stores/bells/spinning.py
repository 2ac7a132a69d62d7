"""Spinning: a latency trick that uses a core for a moment, to spare a waiter the time that the kernel takes to wake it.

In an exchange (the waiter's thread has just rung another process, and its last hint came within 0.4 ms) the waiter
looks at its flag on the page for as long before it sleeps. A waiter for which nothing comes sleeps as ever. It is not
done among the threads of one process, where a thread that spins is in the way of the thread it waits for.

It is off where the environment says POSTROOM_SPIN=0, and on machines with one core. docs/design/waking.md has the
figures.
"""

from __future__ import annotations

import os
import threading
from typing import Final

from postroom.core.clock import SYSTEM
from postroom.core.system.process import core_count

from .page import SharedPage

#: The one setting: "0" turns spinning off.
VARIABLE: Final = "POSTROOM_SPIN"
#: A hint that comes within this time came soon; and so long a waiter spins for the next.
SOON_NS: Final = 400_000

#: The slots that this process has, by the identity of the page, in whichever of its rooms.
_bound_here: set[tuple[str, int]] = set()
#: Those of them that were rung by this process itself.
_rung_here: set[tuple[str, int]] = set()


def _forked() -> None:
    """A forked child has none of its parent's slots."""
    _bound_here.clear()
    _rung_here.clear()


os.register_at_fork(after_in_child=_forked)


def may_spin() -> bool:
    """Whether spinning is on: it needs a second core, and nobody has turned it off."""
    return core_count() > 1 and os.environ.get(VARIABLE) != "0"


class Spinning(threading.local):
    """The exchanges of a thread: whether it has rung a slot since it last waited."""

    rang = False

    def __init__(self, page: SharedPage) -> None:
        self._page = page

    def rings(self, slot: int) -> None:
        """This thread is about to ring a slot."""
        self.rang = True
        if (self._page.identity, slot) in _bound_here:
            _rung_here.add((self._page.identity, slot))


class Spinner:
    """The spinning of one slot's waiter."""

    def __init__(self, spinning: Spinning, page: SharedPage, slot: int) -> None:
        self._spinning = spinning
        self._flags = page.memory
        self._slot = slot
        self._name = (page.identity, slot)
        self._since_ns = 0  # when it began to wait
        self._soon = False  # the last hint came soon
        _bound_here.add(self._name)

    def before_sleep(self) -> None:
        """Spin for the next hint, if an exchange goes on: until the flag is taken down, or for a moment."""
        self._since_ns = now_ns = SYSTEM.steady_ns()
        spinning = self._spinning
        if self._soon and spinning.rang and self._name not in _rung_here:
            until_ns = now_ns + SOON_NS
            while self._flags[self._slot] and SYSTEM.steady_ns() < until_ns:
                os.sched_yield()
        self._soon = spinning.rang = False

    def hinted(self) -> None:
        """A hint was taken."""
        self._soon = SYSTEM.steady_ns() - self._since_ns < SOON_NS

    def free(self) -> None:
        """The slot is given back."""
        _bound_here.discard(self._name)
        _rung_here.discard(self._name)
