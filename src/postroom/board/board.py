"""The board: tasks that agents take, each by one owner, in the order in which they can be done.

    room.board.add("T1", title="schema")
    room.board.add("T2", title="endpoints", after=["T1"])
    task = room.board.claim(agent="worker-1")        # T1; T2 waits for it
    task.done({"tables": 4})

It is built of the store's cells, messages and bells alone, so it is the same on every store.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

from postroom.core.config import AGENT_LEASE_S, LEASE_S
from postroom.core.untrusted import quoted
from postroom.errors import Fault, InvalidMessage, RoomClosed, RoomGone, RoomUnreachable, UnknownTask, raise_faults
from postroom.mail import presence
from postroom.mail.gateway import Deadline, Gateway, Pause, Series, Steps
from postroom.mail.received import check_names, check_seconds, check_timeout, words
from postroom.stores.contract import topic_cells, topic_to

from . import mail
from . import task as tasks
from .actions import BOARD, check_direction
from .heartbeats import TaskHeartbeats
from .held_task import HeldTask
from .ready_index import TOPIC as READY_TOPIC
from .records import IDLE_MEND_S, SIGNAL, Book, Claim, TaskCell, ended, free
from .task import ABORTED, BLOCKED, CLAIMED, READY, Task, Value

LOOP_ENDED: Final = "the loop ended before it was settled"
_TASKS: Final = topic_cells(tasks.PREFIX)


class Board:
    """The tasks of a room. All methods may be called from several threads at once."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self._book = Book(gateway)
        self._lock = threading.Lock()
        self._keeper: TaskHeartbeats | None = None
        self._known = False
        self._local = threading.local()
        self._reading_mail = threading.RLock()  # a look comes after what another thread of this process takes out of it

    # Adding

    def add(
        self,
        id: str,
        *,
        title: str = "",
        after: Iterable[str] = (),
        payload: dict[str, Any] | None = None,
        lead: str | None = None,
    ) -> Task:
        """Put a task on the board. It can be claimed when every task in `after` is done; those need not be there yet.

        `lead` is told by a message when it is done or blocked, and may assign and abort. Adding the same again changes
        nothing. Raises InvalidMessage when another task has that id, DependencyCycle (naming the circle) when tasks
        would wait for each other: then nothing was added.
        """
        (task,) = self.add_all([{"id": id, "title": title, "after": after, "payload": payload, "lead": lead}])
        return task

    def add_all(self, items: Iterable[Mapping[str, Any]]) -> list[Task]:
        """Put several tasks on the board, in this order. Each is a dict of `add`'s arguments.

        Faults of a single task are found before anything is added. What is found later (an id that is taken, a circle)
        is raised when its turn comes: those before it stay.
        """
        self._gateway.check_open()
        values = _new_values(items)
        for lead in {value["lead"] for value in values} - {None}:
            self._book.add_lead(lead)
        self._be_known()
        new = [value for value in values if self._not_there(value)]
        first = self._book.index.next_place(len(new)) if new else 0
        token = self._book.first_token() if new else 0
        offered: list[Value] = []
        try:
            for place, value in enumerate(new, first):
                value["place"], value["token"] = place, token
                if self._add_one(value):
                    offered.append(value)
        finally:
            self._book.offer(offered)
        return [self.get(value["id"]) for value in values]

    def _not_there(self, value: Value) -> bool:
        found = self._book.read(value["id"])
        if found is None:
            return True
        differing = [name for name in ("title", "after", "payload", "lead") if found.value[name] != value[name]]
        if differing:
            state = found.value["state"]
            raise InvalidMessage(
                "id", f"task {value['id']} is already on the board ({state}), with a different {differing[0]}"
            )
        return False

    def _add_one(self, value: Value) -> bool:
        self._book.check_cycle(value)
        self._book.note_waiting(value)
        version = self._book.store.cell_write(tasks.cell_of(value["id"]), value, expect=0)
        if version is None:  # somebody was faster
            return self._not_there(value)
        try:
            self._book.check_cycle(value)  # again: the others of a circle may have been added at the same moment
        except InvalidMessage:
            self._book.store.cell_write(tasks.cell_of(value["id"]), None, expect=version)
            raise
        return True

    def _be_known(self) -> None:
        """Agents may write to the board, so it is somebody."""
        if not self._known:
            presence.enter(self._gateway, BOARD, transient=True)
            self._known = True

    # Claiming

    def claim(
        self,
        agent: str,
        task_id: str | None = None,
        *,
        timeout_s: float | None = 0,
        lease_s: float | None = None,
        heartbeat: bool = True,
        transient: bool = False,
        process: str | None = None,
    ) -> HeldTask | None:
        """Take the next task that can be done, or that one; None when another agent has it or nothing is ready.

        After: it belongs to this agent until it is settled, aborted, or lapses: when the lease ends, or when this
        process is gone, which is seen in about a second. While the task is held, the lease is extended automatically
        (`heartbeat`). A transient claim belongs to the agent: it ends by time alone (ten minutes), and another process
        may settle it (`held`); `process` lets it end with that process instead. With `timeout_s` it waits for one to
        become ready (None: no limit). Raises UnknownTask when there is no such task.
        """
        check_names(agent=agent)
        if task_id is not None:
            check_names(task_id=task_id)
        check_timeout(timeout_s)
        if lease_s is None:
            lease_s = AGENT_LEASE_S if transient else LEASE_S
        check_seconds("lease_s", lease_s, zero=False)
        claim = Claim(agent, process if transient else self._gateway.process, lease_s)
        return self._gateway.finish(self._claiming(claim, task_id, timeout_s, heartbeat))

    def _claiming(
        self, claim: Claim, task_id: str | None, timeout_s: float | None, heartbeat: bool
    ) -> Steps[HeldTask | None]:
        deadline = Deadline(self._gateway.clock, timeout_s)
        waiter = None
        try:
            while True:
                if self._gateway.closing:
                    raise RoomClosed("this room is closed")
                value = self._take(claim, task_id)
                if value is not None:
                    return self._hold(value, claim, heartbeat=heartbeat)
                left_s = deadline.left_s()
                if left_s == 0:
                    return None
                if waiter is not None:
                    yield Pause(waiter, left_s)
                else:
                    waiter = self._gateway.listen([READY_TOPIC, topic_to(BOARD)])  # armed; look once more, then wait
        finally:
            if waiter is not None:
                waiter.close()

    def _take(self, claim: Claim, task_id: str | None) -> Value | None:
        self._look()
        hooks = self._gateway.hooks
        if hooks.listeners:
            hooks.tell("before_take", claim=claim, task_id=task_id)
        value = self._take_next(claim) if task_id is None else self._book.take(task_id, claim)
        if hooks.listeners:
            hooks.tell("after_take", claim=claim, task_id=task_id, taken=value)
        return self._held_already(task_id, claim) if value is None and task_id is not None else value

    def _take_next(self, claim: Claim) -> Value | None:
        value = self._book.take_next(claim)
        if value is None:  # before it is said that there is nothing, look closely
            self._book.look_over(now=True)
            self._book.mend_if_due(IDLE_MEND_S)
            value = self._book.take_next(claim)
        return value

    def _held_already(self, id: str, claim: Claim) -> Value | None:
        """A claim that belongs to the agent may be asked for again."""
        value = self._read(id).value
        mine = value["state"] == CLAIMED and value["owner"] == claim.agent and value["process"] == claim.process
        return value if mine and claim.process != self._gateway.process else None

    def _hold(self, value: Value, claim: Claim, *, heartbeat: bool) -> HeldTask:
        task = HeldTask(self._book, value, claim.lease_s, claim.process)
        if claim.process == self._gateway.process:  # what belongs to an agent is mostly held by programs of one step
            with self._lock:
                if self._keeper is None:
                    self._keeper = TaskHeartbeats(self._book)
            self._keeper.hold(task, heartbeat=heartbeat)
        return task

    def held(self, id: str, agent: str) -> HeldTask:
        """A task that this agent holds already, perhaps claimed by an earlier process of the same agent.

        Raises UnknownTask when it is not on the board, InvalidMessage saying whose it is when it is not this agent's.
        """
        check_names(id=id, agent=agent)
        self._look()
        value = self._read(id).value
        if tasks.holder_of(value) != agent:
            shown = self._book.show(value)
            whose = f" by {quoted(shown.owner)}" if shown.owner else ""
            raise InvalidMessage("id", f"{agent} does not hold task {id}: it is {shown.state}{whose}")
        claim = Claim(agent, value["process"], AGENT_LEASE_S)
        return self._hold(value, claim, heartbeat=False)

    def work(
        self, agent: str, *, timeout_s: float | None = None, lease_s: float | None = None, heartbeat: bool = True
    ) -> Iterator[HeldTask]:
        """One task after another, without end; with `timeout_s`, until none became ready for that long.

        When the loop's body comes round without having settled its task, that is done. A loop that ends in the middle
        (`break`, or an error in its body) has not said so: the task is released.
        """
        check_names(agent=agent)
        check_timeout(timeout_s)
        span_s = check_seconds("lease_s", LEASE_S if lease_s is None else lease_s, zero=False)
        claim = Claim(agent, self._gateway.process, span_s)
        return self._gateway.each(self._working(claim, timeout_s, heartbeat))

    def _working(self, claim: Claim, timeout_s: float | None, heartbeat: bool) -> Series[HeldTask]:
        while (task := (yield from self._claiming(claim, None, timeout_s, heartbeat))) is not None:
            try:
                yield task
            except GeneratorExit:
                if task.settled is None:
                    task.release(LOOP_ENDED)
                raise
            if task.settled is None:
                task.done()

    # Acting on tasks that others hold, or nobody

    def abort(
        self, id: str, why: str | None = None, *, by: str | None = None, _person: bool = False, _told: str | None = None
    ) -> bool:
        """Call a task off. A running owner is told at once (`task.aborted`), and its later `done` is refused.

        False when it is already done or aborted. An owner that is not a running process is told by mail (`abort`). `by` names
        the caller; that must be a lead, unless a door has seen a person's token. Raises UnknownTask.
        """
        said = None if why is None else words("why", why)
        self._look()
        owner = self._read(id).value["owner"]
        if by is not None:
            check_names(by=by)
            if not _person:
                check_direction("abort", by, owner if owner != by else None, self._book.leads())

        def decide(value: Value) -> Value | None:
            if value["state"] not in (READY, CLAIMED, BLOCKED):
                return None
            by_mail = value["state"] == CLAIMED and value["process"] is None and value["owner"] not in (by, _told)
            teller = by or value["lead"] or BOARD
            told = {"tell_owner": teller if by_mail else None}
            return ended(value, ABORTED, token=value["token"] + 1, why=said, **told)

        note = self._book.read_note(id)
        aborted = self._book.change(id, decide)
        if aborted is None:
            return False
        self._gateway.store.cell_write(f"{SIGNAL}/{tasks.encoded(id)}", None)  # rings, and leaves nothing behind
        self._book.follow(aborted, note)
        return True

    def reopen(self, id: str) -> bool:
        """Put a blocked or aborted task back. False when it is neither. Raises UnknownTask."""
        self._look()
        self._read(id)

        def decide(value: Value) -> Value | None:
            if value["state"] not in (BLOCKED, ABORTED):
                return None
            return free(value, token=value["token"] + 1, why=None, last_owner=None)

        note = self._book.read_note(id)
        reopened = self._book.change(id, decide)
        if reopened is not None:
            self._book.follow(reopened, note)
        return reopened is not None

    def remove(self, id: str) -> bool:
        """Take a task off the board for good. False, and it stays, when an agent holds it: abort it first.

        Raises UnknownTask; InvalidMessage, naming them, when tasks wait for it that would never be ready without it. A
        task of the same id may be added again. `watch` does not tell of it.
        """
        self._look()
        self._read(id)
        waiting = self._book.waiting_for(id)
        if waiting:
            named = ", ".join(map(quoted, waiting))
            raise InvalidMessage("id", f"task {id} stays: {named} wait{'s' * (len(waiting) == 1)} for it")
        return self._book.remove(id)

    # Looking

    def get(self, id: str) -> Task:
        """One task in its current state. UnknownTask when it is not on the board."""
        check_names(id=id)
        self._gateway.check_open()
        return self._book.show(self._read(id).value)

    def tasks(self) -> list[Task]:
        """Every task in its current state, in the order in which they are claimed."""
        self._look()
        return self._shown(self._book.all())

    def _shown(self, found: dict[str, TaskCell]) -> list[Task]:
        states = {id: str(each.value["state"]) for id, each in found.items()}
        return [self._book.show(each.value, states.get) for each in found.values()]

    def notes(self) -> dict[str, Any]:
        """What agents told the board without naming a task, the last of each."""
        self._look()
        return mail.notes(self._gateway)

    def watch(self, timeout_s: float | None = None) -> Iterator[Task]:
        """Each task whenever it changes, woken by every change, from now on; also when an owner is seen to be gone.

        Several changes of one task may come as one. Never ends; with `timeout_s`, ends when nothing has changed for that
        long.
        """
        check_timeout(timeout_s)
        self._look()
        return self._gateway.each(self._watching(self._book.all(), timeout_s))

    def _watching(self, before: dict[str, TaskCell], timeout_s: float | None) -> Series[Task]:
        deadline = Deadline(self._gateway.clock, timeout_s)
        with self._gateway.listen([_TASKS, topic_to(BOARD)]) as waiter:
            while True:
                self._look()
                found = self._book.all()
                changed = [id for id, each in found.items() if id not in before or before[id].version != each.version]
                before = found
                states = {id: str(each.value["state"]) for id, each in found.items()}
                for id in changed:
                    yield self._book.show(found[id].value, states.get)
                if changed:
                    deadline = Deadline(self._gateway.clock, timeout_s)
                left_s = deadline.left_s()
                if left_s == 0:
                    return
                yield Pause(waiter, left_s)

    # Telling each other

    def leads(self) -> list[str]:
        """Agents that were named as the lead of a task. `lead` is one in any case."""
        self._gateway.check_open()
        return self._book.leads()

    def tell(self, /, action: str, sender: str, to: str, task_id: str | None = None, **said: Any) -> str:
        """Send one of the seven actions, in the direction in which it may travel. Returns the message's id.

        Raises WrongDirection, with the rule, and sends nothing otherwise. What is told to the board is applied by the
        next look at it.
        """
        return mail.tell(self._gateway, self._book, action, sender, to, task_id, said)

    # Parts of the above

    def _look(self) -> None:
        """The first part of every look at the board: apply its mail, and release what dead owners hold."""
        self._gateway.check_open()
        if getattr(self._local, "looking", False):
            return  # applying mail leads here again
        self._local.looking = True
        try:
            with self._reading_mail:
                mail.apply(self._book, self)
            self._book.look_over()
        except RoomUnreachable as error:  # where nothing can be written, the board is shown as it stands
            if isinstance(error, RoomGone) or not self._gateway.store.why_only_looking():
                raise
        finally:
            self._local.looking = False

    def _read(self, id: str) -> TaskCell:
        found = self._book.read(id)
        if found is None:
            raise UnknownTask(f"there is no task {id} on the board")
        return found

    def __repr__(self) -> str:
        return f"<Board of {self._gateway.store.__class__.__name__}>"


def _new_values(items: Iterable[Mapping[str, Any]]) -> list[Value]:
    faults: list[Fault] = []
    values: list[Value] = []
    given: list[Any] = list(items)
    for index, item in enumerate(given):
        place = f"tasks[{index}]." if len(given) > 1 else ""
        if not isinstance(item, Mapping) or "id" not in item or set(item) - _FIELDS:
            faults.append(Fault(f"tasks[{index}]", f"must be a dict with id, and with {', '.join(sorted(_FIELDS))}"))
            continue
        fields = {"title": "", "after": (), "payload": None, "lead": None, **item}
        try:
            values.append(tasks.new_value(**fields))
        except InvalidMessage as error:
            faults += [Fault(place + field, problem) for field, problem in error.faults]
    raise_faults(faults)
    return values


_FIELDS: Final = frozenset({"id", "title", "after", "payload", "lead"})
