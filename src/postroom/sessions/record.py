"""A session as its room knows it: one cell, changed by compare-and-set alone.

    session:<id>/record   {"timestamp_ms", "opener", "folder", "admitted", "failure", "ended_ms"}

Everything that decides about the whole session goes through this one cell: letting a member in (`admitted` counts
them), the failure (the first one stands), the end. So no two of these can pass each other by. Members have cells of
their own, "member:<id>/<member>" (see `sessions/members.py`).
"""

from __future__ import annotations

import json
import os
import re
import traceback
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, NamedTuple

from postroom.core.clock import Clock, from_iso, iso
from postroom.core.system.files import no_follow
from postroom.errors import (
    Deadlock,
    PostroomError,
    RoomBusy,
    RoomClosed,
    SessionEnded,
    SessionFailed,
    UnknownSession,
    WorkerTraceback,
)
from postroom.mail.gateway import Gateway
from postroom.mail.received import words
from postroom.stores.cells import update
from postroom.stores.contract import topic_cells

FAILED_FILE: Final = ".failed"
CALLER: Final = "caller"
DEADLOCK: Final = "Deadlock"
#: Tracebacks are kept up to this many characters: the end of them.
MAX_STACK: Final = 60_000
#: Of a `.failed` file that somebody wrote by hand, so much is read.
MAX_FILE_BYTES: Final = 256 * 1024

_PREFIX: Final = "session:"
_SUFFIX: Final = "/record"
_MAX_TRIES: Final = 1000

Value = dict[str, Any]


class Failure(NamedTuple):
    """Why a session failed: when, what was said, the traceback, and through which worker."""

    timestamp: str  # when, as ISO 8601 text
    message: str  # what was said
    stack: str  # the traceback
    worker: str | None  # through which worker; None: through the opener
    #: The word Deadlock, or the name of the error, or nothing.
    kind: str = ""

    def to_file(self) -> str:
        """The text of the `.failed` file."""
        shown = {"timestamp": self.timestamp, "message": self.message, "stack": self.stack, "worker": self.worker}
        return json.dumps(shown, indent=2, ensure_ascii=False) + "\n"


class Record(NamedTuple):
    """What the cell says, and its version."""

    version: int
    value: Value

    @property
    def failure(self) -> Failure | None:
        value = self.value["failure"]
        return None if value is None else Failure(**value)

    @property
    def ended_ms(self) -> int | None:
        ended_ms: int | None = self.value["ended_ms"]
        return ended_ms

    @property
    def over(self) -> bool:
        return self.value["failure"] is not None or self.value["ended_ms"] is not None


