"""Finding, making and closing rooms."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.support import PROGRAMS

import postroom
from postroom.core.config import address_of, parse_url
from postroom.room import Room


@pytest.fixture
def empty_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory is an empty folder without a room above it."""
    place = tmp_path / "project" / "deep"
    place.mkdir(parents=True)
    monkeypatch.chdir(place)
    monkeypatch.delenv("POSTROOM_URL", raising=False)
    return place


def test_without_a_room_one_is_made_here_for_its_owner_only(empty_place: Path) -> None:
    with postroom.open() as room:
        assert room.folder == empty_place / ".postroom"

    assert stat.S_IMODE((empty_place / ".postroom").stat().st_mode) == 0o700
    assert (empty_place / ".postroom" / ".gitignore").read_text() == "*\n"


def test_the_nearest_room_above_is_used(empty_place: Path) -> None:
    with postroom.open(empty_place.parent / ".postroom") as above, postroom.open() as found:
        assert found.folder == above.folder
    assert not (empty_place / ".postroom").exists()


def test_a_room_of_files_is_found_from_inside(empty_place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its own part has the name that rooms are looked for by; nobody makes a second room in there."""
    with postroom.open(f"files:{empty_place}/mail"):
        pass
    monkeypatch.chdir(empty_place / "mail" / "inbox")

    with postroom.open() as found:
        assert (found.url.scheme, found.folder) == ("files", empty_place / "mail")


def test_the_environment_names_the_room(empty_place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POSTROOM_URL", f"sqlite:{empty_place}/other?max_deliveries=7")

    with postroom.open() as room:
        assert room.folder == empty_place / "other"
        assert room.config.max_deliveries == 7


def test_a_room_that_must_be_there_already_is_not_made(empty_place: Path) -> None:
    with pytest.raises(postroom.RoomNotFound, match=r"looked at: .*POSTROOM_URL.*every folder above") as found:
        postroom.open(create=False)

    assert str(empty_place) in str(found.value)
    assert list(empty_place.iterdir()) == []


def test_a_named_room_that_must_be_there_already_is_not_made(tmp_path: Path) -> None:
    with pytest.raises(postroom.RoomNotFound, match=r"there is no room in .*nowhere"):
        postroom.open(tmp_path / "nowhere", create=False)

    assert not (tmp_path / "nowhere").exists()


def lose(folder: Path, part: str, how: str) -> None:
    """Delete a file of a room, or empty it; what else belongs to a database goes with it."""
    for path in folder.glob(f"{part}*"):
        path.unlink()
    if how == "empty":
        (folder / part).touch()


LOST = [
    ("sqlite", "messages.db", "gone"),
    ("sqlite", "messages.db", "empty"),
    ("files", "room.json", "gone"),
    ("files", "log", "gone"),
    ("files", "log", "empty"),
]


@pytest.mark.parametrize("create", [True, False])
@pytest.mark.parametrize(("scheme", "part", "how"), LOST)
def test_a_room_whose_messages_are_missing_is_damaged_and_never_a_new_one(
    empty_place: Path, scheme: str, part: str, how: str, create: bool
) -> None:
    own = empty_place / ".postroom"
    address = f"{scheme}:{own if scheme == 'sqlite' else empty_place}"
    with postroom.open(address) as room:
        room.agent("ada").send("bob", {"text": "hi"})
    lose(own, part, how)
    before = {path.name: path.stat().st_size for path in own.iterdir()}

    for named in (None, address):
        with pytest.raises(postroom.RoomDamaged, match=rf"{part} .*postroom init --anew"):
            postroom.open(named, create=create)

    assert {path.name: path.stat().st_size for path in own.iterdir()} == before


def test_a_room_whose_making_was_killed_is_made_by_the_next_opener(tmp_path: Path) -> None:
    """Its lock and its empty file are there, and nothing says that it ever was a room."""
    folder = tmp_path / "room"
    folder.mkdir()
    for name in ("lock", "alive", "messages.db"):
        (folder / name).touch()

    with postroom.open(folder) as room:
        room.agent("ada").send("bob", {"text": "hi"})


def test_a_named_folder_without_a_room_is_not_made_one_by_looking(tmp_path: Path) -> None:
    with pytest.raises(postroom.RoomNotFound, match="postroom init"):
        postroom.open(tmp_path, create=False)

    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_was_there_gets_no_gitignore(tmp_path: Path) -> None:
    with postroom.open(tmp_path):
        pass

    assert not (tmp_path / ".gitignore").exists()


def test_a_relative_address_stays_right_after_a_chdir(empty_place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with postroom.open("sqlite:here") as room:
        monkeypatch.chdir("/")
        room.agent("ada").send("bob", {})

        assert str(room.url) == f"sqlite:{empty_place}/here"
        assert room.attach(__file__)["path"].startswith(f"{empty_place}/here/artifacts/")


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"max_deliverys": 3}, r"no setting 'max_deliverys'; did you mean max_deliveries\?"),
        ({"colour": "blue"}, r"no setting 'colour'; the settings are: sync, "),
        ({"max_deliveries": 0}, r"max_deliveries must be 1 or more, not 0"),
        ({"max_deliveries": "many"}, r"Expected `int`, got `str` - at `\$.max_deliveries`"),
        ({"sync": "sometimes"}, r"sync must be normal or full, not 'sometimes'"),
        ({"rate_per_s": float("nan")}, r"rate_per_s must be more than 0, not nan"),
    ],
)
def test_a_wrong_setting_is_named(settings: dict[str, Any], sentence: str) -> None:
    with pytest.raises(postroom.RoomError, match=sentence):
        postroom.open("memory:", **settings)


@pytest.mark.parametrize("name", ["what?", "a?sync=full", "100%", "%3F", "%253f", "%25?%", "a%3Fb?c"])
def test_a_folder_with_a_question_mark_in_its_name_can_have_a_room(
    empty_place: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    folder = empty_place / name
    folder.mkdir()
    monkeypatch.chdir(folder)

    with postroom.open() as made, postroom.open() as found, postroom.open(folder / ".postroom") as named:
        assert made.folder == found.folder == named.folder == folder / ".postroom"
        assert made.config.sync == "normal"
        with postroom.open(str(made.url), sync="full") as again:
            assert (again.folder, again.config.sync) == (made.folder, "full")
    with postroom.open(f"{made.url}?max_deliveries=7") as room:
        assert (room.folder, room.config.max_deliveries) == (made.folder, 7)
    with postroom.open(address_of(folder / "mail", "files")) as files:
        monkeypatch.chdir(folder / "mail" / "inbox")
        with postroom.open() as found:
            assert found.folder == files.folder == folder / "mail"


@pytest.mark.parametrize("path", ["a", "100%", "%20", "%2", "a b#c", "é%", "%%"])
def test_the_address_of_any_other_folder_is_its_path(path: str) -> None:
    assert address_of(Path(path)) == f"sqlite:{path}"
    assert parse_url(f"sqlite:{path}").rest == path


def test_a_wrong_option_of_the_address_is_named(tmp_path: Path) -> None:
    with pytest.raises(postroom.RoomError, match=r"no setting 'snyc'; did you mean sync\?"):
        postroom.open(f"sqlite:{tmp_path}/room?snyc=full")

    assert not (tmp_path / "room").exists()


def test_what_the_program_says_wins_over_the_address() -> None:
    with postroom.open("memory:?max_hops=2&keep_count=9", max_hops=3) as room:
        assert (room.config.max_hops, room.config.keep_count) == (3, 9)


def test_an_unknown_scheme_is_refused() -> None:
    with pytest.raises(postroom.RoomError, match="pigeon"):
        postroom.open("pigeon:coop")


@pytest.mark.parametrize("inside", ["", "/room"])
def test_a_place_that_cannot_hold_a_room_is_refused(tmp_path: Path, inside: str) -> None:
    (tmp_path / "file").write_text("not a folder")

    with pytest.raises(postroom.RoomError, match=r"needs a folder|cannot be made"):
        postroom.open(f"sqlite:{tmp_path}/file{inside}")


def test_closing_twice_is_closing_once(room: Room) -> None:
    room.agent("ada")

    room.close()
    room.close()

    assert room.closed


def test_a_closed_room_refuses_everything(open_room: Callable[..., Room]) -> None:
    room = open_room()
    bob = room.agent("bob")
    id = bob.send("bob", {})
    message = bob.receive(timeout_s=0)
    room.close()

    calls: list[Callable[[], object]] = [
        lambda: room.agent("ada"),
        lambda: room.receipt(id),
        room.peek,
        room.events,
        room.watch,
        room.stats,
        room.agents,
        room.waits,
        room.dead_letters,
        room.purge,
        lambda: room.requeue(id),
        lambda: room.replay(0),
        lambda: room.attach(__file__),
        lambda: bob.send("ada", {}),
        lambda: bob.publish("news", {}),
        lambda: bob.subscribe("news"),
        lambda: bob.receive(timeout_s=0),
        bob.poll,
        bob.listen,
        lambda: bob.ask("ada", {}),
        lambda: bob.serve({"*": lambda m: None}),
        lambda: bob.claimed(id),
        bob.heartbeat,
        message.ack,
        message.extend,
    ]
    for call in calls:
        with pytest.raises(postroom.RoomClosed):
            call()


def run_program(name: str, *args: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-W", "error", str(PROGRAMS / name), *args], capture_output=True, text=True, timeout=60
    )


@pytest.mark.slow
def test_a_forked_process_is_told_to_open_the_room_anew(tmp_path: Path) -> None:
    done = run_program("fork_with_a_room.py", f"sqlite:{tmp_path}/room")

    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines() == [
        "child: this room was opened before the process forked; fork first, or start processes with spawn",
        "child: closed without harm",
        "parent: still works, agents: ada active",
    ]


@pytest.mark.slow
@pytest.mark.parametrize("scheme", ["memory", "sqlite"])
def test_a_program_that_forgets_to_close_ends_at_once_and_quietly(tmp_path: Path, scheme: str) -> None:
    done = run_program("leave_a_room_open.py", "memory:" if scheme == "memory" else f"sqlite:{tmp_path}/room")

    assert (done.returncode, done.stdout, done.stderr) == (0, "hi\n", "")


@pytest.mark.slow
def test_importing_the_package_imports_nothing_heavy() -> None:
    code = "import sys, postroom; print(sorted({'apsw', 'msgspec', 'rich', 'postroom.room'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert done.stdout == "[]\n"


def test_every_public_name_is_there() -> None:
    missing = [name for name in postroom.__all__ if getattr(postroom, name, None) is None]

    assert missing == []
    assert set(postroom.__all__) <= set(dir(postroom))
    with pytest.raises(AttributeError, match="has no attribute 'clsoe'"):
        postroom.clsoe  # noqa: B018


def test_the_environment_is_not_asked_when_an_address_is_given(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POSTROOM_URL", "pigeon:coop")

    with postroom.open(os.fspath(tmp_path / "room")) as room:
        assert room.folder == tmp_path / "room"
