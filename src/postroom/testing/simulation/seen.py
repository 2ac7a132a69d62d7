"""What the judges know of one message."""

from __future__ import annotations

from collections.abc import Callable

from postroom.core.message import Draft
from postroom.core.states import State

from .process import Process


class Seen:
    """What the judge knows of one message."""

    __slots__ = (
        *("asker", "called_at", "claims", "deliveries", "draft", "due_ms", "expires_ms", "final", "held", "holder"),
        *("id", "is_gone", "label", "number", "put_at", "put_back", "spent", "to_agent", "token", "until_ms"),
    )

    def __init__(self, number: int, id: str, draft: Draft, now_ms: int, is_gone: Callable[[Process], bool]) -> None:
        self.number = number
        #: Whether a process is dead, or may be taken for dead.
        self.is_gone = is_gone
        self.id = id
        self.label = f"m{number}"
        self.draft = draft
        self.to_agent = draft.to_agent
        self.due_ms = now_ms + round(draft.delay_s * 1000)
        self.expires_ms = None if draft.ttl_s is None else now_ms + round(draft.ttl_s * 1000)
        self.token = self.deliveries = self.claims = self.until_ms = 0
        #: The process that claimed it last, whether it still holds it, whether the last token was used up.
        self.holder: Process | None = None
        self.held = False
        self.spent = True
        self.final: State | None = None
        #: Whether an operator has put it back.
        self.put_back = False
        #: The process that waits for its answer.
        self.asker: Process | None = None
        #: The steps at which it was put, and at which the call began by which it was claimed last.
        self.put_at = self.called_at = 0

    def is_held(self, now_ms: int) -> bool:
        """Whether it is surely somebody's at that moment: its lease lasts, and its holder lives."""
        return self.held and self.until_ms > now_ms and not (self.holder is not None and self.is_gone(self.holder))

    def is_expired(self, now_ms: int) -> bool:
        """Whether its time to live is over."""
        return self.expires_ms is not None and self.expires_ms <= now_ms

    def may_have_ended(self, now_ms: int) -> bool:
        """Whether it has ended, or time or the death of its last receiver may have ended it."""
        if self.final is not None:
            return True
        if self.is_held(now_ms):
            return False
        return self.is_expired(now_ms) or (self.held and self.deliveries >= self.draft.max_deliveries)

    def surely_waits(self, now_ms: int) -> bool:
        """Whether it has not ended, and nobody has it, nor had it when a lease ended or a process died."""
        return self.final is None and not self.held and not self.is_expired(now_ms)

    def is_fresh(self, now_ms: int) -> bool:
        """Whether it waits, and neither a delay nor a receiver ever kept it back: whatever looks for it must find it."""
        draft = self.draft
        is_plain = draft.answer_to is None and not draft.delay_s and not draft.publish
        return is_plain and not self.claims and not self.put_back and self.surely_waits(now_ms)