class SessionRecord:
    """The record of one session. All methods may be called from several threads and processes at once."""

    def __init__(self, gateway: Gateway, id: str) -> None:
        self.id = id
        self.gateway = gateway
        self.cell = f"{_PREFIX}{id}{_SUFFIX}"
        #: Listeners to this topic hear of members that come, of the failure and of the end.
        self.topic = topic_cells(self.cell)

    def read(self) -> Record:
        """What stands there now. UnknownSession when there is none."""
        self.gateway.check_open()
        cell = self.gateway.store.cell_read(self.cell)
        return Record(0 if cell is None else cell.version, self._known(None if cell is None else cell.value))

    def _known(self, value: Value | None) -> Value:
        if value is None:
            raise UnknownSession(f"there is no session {self.id} in this room; `postroom session list` shows them")
        return value

    def check(self) -> Record:
        """What stands there now; SessionFailed, Deadlock or SessionEnded when the session is over."""
        record = self.read()
        self._check_goes_on(record.value)
        return record

    def _check_goes_on(self, value: Value) -> None:
        if value["failure"] is not None:
            raise self.error(Failure(**value["failure"]))
        if value["ended_ms"] is not None:
            raise SessionEnded(f"Session {self.id} has ended: its opener has closed it")

    def error(self, failure: Failure) -> SessionFailed:
        """The error that tells of a failure; its cause is the traceback of the worker."""
        kind = Deadlock if failure.kind == DEADLOCK else SessionFailed
        error = kind(f"Session {self.id} failed: {failure.message}", self.id, failure)
        if failure.stack:
            who = f"worker {failure.worker}" if failure.worker else "the failed member"
            error.__cause__ = WorkerTraceback(f"traceback of {who}:\n\n{failure.stack.rstrip()}")
        return error

    def admit(self, count: int = 1) -> int:
        """Let so many members in, whose cells are written already. Returns the number of the first of them.

        Raises what `check` raises; then nobody was let in.
        """

        def add(value: Value) -> Value:
            self._check_goes_on(value)
            return value | {"admitted": int(value["admitted"]) + count}

        value = self._update(add, f"too many processes are joining session {self.id} at once; try again")
        return int(value["admitted"]) - count + 1

    def fail(self, failure: Failure) -> Failure:
        """Record a failure, unless there is one. Returns the one that stands; all waiting members are woken.

        A session that has ended well stays so: then nothing is recorded, and the given failure is returned.
        """

        def change(value: Value) -> Value | None:
            is_open = value["failure"] is None and value["ended_ms"] is None
            return value | {"failure": failure._asdict()} if is_open else None

        value = self._update(change)
        if value["failure"] is None:
            return failure
        stands = Failure(**value["failure"])
        if stands == failure:  # recorded now; or before, and then an interrupt came
            # after the others were woken: they need not wait for a file
            write_failed_file(Path(value["folder"]), failure)
        return stands

    def fail_at(self, version: int, value: Value, failure: Failure) -> bool:
        """Record a failure if the record is still of that version. Nobody joined, failed or ended it since, then."""
        value = value | {"failure": failure._asdict()}
        if self.gateway.store.cell_write(self.cell, value, expect=version) is None:
            return False
        # after the others were woken: they need not wait for a file
        write_failed_file(Path(value["folder"]), failure)
        return True

    def end(self) -> None:
        """Its opener closes it. A failure that was recorded stays."""
        now_ms = self.gateway.clock.wall_ms()
        self._update(lambda value: value | {"ended_ms": now_ms} if value["ended_ms"] is None else None)

    def _update(self, change: Callable[[Value], Value | None], busy: str | None = None) -> Value:
        """Change the record by compare-and-set.

        UnknownSession when there is none, RoomBusy when others kept changing it.
        """
        self.gateway.check_open()
        busy = busy or f"too many processes are changing session {self.id} at once; try again"
        value: Value = update(self.gateway.store, self.cell, lambda value: change(self._known(value)), busy=busy)
        return value

    def is_abort(self, error: BaseException) -> bool:
        """Whether an error only says that this session is over already."""
        if isinstance(error, SessionFailed):
            return error.session_id == self.id
        return isinstance(error, SessionEnded | RoomClosed)

    def blame(self, member: str, error: BaseException) -> None:
        """Record that a member was stopped by an error, as far as the room can still be told.

        A Ctrl-C meanwhile is raised when that is done, not instead of it.
        """
        said = f"{member} was interrupted (Ctrl-C)" if isinstance(error, KeyboardInterrupt) else None
        failure = None
        with suppress(PostroomError):
            try:
                failure = failure_of(error, member, self.gateway.clock, said)
                self.fail(failure)
            except KeyboardInterrupt:
                self.fail(failure or failure_of(error, member, self.gateway.clock, said))
                raise

    def blame_gone_opener(self, record: Record | None = None) -> bool:
        """Record the failure of a session whose opener's process is gone. Returns whether it is."""
        record = record or self.read()
        if record.over or self.gateway.store.process_alive(record.value["opener"]) is not False:
            return False
        self.fail(opener_gone(self.gateway.clock))
        return True


def is_record(cell: str) -> bool:
    """Whether a cell of that name is the record of a session."""
    return cell.startswith(_PREFIX) and cell.endswith(_SUFFIX)


def create(gateway: Gateway, make_folder: Callable[[str], Path]) -> SessionRecord:
    """A new session, with a folder of its own, which `make_folder` makes for its id."""
    for _ in range(_MAX_TRIES):
        now_ms = gateway.clock.wall_ms()
        stamp = re.sub(r"\D", "", iso(now_ms))[:14]
        id = f"{stamp[:8]}-{stamp[8:]}-{int(gateway.clock.random() * 16**6):06x}"
        record = SessionRecord(gateway, id)
        if gateway.store.cell_read(record.cell) is not None:
            continue
        folder = make_folder(id)
        value = {
            "timestamp_ms": now_ms,
            "opener": gateway.process,
            "folder": str(folder),
            "admitted": 0,
            "failure": None,
            "ended_ms": None,
        }
        if gateway.store.cell_write(record.cell, value, expect=0) is not None:
            return record
    raise RoomBusy("no free name for a new session was found; try again")


