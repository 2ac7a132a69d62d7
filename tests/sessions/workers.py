"""Workers for the tests: at the top level of a module, where other processes find them."""

from __future__ import annotations

import ctypes
import gc
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import postroom
from postroom.sessions.session import Session


@postroom.worker
def coordinator(session: Session, target: str = "src/main.rs") -> Any:
    session.mailbox.tasks.send({"action": "analyze", "target": target})
    return session.mailbox.results.receive(20_000)


@postroom.worker
def analyzer(session: Session) -> Any:
    task = session.mailbox.tasks.receive(20_000)
    session.mailbox.results.send({"file": task["target"], "summary": "analyzed"})
    return task["target"]


@postroom.worker
def echo(session: Session, *args: Any, **kwargs: Any) -> Any:
    return [args, kwargs]


@postroom.worker
def process_id(session: Session) -> int:
    return os.getpid()


@postroom.worker
def where(session: Session) -> dict[str, Any]:
    return {"cwd": os.getcwd(), "word": os.environ.get("A_WORD"), "group": os.getpgid(0) == os.getpid()}


@postroom.worker
def receive(session: Session, box: str, timeout_ms: float | None = None) -> Any:
    return session.mailbox[box].receive(timeout_ms)


@postroom.worker
def send(session: Session, box: str, value: Any) -> None:
    session.mailbox[box].send(value)


@postroom.worker
def note_then_receive(session: Session, folder: str, box: str = "never") -> Any:
    """Says that it runs, by a file with its pid as name, then waits for mail that never comes."""
    (Path(folder) / str(os.getpid())).touch()
    session.mailbox.ready.send(os.getpid())
    return session.mailbox[box].receive()


@postroom.worker
def fail(session: Session, how: str, after: str | None = None) -> Any:
    if after is not None:
        session.mailbox[after].receive(20_000)
    return WAYS_TO_FAIL[how]()


def _raise(error: BaseException) -> Any:
    raise error


def _recurse_for_ever() -> Any:
    gc.disable()  # the garbage of others, collected at that depth, could not be finalized
    try:
        return _recurse()
    finally:
        gc.enable()


def _recurse() -> Any:
    return _recurse()


WAYS_TO_FAIL: dict[str, Callable[[], Any]] = {
    "raise": lambda: _raise(ValueError("boom")),
    "exit": lambda: sys.exit(0),
    "exit 3": lambda: sys.exit(3),
    "hard exit": lambda: os._exit(7),
    "kill": lambda: os.kill(os.getpid(), signal.SIGKILL),
    "memory": lambda: _raise(MemoryError()),
    "recursion": _recurse_for_ever,
    "segfault": lambda: ctypes.string_at(0),
    "not json": object,
}


@postroom.worker
def ignore_everything(session: Session) -> None:
    """Stops for nothing but SIGKILL."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    session.mailbox.ready.send(os.getpid())
    while True:
        try:
            session.mailbox.never.receive()
        except postroom.SessionFailed:
            time.sleep(60)


@postroom.worker
def tidy_up(session: Session, folder: str) -> None:
    """Does not hear of the failure, but puts its things in order when it is told to end."""
    session.mailbox.ready.send(os.getpid())
    try:
        time.sleep(60)
    finally:
        (Path(folder) / "tidied").touch()


@postroom.worker
def hold_the_lock(session: Session) -> None:
    """Hangs in C code without ever letting another Python thread run."""
    session.mailbox.ready.send(os.getpid())
    ctypes.PyDLL(None).sleep(60)


@postroom.worker
def leave_children(session: Session) -> int:
    child = subprocess.Popen(["sleep", "600"])
    return child.pid


@postroom.worker
def nest(session: Session, how: str) -> Any:
    if how == "fail":
        return session.delegate([receive("never"), fail("raise")])
    if how == "wait":
        return session.delegate([receive("never"), note_then_receive(str(session.dir))])
    return session.delegate([coordinator("nested"), analyzer(), process_id()])


@postroom.worker
def speak(session: Session, lines: int) -> None:
    for number in range(lines):
        print(f"line {number}")
    print("trouble", file=sys.stderr)
    sys.stdout.write("no end of line")


@postroom.worker
def speak_much(session: Session, size: int) -> int:
    sys.stdout.write("x" * size)
    return size


@postroom.worker
def big_result(session: Session, size: int) -> str:
    return "y" * size


@postroom.worker
def send_many(session: Session, box: str, who: int, count: int) -> None:
    for number in range(count):
        session.mailbox[box].send([who, number])


@postroom.worker
def receive_many(session: Session, box: str, count: int) -> list[Any]:
    return [session.mailbox[box].receive(120_000) for _ in range(count)]


@postroom.worker
def receive_until_none(session: Session, box: str) -> list[Any]:
    found = []
    while (value := session.mailbox[box].receive(120_000)) is not None:
        found.append(value)
    return found


@postroom.worker
def short(session: Session, number: int) -> int:
    return number * number
