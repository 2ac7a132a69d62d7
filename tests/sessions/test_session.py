"""A session: who is in it, how it fails (once, for everybody), and how it ends."""

from __future__ import annotations

import json
import shutil
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.support.patience import until

import postroom
from postroom.core.clock import ManualClock, from_iso
from postroom.core.system.watch import LISTENER
from postroom.room import Room
from postroom.room import open_room as postroom_open
from postroom.sessions.members import prefix_of
from postroom.sessions.record import read_failed_file


def test_a_session_has_an_id_a_time_a_folder_and_mailboxes(room: Room) -> None:
    with room.session() as session:
        assert from_iso(session.timestamp) == room.clock.wall_ms()
        assert session.dir.is_dir()
        assert session.dir.stat().st_mode & 0o077 == 0
        assert isinstance(session.mailbox, postroom.Mailroom)
        assert session.failure is None
        session.check_failed()


def test_sessions_opened_at_the_same_moment_have_different_ids(room: Room) -> None:
    ids = {room.session().id for _ in range(50)}

    assert len(ids) == 50


@pytest.mark.parametrize(
    ("joins", "nth"), [(joins, nth) for joins, writes in ((False, 4), (True, 3)) for nth in range(1, writes + 1)]
)
def test_one_who_could_not_come_in_leaves_no_member_and_no_session_behind(
    room: Room, monkeypatch: pytest.MonkeyPatch, joins: bool, nth: int
) -> None:
    """A member that nobody plays would count as one that can act: no deadlock would be found any more."""
    opened = room.session() if joins else None
    members = room.store.cell_scan("member:")
    write, count = room.store.cell_write, iter(range(1, 100))

    def busy_once(*args: Any, **kwargs: Any) -> int | None:
        if next(count) == nth:
            raise postroom.RoomBusy
        return write(*args, **kwargs)

    with monkeypatch.context() as patch:
        patch.setattr(room.store, "cell_write", busy_once)
        with pytest.raises(postroom.RoomBusy):
            room.session(opened.id, name="late") if opened else room.session()

    assert [cell.name for cell in room.store.cell_scan("member:")] == [cell.name for cell in members]
    going_on = [cell for cell in room.store.cell_scan("session:") if cell.value["ended_ms"] is None]
    assert len(going_on) == (1 if opened else 0)


def test_session_failure_tracking(room: Room) -> None:
    with room.session() as session:
        try:
            raise ValueError("boom")
        except ValueError as error:
            session.mark_failed(error)

        failure = session.failure
        assert failure is not None
        assert (failure.message, failure.worker) == ("boom", "caller")
        assert "raise ValueError" in failure.stack
        with pytest.raises(postroom.SessionFailed, match=f"^Session {session.id} failed: boom$") as caught:
            session.check_failed()
        assert caught.value.failure == failure


def test_throw_with_error_wrapping(room: Room) -> None:
    """Whatever is thrown, also a plain text, reaches everybody as an error with that message."""
    with room.session() as session:
        session.mark_failed("it went wrong")

        with pytest.raises(postroom.SessionFailed, match="failed: it went wrong$"):
            session.mailbox.box.receive(0)
        with pytest.raises(postroom.InvalidMessage, match="must be an exception or a text"):
            session.mark_failed(7)  # type: ignore[arg-type]


def test_mailbox_session_integration(room: Room, in_background: Any) -> None:
    """A failure aborts pending receives and refuses sends, which store nothing."""
    with room.session() as session:
        pending = [in_background(lambda: session.mailbox.never.receive(None)) for _ in range(3)]
        timed = in_background(lambda: session.mailbox.never.receive(60_000))
        until(lambda: room.store.cell_scan("member:") != [])
        session.mark_failed("boom")

        for call in (*pending, timed):
            with pytest.raises(postroom.SessionFailed, match="boom"):
                call.result()
        stored = room.stats().states["stored"]
        with pytest.raises(postroom.SessionFailed, match="boom"):
            session.mailbox.tasks.send(1)
        assert room.stats().states["stored"] == stored
        with pytest.raises(postroom.SessionFailed, match="boom"):
            session.delegate([])


def test_a_failed_session_gives_no_mail(room: Room) -> None:
    with room.session() as session:
        session.mailbox.box.send(1)
        session.mark_failed("boom")

        with pytest.raises(postroom.SessionFailed):
            session.mailbox.box.receive(0)


