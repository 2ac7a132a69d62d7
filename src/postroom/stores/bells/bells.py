"""Waking those who wait, across threads and processes, without polling.

A page of memory shared by all processes of a room says who waits for what; a ringer that finds nobody there pays one
look at it (a tenth of a microsecond). A waiter owns a slot of that page, and with it the datagram socket of the slot's
name in the room's folder; the kernel frees the slot when its process dies (`stores/bells/sockets.py`).

A switchboard is a slot with room for many waiters of one process, each with a byte of its own that whoever rings it sets: a
thousand who wait in one loop keep one socket, and the loop sees on the page whom the ring was for.

A ring is a hint. The waiter looks again, and looks by itself once a second in case a hint was lost.
"""

from __future__ import annotations

import errno
import mmap
import os
import select
import socket
import threading
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import Final

try:
    from _blake2 import blake2b  # the same function; hashlib loads OpenSSL besides, which is 3 ms of every command
except ImportError:  # another Python than CPython
    from hashlib import blake2b

from postroom.core.clock import SYSTEM, Clock
from postroom.core.system.files import map_part, open_shared
from postroom.stores.contract import FEED, SOON_NS, Switchboard, Waiter

from .sockets import BellSockets, NoBells

#: The page: a flag per slot, a state per switchboard, the topics of each slot, a byte per slot that is set while what it was called
#: for is being written. Behind it, once somebody needs one, each switchboard: how
#: many of its seats may be taken (two bytes of eight; the third counts rings), a byte per seat that is set when it is rung, a topic per seat.
SLOTS: Final = 512
TOPICS: Final = 8
SWITCHBOARDS: Final = 32
SEATS: Final = 512
_TOPIC_BYTES: Final = 8
_SLOT_BYTES: Final = TOPICS * _TOPIC_BYTES
_FLAGS: Final = SLOTS + SWITCHBOARDS
_CALLED_AT: Final = _FLAGS + SLOTS * _SLOT_BYTES
_PAGE_BYTES: Final = _CALLED_AT + SLOTS
_BOARD_BYTES: Final = 8 + SEATS + SEATS * _TOPIC_BYTES
_BOARDS_AT: Final = -(-_PAGE_BYTES // mmap.ALLOCATIONGRANULARITY) * mmap.ALLOCATIONGRANULARITY
_BOARDS_BYTES: Final = SWITCHBOARDS * _BOARD_BYTES
#: A flag that is up: somebody waits there. The second kind also wants to hear of changes that nobody is called for: of every claim
#: and every ack, which is why those who only receive are told apart.
_ARMED: Final = 1
_ARMED_FOR_FEED: Final = 2
_AS_ARMED: Final = bytes([0, _ARMED, _ARMED, *range(3, 256)])
_NOBODY: Final = bytes(_FLAGS)
_NO_BOARDS: Final = bytes(SWITCHBOARDS)
#: States of a switchboard: nobody there; asleep, to be woken; awake, it will look at its seats before it sleeps. One that is awake
#: when it is rung for the 200th time is woken all the same, to see whether it still lives.
_AWAY: Final = 0
_ASLEEP: Final = 1
_AWAKE: Final = 2
_DOUBTFUL: Final = 200
#: Stands for every topic, for waiters that have more than a slot can hold.
_ANY: Final = b"\xff" * _TOPIC_BYTES
_FEED_ALONE: Final = frozenset({FEED})
_IDLE_KEPT: Final = 16
#: More who wait than this are not gone through one by one: the page is searched for the topics.
_CROWD: Final = 16
#: More than this are not called before there is something: only one of them will get it.
_CALLED_MOST: Final = 2
#: How waiters are woken, as figures and the doctor say it.
WAY: Final = "datagrams through the room's folder"
WATCHING: Final = "watching"
_TRIAL: Final = "trial"
#: Who was called watches so long for what is being written; then it waits as ever, to be rung.
_WATCH_NS: Final = 500_000


@lru_cache(maxsize=4096)
def _mark(topic: str) -> bytes:
    return blake2b(topic.encode(), digest_size=_TOPIC_BYTES).digest()


#: The slots that this process has, by the file of the page, in whichever of its rooms.
_bound_here: set[tuple[str, int]] = set()
#: Those of them that were rung by this process itself. They do not watch for hints: who is to ring needs the interpreter.
_rung_here: set[tuple[str, int]] = set()


def _forked() -> None:
    """A forked child has none of its parent's slots."""
    _bound_here.clear()
    _rung_here.clear()


os.register_at_fork(after_in_child=_forked)


class _ThreadCalls(threading.local):
    """What a thread is about to do: the slots that it called."""

    def __init__(self) -> None:
        self.called: list[int] = []


class Bells:
    """The bells of one room. `group`: the folder's group takes part too."""

    def __init__(self, folder: Path, clock: Clock, *, group: bool = False) -> None:
        if not hasattr(socket, "AF_UNIX"):
            raise NoBells("no Unix sockets")
        self._clock = clock
        self._lock = threading.RLock()  # a signal's handler may come in the middle of what it guards
        self._idle: list[_Slot] = []
        self._closed = False
        self._path = folder / "bells"
        self._switchboards: mmap.mmap | None = None  # mapped when there is one
        self._way = ""  # how waiters are woken, once that was tried
        try:
            #: What the page is, whatever it is called.
            self.identity = self._map_page(self._path, 0o660 if group else 0o600)
            self.sockets = BellSockets(self._path, group=group)
        except OSError as error:
            raise NoBells(str(error)) from error
        self._send = self.sockets.ring
        self._mine = _ThreadCalls()

    def _map_page(self, path: Path, mode: int) -> str:
        descriptor = open_shared(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, mode)
        try:
            self._page = map_part(descriptor, 0, _PAGE_BYTES)
            return _identity(descriptor)
        finally:
            os.close(descriptor)

    def _map_switchboards(self) -> mmap.mmap | None:
        """The switchboards of the room; None where they cannot be had: the disk is full, or the file was replaced."""
        if self._switchboards is None:
            try:
                descriptor = os.open(self._path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
                try:
                    if _identity(descriptor) == self.identity:
                        self._switchboards = map_part(descriptor, _BOARDS_AT, _BOARDS_BYTES)
                finally:
                    os.close(descriptor)
            except OSError:
                return None
        return self._switchboards

    # Ringing

    def wake_early(self, topic: str) -> None:
        """Let who waits for this get up: this thread is about to write something for it. Then `ring`.

        Getting up takes about as long as writing does, so both are done at the same time. Who was called and sees nothing
        come (the writing failed, or takes long) waits on, and is rung as ever. Nobody of this process is called: its threads
        would only be in each other's way.
        """
        flags = self._page[:SLOTS]
        if _ARMED not in flags and _ARMED_FOR_FEED not in flags:
            return
        slots = self._who_waits_for([_mark(topic)], flags)
        if len(slots) > _CALLED_MOST or not _bound_here.isdisjoint((self.identity, slot) for slot in slots):
            return
        for slot in slots:
            self._page[_CALLED_AT + slot] = 1
            self._strike(slot)
        self._mine.called += slots

    def _has_come(self) -> None:
        """Tell those whom this thread called that it is written. Who did not see it come has its flag up again: it is rung."""
        called, self._mine.called = self._mine.called, []
        for slot in called:
            self._page[_CALLED_AT + slot] = 0

    def ring(self, everyone: Collection[str], one_each: Iterable[str] = ()) -> None:
        """Hint to all who wait for a topic of `everyone`, and to one of those who wait for each of `one_each`."""
        flags = self._page[:_FLAGS]
        if self._mine.called:
            self._has_come()  # after the flags are read: who was called raises its own again when it sees this, and need not be rung
        if flags == _NOBODY:
            return
        if everyone == _FEED_ALONE and not one_each and _nobody_follows(flags):  # a claim or an ack, mostly
            return
        marks = [_mark(topic) for topic in everyone]
        for switchboard, seats in self._seats_of(marks, flags):
            self._strike_switchboard(switchboard, seats)
        marks.append(_ANY)
        for slot in self._who_waits_for(marks, flags):
            self._strike(slot)
        for topic in one_each:
            self._ring_one(_mark(topic))

    def _who_waits_for(self, marks: list[bytes], flags: bytes) -> list[int]:
        """The slots in which somebody waits for one of the topics, in their order."""
        flags = flags[:SLOTS].translate(_AS_ARMED)
        if flags.count(_ARMED) > _CROWD:
            return self._who_in_the_crowd(marks)
        found = []
        slot = flags.find(_ARMED)
        while slot >= 0:
            at = _FLAGS + slot * _SLOT_BYTES
            topics = self._page[at : at + _SLOT_BYTES]
            for mark in marks:
                if mark in topics:
                    found.append(slot)
                    break
            slot = flags.find(_ARMED, slot + 1)
        return found

    def _who_in_the_crowd(self, marks: list[bytes]) -> list[int]:
        page = self._page[:]  # a copy: searching that is some ten times faster than searching the map
        found: set[int] = set()
        for mark in marks:
            # who left has left its topics there
            found.update(slot for place in _places(mark, page, _FLAGS) if page[slot := place // TOPICS])
        return sorted(found)

    def _seats_of(self, marks: list[bytes], flags: bytes) -> list[tuple[int, list[int]]]:
        """The switchboards on which somebody waits for one of the topics, and their seats."""
        found: list[tuple[int, list[int]]] = []
        if flags.endswith(_NO_BOARDS) or (switchboards := self._map_switchboards()) is None:
            return found
        for switchboard, state in enumerate(flags[SLOTS:].rstrip(b"\0")):
            if state != _AWAY:
                at = switchboard * _BOARD_BYTES
                taken = min(SEATS, int.from_bytes(switchboards[at : at + 2], "little"))
                at += 8 + SEATS
                topics = switchboards[at : at + taken * _TOPIC_BYTES]
                seats = [seat for mark in marks for seat in _places(mark, topics, 0)]
                if seats:
                    found.append((switchboard, seats))
        return found

    def _ring_one(self, mark: bytes) -> None:
        flags = self._page[:_FLAGS]
        places: list[tuple[int, int]] = [(slot, -1) for slot in self._who_waits_for([mark], flags)]
        places += [(switchboard, seat) for switchboard, seats in self._seats_of([mark], flags) for seat in seats]
        # begin elsewhere each time, so that the work goes round; pass over those who died
        start = int(self._clock.random() * len(places))
        for place, seat in places[start:] + places[:start]:
            if self._strike(place) if seat < 0 else self._strike_switchboard(place, [seat], aloud=True):
                return

    def pass_on(self, topics: bytes) -> None:
        """A waiter leaves with a hint for one of these: somebody else should look."""
        for at in range(0, len(topics), _TOPIC_BYTES):
            mark = topics[at : at + _TOPIC_BYTES]
            if mark.strip(b"\0"):
                self._ring_one(mark)

    def _strike(self, slot: int) -> bool:
        """Wake the waiter of a slot. False when nobody is there any more."""
        if (self.identity, slot) in _bound_here:
            _rung_here.add((self.identity, slot))
        self._page[slot] = 0
        return self._send(slot)

    def _strike_switchboard(self, switchboard: int, seats: list[int], *, aloud: bool = False) -> bool:
        """Leave a hint at these seats of a switchboard. False when nobody is there any more, as far as one can see.

        Who is awake looks at its seats before it sleeps, and need not be woken; `aloud` rings all the same.
        """
        assert self._switchboards is not None
        at = switchboard * _BOARD_BYTES + 8
        for seat in seats:
            self._switchboards[at + seat] = 1
        place = SLOTS + switchboard
        state = self._page[place]  # after the seats: see _Switchboard.take
        if state == _AWAY:
            return False
        if state == _AWAKE and not aloud and not self._is_doubtful(switchboard):
            return True  # and nothing is written here: it may have gone to sleep meanwhile
        self._page[place] = _AWAKE
        if self._send(place):
            return True
        self._page[place] = _AWAY
        return False

    def _is_doubtful(self, switchboard: int) -> bool:
        """Whether a switchboard that is awake was rung so often that one should see whether it still lives."""
        assert self._switchboards is not None
        at = switchboard * _BOARD_BYTES + 2
        rings = self._switchboards[at] = (self._switchboards[at] + 1) % _DOUBTFUL
        return rings == 0

    # Waiting

    def listen(self, topics: Iterable[str], on_hint: Callable[[], None] | None = None) -> Waiter:
        """A waiter for these topics, armed; `on_hint` is called in its thread when a hint came, before it looks.

        Raises NoBells when all slots are taken.
        """
        marks = [_mark(topic) for topic in topics]
        with self._lock:
            slot = self._idle.pop() if self._idle else None
        if slot is None:
            slot = self._take_slot()
        text = b"".join(marks) if len(marks) <= TOPICS else _ANY
        slot.arm(text.ljust(_SLOT_BYTES, b"\0"), on_hint)
        return slot

    def _take_slot(self) -> _Slot:
        # The first that is free: so the names that killed processes left are soon used again.
        for number in range(SLOTS):
            bound = self.sockets.take(number)
            if bound is not None:
                try:
                    slot = _Slot(self, self._page, number, bound, self._clock)
                except OSError:  # no descriptors left
                    self.sockets.give_back(number, bound)
                    raise
                _bound_here.add((self.identity, number))
                return slot
        raise NoBells(f"all {SLOTS} places to wait in this room are taken")

    def switchboard(self, on_hint: Callable[[], None] | None) -> Switchboard | None:
        """A switchboard for many waiters of one loop, or None when all are taken."""
        switchboards = self._map_switchboards()
        if switchboards is None:
            return None
        for number in range(SWITCHBOARDS):
            try:
                bound = self.sockets.take(SLOTS + number)
            except NoBells:
                return None
            if bound is not None:
                at = number * _BOARD_BYTES
                switchboards[at : at + _BOARD_BYTES] = bytes(_BOARD_BYTES)  # whatever a process that died has left
                return _Switchboard(self, self._page, switchboards, number, bound, on_hint)
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

    def put_back(self, slot: _Slot) -> bool:
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


class _Slot(Waiter):
    """One place on the page, with the socket that owns it.

    The flag on the page is up while the waiter is armed; who rings takes it down before it sends. So a flag that is down
    says that a hint is here or on its way, and no call is needed to know that none is.
    """

    def __init__(self, bells: Bells, page: mmap.mmap, number: int, bound: socket.socket, clock: Clock) -> None:
        self._bells = bells
        self._page = page
        self._number = number
        self._socket = bound
        #: What is waited for. The kernel puts who is woken by a socket behind the one who woke it, on the same processor, as if
        #: that were about to sleep; one who is woken through an epoll runs beside it, wherever there is room.
        self._door = _door_to(bound)
        if self._door is not bound:
            bells.sockets.keep(self._door)
        self._fileno = self._door.fileno()
        self._clock = clock
        self._topics = b""
        self._armed = _ARMED
        self._on_hint: Callable[[], None] | None = None
        self._open = False
        self._called_at = _CALLED_AT + number
        self._waits_since_ns = 0
        self._soon = False  # the last hint came within a moment
        self._left_hints = False  # the one who waited here before left while it was rung

    def arm(self, topics: bytes, on_hint: Callable[[], None] | None) -> None:
        """Begin to wait for these topics."""
        if self._left_hints:
            self._left_hints = False
            with suppress(BlockingIOError):
                while self._socket.recv(16):
                    pass
        self._on_hint = on_hint
        self._topics = topics
        self._page[self._called_at] = 0  # whoever called the one who waited here before may have died
        at = _FLAGS + self._number * _SLOT_BYTES
        self._page[at : at + _SLOT_BYTES] = topics
        self._armed = _ARMED_FOR_FEED if _mark(FEED) in topics or topics.startswith(_ANY) else _ARMED
        self._page[self._number] = self._armed
        self._open = True

    def wait(self, timeout_s: float | None) -> bool:
        if timeout_s != 0 and not self._clock.wait_readable((self._fileno,), timeout_s):
            return False
        try:
            # one: should two have rung at the same moment, the second is taken at the next wait, as a hint without news
            self._socket.recv(16)
        except BlockingIOError:
            return False
        self._soon = SYSTEM.steady_ns() - self._waits_since_ns < SOON_NS
        came = not self._page[self._called_at] or self._watch()
        self._page[self._number] = self._armed
        if came and self._on_hint is not None:
            self._on_hint()
        return True

    def _watch(self) -> bool:
        """Watch for what it was called for. False when it did not come: it may be written yet, and rung then."""
        until_ns = SYSTEM.steady_ns() + _WATCH_NS
        while self._page[self._called_at]:
            if SYSTEM.steady_ns() > until_ns:
                self._page[self._called_at] = 0  # whoever called may have died
                return False
            os.sched_yield()
        return True

    def may_come_soon(self) -> bool:
        soon, self._soon = self._soon, False  # once for each hint that did: who rests for long does not watch
        return soon and (self._bells.identity, self._number) not in _rung_here

    def fileno(self) -> int:
        self._waits_since_ns = SYSTEM.steady_ns()
        if self._open and not self._page[self._number]:
            # Whoever asks is about to wait. A hint is here, or somebody died between taking the flag down and ringing.
            try:
                self._socket.recv(1, socket.MSG_PEEK)
            except BlockingIOError:
                self._page[self._number] = self._armed
        return self._fileno

    def close(self) -> None:
        if not self._open or self._bells.sockets.inherited:  # a forked child leaves its parent's flags alone
            return
        self._open = False
        self._left_hints = not self._page[self._number]
        self._page[self._number] = 0
        if self._left_hints:
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
        if self._door is not self._socket:
            self._bells.sockets.let_go(self._door)
        _bound_here.discard((self._bells.identity, self._number))
        _rung_here.discard((self._bells.identity, self._number))
        self._bells.sockets.give_back(self._number, self._socket)


class _Switchboard(Switchboard):
    """One switchboard of the page, with the socket that owns it."""

    def __init__(
        self,
        bells: Bells,
        page: mmap.mmap,
        switchboards: mmap.mmap,
        number: int,
        bound: socket.socket,
        on_hint: Callable[[], None] | None,
    ) -> None:
        self.on_hint = on_hint
        self._bells = bells
        self._page = page
        self._switchboards = switchboards
        self._place = SLOTS + number
        self._socket = bound
        self._at = number * _BOARD_BYTES
        self._rung_at = self._at + 8
        self._topics_at = self._rung_at + SEATS
        self._free = list(range(SEATS - 1, -1, -1))  # the next one last; low ones first: a ring has less to search
        self._seats: dict[int, _Seat] = {}
        self._taken = 0  # above this all are free
        self._closed = False
        # One thread listens and leaves, another takes. A waiter may also be closed by what is collected in between.
        self._lock = threading.RLock()
        page[self._place] = _ASLEEP

    def listen(self, topics: Iterable[str], hinted: Callable[[], None]) -> Waiter | None:
        marks = [_mark(topic) for topic in topics]
        with self._lock:
            if len(marks) > len(self._free):
                return None
            numbers = tuple(self._free.pop() for _ in marks)
            seat = _Seat(self, numbers, hinted)
            for number, mark in zip(numbers, marks, strict=True):
                self._switchboards[self._rung_at + number] = 0
                self._seats[number] = seat
                at = self._topics_at + number * _TOPIC_BYTES
                self._switchboards[at : at + _TOPIC_BYTES] = mark
            self._taken = max(self._taken, *(number + 1 for number in numbers), 0)
            self._say_taken()
            if self._page[self._place] == _AWAY:  # somebody who rang the one before us was late to say that it is gone
                self._page[self._place] = _ASLEEP
        return seat

    def _say_taken(self) -> None:
        while self._taken and self._taken - 1 not in self._seats:
            self._taken -= 1
        self._switchboards[self._at : self._at + 2] = self._taken.to_bytes(2, "little")

    def leave(self, seat: _Seat) -> None:
        """Free a seat. A hint that it did not look after, and that may have been for it alone, is passed on."""
        marks = []
        if self._bells.sockets.inherited:
            return
        with self._lock:
            for number in seat.numbers:
                if self._seats.pop(number, None) is None:
                    return  # the switchboard was closed
                at = self._topics_at + number * _TOPIC_BYTES
                marks.append(self._switchboards[at : at + _TOPIC_BYTES])
                self._switchboards[at : at + _TOPIC_BYTES] = bytes(_TOPIC_BYTES)
                seat.rung |= bool(self._switchboards[self._rung_at + number])
                self._free.append(number)
            self._say_taken()
        if seat.rung:
            self._bells.pass_on(b"".join(marks))

    def fileno(self) -> int:
        return self._socket.fileno()

    def take(self) -> None:
        if self._bells.sockets.inherited:
            return
        with self._lock:
            if self._closed:
                return
            with suppress(BlockingIOError):
                self._socket.recv(16)
            # Asleep first, then look at the seats; who rings sets the seat first, then looks whether we are asleep.
            self._page[self._place] = _ASLEEP
            rung = self._switchboards[self._rung_at : self._rung_at + SEATS]
            hinted = dict.fromkeys(self._take_seat(number) for number in _ones(rung))
        for seat in hinted:
            if seat is not None:
                seat.hinted()

    def _take_seat(self, number: int) -> _Seat | None:
        self._switchboards[self._rung_at + number] = 0
        seat = self._seats.get(number)
        if seat is not None:
            seat.rung = True
        return seat

    def close(self) -> None:
        if self._bells.sockets.inherited:
            return
        with self._lock:
            if self._closed:
                return
            self._closed = True
            self._page[self._place] = _AWAY
            self._seats.clear()
            self._bells.sockets.give_back(self._place, self._socket)


class _Seat(Waiter):
    """One of many who wait behind a switchboard; a place on it for each of its topics."""

    def __init__(self, switchboard: _Switchboard, numbers: tuple[int, ...], hinted: Callable[[], None]) -> None:
        self.numbers = numbers
        self.hinted = hinted
        self.rung = False
        self._switchboard = switchboard
        self._open = True

    def wait(self, timeout_s: float | None) -> bool:
        if timeout_s != 0:
            raise OSError(
                errno.ENOTSUP, "who sits at a switchboard does not wait by itself: the switchboard's loop does"
            )
        rung, self.rung = self.rung, False
        if rung and self._switchboard.on_hint is not None:
            self._switchboard.on_hint()
        return rung

    def fileno(self) -> int:
        return self._switchboard.fileno()

    def close(self) -> None:
        if self._open:
            self._open = False
            self._switchboard.leave(self)


def _nobody_follows(flags: bytes) -> bool:
    """Whether nobody wants to hear of changes that nobody is called for, as far as flags tell."""
    return flags.find(_ARMED_FOR_FEED, 0, SLOTS) < 0 and flags.endswith(_NO_BOARDS)


def _places(mark: bytes, topics: bytes, begin: int) -> Iterator[int]:
    """Where a topic stands among topics that begin there: the first is 0."""
    at = topics.find(mark, begin)
    while at >= 0:
        if (at - begin) % _TOPIC_BYTES == 0:
            yield (at - begin) // _TOPIC_BYTES
        at = topics.find(mark, at + 1)


def _ones(rung: bytes) -> Iterator[int]:
    at = rung.find(1)
    while at >= 0:
        yield at
        at = rung.find(1, at + 1)


def _door_to(bound: socket.socket) -> select.epoll | socket.socket:
    """Something to wait on instead of a socket that can be read when the socket can; the socket itself on other systems."""
    if not hasattr(select, "epoll"):
        return bound
    door = select.epoll(1)
    door.register(bound.fileno(), select.EPOLLIN)
    return door


def _identity(descriptor: int) -> str:
    about = os.fstat(descriptor)
    return f"{about.st_dev}.{about.st_ino}"


class Watcher(Waiter):
    """Where there are no bells: looks at something that changes with every write, a hundred times a second."""

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
