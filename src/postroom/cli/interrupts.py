"""Ctrl-C ends a wait at once, but never falls between taking a message or a task and showing it.

A one-shot command claims for its agent, and such a claim ends by time alone: what was taken by a command that was
interrupted before it wrote anything would be held for ten minutes by nobody (tests/cli/test_processes.py, test_board.py).
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final, NoReturn, Self

if TYPE_CHECKING:
    from postroom.room import Room

SIGNALS: Final = (signal.SIGINT, signal.SIGTERM)


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
            raise SystemExit(128 + signal.SIGTERM)
        raise KeyboardInterrupt

    def _on_signal(self, number: int, _frame: object) -> None:
        self._pending = number
        if not self._holding:
            self.end()

    def _begin(self, _event: str, _detail: Mapping[str, Any]) -> None:
        self._holding = True

    def _know(self, _event: str, detail: Mapping[str, Any]) -> None:
        self._holding = bool(detail.get("deliveries") or detail.get("taken"))
        if self._pending and not self._holding:
            self.end()
