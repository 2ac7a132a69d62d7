"""The process that starts workers: it has everything imported, runs one thread, and so can fork safely and fast.

`core/system/children.py` talks to it over a socket and hands it, for each child, the ends of four pipes. It is the
parent of all children, so it knows at once when one ends, and it outlives a caller that is killed: it then ends the
children with everything they started, carries out the caller's will (to record what happened), and ends itself.

What it is asked, as one frame of JSON each:

    {"start": NUMBER, "target": "module:function"}      with four descriptors: status, control, output, errors
    {"signal": NUMBER, "with": SIGTERM, "alone": false} to the child's whole group, or to the child alone
    {"will": KEY, "target": "module:function", "with": TEXT}        {"will": KEY, "target": null} takes it back

On a child's status pipe it writes one line when it has started, "PID", and one when it has ended: "exited CODE" or
"killed SIGNAL". For one that the system does not let it start it writes one line: "refused ERRNO".
"""

from __future__ import annotations

import atexit
import errno
import fcntl
import gc
import importlib
import json
import os
import select
import signal
import socket
import sys
import threading
import traceback
from contextlib import suppress
from typing import Any, Final, NamedTuple, NoReturn

from . import LINUX, children
from .framing import HEADER_BYTES, read_exactly
from .libc import die_with_parent
from .process import process_descriptor, process_started
from .startup import load_target

#: status, control, output, errors: the one over which a refusal is told comes first
DESCRIPTORS: Final = 4
EXIT_BROKEN: Final = 70
_LOOK_MS: Final = 1000


def take_over(setting: dict[str, Any]) -> None:
    """In a child: be as the caller is now: environment, folder, where modules are looked for."""
    os.environ.clear()
    os.environ.update(setting["environment"])
    with suppress(OSError, TypeError):  # the folder is gone
        os.chdir(setting["folder"])
    sys.path[:] = setting["path"]
    sys.argv[:] = setting["words"]


