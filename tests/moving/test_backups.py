"""Exports and backups: whole while the room is used, refused when they are not, and the same room afterwards."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import re
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.moving.used_room import fill, seen
from tests.support import ROOT
from tests.support.nats_servers import room_name, shared_server

import postroom
from postroom.core.message import Draft, MessageWithLedger, check
from postroom.errors import RoomDamaged, RoomError, RoomUnreachable
from postroom.moving import rooms
from postroom.moving.dump import Dump, DumpWriter, path_problem
from postroom.room import Room
from postroom.stores.contract import Want


def restored(dump: Path, address: str, **how: Any) -> Room:
    room = postroom.open(address)
    try:
        rooms.restore(room, Dump(dump), **how)
    except BaseException:
        room.close()
        raise
    return room


@pytest.fixture
def note(tmp_path: Path) -> Path:
    path = tmp_path / "note.bin"
    path.write_bytes(b"0123456789" * 100_000)
    return path


def addresses(tmp_path: Path) -> list[str]:
    return [f"sqlite:{tmp_path / 'b'}", f"files:{tmp_path / 'c'}", f"nats://{shared_server().address}/{room_name()}"]


@pytest.mark.slow
def test_a_backup_restores_to_the_same_room_in_every_store(tmp_path: Path, note: Path) -> None:
    backup = tmp_path / "room.backup"
    with postroom.open(f"sqlite:{tmp_path / 'a'}") as room:
        fill(room, 60, note)
        counts = rooms.backup(room, backup)
        assert counts["messages"] == room.count(state=None) and counts["files"] >= 1
    assert backup.stat().st_mode & 0o777 == 0o600
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []
    told = []
    for address in addresses(tmp_path):
        with restored(backup, address) as copy:
            told.append(seen(copy))
            again = tmp_path / f"again-{len(told)}"
            rooms.backup(copy, again)
            assert Dump(again).counts["messages"] == counts["messages"]
            if copy.folder is not None:
                (mail,) = [each for each in copy.peek(agent="cy", limit=100) if "file" in each.payload]
                assert copy.artifact(mail.payload["file"]).read_bytes() == note.read_bytes()
    for each in told:  # restored at another moment: what a restore itself writes has its own times
        for message in each["messages"]:
            del message["token"], message["ledger"]
    assert told[0] == told[1] == told[2]


def test_tokens_after_a_restore_are_larger_than_any_that_were_given_since_the_backup(tmp_path: Path) -> None:
    with postroom.open(f"sqlite:{tmp_path / 'a'}", max_deliveries=1000) as room:
        id = room.agent("ada").send("bob", {"n": 1})
        rooms.backup(room, tmp_path / "backup")
        given = [room.store.claim(Want(agent="bob", lease_s=30, ids=(id,))).deliveries[0].ticket]
        while len(given) < 50:
            room.store.settle(given[-1], "retry")
            given.append(room.store.claim(Want(agent="bob", lease_s=30, ids=(id,))).deliveries[0].ticket)
    with restored(tmp_path / "backup", f"sqlite:{tmp_path / 'b'}") as copy:
        taken = copy.agent("bob").receive(5)
        assert taken.id == id and taken.token > given[-1].token


def test_every_field_of_a_message_is_in_an_export_under_its_name(tmp_path: Path) -> None:
    with postroom.open(f"sqlite:{tmp_path / 'a'}") as room:
        room.agent("ada").send("bob", {"n": 1}, ttl_s=60, correlation_id="talk")
        file = io.BytesIO()
        rooms.export(room, file)
        (message,) = [
            json.loads(line)["message"] for line in file.getvalue().splitlines() if b'"message":' in line[:12]
        ]
        kept = room.get(message["id"])
    assert {*message} == {*MessageWithLedger.__struct_fields__, "state"}
    assert msgspec.convert(message, MessageWithLedger) == kept


def _under_load(tmp_path: Path, backups: int, pause_s: float = 0.001) -> None:
    address = f"sqlite:{tmp_path / 'a'}"
    stop = threading.Event()

    def work(name: str) -> None:
        with postroom.open(address) as room:
            store, want = room.store, Want(agent=name, lease_s=30)
            while not stop.wait(pause_s):
                store.put([check(Draft(from_agent="ada", to_agent=name, payload={"n": 1}))])
                for delivery in store.claim(want).deliveries:
                    answer = Draft(from_agent=name, to_agent="ada", payload={"re": 1}, answer_to=delivery.message.id)
                    store.settle(delivery.ticket, "answered", puts=[check(answer)])

    with postroom.open(address) as room:
        workers = [threading.Thread(target=work, args=(f"worker-{number}",)) for number in range(2)]
        for worker in workers:
            worker.start()
        try:
            for number in range(backups):
                rooms.backup(room, tmp_path / "backup")
                with restored(tmp_path / "backup", f"sqlite:{tmp_path / f'copy-{number}'}") as copy:
                    _is_whole(copy)
        finally:
            stop.set()
            for worker in workers:
                worker.join()


def _is_whole(room: Room) -> None:
    """At one moment every answered question has its answer, and every answer an answered question."""
    messages = {message.id: message for message in room.peek(state=None, limit=1_000_000)}
    answered = {id for id, message in messages.items() if message.state == "answered"}
    assert {message.answer_to for message in messages.values() if message.answer_to} == answered
    assert room.store.faults(60) == []  # type: ignore[attr-defined]


@pytest.mark.slow
def test_a_backup_under_load_restores_whole(tmp_path: Path) -> None:
    _under_load(tmp_path, 3)


@pytest.mark.long
def test_a_hundred_backups_under_load_restore_whole(tmp_path: Path) -> None:
    _under_load(tmp_path, 100, pause_s=0.03)


# Files that are not whole


@pytest.fixture
def backup(tmp_path: Path) -> Path:
    with postroom.open(f"sqlite:{tmp_path / 'a'}") as room:
        room.agent("ada").send("bob", {"n": 1})
        rooms.backup(room, tmp_path / "backup")
    return tmp_path / "backup"


def _rewritten(backup: Path, change: Callable[[bytes], bytes]) -> None:
    backup.write_bytes(gzip.compress(change(gzip.decompress(backup.read_bytes()))))


def _flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 0x10
    path.write_bytes(data)


def _be_a_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


SPOILT: dict[str, tuple[Callable[[Path], object], str]] = {
    "cut off": (lambda path: path.write_bytes(path.read_bytes()[:-40]), "is cut off or spoilt"),
    "without its last line": (lambda path: _rewritten(path, lambda text: text[: text.rindex(b'{"end"')]), "cut off: its last line"),
    "empty": (lambda path: path.write_bytes(b""), "is empty"),
    "another file": (lambda path: path.write_bytes(b"PK\3\4 not a backup"), "is neither an export nor a backup"),
    "JSON of another program": (lambda path: path.write_text('{"a": 1}\n'), "is neither an export nor a backup"),
    "a changed letter": (lambda path: _rewritten(path, lambda text: text.replace(b'"n":1', b'"n":2')), "does not match its checksum"),
    "a flipped bit": (_flip, "spoilt|cut off|JSON|cannot be used"),
    "a newer version": (lambda path: _rewritten(path, lambda text: text.replace(b'"version":1', b'"version":9', 1)), "version 9 .*upgrade"),
    "a folder": (_be_a_folder, "cannot be read"),
    "missing": (lambda path: path.unlink(), "cannot be read: No such file"),
}  # fmt: skip


@pytest.mark.parametrize("how", SPOILT)
def test_a_file_that_is_not_whole_is_refused_with_what_is_wrong(how: str, backup: Path, tmp_path: Path) -> None:
    spoil, words = SPOILT[how]
    spoil(backup)

    with pytest.raises((RoomDamaged, RoomUnreachable), match=words):
        Dump(backup)


def _hostile(path: Path, *records: dict[str, Any]) -> None:
    """An export with a right checksum and wrong content."""
    with path.open("wb") as file:
        writer = DumpWriter(file, "room", 0)
        for record in records:
            writer._write(record)
        writer.end()


@pytest.mark.parametrize(
    "place",
    ["../evil", "/etc/passwd", "artifacts/../../evil", "artifacts/evil", "sessions/../evil/x", "sessions/a/./b", "messages.db",
     "sessions/a/..", "sessions//a", "sessions/a/b\0c", "lock", "", "sessions/" + "a/" * 40 + "b", 7, None],
)  # fmt: skip
def test_no_file_of_an_export_leaves_its_place(place: Any, tmp_path: Path) -> None:
    assert path_problem(place)
    _hostile(tmp_path / "dump", {"file": {"path": place, "at": 0, "data": "AAAA"}})
    with pytest.raises(RoomDamaged, match="line 2"):
        Dump(tmp_path / "dump")


def test_a_link_in_the_room_is_not_followed_and_false_attachments_are_left_out(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    digest = hashlib.sha256(b"right").hexdigest()
    _hostile(
        tmp_path / "dump",
        {"file": {"path": f"artifacts/{'0' * 64}", "at": 0, "data": "AAAA"}},
        {"file": {"path": f"artifacts/{digest}", "at": 0, "data": "cmlnaHQ="}},
    )
    with postroom.open(f"sqlite:{tmp_path / 'room'}") as room:
        filling = rooms.restore(room, Dump(tmp_path / "dump"))
        assert filling.left_out == 1
        assert room.artifact(f"sha256:{digest}").read_bytes() == b"right"
    linked = tmp_path / "linked"
    with postroom.open(f"sqlite:{linked}") as room:
        (linked / "artifacts").symlink_to(outside)
        with pytest.raises(RoomUnreachable, match="is not a usable folder"):
            rooms.restore(room, Dump(tmp_path / "dump"))
    assert [*outside.iterdir()] == []


def test_the_marks_of_a_room_are_not_taken_from_a_file(tmp_path: Path) -> None:
    mark = {"is": "moved", "other": "sqlite:/elsewhere", "process": ""}
    _hostile(tmp_path / "dump", {"cell": {"name": "room/moved", "value": mark}}, {"cell": {"name": "x", "value": 1}})
    with restored(tmp_path / "dump", f"sqlite:{tmp_path / 'room'}") as room:
        assert [cell.name for cell in room.store.cell_scan("")] == ["x"]
    with postroom.open(f"sqlite:{tmp_path / 'room'}") as room:
        assert room.stats().states["stored"] == 0


@pytest.mark.parametrize("field", ["id", "ledger", "priority", "exact_state", "payload"])
def test_a_message_that_is_none_is_refused_with_its_line(field: str, backup: Path, tmp_path: Path) -> None:
    lines = [json.loads(line) for line in gzip.decompress(backup.read_bytes()).splitlines()]
    (record,) = [line for line in lines if "message" in line]
    record["message"][field] = 77
    _hostile(tmp_path / "dump", record)

    with pytest.raises(RoomDamaged, match=r"has a line that cannot be used .*, at line 2; nothing was changed"):
        Dump(tmp_path / "dump")


def test_a_room_that_has_messages_is_not_restored_into_unless_told_so(backup: Path, tmp_path: Path) -> None:
    address = f"files:{tmp_path / 'used'}"
    with postroom.open(address) as room:
        own = room.agent("cy").send("bob", {"n": "own"})
        with pytest.raises(RoomError, match="has messages already; .* --merge .*Nothing was changed"):
            rooms.restore(room, Dump(backup))
        assert [message.id for message in room.peek(agent="bob")] == [own]
        for _ in range(2):
            rooms.restore(room, Dump(backup), merge=True)
        assert [message.payload["n"] for message in room.peek(agent="bob")] == ["own", 1]


def test_a_backup_that_cannot_be_written_leaves_the_older_one_as_it_was(backup: Path, tmp_path: Path) -> None:
    before = backup.read_bytes()
    with postroom.open(f"sqlite:{tmp_path / 'a'}") as room:

        def fail(kind: str, count: int) -> None:
            raise RoomError("the disk is gone")

        with pytest.raises(RoomError, match="the disk is gone"):
            rooms.backup(room, backup, fail)
        with pytest.raises(RoomUnreachable, match="cannot be written: No such file"):
            rooms.backup(room, tmp_path / "nowhere" / "backup")
    assert backup.read_bytes() == before
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []


def test_the_program_of_the_page_lists_the_dead_letters_of_an_export(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    page = (ROOT / "docs/operations/export.md").read_text(encoding="utf-8")
    (program,) = re.findall(r"```python\n(.*?)```", page, re.S)
    with postroom.open(f"sqlite:{tmp_path / 'a'}") as room, (tmp_path / "room.jsonl").open("wb") as file:
        id = room.agent("ada").send("bob", {"n": 1})
        room.agent("ada").send("bob", {"n": 2})
        room.agent("bob").receive(5).dead("no such file")
        rooms.export(room, file)
    monkeypatch.chdir(tmp_path)
    exec(compile(program, "export.md", "exec"), {})

    assert capsys.readouterr().out == f"{id} no such file\n"
