"""Processes played by threads: the fork server and its callers run in one process, in orders that a search decides.

The code of both sides is the shipping one, with real sockets, pipes and passed descriptors. What they ask of the system
about processes is answered here: a child is a thread that ends with code 0 unless it is killed before, and the end of a
child wakes the server as SIGCHLD does.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

from tests.support.interleaving import Run

from postroom.core.system import children, fork_server

#: Above every number that Linux gives to a process.
FIRST_PID = 1 << 23


class Breakdown(BaseException):
    """The fork server is gone in the middle of its work."""


class PlayedSystem:
    """`os` with processes that are threads. `strays` are signals to numbers that were nobody's any more."""

    def __init__(self, run: Run, *, breaks: bool) -> None:
        self.strays: list[int] = []
        self._run = run
        self._breaks = breaks
        self._ends: dict[int, int | None] = {}  # how each ended, as `wait` tells it; None: it runs
        self._reaped: set[int] = set()
        self._wake: int | None = None
        self._got: set[int] = set()  # descriptors that the server was given and has open

    def __getattr__(self, name: str) -> Any:
        return getattr(os, name)

    def new(self) -> int:
        pid = FIRST_PID + len(self._ends)
        self._ends[pid] = None
        return pid

    def end(self, pid: int, status: int) -> None:
        """A process ends, unless it has."""
        if self._ends[pid] is None:
            self._ends[pid] = status
            if self._wake is not None:
                os.write(self._wake, b"!")

    # What the fork server and its callers ask

    def fork(self) -> int:
        if self._breaks:
            self._breaks = False
            raise Breakdown
        pid = self.new()
        threading.Thread(target=self.end, args=(pid, 0), name=f"child {pid - FIRST_PID}").start()
        return pid

    def setpgid(self, pid: int, group: int) -> None:
        pass

    def killpg(self, pid: int, number: int) -> None:
        if pid in self._reaped:
            self.strays.append(pid)
        self.end(pid, number)

    kill = killpg

    def waitid(self, kind: int, pid: int, options: int) -> Any:
        if not options & os.WNOHANG:
            self._run.wait(lambda: self._ends[pid] is not None)
        end = self._ends[pid]
        if end is None:
            return None
        return SimpleNamespace(si_code=os.CLD_KILLED if end & 0x7F else os.CLD_EXITED, si_status=end & 0x7F or end >> 8)

    def waitpid(self, pid: int, options: int) -> tuple[int, int]:
        self._reaped.add(pid)
        return pid, self._ends[pid] or 0

    def set_inheritable(self, fd: int, inheritable: bool) -> None:
        self._got.add(fd)

    def close(self, fd: int) -> None:
        self._got.discard(fd)
        os.close(fd)

    # The fork server's own process

    def start_server(self, words: list[str], *, pass_fds: list[int], **_: Any) -> Any:
        """subprocess.Popen."""
        control = socket.socket(fileno=os.dup(pass_fds[0]))
        assert json.loads(words[-1])[0] == pass_fds[0]
        server = PlayedServer(self)
        threading.Thread(target=self._serve, args=(server.pid, control), name="fork server").start()
        return server

    def _serve(self, pid: int, control: socket.socket) -> None:
        server, status = fork_server._Server(control, os.getppid()), 0
        try:
            server.run()
        except Breakdown:
            status = fork_server.EXIT_BROKEN << 8
        for child in server._children.values():
            self.end(child.pid, signal.SIGKILL)  # by the system, as their parent ends
        self._wake = None
        control.close()
        for fd in (*self._got, server._woken, server._wake):
            os.close(fd)
        self._got.clear()
        self.end(pid, status)

    def set_wakeup_fd(self, fd: int, **_: Any) -> None:
        self._wake = fd


class PlayedServer:
    """The fork server as `subprocess` tells of it."""

    def __init__(self, system: PlayedSystem) -> None:
        self.returncode: int | None = None
        self.pid = system.new()
        self._system = system

    def poll(self) -> int | None:
        end = self._system._ends[self.pid]
        self.returncode = None if end is None else end >> 8
        return self.returncode


@contextmanager
def played_processes(run: Run, *, breaks: bool = False) -> Iterator[PlayedSystem]:
    """Let threads play all processes; with `breaks`, the first fork server breaks down instead of forking."""
    system = PlayedSystem(run, breaks=breaks)
    signals = SimpleNamespace(**{**vars(signal), "set_wakeup_fd": system.set_wakeup_fd, "signal": lambda *_: None})
    starting = SimpleNamespace(**{**vars(subprocess), "Popen": system.start_server})
    replaced: list[tuple[Any, str, Any]] = [
        (fork_server, "os", system), (fork_server, "signal", signals), (fork_server, "process_descriptor", lambda _: None),
        (children, "os", system), (children, "subprocess", starting), (children, "kill_session", lambda _: None),
        (children, "_lock", threading.Lock()), (children, "_shared", None),
    ]  # fmt: skip
    before = [(module, name, getattr(module, name)) for module, name, _ in replaced]
    for module, name, new in replaced:
        setattr(module, name, new)
    try:
        yield system
    finally:
        for module, name, was in before:
            setattr(module, name, was)
