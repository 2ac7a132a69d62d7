"""The shared page of the bells: memory-mapped by all processes of a room, it says which slot waits for which topics."""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterable, Iterator
from functools import lru_cache
from pathlib import Path
from typing import Final

try:
    from _blake2 import blake2b  # the same function; hashlib loads OpenSSL besides, which is 3 ms of every command
except ImportError:  # another Python than CPython
    from hashlib import blake2b

from postroom.core.system.files import map_part, open_shared
from postroom.stores.contract import FEED

#: The page: a flag per slot, a state per switchboard, the topics of each slot. Behind it, once a switchboard is needed,
#: each switchboard: how many of its seats may be taken (two bytes of eight; the third counts rings), a byte per seat
#: that a ring sets, a topic per seat.
SLOTS: Final = 512
TOPICS: Final = 8
SWITCHBOARDS: Final = 32
SEATS: Final = 512
TOPIC_BYTES: Final = 8
SLOT_BYTES: Final = TOPICS * TOPIC_BYTES
FLAGS: Final = SLOTS + SWITCHBOARDS
_PAGE_BYTES: Final = FLAGS + SLOTS * SLOT_BYTES
BOARD_BYTES: Final = 8 + SEATS + SEATS * TOPIC_BYTES
_BOARDS_AT: Final = -(-_PAGE_BYTES // mmap.ALLOCATIONGRANULARITY) * mmap.ALLOCATIONGRANULARITY
#: A flag that is up: a waiter is armed there. The second kind also wants to hear of changes that concern no waiter in
#: particular: of every claim and every ack, which is why plain receivers are told apart.
ARMED: Final = 1
ARMED_FOR_FEED: Final = 2
_AS_ARMED: Final = bytes([0, ARMED, ARMED, *range(3, 256)])
NOBODY: Final = bytes(FLAGS)
_NO_BOARDS: Final = bytes(SWITCHBOARDS)
_NO_TOPICS: Final = bytes(SLOT_BYTES)
#: States of a switchboard: nobody there; asleep, to be woken; awake, it will look at its seats before it sleeps.
AWAY: Final = 0
ASLEEP: Final = 1
AWAKE: Final = 2
#: Stands for every topic, for waiters that have more than a slot can hold.
ANY_TOPIC: Final = b"\xff" * TOPIC_BYTES
#: Where more waiters are armed than this, they are not gone through one by one: the page is searched for the topics.
_CROWD: Final = 16


@lru_cache(maxsize=4096)
def mark_of(topic: str) -> bytes:
    """A topic as it stands on the page: a hash."""
    return blake2b(topic.encode(), digest_size=TOPIC_BYTES).digest()


_FEED_MARK: Final = mark_of(FEED)


class SharedPage:
    """The page of one room. `memory` is the map; it may be read and written by any process at any moment."""

    def __init__(self, path: Path, mode: int) -> None:
        self._path = path
        self._switchboards: mmap.mmap | None = None  # mapped when there is one
        descriptor = open_shared(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, mode)
        try:
            self.memory = map_part(descriptor, 0, _PAGE_BYTES)
            #: The file that the page is, whatever its name.
            self.identity = _identity(descriptor)
        finally:
            os.close(descriptor)

    def switchboards(self) -> mmap.mmap | None:
        """The switchboards of the room; None where they cannot be had: the disk is full, or the file was replaced."""
        if self._switchboards is None:
            try:
                descriptor = os.open(self._path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
                try:
                    if _identity(descriptor) == self.identity:
                        self._switchboards = map_part(descriptor, _BOARDS_AT, SWITCHBOARDS * BOARD_BYTES)
                finally:
                    os.close(descriptor)
            except OSError:
                return None
        return self._switchboards

    def arm(self, slot: int, topics: bytes) -> int:
        """Say that a waiter is armed in a slot for these topics; the flag that says so."""
        at = FLAGS + slot * SLOT_BYTES
        self.memory[at : at + SLOT_BYTES] = topics.ljust(SLOT_BYTES, b"\0")
        flag = ARMED_FOR_FEED if _FEED_MARK in topics or topics.startswith(ANY_TOPIC) else ARMED
        self.memory[slot] = flag
        return flag

    def disarm(self, slot: int) -> None:
        """Say that nobody waits in a slot for anything; its flag is left."""
        at = FLAGS + slot * SLOT_BYTES
        self.memory[at : at + SLOT_BYTES] = _NO_TOPICS

    def waits_for(self, mark: bytes, place: int, seat: int) -> bool:
        """Whether the waiter in a slot, or (seat 0 or more) at a seat of a switchboard, still waits for a topic."""
        if seat < 0:
            at = FLAGS + place * SLOT_BYTES
            return mark in self.memory[at : at + SLOT_BYTES]
        assert self._switchboards is not None
        at = place * BOARD_BYTES + 8 + SEATS + seat * TOPIC_BYTES
        return self._switchboards[at : at + TOPIC_BYTES] == mark

    def slots_for(self, marks: Iterable[bytes], flags: bytes) -> list[int]:
        """The slots in which a waiter is armed for one of the topics, in their order."""
        flags = flags[:SLOTS].translate(_AS_ARMED)
        if flags.count(ARMED) > _CROWD:
            return self._slots_in_a_crowd(marks)
        found = []
        slot = flags.find(ARMED)
        while slot >= 0:
            at = FLAGS + slot * SLOT_BYTES
            topics = self.memory[at : at + SLOT_BYTES]
            for mark in marks:
                if mark in topics:
                    found.append(slot)
                    break
            slot = flags.find(ARMED, slot + 1)
        return found

    def _slots_in_a_crowd(self, marks: Iterable[bytes]) -> list[int]:
        page = self.memory[:]  # a copy: searching that is some ten times faster than searching the map
        found: set[int] = set()
        for mark in marks:
            # a waiter that was killed has left its topics there
            found.update(slot for place in _places(mark, page, FLAGS) if page[slot := place // TOPICS])
        return sorted(found)

    def seats_for(self, marks: Iterable[bytes], flags: bytes) -> list[tuple[int, list[int]]]:
        """The switchboards on which somebody waits for one of the topics, and their seats."""
        found: list[tuple[int, list[int]]] = []
        if flags.endswith(_NO_BOARDS) or (switchboards := self.switchboards()) is None:
            return found
        for switchboard, state in enumerate(flags[SLOTS:].rstrip(b"\0")):
            if state != AWAY:
                at = switchboard * BOARD_BYTES
                taken = min(SEATS, int.from_bytes(switchboards[at : at + 2], "little"))
                at += 8 + SEATS
                topics = switchboards[at : at + taken * TOPIC_BYTES]
                seats = [seat for mark in marks for seat in _places(mark, topics, 0)]
                if seats:
                    found.append((switchboard, seats))
        return found


def nobody_follows(flags: bytes) -> bool:
    """Whether nobody wants to hear of changes that concern no waiter in particular, as far as flags tell."""
    return flags.find(ARMED_FOR_FEED, 0, SLOTS) < 0 and flags.endswith(_NO_BOARDS)


def _places(mark: bytes, topics: bytes, begin: int) -> Iterator[int]:
    """Where a topic stands among topics that begin there: the first is 0."""
    at = topics.find(mark, begin)
    while at >= 0:
        if (at - begin) % TOPIC_BYTES == 0:
            yield (at - begin) // TOPIC_BYTES
        at = topics.find(mark, at + 1)


def _identity(descriptor: int) -> str:
    about = os.fstat(descriptor)
    return f"{about.st_dev}.{about.st_ino}"
