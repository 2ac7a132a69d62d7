"""A disk that fails at one call, at every call in turn, and then works again.

The story. The disk answers one write with an input/output error, or says that it is full (with half of the write
done), or cannot sync or truncate; this is repeated for the first, the second, … call until the step no longer comes
that far. Then a folder that may not be written, a disk that is really full, and a process that may not write larger files.

The invariant. The caller is told by a RoomUnreachable, and then nothing of the step is there, or the call returned, and
then all of it is. The same open room works again as soon as the disk does, and the file passes SQLite's own check.
"""

from __future__ import annotations

import errno
import itertools
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import apsw
import pytest
from tests.faults.programs.disks import EIO, ENOSPC, Call, Disk, FailingCalls, Trap, fails
from tests.faults.programs.fullness import NOT_ALLOWED
from tests.faults.programs.rooms import letter, open_room, want

from postroom.core.clock import ManualClock
from postroom.errors import RoomDamaged, RoomError, RoomUnreachable
from postroom.stores.contract import Query
from postroom.stores.sqlite import wal
from postroom.stores.sqlite.store import SqliteStore

from .programs import steps
from .support import SOME_AND_ALL, Look, Nursery, Rows, copy_room, damage, journal, rows_of

NOBODY = 65534

WRITES = ("pwrite64", "write")


class FailingSync(Trap):
    """A file system whose sync fails: the one call that `FailingCalls` cannot reach."""

    def __init__(self) -> None:
        super().__init__(("sync",), fails(apsw.SQLITE_IOERR_FSYNC))

    def __enter__(self) -> FailingSync:
        self._disk = Disk("failing", self)
        return self

    def __exit__(self, *_: object) -> None:
        self._disk.unregister()


FAULTS: dict[str, Callable[[], FailingCalls | FailingSync]] = {
    "a write fails": lambda: FailingCalls(WRITES, EIO),
    "a write fails half-way": lambda: FailingCalls(WRITES, EIO, torn=True),
    "the disk is full": lambda: FailingCalls((*WRITES, "ftruncate"), ENOSPC, torn=True),
    "a truncation fails": lambda: FailingCalls(("ftruncate",), EIO),
    "a sync fails": FailingSync,
}
SYNC = "a sync fails"
#: Of the log and of the database; and of the first page of a log that begins anew.
SYNCS_OF_A_CHECKPOINT, SYNCS_OF_A_NEW_LOG = 2, 1
#: Every step comes by these; a sync is part of it with sync=full, a truncation only now and then.
ALWAYS = ("a write fails", "a write fails half-way", "the disk is full")
QUICK = ("send", "claim", "ack")
#: sync=full makes all the calls that sync=normal makes, and more.
CASES = [(name, sync) for name in QUICK for sync in ("normal", "full")] + [
    pytest.param(name, "full", marks=pytest.mark.slow) for name in steps.STEPS if name not in QUICK
]

#: These do several steps, each whole by itself; an error in a later one does not undo an earlier one.
SEVERAL = ("expire", "release after a lease", "dead after a lease", "release of the gone", "dead with the gone",
           "unhold for the gone", "forget the old", "dead in order after a lease")  # fmt: skip
#: These give the right answer also where their writing fails: a search reads what it could not index.
READS_ON = ("search",)


class Bench:
    """A room made ready for one step, and how it is before and after it."""

    def __init__(self, name: str, place: Path) -> None:
        self.name = name
        self.place = place
        self.known = steps.make_ready(name, place / "ready")
        self.before = rows_of(place / "ready")
        undisturbed = copy_room(place / "ready", place / "undisturbed")
        store = open_room(undisturbed, clock=self._clock())
        self.act(store)
        store.close()
        self.after = rows_of(undisturbed)
        self._copies = 0

    def _clock(self) -> ManualClock:
        clock = ManualClock()
        clock.advance(steps.STEPS[self.name].at_s)
        return clock

    def open(self, sync: str, vfs: str | None = None) -> SqliteStore:
        self._copies += 1
        return open_room(copy_room(self.place / "ready", self.room), sync=sync, clock=self._clock(), vfs=vfs)

    def act(self, store: SqliteStore) -> None:
        steps.STEPS[self.name].act(store, self.known)

    @property
    def room(self) -> Path:
        return self.place / f"room{self._copies}"


