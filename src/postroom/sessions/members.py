"""The members of a session, and what each of them waits for.

    member:<id>/<member>   {"name", "role", "process", "parent", "number", "since_ms", "waits", "blocked"}

A member is one handle of the session: the caller's, a worker's, that of a process that joined. Only its own process
writes its cell. `blocked` says that everything that could act for this member waits in `waits`.

The rule on which the search for deadlocks rests (`sessions/deadlock.py`): while a member's cell says `blocked`, it
sends nothing and takes nothing. A member that wants to act first says so in its cell, and then acts. A wait is written
down only after a moment (SHOW_AFTER_S), so a wait that ends at once writes nothing.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, Final, NamedTuple
from weakref import WeakSet

from postroom.errors import PostroomError, RoomClosed, SessionEnded, SessionFailed
from postroom.mail.gateway import Gateway
from postroom.stores.contract import Cell, topic_cells

from .record import SessionRecord

#: A wait that is over sooner is not written down.
SHOW_AFTER_S: float = 0.1

#: What a member is to its session.
OPENER: Final = "opener"
WORKER: Final = "worker"
JOINED: Final = "joined"

_SECOND_NS: Final = 1_000_000_000
_OUR_THREADS: Final = "postroom "

#: Threads that act for some member of some session in this process.
_bound: WeakSet[threading.Thread] = WeakSet()


def prefix_of(session_id: str) -> str:
    """The beginning of the names of a session's member cells."""
    return f"member:{session_id}/"


def bind_elsewhere(thread: threading.Thread) -> None:
    """This thread, not started yet, will act for a member of its own and for no other."""
    _bound.add(thread)


class Standing(NamedTuple):
    """A member as its cell shows it."""

    id: str
    name: str
    role: str
    process: str
    parent: str | None
    number: int
    since_ms: int
    waits: list[dict[str, Any]]
    blocked: bool

    def to_cell(self) -> dict[str, Any]:
        """What its cell holds: all but the id, which is the cell's name."""
        return {name: value for name, value in self._asdict().items() if name != "id"}

    @property
    def timed(self) -> bool:
        """Whether one of its waits ends by itself."""
        return any(wait["timed"] for wait in self.waits)


def standing_of(cell: Cell) -> Standing:
    """What a member's cell says."""
    return Standing(id=cell.name.rpartition("/")[2], **cell.value)


def members_of(gateway: Gateway, session_id: str) -> list[Standing]:
    """The members of a session, in the order in which they came."""
    return [standing_of(cell) for cell in gateway.store.cell_scan(prefix_of(session_id))]


def enrol(record: SessionRecord, names: list[str], role: str, parent: str | None) -> tuple[list[str], int]:
    """Make new members, which are not blocked. Returns their ids, and the number of the first of them.

    Raises what `SessionRecord.check` raises when the session is over: then none is a member.
    """
    gateway, ids = record.gateway, []
    try:
        for name in names:
            ids.append(f"{gateway.clock.wall_ms():011x}-{os.urandom(4).hex()}")  # names that sort by time
            about = Standing(
                ids[-1], name, role, gateway.process, parent, 0, gateway.clock.wall_ms(), [], blocked=False
            )
            gateway.store.cell_write(prefix_of(record.id) + ids[-1], about.to_cell())
        return ids, record.admit(len(ids))
    except BaseException:
        for id in ids:
            strike_off(gateway, record.id, id)
        raise


def strike_off(gateway: Gateway, session_id: str, member_id: str) -> None:
    """Take a member out.

    Twice is once. Where the room is in trouble it is tried again when the room closes; until then, or until its process
    is gone, the member counts as one that can act.
    """

    def write() -> None:
        gateway.store.cell_write(prefix_of(session_id) + member_id, None)

    try:
        write()
    except RoomClosed:
        pass
    except PostroomError:
        gateway.at_close(write)


class MemberWait:
    """One thread of a member that waits. Made by `Member.waiting`; looks first, and rests between looks."""

    def __init__(self, member: Member, shown: dict[str, Any]) -> None:
        self._member = member
        self.thread = threading.current_thread()
        self.shown = shown
        self.looking = True
        self._since_ns = member.clock.steady_ns()

    def stir(self) -> None:
        """It is about to look for mail and to take it: the member is not blocked now, and its cell says so."""
        member = self._member
        with member.lock:
            member.check_here()  # a member that has left takes nothing, also in a thread that waited before
            self.looking = True
            member.unblock()

    def rest(self) -> float:
        """It looked and found nothing. Returns in how many seconds it should come here again, mail or not."""
        waited_s = (self._member.clock.steady_ns() - self._since_ns) / _SECOND_NS
        with self._member.lock:
            self.looking = False
            if waited_s >= SHOW_AFTER_S:
                self._member.show_waits()
        return SHOW_AFTER_S - waited_s if waited_s < SHOW_AFTER_S else SHOW_AFTER_S * 10