def test_the_first_failure_stands(room: Room) -> None:
    with room.session() as session:
        threads = [threading.Thread(target=session.mark_failed, args=(f"number {n}",)) for n in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        first = session.failure
        session.mark_failed("too late")

        assert session.failure == first
        assert first is not None
        assert json.loads((session.dir / ".failed").read_text(encoding="utf-8"))["message"] == first.message


def test_the_failed_file_tells_all_and_is_never_half_written(room: Room) -> None:
    with room.session() as session:
        session.mark_failed(ValueError("b\N{BOMB}om"))

        said = json.loads((session.dir / ".failed").read_text(encoding="utf-8"))
        assert sorted(said) == ["message", "stack", "timestamp", "worker"]
        assert said["message"] == "b\N{BOMB}om"
        assert [path.name for path in session.dir.iterdir()] == [".failed"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"message": "stop it", "worker": "bob"}', "stop it"),
        ('{"error": "as the source wrote it"}', "as the source wrote it"),
        ("", "is empty"),
        ("{broken", "{broken"),
        ("[1, 2]", "[1, 2]"),
        ("{}", "without a message"),
        ('{"message": 7}', "without a message"),
        ("\udcff\udcfe", "xff"),
    ],
)
def test_a_failed_file_made_by_hand_fails_the_session(room: Room, in_background: Any, text: str, message: str) -> None:
    with room.session() as session:
        pending = in_background(lambda: session.mailbox.never.receive(600_000))
        (session.dir / ".failed").write_bytes(text.encode("utf-8", "surrogateescape"))

        with pytest.raises(postroom.SessionFailed) as caught:
            pending.result()
        assert message in str(caught.value)


def test_a_failed_file_that_is_written_slowly_is_read_when_it_is_whole(room: Room) -> None:
    with room.session() as session:
        with open(session.dir / ".failed", "w", encoding="utf-8") as file:
            file.write('{"message": ')
            file.flush()
            file.write('"whole"}')
        until(lambda: session.failure is not None)

        assert session.failure is not None
        assert session.failure.message == "whole"


def test_joining_a_failed_session_says_so_at_once(room: Room) -> None:
    with room.session() as session:
        session.mark_failed("boom")

        with pytest.raises(postroom.SessionFailed, match="boom"):
            room.session(session.id)


def test_joining_looks_at_the_folder_too(room: Room) -> None:
    session = room.session()
    session._undo.pop()()  # nobody watches the folder any more
    (session.dir / ".failed").write_text("by hand", encoding="utf-8")

    with pytest.raises(postroom.SessionFailed, match="by hand"):
        room.session(session.id)
    assert session.failure is not None


def test_members_share_the_mailboxes_and_the_failure(open_room: Callable[..., Room]) -> None:
    one = open_room().session()
    other = open_room().session(one.id, name="bob")
    one.mailbox.box.send(1)

    assert other.mailbox.box.receive(0) == 1
    assert (other.timestamp, other.dir, other.name) == (one.timestamp, one.dir, "bob")
    other.mark_failed("boom")
    with pytest.raises(postroom.SessionFailed, match="boom"):
        one.check_failed()


@pytest.mark.parametrize("id", ["nope", "../..", "20260101-000000-000000"])
def test_a_session_that_is_not_there_is_unknown(room: Room, id: str) -> None:
    with pytest.raises(postroom.UnknownSession, match="there is no session"):
        room.session(id)


def test_when_the_opener_leaves_the_session_has_ended(open_room: Callable[..., Room], in_background: Any) -> None:
    room = open_room()
    with room.session() as session:
        other = open_room().session(session.id)
        pending = in_background(lambda: other.mailbox.never.receive(600_000))
        until(lambda: pending.running)

    with pytest.raises(postroom.SessionEnded, match="has ended"):
        pending.result()
    with pytest.raises(postroom.SessionEnded):
        other.mailbox.box.send(1)
    with pytest.raises(postroom.SessionEnded):
        room.session(session.id)
    other.cleanup()
    session.cleanup()
    assert room.store.cell_scan("member:") == []


def test_when_another_leaves_the_session_goes_on(open_room: Callable[..., Room]) -> None:
    with open_room().session() as session:
        with open_room().session(session.id) as other:
            other.mailbox.box.send(1)

        assert session.mailbox.box.receive(0) == 1
        session.check_failed()


