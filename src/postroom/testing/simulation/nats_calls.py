"""Calls of a store on a simulated NATS server, by which each request is known: also where it comes late."""

from __future__ import annotations

from collections.abc import Sequence
from contextvars import ContextVar
from typing import Any, Final

from postroom.core.message import Draft
from postroom.stores.contract import Ticket, Want

from .process import Process


class WitnessedCall:
    """A call of a store that may write, and what it has written so far."""

    def __init__(self, process: Process, what: str, began_ms: int, **given: Any) -> None:
        self.process = process
        self.what = what
        self.began_ms = began_ms
        #: The step of the schedule at which it was called.
        self.called_at = process.called_at
        self.drafts: Sequence[Draft] = given.get("drafts", ())
        self.want: Want | None = given.get("want")
        self.tickets: dict[str, Ticket] = {ticket.id: ticket for ticket in given.get("tickets", ())}
        self.outcome: str = given.get("outcome", "")
        self.lease_s: float = given.get("lease_s", 0.0)
        self.cell: tuple[str, Any, int] = given.get("cell", ("", None, 0))
        self.unstored = [draft for draft in self.drafts if not draft.publish]
        self.reached: set[str | None] = set()  # by a publication
        self.stored: list[str] = []
        self.claimed: dict[str, Ticket] = {}
        self.said: set[str] = set()
        self.versions: list[int] = []


#: The call for which something is sent.
CALL: Final[ContextVar[WitnessedCall | None]] = ContextVar("CALL", default=None)
