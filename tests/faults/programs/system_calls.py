"""What processes do to the files below a folder, as the system itself sees it: recorded by strace, in one order.

Nothing is put under the programs, so whatever they are written in is recorded: Postroom as it ships, and nats-server. The events are
those of programs/power.py, with paths in place of handles. A call that returned is told by the program with a line of JSON that it
writes to the file `TOLD`, beside the folder: the line has its place among the system calls.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from .power import Event

#: Every call that changes a file, a name or what is safe of them. Others that would (`sendfile`, a map of a file) are found
#: because the recording, played to its end, is not what is there.
CALLS = (
    "openat,open,creat,mkdir,mkdirat,rename,renameat,renameat2,link,linkat,unlink,unlinkat,rmdir,"
    "write,pwrite64,writev,pwritev,pwritev2,ftruncate,truncate,fsync,fdatasync"
)
TOLD = "returned"
_CALL = re.compile(rb"^(\d+) +(\w+)\((.*)\) += (-?\d+)(?:<(.*)>)?(?:\(deleted\))?(?: E\w+ .*)?$")
_BEGUN = re.compile(rb"^(\d+) +(\w+)\((.*) <unfinished \.\.\.>$")
_RESUMED = re.compile(rb"^(\d+) +<\.\.\. (\w+) resumed>(.*)\) += (-?\d+)(?:<(.*)>)?(?:\(deleted\))?(?: E\w+ .*)?$")
#: Of the arguments of a call: a text, a descriptor with what it is of, or anything else.
_ARGUMENT = re.compile(
    rb' *(?:"((?:\\x[0-9a-f]{2})*)"(\.\.\.)?|(-?\d+|AT_FDCWD)<([^>]*)>(\(deleted\))?|([^,"<>\[\]{}]+))'
)


class Teller:
    """Notes calls that returned, in a program that is recorded. It stands in for the recorder of programs/power.py."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)

    def note(self, *event: Any) -> None:
        os.write(self._file, json.dumps(event).encode())


def why_not() -> str:
    """Why nothing can be recorded here; "" where it can."""
    if shutil.which("strace") is None:
        return "strace is not installed: it records what programs do to their files"
    tried = subprocess.run(
        ["strace", "-f", "--seccomp-bpf", "-e", "trace=mkdir", "-o", "/dev/null", "true"], capture_output=True
    )
    return "" if tried.returncode == 0 else f"strace may not trace here: {tried.stderr.decode().strip()[-200:]}"


def run_recorded(command: Sequence[str], to: Path, env: dict[str, str]) -> None:
    """Run a program, and all that it starts, to its end; `to` gets the calls."""
    strace = [
        "strace",
        "-f",
        "--seccomp-bpf",
        "-y",
        "-xx",
        "-s",
        "100000000",
        "-e",
        f"trace={CALLS}",
        "-e",
        "signal=none",
    ]
    ran = subprocess.run([*strace, "-o", str(to), *command], capture_output=True, env=env, timeout=280)
    assert ran.returncode == 0, f"{command} ended with {ran.returncode}:\n{ran.stderr.decode()[-4000:]}"


def read_calls(path: Path, root: Path, ignored: Callable[[str], bool] = lambda _: False) -> list[Event]:
    """The events of a recording, in their order. `ignored` says of which paths below the root nothing is to be told."""
    with path.open("rb") as lines:
        return list(_Reader(root, ignored).events(lines))


