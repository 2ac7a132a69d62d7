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
        assert ada.send("bob", {})


@pytest.mark.usefixtures("eager")
def test_a_room_that_is_closed_while_others_wait_for_their_turn_leaves_it_to_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite_turns, "_TURN_MOST_S", 20)
    room = postroom.open(f"sqlite:{tmp_path}/room")
    ada, ends, over = room.agent("ada"), list[str | Exception](), threading.Event()
    ada.send("bob", {})
    other = apsw.Connection(f"{tmp_path}/room/messages.db")
    other.execute("BEGIN IMMEDIATE")

    def send() -> None:
        try:
            ends.append(ada.send("bob", {}))
        except Exception as error:
            ends.append(error)
        over.wait()  # a thread that ended would have no turn any more

    senders = [threading.Thread(target=send) for _ in range(3)]
    for sender in senders:
        sender.start()
    while not any(_is_in_line(sender) for sender in senders):  # then another has the turn
        SYSTEM.sleep(0.001)
    room.store.close()
    other.execute("ROLLBACK")
    other.close()
    while len(ends) < 3:
        SYSTEM.sleep(0.001)
    try:
        assert SharedLock(tmp_path / "room" / "lock").acquire(0), "nobody has the turn"
        assert [end for end in ends if isinstance(end, Exception)] == []
    finally:
        over.set()
        for sender in senders:
            sender.join()
        room.close()


@pytest.mark.usefixtures("eager")
def test_who_waits_for_its_turn_gives_up_in_time(path: Path) -> None:
    turns = Turns(path)
    patience = Patience(0.001, turns)
    with holder(path):
        begun_ns, tries = SYSTEM.steady_ns(), 0
        while tries != sqlite_turns._TRIES_ALONE + 1:
            assert patience(tries)
            tries += 1
        waited_ns = SYSTEM.steady_ns() - begun_ns
        begun_ns = SYSTEM.steady_ns()
        assert not SharedLock(path).acquire(sqlite_turns._TURN_MOST_S)
        assert waited_ns < SYSTEM.steady_ns() - begun_ns, "not as long as one with more time would"
    turns.close()


@pytest.mark.usefixtures("eager")
def test_an_interrupt_at_the_moment_of_the_turn_leaves_it_to_the_next(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Interrupted(SharedLock):
        def acquire(self, timeout_s: float) -> bool:
            assert super().acquire(timeout_s)
            raise KeyboardInterrupt

    monkeypatch.setattr(sqlite_turns, "SharedLock", Interrupted)
    turns = Turns(path)
    with pytest.raises(KeyboardInterrupt):
        turns.take()
    turns.end()  # as whoever made the call does, however it ended
    _free_for_another_thread(path)


def _free_for_another_thread(path: Path) -> None:
    ends = list[bool]()
    other = threading.Thread(target=lambda: ends.append(SharedLock(path).acquire(0)))
    other.start()
    other.join()
    assert ends == [True]


def test_who_has_it_still_after_an_interrupt_has_it(path: Path) -> None:
    assert SharedLock(path).acquire(0)
    lock = SharedLock(path)
    assert lock.acquire(0)
    lock.release()
    _free_for_another_thread(path)


@pytest.mark.usefixtures("eager")
def test_reading_and_tidying_keep_no_turn(tmp_path: Path) -> None:
    with postroom.open(f"sqlite:{tmp_path}/room") as room:
        file = room.store._file  # type: ignore[attr-defined]
        for use in (lambda: file.select("SELECT 1"), file.tidy):
            assert file._turns.take()
            use()
            assert file._turns.mine.turn is None
            _free_for_another_thread(tmp_path / "room" / "lock")


def test_those_who_number_threads_otherwise_have_another_lock(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A number of another boot or container may be that of any thread here, which would never give the lock back."""
    with holder(path):
        monkeypatch.setattr(platform, "host_id", lambda: "another.boot")
        lock = SharedLock(path)
        assert lock.acquire(0)
        lock.release()


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
        taken = 0

        def take(self, most_s: float = 0) -> bool:
            self.taken += 1
            self.mine.turn = self._open()
            return True

    def tries_before_a_turn() -> int:
        turns = Counted(path)
        turns._open()
        patience = Patience(60, turns)
        tries = 0
        while patience(tries) and turns.mine.turn is None:
            tries += 1
        turns.end()
        assert (turns.taken, turns.mine.turn) == (1, None)
        turns.close()
        return tries

    alone = tries_before_a_turn()
    with holder(path):
        assert tries_before_a_turn() < alone


def test_connections_are_of_apsws_own_kind(tmp_path: Path) -> None:
    """One of a subclass ends the process when it is collected in a ring of references (apsw 3.54.1, Python 3.11.2)."""
    with postroom.open(f"sqlite:{tmp_path}/room") as room:
        assert type(room.store._file.connection()) is apsw.Connection  # type: ignore[attr-defined]
