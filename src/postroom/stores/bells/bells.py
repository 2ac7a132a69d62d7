"""The bells of one room: ringing waiters by topic, and waiting to be rung; the package's docstring tells the parts."""

from __future__ import annotations

import errno
import socket
import threading
from collections.abc import Callable, Collection, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Final

from postroom.core.clock import Clock
from postroom.stores.contract import FEED, Switchboard, Waiter

from . import switchboards
from .page import ANY_TOPIC, FLAGS, NOBODY, SLOTS, TOPIC_BYTES, TOPICS, SharedPage, mark_of, nobody_follows
from .sockets import BellSockets, NoBells
from .spinning import Spinner, Spinning, may_spin

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
            switchboards.ring_switchboard(self.page, self.sockets, switchboard, seats, aloud=False)
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
            rung = (
                self._strike(place)
                if seat < 0
                else switchboards.ring_switchboard(self.page, self.sockets, place, [seat], aloud=True)
            )
            # Rung first, then looked whether it still waits; a waiter that leaves takes its topics away first, then
            # looks whether it was rung. So one of the two sees the other (tests/stores/test_bells.py:
            # test_who_leaves_at_the_moment_it_is_rung_takes_no_hint_with_it).
            if rung and self.page.waits_for(mark, place, seat):
                return

    def pass_on(self, topics: bytes) -> None:
        """A waiter leaves with a hint for one of these: another should look."""
        for at in range(0, len(topics), TOPIC_BYTES):
            self._ring_one(topics[at : at + TOPIC_BYTES])

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
        slot.arm(b"".join(marks) if len(marks) <= TOPICS else ANY_TOPIC, on_hint)
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
        if self.page.switchboards() is None:
            return None
        with suppress(NoBells):
            for place in range(SLOTS, FLAGS):
                bound = self.sockets.take(place)
                if bound is not None:
                    return switchboards.BellSwitchboard(
                        self.page, self.sockets, self.pass_on, place - SLOTS, bound, on_hint
                    )
        return None

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


class Slot(Waiter):
    """One place on the page, with the socket that owns it.

    The flag on the page is up while the waiter is armed; a ringer takes it down before it sends. So a flag that is down
    says that a hint is here or on its way, and no system call is needed to know that none is.
    """

    def __init__(self, bells: Bells, number: int, bound: socket.socket, clock: Clock) -> None:
        self._bells = bells
        self._page = bells.page.memory
        self._number = number
        self._socket = bound
        self._fileno = bound.fileno()
        self._clock = clock
        self._spinner = Spinner(bells.spinning, bells.page, number) if may_spin() else None
        self._topics = b""
        self._armed = 0  # the flag that was put up
        self._on_hint: Callable[[], None] | None = None
        self._open = False
        self._was_rung = False  # since it was armed
        self._left_hints = False  # the waiter before left while it was rung

    def arm(self, topics: bytes, on_hint: Callable[[], None] | None) -> None:
        """Begin to wait for these topics."""
        if self._left_hints:
            self._left_hints = False
            self._take_hints()
        self._was_rung = False
        self._on_hint = on_hint
        self._topics = topics
        self._armed = self._bells.page.arm(self._number, topics)
        self._open = True

    def _take_hints(self) -> bool:
        """Take all hints that are here; whether there were any."""
        taken = False
        with suppress(BlockingIOError):
            while self._socket.recv(16):
                taken = True
        return taken

    def wait(self, timeout_s: float | None) -> bool:
        if timeout_s != 0 and not self._clock.wait_readable((self._fileno,), timeout_s):
            return False
        try:
            # one: should two have rung at the same moment, the second is taken at the next wait, as a hint without news
            self._socket.recv(16)
        except BlockingIOError:
            return False
        if self._spinner is not None:
            self._spinner.hinted()
        self._was_rung = True
        self._page[self._number] = self._armed
        if self._on_hint is not None:
            self._on_hint()
        return True

    def fileno(self) -> int:
        if self._open:  # the caller is about to wait
            if self._spinner is not None:
                self._spinner.before_sleep()
            if not self._page[self._number]:
                # A hint is here, or a ringer died between taking the flag down and ringing.
                try:
                    self._socket.recv(1, socket.MSG_PEEK)
                except BlockingIOError:
                    self._was_rung = True  # or its ringer is slow
                    self._page[self._number] = self._armed
        return self._fileno

    def close(self) -> None:
        if not self._open or self._bells.sockets.inherited:  # a forked child leaves its parent's flags alone
            return
        self._open = False
        self._bells.page.disarm(self._number)  # before it looks whether it was rung: see Bells._ring_one
        self._left_hints = not self._page[self._number]
        self._page[self._number] = 0
        # Two may have rung at the same moment, each for a message of its own, and one hint was taken (there:
        # test_who_was_rung_by_two_at_once_and_leaves_with_one_message_passes_the_other_hint_on).
        if self._left_hints or (self._was_rung and self._take_hints()):
            # It leaves with a hint that it never looked after, and that may have been for one waiter only: pass it on
            # (tests/stores/test_bells.py: test_who_leaves_with_a_hint_passes_it_on).
            self._bells.pass_on(self._topics)
        if not self._bells.put_back(self):
            self.free()

    def switchboard(self) -> Switchboard | None:
        return self._bells.switchboard(self._on_hint)

    def free(self) -> None:
        """Let the socket, and with it the slot, go."""
        self._fileno = -1
        if self._spinner is not None:
            self._spinner.free()
        self._bells.sockets.give_back(self._number, self._socket)


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
