"""Lazy imports, and fast starts and ends of commands: hooks start one at every step, and imports are most of its time.

A package defers modules of its own (`deferring`). Modules of others are deferred by the command line alone, in a process
that is its own (`load_lazily`): a library does not change how others are loaded. docs/design.md tells why not LazyLoader.
"""

from __future__ import annotations

import _thread
import atexit
import importlib
import os
import sys
from collections.abc import Callable, Iterable
from contextlib import suppress
from types import ModuleType
from typing import Any, Final, NoReturn

_REAL: Final = " real module"  # no name that a module could have
#: Names that files ask for at their start, and what they get without loading the module: uuid wants to know the system,
#: argparse a translation, which there is none of (`from gettext import` asks for the path first).
_KNOWN: Final[dict[str, dict[str, Any]]] = {
    "platform": {"system": lambda: os.uname().sysname},
    "gettext": {"__path__": (), "gettext": str, "ngettext": lambda one, many, number: one if number == 1 else many},
}
_deferring: Final = _thread.RLock()  # a signal's handler may come in the middle of what it guards


class LazyModule(ModuleType):
    """A proxy: the first use of one of its names imports the real module, and all are passed on to that."""

    def __getattr__(self, name: str) -> Any:
        return getattr(_real(self), name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(_real(self), name, value)


def _real(proxy: LazyModule) -> ModuleType:
    """The module behind a proxy, imported with Python's own locks: of many threads that come at once, one loads it."""
    known = vars(proxy)
    if _REAL not in known:
        name = proxy.__name__
        with _deferring:  # free again before anything is imported
            if sys.modules.get(name) is proxy:
                del sys.modules[name]
        known[_REAL] = importlib.import_module(name)
    module: ModuleType = known[_REAL]
    return module


def deferring(package: str, *names: str) -> Callable[[str], LazyModule]:
    """The `__getattr__` of a package: `from package import name` takes no time, and loads the module when it is used.

    `from package.name import thing` loads it at once, as ever; no proxy stands in sys.modules.
    """

    def find(name: str) -> LazyModule:
        if name in names:
            return LazyModule(f"{package}.{name}")
        raise AttributeError(f"module {package!r} has no attribute {name!r}")

    return find


def load_lazily(names: Iterable[str]) -> None:
    """Put a proxy for each of these modules into sys.modules, so that `import name` takes no time in any file.

    `from name import thing` loads the module at once, and then the real one stands in sys.modules.
    """
    for name in names:
        if name not in sys.modules:
            proxy = sys.modules[name] = LazyModule(name)
            vars(proxy).update(_KNOWN.get(name, {}))
    if sys.version_info < (3, 12):  # it loads a datetime in Python first, and then takes this one all the same
        sys.modules.setdefault("datetime", importlib.import_module("_datetime"))


def load_target(name: str) -> Callable[..., Any]:
    """The function or class behind "module:name"."""
    module, _, inner = name.partition(":")
    target: Callable[..., Any] = getattr(importlib.import_module(module), inner)
    return target


def load_msgspec() -> None:
    """Load msgspec without typing_extensions, which takes 12 ms and which it asks for only to know more kinds of types.

    A module that needs typing_extensions later loads it as ever (`tests/cli/test_start.py`, `tests/doors/test_hook.py`).
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
