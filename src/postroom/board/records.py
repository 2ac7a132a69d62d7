"""The board's cells, and the steps that change them so that a kill between any two writes loses nothing.

    board/task/<id>            the task: the one truth
    board-ready/…              where claimable tasks are found (board/ready_index.py)
    board-claim/<id>           there while a claim, or what follows from its end, is not finished
    board-after/<id>/<other>   `other` waits for `id`
    board-lead                 the names of leads

A claim writes the task, then `board-claim`. The end of a claim writes the task, then does what follows (the bucket, the
signal to the lead, the tasks that waited for it), and takes `board-claim` away last. Each of these steps may be done
twice. So a look over the few `board-claim` cells finishes what a dead process had begun, and no claim is missed:
an entry of the index whose task is claimed is taken out only when its `board-claim` is there; only a claimed task is
settled, so a late owner claims it back first, and writes `board-claim` anew; and `board-claim` is taken away only as it
was read before the task was, so that none is lost which was written meanwhile. spec/task.pml says the same.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import Any, Final, NamedTuple

from postroom.core.config import AGENT_LEASE_S
from postroom.core.crashpoints import reached
from postroom.core.message import Draft, check
from postroom.errors import DependencyCycle, InvalidMessage
from postroom.mail.gateway import Gateway
from postroom.stores.cells import DELETE, update
from postroom.stores.contract import ANY, Cell

from . import task
from .ready_index import ReadyBucket, ReadyIndex
from .task import ABORTED, BLOCKED, CLAIMED, DONE, READY, Task, Value, encoded

CLAIMS: Final = "board-claim/"
WAITING: Final = "board-after/"
SIGNAL: Final = "board-signal"
LEADS: Final = "board-lead"
REMOVED: Final = "board-removed"

#: Claims are looked over this often, in seconds, and a process that was seen to live is not asked again for so long:
#: together less than the second within which a death is to be seen.
LOOK_S: Final = 0.5
ALIVE_S: Final = 0.3
#: The index is made right again from the tasks this often while there is work, and this often while there is none; on a
#: large board more seldom, see `ReadyIndex.mending_is_due`.
BUSY_MEND_S: Final = 60.0
IDLE_MEND_S: Final = 1.0
#: A claimer that passed so many entries that are out of date takes them out.
MAX_PASSED: Final = 8


class Claim(NamedTuple):
    """The claimer, and for how long it claims.

    A claim without a process belongs to the agent and ends by time alone.
    """

    agent: str
    process: str | None
    lease_s: float


class TaskCell(NamedTuple):
    """A task's cell as it was read."""

    version: int
    value: Value


