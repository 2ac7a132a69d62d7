"""Waking those who wait, across threads and processes, without polling.

A page of memory shared by all processes of a room says who waits for what; a ringer that finds nobody there pays one
look at it (a tenth of a microsecond). A waiter owns a slot of that page by owning the datagram socket of the slot's
name: the system frees it when the process dies, so nothing has to be cleaned up.

A ring is a hint. The waiter looks again, and looks by itself once a second in case a hint was lost.
"""

from __future__ import annotations

import errno
import hashlib
import mmap
import os
import socket
import threading
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import Final

from .clock import Clock
from .platform import LINUX
from .store import Waiter

SLOTS: Final = 512
TOPICS: Final = 8
_TOPIC_BYTES: Final = 8
_SLOT_BYTES: Final = TOPICS * _TOPIC_BYTES
_PAGE_BYTES: Final = SLOTS + SLOTS * _SLOT_BYTES
_ARMED: Final = b"\x01"
_NOBODY: Final = bytes(SLOTS)
#: Stands for every topic, for waiters that have more than a slot can hold.
_ANY: Final = b"\xff" * _TOPIC_BYTES
_IDLE_KEPT: Final = 16
#: More who wait than this are not gone through one by one: the page is searched for the topics.
_CROWD: Final = 16


@lru_cache(maxsize=4096)
def _mark(topic: str) -> bytes:
    return hashlib.blake2b(topic.encode(), digest_size=_TOPIC_BYTES).digest()


class NoBells(Exception):
    """This system or this folder has no means to wake others; watch instead."""


