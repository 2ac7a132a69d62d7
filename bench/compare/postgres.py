"""PostgreSQL: one table, FOR UPDATE SKIP LOCKED to claim, NOTIFY to wake, as queues in PostgreSQL are usually written."""

from __future__ import annotations

import os
import pwd
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from postroom.cli.bench.client import Client, NotHere, Payload, Setup, decode, encode, make_payload
from postroom.core.clock import SYSTEM
from postroom.mail.gateway import Deadline

from .peer import ComparedPeer
from .servers import free_port, package_version, program, running

_TABLE: Final = (
    "CREATE TABLE IF NOT EXISTS m (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, box text NOT NULL, "
    "state smallint NOT NULL DEFAULT 0, lease timestamptz, body bytea NOT NULL)"
)
_INDEX: Final = "CREATE INDEX IF NOT EXISTS ready ON m (box, id) WHERE state = 0"
_PUT: Final = "INSERT INTO m (box, body) VALUES (%s, %s)"
_CLAIM: Final = (
    "UPDATE m SET state = 1, lease = now() + interval '30 s' WHERE id = (SELECT id FROM m WHERE box = %s AND state = 0 "
    "ORDER BY id LIMIT 1 FOR UPDATE SKIP LOCKED) RETURNING id, body"
)


class PostgresClient(Client):
    """One connection that commits every statement."""

    def __init__(self, setup: Setup) -> None:
        super().__init__(setup)
        import psycopg

        self._database = psycopg.connect(setup.address, autocommit=True, prepare_threshold=1)
        self._database.execute("SELECT pg_advisory_lock(1)")  # tables are made by one at a time
        self._database.execute(_TABLE)
        self._database.execute(_INDEX)
        self._database.execute("SELECT pg_advisory_unlock(1)")
        self._listens = False

    def send(self, payload: Payload) -> None:
        # one round trip, one commit: the wake-up rides on the insert
        self._database.execute(
            f"WITH put AS ({_PUT} RETURNING box) SELECT pg_notify(box, '') FROM put", (self.setup.to, encode(payload))
        )

    def send_batch(self, payloads: Sequence[Payload]) -> None:
        with self._database.transaction(), self._database.cursor() as cursor:
            cursor.executemany(_PUT, [(self.setup.to, encode(payload)) for payload in payloads])
            cursor.execute("SELECT pg_notify(%s, '')", (self.setup.to,))

    def prefill(self, count: int) -> None:
        body = encode(make_payload(0))
        self._database.execute(
            "INSERT INTO m (box, body) SELECT %s, %s FROM generate_series(1, %s)", (self.setup.me, body, count)
        )

    def receive(self, timeout_s: float) -> tuple[Payload, int] | None:
        row = self._claim()
        if row is None and not self._listens:
            self._database.execute(f'LISTEN "{self.setup.me}"')
            self._listens = True
            row = self._claim()
        deadline = Deadline(SYSTEM, timeout_s)
        while row is None and (left_s := deadline.left_s()):
            for _ in self._database.notifies(timeout=left_s, stop_after=1):
                pass
            row = self._claim()  # a notice may be an old one
        return None if row is None else (decode(bytes(row[1])), row[0])

    def _claim(self) -> Any:
        return self._database.execute(_CLAIM, (self.setup.me,)).fetchone()

    def ack(self, handle: Any) -> None:
        self._database.execute("DELETE FROM m WHERE id = %s", (handle,))

    def close(self) -> None:
        self._database.close()


class PostgresPeer(ComparedPeer):
    name = "postgres"
    about = "SKIP LOCKED and NOTIFY over TCP, an fsync per commit"

    @staticmethod
    def versions() -> dict[str, str]:
        client = package_version("psycopg")
        said = subprocess.run([_program("postgres"), "--version"], capture_output=True, text=True, check=True).stdout
        version = re.search(r"[\d.]+", said)
        return {"PostgreSQL": version[0] if version else said.strip(), "psycopg": client}

    @staticmethod
    @contextmanager
    def serve(folder: Path, sync: str) -> Iterator[str]:
        # PostgreSQL refuses to run as root, and another user cannot enter root's private folders
        root = os.geteuid() == 0
        home = Path(tempfile.mkdtemp(prefix="postroom-bench-pg-", dir=None if root else folder))
        how: dict[str, Any] = {"cwd": home}
        try:
            if root:
                nobody = pwd.getpwnam("nobody")
                os.chown(home, nobody.pw_uid, nobody.pw_gid)
                how |= {"user": nobody.pw_uid, "group": nobody.pw_gid, "extra_groups": []}
            data, port = home / "data", free_port()
            words = [_program("initdb"), "-D", str(data), "-U", "bench", "-A", "trust", "-E", "UTF8", "--no-locale"]
            made = subprocess.run(words, capture_output=True, text=True, check=False, **how)
            if made.returncode:
                raise NotHere(f"initdb failed: {made.stderr.strip().splitlines()[-1:]}")
            words = [_program("postgres"), "-D", str(data), "-p", str(port), "-k", str(home)]
            words += ["-c", "listen_addresses=127.0.0.1", "-c", "shared_buffers=256MB"]
            with running(words, port, **how):
                yield f"host=127.0.0.1 port={port} user=bench dbname=postgres"
        finally:
            shutil.rmtree(home, ignore_errors=True)

    @staticmethod
    def client(setup: Setup) -> Client:
        return PostgresClient(setup)


def _program(name: str) -> str:
    found = program(name, package="pgserver", inside="pginstall/bin")
    if found is None:
        raise NotHere(f"no {name} on the PATH, and no pgserver package")
    return found


PEER = PostgresPeer
