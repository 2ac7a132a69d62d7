"""A session: members that talk through mailboxes, and fail together.

    with room.session() as session:
        session.mailbox.tasks.send({"n": 1})
        results = session.delegate([coordinator(), analyzer("src/main.rs")])

When one member fails, everybody learns of it at once: pending receives are aborted, sends are refused.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

from postroom.core.clock import iso
from postroom.core.config import settings_of
from postroom.core.system.files import make_private_folder
from postroom.core.system.watch import LISTENER
from postroom.errors import InvalidMessage, PostroomError
from postroom.mail.gateway import Gateway
from postroom.mail.received import check_names, check_seconds

from . import record as session_record
from .deadlock import Search
from .delegation import Delegation, enrol_workers
from .mailbox import Mailroom
from .members import JOINED, OPENER, WORKER, Member, enrol, strike_off
from .output import Screen
from .record import CALLER, FAILED_FILE, Failure, SessionRecord, failure_of, read_failed_file
from .runners import ProcessRunner, Runner, ThreadRunner, WorkerRun
from .worker import WorkerCall, check_calls, names_of, place_of

#: The folder of a room's sessions, inside the room's own.
SESSIONS: Final = "sessions"
GRACE_S: Final = 2.0


class SessionHome:
    """What a session needs to know of its room: where it lives, and how another process opens it."""

    def __init__(self, gateway: Gateway, url: str, folder: Path | None) -> None:
        self.gateway = gateway
        self.url = url
        self.settings = settings_of(gateway.config)
        #: The room's own folder; None where the folders of sessions lie among the temporary files.
        self.folder = folder

    def make_folder(self, session_id: str) -> Path:
        """A folder for a session, inside the room's own; for a room that has none, among the temporary files."""
        if self.folder is None:
            folder = Path(tempfile.mkdtemp(prefix=f"postroom-{session_id}-"))
            if not self.gateway.store.durable:  # the folder does not outlive the room's being open
                # registered before the session's own end, so called after it, when nothing writes there any more:
                # guarded by test_a_memory_rooms_session_folder_goes_after_the_last_callback_of_its_watch
                self.gateway.at_close(lambda: shutil.rmtree(folder, ignore_errors=True))
            return folder
        folder = self.folder / SESSIONS / session_id
        make_private_folder(folder)
        return folder


