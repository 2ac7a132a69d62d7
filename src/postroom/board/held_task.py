"""A task in the hands of its owner, and what the owner may say of it."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from types import TracebackType
from typing import Any, Final, Self

from postroom.core.message import payload_text
from postroom.errors import Fault, InvalidMessage, PostroomError, RoomClosed
from postroom.mail.gateway import Deadline, Pause, Steps
from postroom.mail.received import check_seconds, check_timeout, words
from postroom.stores.contract import ANY, topic_cells

from . import task
from .records import SIGNAL, Book, ended, free
from .task import ABORTED, BLOCKED, CLAIMED, DONE, READY, Value

SIGNALS: Final = topic_cells(SIGNAL)


class HeldTask:
    """A task that was claimed. It belongs to its owner until that settles it, its lease ends, or it is aborted.

    `done`, `blocked` and `release` settle it. Each returns whether it counted, after that is written: False means that
    the task was settled before, was aborted, or belongs to another by now, and that nothing was changed. One that
    raises may have been carried out; repeating it is safe.

    As a context manager it is done at the end of the block and released if the block raises, unless the block settled
    it.
    """

    def __init__(self, book: Book, value: Value, lease_s: float, process: str | None) -> None:
        self.id: str = value["id"]  # its name on the board
        self.title: str = value["title"]  # what is to be done
        self.payload: dict[str, Any] = value["payload"]  # what its owner needs to know
        self.after: tuple[str, ...] = tuple(value["after"])  # the tasks that were done before it
        #: The agent that claimed it.
        self.agent: str = value["owner"] or value.get("last_owner") or ""
        #: The fencing token: grows with every claim of this task. For owners that write elsewhere.
        self.token: int = value["token"]
        self.lease_s = lease_s  # for how long a claim or an extension holds
        #: None while it is the owner's to settle; then whether settling counted.
        self.settled: bool | None = None
        self._book = book
        self._process = process  # with which the claim ends; None when it belongs to the agent
        self._aborted = False
        self._lost = False
        #: The callback for when it is settled. Set by the heartbeats that look after it.
        self.forget: Callable[[object], None] | None = None

    @property
    def aborted(self) -> bool:
        """Whether it was aborted. Becomes true on its own, within moments of `board.abort`; costs nothing to ask.

        A transient claim is not watched, so asking reads the board.
        """
        if self.forget is None and self.settled is None and not self._book.gateway.closing:
            self.look()
        return self._aborted

    @property
    def lost(self) -> bool:
        """Whether it was seen to be no longer this owner's: aborted, or taken by another after its lease ended."""
        return self.aborted or self._lost

    # What the owner may say

    def done(self, result: Any = None, *, _told: str | None = None) -> bool:
        """It is done. The lead is told, and what waited for it can be claimed."""
        faults: list[Fault] = []
        payload_text({"result": result}, faults)
        if faults:
            raise InvalidMessage([Fault(field.replace("payload.", "", 1), problem) for field, problem in faults])
        return self._settle(
            DONE, lambda value: ended(value, DONE, result=result, why=None, owner=self.agent, told=_told)
        )

    def blocked(self, why: str, *, _told: str | None = None) -> bool:
        """It cannot go on. The lead is told; `board.reopen` makes it ready again."""
        said = words("why", why)
        return self._settle(BLOCKED, lambda value: ended(value, BLOCKED, why=said, owner=self.agent, told=_told))

    def release(self, why: str | None = None) -> bool:
        """Let others have it, at once."""
        said = None if why is None else words("why", why)
        return self._settle(READY, lambda value: free(value, token=value["token"] + 1, why=said, last_owner=None))

    def extend(self, lease_s: float | None = None) -> bool:
        """Keep it for that many seconds from now (None: for as long as it was claimed for). False when it is lost."""
        span_s = self.lease_s if lease_s is None else check_seconds("lease_s", lease_s, zero=False)
        self._book.gateway.check_open()
        was_let_go = False

        def decide(value: Value) -> Value | None:
            nonlocal was_let_go
            if not self._is_mine(value):
                return None
            was_let_go = self._was_let_go(value)
            mine = {"state": CLAIMED, "owner": self.agent, "process": self._process, "last_owner": None, "why": None}
            return {**value, **(mine if was_let_go else {}), **task.lease_fields(self._book.clock, span_s)}

        extended = self._book.change(self.id, decide)
        if extended is None:
            self.look()
        else:  # claimed back: also over the note that another is about to take away
            self._book.note_claim(extended, expect=ANY if was_let_go else 0)
        return extended is not None

    def wait_aborted(self, timeout_s: float | None = None) -> bool:
        """Wait until it is aborted; True then, False when time ran out or it ended otherwise."""
        check_timeout(timeout_s)
        return self._book.gateway.finish(self._waiting(timeout_s))

    def _waiting(self, timeout_s: float | None) -> Steps[bool]:
        deadline = Deadline(self._book.clock, timeout_s)
        with self._book.gateway.listen([SIGNALS]) as waiter:
            while True:
                self.look()
                left_s = deadline.left_s()
                if self.lost or self.settled is not None or left_s == 0:
                    return self._aborted
                yield Pause(waiter, left_s)

    # Parts of the above

    def _is_mine(self, value: Value) -> bool:
        """Whether the token still counts. The end of a lease only lets others take it: until then it does."""
        # the owner too: a claim that was written by hand into a file has no token of its own
        return value["token"] == self.token and task.holder_of(value) == self.agent

    def _settle(self, state: str, change: Callable[[Value], Value]) -> bool:
        if self.settled is not None:
            return False
        self._book.gateway.check_open()
        seen: Value = {}

        def decide(value: Value) -> Value | None:
            nonlocal seen
            seen = value
            return change(value) if value["state"] == CLAIMED and self._is_mine(value) else None

        note = self._book.read_note(self.id)
        settled = self._book.change(self.id, decide)
        while settled is None and seen and self._was_let_go(seen) and self.extend():
            note = self._book.read_note(self.id)
            settled = self._book.change(self.id, decide)
        if settled is None and seen and self._settled_before(seen, state):
            settled = seen
        if settled is None:
            self.look()
        else:
            self._book.follow(settled, note)
        self.settled = settled is not None
        if self.forget is not None:
            self.forget(self)
        return self.settled

    def _was_let_go(self, value: Value) -> bool:
        """Whether its lease ended, and nobody has claimed it since."""
        return bool(value["state"] == READY) and self._is_mine(value)

    def _settled_before(self, value: Value, state: str) -> bool:
        """Whether it was written, and what follows from it was not finished."""
        return bool(value["state"] == state != READY and value["token"] == self.token and value["owner"] == self.agent)

    def look(self) -> None:
        """See whether it was aborted or taken."""
        found = self._book.read(self.id)
        if found is None:
            self._lost = True
            return
        value = found.value
        if value["state"] == ABORTED and value["token"] == self.token + 1:
            self._aborted = True
        elif self.settled is None and not self._is_mine(value):
            self._lost = True

    def return_unseen(self) -> None:
        """Let others have it, because nobody saw it. Never raises: the end of the lease does the same."""
        with suppress(PostroomError):
            self.release()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: BaseException | None, traceback: TracebackType | None) -> None:
        if error is None:
            if self.settled is None:
                self.done()
        elif self.settled is None:
            try:
                self.release(words("why", error))
            except RoomClosed:  # which gave it back
                return
            except PostroomError as trouble:
                error.add_note(f"Postroom could not release the task at once: {trouble}")

    def __repr__(self) -> str:
        return f"<HeldTask {self.id!r} of {self.agent!r}, token {self.token}>"
