"""Idempotent repeats: writes of this process whose end is unknown (OutcomeUnknown): a repeat is no second one."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from postroom.core.clock import Clock
from postroom.core.message import Draft
from postroom.stores.contract import Ticket

from .wire import Write

#: So much is remembered, for this long.
MAX_UNSURE: Final = 1000
UNSURE_S: Final = 3600


class DraftWrites(NamedTuple):
    """The writes for one draft, and the name of the write."""

    draft: Draft
    ids: list[str]
    writes: list[Write]
    name: str


class Unsure:
    """Sends and settlings whose end is not known. A repeat in the same opened room, within the hour, ends what was
    begun.

    A send is a repeat when all of it is the same. Whether its caller meant a repeat or another message that is just
    alike does not matter: for each call that returned there is one message.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._parts: list[tuple[int, DraftWrites]] = []
        self._settlings: dict[tuple[Ticket, str], str] = {}
        self._lock = threading.Lock()

    def remember(self, parts: Iterable[DraftWrites]) -> None:
        """These may be stored or not. Those with a key are found by it, and an asker asks again."""
        now_ns = self._clock.steady_ns()
        with self._lock:
            for part in parts:
                draft = part.draft
                if draft.idempotency_key is draft.waiter is draft.answer_to is None and part.writes:
                    self._parts.append((now_ns, part))
            del self._parts[:-MAX_UNSURE]

    def repeats_of(self, drafts: Sequence[Draft]) -> list[DraftWrites | None]:
        """For each draft the part that it repeats, which is forgotten here; none for most."""
        if not self._parts:
            return []
        since_ns = self._clock.steady_ns() - UNSURE_S * 1_000_000_000
        with self._lock:
            self._parts = [each for each in self._parts if each[0] >= since_ns]
            return [self._take(draft) for draft in drafts]

    def _take(self, draft: Draft) -> DraftWrites | None:
        for place, (_, part) in enumerate(self._parts):
            if part.draft == draft:
                del self._parts[place]
                return part
        return None

    def remember_settling(self, ticket: Ticket, outcome: str, write: str) -> None:
        """This may have been said of a message, by the write of that name."""
        with self._lock:
            self._settlings[ticket, outcome] = write
            while len(self._settlings) > MAX_UNSURE:
                del self._settlings[next(iter(self._settlings))]

    def settling(self, ticket: Ticket, outcome: str) -> str | None:
        """The name of the write by which the same may have been said before."""
        return self._settlings.get((ticket, outcome)) if self._settlings else None
