"""What a room can tell of its sessions, stopping one from outside, and clearing away old ones."""

from __future__ import annotations

import json
import os
import shutil
import signal
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, NamedTuple

from postroom.core.clock import iso
from postroom.core.states import OPEN, State
from postroom.core.system.files import no_follow
from postroom.core.system.process import process_alive
from postroom.mail.gateway import Deadline, Gateway
from postroom.stores.contract import Query, topic_cells

from .deadlock import stuck, wait_words
from .delegation import JOURNAL
from .members import WORKER, Standing, members_of, prefix_of, strike_off
from .record import Failure, Record, SessionRecord, all_records

OPEN_STATE: Final = "open"
STUCK: Final = "stuck"  # everybody waits, some of them with a time-out
FAILED: Final = "failed"
ENDED: Final = "ended"

_PAGE: Final = 500
_ALL: Final = 1_000_000
STOPPED: Final = "stopped from outside (postroom session stop)"


class SessionInfo(NamedTuple):
    """One session of a room, at a glance."""

    id: str
    state: str
    opened: str
    members: int
    folder: str
    failure: Failure | None


class WorkerInfo(NamedTuple):
    """One member of a session, or a worker that was one."""

    name: str
    number: int
    role: str
    #: running, waiting, gone, or how it ended: done, failed, stopped with the session, …
    state: str
    waits: list[str]
    pid: int | None


class BoxInfo(NamedTuple):
    """The messages of one mailbox: how many were sent, were received, and lie there."""

    name: str
    sent: int
    received: int
    waiting: int


class SessionReport(NamedTuple):
    """Everything that is known of one session."""

    info: SessionInfo
    workers: list[WorkerInfo]
    mailboxes: list[BoxInfo]


def list_sessions(gateway: Gateway, *, blame: bool = True, limit: int | None = None) -> tuple[list[SessionInfo], int]:
    """The newest sessions of the room (`limit` None: all), the oldest first; and how many there are.

    A session whose opener was killed, with nobody left to record it, is recorded as failed by this look; with `blame`
    False nothing is changed. Those beyond the limit are not looked at.
    """
    every = all_records(gateway)
    found = every if limit is None else every[len(every) - min(limit, len(every)) :]
    infos = [
        _info(gateway, id, _judged(gateway, id, record) if blame else record, members_of(gateway, id))
        for id, record in found
    ]
    return infos, len(every)


def _judged(gateway: Gateway, id: str, record: Record) -> Record:
    session = SessionRecord(gateway, id)
    return session.read() if session.blame_gone_opener(record) else record


def report(gateway: Gateway, id: str, *, blame: bool = True) -> SessionReport:
    """Everything about one session; looks as `list_sessions` does. UnknownSession when there is none."""
    record = SessionRecord(gateway, id).read()
    record = _judged(gateway, id, record) if blame else record
    members = members_of(gateway, id)
    ended = _journal(Path(record.value["folder"]))
    workers = sorted([*ended, *(_worker(gateway, member) for member in members)], key=lambda worker: worker.number)
    return SessionReport(_info(gateway, id, record, members), workers, _boxes(gateway, id))


def _info(gateway: Gateway, id: str, record: Record, members: list[Standing]) -> SessionInfo:
    living = [member for member in members if gateway.store.process_alive(member.process) is not False]
    if record.failure is not None:
        state = FAILED
    elif record.ended_ms is not None:
        state = ENDED
    else:
        state = STUCK if stuck(living) else OPEN_STATE
    opened = iso(record.value["timestamp_ms"])
    return SessionInfo(id, state, opened, len(living), record.value["folder"], record.failure)


def _worker(gateway: Gateway, member: Standing) -> WorkerInfo:
    pid = int(member.process.split(":")[1])
    if gateway.store.process_alive(member.process) is False:
        return WorkerInfo(member.name, member.number, member.role, "gone", [], pid)
    timed = {True: ", with a time-out", False: ""}
    waits = [wait_words(wait) + timed[bool(wait["timed"])] for wait in member.waits]
    return WorkerInfo(member.name, member.number, member.role, "waiting" if waits else "running", waits, pid)


