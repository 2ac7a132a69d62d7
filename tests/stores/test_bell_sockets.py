"""The sockets of a room's bells: whose they are, who may ring them, and what remains when a process is killed or forks."""

from __future__ import annotations

import os
import select
import shutil
import signal
import socket
import stat
import subprocess
import sys
import tempfile
import warnings
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from tests.support.containers import CONTAINERS, need_containers
from tests.support.systems import needs_linux

import postroom
from postroom.core.clock import SYSTEM
from postroom.core.system import LINUX
from postroom.stores.bells import sockets
from postroom.stores.bells.bells import Bells
from postroom.stores.bells.page import SLOTS
from postroom.stores.bells.shortcuts import Shortcut
from postroom.stores.bells.sockets import BellSockets, NoBells, _Descriptor, _Socket

ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="only root can become other users")
NOBODY, SOMEBODY, THEIR_GROUP = 65534, 65533, 65532


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "room"
    folder.mkdir(mode=0o700)
    return folder


@pytest.fixture
def open_place() -> Iterator[Path]:
    """A folder that every user can enter; pytest's own are closed to others."""
    with TemporaryDirectory() as place:
        os.chmod(place, 0o711)
        yield Path(place)


@pytest.fixture
def bells(folder: Path) -> Iterator[Bells]:
    bells = Bells(folder, SYSTEM)
    yield bells
    bells.close()


@contextmanager
def child(
    body: Callable[[int, int], None], before: Callable[[], object] = lambda: None
) -> Iterator[tuple[int, int, int]]:
    """A forked child that reads from one pipe and writes to another; killed in the end."""
    here, there = os.pipe(), os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.close(here[1])
            os.close(there[0])
            before()
            body(here[0], there[1])
        finally:
            os._exit(0)
    os.close(here[0])
    os.close(there[1])
    try:
        yield pid, here[1], there[0]
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        os.close(here[1])
        os.close(there[0])


def listens_for_a(folder: Path, *, group: bool = False) -> Callable[[int, int], None]:
    """A child's body: it waits for the topic a, and says when it is armed and when it was rung."""

    def body(_: int, tell: int) -> None:
        with Bells(folder, SYSTEM, group=group).listen(["a"]) as waiter:
            os.write(tell, b"armed")
            os.write(tell, b"rung" if waiter.wait(20) else b"not rung")

    return body


def as_user(user: int, group: int, umask: int = 0o022) -> Callable[[], None]:
    def become() -> None:
        os.umask(umask)
        os.setgroups([THEIR_GROUP])
        os.setresgid(group, group, group)
        os.setresuid(user, user, user)

    return become


def test_the_sockets_lie_in_a_folder_of_the_room_that_only_its_owner_can_enter(folder: Path, bells: Bells) -> None:
    assert sorted(os.listdir(folder)) == ["bells"], "a room in which nobody waits has none"
    with bells.listen(["a"]), bells.listen(["b"]):
        assert sorted(os.listdir(folder / "sockets")) == ["0", "1"]
        assert stat.S_IMODE((folder / "sockets").stat().st_mode) == 0o700
        assert all(path.is_socket() for path in (folder / "sockets").iterdir())
    bells.close()
    assert os.listdir(folder / "sockets") == [], "what is closed leaves nothing behind"


def test_two_objects_of_one_process_never_have_the_same_slot(folder: Path, bells: Bells) -> None:
    other = Bells(folder, SYSTEM)
    with bells.listen(["a"]) as one, other.listen(["a"]) as two, bells.listen(["a"]) as three:
        bells.ring(["a"])
        assert [one.wait(0), two.wait(0), three.wait(0)] == [True] * 3
        assert sorted(os.listdir(folder / "sockets")) == ["0", "1", "2"]
    other.close()


def test_a_slot_that_is_rung_again_and_again_is_reached_by_its_next_owner_too(folder: Path, bells: Bells) -> None:
    """The line that was connected to the one before must not swallow the ring."""
    for _ in range(3):
        owner = Bells(folder, SYSTEM)
        with owner.listen(["a"]) as waiter:
            for _ in range(5):
                bells.ring(["a"])
                assert waiter.wait(0)
        owner.close()


