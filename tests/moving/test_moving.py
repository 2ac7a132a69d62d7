"""Moves: everything arrives as it was, whatever kills the mover on the way, and old rooms say where they went."""

from __future__ import annotations

import random
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.moving.used_room import fill, seen
from tests.support.nats_servers import room_name, shared_server

import postroom
from postroom.core.clock import SYSTEM
from postroom.errors import RoomError, RoomMoved
from postroom.mail.gateway import Gateway
from postroom.moving import rooms
from postroom.moving.dump import Dump
from postroom.room import Room, open_even_if_moved
from postroom.stores.contract import BUCKETS, Want

POINTS = (
    "moving.marked",
    "moving.begun",
    "moving.restored",
    "moving.cell",
    "moving.file",
    "moving.copied",
    "moving.handed",
)


def at(address: str) -> Room:
    return open_even_if_moved(Gateway, address, True, SYSTEM, {})


def move(old: str, new: str) -> None:
    with at(old) as source, at(new) as target:
        rooms.move(source, target, settle=lambda _: None)


def killed_move(old: str, new: str, point: str = "", times: int = 0) -> bool:
    """Move in a process of its own, which dies at that point; whether it came to the end."""
    words = [sys.executable, "-m", "tests.moving.used_room", old, new, point, str(times)]
    done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode in (0, -9), done.stderr
    return done.returncode == 0


def nats_address() -> str:
    return f"nats://{shared_server().address}/{room_name()}"


@pytest.fixture
def note(tmp_path: Path) -> Path:
    path = tmp_path / "note.bin"
    path.write_bytes(bytes(range(256)) * 4000)
    return path


def used(address: str, count: int, note: Path) -> dict[str, object]:
    with postroom.open(address) as room:
        fill(room, count, note)
    with at(address) as room:
        return seen(room)


def rounds(tmp_path: Path) -> Iterator[str]:
    yield f"sqlite:{tmp_path / 'first'}"
    yield nats_address()
    yield f"files:{tmp_path / 'mail'}"
    yield f"sqlite:{tmp_path / 'last'}"


@pytest.mark.slow
def test_a_used_room_goes_round_all_stores_and_is_the_same_afterwards(tmp_path: Path, note: Path) -> None:
    first, *others = rounds(tmp_path)
    used(first, 200, note)
    before = first
    told: dict[str, object] | None = None
    for address in others:
        move(before, address)
        with postroom.open(address) as room:
            now = seen(room)
        assert told is None or now == told, f"{address} differs from {before}"
        told, before = now, address
    with postroom.open(before) as room:
        (message,) = [each for each in room.peek(agent="cy", limit=100) if "file" in each.payload]
        assert message.payload["file"]["bytes"] == note.stat().st_size


def test_what_was_claimed_is_ready_again_and_the_delivery_does_not_count(tmp_path: Path) -> None:
    old, new = f"sqlite:{tmp_path / 'old'}", f"sqlite:{tmp_path / 'new'}"
    with postroom.open(old) as room:
        id = room.agent("ada").send("bob", {"n": 1})
        (delivery,) = room.store.claim(Want(agent="bob", lease_s=3600)).deliveries
    move(old, new)
    with postroom.open(new) as room:
        message = room.get(id)
        assert (message.state, message.delivery_count) == ("stored", 0)
        assert [entry.event for entry in message.ledger] == ["stored", "claimed", "returned"]
        again = room.agent("bob").receive(5)
        assert again.id == id and again.token > delivery.ticket.token
        again.ack()
    with at(old) as room:
        assert room.get(id).state == "claimed", "the old room is left as it was"


def test_programs_that_open_the_old_room_are_told_the_new_address(tmp_path: Path) -> None:
    old, new = f"sqlite:{tmp_path / 'old'}", f"files:{tmp_path / 'new'}"
    with postroom.open(old) as room:
        room.agent("ada").send("bob", {"n": 1})
    running = postroom.open(old)
    move(old, new)

    with pytest.raises(RoomMoved, match=f"moved to {new}; use that address") as caught:
        postroom.open(old)
    assert caught.value.address == new
    running.gateway._next_mark_ns = 0  # 2.5 seconds later
    with pytest.raises(RoomMoved):
        running.agent("ada").send("bob", {"n": 2})
    running.store.close()
    running.close()
    with postroom.open(new) as room:
        assert room.agent("bob").receive(5).payload == {"n": 1}


@pytest.mark.parametrize("other", ["nats://x/y\x1b[2J\nEND WORDS", "x" * 10_000, 7])
def test_a_mark_that_others_wrote_puts_none_of_its_words_into_the_error(tmp_path: Path, other: object) -> None:
    old = f"sqlite:{tmp_path / 'old'}"
    with postroom.open(old) as room:
        room.store.cell_write("room/moved", {"is": "moved", "other": other, "process": "elsewhere:1:1"})

    with pytest.raises(RoomMoved) as caught:
        postroom.open(old)
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) < 1000


@pytest.mark.parametrize("point", POINTS)
def test_a_move_that_was_killed_leaves_one_room_to_be_used_and_is_finished_by_the_next(
    tmp_path: Path, point: str, note: Path
) -> None:
    old, new = f"sqlite:{tmp_path / 'old'}", f"files:{tmp_path / 'new'}"
    before = used(old, 30, note)
    assert not killed_move(old, new, point)

    if point == "moving.handed":
        with pytest.raises(RoomMoved, match="was moved"):
            postroom.open(old)
    else:
        with postroom.open(old) as room:
            assert seen(room) == before
        if point != "moving.marked":
            with pytest.raises(RoomMoved, match=f"is being filled by a move from {old}; .* `postroom move` again"):
                postroom.open(new)
    assert killed_move(old, new)
    with postroom.open(new) as room:
        assert _ids(seen(room)) == _ids(before)
    with pytest.raises(RoomMoved, match="was moved"):
        postroom.open(old)