def main(control: int, caller: int, preload: list[str]) -> NoReturn:
    """Serve one caller until it closes its end of the socket or is gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the caller, which tells this process
    for name in preload:
        importlib.import_module(name)
    gc.collect()
    gc.freeze()  # what is here now is shared with every child; looking through it would copy it
    code = 0
    try:
        with socket.socket(fileno=control) as asked:
            _Server(asked, caller).run()
    except BaseException:  # noqa: BLE001  the children are ended as this process ends: see `_become_child`
        traceback.print_exc()
        code = EXIT_BROKEN
    os._exit(code)


def _start_guard() -> int:
    """Start a process that kills the session when this one ends without a word; the pipe to give it.

    Where the system does not kill children with their parent. A thread in each child would not do: it does not run while
    the child hangs in C code. The guard belongs to the session, so that its number is nobody else's meanwhile.
    """
    watching, watched = os.pipe()
    session = os.getpid()
    if os.fork() != 0:
        os.close(watching)
        return watched
    try:
        signal.set_wakeup_fd(-1)
        watching = fcntl.fcntl(watching, fcntl.F_DUPFD_CLOEXEC, 3)
        nothing = os.open(os.devnull, os.O_RDWR)
        for end in (0, 1, 2):
            os.dup2(nothing, end)
        os.closerange(3, watching)  # or it would keep pipes open, which others read to their end
        os.closerange(watching + 1, os.sysconf("SC_OPEN_MAX"))
        if not os.read(watching, 1):
            children.kill_session(session)
    finally:
        os._exit(0)


class _Child(NamedTuple):
    number: int
    pid: int
    status: int


class _Server:
    """The loop of the fork server."""

    def __init__(self, control: socket.socket, caller: int) -> None:
        self._control = control
        self._caller = caller
        self._guard: int | None = None  # the pipe to the process that ends the children, where the system does not
        self._caller_gone = process_descriptor(caller)
        self._children: dict[int, _Child] = {}
        self._wills: dict[str, tuple[str, str]] = {}
        self._woken, self._wake = os.pipe()
        os.set_blocking(self._wake, False)
        os.set_blocking(self._woken, False)
        signal.set_wakeup_fd(self._wake, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)

    def run(self) -> None:
        """Do what the caller asks until it is gone; then leave nothing behind."""
        poll = select.poll()
        ends = [self._control.fileno(), self._woken]
        if self._caller_gone is not None:
            ends.append(self._caller_gone)
        for end in ends:
            poll.register(end, select.POLLIN)
        # Where nothing tells that the caller is gone, and a fork of it keeps its end of the socket, it must be looked.
        pause_ms = _LOOK_MS if self._caller_gone is None else None
        alive = os.getppid() == self._caller
        while alive:
            ready = {fd for fd, _ in poll.poll(pause_ms)}
            if self._woken in ready:
                with suppress(BlockingIOError):
                    os.read(self._woken, 4096)
            self._reap(os.WNOHANG)
            if self._control.fileno() in ready:
                alive = self._answer()
            elif self._caller_gone in ready or (not ready and os.getppid() != self._caller):
                alive = False
        self._read_wills()
        self._end_all()
        if self._guard is not None:
            os.write(self._guard, b"!")  # nobody is left

    def _read_wills(self) -> None:
        """What the caller had said before it was gone, perhaps before this process ran: only its wills count."""
        poll = select.poll()
        poll.register(self._control.fileno(), select.POLLIN)
        while poll.poll(0):
            asked, descriptors = self._next()
            for fd in descriptors:
                os.close(fd)
            if asked is None:
                return
            self._note_will(asked)

    def _answer(self) -> bool:
        """Do the next thing that is asked. False when the caller is gone."""
        asked, descriptors = self._next()
        if asked is None:
            return False
        if "start" in asked:
            self._try_to_start(asked["start"], asked["target"], descriptors)
        elif "signal" in asked:
            self._signal(asked["signal"], asked["with"], alone=asked["alone"])
        else:
            self._note_will(asked)
        return True

    def _next(self) -> tuple[dict[str, Any] | None, list[int]]:
        """What is asked next, and the descriptors that came with it; None when the caller is gone."""
        try:
            head, descriptors, _, _ = socket.recv_fds(self._control, HEADER_BYTES, DESCRIPTORS)
            for fd in descriptors:  # nothing is forked off in between: there is one thread
                os.set_inheritable(fd, False)
            frame = read_exactly(self._control, int.from_bytes(head, "big")) if head else None
        except OSError:
            return None, []
        return (None if frame is None else json.loads(frame)), descriptors

    def _note_will(self, asked: dict[str, Any]) -> None:
        if "will" not in asked:
            return
        if asked["target"] is None:
            self._wills.pop(asked["will"], None)
        else:
            self._wills[asked["will"]] = (asked["target"], asked["with"])

    def _try_to_start(self, number: int, target: str, descriptors: list[int]) -> None:
        """Start a child. Where the system has nothing left for it, that is told: the others go on."""
        try:
            if len(descriptors) < DESCRIPTORS:
                raise OSError(errno.EMFILE, "there were no numbers left here for its descriptors")
            self._start(number, target, descriptors)
        except OSError as error:  # too many processes, no memory (tests/sessions/test_processes.py)
            if descriptors:
                _write_line(descriptors[0], f"refused {error.errno}")
            for fd in descriptors:
                os.close(fd)

    def _start(self, number: int, target: str, descriptors: list[int]) -> None:
        """Start a child, whose descriptors are closed here after it. Raises OSError when there is none."""
        status, control, output, errors = descriptors
        if not LINUX and self._guard is None:
            self._guard = _start_guard()
        server = os.getpid()
        pid = os.fork()  # from a process with one thread, which is the point of this process
        if pid == 0:
            try:
                self._become_child(server, output, errors)
                os.close(status)
                _run_child(target, control)
            finally:
                os._exit(EXIT_BROKEN)
        with suppress(OSError):  # both sides do it, because either may come first (a race)
            os.setpgid(pid, pid)
        self._children[number] = _Child(number, pid, status)
        for fd in (control, output, errors):
            os.close(fd)
        _write_line(status, str(pid))

    def _become_child(self, server: int, output: int, errors: int) -> None:
        os.setpgid(0, 0)
        if LINUX:
            with suppress(OSError):
                die_with_parent()
        if os.getppid() != server:
            os._exit(EXIT_BROKEN)
        signal.set_wakeup_fd(-1)
        for number in (signal.SIGCHLD, signal.SIGTERM):
            signal.signal(number, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        statuses = (child.status for child in self._children.values())
        for end in (self._woken, self._wake, self._caller_gone, self._guard, *statuses):
            if end is not None:
                os.close(end)
        self._control.close()
        os.dup2(output, 1)
        os.dup2(errors, 2)
        os.close(output)
        os.close(errors)

    def _signal(self, number: int, with_: int, *, alone: bool) -> None:
        child = self._children.get(number)
        if child is not None:  # else it was reaped, and its pid may be somebody else's
            with suppress(ProcessLookupError, PermissionError):
                (os.kill if alone else os.killpg)(child.pid, with_)

    def _reap(self, options: int) -> None:
        """See which children have ended; whatever they left running in their group ends with them."""
        for child in tuple(self._children.values()):
            if not _has_ended(child.pid, options):
                continue
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(child.pid, signal.SIGKILL)
            _, status = os.waitpid(child.pid, 0)
            del self._children[child.number]
            killed = os.WIFSIGNALED(status)
            _write_line(child.status, f"killed {os.WTERMSIG(status)}" if killed else f"exited {os.WEXITSTATUS(status)}")
            os.close(child.status)

    def _end_all(self) -> None:
        for child in self._children.values():
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(child.pid, signal.SIGKILL)
        self._reap(0)
        for target, argument in self._wills.values():
            try:
                load_target(target)(argument)
            except Exception:  # noqa: BLE001  one will that cannot be carried out does not keep back another
                traceback.print_exc()


def _has_ended(pid: int, options: int) -> bool:
    """Whether a child has ended; with options 0, wait for it.

    It is not reaped by this look, so its pid, which is its group's name too, stays its own until the group is gone.
    """
    if hasattr(os, "waitid"):
        return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT | options) is not None
    if options == 0:
        return True
    with suppress(OSError):  # it cannot be looked up now
        return process_started(pid) is None  # systems without it: one that has ended is seen as gone
    return False


def _write_line(fd: int, line: str) -> None:
    with suppress(OSError):  # nobody reads it any more
        os.write(fd, line.encode() + b"\n")


def _run_child(target: str, control: int) -> None:
    """Run the child's function to its end, with what belongs to the end of a Python program. Never returns."""
    code = EXIT_BROKEN
    try:
        for stream in (sys.stdout, sys.stderr):
            stream.reconfigure(line_buffering=True)  # type: ignore[union-attr]
        with socket.socket(fileno=control) as caller:
            code = int(load_target(target)(caller) or 0)
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else int(error.code is not None)
    except BaseException:  # noqa: BLE001  as the interpreter does
        traceback.print_exc()
        code = 1
    with suppress(BaseException):
        # as multiprocessing does: a fork has no other end
        threading._shutdown()  # type: ignore[attr-defined]  # noqa: SLF001
        atexit._run_exitfuncs()  # noqa: SLF001
    for stream in (sys.stdout, sys.stderr):
        with suppress(BaseException):
            stream.flush()
    os._exit(code & 0xFF)
