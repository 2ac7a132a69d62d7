"""Slots: a waiter that owns one place on the shared page, and the datagram socket of that place."""

from __future__ import annotations

import socket
from collections.abc import Callable
from contextlib import suppress
from typing import Final, Protocol

from postroom.core.clock import Clock
from postroom.stores.contract import FEED, Switchboard, Waiter

from .page import ANY_TOPIC, ARMED, ARMED_FOR_FEED, FLAGS, SLOT_BYTES, SharedPage, mark_of
from .sockets import BellSockets
from .spinning import Spinner, Spinning, may_spin

_FEED_MARK: Final = mark_of(FEED)


class SlotOwner(Protocol):
    """The bells, as a slot knows them."""

    page: SharedPage
    sockets: BellSockets
    spinning: Spinning

    def pass_on(self, topics: bytes) -> None: ...
    def put_back(self, slot: Slot) -> bool: ...
    def switchboard(self, on_hint: Callable[[], None] | None) -> Switchboard | None: ...


class Slot(Waiter):
    """One place on the page, with the socket that owns it.

    The flag on the page is up while the waiter is armed; a ringer takes it down before it sends. So a flag that is down
    says that a hint is here or on its way, and no system call is needed to know that none is.
    """

    def __init__(self, bells: SlotOwner, number: int, bound: socket.socket, clock: Clock) -> None:
        self._bells = bells
        self._page = bells.page.memory
        self._number = number
        self._socket = bound
        self._fileno = bound.fileno()
        self._clock = clock
        self._spinner = Spinner(bells.spinning, bells.page, number) if may_spin() else None
        self._topics = b""
        self._armed = ARMED
        self._on_hint: Callable[[], None] | None = None
        self._open = False
        self._left_hints = False  # the waiter before left while it was rung

    def arm(self, topics: bytes, on_hint: Callable[[], None] | None) -> None:
        """Begin to wait for these topics."""
        if self._left_hints:
            self._left_hints = False
            with suppress(BlockingIOError):
                while self._socket.recv(16):
                    pass
        self._on_hint = on_hint
        self._topics = topics
        at = FLAGS + self._number * SLOT_BYTES
        self._page[at : at + SLOT_BYTES] = topics
        self._armed = ARMED_FOR_FEED if _FEED_MARK in topics or topics.startswith(ANY_TOPIC) else ARMED
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
        if self._spinner is not None:
            self._spinner.hinted()
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
        if self._spinner is not None:
            self._spinner.free()
        self._bells.sockets.give_back(self._number, self._socket)
