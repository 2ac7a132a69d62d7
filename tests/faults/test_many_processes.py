"""A crowd: many processes use one room at the same moment, and all of them make it.

The story. Thirty-two processes do 150 operations each (500 in the long test), of every kind, in one room, through `postroom.open`;
they share an agent, so that they also meet in its cell. Two to sixteen processes make the same new room in the same
moment. One process makes every call there is, and asks the kernel about its file locks after each.

The invariant. Nobody is told that the room is locked or busy. What was sent is there, once, and acked by one. There is
one room, with one salt. No call drops the locks that SQLite relies on, which closing any other descriptor of its files does.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.faults.programs.nursery import steady_ns
from tests.support.systems import needs_linux

import postroom

from .support import ACKED, Look, Nursery, count, environment, journal

pytestmark = pytest.mark.slow

#: Time to fork them all before they begin.
GATHER_NS = 400_000_000


def check_crowd(folder: Path, lines: list[journal.Line]) -> tuple[int, int]:
    sent = [id for line in lines if line.event == "sent" for id in line.details[0]]
    counted = [line.details[0] for line in lines if line.event == "acked" and line.details[2]]
    with Look(folder) as look:
        assert look.damage() == "ok"
        assert len(set(sent)) == len(sent)
        assert look.ids() == set(sent)
        acked = {id for (id,) in look.rows(f"SELECT id FROM messages WHERE state = {ACKED}")}
    assert [id for id, times in Counter(counted).items() if times > 1] == []
    assert acked == set(counted)
    return len(sent), len(acked)


@pytest.mark.parametrize("operations", [50, pytest.param(500, marks=pytest.mark.long)])
def test_nobody_in_a_crowd_is_told_that_the_room_is_locked(
    nursery: Nursery, folder: Path, tmp_path: Path, figure: Callable[[str], None], operations: int
) -> None:
    processes, operations = count("PROCESSES", 32), count("OPERATIONS", operations)
    notes, start_ns = tmp_path / "journal", steady_ns() + GATHER_NS
    pids = [
        nursery.fork(
            "crowd.worker",
            folder=str(folder),
            journal=str(notes),
            number=number,
            operations=operations,
            start_ns=start_ns,
        )
        for number in range(processes)
    ]
    nursery.finish(*pids)
    took_s = (steady_ns() - start_ns) / 1e9
    sent, acked = check_crowd(folder, journal.read(notes))
    figure(
        f"crowd: {processes} processes x {operations} operations in {took_s:.1f} s; {sent} messages sent, {acked} acked"
    )


@pytest.mark.parametrize("through_room", [True, False], ids=["postroom.open", "store"])
@pytest.mark.parametrize("processes", [2, 4, *(pytest.param(many, marks=pytest.mark.slow) for many in (8, 16))])
def test_processes_that_make_the_same_room_at_once_make_one_room(
    processes: int, through_room: bool, nursery: Nursery, tmp_path: Path
) -> None:
    for attempt in range(count("FOUNDINGS", 2)):
        folder, notes = tmp_path / f"room{attempt}", tmp_path / f"journal{attempt}"
        start_ns = steady_ns() + 50_000_000 + 5_000_000 * processes
        pids = [
            nursery.fork(
                "crowd.founder", folder=str(folder), journal=str(notes), start_ns=start_ns, through_room=through_room
            )
            for _ in range(processes)
        ]
        nursery.finish(*pids)
        sent = {id for line in journal.read(notes) for id in line.details[0]}
        with Look(folder) as look:
            assert look.damage() == "ok"
            assert len(sent) == processes and look.ids() == sent
            assert look.value("SELECT count(*) FROM meta WHERE name = 'salt'") == 1
            assert look.value("PRAGMA journal_mode") == "wal"
        assert folder.stat().st_mode & 0o777 == 0o700
        assert {path.name: oct(path.stat().st_mode & 0o077) for path in folder.glob("messages.db*")} == {
            path.name: "0o0" for path in folder.glob("messages.db*")
        }


@pytest.mark.skipif(not Path("/proc/locks").exists(), reason="only Linux tells the locks of a process")
def test_no_call_drops_the_locks_of_the_database(nursery: Nursery, folder: Path, tmp_path: Path) -> None:
    file, out = tmp_path / "file.txt", tmp_path / "report"
    file.write_text("something to attach")
    nursery.finish(nursery.fork("crowd.count_locks", folder=str(folder), file=str(file), out=str(out)))
    report = json.loads(out.read_text())
    assert report["at_rest"], "a process that has a room open holds locks"
    assert report["changed"] == {}
    assert report["uncalled"] == [], "every public call must be made here"
    assert report["spoilt"] != report["at_rest"], "closing another descriptor drops the locks: the check can fail"


HOLDER = """
import sys, time
from pathlib import Path
from postroom.core.clock import SYSTEM
from postroom.core.config import Config
from postroom.stores.files.store import FilesStore
from postroom.stores.sqlite.store import SqliteStore

kind, folder = sys.argv[1:]
if kind == "sqlite":
    store = SqliteStore(Path(folder), Config(), SYSTEM)
    store._file.begin()
    print("locked", flush=True)
    time.sleep(600)
store = FilesStore(Path(folder), Config(), SYSTEM)
with store._log.locked():
    print("locked", flush=True)
    time.sleep(600)
"""


@needs_linux("a list of locks, which tells who has one")
@pytest.mark.parametrize("kind", ["sqlite", "files"])
def test_a_process_that_is_stopped_with_the_lock_is_named_and_how_to_let_it_go_on(tmp_path: Path, kind: str) -> None:
    with postroom.open(f"{kind}:{tmp_path}/room?busy_timeout_s=0.3") as room:
        command = [sys.executable, "-c", HOLDER, kind, str(tmp_path / "room")]
        holder = subprocess.Popen(command, stdout=subprocess.PIPE, env=environment(), text=True)
        try:
            assert holder.stdout is not None
            assert holder.stdout.readline() == "locked\n"
            with pytest.raises(postroom.RoomBusy, match=f"process {holder.pid} keeps .* locked, and others"):
                room.store.cell_write("a", 1)
            os.kill(holder.pid, signal.SIGSTOP)
            os.waitid(os.P_PID, holder.pid, os.WSTOPPED)
            with pytest.raises(postroom.RoomBusy, match=rf"is stopped.*kill -CONT {holder.pid}"):
                room.store.cell_write("a", 1)
        finally:
            holder.kill()
            holder.communicate()
        assert room.store.cell_write("a", 1)
