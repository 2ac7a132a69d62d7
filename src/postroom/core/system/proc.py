"""What /proc tells of other processes: their commands, folders, terminals and environments. Empty where it is not.

Only Linux has it. Elsewhere nothing is known of the terminals of others; marks in environments are shown by `ps`.
"""

from __future__ import annotations

import os
from contextlib import suppress
from typing import Final

from . import LINUX, ps

_TERMINALS: Final = ("/dev/pts/", "/dev/tty")


def pids() -> list[int]:
    """The running processes that can be seen."""
    with suppress(OSError):
        return [int(name) for name in os.listdir("/proc") if name.isdigit()] if LINUX else []
    return []


def parent_of(pid: int) -> int | None:
    """The process that started a process, or took it over."""
    raw = _read(f"{pid}/stat").rpartition(b")")[2].split()
    return int(raw[1]) if len(raw) > 1 else None


def program_of(pid: int) -> str:
    """The name of the file that a process runs."""
    return os.path.basename(_link(f"{pid}/exe")).removesuffix(" (deleted)")


def folder_of(pid: int) -> str:
    """The folder that a process works in."""
    return _link(f"{pid}/cwd")


def words_of(pid: int) -> list[bytes]:
    """The command line of a process."""
    return _read(f"{pid}/cmdline").split(b"\0")


def environment_of(pid: int) -> dict[str, str]:
    """The environment that a process was started with."""
    lines = _read(f"{pid}/environ").decode("utf-8", "surrogateescape").split("\0")
    return dict(line.partition("=")[::2] for line in lines if "=" in line)


def typed_into_ns(pid: int) -> int | None:
    """When the terminal that a process reads was last typed into; None when it reads no terminal."""
    with suppress(OSError):
        if _link(f"{pid}/fd/0").startswith(_TERMINALS):
            return os.stat(f"/proc/{pid}/fd/0").st_atime_ns
    return None


def marked(name: str, mark: str) -> list[int]:
    """The other processes whose environment has `name` as this mark, or as one that begins with it and a colon."""
    exact, longer = f"{name}={mark}", f"{name}={mark}:"
    if not LINUX:
        return ps.with_environment(f"{exact} ", longer)
    found = []
    for pid in pids():
        entries = _read(f"{pid}/environ").split(b"\0") if pid != os.getpid() else []
        if any(entry == exact.encode() or entry.startswith(longer.encode()) for entry in entries):
            found.append(pid)
    return found


def processor() -> str:
    """What kind of processor this machine has."""
    lines = _read("cpuinfo").decode(errors="replace").splitlines()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "")


def _read(name: str) -> bytes:
    with suppress(OSError):  # the process ended, or is somebody else's
        if LINUX:
            with open(f"/proc/{name}", "rb") as file:
                return file.read()
    return b""


def _link(name: str) -> str:
    with suppress(OSError):
        return os.readlink(f"/proc/{name}") if LINUX else ""
    return ""
