"""A long day: eight processes work in one room for ten minutes, and some are stuck.

The story. Two send, two receive and ack, one listens, one serves, two ask (one of them from a loop, five questions at a
time). Beside them one process holds a message and never settles it, and one is stopped (SIGSTOP) while it waits for mail
that keeps coming. The test looks at every process ten times a second.

The invariant. After a warm-up of a quarter of the day, no process grows by more than a few megabytes, threads or
descriptors, and at no time has it more connections to the file than a thread each needs, and one. The write-ahead log
never exceeds 64 MB. At the end every message that was sent is there, was delivered once and acked once; the held one is
still held, and the stopped one goes on where it was.

What is not promised: a *stranger's* read that never ends (the sqlite3 shell in a transaction, a stopped process in the
middle of a SELECT) keeps SQLite from folding the log back, so the log grows while that lasts; Postroom itself never waits
inside of a read. Nothing is lost by it, and the log is small again soon after the reader is gone.
"""

from __future__ import annotations

import os
import signal
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, suppress
from pathlib import Path

import apsw
import pytest
from tests.faults.programs.nursery import steady_ns
from tests.faults.programs.rooms import letter, open_room

from postroom.stores.sqlite.store import SqliteStore

from .support import ACKED, ANSWERED, CLAIMED, PATIENCE_S, READY, Look, Nursery, count, in_parts, journal
from .test_liveness import wait_for

pytestmark = pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="only Linux tells what a process has open")

MB = 1024 * 1024
WAL_MOST = 64 * MB
#: Memory that a process may gain between the warm-up and the end. A leak of a hundred bytes per message exceeds it in
#: the long run, one of a kilobyte in the short one.
RSS_GAIN_MOST = 4 * MB
LOOKS_PER_S = 10
#: Who looks ten times a second and did not for this long was stopped, and so were those it looks at: perhaps in the middle of
#: a read, which keeps the log from being folded back.
STOPPED_S = 2.0


def rss_bytes(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text(encoding="ascii").split()[1]) * os.sysconf("SC_PAGE_SIZE")


def threads(pid: int) -> int:
    return len(os.listdir(f"/proc/{pid}/task"))


def open_files(pid: int) -> list[str]:
    """What a process has open, by the names that the system has for it."""
    found = []
    for descriptor in Path(f"/proc/{pid}/fd").iterdir():
        with suppress(FileNotFoundError):  # closed meanwhile
            found.append(os.readlink(descriptor))
    return found


def wal_bytes(folder: Path) -> int:
    path = folder / "messages.db-wal"
    return path.stat().st_size if path.exists() else 0


class Figures:
    """What was seen of each process and of the log, look after look."""

    def __init__(self, folder: Path, pids: dict[str, int]) -> None:
        self._folder = folder.resolve()
        self._pids = pids
        self.rss: dict[str, list[int]] = {name: [] for name in pids}
        self.threads: dict[str, list[int]] = {name: [] for name in pids}
        self.connections: dict[str, list[int]] = {name: [] for name in pids}
        self.open: dict[str, list[int]] = {name: [] for name in pids}  # but for those of connections
        self.wal: list[int] = []
        self.longest_gap_s = 0.0
        self._looked_ns = steady_ns()

    def look(self) -> None:
        looked_ns = steady_ns()
        self.longest_gap_s = max(self.longest_gap_s, (looked_ns - self._looked_ns) / 1e9)
        self._looked_ns = looked_ns
        for name, pid in self._pids.items():
            self.rss[name].append(rss_bytes(pid))
            self.threads[name].append(threads(pid))
            files = open_files(pid)
            of_connections = [files.count(str(self._folder / f"messages.db{which}")) for which in ("", "-wal")]
            self.connections[name].append(max(of_connections))
            self.open[name].append(len(files) - sum(of_connections))
        self.wal.append(wal_bytes(self._folder))

    def gains(self, seen: dict[str, list[int]]) -> dict[str, int]:
        """How much higher each process came in the last quarter than in the first two, of which one is its warm-up."""
        half, last = len(self.wal) // 2, len(self.wal) * 3 // 4
        return {name: max(values[last:]) - max(values[:half]) for name, values in seen.items()}


