"""Where decisions are kept, once per message: in cells, written by compare-and-set. A room's are shared by all.

Each message has a cell "decision/<id>":

    {"owner": PROCESS, "until_ms": …, "decision": None}          somebody considers it
    {"owner": PROCESS, "until_ms": …, "decision": {…}}           decided; never changed again but for what came late

A cell that is taken belongs to its owner until the owner is gone or its time is over; then another may take it. Of
several coordinators, or threads of one, one writes and the others read.
"""

from __future__ import annotations

from itertools import count
from typing import Any, Final

import msgspec

from postroom.core.clock import Clock
from postroom.errors import RoomBusy
from postroom.stores.cells import update
from postroom.stores.contract import Store, topic_cells

from .decide import Decision, Late, decision_from

PREFIX: Final = "decision/"
#: So long after its deadline an owner that still runs may be late; then another decides.
GRACE_S: Final = 5.0
#: Decisions are kept for so long; a message that is considered again after it may be decided anew.
KEEP_S: Final = 7 * 24 * 3600.0
#: After so many decisions the old ones are looked for.
_FORGET_EVERY: Final = 1000
_MAX_TRIES: Final = 200
#: A coordinator that waits for another's decision looks by itself after so long: the owner may have died.
_SAFETY_S: Final = 1.0


class Decisions:
    """Decisions by message, in the cells of a store; with `most`, about so many of the latest."""

    def __init__(self, store: Store, clock: Clock, most: int | None = None) -> None:
        self._store = store
        self._clock = clock
        self._most = most
        self._made = count(1)

    def take(self, message_id: str, deadline_s: float) -> Decision | int:
        """The decision on the message, if there is one; else the version of its cell: it is the caller's to decide.

        Waits while another coordinator decides.
        """
        name = PREFIX + message_id
        version = self._store.cell_write(name, self._claim(deadline_s), expect=0)  # the usual case, in one step
        if version is not None:
            return version
        if (decision := self.find(message_id)) is not None:
            return decision
        with self._store.listen([topic_cells(PREFIX)]) as waiter:
            while True:
                cell = self._store.cell_read(name)
                if cell is not None and cell.value["decision"] is not None:
                    return decision_from(cell.value["decision"])
                if cell is None or self._is_abandoned(cell.value):
                    expect = 0 if cell is None else cell.version
                    version = self._store.cell_write(name, self._claim(deadline_s), expect=expect)
                    if version is not None:
                        return version
                else:
                    waiter.wait(_SAFETY_S)

    def _claim(self, deadline_s: float) -> dict[str, Any]:
        until_ms = self._clock.wall_ms() + round((deadline_s + GRACE_S) * 1000)
        return {"owner": self._store.process, "until_ms": until_ms, "decision": None}

    def _is_abandoned(self, value: dict[str, Any]) -> bool:
        """Whether nobody will decide: its owner is gone, or has had all its time."""
        return self._store.process_alive(value["owner"]) is False or self._clock.wall_ms() > value["until_ms"]

    def release(self, message_id: str, version: int) -> None:
        """It was not decided after all: let others."""
        self._store.cell_write(PREFIX + message_id, None, expect=version)

    def keep(self, decision: Decision, version: int) -> Decision:
        """Keep it, and return the decision that stands: another one, when somebody else was first."""
        made = self._write(decision, version)
        if not made:  # we were taken for dead: another decides, or has; its word stands
            decision, made = self._other(decision)
        if next(self._made) % _FORGET_EVERY == 0:
            self.forget(KEEP_S)
        return msgspec.structs.replace(decision, made_here=made)

    def _write(self, decision: Decision, expect: int) -> bool:
        value = {"owner": self._store.process, "until_ms": self._clock.wall_ms(), "decision": decision.to_dict()}
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
        """The decision that stands, if there is one."""
        cell = self._store.cell_read(PREFIX + message_id)
        return None if cell is None or cell.value["decision"] is None else decision_from(cell.value["decision"])

    def add_late(self, message_id: str, late: Late) -> None:
        """Write down what came too late. The decision stays as it is. Raises RoomBusy when that could not be done."""

        def change(value: dict[str, Any] | None) -> dict[str, Any] | None:
            if value is None or value["decision"] is None:
                return None
            decision = decision_from(value["decision"])
            return {**value, "decision": msgspec.structs.replace(decision, late=(*decision.late, late)).to_dict()}

        update(self._store, PREFIX + message_id, change)

    def forget(self, older_than_s: float) -> int:
        """Forget decisions that were made longer ago than this, or are too many. Returns how many."""
        before_ms = self._clock.wall_ms() - round(older_than_s * 1000)
        decided = [cell for cell in self._store.cell_scan(PREFIX) if cell.value["decision"] is not None]
        decided.sort(key=lambda cell: cell.value["until_ms"])
        surplus = 0 if self._most is None else len(decided) - self._most
        old = [cell for place, cell in enumerate(decided) if place < surplus or cell.value["until_ms"] < before_ms]
        return sum(self._store.cell_write(cell.name, None, expect=cell.version) is not None for cell in old)
