"""Kills in the middle of an upgrade, at every call to the disk.

The story. A process opens a room of layout 1 and is killed in the middle of each single call by which SQLite touches the
disk, or before each call to the system that changes a file of a files room. Another process then opens the room.

The invariant. The room has today's layout then, and everything that was in it; a copy of layout 1 was kept, or more
than one.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from pathlib import Path

import pytest
from tests.stores.test_upgrades import copies, is_whole, layout_of, unpack

from .support import SOME_AND_ALL, Nursery, copy_room

NOBODY = 65534


@pytest.mark.slow
@SOME_AND_ALL
@pytest.mark.parametrize("kind", ["sqlite", "files"])
def test_a_kill_in_any_call_of_an_upgrade_leaves_a_room_that_opens(kind: str, every: int, tmp_path: Path) -> None:
    program = "steps" if kind == "sqlite" else "files"
    nursery = Nursery(tmp_path / "children.log", program)
    old = unpack(kind, 1, tmp_path / "old")
    try:
        for at in range(1, 2000, every):
            room = copy_room(old, tmp_path / f"room{at}")
            notes = str(tmp_path / f"journal{at}")
            pid = nursery.fork(f"{program}.die_while_opening", folder=str(room), at=at, journal=notes)
            status = nursery.wait(pid)
            assert status in (0, -9), nursery.log()
            is_whole(kind, room)
            kept = [name for name in copies(kind, room) if not name.endswith(".new")]
            assert 1 <= len(kept) <= 2
            assert copies(kind, room) == kept
            if status == 0:
                break
    finally:
        nursery.close()
    assert at > 30, "an upgrade takes more calls than that"


@pytest.mark.parametrize("what", ["messages.db", "."])
def test_a_room_that_one_may_only_read_is_not_upgraded_and_that_is_told(what: str, tmp_path: Path) -> None:
    place = Path(tempfile.mkdtemp(prefix="postroom-"))
    nursery = Nursery(tmp_path / "children.log", "fullness")
    try:
        place.chmod(0o755)
        room, out = unpack("sqlite", 1, place / "room"), place / "said"
        out.write_text("")
        out.chmod(0o666)
        for path in (room, *room.rglob("*")) if os.geteuid() == 0 else ():
            os.chown(path, NOBODY, NOBODY)
        (room / what).chmod(0o444 if what != "." else 0o555)
        nursery.finish(nursery.fork("fullness.as_a_reader", folder=str(room), out=str(out), user=NOBODY))
        said = json.loads(out.read_text())
        assert said["error"] == "RoomUnreachable"
        assert "has layout 1, and reading it requires an upgrade to layout 3: you may not write there" in said["text"]
        assert copies("sqlite", room) == []
        assert layout_of("sqlite", room) == 1
    finally:
        nursery.close()
        shutil.rmtree(place)
