"""What the fault tests share: starting and killing processes, counts, and looking at a room without Postroom.

Counts. Each storm has the count of the suite and that of the long run (`@pytest.mark.long`), and both can be set:
POSTROOM_FAULTS_KILLS=5000 runs 5,000 kills wherever `count("KILLS", ...)` is asked. Seeds come from
POSTROOM_FAULTS_SEED (0 unless set), so that a failure can be tried again.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import apsw
import pytest
from tests.support.nats_servers import room_name, shared_server

import postroom

from .programs import journal

SOURCES = Path(postroom.__file__).parents[1]
TESTS = Path(__file__).parents[1]

#: No child of a test works longer than this.
PATIENCE_S = float(os.environ.get("POSTROOM_FAULTS_PATIENCE_S", "240"))

#: A search that kills, fails or interrupts a step at each of its moments tries every so-manieth in the suite, and all of
#: them in the long run: `@SOME_AND_ALL`, with the argument `every`.
SOME_AND_ALL = pytest.mark.parametrize(
    "every", [pytest.param(6, id="some"), pytest.param(1, id="all", marks=pytest.mark.long)]
)


def in_parts(parts: int) -> pytest.MarkDecorator:
    """A storm that would take more than five minutes, as that many long tests: each has seeds of its own."""
    return pytest.mark.parametrize("part", range(parts), indirect=True)


READY, CLAIMED, ACKED, ANSWERED, REFUSED, EXPIRED, DEAD, DELAYED, AWAITED = range(9)


def count(name: str, default: int) -> int:
    """How many of something a test does; the environment may say otherwise."""
    return int(os.environ.get(f"POSTROOM_FAULTS_{name}", default))


def seed() -> int:
    """The seed of everything random in the fault tests."""
    return count("SEED", 0)


def url_of(store: str, folder: Path) -> str:
    """The address of a room of this test's own, on that store."""
    return f"nats://{shared_server().address}/{room_name()}" if store == "nats" else f"{store}:{folder}"


def environment() -> dict[str, str]:
    """The environment of a child: it imports the same Postroom as the test, and the programs beside it."""
    return {**os.environ, "PYTHONPATH": f"{SOURCES}{os.pathsep}{TESTS}", "PYTHONDONTWRITEBYTECODE": "1"}


def program(name: str, *arguments: str) -> list[str]:
    """The command line of a program in `programs/`."""
    return [sys.executable, "-m", f"faults.programs.{name}", *arguments]


def worked_s(pid: int) -> float:
    """The processor time that a child has had: how far it came does not depend on how busy the machine is."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


class Nursery:
    """Forks children that play a role (see programs/nursery.py), and ends them all when the test ends."""

    def __init__(self, log: Path, *modules: str, inside: Iterable[str] = ()) -> None:
        """`inside` is the command that starts it elsewhere: in a namespace of its own."""
        self._log = log
        with log.open("ab") as errors:
            self._process = subprocess.Popen(
                [*inside, *program("nursery", *modules)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                env=environment(),
            )

    def _ask(self, **request: Any) -> dict[str, Any]:
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        assert line, f"the nursery ended: {self.log()}"
        answer: dict[str, Any] = json.loads(line)
        return answer

    def fork(self, role: str, **arguments: Any) -> int:
        """Start a child; returns its pid."""
        pid: int = self._ask(**{"fork": role, "with": arguments})["pid"]
        return pid

    def kill(self, *pids: int) -> int:
        """SIGKILL these children at once; they are gone when it returns. Gives the moment just before."""
        at_ns: int = self._ask(kill=pids)["at_ns"]
        return at_ns

    def wait(self, pid: int, patience_s: float = PATIENCE_S) -> int:
        """Wait until a child has ended; its exit code, or minus the signal that ended it. Fails when it never ends."""
        status: int | None = self._ask(wait=pid, patience_s=patience_s)["status"]
        assert status is not None, f"a child did not end in {patience_s:g} s:\n{self.log()}"
        return status

    def finish(self, *pids: int, patience_s: float = PATIENCE_S) -> None:
        """Wait for these children, and fail with what they wrote as soon as one of them failed."""
        for pid in pids:
            status = self.wait(pid, patience_s)
            assert status == 0, f"a child ended with {status}:\n{self.log()}"

    def ended(self, pids: Iterable[int]) -> dict[int, int]:
        """Those of these children that have ended by themselves, with their exit codes."""
        return {int(pid): status for pid, status in self._ask(ended=list(pids))["ended"].items()}

    def kill_all(self) -> None:
        """SIGKILL the nursery, and with it all in its namespace where that ends with it."""
        self._process.kill()
        self._process.wait()

    def log(self) -> str:
        """What the children wrote to their standard error, the end of it."""
        return self._log.read_text(encoding="utf-8", errors="replace")[-6000:]

    def close(self) -> None:
        self._process.communicate()


class Look:
    """A room's file as SQLite itself sees it, after everybody has gone. Postroom has no part in this."""

    def __init__(self, folder: Path) -> None:
        self._connection = apsw.Connection(str(folder / "messages.db"), flags=apsw.SQLITE_OPEN_READWRITE)
        self._connection.execute("PRAGMA synchronous = OFF").fetchall()  # looking need not outlast a power cut

    def __enter__(self) -> Look:
        return self

    def __exit__(self, *_: object) -> None:
        self._connection.close()

    def rows(self, sql: str, bindings: Any = ()) -> list[tuple[Any, ...]]:
        found: list[tuple[Any, ...]] = self._connection.execute(sql, bindings).fetchall()
        return found

    def value(self, sql: str, bindings: Any = ()) -> Any:
        return self.rows(sql, bindings)[0][0]

    def damage(self) -> str:
        """What `integrity_check` says, in one line; "ok" when nothing is wrong."""
        return "; ".join(str(row[0]) for row in self.rows("PRAGMA integrity_check"))

    def ids(self) -> set[str]:
        return {row[0] for row in self.rows("SELECT id FROM messages")}


def damage(folder: Path) -> str:
    """What SQLite's own check says of a room: "ok", or what is wrong."""
    with Look(folder) as look:
        return look.damage()


#: What a step may change. Bookkeeping about processes may be written before the step that needs it, and is left out.
TABLES = ("messages", "cells", "channel_subscriptions", "tally")

Rows = dict[str, list[tuple[Any, ...]]]


def rows_of(folder: Path) -> Rows:
    """Everything that a step may change, as SQLite itself reads it: for comparing a room before and after."""
    with Look(folder) as look:
        rows = {table: look.rows(f"SELECT * FROM {table} ORDER BY 1, 2") for table in TABLES}
        rows["meta"] = look.rows("SELECT * FROM meta WHERE name NOT GLOB 'epoch:*' ORDER BY name")
        return rows


def copy_room(room: Path, to: Path) -> Path:
    """A copy of a room that nobody has open."""
    shutil.copytree(room, to)
    return to


__all__ = [
    "SOME_AND_ALL",
    "Look",
    "Nursery",
    "Rows",
    "copy_room",
    "count",
    "damage",
    "environment",
    "in_parts",
    "journal",
    "program",
    "rows_of",
    "seed",
    "worked_s",
]
