"""What happened in a room, step by step: the feed says which messages changed, and their ledgers what happened to each.

The feed may fold several changes of a message into its latest; a ledger has them all. Messages that are no longer kept
have left no step.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice
from typing import Final, NamedTuple

from postroom.core.message import LedgerEntry, MessageWithLedger
from postroom.stores.contract import Change

from .gateway import Gateway

_PAGE: Final = 500
#: Where only the last steps are wanted, they are looked for in the last minute first, then hour, then day.
_WINDOWS_MS: Final = (60_000, 3_600_000, 86_400_000)
#: So many messages are remembered with what was told of them.
_MAX_TOLD: Final = 50_000


class LoggedStep(NamedTuple):
    """One line of the ledger of one message; the message stands as it is now."""

    message: MessageWithLedger
    entry: LedgerEntry


class History:
    """The steps of a room's messages, for one reader."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self._told: dict[str, int] = {}  # message -> lines of its ledger that were told
        self._floor_ms = 0  # of messages that are not remembered, earlier lines were told
        self.number = 0  # of the feed, up to which everything was told

    def past(
        self, since_ms: int | None, limit: int | None, wanted: Callable[[LoggedStep], bool]
    ) -> tuple[list[LoggedStep], bool]:
        """The wanted steps from a moment on, oldest first, at most the last `limit`; and whether there were more."""
        starts = [since_ms or 0]
        if since_ms is None and limit is not None:
            now_ms = self._gateway.clock.wall_ms()
            starts = [*(now_ms - span_ms for span_ms in _WINDOWS_MS), 0]
        steps: list[LoggedStep] = []
        for start_ms in starts:
            steps = [step for step in self._from(start_ms) if wanted(step)]
            if limit is not None and len(steps) > limit:
                return steps[-limit:], True
        return steps, False

    def _from(self, start_ms: int) -> list[LoggedStep]:
        store = self._gateway.store
        self._told.clear()
        self._floor_ms = start_ms
        self.number = store.number_at(start_ms - 1) if start_ms else 0
        found: list[LoggedStep] = []
        while changes := store.events(self.number, _PAGE):
            found += self._steps_of(changes)
        return sorted(found, key=lambda step: step.entry.time_ms)

    def after(self, change: Change) -> list[LoggedStep]:
        """The steps that a change brought, of a feed that is followed from `number` on."""
        found = self._steps_of([change])
        if len(self._told) > _MAX_TOLD:  # a feed that is followed for days
            for id in list(islice(self._told, _MAX_TOLD // 2)):
                del self._told[id]
            self._floor_ms = change.time_ms
        return found

    def _steps_of(self, changes: list[Change]) -> list[LoggedStep]:
        """The steps behind some changes of the feed that were not told yet."""
        found: list[LoggedStep] = []
        for id in dict.fromkeys(change.message.id for change in changes):
            message = self._gateway.store.get(id)
            if message is None:
                continue
            told = self._told.pop(id, None)
            new = message.ledger[told:] if told else [e for e in message.ledger if e.time_ms >= self._floor_ms]
            found += (LoggedStep(message, entry) for entry in new)
            self._told[id] = len(message.ledger)
        self.number = changes[-1].number
        return found