class Book:
    """Everything that is written about tasks. All methods may be called from several threads at once."""

    def __init__(self, gateway: Gateway) -> None:
        self.gateway = gateway
        self.store = gateway.store
        self.clock = gateway.clock
        self.index = ReadyIndex(gateway.store, gateway.clock)
        self._alive_ns: dict[str, int] = {}  # process -> when it was seen to run
        self._looked_ns: int | None = None
        self._seen: dict[str, TaskCell] = {}  # what `all` found last; its values are never changed

    # Reading

    def read(self, id: str) -> TaskCell | None:
        cell = self.store.cell_read(task.cell_of(id))
        return None if cell is None else TaskCell(cell.version, task.whole_value(id, cell.value))

    def all(self) -> dict[str, TaskCell]:
        """Every task by its id, in the order in which they are claimed."""
        known, found = self._seen, {}
        for cell in self.store.cell_scan(task.PREFIX):
            id = task.id_of_cell(cell.name)
            before = known.get(id)
            if before is not None and before.version == cell.version:  # most of a large board, when somebody watches it
                found[id] = before
            else:
                found[id] = TaskCell(cell.version, task.whole_value(id, cell.value))
        self._seen = found
        places = {id: each.value["place"] for id, each in found.items()}
        return {id: found[id] for id in sorted(found, key=lambda each: (places[each] is None, places[each], each))}

    def show(self, value: Value, state_of: Callable[[str], str | None] | None = None) -> Task:
        """What people are told of a task at this moment."""
        return task.show(value, self.unmet(value, state_of or self.state_of), self.lapse(value))

    def state_of(self, id: str) -> str | None:
        found = self.read(id)
        return None if found is None else str(found.value["state"])

    @staticmethod
    def unmet(value: Value, state_of: Callable[[str], str | None]) -> list[str]:
        """What the task still waits for."""
        return [id for id in value["after"] if state_of(id) != DONE]

    def lapse(self, value: Value) -> str | None:
        """Why the claim of a claimed task no longer holds; None when it does, or when there is none."""
        return task.lapse_of(self.clock, value, self.is_gone) if value["state"] == CLAIMED else None

    def is_gone(self, process: str) -> bool:
        """Whether a process is seen to be gone. One that was seen to live is not asked again for a moment."""
        now_ns = self.clock.steady_ns()
        if 0 <= now_ns - self._alive_ns.get(process, -(10**18)) < ALIVE_S * 1_000_000_000:
            return False
        if self.store.process_alive(process) is False:
            return True
        if len(self._alive_ns) > 1000:
            self._alive_ns.clear()
        self._alive_ns[process] = now_ns
        return False

    def is_claimable(self, value: Value) -> bool:
        free = value["state"] == READY or self.lapse(value) is not None
        return free and not self.unmet(value, self.state_of)

    # Changing one task

    def change(self, id: str, decide: Callable[[Value], Value | None]) -> Value | None:
        """Change a task by compare-and-set. `decide` returns its new value, or None to leave it: then None is returned.

        Raises RoomBusy, and nothing was changed, when others kept changing the task.
        """
        decided: Value | None = None

        def change(value: Any) -> Value | None:
            nonlocal decided
            decided = None if value is None else decide(task.whole_value(id, value))
            return decided

        update(self.store, task.cell_of(id), change)
        return decided

    # Claiming

    def take(self, id: str, claim: Claim) -> Value | None:
        """Claim one task; None when it is not there, not ready, or somebody else's."""

        def decide(value: Value) -> Value | None:
            if not self.is_claimable(value):
                return None
            return {
                **value,
                "state": CLAIMED,
                "owner": claim.agent,
                "process": claim.process,
                "token": value["token"] + 1,
                "why": None,
                "last_owner": None,
                **task.lease_fields(self.clock, claim.lease_s),
            }

        taken = self.change(id, decide)
        if taken is not None:
            reached("board.claimed")
            self.note_claim(taken)
        return taken

    def note_claim(self, value: Value, expect: int = ANY) -> None:
        """Let the claim of a claimed task be found by `look_over`."""
        note = {"token": value["token"], "process": value["process"]}
        self.store.cell_write(CLAIMS + encoded(value["id"]), note, expect=expect)

    def read_note(self, id: str) -> Cell | None:
        """The note of a task's claim, for `follow`: to be read before the task is read or changed."""
        return self.store.cell_read(CLAIMS + encoded(id))

    def take_next(self, claim: Claim) -> Value | None:
        """Claim the first task that can be claimed; None when there is none."""
        for bucket in self.index.buckets():
            passed: list[int] = []
            for place, id in bucket.entries.items():
                taken = self.take(id, claim)
                if taken is not None:
                    if len(passed) >= MAX_PASSED:
                        self._take_out(bucket, passed)
                    return taken
                passed.append(place)
            self._take_out(bucket, passed)
        return None

    def _take_out(self, bucket: ReadyBucket, places: Iterable[int]) -> None:
        """Take entries out of the index that cannot be claimed, unless they have become claimable meanwhile."""
        out = []
        for place in places:
            found = self.read(bucket.entries[place])
            if found is not None and found.value["place"] == place:
                if self.is_claimable(found.value):
                    continue
                if found.value["state"] == CLAIMED:  # from here on it is found by its claim, so there must be one
                    self._adopt(found.value)
            out.append(place)
        self.index.take_out(bucket, out)

    # Ending a claim, and what follows

    def follow(self, value: Value, note: Cell | None) -> None:
        """Do what follows from a task's state, and then forget its claim. May be done twice, and by anybody.

        `note` was read before the task was. One that was written since stays: it may be that of a late owner, which
        took the task back and reports something else (tests/board/test_board.py:
        test_the_lead_is_told_of_a_late_done_wherever_its_owner_was_killed).
        """
        reached("board.moved")
        if value["state"] == READY:
            self.offer([value])
        elif value["state"] == DONE:
            self.offer(self._waiting_for(value["id"]))
        self._tell(value)
        reached("board.followed")
        if note is not None and _token(note) <= value["token"]:  # a later claim keeps its own note
            self.store.cell_write(note.name, None, expect=note.version)

    def offer(self, values: Iterable[Value]) -> None:
        """Put those of these tasks into the index that can be claimed."""
        places = {
            value["place"]: value["id"] for value in values if value["place"] is not None and self.is_claimable(value)
        }
        if places:
            self.index.insert(places)

    def _waiting_for(self, id: str) -> list[Value]:
        prefix = f"{WAITING}{encoded(id)}/"
        found = (self.read(task.id_of_cell(cell.name.removeprefix(prefix))) for cell in self.store.cell_scan(prefix))
        return [each.value for each in found if each is not None]

    def _tell(self, value: Value) -> None:
        """Tell the lead or the owner what they are to be told; nobody is told twice.

        A task may have been edited by hand, so that its owner is no name, or its result another than was told. Every
        look at the board passes here, and must not be stopped by that.
        """
        told = self._signal(value)
        if told is not None:
            with suppress(InvalidMessage):
                self.gateway.put([told], limited=False)

    def _signal(self, value: Value) -> Draft | None:
        """The message about a task's state, always the same: an end goes to the lead, an abort to the owner."""
        lead, owner, state = value["lead"], value["owner"], value["state"]
        if state == ABORTED and owner is not None and isinstance(value.get("tell_owner"), str):
            return self._draft(value["tell_owner"], owner, "abort", value, {"why": value["why"]})
        if lead is None or owner is None or lead == owner or state not in (DONE, BLOCKED):
            return None
        if value.get("told") == lead:  # by the owner itself
            return None
        said = {"result": value["result"]} if state == DONE else {"why": value["why"]}
        return self._draft(owner, lead, state, value, said)

    def _draft(self, sender: str, to: str, action: str, value: Value, said: dict[str, Any]) -> Draft:
        """A message of the protocol about a task. A repeat for the same claim is stored once."""
        mark = hashlib.blake2b(value["id"].encode(), digest_size=16).hexdigest()
        draft = Draft(
            from_agent=sender,
            to_agent=to,
            type=action,
            payload={"task_id": value["id"], **said},
            correlation_id=value["id"],
            idempotency_key=f"board/{mark}/{value['token']}/{action}",
            max_deliveries=self.gateway.config.max_deliveries,
        )
        try:
            return check(draft, self.gateway.config.max_payload_bytes)
        except InvalidMessage:  # a result that fits a cell and not a message is read from the board
            draft.payload = {"task_id": value["id"], "on_board": True}
            return draft

    # Looking over what others have begun

    def look_over(self, *, now: bool = False) -> None:
        """Release what dead owners and ended leases hold, and finish what dead processes began. Not at every step."""
        now_ns = self.clock.steady_ns()
        if not now and self._looked_ns is not None and 0 <= now_ns - self._looked_ns < LOOK_S * 1_000_000_000:
            return
        self._looked_ns = now_ns
        for cell in self.store.cell_scan(CLAIMS):
            self._tidy(cell)
        self.mend_if_due(BUSY_MEND_S)

    def _tidy(self, note: Cell) -> None:
        found = self.read(task.id_of_cell(note.name.removeprefix(CLAIMS)))
        if found is None:
            self.store.cell_write(note.name, None, expect=note.version)
        elif found.value["state"] != CLAIMED:
            self.follow(found.value, note)
        elif self.lapse(found.value) is not None:
            released = self.change(found.value["id"], self._lapsed)
            if released is not None:
                self.follow(released, note)
        else:
            self._give_lease(found.value)  # an edit by hand may have taken it away

    def _lapsed(self, value: Value) -> Value | None:
        """Ready again, with the same token: until somebody claims it, its late owner may still report it done."""
        lapse = self.lapse(value)
        if lapse is None:
            return None
        return free(value, last_owner=value["owner"], why=f"{value['owner']}: {lapse}")

    # Mending

    def mend_if_due(self, every_s: float) -> bool:
        """Mend the index when nobody did for so long. Returns whether it was."""
        if not self.index.mending_is_due(every_s):
            return False
        self.mend()
        return True

    def mend(self) -> None:
        """Make everything that is derived from the tasks right again. Safe at any moment, and while others work."""
        since_ns = self.clock.steady_ns()
        self.index.note_mending(since_ns)
        found = self.all()
        self._mend_places(found)
        states = {id: str(each.value["state"]) for id, each in found.items()}
        wanted: dict[int, str] = {}
        for id, (_, value) in found.items():
            free_now = value["state"] == READY or self.lapse(value) is not None
            if free_now and not self.unmet(value, states.get):
                wanted[value["place"]] = id
        self._mend_index(found, wanted)
        claims = {cell.name for cell in self.store.cell_scan(CLAIMS)}
        for id, (_, value) in found.items():
            if value["state"] == CLAIMED and CLAIMS + encoded(id) not in claims:
                self._adopt(value)
        self._mend_waiting(found)
        self.index.note_mending(since_ns)

    def _adopt(self, value: Value) -> None:
        """Let a claim without a note be found.

        One that was written by hand gets a lease first: with a note and without a lease it would never end
        (tests/board/test_by_hand.py: test_a_claim_written_by_hand_that_a_worker_passes_by_ends).
        """
        self._give_lease(value)
        self.note_claim(value, expect=0)

    def _give_lease(self, value: Value) -> None:
        """A claim that was written by hand ends by time, like every claim of an agent."""

        def give(value: Value) -> Value | None:
            endless = value["state"] == CLAIMED and task.lease_left_s(self.clock, value) is None
            return {**value, **task.lease_fields(self.clock, AGENT_LEASE_S)} if endless else None

        if value["lease"] is None:
            self.change(value["id"], give)

    def _mend_places(self, found: dict[str, TaskCell]) -> None:
        """Tasks that were written by hand, or whose place another has, get a place of their own."""
        taken: set[int] = set()
        without: list[str] = []
        for id, (_, value) in found.items():
            if value["place"] is None or value["place"] in taken:
                without.append(id)
            else:
                taken.add(value["place"])
        self.index.raise_next(max(taken, default=-1) + 1)
        first = self.index.next_place(len(without)) if without else 0
        for place, id in enumerate(without, first):

            def put(value: Value, place: int = place) -> Value:
                return {**value, "place": place}

            self.change(id, put)
            found[id] = TaskCell(0, put(found[id].value))

    def _mend_index(self, found: dict[str, TaskCell], wanted: dict[int, str]) -> None:
        present: dict[int, str] = {}
        for bucket in self.index.buckets():
            present |= bucket.entries
            stale = [place for place, id in bucket.entries.items() if id not in found]
            if stale:
                self.index.take_out(bucket, stale)
        missing = {place: id for place, id in wanted.items() if present.get(place) != id}
        if missing:
            self.index.insert(missing)

    def _mend_waiting(self, found: dict[str, TaskCell]) -> None:
        there = {cell.name for cell in self.store.cell_scan(WAITING)}
        wanted = {_waiting_cell(id, other) for other, (_, value) in found.items() for id in value["after"]}
        for name in wanted - there:
            self.store.cell_write(name, 1, expect=0)

    # Adding

    def note_waiting(self, value: Value) -> None:
        """It is to be found by those that it waits for."""
        for id in value["after"]:
            self.store.cell_write(_waiting_cell(id, value["id"]), 1, expect=0)

    def check_cycle(self, value: Value) -> None:
        """Raise DependencyCycle when the task would close a circle. Only one that others wait for can."""
        id = value["id"]
        if id not in value["after"] and not self.store.cell_scan(f"{WAITING}{encoded(id)}/"):
            return
        cycle = task.find_cycle(id, value["after"], self._after_of)
        if cycle is not None:
            raise DependencyCycle(cycle)

    def _after_of(self, id: str) -> Sequence[str]:
        found = self.read(id)
        return found.value["after"] if found is not None else ()

    # Removing

    def first_token(self) -> int:
        """The token of a new task: that of no task before it which had its id and was removed."""
        cell = self.store.cell_read(REMOVED)
        return 0 if cell is None else int(cell.value)

    def waiting_for(self, id: str) -> list[str]:
        """The tasks that would never be ready without this one."""
        waiting = (value for value in self._waiting_for(id) if id in value["after"])
        return [value["id"] for value in waiting if value["state"] not in (DONE, ABORTED)]

    def remove(self, id: str) -> bool:
        """Delete a task's cell, unless somebody holds it. False when somebody does, or when it is not there."""
        removed: Value | None = None

        def change(value: Any) -> Any:
            nonlocal removed
            removed = None if value is None else task.whole_value(id, value)
            if removed is None or (removed["state"] == CLAIMED and self.lapse(removed) is None):
                removed = None
                return None
            token = removed["token"]
            # first: a holder of a task of this id that is added later must not be taken for the one of today
            update(self.store, REMOVED, lambda first: None if (first or 0) > token else token + 1)
            return DELETE

        update(self.store, task.cell_of(id), change)
        for other in removed["after"] if removed is not None else ():
            self.store.cell_write(_waiting_cell(other, id), None)
        return removed is not None

    # Leads

    def leads(self) -> list[str]:
        """Agents that were named as the lead of a task."""
        cell = self.store.cell_read(LEADS)
        return [name for name in cell.value if isinstance(name, str)] if cell is not None else []

    def add_lead(self, name: str) -> None:
        update(self.store, LEADS, lambda names: None if name in (names or ()) else [*(names or ()), name])


def free(value: Value, **said: Any) -> Value:
    """The task in nobody's hands."""
    return {**value, "state": READY, "owner": None, "process": None, "lease": None, "steady": None, **said}


def ended(value: Value, state: str, **said: Any) -> Value:
    """The task at rest: done, blocked or aborted; its owner stays named."""
    assert state in (DONE, BLOCKED, ABORTED)
    return {**value, "state": state, "process": None, "lease": None, "steady": None, "last_owner": None, **said}


def _waiting_cell(id: str, other: str) -> str:
    return f"{WAITING}{encoded(id)}/{encoded(other)}"


def _token(note: Cell) -> int:
    match note.value:
        case {"token": int(token)}:
            return token
    return 0
