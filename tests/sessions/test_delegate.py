"""`delegate`: workers in processes of their own, results in order, and one failure for all."""

from __future__ import annotations

import errno
import itertools
import json
import os
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

import postroom
from postroom.core.system.children import ForkServer
from postroom.room import Room
from postroom.sessions.delegation import Delegation
from postroom.sessions.session import Session

from . import workers
from .conftest import children_of, interrupt_at, runs

PATIENCE_S = 20.0


def gone_within(pids: list[int], span_s: float = PATIENCE_S) -> bool:
    until = time.monotonic() + span_s
    while time.monotonic() < until:
        if not any(runs(pid) for pid in pids):
            return True
        time.sleep(0.01)
    return False


def test_delegate_function_in_runtime(any_room: Room) -> None:
    """Fork and join: all run at the same time, and the results come in the order of the list."""
    with any_room.session() as session:
        results = session.delegate([workers.coordinator("a.rs"), workers.analyzer(), workers.short(3)])

    assert results == [{"file": "a.rs", "summary": "analyzed"}, "a.rs", 9]


def test_workers_are_processes_of_their_own(real_room: Room) -> None:
    with real_room.session() as session:
        pids = session.delegate([workers.process_id() for _ in range(4)])

    assert len({*pids, os.getpid()}) == 5
    assert gone_within(pids)


def test_in_a_memory_room_workers_are_threads() -> None:
    with postroom.open("memory:") as room, room.session() as session:
        assert session.delegate([workers.process_id()]) == [os.getpid()]


def test_a_worker_is_as_its_caller_is_now(real_room: Room, tmp_path: Path, monkeypatch: Any) -> None:
    """The fork server may be older than a change of folder or environment; its workers must not be."""
    with real_room.session() as session:
        session.delegate([workers.short(1)])
        monkeypatch.chdir(tmp_path)
        monkeypatch.setenv("A_WORD", "said")

        assert session.delegate([workers.where()]) == [{"cwd": str(tmp_path), "word": "said", "group": True}]


def test_arguments_and_results_are_json_and_copies(any_room: Room) -> None:
    given = {"list": [1]}
    call = workers.echo(given, 2, three="\N{POSTBOX}")
    given["list"].append(2)

    with any_room.session() as session:
        assert session.delegate([call, call]) == [[[{"list": [1]}, 2], {"three": "\N{POSTBOX}"}]] * 2
        with pytest.raises(postroom.InvalidMessage, match=r"arguments\[0\]\[0\]: must be JSON"):
            workers.echo(object())


def test_large_arguments_and_results_pass(real_room: Room) -> None:
    with real_room.session() as session:
        (echoed, made) = session.delegate([workers.echo("x" * 3_000_000), workers.big_result(5_000_000)])

    assert len(echoed[0][0]) == 3_000_000
    assert len(made) == 5_000_000


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        (workers.short, "call it: short()"),
        (workers.short(1), "a list of called workers"),
        ([workers.short], "call it: short()"),
        ([workers.short(1), 7], r"workers\[1\]: must be a called worker"),
        ("short", "a list of called workers"),
    ],
)
def test_what_is_not_a_list_of_called_workers_is_refused(any_room: Room, given: Any, problem: str) -> None:
    with any_room.session() as session:
        with pytest.raises(postroom.InvalidMessage, match=problem.replace("(", r"\(").replace(")", r"\)")):
            session.delegate(given)
        assert session.delegate([]) == []
        session.check_failed()


FAILURES = {
    "raise": ("worker fail raised ValueError: boom", "in fail"),
    "exit": (r"worker fail called sys.exit(0)", "sys.exit(0)"),
    "exit 3": ("worker fail called sys.exit(3)", "sys.exit(3)"),
    "memory": ("worker fail raised MemoryError", "raise error"),
    "recursion": ("worker fail raised RecursionError", "_recurse"),
    "not json": ("worker fail raised InvalidMessage: Invalid message: result: must be JSON, not object", ""),
}
DEATHS = {
    "hard exit": "worker fail ended with exit code 7 before it returned",
    "kill": "worker fail was killed by signal 9 (SIGKILL) before it returned",
    "segfault": "worker fail was killed by signal 11 (SIGSEGV) before it returned",
}


