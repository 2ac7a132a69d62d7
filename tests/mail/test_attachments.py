"""Attached files go with the last message that refers to them, and none goes before."""

from __future__ import annotations

import fcntl
import os
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from postroom import Room, UnknownMessage
from postroom.core import crashpoints
from postroom.core.clock import ManualClock
from postroom.mail import attachments

pytestmark = pytest.mark.parametrize("url", ["sqlite", "files"], indirect=True)


@pytest.fixture
def attach(room: Room, tmp_path: Path, clock: ManualClock) -> Callable[..., dict[str, Any]]:
    """Attaches a file as if it had been two days ago."""

    def attach(text: str, *, age_s: float = 2 * 86_400) -> dict[str, Any]:
        (tmp_path / "file.txt").write_text(text)
        reference = room.attach(tmp_path / "file.txt")
        then_s = clock.wall_ms() / 1000 - age_s
        os.utime(reference["path"], (then_s, then_s))
        return reference

    return attach


def folder_of(room: Room) -> Path:
    assert room.folder is not None
    return attachments.folder_for(room.folder)


def tidy(room: Room) -> int:
    return attachments.tidy(room.store, folder_of(room))


def is_kept(room: Room, reference: dict[str, Any]) -> bool:
    try:
        return room.artifact(reference).is_file()
    except UnknownMessage:
        return False


def test_a_file_goes_when_no_kept_message_refers_to_it(room: Room, attach: Callable[..., dict[str, Any]]) -> None:
    both, one = attach("both"), attach("one")
    ada, bob = room.agent("ada"), room.agent("bob")
    first = ada.send("bob", {"text": "look", "attachments": [both, one]})
    second = ada.send("bob", {"deep": [{"file": both["artifact"]}]})
    for _ in range(2):
        held = bob.poll()
        assert held is not None
        held.ack()

    assert tidy(room) == 0  # finished, but kept
    assert room.purge(ids=[first]) == 1
    assert tidy(room) == 1
    assert (is_kept(room, both), is_kept(room, one)) == (True, False)
    assert room.purge(ids=[second]) == 1
    assert tidy(room) == 1
    assert os.listdir(folder_of(room)) == []


def test_a_file_that_was_just_attached_stays(room: Room, attach: Callable[..., dict[str, Any]]) -> None:
    young, renewed = attach("young", age_s=3600), attach("renewed")
    attach("renewed", age_s=0)

    assert is_kept(room, young)
    assert tidy(room) == 0
    assert is_kept(room, young)
    assert is_kept(room, renewed)


def test_a_file_of_a_task_stays(room: Room, attach: Callable[..., dict[str, Any]]) -> None:
    of_payload, of_result = attach("payload"), attach("result")
    room.board.add("T1", payload={"file": of_payload})
    held = room.board.claim("bob")
    assert held is not None
    held.done({"file": of_result})

    assert tidy(room) == 0
    assert room.board.remove("T1")
    assert tidy(room) == 2


def test_what_is_referred_to_or_attached_while_files_are_tidied_stays(
    room: Room, attach: Callable[..., dict[str, Any]]
) -> None:
    sent, attached, read = attach("sent"), attach("attached"), attach("read")
    done: list[str] = []

    def meanwhile() -> None:
        if not done:
            done.append(room.agent("ada").send("bob", {"file": sent}))
            attach("attached", age_s=0)

    crashpoints.at("attachments.aside", meanwhile)
    try:
        tidy(room)
    finally:
        crashpoints.at("attachments.aside", lambda: None)

    assert done
    assert is_kept(room, sent)
    assert is_kept(room, attached)
    assert not is_kept(room, read)


def test_one_process_at_a_time_puts_files_aside(room: Room, attach: Callable[..., dict[str, Any]]) -> None:
    """Another one could put a file that was just attached in the place of the one that is deleted in that moment."""
    attach("old")
    tried: list[type[Exception]] = []

    def another() -> None:
        descriptor = os.open(folder_of(room), os.O_RDONLY)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            tried.append(type(error))
        finally:
            os.close(descriptor)

    crashpoints.at("attachments.aside", another)
    try:
        assert tidy(room) == 1
    finally:
        crashpoints.at("attachments.aside", lambda: None)

    assert tried == [BlockingIOError]
    assert tidy(room) == 0


def test_nothing_is_deleted_in_a_folder_that_a_project_had_before(
    room: Room, attach: Callable[..., dict[str, Any]]
) -> None:
    folder_of(room).mkdir(mode=0o755)
    theirs = folder_of(room) / ("ab" * 32)
    theirs.write_text("named by its content, as in many stores")
    os.utime(theirs, (0, 0))
    attach("ours")

    assert tidy(room) == 0
    assert theirs.exists()


@pytest.mark.slow
def test_a_payload_of_nothing_but_digits_is_looked_through_in_little_space(
    room: Room, attach: Callable[..., dict[str, Any]]
) -> None:
    named, gone = attach("named"), attach("gone")
    digits = os.urandom(100_000).hex()
    digest = named["artifact"].removeprefix("sha256:")
    room.agent("ada").send("bob", {"dump": digits[:100_001] + digest + digits[100_001:]})
    tracemalloc.start()
    try:
        assert tidy(room) == 1
        assert tracemalloc.get_traced_memory()[1] < 5_000_000
    finally:
        tracemalloc.stop()

    assert (is_kept(room, named), is_kept(room, gone)) == (True, False)


class Died(Exception):
    pass


def test_what_a_process_left_aside_when_it_died_is_read_and_judged_anew(
    room: Room, attach: Callable[..., dict[str, Any]]
) -> None:
    read, forgotten = attach("read"), attach("forgotten")

    def die() -> None:
        if len([name for name in os.listdir(folder_of(room)) if name.startswith(".gone-")]) == 2:
            raise Died

    crashpoints.at("attachments.aside", die)
    try:
        with pytest.raises(Died):
            tidy(room)
    finally:
        crashpoints.at("attachments.aside", lambda: None)

    assert is_kept(room, read)
    room.agent("ada").send("bob", {"file": read})
    (folder_of(room) / ".new-half").write_text("half a copy")
    os.utime(folder_of(room) / ".new-half", (0, 0))
    assert tidy(room) == 1
    assert (is_kept(room, read), is_kept(room, forgotten)) == (True, False)
    assert os.listdir(folder_of(room)) == [read["artifact"].removeprefix("sha256:")]


def test_housekeeping_tidies_files_now_and_then(
    room: Room, attach: Callable[..., dict[str, Any]], clock: ManualClock
) -> None:
    gone, kept = attach("gone"), attach("kept")
    room.agent("ada", transient=True).send("bob", {"file": kept})
    files = room._upkeep._files

    files.round()
    files.round()
    assert (is_kept(room, gone), is_kept(room, kept)) == (False, True)

    later = attach("later")
    files.round()
    assert is_kept(room, later)
    clock.advance(6 * 3600)
    files.round()
    files.round()
    assert not is_kept(room, later)
