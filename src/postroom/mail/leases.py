"""Lease heartbeats: a living process keeps the messages that it holds, however long its work takes.

One chore for each open room, for all messages that are held there: by `receive`, in blocks and loops, by `serve`, under
asyncio. Each room has its own because leases are kept in its store, run on its clock and end with it; a process mostly
has one. Nothing is started for work that is quick: the upkeep of the room looks every few seconds whether something is
held for longer (`look`), and the chore sleeps for ever when nothing is.

Holders are known weakly: a message whose object was dropped without a word is extended no more, and ends with its lease.
So does everything that a stopped or frozen process holds, because its heartbeats stop too.
"""

from __future__ import annotations

import math
import threading
import weakref
from collections.abc import Iterator
from functools import partial
from typing import Final, Protocol

from postroom.core import chore
from postroom.core.clock import Clock
from postroom.core.config import HEARTBEAT_S, SAFETY_LOOK_S
from postroom.errors import ROOM_IS_OVER, RoomError
from postroom.stores.contract import Store, Ticket

#: Of shorter leases a heartbeat would be due before the upkeep looks.
SHORT_LEASE_S: Final = 3 * HEARTBEAT_S
#: So many leases are extended in one step: nobody else waits long for the write lock.
MAX_TOGETHER: Final = 500
NEVER: Final = 1 << 63
_SECOND_NS: Final = 1_000_000_000
#: A heartbeat that a busy room refused is made again after this time, or a sixth of the lease.
RETRY_NS: Final = round(SAFETY_LOOK_S * _SECOND_NS)


class Terms:
    """The terms on which a receiver holds a message."""

    __slots__ = ("hold_ns", "late_raises", "lease_ns", "lease_s")

    def __init__(self, lease_s: float, hold_ns: int = 0, *, late_raises: bool = False) -> None:
        self.lease_s = lease_s
        self.lease_ns = round(lease_s * _SECOND_NS)
        #: Heartbeats extend the lease for so long after the receiver got the message; 0: a fixed lease.
        self.hold_ns = hold_ns
        #: Whether an ack that came too late is raised; else it is a warning.
        self.late_raises = late_raises


def hold_ns(max_hold_s: float | None) -> int:
    """That setting in nanoseconds; None is for ever."""
    return NEVER if max_hold_s is None else round(max_hold_s * _SECOND_NS)


class Holder(Protocol):
    """What a held message belongs to: the message in its receiver's hands, or the loop that has not come to it yet."""

    terms: Terms
    #: When the message was claimed, by the steady clock.
    claimed_ns: int
    #: When the receiver got it, or the loop last came round.
    since_ns: int


class _Lease:
    """A lease that is to be kept up, until that moment and no longer. `leased_ns`: when it was last given or extended."""

    __slots__ = ("lease_ns", "leased_ns", "ticket", "until_ns")

    def __init__(self, ticket: Ticket, lease_ns: int, leased_ns: int, until_ns: int) -> None:
        self.ticket = ticket
        self.lease_ns = lease_ns
        self.leased_ns = leased_ns
        self.until_ns = until_ns

    def is_due(self, now_ns: int) -> bool:
        """Whether a sixth of it is over: a heartbeat for one that is due takes along those that will be soon."""
        return now_ns - self.leased_ns >= self.lease_ns // 6


