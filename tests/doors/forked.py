"""`postroom mcp` as a process of its own, forked from one that has loaded the server already (a zygote).

Loading it takes a second and a half of processor time, which every test with a server of its own would spend again.
"""

from __future__ import annotations

import atexit
import json
import os
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping
from typing import Any, NoReturn

_zygote: socket.socket | None = None


def _zygote_line() -> socket.socket:
    """The line to this process's zygote, which ends with us."""
    global _zygote
    if _zygote is None:
        _zygote, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        atexit.register(_zygote.close)
        with theirs:
            words = [sys.executable, "-m", "tests.doors.forked", str(theirs.fileno())]
            silent: dict[str, Any] = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL}
            subprocess.Popen(["setsid", "-f", *words], pass_fds=[theirs.fileno()], **silent).wait()
    return _zygote


class Forked:
    """A command of Postroom with pipes, as `subprocess.Popen` has it."""

    def __init__(self, words: list[str], environment: Mapping[str, str]) -> None:
        ours, theirs = zip(os.pipe()[::-1], os.pipe(), os.pipe(), os.pipe(), strict=True)
        asked = {"words": words, "environment": dict(environment), "folder": os.getcwd()}
        socket.send_fds(_zygote_line(), [json.dumps(asked).encode()], theirs)
        for descriptor in theirs:
            os.close(descriptor)
        self.stdin, self.stdout, self.stderr = map(os.fdopen, ours[:3], ("wb", "rb", "rb"))
        self._status = os.fdopen(ours[3], "rb", buffering=0)
        self.pid = int(self._status.read(20))
        self.returncode: int | None = None

    def poll(self, timeout_s: float = 0) -> int | None:
        if self.returncode is None and select.select([self._status], [], [], timeout_s)[0]:
            self.returncode = int(self._status.read(20))
            self._status.close()
        return self.returncode

    def wait(self, timeout_s: float) -> int:
        code = self.poll(timeout_s)
        if code is None:
            raise subprocess.TimeoutExpired("postroom", timeout_s)
        return code

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def end(self, timeout_s: float) -> str:
        """Wait until it has ended, or kill it; returns what it said on standard error."""
        self.stdin.close()
        try:
            self.wait(timeout_s)
        finally:
            self.send_signal(signal.SIGKILL)
            with self.stdout, self.stderr:
                said: str = self.stderr.read().decode()
        return said


def _serve(line: socket.socket) -> None:
    """The zygote: for each request a process that runs the command, and one that waits for it."""
    from postroom.cli.commands import doors  # noqa: F401
    from postroom.doors.mcp import server  # noqa: F401

    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    while True:
        data, descriptors, _, _ = socket.recv_fds(line, 1 << 20, 4)
        if not data:
            return
        if os.fork() == 0:
            line.close()
            _run(json.loads(data), descriptors)
        for descriptor in descriptors:
            os.close(descriptor)


def _run(asked: dict[str, Any], descriptors: list[int]) -> NoReturn:
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    *pipes, status = descriptors
    child = os.fork()
    if child == 0:
        from postroom.cli import program

        os.close(status)
        for number, descriptor in enumerate(pipes):
            os.dup2(descriptor, number)
            os.close(descriptor)
        sys.stdin, sys.stdout, sys.stderr = map(
            os.fdopen, range(3), "rww"
        )  # the zygote's own knew another kind of file
        os.environ.clear()
        os.environ.update(asked["environment"])
        os.chdir(asked["folder"])
        sys.argv = ["postroom", *asked["words"]]
        program()
    for descriptor in pipes:
        os.close(descriptor)
    os.write(status, b"%d" % child)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    os.write(status, b"%d" % code)
    os._exit(0)


if __name__ == "__main__":
    _serve(socket.socket(fileno=int(sys.argv[1])))
