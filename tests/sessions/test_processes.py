"""Children are started, watched and ended here, and none outlives its caller."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import resource
import signal
import socket
import subprocess
import sys
import termios
import threading
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path

import pytest
from tests.support.patience import until

from postroom.core.system import children as processes
from postroom.core.system.children import Child, Ended, ForkServer
from postroom.core.system.framing import read_frame, send_frame

from .conftest import children_of, interrupt_at, runs
from .test_delegate import gone_within

pytestmark = pytest.mark.slow  # real processes, waited for

HERE = "sessions.test_processes"
PATIENCE_S = 20.0


@pytest.fixture(autouse=True, scope="module")
def children_before() -> list[int]:
    """The processes that tests of other modules keep for the whole run, such as the fork server of the command line."""
    return children_of(os.getpid())


# What children run


def answer(control: socket.socket) -> int:
    frame = read_frame(control)
    assert frame is not None
    send_frame(control, frame[::-1])
    return 3


def linger(control: socket.socket) -> None:
    send_frame(control, b"here")
    while True:
        signal.pause()


def linger_with_children(control: socket.socket) -> None:
    child = subprocess.Popen(["sleep", "600"])
    send_frame(control, str(child.pid).encode())
    while True:
        signal.pause()


def speak(control: socket.socket) -> None:
    print("out")
    print("err", file=sys.stderr)
    raise RuntimeError("broken")


def leave_a_thread(control: socket.socket) -> None:
    """A thread that is not a daemon is waited for, as at the end of every Python program."""
    threading.Timer(0.2, lambda: print("late")).start()


def say_last_words(text: str) -> None:
    path, _, words = text.partition("=")
    Path(path).write_text(words, encoding="utf-8")


def break_down(text: str) -> None:
    raise RuntimeError(text)


def state_of(pid: int) -> str:
    """The letter that the system has for what a process does: S sleeps, T was stopped."""
    return Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0]


@pytest.fixture
def server() -> Iterator[ForkServer]:
    made = ForkServer([HERE])
    yield made
    made.close()
    assert not made.alive


def test_a_child_runs_a_function_and_tells_how_it_ended(server: ForkServer) -> None:
    child = server.start(f"{HERE}:answer")
    send_frame(child.control, b"abc")

    assert read_frame(child.control) == b"cba"
    assert child.wait(PATIENCE_S) == Ended(3, None)
    assert child.pid not in (0, os.getpid())
    child.close()
    child.close()


def test_output_and_errors_come_apart(server: ForkServer) -> None:
    child = server.start(f"{HERE}:speak")

    assert child.wait(PATIENCE_S) == Ended(1, None)
    assert os.read(child.output, 100) == b"out\n"
    told = os.read(child.errors, 10_000).decode()
    assert told.startswith("err\nTraceback")
    assert told.endswith("RuntimeError: broken\n")
    child.close()


def test_a_signal_reaches_the_child_and_all_it_started(server: ForkServer) -> None:
    child = server.start(f"{HERE}:linger_with_children")
    grandchild = int(read_frame(child.control) or b"0")
    assert child.wait(0) is None
    child.send_signal(signal.SIGTERM)

    ended = child.wait(PATIENCE_S)
    assert ended == Ended(None, signal.SIGTERM)
    assert str(ended) == "was killed by signal 15 (SIGTERM)"
    assert gone_within([child.pid, grandchild])
    child.send_signal(signal.SIGKILL)  # to nobody: its pid may be somebody else's by now
    child.close()


def test_a_signal_for_the_child_alone_leaves_what_it_started_in_peace(server: ForkServer) -> None:
    child = server.start(f"{HERE}:linger_with_children")
    grandchild = int(read_frame(child.control) or b"0")
    until(lambda: state_of(grandchild) == "S")
    child.send_signal(signal.SIGSTOP, alone=True)
    until(lambda: state_of(child.pid) == "T")

    assert state_of(grandchild) == "S"
    child.send_signal(signal.SIGSTOP)
    until(lambda: state_of(grandchild) == "T")
    child.close()
    assert gone_within([grandchild])


def test_closing_a_child_that_runs_kills_it(server: ForkServer) -> None:
    child = server.start(f"{HERE}:linger")
    assert read_frame(child.control) == b"here"
    pid = child.pid
    child.close()

    assert gone_within([pid])


def test_a_child_leads_a_group_of_its_own(server: ForkServer) -> None:
    child = server.start(f"{HERE}:linger")
    assert read_frame(child.control) == b"here"

    assert os.getpgid(child.pid) == child.pid
    assert os.getsid(child.pid) != os.getsid(0)
    child.close()


def test_a_function_that_is_not_there_ends_the_child_with_a_traceback(server: ForkServer) -> None:
    child = server.start("postroom.nowhere:nothing")

    assert child.wait(PATIENCE_S) == Ended(1, None)
    assert b"No module named 'postroom.nowhere'" in os.read(child.errors, 10_000)
    child.close()


def test_threads_of_a_child_are_waited_for(server: ForkServer) -> None:
    child = server.start(f"{HERE}:leave_a_thread")

    assert child.wait(PATIENCE_S) == Ended(0, None)
    assert os.read(child.output, 100) == b"late\n"
    child.close()


def test_many_children_run_side_by_side(server: ForkServer) -> None:
    children = [server.start(f"{HERE}:answer") for _ in range(20)]
    for number, child in enumerate(children):
        send_frame(child.control, f"{number:03d}".encode())

    assert [read_frame(child.control) for child in children] == [f"{n:03d}"[::-1].encode() for n in range(20)]
    assert {child.wait(PATIENCE_S) for child in children} == {Ended(3, None)}
    for child in children:
        child.close()


def test_what_there_are_no_descriptors_for_is_refused_and_leaves_none_open() -> None:
    """Whichever descriptor is the first that is missing, of a child and of a fork server; the next child runs."""
    text = f"import sys; sys.path[:] = {sys.path!r}; from sessions.few_descriptors import main; main()"
    told = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, timeout=60, check=False)

    assert told.stderr == ""
    lines = [json.loads(line) for line in told.stdout.splitlines()]
    refused = {"error": "Too many open files", "stays open": []}
    assert [line for line in lines if line["what"] == "server"] == [
        {"what": "server", "left": left, **refused} for left in range(3)
    ]
    assert [line for line in lines if line["what"] == "child"] == [
        {"what": "child", "left": left, **refused} for left in range(8)
    ]
    assert [line["ended"] for line in lines if line["what"] == "next"] == [[3, None, None]] * 8


REFUSED = "could not be started: the system refused a process (Resource temporarily unavailable)"


def test_a_process_that_the_system_refuses_costs_that_start_alone(no_more_processes: Path) -> None:
    server = processes.shared_server()
    before = server.start(f"{HERE}:answer")
    assert before.pid
    no_more_processes.touch()
    refused = server.start(f"{HERE}:answer")

    ended = refused.wait(PATIENCE_S)
    assert ended == Ended(None, None, errno.EAGAIN)
    assert str(ended) == REFUSED
    assert refused.pid == 0
    refused.send_signal(signal.SIGKILL)
    refused.close()
    no_more_processes.unlink()
    after = server.start(f"{HERE}:answer")
    for child in (before, after):
        send_frame(child.control, b"abc")
        assert child.wait(PATIENCE_S) == Ended(3, None)
        child.close()


def test_a_server_without_descriptors_for_a_child_goes_on(server: ForkServer) -> None:
    before = server.start(f"{HERE}:linger")
    assert before.pid  # and all that is only for it was closed in the server
    pid = server._process.pid
    limits = resource.prlimit(pid, resource.RLIMIT_NOFILE)
    taken = {int(name) for name in os.listdir(f"/proc/{pid}/fd")}
    free = (number for number in count() if number not in taken)
    resource.prlimit(pid, resource.RLIMIT_NOFILE, ([next(free) for _ in range(4)][-1], limits[1]))

    for _ in range(5):  # it keeps none of those that it got
        child = server.start(f"{HERE}:answer")
        assert child.wait(PATIENCE_S) == Ended(None, None, errno.EMFILE)
        child.close()
    resource.prlimit(pid, resource.RLIMIT_NOFILE, limits)
    child = server.start(f"{HERE}:answer")
    send_frame(child.control, b"abc")
    assert child.wait(PATIENCE_S) == Ended(3, None)
    assert before.wait(0) is None
    for each in (before, child):
        each.close()


def test_ctrl_c_at_any_moment_of_asking_a_server_leaves_it_in_order(
    server: ForkServer, pipes_left: Callable[[], set[int]]
) -> None:
    """A frame whose length has left without its body would be waited for, and nothing else be done, for ever."""
    for place in count():
        child = start_interrupted(server, place)
        if child is None:
            assert pipes_left() == set()
            child = server.start(f"{HERE}:answer")
            send_frame(child.control, b"abc")
            assert child.wait(PATIENCE_S) == Ended(3, None), f"it hangs after an interrupt at step {place}"
            child.close()
        else:
            child.close()
            assert place > 20
            break


def start_interrupted(server: ForkServer, place: int) -> Child | None:
    """Start a child, with a Ctrl-C at some step of the sending. None when that came."""
    before = sys.gettrace()
    sys.settrace(interrupt_at(place, "opcode", "send_frame", "send_fds"))
    try:
        return server.start(f"{HERE}:answer")
    except KeyboardInterrupt:
        return None
    finally:
        sys.settrace(before)


def interrupt_once_half_has_left(control: socket.socket) -> None:
    until(lambda: fcntl.ioctl(control, termios.TIOCOUTQ, bytes(4)) != bytes(4))  # that many bytes were not yet taken
    signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)


def test_a_server_that_got_half_of_a_long_frame_ends_in_order() -> None:
    """And does not take what others ask next for the other half. Its children end with it, and the next start has another."""
    server = ForkServer([HERE])
    child = server.start(f"{HERE}:linger_with_children")
    pids = [int(read_frame(child.control) or b"0"), child.pid]
    os.kill(server._process.pid, signal.SIGSTOP)  # it takes nothing, so that we wait in the middle
    interrupter = threading.Thread(target=interrupt_once_half_has_left, args=(server._control,))
    interrupter.start()
    with pytest.raises(KeyboardInterrupt):
        server.will("a", f"{HERE}:break_down", "x" * 5_000_000)
    interrupter.join()
    os.kill(server._process.pid, signal.SIGCONT)

    assert child.wait(PATIENCE_S) == Ended(None, signal.SIGKILL)
    assert gone_within([*pids, server._process.pid])
    assert not server.alive
    child.close()
    server.close()


def test_children_of_a_killed_server_are_gone_and_said_to_be_lost(server: ForkServer) -> None:
    child = server.start(f"{HERE}:linger")
    assert read_frame(child.control) == b"here"
    pid = child.pid
    os.kill(server._process.pid, signal.SIGKILL)

    assert child.wait(PATIENCE_S) == Ended(None, None)
    assert gone_within([pid])
    child.close()


def test_what_children_of_a_killed_server_have_started_is_gone_too(server: ForkServer) -> None:
    """The system kills the children alone."""
    children = [server.start(f"{HERE}:linger_with_children") for _ in range(2)]
    pids = [int(read_frame(child.control) or b"0") for child in children] + [child.pid for child in children]
    apart = subprocess.Popen(["sleep", "600"])
    os.kill(server._process.pid, signal.SIGKILL)

    assert [child.wait(PATIENCE_S) for child in children] == [Ended(None, None)] * 2
    assert not any(runs(pid) for pid in pids)
    assert runs(apart.pid)
    apart.kill()
    apart.wait()
    for child in children:
        child.close()


def test_what_a_killed_server_leaves_is_gone_although_nobody_watched(server: ForkServer) -> None:
    child = server.start(f"{HERE}:linger_with_children")
    pids = [int(read_frame(child.control) or b"0"), child.pid]
    os.kill(server._process.pid, signal.SIGKILL)
    until(lambda: not server.alive)

    assert not any(runs(pid) for pid in pids)
    child.close()


def test_the_number_of_a_server_that_somebody_else_reaped_is_left_alone() -> None:
    """It may be another's by now."""
    server = ForkServer([HERE])
    child = server.start(f"{HERE}:linger_with_children")
    grandchild = int(read_frame(child.control) or b"0")
    os.kill(server._process.pid, signal.SIGKILL)
    os.waitpid(server._process.pid, 0)

    assert child.wait(PATIENCE_S) == Ended(None, None)
    assert not server.alive
    assert runs(grandchild)
    os.kill(grandchild, signal.SIGKILL)
    child.close()
    server.close()