def begin_day(nursery: Nursery, folder: Path, notes: Path, enough: Path, over: Path) -> dict[str, int]:
    """Start the eight who work; their pids by name. It has begun when each has done something."""
    place = {"folder": str(folder), "journal": str(notes)}
    pace = count("SOAK_PER_S", 150)
    pids = {
        name: nursery.fork(f"soak.{role}", **place, over=str(over))
        for name, role in (
            ("receiver 1", "receiver"),
            ("receiver 2", "receiver"),
            ("listener", "listener"),
            ("server", "server"),
        )
    }
    for name, role, per_s in (
        ("sender 1", "sender", 2 * pace),
        ("sender 2", "sender", 2 * pace),
        ("asker", "asker", pace),
        ("aio asker", "aio_asker", pace),
    ):
        pids[name] = nursery.fork(f"soak.{role}", **place, enough=str(enough), per_s=per_s)
    until_ns = steady_ns() + int(PATIENCE_S * 1e9)
    while not set(pids.values()) <= {line.pid for line in journal.read(notes)}:
        assert steady_ns() < until_ns and nursery.ended(pids.values()) == {}, nursery.log()
        time.sleep(1 / LOOKS_PER_S)
    return pids


def of(lines: Iterable[journal.Line], event: str) -> list[journal.Line]:
    return [line for line in lines if line.event == event]


def check_day(folder: Path, lines: list[journal.Line], held: set[str], among: str = "true") -> int:
    """Nothing lost, nothing doubled; how many messages there were. `among` says in SQL which of the room's are looked at."""
    sent = [id for line in lines if line.event in ("sent", "unread") for id in line.details[0]]
    acked = Counter(line.details[0] for line in of(lines, "acked"))
    asked = Counter(line.details[0] for line in of(lines, "asked"))
    answers = Counter(line.details[0] for line in of(lines, "answered"))
    assert all(line.details[1] for line in lines if line.event in ("acked", "answered"))
    for name, seen in (("acked", acked), ("asked", asked), ("answered", answers)):
        assert [id for id, times in seen.items() if times > 1] == [], f"{name} twice"
    assert set(acked) == set(sent)
    with Look(folder) as look:
        assert look.damage() == "ok"
        found: dict[int, set[str]] = {}
        for id, state in look.rows(f"SELECT id, state FROM messages WHERE {among}"):
            found.setdefault(state, set()).add(id)
        again = look.rows(f"SELECT id, delivery_count FROM messages WHERE delivery_count <> 1 AND {among}")
    assert again == [], "delivered more than once, or never"
    expected = {ACKED: set(acked) | set(answers), ANSWERED: set(asked), CLAIMED: held}
    assert found == {state: ids for state, ids in expected.items() if ids}
    assert len(asked) == len(answers) > 0
    return sum(map(len, found.values()))


def run_day(
    nursery: Nursery, folder: Path, tmp_path: Path, seconds: int, figure: Callable[[str], None]
) -> tuple[Figures, int]:
    """A day of so many seconds; what was seen of it, and how many messages it had."""
    open_room(folder).close()
    notes, enough, over = tmp_path / "journal", tmp_path / "enough", tmp_path / "over"
    stuck = nursery.fork("soak.holder", folder=str(folder), journal=str(notes))
    stopped = nursery.fork("soak.waiter", folder=str(folder), journal=str(notes))
    held = wait_for(notes, "holds", nursery).details[0]
    wait_for(notes, "waits", nursery)
    time.sleep(0.5)  # it waits for mail now, and not inside of a call
    for pid in (stuck, stopped):
        os.kill(pid, signal.SIGSTOP)

    pids = begin_day(nursery, folder, notes, enough, over)
    figures, until_ns = Figures(folder, pids), steady_ns() + seconds * 10**9
    while steady_ns() < until_ns:
        time.sleep(1 / LOOKS_PER_S)
        assert nursery.ended(pids.values()) == {}, nursery.log()
        figures.look()
    enough.touch()
    nursery.finish(*(pids[name] for name in ("sender 1", "sender 2", "asker", "aio asker")))
    over.touch()
    os.kill(stopped, signal.SIGCONT)
    nursery.finish(stopped, *(pids[name] for name in ("receiver 1", "receiver 2", "listener", "server")))

    messages = check_day(folder, journal.read(notes), {held})
    figure(
        f"soak: {seconds} s, 8 processes, {messages} messages; log at most {max(figures.wal) / MB:.0f} MB; "
        f"memory at most {max(map(max, figures.rss.values())) / MB:.0f} MB, "
        f"gained at most {max(figures.gains(figures.rss).values()) / MB:.1f} MB; longest time between two looks "
        f"{figures.longest_gap_s:.1f} s"
    )
    return figures, messages


#: Threads, and descriptors beside those of connections, that a process may gain. It has the table of busy writers from
#: when it has met some; for a moment a folder or a module is open, or a thread folds the log.
GAIN_MOST = 3


def check_flat(figures: Figures, wal_most: int) -> None:
    assert {n: gain for n, gain in figures.gains(figures.rss).items() if gain > RSS_GAIN_MOST} == {}
    check_descriptors(figures)
    if max(figures.wal) > wal_most and figures.longest_gap_s > STOPPED_S:
        pytest.skip(f"all was well but for the log, and this machine stood still for {figures.longest_gap_s:.0f} s")
    assert max(figures.wal) <= wal_most


