"""A whole machine is gone: what its processes held, opened or were asked is let go on the others within a stated time.

A process in a pid namespace of its own cannot be seen from here, as if it ran on another machine; it is killed, and its silence
must tell. `ALIVE_S` and `SILENT_S` (20 and 10 s) are made small for the normal run, and left as they are for the long one.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.support.nats_servers import room_name, shared_server
from tests.support.systems import needs_linux

import postroom
from postroom.core.clock import SYSTEM
from postroom.core.states import State
from postroom.core.system.process import process_alive
from postroom.room import Room, open_room
from postroom.stores.nats import heartbeats

AS_IT_IS = pytest.param(heartbeats.ALIVE_S, marks=pytest.mark.long, id="as it is")
pytestmark = [pytest.mark.slow, needs_linux("pid namespaces")]
often = pytest.mark.parametrize("alive_s", [pytest.param(2, id="small"), AS_IT_IS])
seldom = pytest.mark.parametrize("alive_s", [pytest.param(2, id="small", marks=pytest.mark.long), AS_IT_IS])
PROGRAM = Path(__file__).parent / "programs" / "elsewhere.py"
PATIENCE_S = 90.0
#: Between the death and the moment at which everybody knows; and what a busy machine adds.
STATED_S = 40.0
BUSY_S = 20.0


def can_hide() -> bool:
    """Whether a process can be started whose pid cannot be seen from here."""
    return shutil.which("unshare") is not None and subprocess.run(
        ["unshare", "--pid", "--fork", "--mount-proc", "true"], capture_output=True, check=False
    ).returncode == 0  # fmt: skip


class Stopwatch:
    """Counts the time in which this process could run: a machine that was held up for a while is not late."""

    def __init__(self) -> None:
        self.passed_s = 0.0
        self._stop = threading.Event()
        # the name says that it does nothing for any member of a session: one who waits would not count as blocked beside it
        self._thread = threading.Thread(target=self._run, name="postroom stopwatch", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        last_ns = SYSTEM.steady_ns()
        while not self._stop.wait(0.05):
            now_ns = SYSTEM.steady_ns()
            self.passed_s += min((now_ns - last_ns) / 1e9, 0.5)
            last_ns = now_ns

    def stop(self) -> None:
        self._stop.set()
        self._thread.join()


class Elsewhere:
    """A program on another machine."""

    def __init__(self, url: str, what: str, alive_s: int, *words: str) -> None:
        program = [sys.executable, str(PROGRAM), url, what, str(alive_s), *words]
        self._process = subprocess.Popen(
            ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc", *program],
            stdout=subprocess.PIPE, text=True, env={**os.environ, "PYTHONPATH": str(Path(postroom.__file__).parents[1])},
        )  # fmt: skip
        self._since: Stopwatch | None = None

    def says(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline().strip()

    def kill(self) -> None:
        if self._since is None:
            self._since = Stopwatch()
            self._process.kill()
            self._process.communicate()

    @property
    def dead_s(self) -> float:
        """How long ago it was killed."""
        assert self._since is not None
        return self._since.passed_s

    def check_in_time(self) -> None:
        assert heartbeats.SILENT_S <= self.dead_s < STATED_S + BUSY_S

    def forget(self) -> None:
        self.kill()
        assert self._since is not None
        self._since.stop()


@pytest.fixture
def url() -> str:
    if not can_hide():
        pytest.skip("this system lets nobody start a process in a pid namespace of its own")
    return f"nats://{shared_server().address}/{room_name()}"


@pytest.fixture
def room(url: str, alive_s: int, monkeypatch: pytest.MonkeyPatch) -> Iterator[Room]:
    monkeypatch.setattr(heartbeats, "SILENT_S", alive_s / 2)
    with open_room(url) as room:
        yield room


@pytest.fixture
def run_elsewhere(url: str, alive_s: int) -> Iterator[Callable[..., Elsewhere]]:
    started: list[Elsewhere] = []

    def start(what: str, *words: str) -> Elsewhere:
        started.append(Elsewhere(url, what, alive_s, *words))
        return started[-1]

    yield start
    for each in started:
        each.forget()


Runner = Callable[..., Elsewhere]


@often
def test_what_a_process_elsewhere_held_is_let_go_when_it_falls_silent(room: Room, run_elsewhere: Runner) -> None:
    id = room.agent("ada").send("bob", {"text": "hi"})
    holder = run_elsewhere("hold")
    assert holder.says() == id
    owner = str(room.store.get(id).owner)  # type: ignore[union-attr]
    assert process_alive(owner) is None
    assert room.store.process_alive(owner) is True
    assert room.store.sweep().released == 0
    holder.kill()

    while room.store.sweep().released == 0:
        assert holder.dead_s < PATIENCE_S, "it is held for ever"
        SYSTEM.sleep(0.5)

    message = room.store.get(id)
    assert message is not None
    assert message.exact_state is State.READY
    assert "process is gone" in str(message.ledger[-1].detail)
    holder.check_in_time()


@often
def test_a_session_fails_when_the_machine_of_its_opener_is_gone(room: Room, run_elsewhere: Runner) -> None:
    opener = run_elsewhere("open")
    with room.session(opener.says(), name="joined") as session:
        timer = threading.Timer(0.5, opener.kill)
        timer.start()

        with pytest.raises(postroom.SessionFailed, match="the process that opened the session was killed"):
            session.mailbox.box.receive(3 * PATIENCE_S * 1000)

        timer.join()
        opener.check_in_time()
        with pytest.raises(postroom.SessionFailed):
            session.mailbox.box.send(1)


@seldom
def test_a_member_whose_machine_is_gone_no_longer_counts_and_who_waits_for_it_alone_is_told(
    room: Room, run_elsewhere: Runner
) -> None:
    with room.session() as session:
        joined = run_elsewhere("join", session.id)
        assert joined.says() == "joined"
        timer = threading.Timer(0.5, joined.kill)
        timer.start()

        with pytest.raises(postroom.Deadlock, match="caller waits on mailbox box"):
            session.mailbox.box.receive()

        timer.join()
        joined.check_in_time()


@seldom
def test_who_asks_somebody_whose_machine_is_gone_is_told(room: Room, run_elsewhere: Runner) -> None:
    peer = run_elsewhere("serve")
    assert peer.says() == "serves"
    timer = threading.Timer(0.5, peer.kill)
    timer.start()

    with pytest.raises(postroom.PeerGone):
        room.agent("ada").ask("bob", {"q": 1}, timeout_s=None)

    timer.join()
    peer.check_in_time()


@seldom
def test_a_task_whose_owner_s_machine_is_gone_goes_to_another(room: Room, run_elsewhere: Runner) -> None:
    room.board.add("T1", title="t")
    owner = run_elsewhere("task")
    assert owner.says() == "T1"
    assert room.board.claim(agent="here") is None
    owner.kill()

    while room.board.claim(agent="here") is None:
        assert owner.dead_s < PATIENCE_S, "it is held for ever"
        SYSTEM.sleep(0.5)

    owner.check_in_time()
