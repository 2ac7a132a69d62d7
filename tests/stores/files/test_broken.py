"""What lies in the inboxes of a room in files and can never be a message: it is set aside, and stops nobody."""

from __future__ import annotations

import json
import os
import re
from contextlib import closing
from pathlib import Path

import pytest
from tests.support.files_by_hand import SAMPLE, claim, drop, send

from postroom.core.clock import SYSTEM, ManualClock
from postroom.core.config import Config
from postroom.errors import RoomDamaged
from postroom.stores.contract import Query
from postroom.stores.files.store import FilesStore


@pytest.mark.parametrize("place", [b"bob/caf\xe9.json", b"b\xf6b/x.json", b"_channel/b\xf6b/x.json"])
def test_a_name_that_is_not_utf8_is_set_aside_and_disturbs_nobody(
    store: FilesStore, root: Path, clock: ManualClock, place: bytes
) -> None:
    path = root / "inbox" / os.fsdecode(place)
    drop(path, SAMPLE)
    good = send(store)
    assert [each.message.id for each in claim(store)] == [good]
    for _ in range(12):
        assert claim(store) == []
        clock.advance(1)

    assert not path.exists()
    rejected, reason = sorted((root / ".postroom/rejected").iterdir())
    assert json.loads(rejected.read_text()) == SAMPLE
    assert re.search(r"\\udc(e9|f6).*: .*not UTF-8", reason.read_text())
    with closing(FilesStore(root, Config(), clock)) as again:
        assert len(again.find(Query()).messages) == 1


def test_a_signal_whose_name_is_not_utf8_stays_where_it_is_read(
    store: FilesStore, root: Path, clock: ManualClock
) -> None:
    path = drop(root / "outbox/bob" / os.fsdecode(b"f\xfcr-ada.json"), {**SAMPLE, "to": "ada"})
    for _ in range(12):
        assert claim(store, "ada") == []
        clock.advance(1)

    assert path.exists()


def look_once(root: Path, monkeypatch: pytest.MonkeyPatch, seconds_later: float) -> None:
    """What a command does that starts so much later, looks, and ends."""
    later = ManualClock(SYSTEM.wall_ms() + round(seconds_later * 1000))
    with monkeypatch.context() as machine, closing(FilesStore(root, Config(), ManualClock())) as store:
        machine.setattr("postroom.stores.files.tree.SYSTEM", later)
        assert claim(store) == []


def test_a_broken_file_is_set_aside_also_when_nobody_stays_to_count_the_seconds(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = drop(root / "inbox/bob/x.json", "{")
    for seconds in (0, 4, 8):
        look_once(root, monkeypatch, seconds)
        assert path.exists()

    look_once(root, monkeypatch, 11)

    assert not path.exists()
    assert "not JSON" in next((root / ".postroom/rejected").glob("*.reason.txt")).read_text()


def test_a_file_that_looks_old_because_it_was_copied_with_its_time_has_its_ten_seconds(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = drop(root / "inbox/bob/x.json", '{"payload": {"n":')
    os.utime(path, (0, 0))
    look_once(root, monkeypatch, 8)
    with path.open("a") as file:
        file.write(" 1}}")

    with closing(FilesStore(root, Config(), ManualClock())) as store:
        assert [each.message.payload for each in claim(store)] == [{"n": 1}]


@pytest.mark.parametrize(("name", "value"), [("base_ns", 10**23), ("base_ns", -(2**62)), ("salt", -1), ("salt", 2**60)])
def test_numbers_that_no_room_has_are_refused_in_a_sentence(root: Path, name: str, value: int) -> None:
    FilesStore(root, Config(), SYSTEM).close()
    file = root / ".postroom" / "room.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), name: value}))
    with pytest.raises(RoomDamaged, match="numbers that no room has"):
        FilesStore(root, Config(), SYSTEM)
