"""Traces of a session (spec/session.pml), by the code of sessions: joining, failing, ending, and deaths in the middle.

A member is a `Session` of its own gateway, in the name of a real process that does nothing but live. A change of the
record is a reading and a writing by compare-and-set; calls are stopped between the two (stepped_calls.py). After each
step the record is compared: how many were admitted, through whom it failed, whether it has ended.

Not compared: the record's version, which the store gives; what a member receives, and that a waiting member is woken.
A worker's death is seen by the runner that started it, which is not replayed: in its stead the failure is recorded by
`SessionRecord.fail`. The opener's is seen by `SessionRecord.blame_gone_opener`, as it is.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path
from typing import Any

from postroom.errors import SessionEnded, SessionFailed
from postroom.sessions.record import CALLER, SessionRecord, failure_of
from postroom.sessions.session import Session, SessionHome, join_session, open_session

from .replaying import Replay, Told
from .stepped_calls import OTHER, Actor, onlooker

READ, WRITE = "read of the record", "write of the record"
OPENER = 0
#: Where syncing the folders of sessions costs nothing, if there is such a place.
MEMORY = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None


def classify(method: str, name: str, _value: Any) -> str:
    if name.startswith("session:"):
        return READ if method == "read" else WRITE
    return OTHER


class Party(Actor):
    """One member, or one that looks after it."""

    def __init__(self, replay: SessionReplay, process: str) -> None:
        super().__init__(replay, process, classify)
        self.home = SessionHome(self.gateway, "memory:", replay.folder)
        self.session: Session | None = None

    @property
    def inside(self) -> Session:
        assert self.session is not None, "it is no member"
        return self.session


class SessionReplay(Replay):
    """One trace of session.pml, in a session of its own."""

    def begin(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="postroom-replay-", dir=MEMORY))
        self.members: dict[int, Party] = {}
        self.watches: dict[int, Party] = {}
        opener = self.member(OPENER)
        opener.session = open_session(opener.home)
        self.id = opener.session.id
        self.onlooker = onlooker(self)
        self.record = SessionRecord(self.onlooker.gateway, self.id)

    def close(self) -> None:
        for actor in (*self.members.values(), *self.watches.values(), self.onlooker):
            actor.close()  # a member that is still there leaves with its gateway
        shutil.rmtree(self.folder, ignore_errors=True)

    def member(self, number: int) -> Party:
        if number not in self.members:
            self.members[number] = Party(self, self.process(f"member {number}"))
        return self.members[number]

    def watch_of(self, number: int) -> Party:
        if number not in self.watches:
            self.watches[number] = Party(self, self.store.process)
        return self.watches[number]

    def step(self, line: str, *, last: bool) -> None:
        step = Told.read(line)
        party = self.watch_of(step.who) if step.what in ("watch", "watch_stale", "blame") else self.member(step.who)
        getattr(self, "close_it" if step.what == "close" else step.what)(step, party)
        self.compare(step)

    def compare(self, step: Told) -> None:
        admitted, failed_by, ended = step.facts
        record = self.record.read()
        assert record.value["admitted"] == admitted, f"{record.value['admitted']} members were admitted"
        failure = record.failure
        failed = failed_by in self.members
        assert (failure.worker if failure else None) == (name_of(failed_by) if failed else None), f"it has {failure}"
        assert (record.ended_ms is not None) == bool(ended), f"its end is {record.ended_ms}"

    # The steps

    def read(self, step: Told, party: Party) -> None:
        """Begin a change of the record, or read it again."""
        before, after = step.changes[0].split(">")
        if before == after:
            if party.is_in_call:
                party.reach(READ)
            return  # or it was over before, and is told so
        if after == "joining":
            party.begin(lambda: join_session(party.home, self.id, name_of(step.who)))
            for _ in range(3):  # whether the opener is gone, whether it is over, and to be let in
                if not party.call.finished:
                    party.reach(READ)
        elif after == "failing":
            party.begin(lambda: party.inside.mark_failed("it has failed"))
            party.reach(READ)
        else:
            party.begin(party.inside.cleanup)
            party.reach(READ)

    def stale(self, step: Told, party: Party) -> None:
        """Its writing is refused, and it is about to read again; one that has read that it is over need not write."""
        if party.is_in_call:
            party.go(WRITE)

    def join(self, step: Told, party: Party) -> None:
        if step.changes[0].startswith("outside"):  # the opener is gone, and nobody has said so
            party.begin(lambda: join_session(party.home, self.id, name_of(step.who)))
        if not step.done:
            assert self.is_over(party, READ, WRITE), "it was let in"
            return
        party.session = party.finish(READ, WRITE)

    def is_over(self, party: Party, *may: str) -> bool:
        """Whether the call is refused because the session is over."""
        try:
            party.finish(*may)
        except (SessionFailed, SessionEnded):
            return True
        return False

    def send(self, step: Told, party: Party) -> None:
        party.begin(lambda: party.inside.mailbox.tasks.send(1))
        if step.done:
            party.finish(READ)
        else:
            assert self.is_over(party, READ), "it could send"

    def leave(self, step: Told, party: Party) -> None:
        party.begin(party.inside.cleanup)
        party.finish(READ)

    def fail(self, step: Told, party: Party) -> None:
        party.finish(WRITE)

    def close_it(self, step: Told, party: Party) -> None:
        party.finish(READ, WRITE)

    def crash(self, step: Told, party: Party) -> None:
        party.end()
        self.kill(f"member {step.who}")

    def watch(self, step: Told, party: Party) -> None:
        if not party.is_in_call:
            record = SessionRecord(party.gateway, self.id)
            if step.who == OPENER:
                party.begin(record.blame_gone_opener)
                party.reach(READ)  # whether it is over
            else:
                failure = failure_of("it was killed", name_of(step.who), self.clock)
                party.begin(lambda: record.fail(failure))
        party.reach(READ)

    def watch_stale(self, step: Told, party: Party) -> None:
        party.go(WRITE)

    def blame(self, step: Told, party: Party) -> None:
        party.finish(WRITE)


def name_of(member: int) -> str:
    return CALLER if member == OPENER else f"member-{member}"
