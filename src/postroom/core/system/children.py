"""Starting, watching and ending child processes: the one place that does.

Children are forked off a server process of our own (`core/system/fork_server.py`) that has the needed modules imported
and runs one thread: a start costs milliseconds, and never copies the threads and locks of the caller. Guarantees:

- Each child leads a process group of its own; when it ends, whatever it left running in that group is killed.
- No orphans: when the caller is gone, also by SIGKILL, its children are killed, then its wills are carried out.
- A child whose fork server is gone is killed, also one that hangs in C code; by the system on Linux, elsewhere by a
  process that the server left for that. What such a child had started is killed by the caller, as far as it made no
  session of its own.

Nothing here knows of rooms or sessions. A child runs "module:function" with one argument, a socket to its caller.
"""

from __future__ import annotations

import atexit
import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from itertools import count
from typing import Any, Final, Literal, NamedTuple

from postroom.core.clock import SYSTEM

from . import LINUX, ps
from .framing import WHOLE_BYTES, send_frame
from .process import ENDED, process_descriptor, stat_fields

#: How long a fork server that was told to end may take before it is killed, in seconds.
_SERVER_PATIENCE_S: Final = 5.0
#: A server that is dying has let go of its pipes so long before it is seen to have ended, at most.
_DYING_S: Final = 1.0
_PAUSE_S: Final = 0.001
#: How often is looked for processes of a session that is to end, and how long it waits between two looks.
_KILL_ROUNDS: Final = 200
_KILL_PAUSE_S: Final = 0.005
_BOOT: Final = (
    "import sys, json; control, caller, path, preload = json.loads(sys.argv[1]); sys.path[:] = path; "
    "from postroom.core.system.fork_server import main; main(control, caller, preload)"
)


def caller_setting() -> dict[str, Any]:
    """What a child takes over from its caller as it is now (`fork_server.take_over`): the fork server may be older."""
    try:
        folder: str | None = os.getcwd()
    except FileNotFoundError:
        folder = None
    environment = {os.fsdecode(name): os.fsdecode(value) for name, value in os.environb.items()}
    return {"environment": environment, "folder": folder, "path": sys.path, "words": sys.argv}


class Ended(NamedTuple):
    """How a child ended: its exit code, the signal that killed it, or the error with which it could not be started.

    None of them: the fork server died with it, or had not one descriptor left for it.
    """

    code: int | None
    signal: int | None
    refused: int | None = None

    def __str__(self) -> str:
        if self.refused is not None:
            return f"could not be started: the system refused a process ({os.strerror(self.refused)})"
        if self.signal is not None:
            names = {number.value: number.name for number in signal.Signals}
            return f"was killed by signal {self.signal} ({names.get(self.signal, 'unknown')})"
        return f"ended with exit code {self.code}" if self.code is not None else "was lost with its fork server"


#: How a child ended, by the word that the fork server has for it.
_ENDS: Final[dict[str, Callable[[int], Ended]]] = {
    "exited": lambda code: Ended(code, None),
    "killed": lambda number: Ended(None, number),
    "refused": lambda error: Ended(None, None, error),
}


class Child:
    """One child process, as its caller sees it. Close it when it has ended."""

    def __init__(self, server: ForkServer, number: int, control: socket.socket, ends: tuple[int, int, int]) -> None:
        self._server = server
        self._number = number
        #: Both ways between the caller and the child; `framing.send_frame` and `read_frame` are made for it.
        self.control = control
        #: What it writes to its standard output and standard error. Never blocks.
        self.output, self.errors, self.status = ends
        self.ended: Ended | None = None
        self._pid = 0
        self._told = b""

    @property
    def pid(self) -> int:
        """Its process id; 0 when it was never started. Waits until that is known."""
        while not self._pid and self.ended is None:
            SYSTEM.wait_readable([self.status], None)
            self.read_status()
        return self._pid

    def read_status(self) -> Ended | None:
        """See what the fork server said of it; never waits. Call it when `status` can be read.

        When the fork server is gone, what it left behind is ended: that takes some milliseconds, once.
        """
        try:
            said = os.read(self.status, 4096)
        except BlockingIOError:
            return self.ended
        self._told += said
        *lines, self._told = self._told.split(b"\n")
        for line in lines:
            word, _, number = line.decode().partition(" ")
            if word.isdigit():
                self._pid = int(word)
            else:
                self.ended = _ENDS[word](int(number))
        if not said and self.ended is None:
            self.ended = Ended(None, None)
            self._server.is_over(_DYING_S)
        return self.ended

    def wait(self, timeout_s: float | None = None) -> Ended | None:
        """Wait for its end; None when it still runs after that time."""
        until_ns = None if timeout_s is None else SYSTEM.steady_ns() + round(timeout_s * 1e9)
        while self.ended is None:
            left_s = None if until_ns is None else max(0, until_ns - SYSTEM.steady_ns()) / 1e9
            if not SYSTEM.wait_readable([self.status], left_s):
                break
            self.read_status()
        return self.ended

    def send_signal(self, number: int, *, alone: bool = False) -> None:
        """Send a signal to it and to everything it started, or to it alone. Nothing happens when it has ended."""
        if self.ended is None:
            self._server.ask({"signal": self._number, "with": number, "alone": alone})

    def close(self) -> None:
        """Let go of the descriptors. A child that still runs is killed. Safe to call twice."""
        if self.status < 0:
            return
        with suppress(OSError):
            self.send_signal(signal.SIGKILL)
        self.control.close()
        for fd in (self.output, self.errors, self.status):
            os.close(fd)
        self.output = self.errors = self.status = -1