class Bells:
    """The bells of one room. Page: a flag per slot (1 = waits), then the topics of each slot."""

    def __init__(self, folder: Path, clock: Clock) -> None:
        if not hasattr(socket, "AF_UNIX"):
            raise NoBells("no Unix sockets")
        self._clock = clock
        self._lock = threading.Lock()
        self._idle: list[_Slot] = []
        self._closed = False
        try:
            identity = self._map_page(folder / "bells")
        except OSError as error:
            raise NoBells(str(error)) from error
        self._prefix = hashlib.blake2b(identity.encode(), digest_size=8).hexdigest()
        self._sender = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK)
        self._addresses: dict[int, str | bytes] = {}
        self._next = os.getpid() % SLOTS

    def _map_page(self, path: Path) -> str:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            # The page must really be on disk: writing to a hole of it on a full disk would end the process by SIGBUS.
            if os.fstat(descriptor).st_size < _PAGE_BYTES:
                if hasattr(os, "posix_fallocate"):
                    os.posix_fallocate(descriptor, 0, _PAGE_BYTES)
                else:
                    os.pwrite(descriptor, bytes(_PAGE_BYTES), 0)
            self._page = mmap.mmap(descriptor, _PAGE_BYTES)
            about = os.fstat(descriptor)
            return f"{about.st_dev}.{about.st_ino}.{about.st_ctime_ns if not LINUX else ''}.{os.geteuid()}"
        finally:
            os.close(descriptor)

    # Ringing

    def ring(self, everyone: Iterable[str], one_each: Iterable[str] = ()) -> None:
        """Hint to all who wait for a topic of `everyone`, and to one of those who wait for each of `one_each`."""
        flags = self._page[:SLOTS]
        if flags == _NOBODY:
            return
        marks = [_mark(topic) for topic in everyone]
        marks.append(_ANY)
        for slot in self._who_waits_for(marks, flags):
            self._strike(slot)
        for topic in one_each:
            self._ring_one(_mark(topic))

    def _who_waits_for(self, marks: list[bytes], flags: bytes) -> list[int]:
        """The slots in which somebody waits for one of the topics, in their order."""
        if flags.count(_ARMED) > _CROWD:
            return self._who_in_the_crowd(marks)
        found = []
        slot = flags.find(_ARMED)
        while slot >= 0:
            at = SLOTS + slot * _SLOT_BYTES
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
            at = page.find(mark, SLOTS)
            while at >= 0:
                slot, place = divmod(at - SLOTS, _SLOT_BYTES)
                if place % _TOPIC_BYTES == 0 and page[slot] == _ARMED[0]:  # who left has left its topics there
                    found.add(slot)
                at = page.find(mark, at + 1)
        return sorted(found)

    def _ring_one(self, mark: bytes) -> None:
        slots = self._who_waits_for([mark], self._page[:SLOTS])
        # begin elsewhere each time, so that the work goes round; pass over those who died
        start = int(self._clock.random() * len(slots))
        for slot in slots[start:] + slots[:start]:
            if self._strike(slot):
                return

    def pass_on(self, topics: bytes) -> None:
        """A waiter leaves with a hint for one of these: somebody else should look."""
        for at in range(0, _SLOT_BYTES, _TOPIC_BYTES):
            mark = topics[at : at + _TOPIC_BYTES]
            if mark.strip(b"\0"):
                self._ring_one(mark)

    def _strike(self, slot: int) -> bool:
        """Wake the waiter of a slot. False when nobody is there any more."""
        self._page[slot] = 0
        try:
            self._sender.sendto(b"!", self._addresses.get(slot) or self._address(slot))
        except BlockingIOError:
            return True  # its queue is full of hints
        except OSError as error:
            return error.errno not in (errno.ECONNREFUSED, errno.ENOENT)
        return True

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
        for step in range(SLOTS):
            number = (self._next + step) % SLOTS
            bound = self._bind(number)
            if bound is not None:
                self._next = number + 1
                return _Slot(self, self._page, number, bound, self._clock)
        raise NoBells(f"all {SLOTS} places to wait in this room are taken")

    def _address(self, slot: int) -> str | bytes:
        address: str | bytes = b"\0postroom/%s/%d" % (self._prefix.encode(), slot)
        if not LINUX:
            from tempfile import gettempdir

            address = f"{gettempdir()}/postroom-{os.geteuid()}/{self._prefix}-{slot}"
        self._addresses[slot] = address
        return address

    def _bind(self, slot: int) -> socket.socket | None:
        """The slot's socket, or None when somebody else has it."""
        address = self._address(slot)
        bound = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK)
        try:
            if isinstance(address, str):
                _clear_path(address)
            bound.bind(address)
        except OSError:
            bound.close()
            return None
        return bound

    def put_back(self, slot: _Slot) -> bool:
        """Keep a slot for the next waiter. False when there are enough."""
        with self._lock:
            if self._closed or len(self._idle) >= _IDLE_KEPT:
                return False
            self._idle.append(slot)
            return True

    def close(self) -> None:
        """Give the slots back. Waiters that are still open end by themselves."""
        with self._lock:
            self._closed = True
            idle, self._idle = self._idle, []
        for slot in idle:
            slot.free()
        self._sender.close()


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
        self._fileno = bound.fileno()
        self._clock = clock
        self._topics = b""
        self._on_hint: Callable[[], None] | None = None
        self._open = False
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
        at = SLOTS + self._number * _SLOT_BYTES
        self._page[at : at + _SLOT_BYTES] = topics
        self._page[self._number] = 1
        self._open = True

    def wait(self, timeout_s: float | None) -> bool:
        if timeout_s != 0 and not self._clock.wait_readable((self._fileno,), timeout_s):
            return False
        try:
            # one: should two have rung at the same moment, the second is taken at the next wait, as a hint without news
            self._socket.recv(16)
        except BlockingIOError:
            return False
        self._page[self._number] = 1
        if self._on_hint is not None:
            self._on_hint()
        return True

    def fileno(self) -> int:
        return self._fileno

    def close(self) -> None:
        if not self._open:
            return
        self._open = False
        self._left_hints = not self._page[self._number]
        self._page[self._number] = 0
        if self._left_hints:
            # It leaves with a hint that it never looked after, and that may have been for one waiter only: pass it on
            # (tests/test_bells.py: test_who_leaves_with_a_hint_passes_it_on).
            self._bells.pass_on(self._topics)
        if not self._bells.put_back(self):
            self.free()

    def free(self) -> None:
        """Let the socket, and with it the slot, go."""
        address = self._socket.getsockname()
        self._fileno = -1
        self._socket.close()
        if isinstance(address, str) and address:
            with suppress(OSError):
                os.unlink(address)


def _clear_path(address: str) -> None:
    """Remove a socket file whose owner is gone (systems without abstract names keep them)."""
    os.makedirs(os.path.dirname(address), mode=0o700, exist_ok=True)
    probe = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    try:
        probe.connect(address)
    except ConnectionRefusedError:
        os.unlink(address)
    except OSError:
        pass
    finally:
        probe.close()


class Watcher(Waiter):
    """Where there are no bells: looks at a number that changes with every write, a hundred times a second."""

    interval_s: Final = 0.01

    def __init__(self, version: Callable[[], int], clock: Clock) -> None:
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
