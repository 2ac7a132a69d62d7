"""Rooms at `audited:PATH`: kept in SQLite, and every message that was stored stands in PATH/audit.jsonl as well."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from postroom.core.clock import Clock, iso
from postroom.core.config import Config, RoomUrl
from postroom.core.message import Draft
from postroom.stores import check_folder
from postroom.stores.contract import Settled, Ticket, Want
from postroom.stores.sqlite.store import SqliteStore


class AuditedStore(SqliteStore):
    """The SQLite store with an audit log: one line for each message, appended after the message was committed.

    A process that dies between the two leaves a message without its line; no line is written for a message that is not
    kept. Lines of several processes do not mix: each is one write to a file opened for appending.
    """

    def __init__(self, url: RoomUrl, config: Config, clock: Clock, *, create: bool = True) -> None:
        del create  # a folder is made by whoever names it
        folder = Path(url.rest).expanduser().absolute()
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        check_folder(folder, shared=config.group)  # a link in it would lead the log, or the room, into another file
        super().__init__(folder, config, clock)
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        self._log = os.open(folder / "audit.jsonl", flags, 0o600)

    def put(self, drafts: Sequence[Draft]) -> list[str]:
        return self._written(super().put(drafts))

    def settle(
        self,
        ticket: Ticket,
        outcome: str,
        *,
        detail: str | None = None,
        delay_s: float = 0,
        puts: Sequence[Draft] = (),
        claim_next: Want | None = None,
    ) -> Settled:
        settled = super().settle(ticket, outcome, detail=detail, delay_s=delay_s, puts=puts, claim_next=claim_next)
        self._written(settled.ids)
        return settled

    def put_with_cell(self, drafts: Sequence[Draft], name: str, value: Any, expect: int) -> list[str] | None:
        ids = super().put_with_cell(drafts, name, value, expect)
        return None if ids is None else self._written(ids)

    def close(self) -> None:
        super().close()
        if self._log >= 0:
            os.close(self._log)
            self._log = -1

    def _written(self, ids: list[str]) -> list[str]:
        """The same ids, after a line for each; a repeated send gives the id of the first one, and another line."""
        for id in ids:
            line = {"time": iso(self.clock.wall_ms()), "stored": id}
            os.write(self._log, json.dumps(line).encode() + b"\n")
        return ids