def test_a_server_that_another_thread_closed_is_gone_for_its_children_and_no_error() -> None:
    server = ForkServer([HERE])
    child = server.start(f"{HERE}:linger")
    read_frame(child.control)
    server.close()
    child.send_signal(signal.SIGTERM)  # nobody has looked yet how it ended
    lost = server.start(f"{HERE}:linger")

    assert child.wait(PATIENCE_S) == Ended(None, signal.SIGKILL)
    assert lost.wait(PATIENCE_S) == Ended(None, None)
    child.close()
    lost.close()


def test_a_server_that_died_is_replaced() -> None:
    first = processes.shared_server([HERE])
    assert processes.shared_server() is first
    os.kill(first._process.pid, signal.SIGKILL)
    first._process.wait(PATIENCE_S)
    second = processes.shared_server([HERE])

    assert second is not first
    child = second.start(f"{HERE}:answer")
    send_frame(child.control, b"abc")
    assert child.wait(PATIENCE_S) == Ended(3, None)
    child.close()


CALLER = """
import os, sys, signal
sys.path[:] = {path!r}
from postroom.core.system.children import ForkServer
from postroom.core.system.framing import read_frame
server = ForkServer(["sessions.test_processes"])
for key, target, words in {wills!r}:
    server.will(key, target and "sessions.test_processes:" + target, words)
children = [server.start("sessions.test_processes:" + name) for name in ("linger", "linger_with_children")]
told = [read_frame(child.control) for child in children]
print(server._process.pid, *(child.pid for child in children), told[1].decode(), flush=True)
{then}
"""


