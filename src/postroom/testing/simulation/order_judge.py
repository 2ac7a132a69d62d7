"""The judge of order keys: of one key in one mailbox one message at a time, in the order in which they were stored."""

from __future__ import annotations

from collections.abc import Container

from postroom.core.message import Draft

from .broken import Broken
from .process import Around
from .seen import Seen

#: Recipient or nobody, channel, and order key.
OrderLine = tuple[str | None, str, str]


class OrderJudge:
    """Sees every message with an order key, and every claim of one.

    A message that was put back may come at its old place or behind the others; so it is no part of the order any more,
    and still never claimed beside another one.
    """

    def __init__(self, world: Around) -> None:
        self._world = world
        self._lines: dict[OrderLine, list[Seen]] = {}

    def __bool__(self) -> bool:
        """Whether there are order keys."""
        return bool(self._lines)

    def put(self, seen: Seen) -> None:
        """A message was stored, behind all others."""
        if seen.draft.order_key is not None:
            self._lines.setdefault(_line(seen), []).append(seen)

    def line_of(self, draft: Draft) -> list[Seen]:
        """The messages of a draft's key in its mailbox, also those that have ended."""
        return self._lines.get((draft.to_agent, draft.channel, draft.order_key or ""), [])

    def is_behind(self, seen: Seen) -> bool:
        """Whether another message of its key may come first, for all that is known."""
        return any(other.final is None and other is not seen for other in self._before(seen))

    def _before(self, seen: Seen) -> list[Seen]:
        line = self._lines.get(_line(seen), []) if seen.draft.order_key is not None else []
        return [other for other in line if other.put_back or other.number < seen.number]

    def judge_claim(self, seen: Seen, now_ms: int) -> None:
        """A message is claimed now: no other one of its key is, and none that was stored before it waits."""
        line = self._lines.get(_line(seen), []) if seen.draft.order_key is not None else []
        for other in line:
            if other is seen or other.may_have_ended(now_ms):
                continue
            if other.is_held(now_ms):
                raise Broken(f"{seen.label} was claimed while {other.label} is, of the same order key")
            if other.number < seen.number and not (other.put_back or seen.put_back):
                raise Broken(f"{seen.label} came before {other.label}, which was stored before it under its order key")
        if any(other.number < seen.number for other in line):
            self._world.happened("the next of its order key came")

    def freed_by(self, seen: Seen, now_ms: int) -> Seen | None:
        """The message that may be taken now because that one has ended; None where there is none, or it is not sure."""
        line = self._lines.get(_line(seen), []) if seen.draft.order_key is not None else []
        if any(other.put_back for other in line):
            return None
        first = next((other for other in line if other.final is None), None)
        if first is None or first.number < seen.number or not first.surely_waits(now_ms):
            return None
        return first if first.due_ms <= now_ms else None

    def goes_on_from(self, kept: Container[Seen]) -> None:
        """A power cut has left these."""
        self._lines = {line: [each for each in of_it if each in kept] for line, of_it in self._lines.items()}


def _line(seen: Seen) -> OrderLine:
    return seen.to_agent, seen.draft.channel, seen.draft.order_key or ""
