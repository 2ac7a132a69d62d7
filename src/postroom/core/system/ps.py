"""What programs of the system tell: `ps`, `fuser` and `mount`, which every Unix has. The twin of reading /proc.

Each call starts a process, some ten milliseconds. A program that is not there tells nothing, and so does one that cannot
be started now; but of a single process that is not the same as that it ended, so `started` raises OSError then.
"""

from __future__ import annotations

import errno
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import Final

#: `ps` writes times in the zone, and words in the language, of its environment. A name of a process must read the same
#: for all (tests/core/test_portable.py).
_PLAIN: Final = {"TZ": "UTC0", "LC_ALL": "C"}
#: States of a process that works no more, as `ps` begins them.
_ENDED: Final = ("Z", "X")
#: The words that show the environment of processes behind their commands. macOS shows it for programs of this user
#: that are not part of the system.
_WITH_ENVIRONMENT: Final = ("-A", "-E", "-ww") if sys.platform == "darwin" else ("axeww",)
#: `device on point type kind (options)` on Linux, `device on point (kind, options)` elsewhere.
_MOUNT: Final = re.compile(r".* on (?P<point>/.*?) (?:type (?P<kind>\S+) \(.*\)|\((?P<other>[^,)]+).*\))")
#: The system's own programs come first: `npm run` and the like put folders before them that a dependency may fill.
_FOLDERS: Final = ("/usr/bin", "/bin", "/usr/sbin", "/sbin")
#: A program that waits for a server's disk is not waited for any longer, in seconds.
_PATIENCE_S: Final = 20.0


def _ask(*words: str) -> str:
    try:
        return _answer(*words)
    except OSError:
        return ""


def _answer(*words: str) -> str:
    """What a program says. Raises OSError when it cannot be started, or does not end well."""
    others = [folder for folder in os.get_exec_path() if os.path.isabs(folder)]
    try:
        answer = subprocess.run(
            words,
            env={"PATH": os.pathsep.join((*_FOLDERS, *others)), **_PLAIN},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            timeout=_PATIENCE_S,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise TimeoutError(errno.ETIMEDOUT, f"{words[0]} did not answer in {_PATIENCE_S:g} s") from error
    if answer.returncode < 0:
        raise OSError(errno.EINTR, f"{words[0]} was ended by signal {-answer.returncode}")
    return answer.stdout.decode(errors="surrogateescape")


def started(pid: int) -> str | None:
    """When a process started, as one word; None when none is seen, or it only waits to be reaped. Raises OSError."""
    return _started_here(pid) if pid == os.getpid() else _started(pid)


def _started(pid: int) -> str | None:
    state, *moment = _answer("ps", "-o", "stat=,lstart=", "-p", str(pid)).split() or [""]
    return None if not moment or state.startswith(_ENDED) else "_".join(moment).replace(":", ".")


_started_here = lru_cache(maxsize=1)(_started)


def is_stopped(pid: int) -> bool:
    """Whether a process is held by Ctrl-Z or by a debugger."""
    return _ask("ps", "-o", "stat=", "-p", str(pid)).startswith(("T", "t"))


def running() -> list[int]:
    """All processes that can be seen, without those that only wait to be reaped."""
    return [int(pid) for pid, state in _pairs("ps", "-A", "-o", "pid=,stat=") if not state.startswith(_ENDED)]


def with_environment(*beginnings: str) -> list[int]:
    """The other processes whose environment has an entry that begins so, as far as it is shown."""
    shown = _pairs("ps", *_WITH_ENVIRONMENT, "-o", "pid=,command=")
    return [int(pid) for pid, line in shown if any(f" {text}" in f"{line} " for text in beginnings)]


def _pairs(*words: str) -> Iterator[tuple[str, str]]:
    """The lines of an answer: a pid, and the rest. Not the process that answers, nor this one."""
    own = str(os.getpid())
    for line in _ask(*words).splitlines():
        pid, _, rest = line.strip().partition(" ")
        if pid.isdigit() and pid != own:
            yield pid, rest.lstrip()


def users_of(path: Path) -> list[int]:
    """The other processes that have a file open, as far as they can be seen."""
    return sorted({int(pid) for pid in _ask("fuser", str(path)).split() if pid.isdigit()} - {os.getpid()})


@lru_cache(maxsize=8)
def mounts(device: int) -> list[tuple[str, str]]:
    """The mounted file systems, each as (where, its kind). Kept for a device: file systems seldom come and go."""
    del device
    found = [match for line in _ask("mount").splitlines() if (match := _MOUNT.fullmatch(line))]
    return [(match["point"], match["kind"] or match["other"]) for match in found]
