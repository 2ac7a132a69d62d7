"""The bells of one room: ringing waiters by topic, and waiting to be rung; the package's docstring tells the parts."""

from __future__ import annotations

import errno
import socket
import threading
from collections.abc import Callable, Collection, Iterable
from pathlib import Path
from typing import Final

from postroom.core.clock import Clock
from postroom.stores.contract import FEED, Switchboard, Waiter

from .page import ANY_TOPIC, FLAGS, NOBODY, SLOT_BYTES, SLOTS, TOPIC_BYTES, TOPICS, SharedPage, mark_of, nobody_follows
from .slots import Slot
from .sockets import BellSockets, NoBells
from .spinning import Spinning
from .switchboards import open_switchboard, ring_switchboard

_FEED_ALONE: Final = frozenset({FEED})
_IDLE_KEPT: Final = 16
#: How waiters are woken, as figures and the doctor say it.
WAY: Final = "datagrams through the room's folder"
WATCHING: Final = "watching"
_TRIAL: Final = "trial"


class Bells:
    """The bells of one room. `group`: the folder's group takes part too."""

    def __init__(self, folder: Path, clock: Clock, *, group: bool = False) -> None:
        if not hasattr(socket, "AF_UNIX"):
            raise NoBells("no Unix sockets")
        self._clock = clock
        self._lock = threading.RLock()  # a signal handler may come in the middle of what it guards
        self._idle: list[Slot] = []
        self._closed = False
        self._way = ""  # how waiters are woken, once that was tried
        try:
            self.page = SharedPage(folder / "bells", 0o660 if group else 0o600)
            self.sockets = BellSockets(folder / "bells", group=group)
        except OSError as error:
            raise NoBells(str(error)) from error
        self.spinning = Spinning(self.page)

    # Ringing

    def ring(self, everyone: Collection[str], one_each: Iterable[str] = ()) -> None:
        """Hint to all waiters for a topic of `everyone`, and to one of the waiters for each of `one_each`."""
        flags = self.page.memory[:FLAGS]
        if flags == NOBODY:
            return
        if everyone == _FEED_ALONE and not one_each and nobody_follows(flags):  # a claim or an ack, mostly
            return
        marks = [mark_of(topic) for topic in everyone]
        for switchboard, seats in self.page.seats_for(marks, flags):
            ring_switchboard(self.page, self.sockets, switchboard, seats, aloud=False)
        marks.append(ANY_TOPIC)
        for slot in self.page.slots_for(marks, flags):
            self._strike(slot)
        for topic in one_each:
            self._ring_one(mark_of(topic))

    def _ring_one(self, mark: bytes) -> None:
        flags = self.page.memory[:FLAGS]
        places: list[tuple[int, int]] = [(slot, -1) for slot in self.page.slots_for([mark], flags)]
        places += [(board, seat) for board, seats in self.page.seats_for([mark], flags) for seat in seats]
        # begin elsewhere each time, so that the work goes round; pass over waiters that died
        start = int(self._clock.random() * len(places))
        for place, seat in places[start:] + places[:start]:
            if (
                self._strike(place)
                if seat < 0
                else ring_switchboard(self.page, self.sockets, place, [seat], aloud=True)
            ):
                return

    def pass_on(self, topics: bytes) -> None:
        """A waiter leaves with a hint for one of these: another should look."""
        for at in range(0, len(topics), TOPIC_BYTES):
            mark = topics[at : at + TOPIC_BYTES]
            if mark.strip(b"\0"):
                self._ring_one(mark)

    def _strike(self, slot: int) -> bool:
        """Wake the waiter of a slot. False when nobody is there any more."""
        self.spinning.rings(slot)
        self.page.memory[slot] = 0
        return self.sockets.ring(slot)

    # Waiting

    def listen(self, topics: Iterable[str], on_hint: Callable[[], None] | None = None) -> Waiter:
        """A waiter for these topics, armed; `on_hint` is called in its thread when a hint came, before it looks.

        Raises NoBells when all slots are taken.
        """
        marks = [mark_of(topic) for topic in topics]
        with self._lock:
            slot = self._idle.pop() if self._idle else None
        if slot is None:
            slot = self._take_slot()
        text = b"".join(marks) if len(marks) <= TOPICS else ANY_TOPIC
        slot.arm(text.ljust(SLOT_BYTES, b"\0"), on_hint)
        return slot

    def _take_slot(self) -> Slot:
        # The first that is free: so the names that killed processes left are soon used again.
        for number in range(SLOTS):
            bound = self.sockets.take(number)
            if bound is not None:
                return Slot(self, number, bound, self._clock)
        raise NoBells(f"all {SLOTS} places to wait in this room are taken")

    def switchboard(self, on_hint: Callable[[], None] | None) -> Switchboard | None:
        """A switchboard for many waiters of one loop, or None when all are taken."""
        return open_switchboard(self.page, self.sockets, self.pass_on, on_hint)

    def way(self) -> str:
        """How waiters are woken here, after having tried it once: by datagrams, or by watching, and why."""
        if not self._way:
            try:
                with self.listen([_TRIAL]) as waiter:
                    self.ring([_TRIAL])
                    self._way = WAY if waiter.wait(0) else f"{WATCHING} (a datagram did not arrive)"
            except (NoBells, OSError) as why:
                return f"{WATCHING} ({why})"  # it may be otherwise the next time
        return self._way

    def put_back(self, slot: Slot) -> bool:
        """Keep a slot for the next waiter. False when there are enough."""
        with self._lock:
            if self._closed or len(self._idle) >= _IDLE_KEPT:
                return False
            self._idle.append(slot)
            return True

    def close(self) -> None:
        """Give the slots back. Waiters that are still open end by themselves."""
        if self.sockets.inherited:
            return
        with self._lock:
            self._closed = True
            idle, self._idle = self._idle, []
        for slot in idle:
            slot.free()
        self.sockets.close()


class Watcher(Waiter):
    """Polling, where there are no bells: looks at something that changes with every write, a hundred times a second."""

    interval_s: Final = 0.01

    def __init__(self, version: Callable[[], object], clock: Clock) -> None:
        self._version = version
        self._clock = clock
        self._seen = version()

    def wait(self, timeout_s: float | None) -> bool:
        started_ns = self._clock.steady_ns()
        while True:
            now = self._version()
            if now != self._seen:
                self._seen = now
                return True
            if timeout_s is not None and self._clock.steady_ns() - started_ns >= timeout_s * 1e9:
                return False
            self._clock.sleep(self.interval_s)

    def fileno(self) -> int:
        raise OSError(errno.ENOTSUP, "this room watches for changes and has no descriptor to wait on")

    def close(self) -> None:
        pass
