"""`session.delegate`: start workers, wait for all of them, and let all fail when one does.

The way of a delegation: describe -> enrol as members -> start -> attend until all have returned, or the session fails
-> end those that still run (a grace period, SIGTERM, SIGKILL) -> results, or the failure.
"""

from __future__ import annotations

import json
import signal
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from postroom.core.clock import iso
from postroom.core.system.files import no_follow
from postroom.errors import PostroomError, RoomClosed, SessionFailed
from postroom.mail.gateway import Deadline, Gateway

from .deadlock import ON_WORKERS, Search
from .members import WORKER, Member, MemberWait, enrol, members_of, strike_off
from .output import Screen
from .progress import progress_line
from .record import Failure, SessionRecord, failure_of
from .runners import Runner, WorkerRun
from .worker import WorkerCall

#: After SIGTERM a worker has this long to put its things in order before it is killed.
TERM_S: Final = 1.0
#: How long the system may take to end a process that was killed.
KILL_S: Final = 10.0
#: While the progress is shown, it is looked at so often.
_PROGRESS_S: Final = 0.25
JOURNAL: Final = "workers.jsonl"


def enrol_workers(member: Member, calls: list[WorkerCall], names: list[str]) -> list[WorkerRun]:
    """Make workers members of the session, before they run. Raises when the session is over: then none is one."""
    ids, first = enrol(member.record, names, WORKER, member.id)
    return [
        WorkerRun(call, name, id, first + place)
        for place, (call, name, id) in enumerate(zip(calls, names, ids, strict=True))
    ]


@dataclass(eq=False)
class Delegation:
    """One call of `delegate`, in the thread that made it."""

    member: Member
    search: Search
    crew: Runner
    folder: Path
    screen: Screen
    deadline_s: float | None
    grace_s: float

    def __post_init__(self) -> None:
        self._record: SessionRecord = self.member.record
        self._gateway: Gateway = self.member.gateway
        self._posts = self.crew.posts
        self._deadline = Deadline(self._gateway.clock, self.deadline_s)
        self._failure: Failure | None = None
        self._reported: set[str] = set()
        self._next_progress = Deadline(self._gateway.clock, 0)

    def run(self) -> list[Any]:
        """Run the workers to their end; their results in order. Raises the failure of the session.

        After, however it ends: no worker runs any more, and none is a member.
        """
        waits = {"on": ON_WORKERS, "names": [post.name for post in self._posts], "timed": self.deadline_s is not None}
        ids = [post.member_id for post in self._posts]
        topics = [self._record.topic, *([self.member.topic] if self.screen.shows_progress else ())]
        try:
            with self.member.waiting(**waits, members=ids) as wait, self._gateway.listen(topics) as waiter:
                self._waiter = waiter
                try:
                    self.crew.start()
                    self._until(lambda: self._failure is not None or self._all_over(), wait, self._deadline)
                    self._judge_deadline()
                except BaseException as error:
                    self._interrupted(error)
                    raise
                finally:
                    self._end()
        finally:
            self.crew.close()
            self.screen.wipe()
            for post in self._posts:
                strike_off(self._gateway, self._record.id, post.member_id)
        if self._failure is not None:
            raise self._record.error(self._failure)
        return [post.result for post in self._posts]

    # Attending

    def _until(self, is_enough: Callable[[], bool], wait: MemberWait | None, deadline: Deadline) -> None:
        """Attend to the workers until it is enough, or time is over."""
        while True:
            again_s = 1.0
            self.crew.attend()
            self._report()
            self._look_at_record()
            if is_enough() or deadline.left_s() == 0:
                return
            if wait is not None:
                again_s = wait.rest()
                if self.member.blocked and self.deadline_s is None:
                    self.search.look()
            if self._show_progress():
                again_s = min(again_s, _PROGRESS_S)
            self._pause(min(again_s, 1.0 if (left_s := deadline.left_s()) is None else left_s))

    def _pause(self, span_s: float) -> None:
        fds = self.crew.descriptors()
        try:
            fds.append(self._waiter.fileno())
        except OSError:  # this room's waiters have no descriptor: look more often
            span_s = min(span_s, 0.05)
        self._gateway.clock.wait_readable(fds, span_s)
        if self._gateway.closing:
            raise RoomClosed("the room was closed while workers ran")
        self._waiter.wait(0)

    def _look_at_record(self) -> None:
        if self._failure is None:
            record = self._record.read()
            self._failure = record.failure
            if self._failure is None and record.ended_ms is not None:
                said = "the session was closed while workers ran"
                self._failure = failure_of(said, self.member.name, self._gateway.clock)

    def _report(self) -> None:
        """Workers that ended since the last time: write it down, and let the session fail if one failed."""
        for post in self._posts:
            if post.over and post.member_id not in self._reported:
                self._reported.add(post.member_id)
                if post.failure is not None:
                    self._failure = self._record.fail(post.failure)
                strike_off(self._gateway, self._record.id, post.member_id)
                self._journal(post)

    def _journal(self, post: WorkerRun) -> None:
        """A line about a worker that has ended, for `postroom session show`."""
        line = {"name": post.name, "number": post.number, "pid": post.pid, "end": post.end}
        line |= {"ended": iso(self._gateway.clock.wall_ms())}
        with suppress(OSError), open(self.folder / JOURNAL, "a", encoding="utf-8", opener=no_follow) as file:
            file.write(json.dumps(line) + "\n")

    def _show_progress(self) -> bool:
        if not self.screen.shows_progress:
            return False
        if self._next_progress.left_s() == 0:  # not at every line that a worker prints
            self._next_progress = Deadline(self._gateway.clock, _PROGRESS_S)
            self.screen.say(progress_line(self._posts, members_of(self._gateway, self._record.id)))
        return True

    # Ending

    def _all_over(self) -> bool:
        return all(post.over for post in self._posts)

    def _judge_deadline(self) -> None:
        late = [post.name for post in self._posts if not post.over]
        if late and self._failure is None:
            said = f"worker {', '.join(late)} ran past the deadline of {self.deadline_s:g} s"
            self._failure = self._record.fail(failure_of(said, late[0], self._gateway.clock))

    def _interrupted(self, error: BaseException) -> None:
        """The caller itself is stopped: by Ctrl-C, by a room that is gone, by a worker that cannot be started."""
        if isinstance(error, SessionFailed):
            return
        try:
            self._record.blame(self.member.name, error)
        except KeyboardInterrupt:
            self.grace_s = 0.0
            raise

    def _end(self) -> None:
        """End all workers that still run: they may stop by themselves, then they are told to, then they are killed."""
        for number, span_s in ((None, self.grace_s), (signal.SIGTERM, TERM_S), (signal.SIGKILL, KILL_S)):
            if self._all_over():
                break
            if number is not None:
                self.crew.send_signal(number)
            # a second Ctrl-C does not wait for what is left of the grace, nor one that came while the first was recorded
            with suppress(KeyboardInterrupt, PostroomError):
                self._until(self._all_over, None, Deadline(self._gateway.clock, span_s))
        with suppress(PostroomError):
            self._report()  # also of workers that were never started
