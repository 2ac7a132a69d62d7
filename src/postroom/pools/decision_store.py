"""Where decisions are kept: once per message. In a room all coordinators share them; without one, this process does.

In a room each message has a cell "decision/<id>":

    {"owner": PROCESS, "until_ms": …, "decision": None}          somebody considers it
    {"owner": PROCESS, "until_ms": …, "decision": {…}}           decided; never changed again but for what came late

A cell that is taken belongs to its owner until the owner is gone or its time is over; then another may take it. All
changes are by compare-and-set, so that of several coordinators one writes and the others read.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections import OrderedDict
from typing import TYPE_CHECKING, Any, Final

import msgspec

from postroom.core.clock import Clock
from postroom.errors import RoomBusy
from postroom.stores.cells import update
from postroom.stores.contract import topic_cells

from .decide import Decision, Late, decision_from

if TYPE_CHECKING:
    from postroom.room import Room

PREFIX: Final = "decision/"
#: So long after its deadline an owner that still runs may be late; then another decides.
GRACE_S: Final = 5.0
#: Decisions are kept for so long; a message that is considered again after it may be decided anew.
KEEP_S: Final = 7 * 24 * 3600.0
#: After so many decisions the old ones are looked for.
_FORGET_EVERY: Final = 1000
_MAX_LOCAL: Final = 10_000
_MAX_TRIES: Final = 200
#: A coordinator that waits for another's decision looks by itself after so long: the owner may have died.
_SAFETY_S: Final = 1.0


class Decisions(ABC):
    """Decisions by message."""

    @abstractmethod
    def take(self, message_id: str, deadline_s: float) -> Decision | None:
        """The decision on the message, if there is one; None: it is the caller's to decide.

        Waits while another coordinator decides.
        """

    @abstractmethod
    def release(self, message_id: str) -> None:
        """It was not decided after all: let others."""

    @abstractmethod
    def keep(self, decision: Decision) -> Decision:
        """Keep it, and return the decision that stands: another one, when somebody else was first."""

    @abstractmethod
    def find(self, message_id: str) -> Decision | None:
        """The decision that stands, if there is one."""

    @abstractmethod
    def add_late(self, message_id: str, late: Late) -> None:
        """Write down what came too late. The decision stays as it is. Raises RoomBusy when that could not be done."""


class LocalDecisions(Decisions):
    """Of this process alone; the latest ten thousand."""

    def __init__(self) -> None:
        self._news = threading.Condition()
        self._kept: OrderedDict[str, Decision | None] = OrderedDict()

    def take(self, message_id: str, deadline_s: float) -> Decision | None:
        del deadline_s  # the decider is a thread of this process, and will
        with self._news:
            while message_id in self._kept:
                decision = self._kept[message_id]
                if decision is not None:
                    return decision
                self._news.wait()
            self._kept[message_id] = None
            return None

    def release(self, message_id: str) -> None:
        with self._news:
            self._kept.pop(message_id, None)
            self._news.notify_all()

    def keep(self, decision: Decision) -> Decision:
        with self._news:
            self._kept[decision.message_id] = decision
            while len(self._kept) > _MAX_LOCAL and next(iter(self._kept.values())) is not None:
                self._kept.popitem(last=False)
            self._news.notify_all()
        return msgspec.structs.replace(decision, made_here=True)

    def find(self, message_id: str) -> Decision | None:
        with self._news:
            return self._kept.get(message_id)

    def add_late(self, message_id: str, late: Late) -> None:
        with self._news:
            decision = self._kept.get(message_id)
            if decision is not None:
                self._kept[message_id] = with_late(decision, late)


class RoomDecisions(Decisions):
    """Of all coordinators of a room."""

    def __init__(self, room: Room, clock: Clock) -> None:
        self._store = room.store
        self._clock = clock
        self._process = room.gateway.process
        self._versions: dict[str, int] = {}  # of cells that are ours to decide
        self._local = LocalDecisions()  # threads of one process: one of them asks the room, the others wait for it
        self._lock = threading.Lock()
        self._made = 0

    def take(self, message_id: str, deadline_s: float) -> Decision | None:
        decision = self._local.take(message_id, deadline_s)
        if decision is not None:
            return self.find(message_id) or decision
        try:
            decision = self._take_cell(message_id, deadline_s)
        except BaseException:
            self._local.release(message_id)
            raise
        if decision is not None:
            self._local.keep(decision)
        return decision

    def _take_cell(self, message_id: str, deadline_s: float) -> Decision | None:
        name = PREFIX + message_id
        value = self._claim(deadline_s)
        version = self._store.cell_write(name, value, expect=0)  # nobody came before: the usual case, in one step
        if version is None:
            with self._store.listen([topic_cells(PREFIX)]) as waiter:
                while version is None:
                    cell = self._store.cell_read(name)
                    if cell is not None and cell.value["decision"] is not None:
                        return decision_from(cell.value["decision"])
                    if cell is None or self._is_abandoned(cell.value):
                        expect = 0 if cell is None else cell.version
                        version = self._store.cell_write(name, self._claim(deadline_s), expect=expect)
                    else:
                        waiter.wait(_SAFETY_S)
        with self._lock:
            self._versions[message_id] = version
        return None

    def _claim(self, deadline_s: float) -> dict[str, Any]:
        until_ms = self._clock.wall_ms() + round((deadline_s + GRACE_S) * 1000)
        return {"owner": self._process, "until_ms": until_ms, "decision": None}

    def _is_abandoned(self, value: dict[str, Any]) -> bool:
        """Whether nobody will decide: its owner is gone, or has had all its time."""
        return self._store.process_alive(value["owner"]) is False or self._clock.wall_ms() > value["until_ms"]

    def release(self, message_id: str) -> None:
        with self._lock:
            version = self._versions.pop(message_id, None)
        try:
            if version is not None:
                self._store.cell_write(PREFIX + message_id, None, expect=version)
        finally:  # else the threads of this process would wait for ever (tests/pools/test_coordinator.py)
            self._local.release(message_id)

    def keep(self, decision: Decision) -> Decision:
        with self._lock:
            version = self._versions.get(decision.message_id, 0)
            self._made += 1
            tidy = self._made % _FORGET_EVERY == 0
        made = self._write(decision, version)
        with self._lock:  # not before: what could not be written is still ours to release
            self._versions.pop(decision.message_id, None)
        if not made:  # we were taken for dead: another decides, or has; its word stands
            decision, made = self._other(decision)
        self._local.keep(decision)
        if tidy:
            self.forget(KEEP_S)
        return msgspec.structs.replace(decision, made_here=made)

    def _write(self, decision: Decision, expect: int) -> bool:
        value = {"owner": self._process, "until_ms": self._clock.wall_ms(), "decision": decision.to_dict()}
        return self._store.cell_write(PREFIX + decision.message_id, value, expect=expect) is not None

    def _other(self, ours: Decision) -> tuple[Decision, bool]:
        """The decision that stands in place of ours, or ours when nobody else came to one; and whether it is ours."""
        with self._store.listen([topic_cells(PREFIX)]) as waiter:
            for _ in range(_MAX_TRIES):
                cell = self._store.cell_read(PREFIX + ours.message_id)
                if cell is not None and cell.value["decision"] is not None:
                    return decision_from(cell.value["decision"]), False
                if (cell is None or self._is_abandoned(cell.value)) and self._write(ours, cell.version if cell else 0):
                    return ours, True
                waiter.wait(_SAFETY_S)
        raise RoomBusy(f"nobody came to a decision on message {ours.message_id}; try again")

    def find(self, message_id: str) -> Decision | None:
        cell = self._store.cell_read(PREFIX + message_id)
        return None if cell is None or cell.value["decision"] is None else decision_from(cell.value["decision"])

    def add_late(self, message_id: str, late: Late) -> None:
        self._local.add_late(message_id, late)

        def change(value: dict[str, Any] | None) -> dict[str, Any] | None:
            if value is None or value["decision"] is None:
                return None
            return {**value, "decision": with_late(decision_from(value["decision"]), late).to_dict()}

        update(self._store, PREFIX + message_id, change)

    def forget(self, older_than_s: float) -> int:
        """Forget decisions that were made longer ago than this. Returns how many."""
        before_ms = self._clock.wall_ms() - round(older_than_s * 1000)
        forgotten = 0
        for cell in self._store.cell_scan(PREFIX):
            if cell.value["decision"] is not None and cell.value["until_ms"] < before_ms:
                forgotten += self._store.cell_write(cell.name, None, expect=cell.version) is not None
        return forgotten


def with_late(decision: Decision, late: Late) -> Decision:
    """The decision with one more thing that came too late for it. What it says stays as it was."""
    return msgspec.structs.replace(decision, late=(*decision.late, late))
