"""Functions of the C library that Python does not offer, by ctypes. Slow to load: imported where one is called."""

from __future__ import annotations

import ctypes
import errno
import os
import sys
from pathlib import Path
from typing import Any, Final

_LIBC: Final = ctypes.CDLL(None, use_errno=True)
_PR_SET_PDEATHSIG: Final = 1
_SIGKILL: Final = 9


def call(name: str, *arguments: Any) -> int:
    """Call a function by its name. Raises OSError where it returns less than 0."""
    result: int = getattr(_LIBC, name)(*arguments)
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return result


def file_system_number(folder: Path) -> int | None:
    """The number of the kind of file system that a folder lies on; None when it cannot be told. Linux only."""
    answer = ctypes.create_string_buffer(512)  # its first word is the kind, the rest differs between machines
    try:
        call("statfs", os.fsencode(folder), answer)
    except OSError:
        return None
    return ctypes.c_ulong.from_buffer(answer).value & 0xFFFF_FFFF


def boot_id() -> str:
    """The system's own name for this boot, which macOS and FreeBSD have. Raises OSError where there is none."""
    if not hasattr(_LIBC, "sysctlbyname"):
        raise OSError(errno.ENOSYS, "this system has no sysctlbyname")
    name = b"kern.bootsessionuuid" if sys.platform == "darwin" else b"kern.boot_id"
    answer = ctypes.create_string_buffer(64)
    size = ctypes.c_size_t(len(answer))
    call("sysctlbyname", name, answer, ctypes.byref(size), None, ctypes.c_size_t(0))
    return answer.raw[: size.value].rstrip(b"\0").hex() if sys.platform != "darwin" else answer.value.decode()


def die_with_parent() -> None:
    """Let the system kill this process with SIGKILL when the thread that started it ends. Linux only.

    The thread, not the process: only for children of programs with one thread. Elsewhere a process is left that does it
    (`fork_server._start_guard`).
    """
    call("prctl", _PR_SET_PDEATHSIG, _SIGKILL, 0, 0, 0)
