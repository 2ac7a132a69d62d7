"""Redaction on the way into the store: knows whether the room has rules, and applies them to what is about to be stored.

The rules are kept in a cell. A process reads it before its first send, and again when it sends later: every two seconds at
most, so that a send in a room without rules costs one comparison.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from postroom.core.message import Draft, check
from postroom.stores.contract import Store

from . import redaction_rules

#: The rules: {"shipped": [names], "own": {name: pattern}}.
REDACTION_CELL: Final = "redaction"
#: So long a process may go by the rules that it read, in seconds: after it, every sender honours a new rule.
RULES_S: Final = 2.0
_RULES_NS: Final = round(RULES_S * 1e9)


class Redaction:
    """The rules of a room as this process knows them. Shared by its threads."""

    def __init__(self, store: Store) -> None:
        self._store = store
        #: Messages that are stored from then on (the steady clock) must pass `apply`: rules are there, or to be read.
        self.due_ns = 0
        self._next_ns = 0
        self._value: Any = None
        self._rules: redaction_rules.Rules | None = None

    def forget(self) -> None:
        """Read the rules anew at the next send: this process has changed them."""
        self.due_ns = self._next_ns = 0

    def learn(self, now_ns: int) -> redaction_rules.Rules | None:
        """The rules; None where the room has none. Raises what the store raises, and RoomError for rules it cannot read."""
        if now_ns >= self._next_ns:
            cell = self._store.cell_read(REDACTION_CELL)
            value = None if cell is None else cell.value
            if value != self._value:
                self._rules = None if value is None else redaction_rules.Rules(value)
                self._value = value
            self._next_ns = now_ns + _RULES_NS
            self.due_ns = self._next_ns if self._rules is None else 0
        return self._rules

    def refresh(self, now_ns: int) -> None:
        """Read the rules if that is due; for callers that must not wait for the store between a decision and a claim."""
        if now_ns >= self._next_ns:
            self.learn(now_ns)

    def apply(self, drafts: Sequence[Draft], now_ns: int) -> None:
        """Redact the payloads of messages that are about to be checked and stored."""
        rules = self.learn(now_ns)
        if rules is not None:
            for draft in drafts:
                draft.payload = rules.redacted(draft.payload)

    def apply_to_end(self, drafts: Sequence[Draft], detail: str | None, max_bytes: int) -> str | None:
        """Redact what a message ends with, by the rules that are known: checked answers, and the reason, which is returned."""
        rules = self._rules
        if rules is None:
            return detail
        for draft in drafts:
            draft.payload = rules.redacted(draft.payload)
            check(draft, max_bytes)
        return None if detail is None else rules.redacted_text(detail)