def check_descriptors(figures: Figures) -> None:
    """No leak: nothing grows with the work.

    Connections are counted apart, whenever they are opened: one for each thread, and one to fold the log. The thread
    that keeps house opens its own after some seconds, which on a busy machine is late in a short day. Of a closed
    connection SQLite keeps the database's descriptor for the next one, while others hold locks.
    """
    for gains in (figures.gains(figures.threads), figures.gains(figures.open)):
        assert {n: gain for n, gain in gains.items() if gain > GAIN_MOST} == {}
    most = {name: max(seen) + 1 for name, seen in figures.threads.items()}
    assert {n: max(seen) for n, seen in figures.connections.items() if max(seen) > most[n]} == {}


@pytest.mark.slow
def test_a_day_beside_stuck_processes_stays_flat_and_loses_nothing(
    nursery: Nursery, folder: Path, tmp_path: Path, figure: Callable[[str], None]
) -> None:
    figures, _ = run_day(nursery, folder, tmp_path, count("SOAK_S", 8), figure)
    # Twice what is promised: beside other work a disk may take a second to fold the log back. A log that never is exceeds it.
    check_flat(figures, 2 * WAL_MOST)


@pytest.mark.long
@in_parts(2)
@pytest.mark.usefixtures("part")
def test_four_minutes_beside_stuck_processes_stay_flat_and_lose_nothing(
    nursery: Nursery, folder: Path, tmp_path: Path, figure: Callable[[str], None]
) -> None:
    figures, messages = run_day(nursery, folder, tmp_path, count("SOAK_S_LONG", 240), figure)
    check_flat(figures, WAL_MOST)
    assert messages < 1_000_000, "history has begun to be forgotten: what was lost cannot be told any more"


def connected(store: SqliteStore) -> apsw.Connection:
    connection = store._file._connect()
    connection.execute("SELECT count(*) FROM messages").fetchall()  # opens the log, too
    return connection


def test_connections_that_threads_open_late_are_no_leak(folder: Path) -> None:
    """As on a busy machine: in the last quarter of the day a thread first keeps house, while the log is folded."""
    store = open_room(folder)
    store.stats()
    figures = Figures(folder, {"me": os.getpid()})
    for _ in range(30):
        figures.look()
    with ThreadPoolExecutor(1) as keeps_house, closing(connected(store)):
        keeps_house.submit(store.stats).result()
        for _ in range(10):
            figures.look()
    store.close()
    assert max(figures.connections["me"]) == 3
    check_descriptors(figures)


def leak_connection(store: SqliteStore, until: ExitStack) -> None:
    until.enter_context(closing(connected(store)))


def leak_socket(_store: SqliteStore, until: ExitStack) -> None:
    until.enter_context(socket.socket())


def leak_thread(_store: SqliteStore, until: ExitStack) -> None:
    over = threading.Event()
    thread = threading.Thread(target=over.wait)
    thread.start()
    until.callback(thread.join)
    until.callback(over.set)


@pytest.mark.parametrize("leak", [leak_connection, leak_socket, leak_thread])
def test_what_grows_with_the_work_is_a_leak(leak: Callable[[SqliteStore, ExitStack], None], folder: Path) -> None:
    figures = Figures(folder, {"me": os.getpid()})
    with closing(open_room(folder)) as store, ExitStack() as until:
        for _ in range(40):
            leak(store, until)
            figures.look()
    with pytest.raises(AssertionError):
        check_descriptors(figures)


@pytest.mark.slow
def test_a_stranger_who_never_ends_a_read_loses_nothing_and_the_log_is_small_soon_after_it_is_gone(
    nursery: Nursery, folder: Path, tmp_path: Path, figure: Callable[[str], None]
) -> None:
    notes = tmp_path / "journal"
    store = open_room(folder)
    stranger = nursery.fork("soak.reader", folder=str(folder), journal=str(notes))
    wait_for(notes, "reads", nursery)
    os.kill(stranger, signal.SIGSTOP)
    ids = []
    while wal_bytes(folder) <= WAL_MOST:
        ids += store.put([letter(payload={"text": "x" * 900_000}) for _ in range(4)])
        store.sweep()  # keeps house, and cannot
    pinned = wal_bytes(folder)
    nursery.kill(stranger)
    ids += store.put([letter()])
    store.sweep()
    small = wal_bytes(folder)
    store.close()
    figure(
        f"soak: a stranger's read let the log grow to {pinned / MB:.0f} MB; after its end it was {small / MB:.0f} MB"
    )
    assert small <= WAL_MOST
    with Look(folder) as look:
        assert look.damage() == "ok"
        assert {id for (id,) in look.rows(f"SELECT id FROM messages WHERE state = {READY}")} == set(ids)