def start_caller(then: str, wills: list[tuple[str, str | None, str]]) -> tuple[subprocess.Popen[str], list[int]]:
    text = CALLER.format(path=sys.path, wills=wills, then=then)
    caller = subprocess.Popen([sys.executable, "-c", text], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert caller.stdout is not None
    return caller, [int(word) for word in caller.stdout.readline().split()]


FORKED = "pid = os.fork()\nif pid == 0: signal.pause()\nprint(pid, flush=True)\nsignal.pause()"


@pytest.mark.parametrize("then", ["signal.pause()", FORKED])
def test_when_the_caller_is_killed_its_children_are_gone_and_its_wills_are_done(tmp_path: Path, then: str) -> None:
    """Also when a fork of the caller keeps its sockets open, so that nothing is seen to be closed."""
    wills = [
        ("a", "say_last_words", f"{tmp_path}/a=one"),
        ("b", "break_down", "this will cannot be done"),
        ("c", "say_last_words", f"{tmp_path}/c=two"),
        ("d", "say_last_words", f"{tmp_path}/d=three"),
        ("a", None, ""),
    ]
    caller, pids = start_caller(then, wills)
    forked = int(caller.stdout.readline()) if then is FORKED and caller.stdout else None
    assert all(runs(pid) for pid in pids)
    caller.kill()

    assert gone_within(pids, 10)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["c", "d"]
    assert (tmp_path / "c").read_text(encoding="utf-8") == "two"
    if forked is not None:
        os.kill(forked, signal.SIGKILL)
    _, told = caller.communicate(timeout=PATIENCE_S)
    assert "this will cannot be done" in told


def test_wills_of_a_caller_that_was_gone_before_its_server_was_up_are_done_too(tmp_path: Path) -> None:
    text = (
        f"import os, sys; sys.path[:] = {sys.path!r}\n"
        "from postroom.core.system.children import ForkServer\n"
        f"server = ForkServer(); server.will('a', '{HERE}:say_last_words', {f'{tmp_path}/a=one'!r})\n"
        "print(server._process.pid, flush=True); os.kill(os.getpid(), 9)\n"
    )
    done = subprocess.run([sys.executable, "-c", text], stdout=subprocess.PIPE, text=True, check=False)

    assert gone_within([int(done.stdout)], 10)
    assert (tmp_path / "a").read_text(encoding="utf-8") == "one"


@pytest.mark.parametrize("then", ["sys.exit(0)", "raise ValueError", "os._exit(1)"])
def test_when_the_caller_ends_its_children_are_gone(then: str) -> None:
    caller, pids = start_caller(then, [])
    caller.communicate(timeout=PATIENCE_S)

    assert gone_within(pids, 10)


def test_children_are_gone_within_two_seconds_of_their_callers_death() -> None:
    """Once of three times: the machine may be busy with other things."""
    for _ in range(3):
        caller, pids = start_caller("signal.pause()", [])
        caller.kill()
        in_time = gone_within(pids, 2)
        assert gone_within(pids)
        caller.communicate()
        if in_time:
            return
    raise AssertionError("they were there for longer, three times")


def test_a_program_that_ends_leaves_no_server(tmp_path: Path) -> None:
    text = (
        f"import sys\nsys.path[:] = {sys.path!r}\nfrom postroom.core.system import children as processes\n"
        f"server = processes.shared_server()\nprint(server._process.pid)\n"
    )
    done = subprocess.run(
        [sys.executable, "-W", "error", "-X", "dev", "-c", text], capture_output=True, text=True, check=True
    )

    assert done.stderr == ""
    assert not runs(int(done.stdout))


def test_a_fork_of_the_caller_has_no_server_of_its_own() -> None:
    text = (
        f"import os, sys\nsys.path[:] = {sys.path!r}\nfrom postroom.core.system import children as processes\n"
        "server = processes.shared_server()\n"
        "pid = os.fork()\nif pid == 0:\n    assert processes._shared is None\n    sys.exit(0)\n"
        "assert os.waitpid(pid, 0)[1] == 0\nassert server.alive\n"
    )
    done = subprocess.run([sys.executable, "-W", "error", "-c", text], capture_output=True, text=True, check=False)

    assert (done.returncode, done.stderr) == (0, "")


def test_no_process_is_left_by_these_tests(children_before: list[int]) -> None:
    processes.close_shared_server()

    assert gone_within([pid for pid in children_of(os.getpid()) if pid not in children_before])
