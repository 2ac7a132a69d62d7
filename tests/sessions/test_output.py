"""What workers print is kept in the session's folder and shown with their names before it; a line tells how far it is."""

from __future__ import annotations

import os
import pty
import re
import subprocess
import sys
from pathlib import Path

import pytest

from postroom.room import Room
from postroom.sessions.members import Standing
from postroom.sessions.output import MAX_KEPT_BYTES, OutputStream, Screen, output_path
from postroom.sessions.progress import progress_line
from postroom.sessions.runners import WorkerRun

from . import workers

PATIENCE_S = 30.0


def test_output_is_kept_for_each_worker_and_shown_with_its_name(
    real_room: Room, capsys: pytest.CaptureFixture[str]
) -> None:
    with real_room.session() as session:
        session.delegate([workers.speak(2), workers.speak(1), workers.short(1)])

        folder = session.dir / "workers"
        kept = {path.name: path.read_text(encoding="utf-8") for path in folder.iterdir()}
    assert kept == {
        "0002-speak-1.out": "line 0\nline 1\nno end of line",
        "0002-speak-1.err": "trouble\n",
        "0003-speak-2.out": "line 0\nno end of line",
        "0003-speak-2.err": "trouble\n",
    }
    shown = capsys.readouterr()
    assert sorted(shown.out.splitlines()) == [
        "[speak-1] line 0", "[speak-1] line 1", "[speak-1] no end of line", "[speak-2] line 0", "[speak-2] no end of line",
    ]  # fmt: skip
    assert sorted(shown.err.splitlines()) == ["[speak-1] trouble", "[speak-2] trouble"]


def test_output_can_be_kept_without_being_shown(real_room: Room, capsys: pytest.CaptureFixture[str]) -> None:
    with real_room.session() as session:
        session.delegate([workers.speak(1)], show=False)

        assert output_path(session.dir, 2, "speak", "out").exists()
    assert capsys.readouterr() == ("", "")


def test_a_worker_that_writes_much_is_not_held_up(real_room: Room, capsys: pytest.CaptureFixture[str]) -> None:
    with real_room.session() as session:
        assert session.delegate([workers.speak_much(3_000_000)]) == [3_000_000]

        assert output_path(session.dir, 2, "speak_much", "out").stat().st_size == 3_000_000
    assert len(capsys.readouterr().out) >= 3_000_000


def test_names_of_output_files_are_harmless(tmp_path: Path) -> None:
    path = output_path(tmp_path, 7, "../../etc/passwd\0", "out")

    assert path == tmp_path / "workers" / "0007-.._.._etc_passwd_.out"


def test_output_beyond_the_limit_is_shown_but_not_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert MAX_KEPT_BYTES > 1_000_000
    monkeypatch.setattr("postroom.sessions.output.MAX_KEPT_BYTES", 10)
    read, write = os.pipe()
    os.set_blocking(read, False)
    stream = OutputStream(read, tmp_path / "kept", "w", Screen(show=True), error=False)
    for _ in range(3):
        os.write(write, b"12345678\n")
        stream.pump()
    os.close(write)
    stream.pump()
    os.close(read)

    assert (tmp_path / "kept").read_bytes() == b"12345678\n1\n(the rest was not kept)\n"
    assert capsys.readouterr().out == "[w] 12345678\n" * 3
    assert not stream.open


def _post(name: str, over: bool = False) -> WorkerRun:
    post = WorkerRun(workers.short(1), name, name, 1)
    post.over = over
    return post


def _member(name: str, *boxes: str, timed: bool = False) -> Standing:
    waits = [{"on": "mailbox", "names": [box], "timed": timed} for box in boxes]
    return Standing(name, name, "worker", "p", None, 1, 0, waits, bool(boxes))


def test_the_progress_line_says_who_is_done_runs_and_waits() -> None:
    posts = [_post("a", over=True), _post("b"), _post("c"), _post("d")]
    members = [_member("b", "tasks"), _member("c"), _member("d")]

    assert progress_line(posts, members) == "1 of 4 done · running: c, d · b waits on mailbox tasks"
    assert progress_line(posts[:2], [_member("b", "tasks", timed=True)]) == (
        "1 of 2 done · stuck until a time-out · b waits on mailbox tasks"
    )
    assert progress_line(posts[:1], []) == "1 of 1 done"


@pytest.mark.slow
def test_on_a_terminal_the_progress_is_shown_and_wiped(tmp_path: Path) -> None:
    text = (
        f"import sys\nsys.path[:] = {sys.path!r}\nimport postroom\nfrom sessions import workers\n"
        "with postroom.open('sqlite:room') as room, room.session() as session:\n"
        "    try: session.delegate([workers.receive('box', 1500), workers.speak(1)])\n"
        "    except postroom.SessionFailed as error: print('END')\n"
    )
    ours, theirs = pty.openpty()
    program = subprocess.Popen(
        [sys.executable, "-c", text], cwd=tmp_path, stdin=subprocess.DEVNULL, stdout=theirs, stderr=theirs
    )
    os.close(theirs)
    told = b""
    while True:
        try:
            part = os.read(ours, 4096)
        except OSError:
            break
        if not part:
            break
        told += part
    os.close(ours)
    program.wait(PATIENCE_S)

    screen = told.decode().replace("\r\n", "\n")
    assert "1 of 2 done · stuck until a time-out · receive waits on mailbox box" in screen
    assert "[speak] line 0\n" in screen
    last = re.sub(r".*\r\x1b\[K", "", screen.rstrip("\n").split("\n")[-1])
    assert last == "END"
