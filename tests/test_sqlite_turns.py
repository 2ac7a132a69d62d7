"""Turns before the write lock: in order, free when their holder dies, and never more than a courtesy."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import apsw
import pytest

import postroom
from postroom import platform
from postroom.clock import SYSTEM
from postroom.errors import RoomBusy
from postroom.platform import SharedLock
from postroom.stores import sqlite_turns
from postroom.stores.sqlite_turns import Patience, Turns

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="only Linux has such a queue")

#: Takes the lock, says so, and keeps it until it is told otherwise.
HOLDER = """
import sys
from pathlib import Path
from postroom.platform import SharedLock

lock = SharedLock(Path(sys.argv[1]))
assert lock.acquire(20)
print("held", flush=True)
sys.stdin.readline()
lock.release()
print("released", flush=True)
sys.stdin.readline()
"""


@contextmanager
def holder(path: Path) -> Iterator[subprocess.Popen[str]]:
    words = [sys.executable, "-c", HOLDER, str(path)]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "held\n"
            yield process
        finally:
            process.kill()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "lock"


@pytest.fixture
def eager(monkeypatch: pytest.MonkeyPatch) -> None:
    """Turns are taken from the first time that somebody is in the way."""
    monkeypatch.setattr(sqlite_turns, "_TURNS_FROM", 1)


def test_another_process_that_has_it_is_waited_for(path: Path) -> None:
    lock = SharedLock(path)
    with holder(path) as other:
        assert not lock.acquire(0.02)
        assert other.stdin is not None
        other.stdin.write("\n")
        other.stdin.flush()
        assert lock.acquire(20)
    lock.release()
    lock.close()


def test_who_came_first_is_served_first(path: Path) -> None:
    lock, served = SharedLock(path), list[int]()

    def wait_in_line(number: int) -> None:
        assert lock.acquire(20)
        served.append(number)
        lock.release()

    assert lock.acquire(0)
    waiting = [threading.Thread(target=wait_in_line, args=(number,)) for number in range(4)]
    for thread in waiting:
        thread.start()
        while not _is_in_line(thread):
            SYSTEM.sleep(0.001)
    lock.release()
    for thread in waiting:
        thread.join()
    assert served == [0, 1, 2, 3]
    lock.close()


def _is_in_line(thread: threading.Thread) -> bool:
    """Whether a thread waits in the kernel for a lock of this kind."""
    call = Path(f"/proc/self/task/{thread.native_id}/syscall").read_text(encoding="ascii").split()
    return call[0] == str(platform._FUTEX) and call[2] == hex(platform._LOCK_PI2)


@pytest.mark.parametrize("somebody_waits", [True, False])
def test_it_is_free_when_its_holder_was_killed(path: Path, somebody_waits: bool) -> None:
    lock, ends = SharedLock(path), list[bool]()
    with holder(path) as other:
        waiting = threading.Thread(target=lambda: ends.append(lock.acquire(20)))
        if somebody_waits:
            waiting.start()
        other.kill()
        other.wait()
        if not somebody_waits:
            waiting.start()
        waiting.join()
    assert ends == [True]
    lock.close()


@pytest.mark.usefixtures("eager")
def test_a_neighbour_that_was_stopped_in_its_turn_is_waited_for_once_and_then_passed_by(path: Path) -> None:
    turns = Turns(path)
    with holder(path) as other:
        os.kill(other.pid, signal.SIGSTOP)
        begun_ns = SYSTEM.steady_ns()
        assert not turns.take()
        waited_ns = SYSTEM.steady_ns() - begun_ns
        again_ns = SYSTEM.steady_ns()
        assert not turns.take()
        assert SYSTEM.steady_ns() - again_ns < waited_ns, "it asked for no turn"
        os.kill(other.pid, signal.SIGCONT)
    turns.close()


@pytest.mark.usefixtures("eager")
def test_where_there_are_no_turns_everybody_goes_on_without(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("postroom.platform._FUTEX", None)
    turns = Turns(path)
    assert not turns.take()
    turns.end()
    turns.close()


def test_programs_that_were_hardly_in_anybodys_way_do_not_load_what_turns_need(path: Path) -> None:
    turns = Turns(path)
    assert not any(turns.take() for _ in range(sqlite_turns._TURNS_FROM - 1))
    assert not path.exists()


@pytest.mark.usefixtures("eager")
def test_a_writer_that_gives_up_leaves_the_turn_to_the_next(tmp_path: Path) -> None:
    with postroom.open(f"sqlite:{tmp_path}/room", busy_timeout_s=0.05) as room:
        ada = room.agent("ada")
        other = apsw.Connection(f"{tmp_path}/room/messages.db")
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(RoomBusy):
            ada.send("bob", {})
        other.execute("ROLLBACK")
        other.close()

        lock = SharedLock(tmp_path / "room" / "lock")
        assert lock.acquire(0), "nobody has the turn"
        lock.release()
        lock.close()
        assert ada.send("bob", {})


@pytest.mark.usefixtures("eager")
def test_writers_go_on_beside_one_that_was_stopped_in_its_turn(tmp_path: Path) -> None:
    with postroom.open(f"sqlite:{tmp_path}/room") as room, holder(tmp_path / "room" / "lock") as stopped:
        os.kill(stopped.pid, signal.SIGSTOP)
        ada, turns = room.agent("ada"), room.store._file._turns  # type: ignore[attr-defined]
        busy = apsw.Connection(f"{tmp_path}/room/messages.db")
        busy.execute("BEGIN IMMEDIATE")
        sender = threading.Thread(target=lambda: [ada.send("bob", {"n": n}) for n in range(10)])
        sender.start()
        while turns._not_before_ns == 0:  # until it has waited for its turn in vain
            SYSTEM.sleep(0.001)
        busy.execute("ROLLBACK")
        busy.close()
        sender.join(60)

        assert sum(box.depth for box in room.store.stats().mailboxes) == 10
        os.kill(stopped.pid, signal.SIGCONT)


def test_who_tries_often_waits_for_its_turn_and_sooner_where_others_do(path: Path) -> None:
    class Counted(Turns):
        taken = ended = 0

        def take(self) -> bool:
            self.taken += 1
            return True

        def end(self) -> None:
            self.ended += 1

    def tries_before_a_turn() -> int:
        turns = Counted(path)
        turns._open()
        patience = Patience(60, turns)
        tries = 0
        while patience(tries) and not patience.in_turn:
            tries += 1
        patience.end_turn()
        assert (turns.taken, turns.ended, patience.in_turn) == (1, 1, False)
        turns.close()
        return tries

    alone = tries_before_a_turn()
    with holder(path):
        assert tries_before_a_turn() < alone
