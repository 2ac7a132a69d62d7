"""A room on NATS JetStream: the same promises for programs on many machines.

One stream for each room, in which every message has one entry; every change replaces that entry if it is still the one
that was read (entries.py). A claim is chosen from what this process knows of the room (tables.py, following.py) and
made by such a replacement, so that of several claimers one wins; the sequence of the entry is its fencing token. Leases
are only a time in the entry, honoured by the next claim: nothing on the servers ends them, so nothing can happen there
between the end of a lease and an ack.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Iterable
from contextlib import suppress
from queue import Empty, SimpleQueue
from types import FrameType
from typing import ClassVar, Concatenate, Final, ParamSpec, TypeVar

from postroom.core.clock import SYSTEM, Clock
from postroom.core.config import Config, RoomUrl
from postroom.errors import RoomClosed
from postroom.stores import contract
from postroom.stores.contract import Waiter

from . import cells, claims, housekeeping, putting, reading
from .access import access_of
from .link import forget_loop_after_fork
from .room import NatsRoom

P = ParamSpec("P")
R = TypeVar("R")

#: Closing waits so long for what other threads do, in seconds.
CLOSE_S: Final = 2.0

os.register_at_fork(after_in_child=forget_loop_after_fork)


class _Step:
    """The steps of a store: `with` this.

    Where an interrupt keeps one from its end, the next step of the thread ends it.
    """

    __slots__ = ("_store",)

    def __init__(self, store: NatsStore) -> None:
        self._store = store

    def __enter__(self) -> NatsRoom:
        return self._store.begin(sys._getframe(1))  # noqa: SLF001

    def __exit__(self, *_: object) -> None:
        self._store.end()


def is_around(step: FrameType | None, frame: FrameType | None) -> bool:
    """Whether a call is made within that step."""
    while step is not None and frame is not None:
        if frame is step:
            return True
        frame = frame.f_back
    return False


def in_step(act: Callable[Concatenate[NatsRoom, P], R]) -> Callable[Concatenate[NatsStore, P], R]:
    """A method of the store that is this function of its room, in one step."""

    def method(self: NatsStore, /, *args: P.args, **kwargs: P.kwargs) -> R:
        me = threading.get_ident()
        room = self.begin(sys._getframe())  # noqa: SLF001  (inspect, which has the same, takes long to load)
        try:
            return act(room, *args, **kwargs)
        finally:
            # No call while the room is open: Python looks for signals after calls, and an interrupt here would take
            # from the caller the word that its message is settled (tests/faults/test_interrupts.py).
            del self._inside[me]
            if not self._open:
                self._ended.put(None)

    return method


class NatsStore(contract.Store):
    """A room that many machines share."""

    durable: ClassVar[bool] = True
    shared: ClassVar[bool] = True
    exact_fifo: ClassVar[bool] = False
    restores: ClassVar[bool] = True

    def __init__(self, url: RoomUrl, config: Config, clock: Clock, *, create: bool = True) -> None:
        access, name = access_of(url, config)
        self.clock = clock
        self._pid = os.getpid()
        self._open = True
        self._inside: dict[int, FrameType] = {}  # the threads that are in the middle of a step, and its method
        self._ended: SimpleQueue[None] = SimpleQueue()  # a word for each step that ends after the room is closed
        self.step = _Step(self)
        self._room = NatsRoom(access, name, config, clock, create=create)

    def begin(self, caller: FrameType) -> NatsRoom:
        """That method begins a step in this thread. Raises RoomBusy in the middle of another one.

        Raises RoomClosed when the room may not be used any more, or not from here.
        """
        if self._pid != os.getpid():
            raise RoomClosed(
                "this room was opened before the process forked; fork first, or start processes with spawn"
            )
        me = threading.get_ident()
        if is_around(self._inside.get(me), caller):
            raise contract.in_the_middle()
        # No lock, which an interrupt could leave taken: `close` says so first, and then looks which threads are inside.
        self._inside[me] = caller
        if not self._open:
            self.end()
            raise RoomClosed
        return self._room

    def end(self) -> None:
        """The step of this thread is over."""
        self._inside.pop(threading.get_ident(), None)
        if not self._open:
            self._ended.put(None)

    # The methods of the contract, each a function of the room

    put = in_step(putting.put)
    put_with_cell = in_step(putting.put_with_cell)
    restore = in_step(putting.restore)
    subscribe = in_step(cells.subscribe)
    unsubscribe = in_step(cells.unsubscribe)
    subscriptions = in_step(cells.subscriptions)

    claim = in_step(claims.claim)
    claim_answer = in_step(claims.claim_answer)
    settle = in_step(claims.settle)
    extend = in_step(claims.extend)
    heartbeat = in_step(claims.heartbeat)
    note = in_step(claims.note)
    abandon = in_step(claims.abandon)
    withdraw = in_step(claims.withdraw)
    requeue = in_step(housekeeping.requeue)

    get = in_step(reading.get)
    find = in_step(reading.find)
    events = in_step(reading.events)
    number_at = in_step(reading.number_at)
    stats = in_step(reading.stats)
    work_of = in_step(reading.work_of)
    servers_report = in_step(reading.servers_report)

    cell_read = in_step(cells.cell_read)
    cell_write = in_step(cells.cell_write)
    cell_scan = in_step(cells.cell_scan)

    room_ms = in_step(NatsRoom.now_ms)
    process_alive = in_step(NatsRoom.process_alive)
    sweep = in_step(housekeeping.sweep)
    purge = in_step(housekeeping.purge)

    def listen(self, topics: Iterable[str]) -> Waiter:
        with self.step as room:
            return room.follower.listen(topics, self.step)

    def close(self) -> None:
        if self._pid != os.getpid():
            return
        self._open = False
        # what other threads have begun (giving up a question, an ack) is finished first, if the servers answer
        until_ns = SYSTEM.steady_ns() + int(CLOSE_S * 1e9)
        me = threading.get_ident()  # in a signal's handler, this thread may be in the middle of a step
        with suppress(Empty):
            while not self._inside.keys() <= {me}:
                self._ended.get(timeout=max(0, until_ns - SYSTEM.steady_ns()) / 1e9)
        self._room.close()
