"""Hearing of a file in a folder: at once, also when many come and go, and without a thread when nobody listens."""

from __future__ import annotations

import threading
from pathlib import Path

from postroom.core.system.folder_watch import FolderWatch

PATIENCE_S = 20.0


def test_no_file_is_missed_while_others_come_and_go(tmp_path: Path) -> None:
    """The news of a file must not be taken by one who does not know yet that somebody waits for it."""
    watch = FolderWatch()
    passing = tmp_path / "passing"
    passing.mkdir()
    for number in range(300):
        folder = tmp_path / str(number)
        folder.mkdir()
        event = threading.Event()
        watch.on_file(passing, "x", lambda _complete: True)()
        end = watch.on_file(folder, "x", lambda _complete, event=event: event.set() or True)  # type: ignore[misc]
        (folder / "x").touch()

        assert event.wait(PATIENCE_S), number
        end()


def test_the_thread_ends_when_nobody_listens(tmp_path: Path) -> None:
    before = set(threading.enumerate())
    watch = FolderWatch()
    ends = [watch.on_file(tmp_path, f"{n}", lambda _complete: True) for n in range(5)]
    (thread,) = set(threading.enumerate()) - before
    for end in ends:
        assert thread.is_alive()
        end()
        end()

    thread.join(PATIENCE_S)
    assert not thread.is_alive()


def test_where_the_system_does_not_tell_the_folder_is_looked_at(tmp_path: Path, monkeypatch) -> None:
    def no_inotify(_self: object) -> None:
        raise OSError("no inotify here")

    monkeypatch.setattr("postroom.core.system.platform.FolderEvents.__init__", no_inotify)
    watch, event = FolderWatch(), threading.Event()
    complete: list[bool] = []

    def on_file(whole: bool) -> bool:
        complete.append(whole)
        if whole:
            event.set()
        return whole

    end = watch.on_file(tmp_path, "x", on_file)
    (tmp_path / "x").touch()

    assert event.wait(PATIENCE_S)
    assert complete == [False, True]
    end()