class Member:
    """One member of a session, as this process plays it. Shared by its threads."""

    def __init__(self, record: SessionRecord, id: str, name: str, role: str, parent: str | None, number: int) -> None:
        self.record = record
        self.gateway = record.gateway
        self.clock = record.gateway.clock
        self.id = id
        self.name = name
        self.role = role
        self.number = number
        self.cell = prefix_of(record.id) + id
        #: Listeners to this topic hear of every change of every member.
        self.topic = topic_cells(self.cell)
        self._parent = parent
        self._since_ms = self.clock.wall_ms()
        self.lock = threading.RLock()
        self._waits: list[MemberWait] = []
        self._acting = 0
        self._left = False
        self._actors: WeakSet[threading.Thread] = WeakSet()
        # Threads that were there before are not taken to act for this member until they do; later ones are, for its own
        # threads may have started them (a timer that will send).
        self._strangers: WeakSet[threading.Thread] = WeakSet(threading.enumerate())
        self._written: dict[str, Any] = {}
        self.bind(threading.current_thread())

    def bind(self, thread: threading.Thread) -> None:
        """This thread acts for the member."""
        self._actors.add(thread)
        _bound.add(thread)

    def introduce(self) -> None:
        """Write the cell: this member is here, in this process."""
        with self.lock:
            self._write(blocked=False)

    # Acting and waiting

    @contextmanager
    def acting(self) -> Iterator[None]:
        """While this is open the member is not blocked, though other threads of it wait; its cell says so first."""
        with self.lock:
            self.check_here()
            self.bind(threading.current_thread())
            self._acting += 1
            self.unblock()
        try:
            yield
        finally:
            with self.lock:
                self._acting -= 1

    @contextmanager
    def waiting(self, **shown: Any) -> Iterator[MemberWait]:
        """This thread waits from here on; `shown` is what others see of it: `on`, `names` and `timed` at least."""
        wait = MemberWait(self, shown | {"since_ms": self.clock.wall_ms()})
        with self.lock:
            self.check_here()
            self.bind(wait.thread)
            self.unblock()
            self._waits.append(wait)
        tell = True
        try:
            yield wait
        except (SessionFailed, SessionEnded):
            tell = False  # nobody asks any more, and seven writes before seven aborts would cost milliseconds
            raise
        finally:
            with self.lock:
                self._waits.remove(wait)
                if tell and self._written.get("waits") and not self._left:
                    with suppress(PostroomError):
                        self._write(blocked=False)

    def check_here(self) -> None:
        """Raise SessionEnded when this member has left the session."""
        if self._left:
            raise SessionEnded(f"{self.name} has left session {self.record.id}")

    def show_waits(self) -> None:
        """Write down what it waits for, and whether that is all it does. The caller holds the lock."""
        if not self._left:
            self._write(blocked=self._is_blocked())

    @property
    def blocked(self) -> bool:
        """Whether the cell says that everything that could act for this member waits."""
        return bool(self._written.get("blocked"))

    def _is_blocked(self) -> bool:
        """Whether every thread that could act for this member rests in a wait."""
        if self._acting or not self._waits or any(wait.looking for wait in self._waits):
            return False
        resting = {wait.thread for wait in self._waits}
        return all(thread in resting or not self._may_act(thread) for thread in threading.enumerate())

    def _may_act(self, thread: threading.Thread) -> bool:
        if thread in self._actors:
            return True
        return not (thread in self._strangers or thread in _bound or thread.name.startswith(_OUR_THREADS))

    def unblock(self) -> None:
        """Let the cell say that it may act. The caller holds the lock."""
        if self.blocked:
            self._write(blocked=False)

    def _write(self, *, blocked: bool) -> None:
        waits = [wait.shown for wait in self._waits]
        who = (self.id, self.name, self.role, self.gateway.process, self._parent, self.number, self._since_ms)
        value = Standing(*who, waits, blocked).to_cell()
        if value != self._written:
            self.gateway.store.cell_write(self.cell, value)
            self._written = value

    def leave(self) -> None:
        """It is a member no more. Safe to call twice."""
        with self.lock:
            if self._left:
                return
            self._left = True
        strike_off(self.gateway, self.record.id, self.id)
