"""The first opening of a room: by many at once, and by one that is killed before a certain touch of the disk."""

from __future__ import annotations

import fcntl
import os
import signal
import sys
from pathlib import Path
from typing import Any

import postroom
from postroom.cli import main as command_line
from postroom.core import trust
from postroom.stores.files import store as _files  # noqa: F401  loaded once, not by each child
from postroom.stores.sqlite import store as _sqlite  # noqa: F401

#: What Python tells of before it is done, and may change what others find.
_TOUCHES = frozenset({"open", "os.mkdir", "os.rename", "os.remove", "os.rmdir", "os.chmod", "fcntl.flock"})


def _at(project: str) -> None:
    os.chdir(project)
    os.environ["POSTROOM_CONFIG"] = str(Path(project).parent / "config")
    os.environ.pop("POSTROOM_URL", None)


def opener(project: str, gate: str, address: str | None, number: int) -> None:
    """Wait for the gate, then open the room and send."""
    _at(project)
    with open(gate) as file:
        fcntl.flock(file, fcntl.LOCK_SH)
    with postroom.open(address) as room:
        room.agent(f"agent-{number}").send("bob", {"text": "hi"})


def initializer(project: str, gate: str, address: None, number: int) -> None:
    """Wait for the gate, then `postroom init`."""
    _at(project)
    with open(gate) as file:
        fcntl.flock(file, fcntl.LOCK_SH)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    if command_line(["init"]) != 0:
        sys.exit(f"init of process {number} failed")


def victim(project: str, address: str | None, touches: int) -> None:
    """Open a new room, and be killed before that many touches of the disk; end well where there are not so many."""
    _at(project)
    left = touches

    def count(event: str, about: tuple[Any, ...]) -> None:
        nonlocal left
        if event in _TOUCHES and not (event == "open" and _is_elsewhere(project, about[0])):
            if left == 0:
                os.kill(os.getpid(), signal.SIGKILL)
            left -= 1

    sys.addaudithook(count)
    postroom.open(address).close()


def _is_elsewhere(project: str, path: Any) -> bool:
    """Whether a file belongs to Python, or is looked at in /proc."""
    return isinstance(path, str) and os.path.isabs(path) and not path.startswith(str(Path(project).parent))


def next_one(project: str, address: str | None) -> None:
    """The next opening: by the same address, and by search where the room's folder is one that a search finds."""
    _at(project)
    with postroom.open(address) as room:
        room.agent("ada").send("bob", {"text": "hi"})
    if address is not None:
        trust.require_allowed(address)
    else:
        postroom.open(create=False).close()
    left = [str(path) for name in ("making", ".*.new") for path in Path(project).rglob(name)]
    assert not left, left