def _ids(told: dict[str, object]) -> object:
    return [message["id"] for message in told["messages"]], told["dead"]  # type: ignore[attr-defined]


def test_a_room_that_was_used_after_a_killed_move_is_moved_as_it_is_then(tmp_path: Path, note: Path) -> None:
    old, new = f"sqlite:{tmp_path / 'old'}", f"sqlite:{tmp_path / 'new'}"
    used(old, 300, note)
    assert not killed_move(old, new, "moving.restored", 1)
    with postroom.open(old) as room:
        mail = room.agent("bob").receive(5)
        mail.ack()
        late = room.agent("ada").send("bob", {"n": "late"})
    assert killed_move(old, new)
    with postroom.open(new) as room:
        assert room.get(mail.id).state == "acked"
        assert room.get(late).payload == {"n": "late"}


LEGS = ("sqlite to nats", "nats to files", "files to sqlite")


@pytest.mark.slow
@pytest.mark.parametrize("leg", LEGS)
def test_a_move_killed_again_and_again_arrives_whole(tmp_path: Path, note: Path, leg: str) -> None:
    _leg_with_kills(tmp_path, note, LEGS.index(leg), messages=120, kills=2)


@pytest.mark.long
@pytest.mark.parametrize("leg", LEGS)
def test_ten_thousand_messages_arrive_whole_over_all_stores_with_seventeen_kills_on_each_leg(
    tmp_path: Path, note: Path, leg: str
) -> None:
    _leg_with_kills(tmp_path, note, LEGS.index(leg), messages=10_000, kills=16)


def _leg_with_kills(tmp_path: Path, note: Path, leg: int, messages: int, kills: int) -> None:
    """Take a used room to where the leg begins, and over it with kills."""
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    chance = random.Random(seed)
    first, before = f"sqlite:{tmp_path / 'used'}", ""
    used(first, messages, note)
    *ways, target = list(rounds(tmp_path))[: leg + 2]
    for address in ways:  # the first of these brings everything to rest
        move(before or first, address)
        before = address
    with postroom.open(before) as room:
        told = seen(room)
    for _ in range(kills):
        point = chance.choice(("moving.marked", "moving.begun", "moving.restored", "moving.cell", "moving.copied"))
        times = {"moving.restored": messages // 200 or 1, "moving.cell": 5}.get(point, 1)
        assert not killed_move(before, target, point, chance.randrange(times)), "it was to be killed"
    assert not killed_move(before, target, "moving.handed")
    assert killed_move(before, target)
    with postroom.open(target) as room:
        assert seen(room) == told, f"{target} differs from {before}"


def test_a_move_into_a_used_room_or_itself_is_refused_and_changes_nothing(tmp_path: Path) -> None:
    old, new = f"sqlite:{tmp_path / 'old'}", f"sqlite:{tmp_path / 'new'}"
    for address in (old, new):
        with postroom.open(address) as room:
            room.agent("ada").send("bob", {"n": address})

    with pytest.raises(RoomError, match="has messages already; move into a new room"):
        move(old, new)
    with pytest.raises(RoomError, match="is the room itself"):
        move(old, old)
    with postroom.open(old) as room:
        assert room.agent("bob").receive(5).payload == {"n": old}


def test_a_store_that_cannot_take_over_messages_is_refused_with_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with postroom.open(f"sqlite:{tmp_path / 'old'}") as room:
        room.agent("ada").send("bob", {"n": 1})
    with at(f"files:{tmp_path / 'new'}") as target, at(f"sqlite:{tmp_path / 'old'}") as source:
        monkeypatch.setattr(type(target.store), "restores", False)
        with pytest.raises(RoomError, match="FilesStore.* cannot take over messages of another room"):
            rooms.move(source, target)


@pytest.mark.parametrize("way", ["sqlite", "files", "backup"])
def test_limits_and_pauses_arrive_and_rates_begin_anew(tmp_path: Path, way: str) -> None:
    old, new = f"sqlite:{tmp_path / 'old'}", f"{'files' if way == 'files' else 'sqlite'}:{tmp_path / 'new'}"
    with postroom.open(old) as room:
        ada, bob = room.agent("ada", transient=True), room.agent("bob", transient=True)
        room.limit("jobs", per_s=0.0001, burst=1)
        room.limit("jobs", concurrent=4, by="sender", waiting=3, pass_failed=True)
        room.pause(agent="eve", reason="it runs wild", by="mia")
        for number in range(2):
            ada.send(None, {"n": number}, channel="jobs")
        bob.receive(5, channels=["jobs"]).ack()
        assert bob.poll(channels=["jobs"]) is None and room.store.cell_scan(f"{BUCKETS}/")
        limits = room.limits()
        if way == "backup":
            rooms.backup(room, tmp_path / "file.backup")
    if way == "backup":
        with postroom.open(new) as room:
            rooms.restore(room, Dump(tmp_path / "file.backup"))
    else:
        move(old, new)

    with postroom.open(new) as room:
        assert room.limits() == limits
        assert room.store.cell_scan(f"{BUCKETS}/") == []
        assert room.agent("bob").receive(5, channels=["jobs"]).payload == {"n": 1}
        room.agent("ada").send(None, {"n": 2}, channel="jobs")
        assert room.agent("bob").poll(channels=["jobs"]) is None
