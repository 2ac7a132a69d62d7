"""`postroom session`: what a person sees of sessions, and the emergency stop."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

import postroom
from postroom.room import Room

from .support import Cli, start

PROGRAM = """
import os, signal, sys, time, postroom
@postroom.worker
def waits(session):
    session.mailbox.ready.send(os.getpid())
    session.mailbox.never.receive(600_000)
@postroom.worker
def stubborn(session):
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    session.mailbox.ready.send(os.getpid())
    time.sleep(600)
if __name__ == "__main__":
    with postroom.open(sys.argv[1]) as room, room.session() as session:
        print(session.id, flush=True)
        session.delegate([waits(), globals()[sys.argv[2]]()], grace_s=float(sys.argv[3]))
"""
PATIENCE_S = 30.0


def start_program(folder: Path, worker: str = "waits", grace_s: str = "2") -> tuple[subprocess.Popen[str], str]:
    """A program whose workers wait; returns it and its session's id once they run."""
    (folder / "program.py").write_text(PROGRAM, encoding="utf-8")
    words = [sys.executable, "program.py", "sqlite:.postroom", worker, grace_s]
    program = subprocess.Popen(words, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert program.stdout is not None
    return program, program.stdout.readline().strip()


def pids_of(room: Room, id: str) -> list[int]:
    with room.session(id, name="looker") as session:
        return [session.mailbox.ready.receive(PATIENCE_S * 1000) for _ in range(2)]


def all_gone(pids: list[int]) -> bool:
    until = time.monotonic() + PATIENCE_S
    while time.monotonic() < until:
        if not any(Path(f"/proc/{pid}").exists() for pid in pids):
            return True
        time.sleep(0.01)
    return False


@pytest.fixture
def room(cli: Cli) -> Any:
    cli.ok("init")
    with postroom.open("sqlite:.postroom") as opened:
        yield opened


def test_there_are_no_sessions_at_first(cli: Cli, room: Room) -> None:
    assert cli.ok("session", "list").out == "no sessions\n"
    assert cli.json("session", "list") == []


def test_list_and_show_tell_state_members_messages_and_failure(cli: Cli, room: Room) -> None:
    with room.session() as session:
        for number in range(3):
            session.mailbox.tasks.send(number)
        session.mailbox.tasks.receive(0)
        assert [info["state"] for info in cli.json("session", "list")] == ["open"]
        try:
            raise ValueError("boom \x1b[31m")
        except ValueError as error:
            session.mark_failed(error)

        about = cli.json("session", "show", session.id)
        assert about["state"] == "failed"
        assert about["failure"]["message"] == "boom \x1b[31m"
        assert "raise ValueError" in about["failure"]["stack"]
        assert about["mailboxes"] == [{"name": "tasks", "sent": 3, "received": 1, "waiting": 2}]
        assert [(w["name"], w["role"], w["state"]) for w in about["workers"]] == [("caller", "opener", "running")]
        text = cli.ok("session", "show", session.id).out
        assert "raise ValueError" in text
        assert "\x1b" not in text
    assert [info["state"] for info in cli.json("session", "list")] == ["failed"]
    with room.session():
        pass
    assert [info["state"] for info in cli.json("session", "list")] == ["failed", "ended"]


@pytest.mark.slow
def test_show_tells_of_workers_that_wait_and_of_those_that_ended(cli: Cli, room: Room, tmp_path: Path) -> None:
    program, id = start_program(Path.cwd())
    pids = pids_of(room, id)
    until = time.monotonic() + PATIENCE_S
    about = cli.json("session", "show", id)
    while about["state"] != "stuck" and time.monotonic() < until:
        about = cli.json("session", "show", id)
    assert about["state"] == "stuck", about
    waiting = {w["name"]: (w["state"], w["waits"], w["pid"]) for w in about["workers"]}
    assert waiting["caller"][1] == ["for its workers (waits-1, waits-2)"]
    assert waiting["waits-1"][:2] == ("waiting", ["on mailbox never, with a time-out"])
    assert {waiting["waits-1"][2], waiting["waits-2"][2]} == set(pids)

    cli.ok("session", "stop", id)
    program.communicate(timeout=PATIENCE_S)
    ended = {w["name"]: w["state"] for w in cli.json("session", "show", id)["workers"]}
    assert ended == {"waits-1": "stopped with the session", "waits-2": "stopped with the session"}


@pytest.mark.slow
@pytest.mark.parametrize("worker", ["waits", "stubborn"])
def test_stop_ends_all_workers_and_tells_the_caller(cli: Cli, room: Room, worker: str) -> None:
    """Also those that stop for nothing, and whose caller would wait an hour for them."""
    program, id = start_program(Path.cwd(), worker, "3600")
    pids = pids_of(room, id)

    assert cli.ok("session", "stop", id, "--grace", "0.5").out == f"session {id} is stopped\n"

    assert all_gone(pids)
    _, said = program.communicate(timeout=PATIENCE_S)
    assert program.returncode == 1
    assert f"SessionFailed: Session {id} failed: stopped from outside" in said
    assert cli.ok("session", "stop", id).out.startswith(f"session {id} had already ended")


@pytest.mark.slow
@pytest.mark.parametrize("times", [1, 2])
def test_ctrl_c_on_the_caller_ends_all_workers(cli: Cli, room: Room, times: int) -> None:
    program, id = start_program(Path.cwd(), "waits" if times == 1 else "stubborn", "2" if times == 1 else "3600")
    pids = pids_of(room, id)
    program.send_signal(signal.SIGINT)
    if times == 2:  # as a person presses it, after the first has been taken up
        time.sleep(0.3)
        program.send_signal(signal.SIGINT)

    _, said = program.communicate(timeout=PATIENCE_S)
    assert program.returncode == -signal.SIGINT
    assert "KeyboardInterrupt" in said
    assert all_gone(pids)
    failure = cli.json("session", "show", id)["failure"]
    assert failure["message"] == "caller was interrupted (Ctrl-C)"


def test_clean_forgets_what_is_over_and_old_and_nothing_else(cli: Cli, room: Room) -> None:
    with room.session() as over:
        over.mailbox.box.send(1)
    open_one = room.session()
    open_one.mailbox.box.send(2)

    assert cli.json("session", "clean") == {"ids": []}
    assert cli.json("session", "clean", "--older-than", "0s") == {"ids": [over.id]}

    assert [info["id"] for info in cli.json("session", "list")] == [open_one.id]
    assert not over.dir.exists()
    assert open_one.dir.exists()
    assert room.peek(channels=[f"session:{over.id}/box"]) == []
    assert open_one.mailbox.box.receive(0) == 2
    assert cli("session", "show", over.id).code == 3


def test_a_session_whose_opener_was_killed_has_failed_and_can_be_cleaned(cli: Cli, room: Room) -> None:
    program = "import os, postroom\nroom = postroom.open('sqlite:.postroom')\nroom.session()\nos.kill(os.getpid(), 9)\n"
    subprocess.run([sys.executable, "-c", program], check=False)

    (info,) = cli.json("session", "list")
    assert info["state"] == "failed"
    assert info["failure"]["message"].startswith("the process that opened the session was killed")
    assert (Path(info["folder"]) / ".failed").exists()
    assert cli.json("session", "show", info["id"])["failure"] == info["failure"]
    assert len(cli.json("session", "clean", "--older-than", "0s")["ids"]) == 1
    assert room.store.cell_scan("member:") == []


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["session"], 2, "ACTION"),
        (["session", "sleep"], 2, "sleep"),
        (["session", "show"], 2, "needs the ID"),
        (["session", "stop"], 2, "needs the ID"),
        (["session", "list", "x"], 2, "takes no ID"),
        (["session", "show", "nope"], 3, "there is no session nope"),
        (["session", "stop", "../.."], 3, "there is no session"),
        (["session", "clean", "--older-than", "soon"], 2, "not a span of time"),
    ],
)
def test_wrong_words_get_a_clear_error(cli: Cli, room: Room, words: list[str], code: int, said: str) -> None:
    result = cli(*words)

    assert result.code == code
    assert said in result.err


def test_joining_a_killed_openers_session_records_its_failure(room: Room) -> None:
    program = "import os, postroom\nroom = postroom.open('sqlite:.postroom')\nprint(room.session().id, flush=True)\nos.kill(os.getpid(), 9)\n"
    id = subprocess.run([sys.executable, "-c", program], check=False, capture_output=True, text=True).stdout.strip()

    with pytest.raises(postroom.SessionFailed, match="the process that opened the session was killed"):
        room.session(id)


def test_the_command_runs_as_a_process_of_its_own(room: Room) -> None:
    command = start("session", "list", env={**os.environ})
    out, err = command.communicate(timeout=PATIENCE_S)
    assert (out, err, command.returncode) == ("no sessions\n", "", 0)
