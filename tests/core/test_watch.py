"""Watching folders: a file is told of at once, also when many come and go, and without a thread when nobody listens."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
from tests.support.systems import needs_linux

from postroom.core.system.watch import ANYTHING, FileListener, NoWatch, watch_folders

PATIENCE_S = 20.0
QUEUE_LENGTH = Path("/proc/sys/fs/inotify/max_queued_events")


def setting(event: threading.Event) -> Callable[[bool], bool]:
    """A callback that sets an event, and has heard enough."""

    def on_file(_complete: bool) -> bool:
        event.set()
        return True

    return on_file


def overflow(folder: Path) -> None:
    """Let more happen in a watched folder than the system keeps events."""
    one, other = folder / "one", folder / "other"
    one.touch()
    for _ in range(int(QUEUE_LENGTH.read_text()) // 2 + 1):  # each name in turn: equal events become one
        os.rename(one, other)
        os.rename(other, one)


def test_no_file_is_missed_while_others_come_and_go(tmp_path: Path) -> None:
    """The news of a file must not be taken by one who does not know yet that somebody waits for it."""
    watch = FileListener()
    passing = tmp_path / "passing"
    passing.mkdir()
    for number in range(300):
        folder = tmp_path / str(number)
        folder.mkdir()
        event = threading.Event()
        watch.on_file(passing, "x", lambda _complete: True)()
        end = watch.on_file(folder, "x", setting(event))
        (folder / "x").touch()

        assert event.wait(PATIENCE_S), number
        end()


def test_the_thread_ends_when_nobody_listens(tmp_path: Path) -> None:
    before = set(threading.enumerate())
    watch = FileListener()
    ends = [watch.on_file(tmp_path, f"{n}", lambda _complete: True) for n in range(5)]
    (thread,) = set(threading.enumerate()) - before
    for end in ends:
        assert thread.is_alive()
        end()
        end()

    thread.join(PATIENCE_S)
    assert not thread.is_alive()


def test_where_the_system_does_not_tell_the_folder_is_looked_at(tmp_path: Path, monkeypatch) -> None:
    def no_watch() -> None:
        raise NoWatch("no inotify here")

    monkeypatch.setattr("postroom.core.system.watch.watch_folders", no_watch)
    watch, event = FileListener(), threading.Event()
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


def test_those_who_wait_for_files_in_one_folder_do_not_end_each_other(tmp_path: Path) -> None:
    listener, event = FileListener(), threading.Event()
    end_first = listener.on_file(tmp_path, "x", lambda _complete: True)
    end = listener.on_file(tmp_path, "y", setting(event))
    end_first()
    (tmp_path / "y").touch()

    assert event.wait(PATIENCE_S)
    end()


def test_no_callback_runs_when_the_watch_has_ended(tmp_path: Path) -> None:
    """It would use what its owner lets go of next."""
    listener, begun, go_on, ended = FileListener(), threading.Event(), threading.Event(), threading.Event()
    order: list[str] = []

    def on_file(_complete: bool) -> bool:
        begun.set()
        assert go_on.wait(PATIENCE_S)
        order.append("callback")
        return True

    def end_it() -> None:
        end()
        order.append("ended")
        ended.set()

    end = listener.on_file(tmp_path, "x", on_file)
    (tmp_path / "x").touch()
    assert begun.wait(PATIENCE_S)
    threading.Thread(target=end_it).start()
    ended.wait(0.05)
    go_on.set()

    assert ended.wait(PATIENCE_S)
    assert order == ["callback", "ended"]


def test_a_callback_that_raises_is_logged_and_keeps_no_other_from_being_made(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    listener, raised, event = FileListener(), threading.Event(), threading.Event()
    calls: list[bool] = []

    def fail(complete: bool) -> bool:
        calls.append(complete)
        if complete:
            raised.set()
        raise ValueError("no luck")

    ends = [listener.on_file(tmp_path, "x", fail)]
    (tmp_path / "x").touch()
    assert raised.wait(PATIENCE_S)
    ends.append(listener.on_file(tmp_path, "y", setting(event)))
    (tmp_path / "y").touch()

    assert event.wait(PATIENCE_S)
    for end in ends:
        end()
    (record,) = caplog.records
    assert str(tmp_path / "x") in record.getMessage() and record.levelname == "ERROR"
    assert calls[-1] and len(calls) <= 3  # made, closed, and perhaps both at once


def test_a_callback_may_end_its_own_watch(tmp_path: Path) -> None:
    listener, event = FileListener(), threading.Event()

    def on_file(_complete: bool) -> bool:
        end()
        event.set()
        return True

    end = listener.on_file(tmp_path, "x", on_file)
    (tmp_path / "x").touch()

    assert event.wait(PATIENCE_S)


@needs_linux("inotify, whose queue may run over")
def test_a_queue_that_ran_over_says_look_at_everything(tmp_path: Path) -> None:
    with closing(watch_folders()) as watch:
        watch.add(tmp_path, "here")
        overflow(tmp_path)

        assert (ANYTHING, ANYTHING, False) in watch.read()
        assert watch.read() == []


@needs_linux("inotify, whose queue may run over")
def test_a_file_whose_event_was_lost_in_a_full_queue_is_found(tmp_path: Path) -> None:
    listener, busy, go_on, event = FileListener(), threading.Event(), threading.Event(), threading.Event()

    def hold_up(_complete: bool) -> bool:
        busy.set()
        return go_on.wait(PATIENCE_S)

    ends = [
        listener.on_file(tmp_path, "first", hold_up),
        listener.on_file(tmp_path, "lost", setting(event)),
    ]
    (tmp_path / "first").touch()
    assert busy.wait(PATIENCE_S)
    overflow(tmp_path)
    (tmp_path / "lost").touch()
    go_on.set()

    assert event.wait(PATIENCE_S)
    for end in ends:
        end()
