"""Much of everything: delegations that leave nothing behind, and mailboxes that lose, double and mix up nothing."""

from __future__ import annotations

import gc
import os
import tempfile
import threading
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
from tests.support.patience import until

from postroom.core.system import children
from postroom.room import open_room

from . import workers
from .conftest import address, children_of

SENDERS = RECEIVERS = 8
DATABASE = ("messages.db", "messages.db-wal")
#: Sixteen processes want to write all the time, on a machine that may hold up the one that has the lock.
BUSY_S = 120.0


def temporary_files() -> list[str]:
    """What lies among the temporary files, but for the folder of the NATS server of the whole run."""
    return sorted(name for name in os.listdir(tempfile.gettempdir()) if not name.startswith("postroom-nats-"))


def files_open_in(folder: Path) -> Counter[str]:
    """The files of a room's folder that this process has open, by their names; how often each."""
    paths = []
    for name in os.listdir("/proc/self/fd"):
        with suppress(FileNotFoundError):  # that of the listing itself, or of a thread of another test
            paths.append(Path(os.readlink(f"/proc/self/fd/{name}")))
    # `lock` is opened once, when the first two processes want to write at the same moment
    return Counter(path.name for path in paths if folder in path.parents and path.name != "lock")


def left_behind(folder: Path) -> dict[str, object]:
    """What the room has open or running, and what lies in its folder; databases are counted by the caller."""
    gc.collect()
    files = files_open_in(folder)
    return {
        "children": len(children_of(os.getpid())),
        "open files": {name: count for name, count in files.items() if name not in DATABASE},
        "threads": sorted(thread.name for thread in threading.enumerate() if thread.name.startswith("postroom")),
        "files": sorted(path.name for path in folder.iterdir()),
    }


def descriptors_of_the_server() -> int:
    return len(os.listdir(f"/proc/{children.shared_server()._process.pid}/fd"))


@pytest.fixture
def no_temporary_files(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """Temporary files of this test alone lie where they are looked for."""
    monkeypatch.setenv("TMPDIR", str(tmp_path_factory.mktemp("temporary")))
    monkeypatch.setattr(tempfile, "tempdir", None)


def check_delegations(folder: Path, not_let_go: Callable[[], list[object]], count: int, scheme: str = "sqlite") -> None:
    with open_room(address(scheme, folder)) as room:
        session = room.session()
        session.delegate([workers.short(1)])
        with room.session() as first:  # from the first failure on, a thread watches folders
            first.mark_failed("on purpose")
        before, kept, failed = left_behind(folder), not_let_go(), 1
        of_the_server = descriptors_of_the_server()
        databases = sum(files_open_in(folder)[name] for name in DATABASE)
        for number in range(count):
            results = session.delegate([workers.short(number + n) for n in range(4)])
            assert results == [(number + n) ** 2 for n in range(4)]
            if number % 10 == 0:  # and sessions that come and go, some of them with a failure
                with room.session() as other:
                    other.mailbox.box.send(number)
                    if number % 20 == 0:
                        other.mark_failed("on purpose")
                        failed += 1

        assert not_let_go() == kept == [session.dir / ".failed"]
        # threads that are about to end let go of theirs
        until(lambda: left_behind(folder) == before, f"not as before: {before}")
        # the server lets go of a child a moment after its end: of the first one, it may still have had something
        until(lambda: descriptors_of_the_server() <= of_the_server, "the server of processes keeps descriptors")
        # Of the database two more for the thread that watches, which may not have opened it before; and one of a connection
        # that folded the log while another one held a lock: SQLite keeps that, and uses it again.
        assert sum(files_open_in(folder)[name] for name in DATABASE) <= databases + 3
        assert len(room.store.cell_scan("member:")) == 1
        session.cleanup()
        assert room.store.cell_scan("member:") == []
    # a room without a folder keeps what failed sessions left among the temporary files
    assert len(temporary_files()) == (failed if scheme == "nats" else 0)


@pytest.mark.slow
def test_delegations_leave_nothing_behind(
    tmp_path: Path, no_temporary_files: None, not_let_go: Callable[[], list[object]]
) -> None:
    check_delegations(tmp_path, not_let_go, 11)


@pytest.mark.slow
@pytest.mark.parametrize("count", [2, pytest.param(300, marks=pytest.mark.long)])
def test_delegations_on_nats_leave_nothing_behind(
    tmp_path: Path, no_temporary_files: None, not_let_go: Callable[[], list[object]], count: int
) -> None:
    check_delegations(tmp_path, not_let_go, count, "nats")


@pytest.mark.long
def test_a_thousand_delegations_leave_nothing_behind(
    tmp_path: Path, no_temporary_files: None, not_let_go: Callable[[], list[object]]
) -> None:
    check_delegations(tmp_path, not_let_go, 1000)


def check_order(folder: Path, total: int, scheme: str = "sqlite") -> None:
    """Eight senders and one receiver in processes of their own: each sender's messages come in order, all of them."""
    each = total // SENDERS
    with open_room(address(scheme, folder), busy_timeout_s=BUSY_S) as room, room.session() as session:
        *_, got = session.delegate(
            [
                *(workers.send_many("box", who, each) for who in range(SENDERS)),
                workers.receive_many("box", each * SENDERS),
            ]
        )
        keys = [message.id for message in _messages(room, session.id)] if total <= 10_000 else []

    for who in range(SENDERS):
        assert [number for sender, number in got if sender == who] == list(range(each))
    assert keys == sorted(keys) or scheme == "nats"  # there ids are made before the server says whose turn it is


def _messages(room, session_id):
    return room.peek(channels=[f"session:{session_id}/box"], state=None, limit=1_000_000, order="oldest")


def check_shares(folder: Path, total: int, scheme: str = "sqlite") -> None:
    """Eight receivers share what eight senders send: each message reaches exactly one of them."""
    each = total // SENDERS
    with open_room(address(scheme, folder), busy_timeout_s=BUSY_S) as room, room.session() as session:
        done: list[list[list[int]]] = []
        receivers = threading.Thread(
            target=lambda: done.extend(
                room.session(session.id).delegate([workers.receive_until_none("box") for _ in range(RECEIVERS)])
            )
        )
        receivers.start()
        session.delegate([workers.send_many("box", who, each) for who in range(SENDERS)])
        for _ in range(RECEIVERS):
            session.mailbox.box.send(None)
        receivers.join()

    everything = sorted((who, number) for share in done for who, number in share)
    assert everything == [(who, number) for who in range(SENDERS) for number in range(each)]


@pytest.mark.slow
def test_eight_senders_and_one_receiver_keep_the_order(tmp_path: Path) -> None:
    check_order(tmp_path, 1600)


@pytest.mark.long
def test_eight_senders_and_one_receiver_keep_the_order_of_a_hundred_thousand(tmp_path: Path) -> None:
    check_order(tmp_path, 100_000)


@pytest.mark.slow
@pytest.mark.parametrize("total", [160, pytest.param(20_000, marks=pytest.mark.long)])
@pytest.mark.parametrize("check", [check_order, check_shares])
def test_eight_senders_on_nats(check: Callable[..., None], tmp_path: Path, total: int) -> None:
    check(tmp_path, total, "nats")


@pytest.mark.slow
def test_eight_receivers_lose_and_double_nothing(tmp_path: Path) -> None:
    check_shares(tmp_path, 1600)


@pytest.mark.long
def test_eight_receivers_lose_and_double_nothing_of_a_hundred_thousand(tmp_path: Path) -> None:
    check_shares(tmp_path, 100_000)
