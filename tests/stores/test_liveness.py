"""Lives told by locks: a process has one byte of the room's file `alive` locked for as long as it has the room open.

Two names are used of one process: its own, which its pid can be looked up by, and the same with another host, as it is for
processes of other pid namespaces, of containers that show another boot id, and of boots before this one.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path

import pytest
from tests.support import PROGRAMS
from tests.support.systems import needs_linux

import postroom
from postroom.core.clock import ManualClock, SystemClock
from postroom.core.config import HEARTBEAT_S, Config
from postroom.core.message import Draft, check
from postroom.core.states import State
from postroom.core.system import process
from postroom.core.system.process import byte_of, this_process, without_byte
from postroom.errors import RoomError
from postroom.mail import presence
from postroom.stores import liveness
from postroom.stores.contract import Query, Store, Want
from postroom.stores.files.store import FilesStore
from postroom.stores.memory.store import MemoryStore
from postroom.stores.sqlite.store import SqliteStore

PROGRAM = PROGRAMS / "attendant.py"
#: A process that opened the room before the last boot, or in a container that is gone.
BEFORE = "0a0a0a0a-0b0b.4026531836:77:123+5f3a"

Open = Callable[..., Store]


def _sqlite(folder: Path, clock: SystemClock | ManualClock, config: Config | None = None) -> Store:
    return SqliteStore(folder, config or Config(), clock)


def _files(folder: Path, clock: SystemClock | ManualClock, config: Config | None = None) -> Store:
    return FilesStore(folder, config or Config(), clock)


both = pytest.mark.parametrize(
    ("scheme", "open_store"), [("sqlite", _sqlite), ("files", _files)], ids=["sqlite", "files"]
)


def alive_file(scheme: str, folder: Path) -> Path:
    return folder / ("alive" if scheme == "sqlite" else ".postroom/alive")


def letter(**fields: object) -> Draft:
    return check(Draft(**{"from_agent": "ada", "to_agent": "bob", "payload": {}, **fields}))  # type: ignore[arg-type]


def seen_from_elsewhere(name: str) -> str:
    """The name as it would be in another pid namespace: its pid cannot be looked up."""
    return "elsewhere.1:" + name.partition(":")[2]


class Attendant:
    """A process with the room open; see tests/programs/attendant.py."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process
        self.name = self._line()

    def _line(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline().strip()

    def tell(self, *words: str) -> str:
        assert self._process.stdin is not None
        self._process.stdin.write(" ".join(words) + "\n")
        self._process.stdin.flush()
        return self._line()

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()


@contextmanager
def attendant(scheme: str, folder: Path, *boot: str) -> Iterator[Attendant]:
    command = [sys.executable, str(PROGRAM), f"{scheme}:{folder}", *boot]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield Attendant(process)
        finally:
            process.kill()


# Pids

_HIDE = "mount -t proc -o hidepid=2 proc /proc"
_SAY = "from postroom.core.system import process; import os, sys; {}print(process.{})"


def in_a_namespace(command: list[str], says: str, then: str = "") -> str:
    """What a program says that is started in a namespace; skips where none can be made."""
    if subprocess.run([*command, "true"], capture_output=True, check=False).returncode != 0:
        pytest.skip(f"this cannot be made here, it takes root: {' '.join(command)}")
    program = [sys.executable, "-c", _SAY.format(then, says)]
    return subprocess.run([*command, *program], stdout=subprocess.PIPE, text=True, check=True).stdout.strip()


@pytest.mark.slow
@needs_linux("pid namespaces")
@pytest.mark.parametrize(
    ("command", "sees"),
    [
        (["unshare", "--pid", "--fork", "--mount-proc"], "True"),
        (["unshare", "--pid", "--fork"], "False"),
        (["unshare", "--mount", "sh", "-c", 'umount -l /proc; exec "$@"', "sh"], "False"),
    ],
    ids=["own", "foreign", "none"],
)
def test_pids_are_looked_up_only_in_a_proc_of_the_own_namespace(command: list[str], sees: str) -> None:
    assert in_a_namespace(command, "sees_processes()") == sees
    name = in_a_namespace(command, "this_process()")
    assert ("unseen" in name) == (sees == "False")
    assert in_a_namespace(command, f"process_alive({this_process()!r})") == "None"
    assert in_a_namespace(command, "process_alive(process.this_process())") == "True"
    assert in_a_namespace(command, "process_alive(process.host_id() + ':4194000:1')") == (
        "False" if sees == "True" else "None"
    )


def test_a_process_of_another_user_that_is_hidden_is_not_taken_for_dead() -> None:
    hidden = ["unshare", "--mount", "sh", "-c", f'{_HIDE}; exec "$@"', "sh"]
    # the first look while all of Python's library can still be read, wherever it lies
    another_user = "process.this_process(); os.setgroups([]); os.setgid(65534); os.setuid(65534); "
    assert in_a_namespace(hidden, f"process_alive({this_process()!r})", another_user) == "None"
    gone = f"{process.host_id()}:4194000:1"
    assert in_a_namespace(hidden, f"process_alive({gone!r})", another_user) == "False"


# Locks


@both
def test_a_process_whose_pid_cannot_be_seen_lives_until_it_is_killed(
    scheme: str, open_store: Open, tmp_path: Path
) -> None:
    with closing(open_store(tmp_path / "room", SystemClock())) as store, attendant(scheme, tmp_path / "room") as other:
        far = seen_from_elsewhere(other.name)
        assert process.process_alive(far) is None
        assert (store.process_alive(far), store.process_alive(other.name)) == (True, True)
        assert other.tell("alive", seen_from_elsewhere(store.process)) == "True"
        other.kill()
        assert (store.process_alive(far), store.process_alive(other.name)) == (False, False)


@both
def test_a_child_that_a_dead_process_left_behind_does_not_make_it_live(
    scheme: str, open_store: Open, tmp_path: Path
) -> None:
    with closing(open_store(tmp_path / "room", SystemClock())) as store, attendant(scheme, tmp_path / "room") as other:
        child = int(other.tell("fork"))
        try:
            other.kill()
            assert store.process_alive(seen_from_elsewhere(other.name)) is False
        finally:
            os.kill(child, signal.SIGKILL)


@both
def test_a_room_that_is_opened_twice_and_closed_once_is_still_attended(
    scheme: str, open_store: Open, tmp_path: Path
) -> None:
    with closing(open_store(tmp_path / "room", SystemClock())) as store, attendant(scheme, tmp_path / "room") as other:
        other.tell("twice")
        assert store.process_alive(seen_from_elsewhere(other.name)) is True


@both
def test_a_process_that_has_closed_the_room_has_left_it_and_is_not_dead(
    scheme: str, open_store: Open, tmp_path: Path
) -> None:
    with closing(open_store(tmp_path / "room", SystemClock())) as store, attendant(scheme, tmp_path / "room") as other:
        other.tell("close")
        assert store.process_alive(seen_from_elsewhere(other.name)) is False
        assert store.process_alive(other.name) is True


@both
def test_a_lock_that_other_code_of_the_process_lost_is_taken_again_with_the_next_claim(
    scheme: str, open_store: Open, tmp_path: Path
) -> None:
    folder = tmp_path / "room"
    with closing(open_store(folder, SystemClock())) as store, attendant(scheme, folder) as other:
        other.tell("meddle", str(alive_file(scheme, folder)))
        assert store.process_alive(seen_from_elsewhere(other.name)) is False, "or this test shows nothing"
        assert store.process_alive(other.name) is True
        other.tell("claim")
        assert store.process_alive(seen_from_elsewhere(other.name)) is True


@both
def test_where_the_file_cannot_be_opened_pids_tell_and_nobody_is_taken_for_dead(
    scheme: str, open_store: Open, tmp_path: Path
) -> None:
    folder = tmp_path / "room"
    open_store(folder, SystemClock()).close()
    alive_file(scheme, folder).unlink()
    alive_file(scheme, folder).mkdir()
    with closing(open_store(folder, SystemClock())) as store, attendant(scheme, folder) as other:
        assert (byte_of(store.process), byte_of(other.name)) == (None, None)
        assert store.stats().store["liveness"] == "pids"
        assert store.process_alive(other.name) is True
        assert store.process_alive(seen_from_elsewhere(other.name)) is None
        assert store.process_alive(BEFORE) is None
        other.kill()
        assert store.process_alive(other.name) is False


def test_where_locks_may_not_reach_everybody_a_missing_one_proves_nothing(tmp_path: Path) -> None:
    """A network file system, or a folder that a virtual machine shares with its host: its kind is not known as local."""
    here = liveness.Attendance(tmp_path, "ext4")
    there = liveness.Attendance(tmp_path, "virtiofs")
    try:
        assert (here.process, there.process) == (this_process(), without_byte(this_process()))
        assert (here.is_alive(BEFORE), there.is_alive(BEFORE)) == (False, None)
        assert (here.judged_by(), there.judged_by()) == ("locks", "pids")
    finally:
        here.close()
        there.close()


@pytest.mark.slow
@pytest.mark.parametrize("scheme", ["sqlite", "files"])
def test_a_room_that_is_open_outside_of_a_pid_namespace_is_seen_to_be_open_inside(scheme: str, tmp_path: Path) -> None:
    url = f"{scheme}:{tmp_path / 'room'}"
    asks = f"os; import postroom; print(postroom.open({url!r}).store.open_elsewhere()); "
    inside = ["unshare", "--pid", "--fork", "--mount-proc"]
    with postroom.open(url) as room:
        room.agent("ada")
        assert in_a_namespace(inside, "sees_processes()", asks).split() == ["True", "True"]
    assert in_a_namespace(inside, "sees_processes()", asks).split() == ["False", "True"]


def descriptors_of(path: Path) -> int:
    """How many descriptors of a file this process has."""
    found, about = 0, path.stat()
    for number in range(1024):
        with suppress(OSError):
            found += os.path.samestat(os.fstat(number), about)
    return found


@both
def test_the_file_of_locks_is_open_once_and_is_closed_with_the_room(
    scheme: str, open_store: Open, tmp_path: Path
) -> None:
    folder = tmp_path / "room"
    for _ in range(3):
        with closing(open_store(folder, SystemClock())), closing(open_store(folder, SystemClock())):
            assert descriptors_of(alive_file(scheme, folder)) == 1
        assert descriptors_of(alive_file(scheme, folder)) == 0


# What processes of earlier boots, and of containers that are gone, held or waited for


@both
def test_what_a_process_of_an_earlier_boot_held_is_free_at_once(scheme: str, open_store: Open, tmp_path: Path) -> None:
    clock = ManualClock()
    with closing(open_store(tmp_path / "room", clock)) as store:
        (id,) = store.put([letter()])
        assert len(store.claim(Want(agent="bob", lease_s=600, owner=BEFORE)).deliveries) == 1
        clock.advance(1)
        (delivery,) = store.claim(Want(agent="bob", lease_s=600, owner=store.process)).deliveries
        message = store.get(id)
        assert message is not None
        assert (delivery.message.delivery_count, message.ledger[2].event) == (2, "released")
        if isinstance(store, SqliteStore):
            assert store.read_only("SELECT name FROM processes")[1] == [(store.process,)]


@both
def test_the_answer_for_an_asker_of_an_earlier_boot_is_ordinary_mail(
    scheme: str, open_store: Open, tmp_path: Path
) -> None:
    clock = ManualClock()
    with closing(open_store(tmp_path / "room", clock)) as store:
        (question,) = store.put([letter(waiter=BEFORE)])
        (delivery,) = store.claim(Want(agent="bob", lease_s=600, ids=(question,))).deliveries
        answer = letter(from_agent="bob", to_agent="ada", answer_to=question)
        (id,) = store.settle(delivery.ticket, "answered", puts=[answer]).ids
        clock.advance(1)
        (mail,) = store.claim(Want(agent="ada", lease_s=600)).deliveries
        assert mail.message.id == id


# Where nothing can be seen


def unseen_agent(store: Store, clock: ManualClock, name: str, process: str) -> None:
    """An agent that a process has open which nobody here can see."""
    now_ms = clock.wall_ms()
    about = {"status": "active", "current_task": None, "heartbeat_ms": now_ms, "first_seen_ms": now_ms}
    store.cell_write(f"agent/{name}", {**about, "processes": [process], "transient": False})


@pytest.mark.parametrize("scheme", ["sqlite", "files"])
def test_nobody_waits_for_ever_for_a_process_that_cannot_be_seen_and_is_silent(scheme: str, tmp_path: Path) -> None:
    clock, unseen = ManualClock(), "elsewhere.1:7:9"
    with postroom.open(f"{scheme}:{tmp_path / 'room'}", clock=clock) as room:
        gateway, store, silences = room.gateway, room.store, presence.Silences()
        unseen_agent(store, clock, "eve", unseen)
        (asked,) = store.put([letter(from_agent="eve", waiter=unseen)])
        (answered,) = store.put([letter(from_agent="eve", waiter=unseen)])
        (delivery,) = store.claim(Want(agent="bob", lease_s=600, ids=(answered,))).deliveries
        answer = letter(from_agent="bob", to_agent="eve", answer_to=answered)
        (held,) = store.settle(delivery.ticket, "answered", puts=[answer]).ids

        presence.prune(gateway, silences)
        clock.jump_wall(86_400)  # what the wall clock says is no proof
        clock.advance(presence.SILENT_S - 1)
        assert presence.prune(gateway, silences) == 0
        assert [message.id for message in store.find(Query(states=frozenset({State.AWAITED}))).messages] == [held]

        clock.advance(1)
        assert presence.prune(gateway, silences) == 1
        assert presence.look(gateway, "eve")["status"] == presence.GONE  # type: ignore[index]
        assert store.find(Query(waiting=True)).messages == []
        (mail,) = store.claim(Want(agent="eve", lease_s=600)).deliveries
        assert mail.message.id == held
        question = store.get(asked)
        assert question is not None and question.waiter is None


def test_a_process_that_cannot_be_seen_and_speaks_is_left_alone(tmp_path: Path) -> None:
    clock = ManualClock()
    with postroom.open(f"sqlite:{tmp_path / 'room'}", clock=clock) as room:
        silences = presence.Silences()
        for _ in range(40):
            unseen_agent(room.store, clock, "eve", "elsewhere.1:7:9")
            assert presence.prune(room.gateway, silences) == 0
            clock.advance(HEARTBEAT_S)


# One time for all, whatever boot ids say


class Container(SystemClock):
    """A machine that shows a boot id of its own, and whose wall clock is wrong; the steady clock is the kernel's."""

    def __init__(self, boot: str, wall_s: float = 0) -> None:
        super().__init__()
        self._boot_id = boot
        self._wall_s = wall_s

    def wall_ms(self) -> int:
        return super().wall_ms() + round(self._wall_s * 1000)


@pytest.mark.slow
@both
@pytest.mark.parametrize("wall_s", [-3600, 3600])
def test_containers_that_show_different_boot_ids_number_messages_in_one_order(
    scheme: str, open_store: Open, tmp_path: Path, wall_s: float
) -> None:
    folder = tmp_path / "room"
    with attendant(scheme, folder, "one") as one, closing(open_store(folder, Container("two", wall_s))) as two:
        sent = [id for _ in range(5) for id in (one.tell("send"), *two.put([letter()]))]
        assert [message.id for message in two.find(Query()).messages] == sent
        claimed = two.claim(Want(agent="bob", lease_s=600, limit=99)).deliveries
        assert [delivery.message.id for delivery in claimed] == sent
    with closing(open_store(folder, Container("three", wall_s))) as three:  # nobody else is there: it goes on from here
        sent += three.put([letter()])
        assert [message.id for message in three.find(Query()).messages] == sent


@both
def test_a_room_that_others_in_another_process_have_open_keeps_its_time(
    scheme: str, open_store: Open, tmp_path: Path
) -> None:
    folder = tmp_path / "room"
    with attendant(scheme, folder), closing(open_store(folder, Container("two", 3600))) as store:
        (id,) = store.put([letter(delay_s=60)])
        message = store.get(id)
        assert message is not None and message.due_ms is not None
        offset_ms = int(id[:8] + id[9:13], 16) - SystemClock().wall_ms()
        assert abs(offset_ms) < 60_000, "it is numbered by the room's time, not by this wall clock"


# Clocks that are far off


@pytest.mark.parametrize("scheme", ["sqlite", "files", "memory"])
def test_a_clock_that_messages_cannot_be_numbered_by_is_told_and_a_right_one_works_afterwards(
    scheme: str, tmp_path: Path
) -> None:
    years_s = 200 * 365.25 * 86400

    def open_store(clock: SystemClock) -> Store:
        if scheme == "memory":
            return MemoryStore(Config(), clock)
        return (_sqlite if scheme == "sqlite" else _files)(tmp_path / "room", clock)

    with pytest.raises(RoomError, match="the year 22.* beyond 2109; set the clock"):
        open_store(Container("one", years_s))
    with closing(open_store(Container("one"))) as store:
        (id,) = store.put([letter()])
        assert len(store.claim(Want(agent="bob", lease_s=9)).deliveries) == 1
    if scheme != "memory":
        with pytest.raises(RoomError, match="set the clock"):  # after a boot with a dead battery
            open_store(Container("two", years_s))
        with closing(open_store(Container("two"))) as store:
            assert store.put([letter()])[0] > id
