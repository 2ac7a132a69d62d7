"""The power goes, at any moment.

The story. A room is made and used as Postroom ships: zeros are written ahead of the log, a thread folds the log back, and several
connections or several processes are at work. Everything they do to files is recorded, and each call that returned
(programs/power.py). From a recording many disks are made, as a cut at a random moment may leave them (after_a_cut.py). The machine
boots, with a new boot id and perhaps a wall clock that is behind, and the room is opened again.

The invariant. With sync=full nothing that a call returned is lost. With sync=normal the last calls may be lost, the later ones of
a caller before its earlier ones. With some of each kind, the calls of the careful ones are kept. Always, a batch is whole or absent,
each sender's messages are in the order in which they were sent and none is missing in between, SQLite's own check finds no damage,
and the room can be used: all that is ready comes in order, nothing that was settled comes again, and new messages come last.
"""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from functools import partial
from itertools import groupby
from pathlib import Path

import apsw
import pytest
from tests.faults.programs.power import Event, Handle, Worker, in_threads, read_recording, recording, set_pages
from tests.faults.programs.rooms import letter, open_room, want
from tests.support.files_by_hand import send

import postroom
from postroom.core import crashpoints
from postroom.core.clock import SYSTEM, ManualClock
from postroom.core.config import Config
from postroom.core.system.files import sync_content
from postroom.stores.files.store import FilesStore
from postroom.stores.sqlite.layout import PAGE_BYTES
from postroom.stores.sqlite.store import SqliteStore
from postroom.stores.sqlite.wal import AHEAD_FROM_PAGES, AHEAD_PAGES, LONG_PAGES

from .after_a_cut import Disk, points_of
from .support import CLAIMED, READY, Look, Nursery, count, seed

pytestmark = pytest.mark.slow

#: What a call that returned has promised: who called, what it is about, and how that must be. A message must be in that state (None:
#: it must be there); a cell must have that value, or a later one.
Promise = tuple[str, str, int | None]

SYNCS = {
    "full": ("full", "full", "full"),
    "normal": ("normal", "normal", "normal"),
    "mixed": ("full", "normal", "full"),
}
ROOM = Path("project", "room")
LOG = str(ROOM / "messages.db-wal")
#: The log is folded back at so many pages, lengthened from so many, by so many. The last is what Postroom ships with.
SHIPPED = (LONG_PAGES, AHEAD_FROM_PAGES, AHEAD_PAGES)
CUTS_PER_DAY = 20
PAGES = ((2, 2, 8), (20, 3, 8), (60, 5, 16), (60, 48, 1000), (300, 20, 60), SHIPPED)


#: What a loss or damage is told by.
FOUND = (AssertionError, apsw.Error, postroom.RoomError)


def ahead_of(events: list[Event]) -> set[Handle]:
    """The handles by which zeros were written ahead of the log: it is opened to be synced, too."""
    opened = {event[1] for event in events if event[0] == "opened" and event[3]}
    return opened & {event[1] for event in events if event[0] == "wrote"}


class Recorded:
    """A recording, and the folder whose files it tells of."""

    def __init__(self, root: Path, events: list[Event]) -> None:
        self.root = root
        self.events = events

    def cut(self, points: Iterable[int], chance: random.Random) -> Iterator[tuple[dict[str, bytes], list[Promise]]]:
        """What cuts at these moments leave of the files, with what was promised by then."""
        disk, promises, played = Disk(self.root), [], 0
        for point in sorted(points):
            for event in self.events[played:point]:
                disk.play(event)
                if event[0] == "returned":
                    promises += [(event[1], id, event[4]) for id in event[3]]
            played = point
            yield disk.after_a_cut(chance), promises

    def is_true(self, of_the_log: bytes | None = None) -> bool:
        """Whether it tells of all that was done: played to its end, it gives the bytes that the files have.

        `of_the_log` is what the log held when all rested, should it be gone by now.
        """
        disk = Disk(self.root)
        for event in self.events:
            disk.play(event)
            if event[0] == "past" or (event[0] == "rests" and of_the_log not in (None, disk.whole().get(LOG))):
                return False
        found = {str(path.relative_to(self.root)): path for path in self.root.rglob("messages.db*")}
        found.pop(str(ROOM / "messages.db-shm"), None)
        return disk.whole() == {name: path.read_bytes() for name, path in found.items()}


