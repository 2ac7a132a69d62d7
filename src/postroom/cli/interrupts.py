"""Signals: Ctrl-C and SIGTERM end a wait at once, but never fall between taking a message or a task and showing it.

A one-shot command claims for its agent, and such a claim ends by time alone: what was taken by a command that was
interrupted before it wrote anything would be held for ten minutes by nobody (tests/cli/test_processes.py, test_board.py).
A command that runs until it is told to stop has done its work when SIGTERM comes: `Leaving`. A step that makes what must
be cleared up defers both (`deferred`).
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any, Final, NoReturn, Self

from postroom.core.clock import SYSTEM
from postroom.core.system import goodbye
from postroom.mail.gateway import Latch

if TYPE_CHECKING:
    from postroom.room import Room

SIGNALS: Final = (signal.SIGINT, signal.SIGTERM)
#: After the grace of SIGTERM, a command that waits for its reader is woken this often, in seconds.
ALARMS_S: Final = 0.05


@contextmanager
def deferred() -> Iterator[None]:
    """A signal that comes in the block is handled at its end: what the block has made is in known hands by then.

    For short steps that make something which must be cleared up. Outside the main thread no signal is handled anyway.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    came: list[tuple[int, Any]] = []
    before = {int(number): signal.getsignal(number) for number in SIGNALS}
    handlers = {number: handler for number, handler in before.items() if callable(handler)}
    for number in handlers:
        signal.signal(number, lambda number, frame: came.append((number, frame)))
    try:
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
        for number, frame in came[:1]:
            handlers[number](number, frame)


class Interrupts:
    """While open, signals that come in the middle of a claim wait until it is known what was taken."""

    def __init__(self, room: Room) -> None:
        self._hooks = room.hooks
        self._holding = False
        self._pending = 0
        self._ends: list[Any] = []
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            self._before = {number: signal.signal(number, self._on_signal) for number in SIGNALS}
        steps = {"before": self._begin, "after": self._know}
        self._ends = [self._hooks.on(f"{when}_{what}", steps[when]) for what in ("claim", "take") for when in steps]
        return self

    def __exit__(self, *_: object) -> None:
        for end in self._ends:
            end()
        for number, handler in self._before.items():
            signal.signal(number, handler)

    @property
    def pending(self) -> bool:
        """Whether a signal came while something was being taken."""
        return self._pending != 0

    @property
    def holding(self) -> bool:
        """Whether something was taken. A task that the agent held before is only shown again."""
        return self._holding

    def end(self) -> NoReturn:
        """End the command as the signal asked."""
        if self._pending == signal.SIGTERM:
            raise SystemExit(goodbye.TERMINATED)
        raise KeyboardInterrupt

    def _on_signal(self, number: int, _frame: object) -> None:
        again, self._pending = self.pending, number
        if number == signal.SIGTERM:
            goodbye.next_one_ends()
        if again or not self._holding:
            self.end()

    def _begin(self, _event: str, _detail: Mapping[str, Any]) -> None:
        self._holding = True

    def _know(self, _event: str, detail: Mapping[str, Any]) -> None:
        self._holding = bool(detail.get("deliveries") or detail.get("taken"))
        if self._pending and not self._holding:
            self.end()


class GraceOver(BaseException):
    """The time that SIGTERM left is over, and the reader of our output has still not read."""


class Leaving:
    """While open, SIGTERM lets a command end by itself: `latch` is set, and output has `grace_s` to be read."""

    def __init__(self, grace_s: float) -> None:
        self.latch = Latch(SYSTEM)
        self._grace_s = max(grace_s, ALARMS_S)
        self._writing = False
        self._open = ExitStack()

    def __enter__(self) -> Self:
        if self._open.enter_context(goodbye.heard(self._tell)):
            self._open.callback(signal.signal, signal.SIGALRM, signal.signal(signal.SIGALRM, self._on_alarm))
            self._open.callback(signal.setitimer, signal.ITIMER_REAL, 0)
        return self

    def __exit__(self, *_: object) -> None:
        self._open.close()

    def is_told(self) -> bool:
        """Whether SIGTERM came."""
        return self.latch.is_set()

    @contextmanager
    def writing(self) -> Iterator[None]:
        """The block writes to standard output, and may wait for a reader: not for ever, once SIGTERM came (GraceOver)."""
        self._writing = True
        try:
            yield
        finally:
            self._writing = False

    def _tell(self) -> None:
        self.latch.set()
        signal.setitimer(signal.ITIMER_REAL, self._grace_s, ALARMS_S)  # again and again: the first may come too early

    def _on_alarm(self, _number: int, _frame: object) -> None:
        if self._writing:
            self._writing = False
            raise GraceOver