def all_records(gateway: Gateway) -> list[tuple[str, Record]]:
    """Every session of the room, by its id: the oldest first."""
    cells = gateway.open_store.cell_scan(_PREFIX)
    ours = [cell for cell in cells if cell.name.endswith(_SUFFIX)]
    return [
        (cell.name.removeprefix(_PREFIX).removesuffix(_SUFFIX), Record(cell.version, cell.value))
        for cell in sorted(ours, key=lambda cell: (cell.value["timestamp_ms"], cell.name))
    ]


# What is said of a failure


def failure_of(error: BaseException | str, worker: str | None, clock: Clock, said: str | None = None) -> Failure:
    """A failure from an error or from a sentence. `said` is the message, if it is not the error's own."""
    timestamp = iso(clock.wall_ms())
    if isinstance(error, str):
        return Failure(timestamp, words("error", error), "", worker)
    stack = _stack_of(error)
    own = words("error", error)
    name = type(error).__name__
    message = said or own.removeprefix(f"{name}: ")
    return Failure(timestamp, message, stack[-MAX_STACK:], worker, name if name != DEADLOCK else "")


def _stack_of(error: BaseException) -> str:
    """The traceback as Python writes it, from the first line that is not Postroom's own."""
    told = traceback.TracebackException.from_exception(error)
    own = str(Path(__file__).parents[1])
    while len(told.stack) > 1 and told.stack[0].filename.startswith(own):
        del told.stack[0]
    return "".join(told.format()).encode("utf-8", "backslashreplace").decode()


def raised_by(worker: str, error: BaseException, clock: Clock) -> Failure:
    """The failure of a worker whose function raised."""
    if isinstance(error, SystemExit):
        said = f"worker {worker} called sys.exit({'' if error.code is None else repr(error.code)})"
    else:
        said = f"worker {worker} raised {words('error', error)}"
    return failure_of(error, worker, clock, said)


def opener_gone(clock: Clock) -> Failure:
    """The failure of a session whose opener died."""
    said = "the process that opened the session was killed, or ended without closing it"
    return Failure(iso(clock.wall_ms()), said, "", CALLER)


# The `.failed` file


def write_failed_file(folder: Path, failure: Failure) -> None:
    """Put the failure where people look for it: whole or not at all, and never over one that is there.

    What keeps it from being written (the folder was removed, is on another machine, the disk is full) is no reason
    for more trouble: the record in the room is what counts.
    """
    draft = folder / f"{FAILED_FILE}.{os.getpid()}-{os.urandom(4).hex()}"
    with suppress(OSError):
        try:
            draft.write_text(failure.to_file(), encoding="utf-8")
            os.link(draft, folder / FAILED_FILE)
        finally:
            draft.unlink(missing_ok=True)


def read_failed_file(folder: Path, clock: Clock) -> Failure | None:
    """The failure that a `.failed` file tells of, however little that is; None when there is no such file."""
    path = folder / FAILED_FILE
    try:
        with open(path, "rb", opener=no_follow) as file:
            text = file.read(MAX_FILE_BYTES).decode("utf-8", "backslashreplace")
    except FileNotFoundError:
        return None
    except OSError as error:
        now = iso(clock.wall_ms())
        return Failure(now, f"{path} exists but could not be read ({error.strerror or error})", "", None)
    return failure_from_text(text, path, clock)


def failure_from_text(text: str, path: Path, clock: Clock) -> Failure:
    """What can be said about a session with such a `.failed` file."""
    now = iso(clock.wall_ms())
    try:
        said = json.loads(text)
    except (ValueError, RecursionError):
        said = None
    if not isinstance(said, dict):
        rest = f": {text.strip()[:1000]}" if text.strip() else ", and is empty"
        return Failure(now, f"another program made {path}{words('text', rest)}", "", None)
    given = {name: said.get(name) for name in ("timestamp", "message", "error", "stack", "worker")}
    texts = {name: words(name, value) for name, value in given.items() if isinstance(value, str) and value}
    return Failure(
        _time_or(texts.get("timestamp"), now),
        texts.get("message") or texts.get("error") or f"another program made {path}, without a message",
        texts.get("stack", ""),
        texts.get("worker"),
    )


def _time_or(text: str | None, now: str) -> str:
    try:
        return iso(from_iso(text)) if text else now
    except (ValueError, OverflowError):
        return now
