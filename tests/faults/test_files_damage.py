"""A log that is not what was written: one bit of it changed, its end is missing, or sectors of it never reached the disk.

The story. A room in files has a log of some lines. A bit flips in it, anywhere. Or whoever wrote the last line was killed
after any byte of it. Or the power went, and of what was not synced some sectors are there and some are zeros.

The invariant. Damage is told, with the place and what to do, and nothing is changed; doing that makes the room usable
again, and no message in an inbox is lost. An end that was never whole is no damage: it is cut off, and the room goes on.
"""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest
from tests.support.files_by_hand import claim, send

from postroom.core.clock import ManualClock
from postroom.core.config import Config
from postroom.errors import RoomDamaged
from postroom.stores.contract import Query
from postroom.stores.files.log import SECTOR_BYTES, Log, LogRecord, line_of
from postroom.stores.files.store import FilesStore


@pytest.fixture
def log(tmp_path: Path) -> Iterator[Log]:
    """A log of twenty lines, nothing of it read."""
    with closing(Log(tmp_path, 5.0, 0o600)) as log:
        log.begin_anew([LogRecord(base=0)])
        log.reopen()
        list(log.read_on())
        for number in range(19):
            log.append(LogRecord(cells=[(f"cell {number}", number, "x" * (number * 37 % 150))]), sync=False)
        log.place = 0
        yield log


def lines_of(data: bytes) -> list[tuple[int, int]]:
    """Where each line begins and ends."""
    ends = [found.end() for found in re.finditer(rb"\n", data)]
    return list(zip([0, *ends], ends, strict=False))


def told_place(log: Log) -> int:
    with pytest.raises(RoomDamaged, match=f"{log.path} is damaged: its bytes ") as error:
        list(log.read_on())
    return int(re.findall(r"bytes (\d+) to", str(error.value))[0])


def test_a_bit_that_changed_anywhere_in_a_line_before_others_is_told(log: Log) -> None:
    data = log.path.read_bytes()
    with log.path.open("r+b", buffering=0) as file:
        for start, end in lines_of(data)[:-2]:  # without its newline, the last but one would be a beginning of the last
            for place in range(start, end):
                spoilt = data[place] ^ 1 << place % 8
                if spoilt == 0 and (place + 1) % SECTOR_BYTES == 0:
                    continue  # looks like the end of a sector that was never written
                os.pwrite(file.fileno(), bytes([spoilt]), place)
                assert told_place(log) == start
                os.pwrite(file.fileno(), data[place : place + 1], place)

    assert len(list(log.read_on())) == 20


def test_the_first_line_is_told_of_also_when_it_is_the_only_one(tmp_path: Path) -> None:
    with closing(Log(tmp_path, 5.0, 0o600)) as log:
        log.begin_anew([LogRecord(base=7)])
        log.reopen()
        log.path.write_bytes(log.path.read_bytes().replace(b"7", b"6"))

        assert told_place(log) == 0


def test_an_end_that_was_cut_anywhere_is_what_somebody_was_writing(log: Log) -> None:
    data, line = log.path.read_bytes(), line_of(LogRecord(cells=[("last", 1, "more")]))
    for size in range(len(line)):
        log.path.write_bytes(data + line[:size])
        log.place = 0
        assert len(list(log.read_on())) == 20
        assert log.place == len(data)


def test_sectors_that_a_power_cut_lost_are_no_damage(log: Log) -> None:
    """A file grows, and what was written last may be on the disk before what was written first."""
    data = log.path.read_bytes()
    lines = lines_of(data)
    tried = 0
    for _, synced in lines[:-1]:
        for boundary in range(SECTOR_BYTES, len(data), SECTOR_BYTES):
            begin = max(synced, boundary - SECTOR_BYTES)
            if begin < boundary:
                log.path.write_bytes(data[:begin] + bytes(boundary - begin) + data[boundary:])
                log.place = 0
                assert len(list(log.read_on())) == sum(end <= begin for _, end in lines)
                tried += 1
    assert tried > 20


def test_what_looks_like_damage_while_somebody_writes_is_looked_at_again_under_the_lock(
    log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = log.path.read_bytes()
    log.path.write_bytes(data.replace(b"cell 9", b"cell ?"))
    wait = log._wait_for

    def finish_writing(descriptor: int) -> None:
        log.path.write_bytes(data)
        wait(descriptor)

    monkeypatch.setattr(log, "_wait_for", finish_writing)

    assert len(list(log.read_on())) == 20


# Whole rooms


@pytest.fixture
def spoilt(tmp_path: Path) -> Path:
    """A room with six messages for bob, of which the second is acked; one bit of the line that stored the fourth is another."""
    root = tmp_path / "room"
    with closing(FilesStore(root, Config(), ManualClock())) as store:
        for number in range(3):
            send(store, payload={"n": number})
        before = (root / ".postroom/log").stat().st_size
        for number in range(3, 6):
            send(store, payload={"n": number})
        store.settle(claim(store, ids=(store.find(Query()).messages[1].id,))[0].ticket, "acked")
    with (root / ".postroom/log").open("r+b") as file:
        file.seek(before + 40)
        (byte,) = file.read(1)
        file.seek(before + 40)
        file.write(bytes([byte ^ 1]))
    return root


def everything(root: Path) -> dict[str, bytes]:
    """All files but those that say who looked when, and which numbers were given."""
    paths = [path for path in root.rglob("*") if path.is_file() and path.name not in ("turn", "bells", "keys")]
    return {str(path.relative_to(root)): path.read_bytes() for path in paths}


@pytest.mark.parametrize(
    "act",
    [
        claim,
        lambda store: store.find(Query()),
        lambda store: store.cell_write("a", 1),
        lambda store: store.sweep(),
        lambda store: send(store, idempotency_key="k"),
    ],
)
@pytest.mark.parametrize("booted", [False, True])
def test_who_needs_to_know_what_is_in_a_damaged_room_is_told_and_changes_nothing(
    spoilt: Path, act: Callable[[FilesStore], object], booted: bool
) -> None:
    clock = ManualClock()
    if booted:
        clock.reboot()
    before = everything(spoilt)

    for _ in range(2):
        with (
            pytest.raises(RoomDamaged, match="nothing was changed"),
            closing(FilesStore(spoilt, Config(), clock)) as store,
        ):
            act(store)

    assert everything(spoilt) == before


def test_who_died_in_a_damaged_room_leaves_nothing_to_be_done_by_halves(tmp_path: Path) -> None:
    """A process that knows the room reads the log again to let the tree follow."""
    root = tmp_path / "room"
    with closing(FilesStore(root, Config(), ManualClock())) as store:
        send(store)
        send(store)
        store.find(Query())
        log = root / ".postroom/log"
        log.write_bytes(log.read_bytes().replace(b"inbox/bob", b"inbox/rob"))
        (root / ".postroom/mark").write_bytes(bytes(8))

        with pytest.raises(RoomDamaged):
            claim(store)


def test_doing_what_the_error_says_makes_the_room_usable_again(spoilt: Path) -> None:
    with pytest.raises(RoomDamaged) as error, closing(FilesStore(spoilt, Config(), ManualClock())) as store:
        store.find(Query())
    (command,) = re.findall(r": (sed .*)$", str(error.value))
    subprocess.run(["sh", "-c", command], check=True)

    with closing(FilesStore(spoilt, Config(), ManualClock())) as store:
        assert sorted(each.message.payload["n"] for each in claim(store)) == [0, 2, 3, 4, 5]
        assert len(store.find(Query()).messages) == 6
    assert (spoilt / ".postroom/log.damaged").exists()