@pytest.mark.parametrize("how", FAILURES)
def test_a_worker_that_fails_fails_the_session(any_room: Room, how: str) -> None:
    """The error names the worker and carries its own traceback; the others are aborted, though they wait for ever."""
    message, in_stack = FAILURES[how]
    with any_room.session() as session:
        with pytest.raises(postroom.SessionFailed) as caught:
            session.delegate([workers.receive("never"), workers.fail(how), workers.receive("nor", 600_000)])

        failure = caught.value.failure
        assert failure == session.failure
        assert failure.message.startswith(message)
        assert str(caught.value) == f"Session {session.id} failed: {failure.message}"
        assert failure.worker == "fail"
        assert in_stack in failure.stack
        assert failure.stack.rstrip() in str(caught.value.__cause__)
        assert json.loads((session.dir / ".failed").read_text(encoding="utf-8"))["worker"] == "fail"


@pytest.mark.parametrize("how", DEATHS)
def test_a_worker_that_dies_fails_the_session(real_room: Room, how: str) -> None:
    with real_room.session() as session:
        with pytest.raises(postroom.SessionFailed) as caught:
            session.delegate([workers.receive("never"), workers.fail(how)])

        assert caught.value.failure.message == DEATHS[how]
        assert caught.value.failure.worker == "fail"


def test_a_deadline_fails_the_session(any_room: Room) -> None:
    with any_room.session() as session:
        with pytest.raises(postroom.SessionFailed, match=r"receive ran past the deadline of 0.3 s"):
            session.delegate([workers.short(1), workers.receive("never")], deadline_s=0.3, grace_s=PATIENCE_S)

        assert ends_of(session)[1] == "stopped with the session"


def test_a_worker_that_does_not_stop_is_terminated_in_order(real_room: Room, tmp_path: Path) -> None:
    with real_room.session() as session, pytest.raises(postroom.SessionFailed, match="boom"):
        session.delegate([workers.tidy_up(str(tmp_path)), workers.fail("raise", "ready")], grace_s=0.1)

    assert (tmp_path / "tidied").exists()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("stubborn", "end"),
    [(workers.ignore_everything, "was killed by signal 9 (SIGKILL)"), (workers.hold_the_lock, "failed")],
    ids=["for SIGKILL alone", "for signals alone"],
)
def test_a_worker_that_does_not_stop_by_itself_is_ended(real_room: Room, stubborn: Any, end: str) -> None:
    with real_room.session() as session:
        session.delegate([workers.short(1)])  # the fork server, and what sees to its end, stay
    before = children_of(os.getpid())
    with real_room.session() as session:
        with pytest.raises(postroom.SessionFailed, match="boom"):
            session.delegate([stubborn(), workers.fail("raise", "ready")], grace_s=0.1)

        assert ends_of(session) == [end, "failed"]
    assert gone_within([pid for pid in children_of(os.getpid()) if pid not in (*before, *_fork_servers())])


def _fork_servers() -> list[int]:
    from postroom.core.system import children

    return [] if children._shared is None else [children._shared._process.pid]


def test_a_process_that_the_system_refuses_fails_the_session_and_is_said_to_be(
    real_room: Room, no_more_processes: Path
) -> None:
    no_more_processes.touch()
    with real_room.session() as session:
        with pytest.raises(postroom.SessionFailed) as caught:
            session.delegate([workers.short(1)])

        said = "worker short could not be started: the system refused a process (Resource temporarily unavailable)"
        assert caught.value.failure.message == said
        (line,) = (session.dir / "workers.jsonl").read_text(encoding="utf-8").splitlines()
        assert json.loads(line)["pid"] is None
    no_more_processes.unlink()
    with real_room.session() as session:
        assert session.delegate([workers.short(2)]) == [4]


def ends_of(session: Session) -> list[str]:
    """How the workers of a session ended, by their number."""
    text = (session.dir / "workers.jsonl").read_text(encoding="utf-8")
    lines = sorted(map(json.loads, text.splitlines()), key=lambda line: int(line["number"]))
    return [line["end"] for line in lines]


