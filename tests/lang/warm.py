"""A fork server for the command line: runs of `postroom COMMAND` in tests are forked from one process that has loaded it.

Each run is a real process with a folder, an environment and streams of its own; it only does not load Python and
Postroom anew. Tests of how a command starts, or of signals, start the command line themselves (`programs.command`).
"""

from __future__ import annotations

import atexit
import importlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
from contextlib import suppress
from functools import cache
from pathlib import Path

#: What nearly every run needs.
LOADED = (
    "postroom.cli",
    "postroom.cli.commands.run",
    "postroom.core.system.children",
    "postroom.inference",
    "postroom.lang.check.check",
    "postroom.lang.run.report",
    "postroom.lang.run.room",
    "postroom.lang.run.run",
    "postroom.lang.run.shell",
    "postroom.lang.run.prompts",
    "postroom.sessions.runners",
    "postroom.stores.sqlite.store",
)
#: More than any request has.
MAX_BYTES = 1 << 20


@cache
def _listener() -> socket.socket:
    """The address of the fork server, which is started with the first run and ends with this process."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    atexit.register(listener.close)
    listener.bind("")  # an address of the system's choice, which is no file
    listener.listen(64)
    words = [sys.executable, __file__, str(listener.fileno())]
    server = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, pass_fds=[listener.fileno()])
    atexit.register(server.communicate)  # which closes its standard input, and waits for its end
    return listener


def run(words: list[str], cwd: Path, env: dict[str, str], given: bytes, timeout_s: float) -> tuple[int, bytes, bytes]:
    """Run one command to its end; its exit code, its output and its standard error."""
    asked = json.dumps({"words": words, "cwd": str(cwd), "env": env}).encode()
    source, sink = os.pipe()
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as connection:
            connection.settimeout(timeout_s)
            connection.connect(_listener().getsockname())
            socket.send_fds(connection, [asked], [source, out.fileno(), err.fileno()])
            os.close(source)
            with open(sink, "wb") as stdin:
                stdin.write(given)
            code = int(connection.recv(100))
        out.seek(0)
        err.seek(0)
        return code, out.read(), err.read()


def serve(listener: socket.socket) -> None:
    """Fork for each connection until the tests are over, which the end of the standard input tells."""
    for name in LOADED:
        importlib.import_module(name)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    while True:
        ready, _, _ = select.select([listener.fileno(), 0], [], [])
        if 0 in ready:
            return
        with suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:  # those that are over
                pass
        connection, _ = listener.accept()
        if os.fork() == 0:
            listener.close()
            attend(connection)
            return
        connection.close()


def attend(connection: socket.socket) -> None:
    """Start what was asked for in a process of its own, and tell its exit code. Returns in that process as its program."""
    raw, fds, _, _ = socket.recv_fds(connection, MAX_BYTES, 3)
    child = os.fork()
    if child:
        for fd in fds:
            os.close(fd)
        connection.send(str(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])).encode())
        os._exit(0)
    connection.close()
    for place, fd in enumerate(fds):
        os.dup2(fd, place)
        os.close(fd)
    asked = json.loads(raw)
    os.chdir(asked["cwd"])
    os.environ.clear()
    os.environ.update(asked["env"])
    tempfile.tempdir = None
    signal.signal(signal.SIGINT, signal.default_int_handler)
    sys.argv = ["postroom", *asked["words"]]
    importlib.import_module("postroom.cli").program()


if __name__ == "__main__":
    serve(socket.socket(fileno=int(sys.argv[1])))
