"""Spinning: latency tricks that use a core for a moment, to spare a waiter the time that the kernel takes to wake it.

- After an exchange (this thread rang somebody, and the last hint came within 0.4 ms) a waiter spins for the next hint for as
  long before it sleeps. Whoever waits longer sleeps as ever.
- A writer wakes a waiter early, before it writes the message: getting up takes about as long as writing does, so both are
  done at the same time. The waiter spins until the message is written, for half a millisecond at most; then it waits as ever,
  and is rung. Only one or two waiters for the same topic are woken early: of many only one will get the message.

None of it is done among the threads of one process, where a thread that spins is in the way of the thread it waits for.
It is all off where the environment says POSTROOM_SPIN=0, and on machines with one core. docs/design.md has the figures.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import Final

from postroom.core.clock import SYSTEM

from .page import EARLY_AT, Page, mark_of

#: The one setting: "0" turns spinning off.
VARIABLE: Final = "POSTROOM_SPIN"
#: A hint that comes within this time came soon; and so long a waiter spins for the next.
SOON_NS: Final = 400_000
#: A waiter that was woken early spins so long for the message.
_WRITTEN_NS: Final = 500_000
_EARLY_MOST: Final = 2

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
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return cores > 1 and os.environ.get(VARIABLE) != "0"


class _ThreadRings(threading.local):
    """What a thread did lately: the slots that it woke early and whose message it still writes; whether it rang any slot."""

    rang = False

    def __init__(self) -> None:
        self.woken: list[int] = []


class Spinning:
    """The tricks of one room's bells."""

    def __init__(self, page: Page) -> None:
        self.is_on = may_spin()
        self.page = page
        self.mine = _ThreadRings()

    def rings(self, slot: int) -> None:
        """This thread is about to ring a slot."""
        self.mine.rang = True
        if (self.page.identity, slot) in _bound_here:
            _rung_here.add((self.page.identity, slot))

    def wake_early(self, topic: str, flags: bytes, strike: Callable[[int], object]) -> None:
        """Wake the waiters for this, not of this process: this thread is about to write a message for them, and will ring."""
        slots = self.page.slots_for([mark_of(topic)], flags)
        if len(slots) > _EARLY_MOST or not _bound_here.isdisjoint((self.page.identity, slot) for slot in slots):
            return
        for slot in slots:
            self.page.memory[EARLY_AT + slot] = 1
            strike(slot)
        self.mine.woken += slots

    def is_written(self) -> None:
        """Tell the waiters that this thread woke early. Those that did not see it are armed again, and are rung."""
        woken, self.mine.woken = self.mine.woken, []
        for slot in woken:
            self.page.memory[EARLY_AT + slot] = 0


class Spinner:
    """The tricks of one slot's waiter."""

    def __init__(self, spinning: Spinning, slot: int) -> None:
        self._spinning = spinning
        self._page = spinning.page.memory
        self._slot = slot
        self._name = (spinning.page.identity, slot)
        self._early_at = EARLY_AT + slot
        self._since_ns = 0  # when it began to wait
        self._soon = False  # the last hint came soon
        _bound_here.add(self._name)

    def arm(self) -> None:
        """Another waiter begins to wait in this slot."""
        self._page[self._early_at] = 0  # a writer that woke the one before may have died

    def before_sleep(self) -> None:
        """Spin for the next hint, if an exchange goes on: until the flag is taken down, or for a moment."""
        self._since_ns = now_ns = SYSTEM.steady_ns()
        mine = self._spinning.mine
        if self._soon and mine.rang and self._name not in _rung_here:
            until_ns = now_ns + SOON_NS
            while self._page[self._slot] and SYSTEM.steady_ns() < until_ns:
                os.sched_yield()
        self._soon = mine.rang = False

    def hinted(self) -> bool:
        """A hint was taken: spin until the message is written. False when it was not: it may be yet, and is rung then."""
        now_ns = SYSTEM.steady_ns()
        self._soon = now_ns - self._since_ns < SOON_NS
        while self._page[self._early_at]:
            if SYSTEM.steady_ns() > now_ns + _WRITTEN_NS:
                self._page[self._early_at] = 0  # the writer may have died
                return False
            os.sched_yield()
        return True

    def free(self) -> None:
        """The slot is given back."""
        _bound_here.discard(self._name)
        _rung_here.discard(self._name)
