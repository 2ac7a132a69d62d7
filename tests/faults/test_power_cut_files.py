"""The power goes, and the room is a tree of files.

The story. Processes work in a room in files as it ships, and strace records every call by which they change a file, a name or what is
safe of them, and when each call of theirs returned (programs/files_day.py, programs/system_calls.py). From a recording many disks are
made, as a cut at a random moment may leave them: writes and truncations are lost, or there in part; links, moves and removals are lost
from some moment on, or from another one for each file (after_a_cut.py). The machine boots, with a new boot id and perhaps a wall clock
that is behind, and the room is opened again.

The invariant. With sync=full nothing that a call returned is lost, and every batch is whole or absent. With sync=normal every message
whose send returned is there; claims, acks and cells may be lost. Always, no half of a message is delivered, the room can be used, all
that is ready comes in order, nothing that was settled comes again, and new messages come last.
"""

from __future__ import annotations

import json
import random
import shutil
from collections import Counter
from collections.abc import Callable, Iterable
from itertools import groupby
from pathlib import Path

import pytest
from tests.faults.programs import system_calls
from tests.faults.programs.power import Event
from tests.faults.programs.rooms import letter, want

from postroom.core.clock import SYSTEM, ManualClock
from postroom.core.config import Config
from postroom.core.message import Message
from postroom.core.states import State
from postroom.errors import RoomDamaged
from postroom.stores.contract import Query
from postroom.stores.files.store import FilesStore

from .after_a_cut import Disk, is_whole, points_of
from .support import count, environment, in_parts, program, seed

WHY_NOT = system_calls.why_not()
pytestmark = [pytest.mark.slow, pytest.mark.skipif(bool(WHY_NOT), reason=WHY_NOT)]

ROOM = Path("project", "room")
SYNCS = {"full": "full,full,full", "normal": "normal,normal,normal", "mixed": "full,normal,full"}
CUTS_PER_DAY = 40
#: What processes write through a map of it, or the system by itself. It is made anew after a boot.
UNSEEN = ("alive", "bells")


def is_unseen(path: str) -> bool:
    return path.rpartition("/")[2] in UNSEEN or "/sockets" in path


def record_day(place: Path, sync: str, chance: random.Random, way: str = "alone") -> tuple[Path, list[Event]]:
    """Record some work; the folder that it was done in, and what was done. The recording tells of all that was done."""
    root = place / "disk"
    root.mkdir(parents=True)
    calls, day = str(chance.randrange(20, 120)), str(chance.random())
    command = program("files_day", str(root), str(ROOM), SYNCS[sync], calls, day, way)
    system_calls.run_recorded(command, place / "calls", environment())
    events = system_calls.read_calls(place / "calls", root, is_unseen)
    assert is_whole(root, events, is_unseen), "something was done to the files that is not in the recording"
    return root, events


def look_at(store: FilesStore) -> tuple[list[Message], dict[str, int]]:
    """The messages that are there, and the cells; each message as it was sent."""
    found = list(store.find_all(Query()))
    for message in found:
        text = message.payload.get("text", "")
        assert set(text) <= {"x"} and message.payload.keys() == {"who", "batch", "of", "text"}, (
            f"half a message: {message}"
        )
    return found, {cell.name: cell.value for cell in store.cell_scan("power/")}


def whole_batches(found: list[Message]) -> Counter[str]:
    """What of each sender is not as it was sent: parts of a batch that are missing, and batches before a later one."""
    wrong: Counter[str] = Counter()
    said = sorted(
        ((message.payload["who"], message.id, message.payload) for message in found), key=lambda each: each[:2]
    )
    for who, sent in groupby(said, lambda each: each[0]):
        batches = [
            (batch, of, len(list(there)))
            for (batch, of), there in groupby(sent, lambda each: (each[2]["batch"], each[2]["of"]))
        ]
        wrong[who] = sum(of != there for _, of, there in batches) + sum(
            batch != number for number, (batch, _, _) in enumerate(batches)
        )
    return wrong


def go_on(store: FilesStore, found: list[Message]) -> None:
    """The room can be used, what was settled stays so, and new messages come last."""
    [sent] = store.put([letter("zoe")])
    [delivery] = store.claim(want("zoe")).deliveries
    assert delivery.message.id == sent and store.settle(delivery.ticket, "acked").held
    deliveries = store.claim(want(limit=10_000)).deliveries
    came = [delivery.message.id for delivery in deliveries]
    assert came == sorted(came) and all(id < sent for id in came)
    assert came == [message.id for message in found if message.exact_state in (State.READY, State.CLAIMED)]
    assert all(set(delivery.message.payload["text"]) <= {"x"} for delivery in deliveries)
    assert all(store.settle(delivery.ticket, "acked").held for delivery in deliveries)


class Tally(Counter[str]):
    """How many promises there were by then, how many of them were kept, and the rest of what was seen."""

    def check(self, store: FilesStore, promises: Iterable[Event]) -> None:
        found, cells = look_at(store)
        done = {json.loads(path.read_bytes())["id"] for path in (store.folder / ".postroom/done").rglob("*.json")}
        states = {message.id: message.exact_state for message in found}
        for _, who, what, ids, value in promises:
            for id in ids:
                there = cells.get(id, 0) >= value if what == "wrote" else id in states
                kept = there and (what in ("wrote", "sent") or value == states[id])
                self[f"{what} promised"] += 1
                if not kept and what == "sent" and id in done:
                    self["of sent: done, and forgotten"] += 1
                    kept = True
                self[f"{what} lost"] += not kept
                if who.startswith("full") or what == "sent":
                    assert kept, f"{who} {what} {id}: {states.get(id)} {value}"
        for who, wrong in whole_batches(found).items():
            self["half batches"] += wrong
            assert not wrong or who.startswith("normal"), f"{who}: {wrong} batches are not whole, or not in order"
        go_on(store, found)