def test_the_name_that_a_killed_process_left_is_used_again(folder: Path, bells: Bells) -> None:
    with child(listens_for_a(folder)) as (_, _, told):
        assert os.read(told, 100) == b"armed"
    assert os.listdir(folder / "sockets") == ["0"]
    with bells.listen(["a"]) as waiter:
        assert os.listdir(folder / "sockets") == ["0"]
        bells.ring(["a"])
        assert waiter.wait(0)


def test_a_waiter_that_outlives_the_rooms_bells_gives_everything_back(folder: Path) -> None:
    bells = Bells(folder, SYSTEM)
    waiter, switchboard = bells.listen(["a"]), bells.switchboard(None)
    assert switchboard is not None
    opened = bells.sockets._open.copy()
    maps: list[weakref.ref[Any]] = [weakref.ref(bells.page.memory), weakref.ref(bells.page.switchboards())]
    bells.close()
    waiter.close()
    assert not bells.sockets._locks.closed
    switchboard.close()
    assert all(each.closed if isinstance(each, _Descriptor) else each.fileno() == -1 for each in opened)
    del bells, waiter, switchboard
    assert [each() for each in maps] == [None, None]
    assert os.listdir(folder / "sockets") == []


@pytest.mark.parametrize("step", ["take", "_lock", "_bind"])
def test_a_listener_that_races_with_the_end_of_the_bells_leaves_nothing_open(
    folder: Path, bells: Bells, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    """The bells are closed before that step: before the slot is noted, before it is locked, before it has a socket."""
    close_before(monkeypatch, bells.sockets, step, bells.close)
    with suppress(NoBells):
        bells.listen(["a"]).close()
    assert bells.sockets._locks.closed
    assert bells.sockets._sender.fileno() == -1
    assert os.listdir(folder / "sockets" if (folder / "sockets").exists() else folder) in ([], ["bells"])


def test_where_the_bells_end_while_a_slot_cannot_be_had_nothing_is_left_open(
    folder: Path, bells: Bells, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(_: str) -> socket.socket:
        bells.close()
        raise OSError("no sockets today")

    monkeypatch.setattr(bells.sockets, "_bind", fails)
    with pytest.raises(NoBells, match="no sockets today"):
        bells.listen(["a"])
    assert bells.sockets._locks.closed


@pytest.mark.parametrize("step", ["take", "_lock", "_bind"])
def test_a_wait_that_begins_while_its_room_is_closed_ends_with_the_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    with postroom.open(f"sqlite:{tmp_path}/room") as room:
        close_before(monkeypatch, BellSockets, step, room.close)
        with pytest.raises(postroom.RoomClosed):
            room.board.claim("ada", timeout_s=60)


def close_before(
    monkeypatch: pytest.MonkeyPatch, where: BellSockets | type[BellSockets], step: str, close: Callable[[], None]
) -> None:
    """Before that step of a listener is first made, the bells are closed, as another thread may close them."""
    made: Callable[..., object] = getattr(where, step)

    def run(*arguments: object) -> object:
        monkeypatch.setattr(where, step, made)
        close()
        return made(*arguments)

    monkeypatch.setattr(where, step, run)


def test_no_interrupt_is_lost_in_the_end_of_a_descriptor() -> None:
    """Python drops what the handler of a signal raises in a destructor. Handlers run where Python code runs."""
    number, other = os.pipe()
    os.close(other)
    ran: list[str] = []
    descriptor = _Descriptor(number, "rb")
    sys.setprofile(lambda frame, event, _: ran.append(frame.f_code.co_name) if event == "call" else None)
    try:
        del descriptor
    finally:
        sys.setprofile(None)
    assert ran == []
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(number)


def test_when_the_folder_was_removed_it_is_made_again(folder: Path, bells: Bells) -> None:
    with bells.listen(["a"]):
        pass
    shutil.rmtree(folder / "sockets")
    other = Bells(folder, SYSTEM)
    with other.listen(["a"]) as first:  # the folder is there again
        shutil.rmtree(folder / "sockets")
        with pytest.raises(NoBells, match="No such file"):
            other.listen(["b"])
        with other.listen(["b"]) as second:
            other.ring(["b"])
            assert [first.wait(0), second.wait(0)] == [False, True]
    other.close()


def test_where_there_are_no_locks_of_open_files_a_slot_belongs_to_the_process_that_locks_its_own_file(
    folder: Path, bells: Bells, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sockets, "_LOCK", None)
    with child(listens_for_a(folder)) as (_, _, told):
        assert os.read(told, 100) == b"armed"
        with bells.listen(["a"]) as waiter:
            assert sorted(os.listdir(folder / "sockets")) == ["0", "1"]
            bells.ring(["a"])
            assert os.read(told, 100) == b"rung"
            assert waiter.wait(0)
    other = Bells(folder, SYSTEM)
    with other.listen(["a"]) as waiter:
        other.ring(["a"])
        assert waiter.wait(0)
    other.close()


# What somebody may have put there


def test_no_symbolic_link_is_followed_to_a_socket_elsewhere(folder: Path, bells: Bells, tmp_path: Path) -> None:
    elsewhere = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
    elsewhere.bind(str(tmp_path / "7"))
    with bells.listen(["a"]) as waiter:
        page = bells.page.memory
        (folder / "sockets" / "7").symlink_to(tmp_path / "7")
        page[7] = page[waiter._number]  # type: ignore[attr-defined]
        page[544 + 7 * 64 : 544 + 8 * 64] = page[544:608]  # as if somebody waited there for the same
        for _ in range(3):
            page[7] = 1
            bells.ring(["a"])
            assert waiter.wait(0)
    with pytest.raises(BlockingIOError):
        elsewhere.recv(16)
    elsewhere.close()


def test_a_folder_that_is_a_link_or_open_to_others_is_not_used(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir(mode=0o700)
    (folder / "sockets").symlink_to(tmp_path / "elsewhere")
    bells = Bells(folder, SYSTEM)
    with pytest.raises(NoBells, match="sockets"):
        bells.listen(["a"])
    assert bells.switchboard(None) is None
    assert bells.way().startswith("watching (")
    (folder / "sockets").unlink()
    (folder / "sockets").mkdir()
    (folder / "sockets").chmod(0o777)
    with pytest.raises(NoBells, match="not the room's own"):
        bells.listen(["a"])
    (folder / "sockets").chmod(0o700)
    assert bells.way() == "datagrams through the room's folder"
    bells.close()


def test_what_lies_under_the_name_of_a_slot_is_replaced_or_passed_over(folder: Path, bells: Bells) -> None:
    (folder / "sockets" / "0").mkdir(parents=True)
    (folder / "sockets" / "1").symlink_to("/nowhere")
    (folder / "sockets").chmod(0o700)
    with bells.listen(["a"]) as waiter:
        assert (folder / "sockets" / "1").is_socket()
        bells.ring(["a"])
        assert waiter.wait(0)


# Users


@ROOT
def test_another_user_can_neither_take_a_name_nor_ring(open_place: Path) -> None:
    folder = open_place / "room"
    folder.mkdir(mode=0o755)
    bells = Bells(folder, SYSTEM)

    def squat(_: int, tell: int) -> None:
        failed = 0
        for number in range(SLOTS):
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as stranger:
                try:
                    stranger.bind(str(folder / "sockets" / str(number)))
                except PermissionError:
                    failed += 1
                try:
                    stranger.sendto(b"!", str(folder / "sockets" / "0"))
                except PermissionError:
                    failed += 1
        os.write(tell, b"%d" % failed)

    with bells.listen(["a"]) as waiter, child(squat, as_user(NOBODY, NOBODY)) as (_, _, told):
        assert os.read(told, 100) == b"%d" % (2 * SLOTS)
        assert not waiter.wait(0)
        bells.ring(["a"])
        assert waiter.wait(0)
    bells.close()


@ROOT
def test_members_of_a_group_wake_each_other_in_a_room_of_the_group(open_place: Path) -> None:
    folder = open_place / "shared"
    folder.mkdir()
    os.chown(folder, NOBODY, THEIR_GROUP)
    os.chmod(folder, 0o2770)

    def ring(_: int, tell: int) -> None:
        Bells(folder, SYSTEM, group=True).ring(["a"])
        os.write(tell, b"done")

    for one, other in ((NOBODY, SOMEBODY), (SOMEBODY, NOBODY)):
        with child(listens_for_a(folder, group=True), as_user(one, one, 0o077)) as (_, _, told):
            assert os.read(told, 100) == b"armed"
            with child(ring, as_user(other, other, 0o077)) as (_, _, done):
                assert os.read(done, 100) == b"done"
            assert os.read(told, 100) == b"rung"


@ROOT
def test_the_owner_of_a_room_wakes_root_who_waits_in_it(open_place: Path) -> None:
    """A container often runs as root in a folder of the host's user."""
    folder = open_place / "room"
    folder.mkdir(mode=0o700)
    os.chown(folder, NOBODY, NOBODY)

    def ring(_: int, tell: int) -> None:
        Bells(folder, SYSTEM).ring(["a"])
        os.write(tell, b"done")

    with child(ring, as_user(NOBODY, NOBODY)) as (_, _, done):  # the owner makes the room
        assert os.read(done, 100) == b"done"
    with child(listens_for_a(folder)) as (_, _, told):
        assert os.read(told, 100) == b"armed"
        with child(ring, as_user(NOBODY, NOBODY)) as (_, _, done):
            assert os.read(done, 100) == b"done"
        assert os.read(told, 100) == b"rung"


# Forks


FORKING = """
import os, sys, time
from pathlib import Path
from postroom.stores.bells.bells import Bells
from postroom.core.clock import SYSTEM
from postroom.core.system import LINUX
bells = Bells(Path(sys.argv[1]), SYSTEM)
if sys.argv[2] == "waiter":
    waiter = bells.listen(["a"])
else:
    switchboard = bells.switchboard(None)
    waiter = switchboard.listen(["a"], lambda: None)
if os.fork() == 0:
    print(os.getpid(), flush=True)
time.sleep(60)
"""


@pytest.mark.parametrize("kind", ["waiter", "switchboard"])
def test_the_child_of_a_killed_process_swallows_no_hint_and_keeps_no_name(
    kind: str, folder: Path, bells: Bells
) -> None:
    words = [sys.executable, "-c", FORKING, str(folder), kind]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout
        orphan = int(parent.stdout.readline())
        parent.kill()
    try:
        with bells.listen(["a"]) as waiter:
            for _ in range(20):
                bells.ring([], ["a"])
                assert waiter.wait(0)
        switchboard = bells.switchboard(None)
        assert switchboard is not None
        assert set(os.listdir(folder / "sockets")) <= {"0", "512"}, "the names of the dead are used again"
        switchboard.close()
    finally:
        os.kill(orphan, signal.SIGKILL)


def test_a_child_that_leaves_the_waiters_of_its_parent_does_not_make_them_deaf(bells: Bells) -> None:
    switchboard = bells.switchboard(None)
    assert switchboard is not None
    with bells.listen(["a"]) as waiter:
        hints: list[str] = []
        seat = switchboard.listen(["a"], lambda: hints.append("a"))
        assert seat is not None

        def leave(_: int, tell: int) -> None:
            waiter.close()
            seat.close()
            switchboard.close()
            bells.close()
            os.write(tell, b"left")

        with child(leave) as (_, _, told):
            assert os.read(told, 100) == b"left"
        bells.ring(["a"])
        assert waiter.wait(0)
        assert select.select([switchboard], [], [], 0)[0]
        switchboard.take()
        assert hints == ["a"]
    switchboard.close()


def test_a_forked_child_has_no_descriptor_of_its_parents_bells(folder: Path) -> None:
    bells = Bells(folder, SYSTEM)
    with bells.listen(["a"]) as waiter:
        for _ in range(3):  # so that there is a line, too
            bells.ring(["a"])
            assert waiter.wait(0)
        ours = [each.fileno() for each in (*bells.sockets._open, *bells.sockets._lines.values())]
        assert len(ours) == (4 if LINUX else 5), "the locks, the sender, the waiter's, the line; and its lock"

        def count(_: int, tell: int) -> None:
            os.write(tell, b"%d" % sum(map(is_open, ours)))

        with child(count) as (_, _, told):
            assert os.read(told, 100) == b"0"
    bells.close()


def is_open(number: int) -> bool:
    try:
        os.fstat(number)
    except OSError:
        return False
    return True


# Containers


LISTENING = """
import sys
from pathlib import Path
from postroom.stores.bells.bells import Bells
from postroom.core.clock import SYSTEM
from postroom.core.system import LINUX
bells = Bells(Path(sys.argv[1]), SYSTEM)
switchboard = bells.switchboard(None)
with bells.listen(["a", sys.argv[2]]) as waiter:
    seat = switchboard.listen(["b", sys.argv[2]], lambda: None)
    print("armed", flush=True)
    rung = waiter.wait(20)
    switchboard.take()
    print(rung, seat.wait(0), flush=True)
    sys.stdin.readline()
switchboard.close()
bells.close()
"""


def listener(kind: str, folder: Path, topic: str) -> subprocess.Popen[str]:
    words = [*CONTAINERS[kind], sys.executable, "-c", LISTENING, str(folder), topic]
    started = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert started.stdout
    assert started.stdout.readline() == "armed\n"
    return started


@pytest.mark.slow
@need_containers
@pytest.mark.parametrize("kind", CONTAINERS)
def test_waiters_in_two_containers_have_slots_of_their_own_and_each_is_woken(
    kind: str, folder: Path, bells: Bells
) -> None:
    with listener(kind, folder, "one") as one, listener(kind, folder, "two") as two:
        assert sorted(os.listdir(folder / "sockets")) == ["0", "1", "512", "513"]
        for topic, waiter in (("one", one), ("two", two)):
            assert waiter.stdout
            bells.ring([topic])
            assert waiter.stdout.readline() == "True True\n"
        for waiter in (one, two):
            waiter.communicate("leave\n")
    assert os.listdir(folder / "sockets") == []


@need_containers
@needs_linux("/proc, which others need not shorten a path")
def test_where_the_path_is_too_long_and_proc_is_missing_the_reason_is_told(tmp_path: Path) -> None:
    deep = tmp_path / "/".join(["a-folder-with-a-long-name"] * 6)
    program = "import postroom, sys; print(postroom.open(f'sqlite:{sys.argv[1]}').stats().store['wake_up'])"
    words = [sys.executable, "-c", program, str(deep)]
    ends = [
        subprocess.run([*start, *words], capture_output=True, text=True, check=True)
        for start in ([], CONTAINERS["no-proc"])
    ]
    assert [end.stdout.partition(" (")[0].strip() for end in ends] == [
        "datagrams through the room's folder",
        "watching",
    ]
    assert "too long for sockets" in ends[1].stdout


@pytest.mark.parametrize("kind", ["sqlite", "files"])
def test_the_figures_say_how_waiters_are_woken(kind: str, tmp_path: Path) -> None:
    with postroom.open(f"{kind}:{tmp_path}/room") as room:
        told, _, rest = room.stats().store["wake_up"].partition("; ")
        assert told == "datagrams through the room's folder"
        looks = "the inbox is checked for new files every 0.1 s, because folders cannot be watched"
        assert rest == (looks if kind == "files" and not (LINUX or hasattr(select, "kqueue")) else "")


def test_a_link_to_a_far_folder_outlives_its_process_no_longer_than_the_next_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    program = (
        "import sys, tempfile, pathlib\n"
        "from postroom.stores.bells.shortcuts import Shortcut\n"
        "tempfile.tempdir = sys.argv[1]\n"
        "link = Shortcut(pathlib.Path(sys.argv[1]))\n"
        "print(link.path, flush=True)\n"
        "sys.stdin.read()"
    )
    words = [sys.executable, "-c", program, str(tmp_path)]
    lives, killed = (subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for _ in "ab")
    with lives, killed:
        assert lives.stdout and killed.stdout
        theirs, orphan = (Path(each.stdout.readline().strip()) for each in (lives, killed))  # type: ignore[union-attr]
        killed.kill()
        killed.wait()
        assert orphan.is_symlink()
        kept = tmp_path / f"postroom-{killed.pid}-9"  # somebody's own, by chance of such a name
        kept.mkdir()
        (kept / "s").write_text("a file")

        Shortcut(tmp_path).remove()

        assert sorted(os.listdir(tmp_path)) == sorted([theirs.parent.name, kept.name])
        lives.communicate("")
    assert os.listdir(tmp_path) == [kept.name] and (kept / "s").read_text() == "a file"


def test_names_of_links_that_others_took_are_passed_over_and_come_to_an_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    for number in range(99):
        (tmp_path / f"postroom-{os.getpid()}-{number}").mkdir()
    link = Shortcut(tmp_path)
    assert Path(link.path).resolve() == tmp_path
    with pytest.raises(FileExistsError):
        Shortcut(tmp_path)
    link.remove()


def test_a_socket_that_was_dropped_is_closed_without_a_word(monkeypatch: pytest.MonkeyPatch) -> None:
    """As an interrupt of a room that opens drops one; the warning would come at some later moment, in another's work."""
    said: list[object] = []
    monkeypatch.setattr(sys, "unraisablehook", said.append)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        dropped = _Socket()
        descriptor = dropped.fileno()
        del dropped
    assert said == []
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(descriptor)