class ForkServer:
    """A fork server and the socket to it."""

    def __init__(self, preload: Sequence[str] = ()) -> None:
        self._lock = threading.Lock()
        self._ending = threading.Lock()
        self._used = False
        self._numbers = count(1)
        self._control, theirs = socket.socketpair()
        words = json.dumps([theirs.fileno(), os.getpid(), sys.path, list(preload)])
        # -W, -X, -O and so on, as multiprocessing does
        flags = subprocess._args_from_interpreter_flags()  # type: ignore[attr-defined]  # noqa: SLF001
        try:
            with theirs:
                self._process = subprocess.Popen(
                    # -P: no module of the folder that it is started in comes before the library's own
                    [sys.executable, *flags, "-P", "-c", _BOOT, words],
                    pass_fds=[theirs.fileno()],
                    stdin=subprocess.DEVNULL,
                    start_new_session=True,  # what a terminal sends to the caller is not for it
                )
        except BaseException:
            self._control.close()
            raise

    @property
    def alive(self) -> bool:
        return not self.is_over(0)

    def is_over(self, patience_s: float) -> bool:
        """Whether the server ends within that time. Then its children are gone with all they started.

        A server that is killed ends nobody, and the system ends its children alone. What they had started is found by
        the server's session, whose number is the server's: nobody else's until the server is reaped, which comes last.
        """
        until_ns = SYSTEM.steady_ns() + round(patience_s * 1e9)
        with self._ending:
            while self._process.returncode is None:
                state = _look_at_child(self._process.pid)
                if state == "broke" and self._used:
                    kill_session(self._process.pid)
                if state != "runs" and self._process.poll() is not None:
                    break
                if SYSTEM.steady_ns() >= until_ns:
                    return False
                SYSTEM.sleep(_PAUSE_S)
            return True

    def ask(self, what: dict[str, Any], descriptors: list[int] | None = None) -> None:
        """Ask for something. A server that is gone is no error: its children end with it, and their status says so.

        If it raises, for instance because of Ctrl-C, that was asked or not. A server that may have got a part of it is
        told to end: it would take whatever comes next for the rest.
        """
        frame = json.dumps(what).encode()
        with self._lock, suppress(BrokenPipeError, ConnectionResetError):
            if self._control.fileno() < 0:  # another thread found it gone, and closed it
                return
            try:
                send_frame(self._control, frame, descriptors)
            except BaseException:
                if len(frame) > WHOLE_BYTES:
                    self._control.shutdown(socket.SHUT_WR)
                raise

    def start(self, target: str) -> Child:
        """Start a child that runs "module:function" with its end of the control socket. Does not wait for it.

        If it raises, nothing is left open here; a child that was started all the same finds nobody, and ends.
        """
        with ExitStack() as ours, ExitStack() as theirs:
            control, given = socket.socketpair()
            ours.callback(control.close)
            theirs.callback(given.close)
            reads, writes = [], []
            for _ in range(3):
                read, write = os.pipe()
                ours.callback(os.close, read)
                theirs.callback(os.close, write)
                os.set_blocking(read, False)
                reads.append(read)
                writes.append(write)
            self._used = True
            number = next(self._numbers)
            output, errors, status = writes
            self.ask({"start": number, "target": target}, [status, given.fileno(), output, errors])
            child = Child(self, number, control, (reads[0], reads[1], reads[2]))
            ours.pop_all()  # they are the child's now
            return child

    def will(self, key: str, target: str | None, argument: str = "") -> None:
        """When this process is gone, and its children are, call "module:function" with the argument. None: no more."""
        self.ask({"will": key, "target": target, "with": argument})

    def close(self) -> None:
        """End the server; children that still run are killed. Safe to call twice, and while others ask."""
        self._hang_up()
        if not self.is_over(_SERVER_PATIENCE_S):
            self.kill()

    def kill(self) -> None:
        """End the server at once, however far it is. Its children end with it; wills are not carried out."""
        self._hang_up()
        self._process.kill()
        self.is_over(_SERVER_PATIENCE_S)

    def _hang_up(self) -> None:
        """Say nothing more to the server. The number of the socket is not free for another file while a thread asks."""
        with suppress(OSError):  # it was closed
            self._control.shutdown(socket.SHUT_RDWR)  # a thread that waits for the server to listen goes on
        with self._lock:
            self._control.close()

    def forget(self) -> None:
        """After a fork: it belongs to the process before."""
        self._control.close()
        self._process.returncode = 0  # else its end would be waited for, and warned about, here