class Session:
    """One member's handle of a session. All methods may be called from several threads at once.

    As a context manager it fails the session if the block raises, and leaves it at the end. When its opener leaves,
    the session has ended.
    """

    def __init__(self, host: SessionHome, member: Member) -> None:
        self._host = host
        self._member = member
        self._record: SessionRecord = member.record
        self._gateway = host.gateway
        self._search = Search(self._record)
        value = self._record.read().value
        self.id = self._record.id  # by which others join it
        #: When it was opened, as ISO 8601 text.
        self.timestamp: str = iso(value["timestamp_ms"])
        #: The folder of this session: what its workers wrote, and `.failed` when it failed.
        self.dir = Path(value["folder"])
        self.mailbox = Mailroom(member, self._search)  # the session's mailboxes by name: `session.mailbox.tasks`
        self._left = False
        self._undo: list[Callable[[], None]] = [self._gateway.at_close(self.cleanup)]

    @property
    def name(self) -> str:
        """The name of this member: the worker's, or "caller" for its opener."""
        return self._member.name

    # The failure

    @property
    def failure(self) -> Failure | None:
        """Why the session failed: timestamp, message, stack, worker. None when it did not."""
        return self._record.read().failure

    def check_failed(self) -> None:
        """Raise SessionFailed (or Deadlock) when the session has failed; SessionEnded when it was closed."""
        self._record.check()

    def mark_failed(self, error: BaseException | str) -> None:
        """Let the session fail. The first failure stands: when it has failed before, nothing changes.

        After: every member's pending receive is aborted, every send is refused, and `.failed` is in the folder.
        """
        if not isinstance(error, BaseException | str):
            raise InvalidMessage("error", f"must be an exception or a text, not {type(error).__name__}")
        self._record.fail(failure_of(error, self._member.name, self._gateway.clock))

    # Workers

    def delegate(
        self,
        workers: Sequence[WorkerCall],
        *,
        deadline_s: float | None = None,
        grace_s: float = GRACE_S,
        show: bool = True,
    ) -> list[Any]:
        """Run workers, each in its own process, and return their results in order.

        When one fails (raises, calls sys.exit, is killed, or is not done after `deadline_s`), the session fails: the
        others' pending receives are aborted, those that have not stopped after `grace_s` are terminated, then killed,
        and the failure is raised here: SessionFailed, which names the worker and carries its traceback. After, in every
        case, no worker runs any more. What workers print is kept under `dir` and, with `show`, printed here too.
        In a room that other processes cannot see (`memory:`) workers are threads, which cannot be killed.
        Raises NotStartable, and starts nothing, for a worker that another process would not find.
        """
        calls = check_calls(workers)
        if deadline_s is not None:
            check_seconds("deadline_s", deadline_s, zero=False)
        check_seconds("grace_s", grace_s)
        places = [place_of(call) for call in calls] if self._gateway.store.shared else []
        with self._member.acting():
            self._record.check()
            if not calls:
                return []
            posts = enrol_workers(self._member, calls, names_of(calls))
            screen = Screen(show=show)
            try:
                crew = self._crew(posts, places, screen)
            except BaseException:
                for post in posts:
                    strike_off(self._gateway, self.id, post.member_id)
                raise
        return Delegation(self._member, self._search, crew, self.dir, screen, deadline_s, grace_s).run()

    def _crew(self, posts: list[WorkerRun], places: list[Any], screen: Screen) -> Runner:
        clock = self._gateway.clock
        if not places:
            return ThreadRunner(posts, self._run_here, self._record.is_abort, clock)
        task = {
            "url": self._host.url,
            "settings": self._host.settings,
            "session": self.id,
            "parent": self._member.id,
            "parent_name": self._member.name,
            "store": type(self._gateway.store).__module__,
        }
        return ProcessRunner(posts, places, task, self.dir, screen, clock)

    def _run_here(self, post: WorkerRun) -> Any:
        """Run a worker in this thread, as a member of its own."""
        session = worker_session(self._host, self.id, post.member_id, post.name, self._member.id, post.number)
        try:
            positional, named = post.call.decoded()
            return post.call.worker.function(session, *positional, **named)
        finally:
            session.cleanup()

    # The end

    def cleanup(self) -> None:
        """Leave the session and let go of everything. When the opener does, the session has ended. Twice is once."""
        if self._left:
            return
        self._left = True
        for undo in self._undo:
            undo()
        self._undo.clear()  # they know the session, which with its room would wait to be collected
        with suppress(PostroomError):
            if self._member.role == OPENER:
                self._record.end()
                if self._host.folder is None and self._record.read().failure is None:
                    shutil.rmtree(self.dir, ignore_errors=True)  # of a failed one it stays as long as the room does
        self._member.leave()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: BaseException | None, traceback: TracebackType | None) -> None:
        try:
            if error is not None and not self._left and not self._record.is_abort(error):
                self._record.blame(self.name, error)
        finally:
            self.cleanup()

    def __repr__(self) -> str:
        return f"<Session {self.id} as {self.name!r}>"

    # Parts of the above

    def watch_folder(self) -> None:
        """Fail the session when somebody makes a `.failed` file in its folder, whatever is in it."""

        def on_file(complete: bool) -> bool:
            failure = read_failed_file(self.dir, self._gateway.clock)
            if failure is None or (not complete and failure.message.startswith("another program made")):
                return False  # gone again, or still being written: there will be another look
            with suppress(PostroomError):
                self._record.fail(failure)
            return True

        with suppress(OSError):
            self._undo.append(LISTENER.on_file(self.dir, FAILED_FILE, on_file))
            if (self.dir / FAILED_FILE).exists():
                on_file(complete=True)


def open_session(host: SessionHome) -> Session:
    """Open a new session; its folder is watched for a `.failed` file."""
    record = session_record.create(host.gateway, host.make_folder)
    try:
        session = _enter(host, record, CALLER, OPENER)
    except BaseException:
        with suppress(PostroomError):  # or others could join a session that its opener knows nothing of
            record.end()
        raise
    session.watch_folder()
    return session


def join_session(host: SessionHome, id: str, name: str | None) -> Session:
    """Become a member of a session that somebody else opened.

    Raises SessionFailed, Deadlock or SessionEnded when it is over, UnknownSession when there is none.
    """
    check_names(session=id)
    record = SessionRecord(host.gateway, id)
    record.blame_gone_opener()
    failure = read_failed_file(Path(record.check().value["folder"]), host.gateway.clock)
    if failure is not None:  # made by hand, and the opener has not seen it yet
        raise record.error(record.fail(failure))
    return _enter(host, record, name or f"member-{host.gateway.process.split(':')[1]}", JOINED)


def _enter(host: SessionHome, record: SessionRecord, name: str, role: str) -> Session:
    check_names(name=name)
    (id,), number = enrol(record, [name], role, None)
    member = Member(record, id, name, role, None, number)
    try:
        member.introduce()
        return Session(host, member)
    except BaseException:
        member.leave()  # or it would count as one that can act, and no deadlock be found while this process lives
        raise


def worker_session(host: SessionHome, session_id: str, member_id: str, name: str, parent: str, number: int) -> Session:
    """The session of a worker, whose caller made it a member before it was started."""
    member = Member(SessionRecord(host.gateway, session_id), member_id, name, WORKER, parent, number)
    member.introduce()
    return Session(host, member)