class _Reader:
    """Makes events of calls. It knows which files are there, and where in each a writer is."""

    def __init__(self, root: Path, ignored: Callable[[str], bool]) -> None:
        self._root = f"{root}/"
        self._beside = "".join(f"\\x{byte:02x}" for byte in str(root.parent).encode()).encode()
        self._told = str(root.with_name(TOLD))
        self._ignored = ignored
        self._there: set[str] = set()
        self._places: dict[str, int | None] = {}  # where the next write goes; None: to the end
        self._sizes: dict[str, int] = {}
        self._begun: dict[bytes, bytes] = {}
        self._tickets = 0
        self._syncs: dict[bytes, tuple[int, int]] = {}

    def events(self, lines: Iterable[bytes]) -> Iterator[Event]:
        for line in lines:
            if self._beside not in line and b" resumed>" not in line:  # of something else
                continue
            if found := _CALL.match(line):
                pid, name, text, result, _ = found.groups()
                yield from self._begin(pid, name, text)
                yield from self._end(pid, name, text, int(result))
            elif found := _BEGUN.match(line):
                pid, name, text = found.groups()
                self._begun[pid] = text
                yield from self._begin(pid, name, text)
            elif found := _RESUMED.match(line):
                pid, name, rest, result, _ = found.groups()
                if pid in self._begun:
                    yield from self._end(pid, name, self._begun.pop(pid) + rest, int(result))

    def _begin(self, pid: bytes, name: bytes, text: bytes) -> Iterator[Event]:
        """What is so from the moment in which a call begins: a sync, which takes in what was before; and what is told."""
        if name in (b"fsync", b"fdatasync"):
            path = _arguments(text)[0]
            if self._is_ours(path) and (path in self._there or path == self._root[:-1]):
                self._tickets += 1
                self._syncs[pid] = ticket = (0, self._tickets)
                yield "sync", ticket, path
        elif name == b"write":
            path, data = _arguments(text)[:2]
            if path == self._told:
                yield tuple(json.loads(data))

    def _end(self, pid: bytes, name: bytes, text: bytes, result: int) -> Iterator[Event]:
        if name in (b"fsync", b"fdatasync"):
            if pid in self._syncs and result == 0:
                yield "synced", self._syncs.pop(pid)
            return
        if result < 0:
            return
        call = getattr(self, f"_{_KINDS.get(name, name.decode())}", None)
        if call is not None:
            yield from call(name, _arguments(text), result)

    def _is_ours(self, path: Any) -> bool:
        return isinstance(path, str) and f"{path}/".startswith(self._root) and not self._ignored(path)

    def _opened(self, name: bytes, arguments: list[Any], _result: int) -> Iterator[Event]:
        path, flags = (_joined(arguments), arguments[2]) if name == b"openat" else (arguments[0].decode(), arguments[1])
        if not self._is_ours(path):
            return
        new = path not in self._there and "O_CREAT" in flags
        if new:
            self._there.add(path)
            yield "made", path, path
        if path in self._there and ("O_WRONLY" in flags or "O_RDWR" in flags):
            self._places[path] = None if "O_APPEND" in flags else 0
            if "O_TRUNC" in flags and not new and self._sizes.get(path):
                self._sizes[path] = 0
                yield "truncated", path, 0

    def _folder(self, name: bytes, arguments: list[Any], _result: int) -> Iterator[Event]:
        path = _joined(arguments) if name == b"mkdirat" else arguments[0].decode()
        if self._is_ours(path):
            self._there.add(path)
            yield "folder", path, None

    def _moved(self, name: bytes, arguments: list[Any], _result: int) -> Iterator[Event]:
        if name in (b"rename", b"link"):
            was, to = arguments[0].decode(), arguments[1].decode()
        else:
            was, to = _joined(arguments), _joined(arguments[2:])
        if was not in self._there or not self._is_ours(to):
            assert not self._is_ours(to), f"{was} came to {to} from outside"
            return
        moves = name.startswith(b"rename")
        below = [path for path in self._there if path == was or path.startswith(f"{was}/")]
        for path in below:
            now = to + path[len(was) :]
            for known in (self._places, self._sizes):
                if path in known:
                    known[now] = known[path]  # type: ignore[assignment]
            self._there.add(now)
            if moves:
                self._there.discard(path)
        yield "renamed" if moves else "linked", was, to

    def _deleted(self, name: bytes, arguments: list[Any], _result: int) -> Iterator[Event]:
        path = _joined(arguments) if name == b"unlinkat" else arguments[0].decode()
        if path in self._there:
            self._there.discard(path)
            self._sizes.pop(path, None)
            yield "deleted", path

    def _wrote(self, name: bytes, arguments: list[Any], result: int) -> Iterator[Event]:
        path = arguments[0]
        if path not in self._there:
            return
        data = b"".join(each for each in arguments[1:] if isinstance(each, bytes))[:result]
        assert len(data) == result, f"{name!r} to {path} is not recorded whole"
        size = self._sizes.get(path, 0)
        if name.startswith(b"pwrite"):
            place = int(arguments[3 if name == b"pwrite64" else -1])
        else:
            at = self._places[path]
            place = size if at is None else at
            self._places[path] = None if at is None else place + result
        self._sizes[path] = max(size, place + result)
        yield "wrote", path, place, data

    def _truncated(self, name: bytes, arguments: list[Any], _result: int) -> Iterator[Event]:
        path = arguments[0] if name == b"ftruncate" else arguments[0].decode()
        if path in self._there:
            self._sizes[path] = int(arguments[1])
            yield "truncated", path, self._sizes[path]


_KINDS = {
    **dict.fromkeys((b"openat", b"open", b"creat"), "opened"),
    **dict.fromkeys((b"mkdir", b"mkdirat"), "folder"),
    **dict.fromkeys((b"rename", b"renameat", b"renameat2", b"link", b"linkat"), "moved"),
    **dict.fromkeys((b"unlink", b"unlinkat", b"rmdir"), "deleted"),
    **dict.fromkeys((b"write", b"pwrite64", b"writev", b"pwritev", b"pwritev2"), "wrote"),
    **dict.fromkeys((b"ftruncate", b"truncate"), "truncated"),
}


def _arguments(text: bytes) -> list[Any]:
    """The arguments of a call: texts as bytes, descriptors as the path of what they are of ("" once that is removed)."""
    found: list[Any] = []
    for string, cut, descriptor, of, gone, other in _ARGUMENT.findall(text):
        assert not cut, "a text was not recorded whole"
        if descriptor:
            found.append("" if gone else _unhex(of).decode("utf-8", "surrogateescape"))
        elif other:
            if other.strip():
                found.append(other.strip().decode())
        else:
            found.append(_unhex(string))
    return found


def _unhex(text: bytes) -> bytes:
    return bytes.fromhex(text.replace(b"\\x", b"").decode())


def _joined(arguments: list[Any]) -> str:
    """The path that a folder's descriptor and a name in it make."""
    return str(os.path.join(arguments[0], arguments[1].decode("utf-8", "surrogateescape")))