def cut_and_check(root: Path, events: list[Event], night: Path, points: Iterable[int], chance: random.Random) -> Tally:
    """Cut a recording at these moments, and check."""
    disk, tally, played = Disk(root), Tally(), 0
    for point in sorted(points):
        for event in events[played:point]:
            disk.play(event)
        played = point
        rubbish = chance.choice((0, 0, 0, 0.05))
        disk.leave(night, chance, rubbish=rubbish)
        clock = ManualClock(SYSTEM.wall_ms())
        clock.jump_wall(chance.choice((60, -3600)))
        clock.reboot()
        try:
            store = FilesStore(night / ROOM, Config(), clock)
        except RoomDamaged:
            assert rubbish
            tally["damage told"] += 1
        else:
            try:
                tally.check(store, [event for event in events[:point] if event[0] == "returned"])
            except RoomDamaged:
                assert rubbish
                tally["damage told"] += 1
            store.close()
        tally["cuts"] += 1
        shutil.rmtree(night)
    return tally


def cut_days(
    in_memory: Path, keep: Path, sync: str, cuts: int, first: int, figure: Callable[[str], None], way: str = "alone"
) -> None:
    tally, per_day = Tally(), min(cuts, CUTS_PER_DAY)
    for number in range(first, first + -(-cuts // per_day)):
        day, chance = in_memory / f"day{number}", random.Random(f"files{sync}{number}")
        root, events = record_day(day, sync, chance, way)
        try:
            tally += cut_and_check(root, events, day / "night", points_of(events, per_day, chance), chance)
        except Exception as error:
            shutil.copytree(day, keep / day.name, symlinks=True, ignore=shutil.ignore_patterns("sockets"))
            raise AssertionError(f"seed {number}, recording in {keep / day.name}: {error}") from error
        shutil.rmtree(day)
    figure(
        f"power cut, files, sync={sync}, {way}: {', '.join(f'{what} {many}' for what, many in sorted(tally.items()))}"
    )


@pytest.mark.parametrize("sync", ["full", "normal"])
def test_a_power_cut_takes_what_it_may_of_a_room_in_files(
    sync: str, in_memory: Path, tmp_path: Path, figure: Callable[[str], None]
) -> None:
    cut_days(in_memory, tmp_path, sync, count("FILES_CUTS", 15), seed(), figure)


@pytest.mark.long
@pytest.mark.parametrize("sync", SYNCS)
@in_parts(4)
@pytest.mark.usefixtures("part")
def test_thousands_of_power_cuts_take_what_they_may_of_a_room_in_files(
    sync: str, in_memory: Path, tmp_path: Path, figure: Callable[[str], None]
) -> None:
    cut_days(in_memory, tmp_path, sync, count("FILES_CUTS_LONG", 1_000), seed(), figure)


@pytest.mark.long
@pytest.mark.parametrize("sync", ["full", "mixed"])
def test_thousands_of_power_cuts_take_what_they_may_of_a_room_in_files_that_four_processes_use(
    sync: str, in_memory: Path, tmp_path: Path, figure: Callable[[str], None]
) -> None:
    """Each works beside the others, and one dies in the middle of a step."""
    cut_days(in_memory, tmp_path, sync, count("FILES_CUTS_LONG", 1_000), seed(), figure, way="crowd")


# Whether these tests can fail


def without_syncs_of(part: str, events: list[Event]) -> list[Event]:
    """As if nobody waited for the disk there."""
    left_out = {event[1] for event in events if event[0] == "sync" and part in event[2]}
    return [event for event in events if event[0] not in ("sync", "synced") or event[1] not in left_out]


@pytest.fixture(scope="module")
def a_day(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[Event]]:
    return record_day(tmp_path_factory.mktemp("day"), "full", random.Random(seed()))


@pytest.mark.parametrize("part", [".postroom/log", ".postroom/new/", "inbox/bob"], ids=["log", "messages", "inboxes"])
def test_these_tests_find_a_sync_that_is_left_out(part: str, a_day: tuple[Path, list[Event]], in_memory: Path) -> None:
    root, events = a_day
    broken, chance = without_syncs_of(part, events), random.Random(part)
    assert len(broken) < len(events)
    with pytest.raises((AssertionError, RoomDamaged)):
        cut_and_check(root, broken, in_memory / "night", points_of(broken, 200, chance), chance)


def test_what_is_done_past_the_recording_is_found(tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    command = ["python3", "-c", f"open({str(tmp_path / 'disk/a')!r}, 'w').write('x')"]
    system_calls.run_recorded(command, tmp_path / "calls", environment())
    events = system_calls.read_calls(tmp_path / "calls", tmp_path / "disk")
    assert is_whole(tmp_path / "disk", events)
    (tmp_path / "disk/a").write_text("y")
    assert not is_whole(tmp_path / "disk", events)
