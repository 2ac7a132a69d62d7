"""The judge of sessions: which processes are members and can act, and what may be written of the end of a session."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

from postroom.sessions.deadlock import channel_of
from postroom.sessions.record import DEADLOCK

from .broken import Broken
from .process import Around, Process

MEMBER: Final = "member:"
SESSION: Final = "session:"
#: Stands for a member that waits for no mailbox for ever.
ACTS: Final = ""


class SessionJudge:
    """Sees every write of a session's cells, and what its members do. `has_mail` tells whether a channel has open mail."""

    def __init__(self, world: Around, has_mail: Callable[[str], bool]) -> None:
        self._world = world
        self._has_mail = has_mail
        self._members: dict[str, dict[Process, str]] = {}  # what each waits for, for ever
        self._records: dict[str, dict[str, Any]] = {}
        self.over: set[str] = set()  # the sessions that have ended or failed
        self._standing: dict[str, dict[str, Any]] = {}  # the cells of members
        #: Processes that failed as members: the session, which must be over when they have left it.
        self.must_be_over: dict[Process, str] = {}

    def cell_written(self, process: Process, name: str, value: object) -> None:
        """A cell of a session or of a member was written."""
        if name.startswith(MEMBER):
            self._member_written(process, name, value)
        elif isinstance(value, dict) and "failure" in value:
            self._record_written(process, name, value)

    def _member_written(self, process: Process, name: str, value: object) -> None:
        if isinstance(value, dict):
            self._standing[name] = value
            self._world.tell(process, f"is {'blocked' if value['blocked'] else 'not blocked'} in its session")
        else:
            self._standing.pop(name, None)

    def judge_acts(self, process: Process, channel: str) -> None:
        """A process sent or took mail of a session: its cell must not say that it is blocked."""
        if channel.startswith(SESSION):
            mine = self.standings(process, channel.removeprefix(SESSION).partition("/")[0])
            if mine and all(standing["blocked"] for standing in mine):
                raise Broken(f"{process!r} acts in a session, and its cell says that it is blocked")

    def standings(self, process: Process, session: str = "") -> list[dict[str, Any]]:
        """What the cells say of a process as a member of sessions, or of that one."""
        beginning = MEMBER + session
        return [s for name, s in self._standing.items() if s["process"] == process.name and name.startswith(beginning)]

    def goes_on_from(self, cells: dict[str, Any]) -> None:
        """A power cut has ended all processes, and these cells are left."""
        self._standing = {name: value for name, value in cells.items() if name.startswith(MEMBER)}
        self._records = {name: value for name, value in cells.items() if name in self._records}
        self.over = {
            _session_of(name) for name, value in self._records.items() if value["failure"] or value["ended_ms"]
        }
        self._members.clear()
        self.must_be_over.clear()

    def is_member(self, session: str, process: Process) -> None:
        """A process has become a member of a session, and acts."""
        self._members.setdefault(session, {})[process] = ACTS

    def leaves(self, session: str, process: Process) -> None:
        """It is about to leave."""
        self._members[session].pop(process, None)

    @contextmanager
    def waits_for(self, session: str, process: Process, box: str | None) -> Iterator[None]:
        """It waits for this mailbox for ever; with None, for a while."""
        self._members[session][process] = ACTS if box is None else channel_of(session, box)
        yield
        self._members[session][process] = ACTS

    def _record_written(self, process: Process, name: str, value: dict[str, Any]) -> None:
        before, self._records[name] = self._records.get(name), value
        failure = value["failure"]
        if failure is not None or value["ended_ms"] is not None:
            self.over.add(_session_of(name))
        if before is not None:
            self._judge_change(process, before, value)
        if failure is None or (before is not None and before["failure"] is not None):
            return
        self._world.tell(process, f"writes that the session failed: {failure['kind'] or failure['message']}")
        self._world.happened("a session failed")
        if failure["kind"] == DEADLOCK:
            self._world.happened("a deadlock was found")
            self._judge_deadlock(_session_of(name))

    @staticmethod
    def _judge_change(process: Process, before: dict[str, Any], value: dict[str, Any]) -> None:
        """Nothing that was written of a session is taken back, and nobody joins what is over."""
        first, failure = before["failure"], value["failure"]
        if first is not None and failure != first:
            raise Broken(f"a session failed twice: {first['message']}; and then: {failure and failure['message']}")
        if before["ended_ms"] is not None and value["ended_ms"] != before["ended_ms"]:
            raise Broken("a session had ended, and is written as if it had not")
        if value["admitted"] < before["admitted"]:
            raise Broken(f"{process!r} wrote of a session over the member that had just joined it")
        is_over = first is not None or before["ended_ms"] is not None
        if is_over and value["admitted"] > before["admitted"]:
            raise Broken(f"{process!r} has joined a session that is over")

    def _judge_deadlock(self, session: str) -> None:
        waits = {member: box for member, box in self._members.get(session, {}).items() if member.alive}
        for member, box in waits.items():
            if box == ACTS:
                raise Broken(f"a false alarm: {member!r} can act, and a deadlock was found")
            if self._has_mail(box):
                raise Broken(f"a false alarm: there is mail for {member!r}, and a deadlock was found")


def _session_of(cell: str) -> str:
    return cell.removeprefix(SESSION).partition("/")[0]