def record_day(place: Path, sync: str, chance: random.Random) -> Recorded:
    """Some hours of work in a room: several connections of this process, one after the other or in threads."""
    root, clock = place / "disk", ManualClock()
    root.mkdir(parents=True)
    calls, name = chance.randrange(10, 200), chance.random()

    def go_on_working(worker: Worker, calls: int) -> None:
        for _ in range(calls):
            worker.one_thing()
            clock.advance(0.01)

    with set_pages(*chance.choice(PAGES)), recording(place / "recording", root) as recorder:
        workers = [
            Worker(
                f"{kind}.{number}.{name}",
                recorder,
                partial(open_room, root / ROOM, sync=kind, clock=clock, busy_timeout_s=60),
                reopens=0.03,
            )
            for number, kind in enumerate(SYNCS[sync])
        ]
        if chance.random() < 0.5:
            for _ in range(calls):
                go_on_working(chance.choice(workers), 1)
        else:
            in_threads([partial(go_on_working, worker, calls // 3 + 1) for worker in workers])
        for worker in workers:
            assert isinstance(worker.store, SqliteStore)
            worker.store._file.log.checkpointer.close()  # what is done to the log beside is over
        recorder.note("rests")
        log = root / LOG  # it may be read while it is in use: it has no locks. With the last thread it went
        of_the_log = log.read_bytes() if log.exists() else None
        for worker in workers:
            worker.store.close()
    recorded = Recorded(root, read_recording(place / "recording"))
    assert recorded.is_true(of_the_log), "something was done to the files that is not in the recording"
    return recorded


def boot(folder: Path, files: dict[str, bytes], chance: random.Random) -> Path:
    """Put what is left into a folder, with whatever the shared memory's file may hold. Returns the room's folder."""
    room = folder / ROOM
    for name, content in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)
    if room.exists() and chance.random() < 0.3:
        (room / "messages.db-shm").write_bytes(chance.randbytes(32768))
    return room


def look_at(room: Path) -> tuple[dict[str, int], dict[str, int]]:
    """The messages that are there with their states, and the cells with their values; with what SQLite itself reads."""
    if not (room / "messages.db").exists():
        return {}, {}
    with Look(room) as look:
        assert look.damage() == "ok"
        if look.value("PRAGMA user_version") == 0:  # the room was not yet made
            return {}, {}
        cells = {
            name: int(value) for name, value in look.rows("SELECT name, value FROM cells WHERE name GLOB 'power/*'")
        }
        rows = look.rows(
            "SELECT id, state, payload ->> 'who' AS who, payload ->> 'batch', payload ->> 'of' FROM messages ORDER BY who, key"
        )
    for who, sent in groupby(rows, lambda row: row[2]):
        batches = [(batch, of, len(list(there))) for (batch, of), there in groupby(sent, lambda row: row[3:])]
        assert all(of == there for _, of, there in batches), f"half a batch of {who} is there: {batches}"
        assert [batch for batch, _, _ in batches] == list(range(len(batches))), f"{who} is out of order: {batches}"
    return {id: state for id, state, *_ in rows}, cells


def go_on(room: Path, found: dict[str, int], chance: random.Random) -> None:
    """The machine has booted: the room can be used, what was settled stays so, and new messages come last."""
    clock = ManualClock()
    clock.jump_wall(chance.choice((60, -3600)))
    clock.reboot()
    store = open_room(room, clock=clock)
    [sent] = store.put([letter("zoe")])
    [delivery] = store.claim(want("zoe")).deliveries
    assert delivery.message.id == sent and store.settle(delivery.ticket, "acked").held
    came = [delivery.message.id for delivery in store.claim(want(limit=10_000)).deliveries]
    store.close()
    assert came == sorted(came)
    assert {id for id, state in found.items() if state == READY} <= set(came)
    assert {id for id, state in found.items() if state not in (READY, CLAIMED)}.isdisjoint(came)
    with Look(room) as look:
        assert look.damage() == "ok"
        assert look.value("SELECT id FROM messages ORDER BY key DESC LIMIT 1") == sent


def cut_and_check(recorded: Recorded, place: Path, points: Iterable[int], chance: random.Random) -> tuple[int, int]:
    """Cut a recording at these moments, and check. Returns how many promises there were and how many were kept."""
    made = survived = 0
    for files, promises in recorded.cut(points, chance):
        room = boot(place, files, chance)
        found, cells = look_at(room)
        held: dict[str, list[bool]] = {}
        for who, id, state in promises:
            kept_it = cells[id] >= (state or 0) if id in cells else id in found and state in (None, found[id])
            held.setdefault(who, []).append(kept_it)
        for who, kept in held.items():
            assert all(kept) or who.startswith("normal"), f"{kept.count(False)} calls of {who} were lost: {kept}"
            assert kept == sorted(kept, reverse=True), f"an earlier call of {who} was lost and a later one kept: {kept}"
        go_on(room, found, chance)
        shutil.rmtree(place)
        made += sum(map(len, held.values()))
        survived += sum(map(sum, held.values()))
    return made, survived


def cut_days(in_memory: Path, keep: Path, sync: str, days: Iterable[int], figure: Callable[[str], None]) -> None:
    """Record days, and cut the power some times in each of them. `keep` gets the recording of one that fails."""
    made = survived = lengthened = folded = done = 0
    for number in days:
        day = in_memory / f"day{number}"
        recorded = record_day(day, sync, random.Random(f"{sync}{number}"))
        # of its own: the cuts of a recording that was kept can be repeated
        chance = random.Random(f"cuts of {sync}{number}")
        try:
            promised, held = cut_and_check(
                recorded, day / "night", points_of(recorded.events, CUTS_PER_DAY, chance), chance
            )
        except FOUND as error:
            shutil.copytree(day, keep / day.name)
            raise AssertionError(f"seed {number}, recording in {keep / day.name}: {error}") from error
        made, survived, done = made + promised, survived + held, done + CUTS_PER_DAY
        lengthened += len(ahead_of(recorded.events))
        folded += sum(event[0] == "wrote" and event[2] == 0 and len(event[3]) == 32 for event in recorded.events)
        shutil.rmtree(day)
    assert made > done, "the days are too short to promise anything"
    assert lengthened > 0 or sync == "normal"
    assert survived < made or sync == "full", "a disk that loses nothing proves nothing"
    figure(
        f"power cut, sync={sync}: {done} cuts, {made} times a call had returned, {made - survived} times it was lost; "
        f"the log was lengthened {lengthened} times and begun anew {folded} times"
    )


def share(cuts: int, part: int = 0) -> range:
    """The days that one part of the cuts takes."""
    days = -(-cuts // CUTS_PER_DAY)
    return range(seed() + part * days, seed() + (part + 1) * days)


@pytest.mark.parametrize(("sync", "cuts"), [("full", 160), ("normal", 60), ("mixed", 60)])
def test_a_power_cut_takes_what_it_may_and_never_the_file(
    sync: str, cuts: int, in_memory: Path, tmp_path: Path, figure: Callable[[str], None]
) -> None:
    cut_days(in_memory, tmp_path, sync, share(count("CUTS", cuts)), figure)


@pytest.mark.long
@pytest.mark.parametrize("part", range(8))
def test_twenty_thousand_power_cuts_take_nothing_that_waited_for_the_disk(
    part: int, in_memory: Path, tmp_path: Path, figure: Callable[[str], None]
) -> None:
    cut_days(in_memory, tmp_path, "full", share(count("CUTS_LONG", 2_500), part), figure)


@pytest.mark.long
@pytest.mark.parametrize("sync", ["normal", "mixed"])
def test_thousands_of_power_cuts_where_not_all_wait_for_the_disk(
    sync: str, in_memory: Path, tmp_path: Path, figure: Callable[[str], None]
) -> None:
    cut_days(in_memory, tmp_path, sync, share(count("CUTS_LONG", 2_500)), figure)


# Several processes


def record_crowd(place: Path, nursery: Nursery, pages: tuple[int, int, int], calls: int) -> Recorded:
    """Four processes make a room at the same moment; eight writers use it, whose syncs overlap. Nobody closes it."""
    root, to = place / "disk", place / "recording"
    root.mkdir(parents=True)
    about = {"root": str(root), "room": str(ROOM), "to": str(to), "calls": calls, "threads": 2, "pages": pages}
    nursery.finish(*[nursery.fork("power.work", who=f"full.{number}", **about) for number in range(4)])
    recorded = Recorded(root, read_recording(to))
    assert recorded.is_true(), "something was done to the files that is not in the recording"
    return recorded


def cut_crowd(recorded: Recorded, night: Path, cuts: int, figure: Callable[[str], None]) -> None:
    chance = random.Random(f"crowd{seed()}")
    try:
        made, survived = cut_and_check(recorded, night, points_of(recorded.events, cuts, chance), chance)
    except FOUND as error:
        raise AssertionError(f"seed {seed()}, recording beside {recorded.root}: {error}") from error
    writers = {event[1][0] for event in recorded.events if event[0] == "wrote"}
    lengthened = {process for process, _ in ahead_of(recorded.events)}
    assert len(writers) == 4  # whether one comes to lengthening the log before it is long is chance
    figure(
        f"power cut, four processes: {len(recorded.events)} events, {cuts} cuts, {made} times a call had returned, "
        f"{made - survived} times it was lost; {len(lengthened)} of them lengthened the log"
    )


def test_a_power_cut_takes_nothing_of_what_returned_in_four_processes(
    in_memory: Path, tmp_path: Path, nursery: Nursery, figure: Callable[[str], None]
) -> None:
    recorded = record_crowd(tmp_path, nursery, (60, 5, 16), 30)
    cut_crowd(recorded, in_memory / "night", count("CROWD_CUTS", 30), figure)


@pytest.mark.long
@pytest.mark.parametrize("pages", [(20, 3, 8), (300, 20, 60), SHIPPED])
def test_thousands_of_power_cuts_take_nothing_of_what_returned_in_four_processes(
    pages: tuple[int, int, int], in_memory: Path, tmp_path: Path, nursery: Nursery, figure: Callable[[str], None]
) -> None:
    recorded = record_crowd(tmp_path, nursery, pages, 300)
    cut_crowd(recorded, in_memory / "night", count("CROWD_CUTS_LONG", 700), figure)


def test_a_retry_of_the_last_delivery_promises_a_dead_letter(in_memory: Path) -> None:
    """Where processes end with a message in hand, it may be at its last delivery when another one gives it back."""
    root = in_memory / "disk"
    root.mkdir()
    with recording(in_memory / "recording", root) as recorder:
        worker = Worker("full", recorder, partial(open_room, root / ROOM, sync="full"))
        worker.store.put([letter(payload={"who": "full", "batch": 0, "of": 1}, max_deliveries=1)])
        worker.claim()
        worker.settle("retry")
        worker.store.close()
    recorded, chance = Recorded(root, read_recording(in_memory / "recording")), random.Random(seed())
    made, survived = cut_and_check(recorded, in_memory / "night", points_of(recorded.events, 40, chance), chance)
    assert made == survived > 0


def send_once(store: SqliteStore) -> None:
    store.put([letter(idempotency_key="once")])


def subscribe(store: SqliteStore) -> None:
    store.subscribe("jobs", "bob")


@pytest.mark.parametrize("call", [send_once, subscribe])
def test_what_others_did_without_waiting_for_the_disk_is_there_when_a_repeat_with_full_sync_returned(
    call: Callable[[SqliteStore], None], in_memory: Path
) -> None:
    """A repeat finds it done and changes nothing; yet it promises that it is done."""
    root = in_memory / "disk"
    root.mkdir()
    with recording(in_memory / "recording", root):
        careless, careful = (open_room(root / ROOM, sync=sync) for sync in ("normal", "full"))
        call(careless)
        call(careful)
        events = read_recording(in_memory / "recording")
        careless.close()
        careful.close()
    chance = random.Random(seed())
    for files, _ in Recorded(root, events).cut([len(events)] * 20, chance):
        with Look(boot(in_memory / "night", files, chance)) as look:
            assert (
                look.value("SELECT (SELECT count(*) FROM messages) + (SELECT count(*) FROM channel_subscriptions)") == 1
            )
        shutil.rmtree(in_memory / "night")


def test_a_repeat_in_a_room_of_files_waits_for_the_disk_though_the_first_sender_has_not_come_to_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first may be killed before it syncs the inbox; what the repeat returned must be there after a power cut."""
    synced: list[int] = []
    really = os.fsync

    def fsync(descriptor: int) -> None:
        synced.append(os.fstat(descriptor).st_ino)
        really(descriptor)

    def repeat() -> None:
        crashpoints.forget()
        synced.clear()
        ids.append(send(again, idempotency_key="once"))
        by_the_repeat.extend(synced)

    ids: list[str] = []
    by_the_repeat: list[int] = []
    monkeypatch.setattr(os, "fsync", fsync)
    first, again = (FilesStore(tmp_path, Config(), SYSTEM) for _ in range(2))
    with closing(first), closing(again):
        crashpoints.at("files.committed", repeat)
        try:
            ids.append(send(first, idempotency_key="once"))
        finally:
            crashpoints.forget()
    assert len(ids) == 2 and ids[0] == ids[1]
    assert (tmp_path / "inbox/bob").stat().st_ino in by_the_repeat


@pytest.fixture
def synced_logs(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The inodes of the logs whose new lines were synced."""
    synced: list[int] = []

    def sync(descriptor: int) -> None:
        synced.append(os.fstat(descriptor).st_ino)
        sync_content(descriptor)

    monkeypatch.setattr("postroom.stores.files.log.sync_content", sync)
    return synced


def open_files(folder: Path, sync: str) -> FilesStore:
    return FilesStore(folder, Config(sync=sync), SYSTEM)


@pytest.mark.parametrize(
    "call",
    [
        lambda store: send(store, idempotency_key="once", delay_s=500),
        lambda store: store.subscribe("jobs", "bob"),
        lambda store: store.unsubscribe("jobs", "bob"),
    ],
    ids=["send", "subscribe", "unsubscribe"],
)
def test_a_repeat_with_full_sync_in_a_room_of_files_syncs_the_log_that_others_wrote(
    call: Callable[[FilesStore], object], tmp_path: Path, synced_logs: list[int]
) -> None:
    """A delay or a subscription stands in the log alone; the first caller may not wait for the disk."""
    with closing(open_files(tmp_path, "normal")) as careless, closing(open_files(tmp_path, "full")) as careful:
        careless.subscribe("jobs", "bob")
        call(careless)
        assert not synced_logs
        call(careful)
        call(careless)
    (log,) = (tmp_path / ".postroom").glob("log*")
    assert synced_logs == [log.stat().st_ino]


def test_recovery_with_full_sync_syncs_the_line_of_a_process_that_died_before_its_sync(
    tmp_path: Path, synced_logs: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    def die(_descriptor: int) -> None:
        raise KeyboardInterrupt

    with closing(open_files(tmp_path, "full")) as first, closing(open_files(tmp_path, "full")) as other:
        assert not first.unsubscribe("jobs", "bob")  # a new room is put in order by its first step
        synced_logs.clear()
        with monkeypatch.context() as dying, pytest.raises(KeyboardInterrupt):
            dying.setattr("postroom.stores.files.log.sync_content", die)
            first.subscribe("jobs", "bob")
        assert not synced_logs
        assert not other.claim(want("nobody")).deliveries
        assert synced_logs
        assert [each.agent for each in other.subscriptions()] == ["bob"]


# The way to the file


def first_send_by_store(folder: Path) -> tuple[str, Callable[[], None]]:
    store = open_room(folder, sync="full")
    return store.put([letter(payload={"who": "full", "batch": 0, "of": 1})])[0], store.close


def first_send_by_room(folder: Path) -> tuple[str, Callable[[], None]]:
    room = postroom.open(f"sqlite:{folder}?sync=full")
    return room.agent("ada").send("bob", {"who": "full", "batch": 0, "of": 1}), room.close


@pytest.mark.parametrize("made_by_another", [0, 1, 2], ids=["no folder", "a folder above", "the room's folder"])
@pytest.mark.parametrize("first_send", [first_send_by_store, first_send_by_room])
def test_the_first_message_of_a_new_room_survives_a_power_cut(
    first_send: Callable[[Path], tuple[str, Callable[[], None]]], made_by_another: int, in_memory: Path
) -> None:
    """Also where another process made folders on the way to it, and was killed before it synced them."""
    root = in_memory / "disk"
    root.mkdir()
    with recording(in_memory / "recording", root) as recorder:
        for folder in (root / "project", root / ROOM)[:made_by_another]:
            folder.mkdir()
        id, close = first_send(root / ROOM)
        recorder.note("returned", "full", "sent", [id], None)
        close()
    recorded, chance = Recorded(root, read_recording(in_memory / "recording")), random.Random(seed())
    assert recorded.is_true()
    made, survived = cut_and_check(recorded, in_memory / "night", points_of(recorded.events, 40, chance), chance)
    assert made == survived > 0


# Whether these tests can fail


def files_of(events: list[Event]) -> dict[object, str]:
    """The kind of what each handle or inode is of: the log, the database, a journal or a folder."""
    kinds = {"messages.db": "database", "messages.db-wal": "log", "messages.db-journal": "journal"}
    found: dict[object, str] = {
        event[1]: kinds[Path(event[2]).name] for event in events if event[0] in ("made", "opened")
    }
    return found | {event[2]: "folder" for event in events if event[0] == "sync" and isinstance(event[2], int)}


def without_syncs_of(kind: str, events: list[Event]) -> list[Event]:
    kinds = files_of(events)
    return [event for event in events if event[0] != "sync" or kinds[event[2]] != kind]


def with_zeros_too_early(events: list[Event]) -> list[Event]:
    """As if the log was lengthened by somebody who takes it for a page shorter than it is."""
    ahead = ahead_of(events)
    page = PAGE_BYTES + 24
    return [
        ("wrote", event[1], event[2] - page, event[3]) if event[0] == "wrote" and event[1] in ahead else event
        for event in events
    ]


@pytest.mark.parametrize(
    "break_it",
    [
        partial(without_syncs_of, "log"),
        partial(without_syncs_of, "database"),
        partial(without_syncs_of, "folder"),
        with_zeros_too_early,
    ],
    ids=["no sync of the log", "no sync of the database", "no sync of folders", "zeros over what was written"],
)
def test_these_tests_find_what_would_lose_messages(
    break_it: Callable[[list[Event]], list[Event]], in_memory: Path
) -> None:
    for number in range(20):
        chance = random.Random(f"broken{number}")
        recorded = record_day(in_memory / f"{number}", "full", chance)
        broken = Recorded(recorded.root, break_it(recorded.events))
        try:
            cut_and_check(broken, in_memory / f"{number}" / "night", points_of(broken.events, 20, chance), chance)
        except FOUND:
            return
    raise AssertionError("400 cuts did not find it")


def test_each_single_sync_that_a_send_waits_for_is_needed(in_memory: Path) -> None:
    """One sync is left out, that of the log before a send returned, and the power goes just then."""
    root = in_memory / "disk"
    root.mkdir()
    with recording(in_memory / "recording", root) as recorder:
        store = open_room(root / ROOM, sync="full")
        for number in range(10):
            [id] = store.put([letter(payload={"who": "full", "batch": number, "of": 1})])
            recorder.note("returned", "full", "sent", [id], None)
        store.close()
    events = read_recording(in_memory / "recording")
    kinds, chance = files_of(events), random.Random(seed())
    for point in [number for number, event in enumerate(events, 1) if event[0] == "returned"]:
        last = max(n for n in range(point) if events[n][0] == "sync" and kinds[events[n][2]] == "log")
        broken = Recorded(root, [*events[:last], *events[last + 1 : point]])
        with pytest.raises(FOUND):
            cut_and_check(broken, in_memory / f"night{point}", [point - 1] * 30, chance)


def test_a_write_past_the_recording_is_found(in_memory: Path) -> None:
    root = in_memory / "disk"
    root.mkdir()
    with recording(in_memory / "recording", root) as recorder:
        store = open_room(root / ROOM, sync="full")
        store.put([letter()])
        with (root / LOG).open("ab") as log:
            log.write(bytes(4096))
        of_the_log = (root / LOG).read_bytes()
        recorder.note("rests")
        store.close()
    assert not Recorded(root, read_recording(in_memory / "recording")).is_true(of_the_log)
