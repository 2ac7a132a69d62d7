"""Where decisions are kept, once per message: in cells, written by compare-and-set. A room's are shared by all.

Each message has a cell "decision/<id>":

    {"owner": PROCESS, "until_ms": …, "steady": …, "decision": None}   somebody considers it
    {"owner": PROCESS, "until_ms": …, "decision": {…}}                 decided; never changed but for what came late

A cell that is taken belongs to its owner until the owner is gone or its time is over; then another may take it. Of
several coordinators one writes and the others read. Threads of one coordinator wait for each other, however long it
takes: a lock per message.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from functools import partial
from itertools import count, repeat
from typing import Any, Final
from weakref import WeakValueDictionary

import msgspec

from postroom.core.clock import Clock
from postroom.errors import RoomBusy
from postroom.stores.cells import update
from postroom.stores.contract import Store, topic_cells

from .decide import Decision, Late, decision_from

Value = dict[str, Any]

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
        self._lock = threading.Lock()
        self._deciding: WeakValueDictionary[str, threading.RLock] = WeakValueDictionary()

    def deciding(self, message_id: str) -> threading.RLock:
        """The lock to hold from `take` up to `keep` or `release`: another thread asks nobody meanwhile, but waits."""
        with self._lock:
            return self._deciding.setdefault(message_id, threading.RLock())

    def take(self, message_id: str, deadline_s: float) -> Decision | int:
        """The decision on the message, if there is one; else the version of its cell: it is the caller's to decide.

        Waits while another coordinator decides.
        """
        version = self._store.cell_write(PREFIX + message_id, self._claim(deadline_s), expect=0)  # the usual case
        if version is not None:
            return version
        return self._take_over(message_id, partial(self._claim, deadline_s), repeat(None))

    def _take_over(self, message_id: str, value: Callable[[], Value], tries: Iterable[object]) -> Decision | int:
        """Wait for another's decision; when nobody will come to one, write that value. Returns its version then."""
        with self._store.listen([topic_cells(PREFIX)]) as waiter:
            for _ in tries:
                cell = self._store.cell_read(PREFIX + message_id)
                if cell is not None and cell.value["decision"] is not None:
                    return decision_from(cell.value["decision"])
                if cell is None or self._is_abandoned(cell.value):
                    expect = 0 if cell is None else cell.version
                    version = self._store.cell_write(PREFIX + message_id, value(), expect=expect)
                    if version is not None:
                        return version
                else:
                    waiter.wait(_SAFETY_S)
        raise RoomBusy(f"no process finished the decision on message {message_id}; try again")

    def _claim(self, deadline_s: float) -> Value:
        span_s = deadline_s + GRACE_S
        until_ms = self._clock.wall_ms() + round(span_s * 1000)
        steady = [self._clock.boot_id(), self._clock.steady_ns() + round(span_s * 1_000_000_000)]
        return {"owner": self._store.process, "until_ms": until_ms, "steady": steady, "decision": None}

    def _is_abandoned(self, value: Value) -> bool:
        """Whether nobody will decide: its owner is gone, or has had all its time."""
        return self._store.process_alive(value["owner"]) is False or self._is_over(value)

    def _is_over(self, value: Value) -> bool:
        """Whether its owner's time is over: by the steady clock, between processes of one boot.

        So a wall clock that is set neither takes a message from the coordinator that is at it nor lets the others wait
        for ever (tests/pools/test_coordinator.py).
        """
        match value.get("steady"):
            case [boot, int(until_ns)] if boot == self._clock.boot_id():
                return self._clock.steady_ns() > until_ns
        return self._clock.wall_ms() > int(value["until_ms"])

    def release(self, message_id: str, version: int) -> None:
        """It was not decided after all: let others."""
        self._store.cell_write(PREFIX + message_id, None, expect=version)

    def keep(self, decision: Decision, version: int) -> Decision:
        """Keep it, and return the decision that stands: another one, when somebody else was first."""
        value = partial(self._decided, decision)
        found: Decision | int | None = self._store.cell_write(PREFIX + decision.message_id, value(), expect=version)
        if found is None:  # we were taken for dead: another decides, or has; its word stands
            found = self._take_over(decision.message_id, value, range(_MAX_TRIES))
        if next(self._made) % _FORGET_EVERY == 0:
            self.forget(KEEP_S)
        kept = found if isinstance(found, Decision) else decision
        return msgspec.structs.replace(kept, made_here=kept is decision)

    def _decided(self, decision: Decision) -> Value:
        return {"owner": self._store.process, "until_ms": self._clock.wall_ms(), "decision": decision.to_dict()}

    def find(self, message_id: str) -> Decision | None:
        """The decision that stands, if there is one."""
        cell = self._store.cell_read(PREFIX + message_id)
        return None if cell is None or cell.value["decision"] is None else decision_from(cell.value["decision"])

    def add_late(self, message_id: str, late: Late) -> None:
        """Write down what came too late. The decision stays as it is. Raises RoomBusy when that could not be done."""

        def change(value: Value | None) -> Value | None:
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