def test_when_one_worker_cannot_be_started_none_is_left_waiting(
    real_room: Room, in_background: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    start, place = ForkServer.start, itertools.count(1)

    def start_the_first_three(server: ForkServer, target: str) -> Any:
        if next(place) > 3:
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        return start(server, target)

    with real_room.session() as session:
        monkeypatch.setattr(ForkServer, "start", start_the_first_three)
        with pytest.raises(OSError, match="Too many open files"):
            in_background(lambda: session.delegate([workers.short(number) for number in range(6)])).result()

        assert next(place) == 5
        assert ends_of(session) == ["was not started"] * 6
        assert session.failure is not None
        assert session.failure.message == "[Errno 24] Too many open files"


@pytest.mark.slow
def test_ctrl_c_while_workers_are_started_leaves_none_of_them_waiting(tmp_path: Path, in_background: Any) -> None:
    """Before every line of it. A worker without a task would wait for one for ever, and its caller for the worker."""
    with postroom.open(f"sqlite:{tmp_path}/room") as room:
        for place in itertools.count():
            with room.session() as session:
                delegating = in_background(lambda: interrupted_delegate(session, place))  # noqa: B023  waited for here
                try:
                    assert delegating.result() == [0, 1]
                    break
                except KeyboardInterrupt:
                    assert session.failure is not None
                    assert session.failure.message == "caller was interrupted (Ctrl-C)"
                    assert set(ends_of(session)) <= {"was not started", "stopped with the session", "done"}
                    assert len(ends_of(session)) == 2

    assert place > 10


@pytest.mark.slow
@pytest.mark.parametrize("place", range(0, 12, 2))
def test_a_second_ctrl_c_while_the_first_is_recorded_ends_the_workers_at_once(
    tmp_path: Path, in_background: Any, monkeypatch: pytest.MonkeyPatch, place: int
) -> None:
    """The first stays recorded, and the grace is not waited for: it is longer than the patience of the test."""
    second = interrupt_at(place, "line", "fail", "write_failed_file")
    pause = Delegation._pause
    interrupts: list[str] = []

    def interrupted_pause(delegation: Delegation, span_s: float) -> None:
        if not interrupts:
            session.mailbox.ready.receive()
            interrupts.append("first")
            sys.settrace(second)
            raise KeyboardInterrupt
        pause(delegation, span_s)

    def delegate() -> None:
        try:
            session.delegate([workers.hold_the_lock()], grace_s=3600)
        finally:
            if sys.gettrace() is None:  # the worker may be gone before there is another pause
                interrupts.append("second")
            sys.settrace(None)

    monkeypatch.setattr(Delegation, "_pause", interrupted_pause)
    with postroom.open(f"sqlite:{tmp_path}/room") as room, room.session() as session:
        with pytest.raises(KeyboardInterrupt):
            in_background(delegate).result()

        assert interrupts == ["first", "second"]
        assert session.failure is not None
        assert session.failure.message == "caller was interrupted (Ctrl-C)"
        assert (session.dir / ".failed").exists()
        assert len(ends_of(session)) == 1


def interrupted_delegate(session: Session, place: int) -> list[Any]:
    sys.settrace(interrupt_at(place, "line", "_start"))
    try:
        return session.delegate([workers.short(0), workers.short(1)])
    finally:
        sys.settrace(None)


def test_threads_that_cannot_all_be_started_leave_nobody_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    begun: list[str] = []

    def start(thread: threading.Thread) -> None:
        if thread.name.startswith("worker") and len(begun) == 2:
            raise RuntimeError("can't start new thread")
        begun.append(thread.name)
        start_thread(thread)

    start_thread = threading.Thread.start
    with postroom.open("memory:") as room, room.session() as session:
        monkeypatch.setattr(threading.Thread, "start", start)
        with pytest.raises(RuntimeError, match="can't start new thread"):
            session.delegate([workers.receive("never") for _ in range(4)])

        assert ends_of(session) == ["stopped with the session"] * 2 + ["was not started"] * 2


def test_what_a_worker_leaves_running_ends_with_it(real_room: Room) -> None:
    with real_room.session() as session:
        (pid,) = session.delegate([workers.leave_children()])

    assert gone_within([pid])


def test_a_delegate_nests(any_room: Room) -> None:
    with any_room.session() as session:
        ((first, second, _),) = session.delegate([workers.nest("work")])

    assert first == {"file": "nested", "summary": "analyzed"}
    assert second == "nested"


def test_a_failing_grandchild_fails_everybody(any_room: Room) -> None:
    with any_room.session() as session:
        with pytest.raises(postroom.SessionFailed, match="worker fail raised ValueError: boom"):
            session.delegate([workers.nest("fail"), workers.receive("never")])

        assert session.failure is not None
        assert session.failure.worker == "fail"


def test_outsiders_hear_of_the_failure(any_room: Room, in_background: Any) -> None:
    with any_room.session() as session:
        other = any_room.session(session.id, name="outsider")
        pending = in_background(lambda: other.mailbox.never.receive(600_000))
        with pytest.raises(postroom.SessionFailed):
            session.delegate([workers.fail("raise")])

        with pytest.raises(postroom.SessionFailed, match="boom"):
            pending.result()


def test_a_failure_from_outside_stops_the_workers(any_room: Room, in_background: Any) -> None:
    with any_room.session() as session:
        pending = in_background(
            lambda: session.delegate([workers.note_then_receive(str(session.dir)) for _ in range(3)])
        )
        pids = [session.mailbox.ready.receive(60_000) for _ in range(3)]
        (session.dir / ".failed").write_text('{"message": "enough"}', encoding="utf-8")

        with pytest.raises(postroom.SessionFailed, match="enough"):
            pending.result()
        assert gone_within([pid for pid in pids if pid != os.getpid()])


def test_a_session_can_delegate_again_and_again(any_room: Room) -> None:
    with any_room.session() as session:
        for number in range(3):  # a thousand times: tests/sessions/test_many.py
            results = session.delegate([workers.short(number), workers.short(number + 1)])
            assert results == [number**2, (number + 1) ** 2]
        assert [cell.value["name"] for cell in any_room.store.cell_scan("member:")] == ["caller"]


def test_workers_inside_functions_are_refused(real_room: Room) -> None:
    @postroom.worker
    def inside(session: Any) -> None: ...

    with real_room.session() as session:
        with pytest.raises(postroom.NotStartable, match="defined inside a function.*top level of a module"):
            session.delegate([inside()])
        session.check_failed()
    with postroom.open("memory:") as room, room.session() as session:
        assert session.delegate([inside()]) == [None]


GUARDED = """
import sys, postroom
@postroom.worker
def double(session, n):
    return Number(n * 2).value
class Number:
    def __init__(self, value): self.value = value
def main():
    with postroom.open("sqlite:" + sys.argv[1]) as room, room.session() as session:
        print(session.delegate([double(1), double(2)]))
"""


def run_program(text: str, tmp_path: Path, *words: str, stdin: str | None = None) -> subprocess.CompletedProcess[str]:
    (tmp_path / "program.py").write_text(text, encoding="utf-8")
    argv = [sys.executable, "-W", "error", *(words or ("program.py", "room"))]
    return subprocess.run(argv, cwd=tmp_path, input=stdin, capture_output=True, text=True, check=False, timeout=60)


@pytest.mark.slow
@pytest.mark.parametrize("words", [("program.py", "room"), ("-m", "program", "room")])
def test_a_worker_in_a_guarded_program_works(tmp_path: Path, words: tuple[str, ...]) -> None:
    done = run_program(GUARDED + "if __name__ == '__main__':\n    main()\n", tmp_path, *words)

    assert (done.stdout, done.stderr) == ("[2, 4]\n", "")


@pytest.mark.slow
@pytest.mark.parametrize("words", [("program.py", "room"), ("-m", "program", "room")])
def test_a_worker_in_a_program_without_a_guard_is_refused_with_what_to_do(
    tmp_path: Path, words: tuple[str, ...]
) -> None:
    done = run_program(GUARDED + "main()\n", tmp_path, *words)

    assert done.returncode == 1
    last = done.stderr.strip().splitlines()[-1]
    assert last.startswith("postroom.errors.NotStartable: line 11 of ")
    assert last.endswith('put that part under `if __name__ == "__main__":`')
    assert done.stdout == ""


def test_a_worker_typed_in_by_hand_is_refused_with_what_to_do(tmp_path: Path) -> None:
    typed = GUARDED.replace("\nclass", "\n\nclass").replace("\ndef main", "\n\ndef main") + "\nmain()\n"
    done = run_program("", tmp_path, "-i", "-", "room", stdin=typed)

    assert "put it into a .py file and import it from there" in done.stderr


@pytest.mark.slow
def test_a_worker_of_an_imported_module_works_from_everywhere(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(GUARDED, encoding="utf-8")
    text = "import sys, mine\nmine.main()\n"

    assert run_program(text, tmp_path).stdout == "[2, 4]\n"
    assert "[2, 4]\n" in run_program("", tmp_path, "-", "room", stdin=text).stdout


def test_a_worker_that_cannot_open_the_room_says_why(real_room: Room, monkeypatch: Any) -> None:
    with real_room.session() as session:
        session._host.url = "sqlite:/dev/null/nowhere"
        with pytest.raises(
            postroom.SessionFailed, match="worker short raised RoomError: .*cannot be made|worker short raised Room"
        ):
            session.delegate([workers.short(1)])