def works(store: SqliteStore) -> None:
    """The room can be used: a letter goes through it."""
    [sent] = store.put([letter("zoe")])
    [delivery] = store.claim(want("zoe", owner=None)).deliveries
    assert delivery.message.id == sent
    assert store.settle(delivery.ticket, "acked").held


def fail_at_each_call(bench: Bench, fault: str, sync: str, every: int) -> int:
    """Let the step fail at its first, second, … call to the disk. Returns the number of the last call that failed."""
    with FAULTS[fault]() as failing:
        for at in range(1, 1000, every):
            with closing(bench.open(sync, "failing" if fault == SYNC else None)) as store:
                failing.arm(at)
                told = act_and_catch(bench, store)
                sprung = failing.sprung
                failing.arm(0)
                check_outcome(bench, rows_of(bench.room), told, fault)
                works(store)
            assert damage(bench.room) == "ok"
            if not sprung:
                return max(0, at - every)
    raise AssertionError("the step never came to its end")


def act_and_catch(bench: Bench, store: SqliteStore) -> RoomError | None:
    try:
        bench.act(store)
    except RoomUnreachable as error:
        return error
    return None


def check_outcome(bench: Bench, now: Rows, told: RoomError | None, fault: str) -> None:
    if told is None:
        assert now == bench.after or bench.name in READS_ON, "the call returned, and not all of it was done"
    elif bench.name in SEVERAL or (fault == SYNC and wal.LONG_PAGES == 1):
        assert now in (bench.before, bench.after)
    elif "it was done" in str(told):  # by all but the disk
        assert fault == SYNC and now == bench.after
    else:
        assert now == bench.before, f"the call raised {told!r}, and something of it was done"
        assert "nothing was changed" in str(told) or fault == SYNC


@SOME_AND_ALL
@pytest.mark.parametrize(("name", "sync"), CASES)
def test_a_step_that_the_disk_fails_is_told_and_not_half_done(
    name: str, sync: str, every: int, in_memory: Path
) -> None:
    bench = Bench(name, in_memory)
    failed = {fault: fail_at_each_call(bench, fault, sync, every) for fault in FAULTS}
    assert min(failed[fault] for fault in ALWAYS) > 0, f"the step came by without touching the disk: {failed}"
    assert failed[SYNC] > 0 or sync == "normal", f"the step came by without a sync: {failed}"


def sync_fails_while(is_broken: Callable[[], bool]) -> Callable[[Call], None]:
    """A disk whose every sync fails while it is broken."""
    fail = fails(apsw.SQLITE_IOERR_FSYNC)

    def ask(call: Call) -> None:
        if call.kind == "sync" and is_broken():
            fail(call)

    return ask


def test_a_checkpoint_makes_up_for_a_sync_that_failed(folder: Path, tmp_path: Path) -> None:
    """What failed to reach the disk is not written again by the next sync: the log may have a hole there.

    So all of it must be in the database when the call returns, and the log must begin anew.
    """
    trap = Trap(("sync",), fails(apsw.SQLITE_IOERR_FSYNC))
    disk = Disk("failing", trap)
    with closing(open_room(folder, sync="full", vfs=disk.name)) as store:
        store.put([letter()])
        trap.arm(1)
        [sent] = store.put([letter()])
        assert trap.sprung
        (tmp_path / "alone").mkdir()
        shutil.copy(folder / "messages.db", tmp_path / "alone")  # without its log
        [last] = store.put([letter()])
        assert trap.seen == 1 + SYNCS_OF_A_CHECKPOINT + SYNCS_OF_A_NEW_LOG + 1
    with Look(tmp_path / "alone") as look:
        assert sent in look.ids()
        assert last not in look.ids()
    disk.unregister()


def test_a_disk_that_no_longer_syncs_is_told_by_every_send_until_it_does(folder: Path) -> None:
    broken = True
    disk = Disk("failing", sync_fails_while(lambda: broken))
    broken = False
    with closing(open_room(folder, sync="full", vfs=disk.name)) as store:
        store.put([letter()])
        broken = True
        for kept in (2, 3):
            with pytest.raises(RoomUnreachable, match="it was done, but may not survive a power cut"):
                store.put([letter()])
            assert len(store.find(Query()).messages) == kept
        broken = False
        store.put([letter()])
    disk.unregister()


