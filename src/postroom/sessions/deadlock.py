"""Deadlock detection: finding sessions in which every member waits for the others, and no session else.

The rule: every member waits without a time-out, and nothing is stored, claimed or delayed in the mailboxes they wait
for.

No false alarm. The record is read, then all members, then the mailboxes, then all members again, and the failure is
written only if the record still has the version that was read first. Between the two readings no member changed its
cell, so each was blocked all the while (`sessions/members.py`: a member says so before it acts), and none can have sent
anything since the mailboxes were seen empty. A member that joins writes its cell and then the record: it is seen, or
the write fails.

None missed. Every blocked member looks when it says that it is blocked, and again once a second. The same picture must
be seen twice, SETTLE_S apart, so that a member that is about to join (a process that is just being started) may come in
time.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from contextlib import suppress
from typing import Final, NamedTuple

from postroom.core.clock import iso
from postroom.core.states import OPEN
from postroom.errors import RoomClosed
from postroom.mail.gateway import Gateway
from postroom.stores.contract import Cell, Query

from .members import OPENER, WORKER, Standing, prefix_of, standing_of, strike_off
from .record import DEADLOCK, Failure, SessionRecord

#: How long everybody must be seen to wait, unchanged, before it counts.
SETTLE_S: float = 1.0
#: How many waits the message of a failure names; the others are counted.
MAX_NAMED: Final = 50
ON_MAILBOX: Final = "mailbox"
ON_WORKERS: Final = "workers"


class SessionSnapshot(NamedTuple):
    """The members of the session at one moment, with the version of every cell that says so."""

    members: list[Standing]
    versions: dict[str, int]


def channel_of(session_id: str, mailbox: str) -> str:
    """The channel in which a mailbox's messages lie."""
    return f"session:{session_id}/{mailbox}"


def stuck(members: Sequence[Standing]) -> bool:
    """Whether no member can act before a time-out ends or somebody from outside does something."""
    here = {member.id for member in members}
    return bool(members) and all(member.blocked and not _about_to_return(member, here) for member in members)


def deadlocked(members: Sequence[Standing]) -> bool:
    """Whether no member can act ever again, if nothing is in the mailboxes."""
    return stuck(members) and not any(member.timed for member in members)


def _about_to_return(member: Standing, here: set[str]) -> bool:
    """Whether it waits for workers that have all left: then it goes on."""
    return any(wait["on"] == ON_WORKERS and not here & set(wait["members"]) for wait in member.waits)


def who_waits(members: Sequence[Standing]) -> list[str]:
    """The members' waits in words, in the order in which the members came."""
    came = sorted(members, key=lambda member: member.number)
    lines = [f"{member.name} waits {wait_words(wait)}" for member in came for wait in member.waits]
    return [*lines[:MAX_NAMED], *([f"and {len(lines) - MAX_NAMED} more"] if len(lines) > MAX_NAMED else [])]


def wait_words(wait: dict[str, object]) -> str:
    """What a wait is for, in words."""
    names = wait["names"]
    listed = ", ".join(names) if isinstance(names, list) else str(names)
    return f"on mailbox {listed}" if wait["on"] == ON_MAILBOX else f"for its workers ({listed})"


class Search:
    """One member's look-out for a deadlock of its session."""

    def __init__(self, record: SessionRecord) -> None:
        self._record = record
        self._gateway: Gateway = record.gateway
        self._lock = threading.Lock()
        self._suspected: tuple[int, dict[str, int]] | None = None
        self._since_ns = 0

    def look(self) -> bool:
        """Look once; record the failure if this is a deadlock for sure. Returns whether it recorded one."""
        if not self._lock.acquire(blocking=False):
            return False  # another thread of this member looks
        try:
            return self._look()
        finally:
            self._lock.release()

    def _look(self) -> bool:
        record = self._record.read()
        before = self._picture()
        if record.over or not deadlocked(before.members) or self._has_mail(before.members):
            self._suspected = None
            return False
        now_ns = self._gateway.clock.steady_ns()
        if self._suspected != (record.version, before.versions):
            self._suspected, self._since_ns = (record.version, before.versions), now_ns
        if now_ns - self._since_ns < SETTLE_S * 1_000_000_000:
            return False
        if self._picture().versions != before.versions:
            return False
        said = "deadlock: " + "; ".join(who_waits(before.members))
        failure = Failure(iso(self._gateway.clock.wall_ms()), said, "", None, DEADLOCK)
        return self._record.fail_at(record.version, record.value, failure)

    def _picture(self) -> SessionSnapshot:
        """The members now, without those whose process is gone."""
        cells = self._gateway.store.cell_scan(prefix_of(self._record.id))
        gone = {cell.name for cell in cells if self._gateway.store.process_alive(cell.value["process"]) is False}
        living_ids = {standing_of(cell).id for cell in cells if cell.name not in gone}
        kept: list[Cell] = []
        for cell in cells:
            if cell.name not in gone or self._somebody_will_tell(standing_of(cell), living_ids):
                kept.append(cell)
            else:
                with suppress(RoomClosed):
                    strike_off(self._gateway, self._record.id, standing_of(cell).id)
        members = [standing_of(cell) for cell in kept]
        return SessionSnapshot(
            [m._replace(blocked=False) if prefix_of(self._record.id) + m.id in gone else m for m in members],
            {cell.name: cell.version for cell in kept},
        )

    def _somebody_will_tell(self, member: Standing, living_ids: set[str]) -> bool:
        """Whether the death of this member is a failure that others are about to record: it is no deadlock then."""
        return member.role == OPENER or (member.role == WORKER and member.parent in living_ids)

    def _has_mail(self, members: Sequence[Standing]) -> bool:
        """Whether anything is stored, claimed or delayed for a mailbox that somebody waits for."""
        boxes = {
            name for member in members for wait in member.waits if wait["on"] == ON_MAILBOX for name in wait["names"]
        }
        channels = tuple(channel_of(self._record.id, box) for box in sorted(boxes))
        if not channels:
            return False
        # first what is found by an index; a message that was put there past the session is found by going through all
        for correlation_id in (self._record.id, None):
            query = Query(states=OPEN, channels=channels, correlation_id=correlation_id, limit=1)
            if self._gateway.store.find(query).messages:
                return True
        return False
