"""Sessions: openers and members that wait for each other, fail, leave, and meet a busy room."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Final

from postroom.core.system.process import join_thread, start_thread
from postroom.errors import ReceiveTimeout, SessionEnded, SessionFailed
from postroom.room import Room
from postroom.sessions.record import all_records
from postroom.sessions.session import Session
from postroom.testing.simulation.broken import Broken

from .program import Program, WorkFailed

#: A mailbox that nobody writes to.
_NOTHING: Final = "nothing"


def _session(program: Program, count: int, how: str, delay_ms: float) -> None:
    program.agent()
    with _told_of_the_end(program):
        session = _room(program).session()
        with _ends(program, session), session, _as_member(program, session):
            for number in range(count):
                session.mailbox["tasks"].send(number, delay_ms=delay_ms)
            for _ in range(count):
                _take(program, session, "results", how)
            _finish(program, session, how)


def _join(program: Program, count: int, how: str, after_s: float) -> None:
    program.agent()
    if after_s:
        program.clock.sleep(after_s)
    going_on = [id for id, record in all_records(program.gateway) if not record.over]
    if not going_on:
        return
    with _told_of_the_end(program):
        session = _room(program).session(going_on[-1], name=program.process.label)
        with session, _as_member(program, session):
            if how == "send after trouble":
                _send_after_trouble(program, session)
            for _ in range(0 if "nothing" in how else count):
                value = _take(program, session, "tasks", how)
                session.mailbox["results"].send(value)
            _finish(program, session, how)


def _finish(program: Program, session: Session, how: str) -> None:
    """What a member does last."""
    if how == "wait for nothing":
        _take(program, session, _NOTHING, "wait for ever")
    elif how == "wait a while for nothing":
        with suppress(ReceiveTimeout):
            _take(program, session, _NOTHING, "wait")
    elif how == "mark failed":
        session.mark_failed("simulated")
    elif how == "fail":
        raise WorkFailed(how)


def _send_after_trouble(program: Program, session: Session) -> None:
    """Wait for a while, and send though the room was too busy to be told that the wait is over."""

    def make_busy() -> None:
        program.clock.sleep(1.95)
        program.process.fails += not program.world.is_calm()

    thread = threading.Thread(target=make_busy, name="make the room busy")
    start_thread(thread)
    with suppress(ReceiveTimeout):
        _take(program, session, _NOTHING, "wait")
    join_thread(thread, None)
    session.mailbox["results"].send("after trouble")


def _room(program: Program) -> Room:
    program.room.folder = program.world.folder()
    return program.room


def _take(program: Program, session: Session, box: str, how: str) -> object:
    timed = how not in ("wait for ever", "wait for nothing")
    with program.judge.sessions.waits_for(session.id, program.process, None if timed else box):
        return session.mailbox[box].receive(2000 if timed else None)


@contextmanager
def _ends(program: Program, session: Session) -> Iterator[None]:
    """When its opener has left, a session is over."""
    process, failed = program.process, program.process.failed
    try:
        yield
    finally:
        if process.alive and failed == process.failed and session.id not in program.judge.sessions.over:
            raise Broken(f"{process!r} has left the session that it opened, and it goes on")


@contextmanager
def _as_member(program: Program, session: Session) -> Iterator[None]:
    program.tell("is a member")
    program.judge.sessions.is_member(session.id, program.process)
    try:
        yield
    except (WorkFailed, ReceiveTimeout):
        program.judge.sessions.must_be_over[program.process] = session.id
        raise
    finally:
        program.judge.sessions.leaves(session.id, program.process)


@contextmanager
def _told_of_the_end(program: Program) -> Iterator[None]:
    """A session may end in many ways, and each of its members is told of it. Then it is a member no more.

    One that fails takes the session with it.
    """
    process, judge, failed = program.process, program.judge, program.process.failed
    try:
        yield
    except (SessionFailed, SessionEnded, ReceiveTimeout, WorkFailed) as error:
        program.tell(f"is told: {type(error).__name__}")
        program.world.happened(f"a member was told: {type(error).__name__}")
    failed_in = judge.sessions.must_be_over.pop(process, None)
    if failed_in is not None and failed_in not in judge.sessions.over and failed == process.failed:
        raise Broken(f"{process!r} failed in a session, and the session goes on")
    if judge.sessions.standings(process) and not process.failed:
        raise Broken(f"{process!r} has left its session, and its cell stays")


OPERATIONS: Final[dict[str, Callable[..., None]]] = {"session": _session, "join": _join}
