"""The floor: the statements of Postroom's own SQLite store on its own schema, straight through apsw.

No agents, no checks, no hooks, no errors in our words: what is left is SQLite. Who waits is woken by Postroom's bells, for
without a wake-up there is no floor to compare with.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import apsw

from postroom.cli.bench.client import Client, Payload, Setup, decode, encode
from postroom.cli.bench.filling import fill
from postroom.core.clock import SYSTEM
from postroom.core.config import Config
from postroom.core.message import key_at
from postroom.mail.gateway import Deadline
from postroom.stores.bells.bells import Bells
from postroom.stores.sqlite.layout import DATABASE, load_statements
from postroom.stores.sqlite.rows import PAYLOAD, STATE, TOKEN
from postroom.stores.sqlite.store import SqliteStore
from postroom.stores.sqlite.wal import LONG_PAGES

from .peer import ComparedPeer

_LEASE_MS: Final = 30_000


class BareClient(Client):
    """One connection on the room's file."""

    def __init__(self, setup: Setup) -> None:
        super().__init__(setup)
        folder = Path(setup.address)
        SqliteStore(folder, Config(), SYSTEM).close()  # makes the file and its tables
        self._database = database = apsw.Connection(str(folder / DATABASE), flags=apsw.SQLITE_OPEN_READWRITE)
        database.config(apsw.SQLITE_DBCONFIG_ENABLE_QPSG, 1)
        database.set_busy_timeout(10_000)
        database.create_scalar_function("tick", lambda *_: key_at(SYSTEM.steady_ns()), 0)
        database.pragma("synchronous", "FULL" if setup.sync == "full" else "NORMAL")
        database.pragma("wal_autocheckpoint", LONG_PAGES)
        salt: Any = database.execute("SELECT value FROM meta WHERE name = 'salt'").get
        self._sql = load_statements(salt)
        self._bells = Bells(folder, SYSTEM)
        self._topic = f"box/{setup.to}"
        self._owner: Any = database.execute(self._sql["process_add"], (f"bare:{id(self)}:0",)).get

    # Sending

    def send(self, payload: Payload) -> None:
        self._database.execute(self._sql["insert"], self._row(None, payload))
        self._ring()

    def send_batch(self, payloads: Sequence[Payload]) -> None:
        with self._database:
            first = key_at(SYSTEM.steady_ns())
            rows = (self._row(first + place, payload) for place, payload in enumerate(payloads))
            self._database.executemany(self._sql["insert"], rows)
        self._ring()

    def _row(self, key: int | None, payload: Payload) -> tuple[Any, ...]:
        wall_ms = SYSTEM.wall_ms()
        to_agent, channel = (None, self.setup.to) if self.setup.crowd else (self.setup.to, "general")
        return (
            key, 0, None, 5, to_agent, channel, "sender", "message", "1.0", 3, wall_ms, None, None, None,
            None, 0, "agent", *[None] * 6, encode(payload).decode(),
        )  # fmt: skip

    def _ring(self) -> None:
        if self.setup.crowd:
            self._bells.ring((), (self._topic,))
        else:
            self._bells.ring((self._topic,))

    # Receiving

    def receive(self, timeout_s: float) -> tuple[Payload, tuple[int, int]] | None:
        row = self._claim()
        if row is None:
            with self._bells.listen([f"box/{self.setup.me}"]) as waiter:
                row, deadline = self._claim(), Deadline(SYSTEM, timeout_s)
                while row is None and (left_s := deadline.left_s()):
                    waiter.wait(left_s)
                    row = self._claim()
        return None if row is None else (decode(row[PAYLOAD]), (row[0], row[TOKEN] + 1))

    def _claim(self) -> tuple[Any, ...] | None:
        if not self._look():  # before taking the lock of all writers
            return None
        self._database.execute("BEGIN IMMEDIATE")
        row = self._take()
        self._database.execute("COMMIT")
        return row

    def _look(self) -> Any:
        if self.setup.crowd:
            return self._database.execute(self._sql["claim_for_anyone"], (self.setup.me, 0, 1)).fetchall()
        return self._database.execute(self._sql["claim_general"], (self.setup.me, 0, 1)).fetchall()

    def _take(self) -> tuple[Any, ...] | None:
        found = self._look()
        if not found:
            return None
        row: tuple[Any, ...] = found[0]
        lease_until = SYSTEM.steady_ns() // 1_000_000 + _LEASE_MS
        terms = (lease_until, SYSTEM.wall_ms(), self.setup.me, self._owner)
        self._database.execute(self._sql["take"], (row[0], *terms, row[STATE], None))
        return row

    def ack(self, handle: Any) -> None:
        key, token = handle
        self._database.execute(self._sql["ack"], (key, token, self.setup.me, SYSTEM.wall_ms()))

    def messages(self, timeout_s: float) -> Iterator[Payload]:
        if self.setup.way != "one step":
            yield from super().messages(timeout_s)
            return
        while (got := self.receive(timeout_s)) is not None:
            payload, handle = got
            while True:
                yield payload
                self._database.execute("BEGIN IMMEDIATE")
                self.ack(handle)
                row = self._take()
                self._database.execute("COMMIT")
                if row is None:
                    break
                payload, handle = decode(row[PAYLOAD]), (row[0], row[TOKEN] + 1)

    def prefill(self, count: int) -> None:
        fill(self._database, count, self.setup.me, self.setup.way)

    def close(self) -> None:
        self._bells.close()
        self._database.close()


class BarePeer(ComparedPeer):
    name = "bare"
    about = "Postroom's statements straight through apsw: the floor"
    receive_ways = ("two steps", "one step")
    depth_ways = ("pending", "finished")
    has_full_sync = True

    @staticmethod
    def versions() -> dict[str, str]:
        return {"apsw": apsw.apsw_version(), "SQLite of apsw": apsw.sqlite_lib_version()}

    @staticmethod
    def client(setup: Setup) -> Client:
        return BareClient(setup)


PEER = BarePeer