def test_one_who_has_left_neither_sends_nor_receives(open_room: Callable[..., Room]) -> None:
    with open_room().session() as session:
        other = open_room().session(session.id, name="bob")
        other.cleanup()

        for call in (
            lambda: other.mailbox.box.send(1),
            lambda: other.mailbox.box.receive(0),
            lambda: other.delegate([]),
        ):
            with pytest.raises(postroom.SessionEnded, match="bob has left session"):
                call()


@pytest.mark.parametrize("waited_s", [0, 2])
def test_one_who_leaves_while_a_thread_of_it_waits_takes_nothing_any_more(
    open_room: Callable[..., Room], clock: ManualClock, in_background: Any, pass_time: Any, waited_s: float
) -> None:
    with open_room().session() as session:
        other = open_room().session(session.id, name="bob")
        pending = in_background(other.mailbox.box.receive)
        until(lambda: bool(other._member._waits))
        clock.advance(waited_s)
        other.cleanup()
        pass_time(pending)
        session.mailbox.box.send("for somebody who is here")

        with pytest.raises(postroom.SessionEnded, match="bob has left session"):
            pending.result()
        assert session.mailbox.box.receive(0) == "for somebody who is here"


@pytest.mark.parametrize("error", [ValueError("boom"), KeyboardInterrupt(), SystemExit(3)])
def test_a_block_that_raises_fails_the_session(open_room: Callable[..., Room], error: BaseException) -> None:
    session = open_room().session()
    other = open_room().session(session.id)

    with pytest.raises(type(error)), session:
        raise error

    with pytest.raises(postroom.SessionFailed):
        other.check_failed()


def test_closing_the_room_ends_its_sessions(open_room: Callable[..., Room]) -> None:
    room = open_room()
    session = room.session()
    other = open_room().session(session.id)
    room.close()

    with pytest.raises(postroom.SessionEnded):
        other.check_failed()


def test_a_memory_rooms_session_folders_go_with_the_room() -> None:
    with postroom_open("memory:") as room:
        session = room.session()
        session.mark_failed("boom")
        assert (session.dir / ".failed").exists()

    assert not session.dir.exists()


def test_a_memory_rooms_session_folder_goes_after_the_last_callback_of_its_watch(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    running, removed_while_running = threading.Event(), []

    def slow_read(*args: Any) -> Any:
        running.set()
        time.sleep(0.2)
        try:
            return read_failed_file(*args)
        finally:
            running.clear()

    def remove(folder: Path, **kwargs: Any) -> None:
        removed_while_running.append(running.is_set())
        rmtree(folder, **kwargs)

    rmtree = shutil.rmtree
    monkeypatch.setattr("postroom.sessions.session.read_failed_file", slow_read)
    monkeypatch.setattr(shutil, "rmtree", remove)

    with postroom_open("memory:") as room:
        session = room.session()
        session.mark_failed("boom")
        assert running.wait(10)

    assert removed_while_running == [False]
    assert not session.dir.exists()


def test_a_member_whose_leaving_could_not_be_written_leaves_when_its_room_closes(
    open_room: Callable[..., Room], monkeypatch: pytest.MonkeyPatch
) -> None:
    opener, joiner = open_room(), open_room()

    def fail(*_: object, **__: object) -> None:
        raise postroom.RoomBusy("the disk is full")

    with opener.session() as session:
        member = joiner.session(session.id)
        with monkeypatch.context() as patch:
            patch.setattr(joiner.store, "cell_write", fail)
            member.cleanup()
        assert len(members_of(opener, session.id)) == 2
        joiner.close()
        assert len(members_of(opener, session.id)) == 1


def members_of(room: Room, session_id: str) -> list[str]:
    return [cell.name for cell in room.store.cell_scan(prefix_of(session_id))]


def test_folders_of_sessions_lie_in_the_room(tmp_path: Path) -> None:
    with postroom_open(tmp_path / "r") as room:
        session = room.session()

    assert session.dir.parent == tmp_path / "r" / "sessions"
    assert session.dir.exists()


def test_nothing_is_left_open_after_many_sessions(room: Room, not_let_go: Callable[[], list[object]]) -> None:
    def once() -> None:
        with room.session() as session:
            session.mailbox.box.send(1)
            session.mailbox.box.receive(0)

    for _ in range(20):
        once()

    assert not_let_go() == []
    until(lambda: LISTENER._watch is None and LISTENER._told < 0)  # its thread is over, and has closed its own


def test_names_of_members_are_checked(room: Room) -> None:
    session = room.session()
    with pytest.raises(postroom.InvalidMessage, match="name"):
        room.session(session.id, name="a\nb")