def _journal(folder: Path) -> list[WorkerInfo]:
    """The workers that have ended, as their callers wrote it down; a line that was cut off is left out."""
    try:
        with open(folder / JOURNAL, encoding="utf-8", errors="replace", opener=no_follow) as file:
            lines = file.read().splitlines()
    except OSError:
        return []
    found = []
    for line in lines:
        with suppress(ValueError, KeyError, TypeError):
            said = json.loads(line)
            found.append(WorkerInfo(said["name"], int(said["number"]), WORKER, said["end"], [], said["pid"]))
    return found


def _boxes(gateway: Gateway, id: str) -> list[BoxInfo]:
    prefix = f"session:{id}/"
    counts: dict[str, list[int]] = {}
    for message in gateway.store.find_all(Query(correlation_id=id, limit=_PAGE)):
        count = counts.setdefault(message.channel.removeprefix(prefix), [0, 0, 0])
        count[0] += 1
        count[1] += message.exact_state is State.ACKED
        count[2] += message.exact_state in OPEN
    return [BoxInfo(name, *count) for name, count in sorted(counts.items())]


# Acting on sessions from outside


def stop(gateway: Gateway, id: str, grace_s: float) -> bool:
    """Let a session fail, and see that its workers end: those that still run after `grace_s` are killed.

    Returns whether they are all gone. Workers on other machines end by themselves, or by their caller.
    """
    record = SessionRecord(gateway, id)
    now = iso(gateway.clock.wall_ms())
    record.fail(Failure(now, STOPPED, "", None))
    with gateway.listen([topic_cells(prefix_of(id))]) as waiter:
        for span_s in (grace_s, 5.0):
            deadline = Deadline(gateway.clock, span_s)
            while _workers_here(gateway, id) and deadline.left_s() != 0:
                gateway.wait(waiter, min(deadline.left_s() or 0, 0.2))
            for member in _workers_here(gateway, id):
                _kill(member)
    return not _workers_here(gateway, id)


def _workers_here(gateway: Gateway, id: str) -> list[Standing]:
    """The workers of a session that run on this machine. One that was not started yet has no number."""
    return [m for m in members_of(gateway, id) if m.role == WORKER and m.number and process_alive(m.process)]


def _kill(member: Standing) -> None:
    """Kill a worker and all it started. It leads a process group of its own; if not, it is not one of ours."""
    pid = int(member.process.split(":")[1])
    with suppress(ProcessLookupError, PermissionError):
        if os.getpgid(pid) == pid:
            os.killpg(pid, signal.SIGKILL)


def clean(gateway: Gateway, older_than_s: float) -> list[str]:
    """Forget sessions that are over and were opened that long ago: records, messages, folders.

    Returns their ids. Sessions that are open are never touched.
    """
    before_ms = gateway.clock.wall_ms() - round(older_than_s * 1000)
    done = []
    for id, record in all_records(gateway):
        if not _judged(gateway, id, record).over or record.value["timestamp_ms"] > before_ms:
            continue
        while gateway.store.purge(Query(correlation_id=id, limit=_ALL)):
            pass
        for member in members_of(gateway, id):
            strike_off(gateway, id, member.id)
        folder = Path(record.value["folder"])
        if id in folder.name:  # only what this session made
            shutil.rmtree(folder, ignore_errors=True)
        gateway.store.cell_write(SessionRecord(gateway, id).cell, None)
        done.append(id)
    return done


def to_dict(about: SessionReport) -> dict[str, Any]:
    """A report as plain data."""
    return info_dict(about.info) | {
        "workers": [worker._asdict() for worker in about.workers],
        "mailboxes": [box._asdict() for box in about.mailboxes],
    }


def info_dict(info: SessionInfo) -> dict[str, Any]:
    """One session at a glance, as plain data."""
    return info._asdict() | {"failure": None if info.failure is None else info.failure._asdict()}
