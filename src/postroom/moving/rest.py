"""Messages and cells at rest: as they can go to another room, where none of the processes of this one is.

A claim ends as when its receiver is told to stop: the message is ready again, and the delivery does not count. A question
waits for no asker any more, and an answer that was held for one is ordinary mail.
"""

from __future__ import annotations

from typing import Any, Final

from msgspec.structs import replace

from postroom.board import task as tasks
from postroom.core.message import LedgerEntry, MessageWithLedger
from postroom.core.states import State
from postroom.mail import presence
from postroom.stores.contract import Cell

MOVED: Final = "the room was moved"
RESTORED: Final = "the room was restored"


def message_at_rest(message: MessageWithLedger, wall_ms: int, why: str, least_token: int = 0) -> MessageWithLedger:
    """A message that no process holds or waits for; its token is at least that."""
    changes: dict[str, Any] = {"owner": None, "lease_until_ms": None, "waiter": None}
    ledger = message.ledger
    if message.exact_state is State.CLAIMED:
        ledger += (LedgerEntry("returned", wall_ms, message.claimed_by, why),)
        changes |= {"exact_state": State.READY, "delivery_count": message.delivery_count - 1, "claimed_by": None}
        changes["token"] = message.token + 1
    elif message.exact_state is State.AWAITED:
        changes["exact_state"] = State.READY
    if message.waiter is not None and message.exact_state is not State.AWAITED:
        ledger += (LedgerEntry("abandoned", wall_ms, message.from_agent, why),)
    moved = replace(message, **changes, ledger=ledger)
    return moved if moved.token >= least_token else replace(moved, token=least_token)


def cell_at_rest(cell: Cell) -> Any:
    """The value of a cell without the processes of its room: agents are stopped, and claims on tasks have ended."""
    value = cell.value
    if not isinstance(value, dict):
        return value
    if cell.name.startswith(presence.CELLS) and value.get("processes"):
        return value | {"processes": [], "status": presence.STOPPED, "current_task": None}
    if cell.name.startswith(tasks.PREFIX) and value.get("state") == tasks.CLAIMED:
        return value | {"process": None, "lease": 0, "steady": None}
    return value