class LeaseHeartbeat:
    """Extends the leases of the messages that this process holds in one room, every third of a lease."""

    def __init__(self, store: Store, clock: Clock) -> None:
        self._store = store
        self._clock = clock
        #: What this process has claimed and not settled, each with its holder; None: its lease is not kept up.
        #: Receivers write here themselves, for every message: most are settled before anything else is to be done.
        self.held: dict[Ticket, weakref.ref[Holder] | None] = {}
        self._beats_ns: dict[Ticket, int] = {}  # when each of these was last extended
        #: Of shorter leases the chore is told at once; of all, where no upkeep looks (`look`).
        self.short_s = math.inf
        self._next_ns = NEVER  # when the chore looks by itself
        self._lock = threading.RLock()  # a signal's handler may come in the middle of what it guards
        self._chore: chore.Chore | None = None

    def in_time(self, lease_s: float) -> None:
        """A message is held with so short a lease: let the chore look in time."""
        if self._clock.steady_ns() + lease_s * _SECOND_NS / 3 < self._next_ns:
            self._nudge()

    def _nudge(self) -> None:
        """Let the chore look now. It is made here: a command that makes one step has no need of it."""
        with self._lock:
            if self._chore is None:
                self._chore = chore.Chore("postroom leases", partial(_round, weakref.ref(self)), self._clock)
        self._chore.nudge()

    def is_held(self, ticket: Ticket) -> bool:
        """Whether an object that somebody has keeps it."""
        holder = self.held.get(ticket)
        return holder is not None and holder() is not None

    def leased_ns(self, ticket: Ticket, claimed_ns: int) -> int:
        """When a lease was last given or extended."""
        return self._beats_ns.get(ticket, claimed_ns)

    def look(self) -> None:
        """Let the chore begin where a message has been held for a while, and it would not come in time. Never waits."""
        now_ns, next_ns = self._clock.steady_ns(), self._next_ns
        if self.held and any(
            kept.is_due(now_ns) and not now_ns <= next_ns <= kept.leased_ns + kept.lease_ns // 3
            for kept in self._all_kept(now_ns)
        ):
            self._nudge()

    def round(self) -> float | None:
        """Extend what has gone for a while without; in how many seconds the next is due, None when nothing is held."""
        self._next_ns = NEVER  # what is held from here on tells the chore itself
        now_ns = self._clock.steady_ns()
        next_ns, due = NEVER, dict[int, list[_Lease]]()
        beats_ns = {}
        for kept in self._all_kept(now_ns):
            beats_ns[kept.ticket] = kept.leased_ns
            if kept.is_due(now_ns):
                due.setdefault(min(kept.lease_ns, kept.until_ns - now_ns), []).append(kept)
            next_ns = min(next_ns, (now_ns if kept.is_due(now_ns) else kept.leased_ns) + kept.lease_ns // 3)
        self._beats_ns = beats_ns
        for span_ns, leases in due.items():
            for first in range(0, len(leases), MAX_TOGETHER):
                if not self._extend(leases[first : first + MAX_TOGETHER], span_ns, now_ns):  # busy: soon again
                    next_ns = min(next_ns, now_ns + min(RETRY_NS, span_ns // 6))
        self._next_ns = next_ns
        return None if next_ns == NEVER else max(0.0, (next_ns - self._clock.steady_ns()) / _SECOND_NS)

    def _all_kept(self, now_ns: int) -> Iterator[_Lease]:
        """The leases whose holders are there, and have not had them for too long."""
        for ticket, known in self.held.copy().items():
            holder = None if known is None else known()
            if holder is None:  # such a claim is fixed, or its object was dropped
                continue
            terms, since_ns = holder.terms, holder.since_ns
            leased_ns = self.leased_ns(ticket, holder.claimed_ns)
            until_ns = since_ns + terms.hold_ns
            if now_ns < until_ns and leased_ns + terms.lease_ns < until_ns:
                yield _Lease(ticket, terms.lease_ns, leased_ns, until_ns)

    def _extend(self, leases: list[_Lease], span_ns: int, now_ns: int) -> bool:
        try:
            lost = set(self._store.heartbeat([kept.ticket for kept in leases], span_ns / _SECOND_NS))
        except ROOM_IS_OVER:
            raise
        except RoomError:
            return False
        for kept in leases:
            if kept.ticket in lost:
                # a loop would take it for its own, and work on what another receiver has (tests/mail/test_leases.py:
                # test_a_loop_skips_what_a_heartbeat_found_with_another)
                self._beats_ns.pop(kept.ticket, None)
                self.held.pop(kept.ticket, None)
            else:
                self._beats_ns[kept.ticket] = now_ns + span_ns - kept.lease_ns
        return True

    def close(self) -> None:
        """Extend nothing any more. The thread is over when it returns."""
        if self._chore is not None:
            self._chore.close()

    def __del__(self) -> None:
        try:
            if self._chore is not None:
                self._chore.close(0)
        except (AttributeError, TypeError):  # it was interrupted while it was made; or Python ends
            pass


def _round(known: weakref.ref[LeaseHeartbeat]) -> float | None:
    """What the thread does: it knows the room only while it makes a round."""
    heartbeat = known()
    return None if heartbeat is None else heartbeat.round()