_lock = threading.Lock()
_shared: ForkServer | None = None


def shared_server(preload: Sequence[str] = ()) -> ForkServer:
    """The fork server of this process; started with these modules imported when there is none that lives."""
    global _shared  # noqa: PLW0603  (one process, one fork server)
    with _lock:
        if _shared is not None and not _shared.alive:
            _shared.close()
            _shared = None
        if _shared is None:
            _shared = ForkServer(preload)
        return _shared


def play_server(server: ForkServer | None) -> ForkServer | None:
    """For the simulation: let that one start children from now on. Returns the one that was in use, and goes on."""
    global _shared
    with _lock:
        before, _shared = _shared, server
    return before


def close_shared_server() -> None:
    """End the fork server of this process, if there is one. The next child starts another."""
    global _shared
    with _lock:
        server, _shared = _shared, None
    if server is not None:
        server.close()


def _forget_after_fork() -> None:
    global _lock, _shared  # noqa: PLW0603  (one process, one fork server)
    _lock = threading.Lock()
    if _shared is not None:
        _shared.forget()
        _shared = None


atexit.register(close_shared_server)
os.register_at_fork(after_in_child=_forget_after_fork)


def _look_at_child(pid: int) -> Literal["runs", "ended", "broke"] | None:
    """The state of a child of this process; it broke when it was killed, or ended with another exit code than 0.

    It is not reaped by this look: its number stays its own. None where nothing can be seen: the system has no such
    look, or other code has reaped it.
    """
    if not hasattr(os, "waitid"):
        return None
    try:
        found = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT | os.WNOHANG)
    except ChildProcessError:
        return None
    if found is None:
        return "runs"
    return "ended" if (found.si_code, found.si_status) == (os.CLD_EXITED, 0) else "broke"


def kill_session(session: int) -> None:
    """Kill the other processes of a session (as of setsid), and those that they start meanwhile.

    The caller sees to it that the session's number is not given away meanwhile. A process belongs to the session of its
    parent, or to one with its own number: so every process that is found in it was started in it. On Linux each is held
    by a descriptor while it is looked at and killed, so that it cannot be another that has got its number; elsewhere
    one look and one call are between.
    """
    for _ in range(_KILL_ROUNDS):
        pids = [int(name) for name in os.listdir("/proc") if name.isdigit()] if LINUX else ps.running()
        here = [pid for pid in pids if pid != os.getpid() and _works_in(pid, session)]
        if not here:  # nor was another started meanwhile: its parent would have been seen
            return
        for pid in here:
            with suppress(OSError):
                _kill_in(pid, session)
        SYSTEM.sleep(_KILL_PAUSE_S)


def _kill_in(pid: int, session: int) -> None:
    descriptor = process_descriptor(pid) if LINUX else None
    try:
        if not _works_in(pid, session):
            return
        if sys.platform == "linux" and descriptor is not None:
            signal.pidfd_send_signal(descriptor, signal.SIGKILL)
        elif not LINUX:
            os.kill(pid, signal.SIGKILL)
    finally:
        if descriptor is not None:
            os.close(descriptor)


def _works_in(pid: int, session: int) -> bool:
    """Whether a process belongs to that session, and (on Linux) is not just waiting to be reaped."""
    try:
        if not LINUX:
            return os.getsid(pid) == session
        fields = stat_fields(pid)
    except OSError:  # it ended
        return False
    return int(fields[3]) == session and fields[0] not in ENDED
