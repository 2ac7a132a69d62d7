"""Fast starts and ends of commands: hooks start one at every step, and nearly all of its time is Python's own.

Only the command line uses this, in a process that is its own: a library does not change how others are loaded.
"""

from __future__ import annotations

import atexit
import importlib
import os
import sys
from contextlib import suppress
from types import ModuleType
from typing import Any, NoReturn


class _LazyModule(ModuleType):
    """A module that is loaded when something of it is first used."""

    def __getattr__(self, name: str) -> Any:
        if sys.modules.get(self.__name__) is self:
            del sys.modules[self.__name__]
        return getattr(importlib.import_module(self.__name__), name)


def load_lazily() -> None:
    """Let modules of the standard library wait that others load and commands hardly ever use: 7 ms of each start.

    `ipaddress` is there for addresses in brackets (urllib.parse), `platform` so that uuid knows on which system it is.
    """
    for name in ("ipaddress", "platform"):
        if name not in sys.modules:
            sys.modules[name] = _LazyModule(name)
    platform = sys.modules["platform"]
    if isinstance(platform, _LazyModule) and hasattr(os, "uname"):
        platform.__dict__["system"] = lambda: os.uname().sysname


def load_msgspec() -> None:
    """Load msgspec without typing_extensions, which takes 12 ms and which it asks for only to know more kinds of types.

    Who needs typing_extensions later loads it as ever (`tests/cli/test_start.py`, `tests/doors/test_hook.py`).
    """
    if "msgspec" in sys.modules or "typing_extensions" in sys.modules:
        return
    sys.modules["typing_extensions"] = None  # type: ignore[assignment]
    try:
        importlib.import_module("msgspec")
    finally:
        del sys.modules["typing_extensions"]


def leave(code: int) -> NoReturn:
    """End this process with that code, as `sys.exit` does, but without taking the interpreter apart, which takes 10 ms.

    What was registered to run at the end runs, and what was written is written. While other threads run, or where
    Python was asked to look at itself (for faults, or with a tracer), the process ends the long way.
    """
    if not _is_watched() and not _has_threads():
        atexit._run_exitfuncs()  # noqa: SLF001  what the interpreter itself does first
        with suppress(OSError, ValueError):  # otherwise the long way reports it
            for stream in (sys.stdout, sys.stderr):
                if stream is not None:
                    stream.flush()
            os._exit(code)
    sys.exit(code)


def _is_watched() -> bool:
    return sys.flags.dev_mode or bool(sys.warnoptions) or sys.getprofile() is not None or sys.gettrace() is not None


def _has_threads() -> bool:
    threading = sys.modules.get("threading")
    return threading is not None and threading.active_count() > 1
