"""How the children open a room and write letters."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from postroom.core.clock import SYSTEM, Clock
from postroom.core.config import Config
from postroom.core.message import Draft, check
from postroom.core.system.process import this_process
from postroom.stores.contract import Want
from postroom.stores.sqlite.store import SqliteStore

#: So many that no message is set aside because its receivers were killed.
UNTIRING = 1_000_000


def open_room(
    folder: str | Path, sync: str = "normal", clock: Clock = SYSTEM, vfs: str | None = None, busy_timeout_s: float = 5.0
) -> SqliteStore:
    """The store of a room, as a process opens it."""
    return SqliteStore(Path(folder), Config(sync=sync, busy_timeout_s=busy_timeout_s), clock, vfs=vfs)


def letter(to: str | None = "bob", payload: dict[str, Any] | None = None, **fields: Any) -> Draft:
    """A valid message from ada."""
    fields.setdefault("from_agent", "ada")
    return check(Draft(to_agent=to, payload=payload or {}, **fields))


def want(agent: str = "bob", **fields: Any) -> Want:
    """What a receiver asks for: by default one message, held by this process for ten minutes."""
    fields.setdefault("lease_s", 600.0)
    fields.setdefault("owner", this_process())
    return Want(agent=agent, **fields)
