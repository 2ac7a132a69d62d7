"""Disks that can be told to fail, in two ways.

`Disk` is a SQLite file system over the system's own, which asks before each call that changes a file; it can kill the
process there, or fail. The shared memory of the log (-shm) is not asked about: it is no part of what must survive.
What its Python code raises reaches the caller even where SQLite itself would pass over an error (a checkpoint after a
commit), so errors are better made by `FailingCalls`, one level lower: it makes the system's own calls fail with an
`errno`, also those for -shm. Only a sync cannot be reached in that way.
"""

from __future__ import annotations

import ctypes
import errno
import os
import signal
from collections.abc import Callable
from typing import Any, ClassVar, NamedTuple

import apsw

#: The calls that change what is on the disk, or promise that it is there.
CHANGES = ("write", "sync", "truncate", "delete")


class Call(NamedTuple):
    """A call that SQLite is about to make: its kind, the file's path, and how to do the first half of it."""

    kind: str
    path: str
    do_half: Callable[[], None]


Ask = Callable[[Call], None]


def _nothing() -> None:
    pass


class Disk(apsw.VFS):
    """A file system that asks `ask` before each call; what that raises is the call's error. Lives while it is referred to."""

    def __init__(self, name: str, ask: Ask) -> None:
        super().__init__(name, "")
        self.name = name
        self.ask = ask

    def xOpen(self, name: str | apsw.URIFilename | None, flags: list[int]) -> apsw.VFSFile:  # noqa: N802
        return _DiskFile(self, name, flags)

    def xDelete(self, filename: str, syncdir: bool) -> None:  # noqa: N802
        self.ask(Call("delete", filename, _nothing))
        super().xDelete(filename, syncdir)


class _DiskFile(apsw.VFSFile):
    def __init__(self, disk: Disk, name: str | apsw.URIFilename | None, flags: list[int]) -> None:
        super().__init__("", name, flags)
        self._disk = disk
        self._path = name.filename() if isinstance(name, apsw.URIFilename) else str(name)

    def _ask(self, kind: str, do_half: Callable[[], None] = _nothing) -> None:
        self._disk.ask(Call(kind, self._path, do_half))

    def xRead(self, amount: int, offset: int) -> bytes:  # noqa: N802
        self._ask("read")
        return super().xRead(amount, offset)

    def xWrite(self, data: Any, offset: int) -> None:  # noqa: N802
        half = bytes(data)[: len(data) // 2]
        self._ask("write", lambda: super(_DiskFile, self).xWrite(half, offset))
        super().xWrite(data, offset)

    def xSync(self, flags: int) -> None:  # noqa: N802
        self._ask("sync")
        super().xSync(flags)

    def xTruncate(self, newsize: int) -> None:  # noqa: N802
        self._ask("truncate")
        super().xTruncate(newsize)

    def xLock(self, level: int) -> None:  # noqa: N802
        self._ask("lock")
        super().xLock(level)

    def xUnlock(self, level: int) -> None:  # noqa: N802
        self._ask("unlock")
        super().xUnlock(level)


class Trap:
    """Springs at one call, the `at`-th of the given kinds since it was armed; `sprung` says whether it did."""

    def __init__(self, kinds: tuple[str, ...], action: Callable[[Call], None]) -> None:
        self._kinds = kinds
        self._action = action
        self._left = 0
        self.sprung = False
        self.seen = 0

    def arm(self, at: int) -> None:
        """Spring at that call from now on, counted from 1; 0 disarms it."""
        self._left = at
        self.sprung = False
        self.seen = 0

    def __call__(self, call: Call) -> None:
        if call.kind not in self._kinds:
            return
        self.seen += 1
        if self._left == 0:
            return
        self._left -= 1
        if self._left == 0:
            self.sprung = True
            self._action(call)


def die(call: Call) -> None:
    """End this process by SIGKILL, with half of the call done."""
    call.do_half()
    os.kill(os.getpid(), signal.SIGKILL)


def fails(code: int, *, torn: bool = False) -> Callable[[Call], None]:
    """An action that makes a call fail with SQLite's code, after half of it was done when `torn`."""

    def fail(call: Call) -> None:
        if torn:
            call.do_half()
        raise apsw.exception_for(code)

    return fail


class FailingCalls:
    """Lets one of the calls that SQLite makes to the system fail, in this process, while the `with` block lasts."""

    _SIGNATURES: ClassVar = {
        "pwrite64": (ctypes.c_ssize_t, ctypes.c_int, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int64),
        "write": (ctypes.c_ssize_t, ctypes.c_int, ctypes.c_void_p, ctypes.c_size_t),
        "pread64": (ctypes.c_ssize_t, ctypes.c_int, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int64),
        "ftruncate": (ctypes.c_int, ctypes.c_int, ctypes.c_int64),
        "unlink": (ctypes.c_int, ctypes.c_char_p),
        "open": (ctypes.c_int, ctypes.c_char_p, ctypes.c_int, ctypes.c_int),
    }

    def __init__(self, names: tuple[str, ...], error: int, *, torn: bool = False) -> None:
        self._names = names
        self._error = error
        self._torn = torn
        self._left = 0
        self.sprung = False
        self.seen = 0
        self._system = apsw.VFS("calls", "")
        self._real: dict[str, int] = {}
        self._kept: list[Any] = []  # SQLite holds their addresses

    def __enter__(self) -> FailingCalls:
        for name in self._names:
            kind = ctypes.CFUNCTYPE(*self._SIGNATURES[name], use_errno=True)
            self._real[name] = self._system.xGetSystemCall(name) or 0
            real = kind(self._real[name])
            ours = kind(self._instead_of(name, real))
            self._kept += [real, ours]
            self._system.xSetSystemCall(name, ctypes.cast(ours, ctypes.c_void_p).value or 0)
        return self

    def __exit__(self, *_: object) -> None:
        for name, real in self._real.items():
            self._system.xSetSystemCall(name, real)

    def arm(self, at: int) -> None:
        """Fail at that call from now on, counted from 1; 0 disarms it."""
        self._left = at
        self.sprung = False
        self.seen = 0

    def _instead_of(self, name: str, real: Any) -> Callable[..., int]:
        def call(*arguments: Any) -> int:
            self.seen += 1
            if self._left:
                self._left -= 1
                if self._left == 0:
                    self.sprung = True
                    if self._torn and "write" in name and arguments[2] > 1:
                        real(*arguments[:2], arguments[2] // 2, *arguments[3:])
                    ctypes.set_errno(self._error)
                    return -1
            result: int = real(*arguments)
            return result

        return call


EIO, ENOSPC = errno.EIO, errno.ENOSPC
