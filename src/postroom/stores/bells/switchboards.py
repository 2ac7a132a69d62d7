"""Switchboards: one socket for many waiters of one event loop, each with a byte of its own on the shared page."""

from __future__ import annotations

import errno
import socket
import threading
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Final

from postroom.stores.contract import Switchboard, Waiter

from .page import ASLEEP, AWAKE, AWAY, BOARD_BYTES, SEATS, SLOTS, TOPIC_BYTES, SharedPage, mark_of
from .sockets import BellSockets

#: A switchboard that is awake when it is rung for the 200th time is woken all the same, to see whether it still lives.
_DOUBTFUL: Final = 200
#: A waiter's last act: a hint for these topics, which may have been for it alone, is passed on.
PassOn = Callable[[bytes], None]


def ring_switchboard(
    page: SharedPage, sockets: BellSockets, switchboard: int, seats: list[int], *, aloud: bool
) -> bool:
    """Leave a hint at these seats of a switchboard. False when nobody is there any more, as far as one can see.

    A loop that is awake looks at its seats before it sleeps, and need not be woken; `aloud` rings all the same.
    """
    boards, memory = page.switchboards(), page.memory
    assert boards is not None
    at = switchboard * BOARD_BYTES
    for seat in seats:
        boards[at + 8 + seat] = 1
    place = SLOTS + switchboard
    state = memory[place]  # after the seats: see BellSwitchboard.take
    if state == AWAY:
        return False
    if state == AWAKE and not aloud:
        rings = boards[at + 2] = (boards[at + 2] + 1) % _DOUBTFUL
        if rings:
            return True  # and nothing is written here: it may have gone to sleep meanwhile
    memory[place] = AWAKE
    if sockets.ring(place):
        return True
    memory[place] = AWAY
    return False


class BellSwitchboard(Switchboard):
    """One switchboard of the page, with the socket that owns it."""

    def __init__(
        self,
        page: SharedPage,
        sockets: BellSockets,
        pass_on: PassOn,
        number: int,
        bound: socket.socket,
        on_hint: Callable[[], None] | None,
    ) -> None:
        boards = page.switchboards()
        assert boards is not None
        self.on_hint = on_hint
        self._sockets = sockets
        self._pass_on = pass_on
        self._page = page.memory
        self._boards = boards
        self._place = SLOTS + number
        self._socket = bound
        self._at = number * BOARD_BYTES
        self._rung_at = self._at + 8
        self._topics_at = self._rung_at + SEATS
        self._free = list(range(SEATS - 1, -1, -1))  # the next one last; low ones first: a ring has less to search
        self._seats: dict[int, _Seat] = {}
        self._taken = 0  # above this all are free
        self._closed = False
        # One thread listens and leaves, another takes. A waiter may also be closed by what is collected in between.
        self._lock = threading.RLock()
        boards[self._at : self._at + BOARD_BYTES] = bytes(BOARD_BYTES)  # whatever a process that died has left
        self._page[self._place] = ASLEEP

    def listen(self, topics: Iterable[str], hinted: Callable[[], None]) -> Waiter | None:
        marks = [mark_of(topic) for topic in topics]
        with self._lock:
            if len(marks) > len(self._free):
                return None
            numbers = tuple(self._free.pop() for _ in marks)
            seat = _Seat(self, numbers, hinted)
            for number, mark in zip(numbers, marks, strict=True):
                self._boards[self._rung_at + number] = 0
                self._seats[number] = seat
                self._set_topic(number, mark)
            self._taken = max(self._taken, *(number + 1 for number in numbers), 0)
            self._say_taken()
            if self._page[self._place] == AWAY:  # a ringer of the switchboard before us was late to say that it is gone
                self._page[self._place] = ASLEEP
        return seat

    def _set_topic(self, number: int, mark: bytes) -> bytes:
        """Set the topic of a seat. Returns the one before."""
        at = self._topics_at + number * TOPIC_BYTES
        before = self._boards[at : at + TOPIC_BYTES]
        self._boards[at : at + TOPIC_BYTES] = mark
        return before

    def _say_taken(self) -> None:
        while self._taken and self._taken - 1 not in self._seats:
            self._taken -= 1
        self._boards[self._at : self._at + 2] = self._taken.to_bytes(2, "little")

    def leave(self, seat: _Seat) -> None:
        """Free a seat. A hint that it did not look after, and that may have been for it alone, is passed on."""
        marks = b""
        if self._sockets.inherited:
            return
        with self._lock:
            for number in seat.numbers:
                if self._seats.pop(number, None) is None:
                    return  # the switchboard was closed
                marks += self._set_topic(number, bytes(TOPIC_BYTES))
                seat.rung |= bool(self._boards[self._rung_at + number])
                self._free.append(number)
            self._say_taken()
        if seat.rung:
            self._pass_on(marks)

    def fileno(self) -> int:
        return self._socket.fileno()

    def take(self) -> None:
        if self._sockets.inherited:
            return
        with self._lock:
            if self._closed:
                return
            with suppress(BlockingIOError):
                self._socket.recv(16)
            # Asleep first, then look at the seats; a ringer sets the seat first, then looks whether we are asleep.
            self._page[self._place] = ASLEEP
            rung = self._boards[self._rung_at : self._rung_at + SEATS]
            hinted: dict[_Seat, None] = {}
            number = rung.find(1)
            while number >= 0:
                self._boards[self._rung_at + number] = 0
                if (seat := self._seats.get(number)) is not None:
                    seat.rung = True
                    hinted[seat] = None
                number = rung.find(1, number + 1)
        for seat in hinted:
            seat.hinted()

    def close(self) -> None:
        if self._sockets.inherited:
            return
        with self._lock:
            if self._closed:
                return
            self._closed = True
            self._page[self._place] = AWAY
            self._seats.clear()
            self._sockets.give_back(self._place, self._socket)


class _Seat(Waiter):
    """One of many waiters behind a switchboard; a place on it for each of its topics."""

    def __init__(self, switchboard: BellSwitchboard, numbers: tuple[int, ...], hinted: Callable[[], None]) -> None:
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