def test_a_disk_that_no_longer_syncs_is_told_by_a_repeat(folder: Path) -> None:
    broken = False
    disk = Disk("failing", sync_fails_while(lambda: broken))
    with closing(open_room(folder, sync="full", vfs=disk.name)) as store:
        [sent] = store.put([letter(idempotency_key="once")])
        broken = True
        with pytest.raises(RoomUnreachable, match="may not survive a power cut"):
            store.put([letter(idempotency_key="once")])
        broken = False
        assert store.put([letter(idempotency_key="once")]) == [sent]
    disk.unregister()


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    ["send", "claim", "ack", *(pytest.param(name, marks=pytest.mark.long) for name in ("send a batch", "answer"))],
)
def test_a_step_whose_checkpoint_fails_is_done_all_the_same(
    name: str, in_memory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a log of one page every commit is followed by a checkpoint: it may fail, the commit stands."""
    bench = Bench(name, in_memory)
    without = {fault: fail_at_each_call(bench, fault, "full", 1) for fault in (*ALWAYS, SYNC)}
    monkeypatch.setattr(wal, "LONG_PAGES", 1)
    monkeypatch.setattr(wal.WriteAheadLog, "folds_beside", False)
    for fault, calls in without.items():
        assert fail_at_each_call(bench, fault, "full", 1) > calls, "the checkpoint is part of what is tested here"


@pytest.mark.parametrize(
    ("calls", "error"),
    [
        (("pread64",), EIO),
        (WRITES, EIO),
        ((*WRITES, "ftruncate"), ENOSPC),
        (("ftruncate",), EIO),
        (("unlink",), EIO),
        (("open",), errno.EMFILE),
    ],
    ids=["read", "write", "full", "truncate", "unlink", "open"],
)
@pytest.mark.parametrize("new", [pytest.param(True, marks=pytest.mark.slow), False], ids=["a new room", "a room"])
@SOME_AND_ALL
def test_a_room_that_cannot_be_opened_says_so_and_opens_when_the_disk_works(
    every: int, new: bool, calls: tuple[str, ...], error: int, in_memory: Path
) -> None:
    with FailingCalls(calls, error) as failing:
        for at in range(1, 1000, every):
            room = in_memory / f"room{at}"
            if not new:
                open_room(room, clock=ManualClock()).close()
            failing.arm(at)
            store = open_or_catch(room)
            sprung = failing.sprung
            failing.arm(0)
            store = store or open_room(room, clock=ManualClock())
            works(store)
            store.close()
            assert damage(room) == "ok"
            if not sprung:
                break


def open_or_catch(room: Path) -> SqliteStore | None:
    """The opened room, or None when it said that it cannot be opened.

    SQLite takes an input/output error while reading the file's head for damage, and so do we.
    """
    try:
        return open_room(room, clock=ManualClock())
    except (RoomUnreachable, RoomDamaged):
        return None


# Real disks


def test_a_full_disk_is_told_and_loses_nothing(nursery: Nursery, tmp_path: Path) -> None:
    place, out = tmp_path / "disk", tmp_path / "report"
    place.mkdir()
    status = nursery.wait(nursery.fork("fullness.on_a_full_disk", place=str(place), out=str(out)))
    if status == NOT_ALLOWED:
        pytest.skip("this machine lets nobody mount a small disk of their own")
    assert status == 0, nursery.log()
    report = json.loads(out.read_text())
    assert report["damage"] == "ok"
    assert len(report["sent"]) > 50 and "full" in report["told"]
    assert report["refused"] == "RoomUnreachable"
    assert set(report["ids"]) == {*report["sent"], *report["again"]}
    assert report["new_room"] == "RoomUnreachable"


#: Which disks are tried each time; all of them are in `make test-long`.
QUICK_DISKS = [("sqlite", "read-only, in use"), ("sqlite", "full"), ("files", "full")]
DISKS = [
    pytest.param(*disk, marks=pytest.mark.slow if disk in QUICK_DISKS else pytest.mark.long)
    for disk in itertools.product(("sqlite", "files"), ("read-only", "read-only, in use", "full", "full, in use"))
]


@pytest.mark.parametrize(("scheme", "how"), DISKS)
def test_a_room_on_a_disk_that_takes_nothing_can_be_looked_at(
    nursery: Nursery, tmp_path: Path, scheme: str, how: str
) -> None:
    place, out = tmp_path / "disk", tmp_path / "report"
    place.mkdir()
    program = nursery.fork("fullness.looking_only", place=str(place), out=str(out), scheme=scheme, how=how)
    status = nursery.wait(program)
    if status == NOT_ALLOWED:
        pytest.skip("this machine lets nobody mount a small disk of their own")
    assert status == 0, nursery.log()
    report = json.loads(out.read_text())
    texts = ["first", *(["from eve"] if "in use" in how else [])]
    assert [report[name][0] for name in ("peek", "status", "receipt", "board")] == [0, 0, 0, 0], report
    assert [message["payload"]["text"] for message in report["peek"][1]] == texts
    assert report["status"][1]["states"]["stored"] == len(texts)
    assert report["status"][1]["mailboxes"][0]["depth"] == len(texts)
    assert report["receipt"][1]["state"] == "stored"
    checks = {check["check"]: check for check in report["doctor"][1]["checks"]}
    assert checks["agents"]["verdict"] in ("ok", "warn"), checks  # the room's own checks were made
    code, told, said = report["send"]
    assert (code, told) == (4, "")
    assert ("its disk is full" if "full" in how else "its file system is read-only") in said
    assert "can be read" in said
    assert report["unchanged"] or "in use" in how  # whose heartbeats may still find a few bytes


def test_files_that_may_not_grow_lose_nothing(nursery: Nursery, folder: Path, tmp_path: Path) -> None:
    notes = tmp_path / "journal"
    nursery.finish(
        nursery.fork("fullness.under_a_size_limit", folder=str(folder), journal=str(notes), limit_bytes=500_000)
    )
    [(_, _, _, [sent, _, again])] = journal.read(notes)
    with Look(folder) as look:
        assert look.damage() == "ok"
        assert len(sent) > 50 and look.ids() == {*sent, *again}


@pytest.fixture
def open_place() -> Iterator[Path]:
    """A folder that every user may enter."""
    place = Path(tempfile.mkdtemp(prefix="postroom-"))
    place.chmod(0o755)
    yield place
    for path in (place, *place.rglob("*")):
        if path.is_dir():
            path.chmod(0o755)
    shutil.rmtree(place)


@pytest.mark.parametrize("there_is_a_room", [True, False])
def test_a_folder_that_may_not_be_written_is_told_and_left_alone(
    there_is_a_room: bool, open_place: Path, nursery: Nursery
) -> None:
    room, out = open_place / "room", open_place / "said"
    out.write_text("")
    out.chmod(0o666)
    room.mkdir()
    if there_is_a_room:
        store = open_room(room)
        store.put([letter()])
        store.close()
    before = sorted((path.name, path.stat().st_size) for path in room.iterdir())
    for path in room.iterdir():
        path.chmod(0o444)
    room.chmod(0o555)
    nursery.finish(nursery.fork("fullness.as_a_reader", folder=str(room), out=str(out), user=NOBODY))
    said = json.loads(out.read_text())
    assert said["error"] == "RoomUnreachable", said
    assert "cannot be written" in said["text"] and str(room) in said["text"]
    assert said.get("found") == (1 if there_is_a_room else None)
    assert sorted((path.name, path.stat().st_size) for path in room.iterdir()) == before


@pytest.mark.slow
@pytest.mark.parametrize(
    ("file", "says"), [("messages.db", "messages.db cannot be written"), ("lock", "cannot be used"), ("bells", "")]
)
def test_a_file_that_may_not_be_written_is_told_and_left_alone(
    file: str, says: str, open_place: Path, nursery: Nursery
) -> None:
    """The folder is the reader's own, one of its files is not to be written. Without bells the room watches instead."""
    room, out = open_place / "room", open_place / "said"
    out.write_text("")
    out.chmod(0o666)
    open_room(room).close()
    before = rows_of(room)
    if os.geteuid() == 0:
        for path in (room, *room.iterdir()):
            os.chown(path, NOBODY, NOBODY)
    (room / file).chmod(0o444)
    nursery.finish(nursery.fork("fullness.as_a_reader", folder=str(room), out=str(out), user=NOBODY))
    said = json.loads(out.read_text())
    if says:
        assert said["error"] == "RoomUnreachable", said
        assert says in said["text"]
    else:
        assert said == {"found": 0}
    assert (rows_of(room) == before) == bool(says)
