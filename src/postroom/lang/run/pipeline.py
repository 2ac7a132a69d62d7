"""Pipelines: starting their processes, pumping what they write, and ending them.

Everything that a command starts carries a mark in its environment, so that it can be found and ended: when the time is
up, at Ctrl-C, and when the program is over. The commands of a worker belong to its process group, which
dies with it; for a program that runs in the caller's own process a fork server watches, and ends what carries the
program's mark when the program was killed (tests/lang/test_running.py).
"""

from __future__ import annotations

import fcntl
import os
import shlex
import signal
import subprocess
import sys
import tempfile
import termios
import threading
from collections.abc import Sequence
from contextlib import suppress
from itertools import count
from typing import Final, NamedTuple

from postroom.core.clock import SYSTEM
from postroom.core.system import children, proc
from postroom.core.system.process import process_descriptor, this_process

MARK: Final = "POSTROOM_COMMAND"
#: After SIGTERM a command has this long to put its things in order before it is killed.
TERM_S: Final = 1.0
NOT_FOUND: Final = 127
NOT_EXECUTABLE: Final = 126
FAILED: Final = 1
#: So much of the end of the standard error is kept.
KEPT_BYTES: Final = 4096
_CHUNK: Final = 64 * 1024
_STANDARD: Final = (0, 1, 2)

_numbers = count(1)


class Redirect(NamedTuple):
    """`op` is one of > >> < <<< &> &>> >&; see `nodes.ShellRedirect`."""

    op: str
    fd: int
    target: str | None = None
    to_fd: int | None = None


class ProgramCommand(NamedTuple):
    """One program to start: its words, what is added to its environment, its redirections in order."""

    words: list[str]
    environment: dict[str, str]
    redirects: tuple[Redirect, ...]

    def __str__(self) -> str:
        before = [f"{name}={shlex.quote(value)}" for name, value in self.environment.items()]
        return " ".join([*before, shlex.join(self.words)])


class PipelineResult(NamedTuple):
    """How a pipeline ended: its code, what it wrote if that was captured, and the end of its standard error."""

    command: str
    code: int
    output: bytes = b""
    errors: bytes = b""
    #: "exit code 2", or "signal 9 (SIGKILL)".
    ending: str = ""
    #: The limit in seconds, when that was the end of it.
    timed_out: float = 0.0
    #: Why a program could not be started.
    not_started: str = ""


def run_pipeline(
    commands: Sequence[ProgramCommand], *, given: bytes | None, capture: bool, timeout_s: float | None, guarded: bool
) -> PipelineResult:
    """Run commands side by side, the output of each the input of the next, to their end.

    After, also if it raises (Ctrl-C): none of them runs any more. Processes that they left in the background do.
    """
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):  # closed, or a pipe whose reader left
            stream.flush()
    mark = f"{own_mark(guarded=guarded)}:{next(_numbers)}"
    running = _Running(" | ".join(map(str, commands)), mark, capture=capture)
    try:
        running.start(commands, given)
        return running.attend(timeout_s)
    except BaseException:
        running.end()
        raise
    finally:
        running.close()


class _Running:
    """The processes of one pipeline."""

    def __init__(self, command: str, mark: str, *, capture: bool) -> None:
        self._command = command
        self._mark = mark
        self._children: list[subprocess.Popen[bytes]] = []
        self._descriptors: dict[int, subprocess.Popen[bytes]] = {}
        self._failures: list[tuple[int, str]] = []  # the codes and sentences of those that could not be started
        self._last_failed = False
        self._errors_end, self._errors = os.pipe()
        self._output_end, self._output = os.pipe() if capture else (-1, 1)
        self._open = {self._errors_end, self._errors} | ({self._output_end, self._output} if capture else set())
        self._said = bytearray()
        self._complained = bytearray()

    # Starting

    def start(self, commands: Sequence[ProgramCommand], given: bytes | None) -> None:
        """Start all commands. One that cannot be started does not keep the others from running, as in a shell."""
        source = 0 if given is None else _file_with(given)
        self._open |= {source} if source else set()
        for place, command in enumerate(commands):
            last = place == len(commands) - 1
            next_source, sink = (-1, self._output) if last else os.pipe()
            self._open |= {next_source, sink} - {-1, 1}
            self._start_one(command, {0: source, 1: sink, 2: self._errors}, last=last)
            self._close(source, sink)
            source = next_source
        self._close(self._errors)

    def _start_one(self, command: ProgramCommand, ends: dict[int, int], *, last: bool) -> None:
        opened: list[int] = []
        added = {_raw(name): _raw(value) for name, value in command.environment.items()}
        try:
            for redirect in command.redirects:
                _apply(redirect, ends, opened)
            child = subprocess.Popen(
                [_raw(word) for word in command.words],
                env={**os.environb, MARK.encode(): self._mark.encode(), **added},
                stdin=ends[0],
                stdout=ends[1],
                stderr=ends[2],
            )
        except OSError as error:
            self._note_failure(command, error, last=last)
            return
        finally:
            for fd in opened:
                os.close(fd)
        self._children.append(child)
        descriptor = process_descriptor(child.pid)
        if descriptor is not None:
            self._open.add(descriptor)
            self._descriptors[descriptor] = child

    def _note_failure(self, command: ProgramCommand, error: OSError, *, last: bool) -> None:
        name = command.words[0]
        if isinstance(error, _RedirectFailed):
            code, said = FAILED, f"{error.target}: {error.strerror}"
        elif isinstance(error, FileNotFoundError):
            code, said = NOT_FOUND, f"there is no program {name}"
        else:
            code, said = NOT_EXECUTABLE, f"{name} cannot be run ({error.strerror})"
        self._failures.append((code, said))
        self._last_failed = last

    # Attending

    def attend(self, timeout_s: float | None) -> PipelineResult:
        """Pass on what they write until all have ended, or the time is up."""
        until_ns = None if timeout_s is None else SYSTEM.steady_ns() + round(timeout_s * 1e9)
        while self._busy():
            left_s = None if until_ns is None else (until_ns - SYSTEM.steady_ns()) / 1e9
            if left_s is not None and left_s <= 0:
                self.end()
                self._drain(self._errors_end, self._output_end)
                return self._outcome(timed_out=timeout_s or 0.0)
            self._pump(set(SYSTEM.wait_readable(self._waits_for(), left_s)))
        self._drain(self._errors_end)
        for child in self._children:
            child.wait()
        return self._outcome()

    def _busy(self) -> bool:
        if self._output_end in self._open or self._descriptors:
            return True
        # without process descriptors the end of the standard error must do
        return any(child.poll() is None for child in self._children) and self._errors_end in self._open

    def _waits_for(self) -> list[int]:
        ends = (self._errors_end, self._output_end, *self._descriptors)
        return sorted(fd for fd in ends if fd in self._open)

    def _pump(self, ready: set[int]) -> None:
        """Reap the processes that ended, and take one piece from each pipe that has something.

        One, and not all there is: a command that writes as fast as its output is passed on would keep this loop here
        for ever, and the time would run out unseen (tests/lang/test_running.py, a command that never stops writing).
        """
        for fd in ready & set(self._descriptors):
            self._descriptors.pop(fd).wait()
            self._close(fd)
        for fd in (self._errors_end, self._output_end):
            if fd in ready:
                self._take(fd)

    def _take(self, fd: int) -> int:
        """Pass on a piece of what was written; how many bytes it had."""
        raw = os.read(fd, _CHUNK)
        if not raw:
            self._close(fd)
        elif fd == self._errors_end:
            self._show(raw)
        else:
            self._said += raw
        return len(raw)

    def _drain(self, *fds: int) -> None:
        """Take what was written before the end: it is in the pipes now.

        Later output is from processes in the background, which may never stop (tests/lang/test_running.py).
        """
        for fd in fds:
            left = _bytes_in(fd) if fd in self._open else 0
            while left > 0:
                left -= self._take(fd)

    def _show(self, raw: bytes) -> None:
        self._complained += raw
        del self._complained[:-KEPT_BYTES]
        with suppress(OSError):
            while raw:
                raw = raw[os.write(2, raw) :]

    def _outcome(self, timed_out: float = 0.0) -> PipelineResult:
        failed, said = self._failures[0] if self._failures else (0, "")
        code = failed if self._last_failed or not self._children else self._children[-1].returncode
        ending = f"exit code {code}"
        if code < 0:
            names = {number.value: number.name for number in signal.Signals}
            ending = f"signal {-code} ({names.get(-code, 'unknown')})"
            code = 128 - code
        if failed and code == 0:  # a program in the middle was not there: what came out is not what was asked for
            code, ending = failed, f"exit code {failed}"
        return PipelineResult(self._command, code, bytes(self._said), bytes(self._complained), ending, timed_out, said)

    # Ending

    def end(self) -> None:
        """End the commands and all that they started: they are told to, and killed when they do not."""
        for number, span_s in ((signal.SIGTERM, TERM_S), (signal.SIGKILL, 10.0)):
            end_marked(self._mark, number)
            for child in self._children:
                if child.returncode is None:
                    child.send_signal(number)
            until_ns = SYSTEM.steady_ns() + round(span_s * 1e9)
            while any(child.poll() is None for child in self._children):
                left_s = (until_ns - SYSTEM.steady_ns()) / 1e9
                if left_s <= 0:
                    break
                self._wait_for_one(left_s)
            if all(child.returncode is not None for child in self._children) and not proc.marked(MARK, self._mark):
                return

    def _wait_for_one(self, left_s: float) -> None:
        if self._descriptors:
            self._pump(set(SYSTEM.wait_readable(sorted(self._descriptors), left_s)))
        else:  # a system without process descriptors
            with suppress(subprocess.TimeoutExpired):
                next(child for child in self._children if child.returncode is None).wait(left_s)

    def close(self) -> None:
        """Let go of the descriptors."""
        self._close(*tuple(self._open))

    def _close(self, *fds: int) -> None:
        for fd in fds:
            if fd in self._open:
                self._open.discard(fd)
                os.close(fd)


def _bytes_in(fd: int) -> int:
    """How much was written to a pipe and not read yet."""
    told = bytearray(4)
    fcntl.ioctl(fd, termios.FIONREAD, told)
    return int.from_bytes(told, sys.byteorder)


def _raw(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")


def _file_with(raw: bytes) -> int:
    """A file without a name that has this in it, to be read from its beginning."""
    with tempfile.TemporaryFile() as file:
        file.write(raw)
        file.seek(0)
        return os.dup(file.fileno())


class _RedirectFailed(OSError):
    """A file could not be opened for a command."""

    def __init__(self, target: str, error: OSError) -> None:
        self.target = target
        super().__init__(error.errno, error.strerror)


_MODES: Final = {
    ">": os.O_WRONLY | os.O_CREAT | os.O_TRUNC,
    ">>": os.O_WRONLY | os.O_CREAT | os.O_APPEND,
    "<": os.O_RDONLY,
}


def _apply(redirect: Redirect, ends: dict[int, int], opened: list[int]) -> None:
    """Change where a command reads from and writes to."""
    op, target = redirect.op, redirect.target or ""
    if redirect.fd not in _STANDARD or (redirect.to_fd is not None and redirect.to_fd not in _STANDARD):
        raise _RedirectFailed(f"{redirect.fd}{op}", OSError(22, "only 0, 1 and 2 can be redirected"))
    if op == ">&":
        ends[redirect.fd] = ends[redirect.to_fd or 0]
        return
    if op == "<<<":
        fd = _file_with(_raw(target))
    else:
        try:
            fd = os.open(_raw(target), _MODES[op.removeprefix("&")] | os.O_CLOEXEC, 0o666)
        except OSError as error:
            raise _RedirectFailed(target, error) from None
    opened.append(fd)
    for place in (1, 2) if op.startswith("&") else (redirect.fd,):
        ends[place] = fd


# The processes that a program started, found by their mark


class _Guard:
    """The one fork server that watches over this process. Threads may run commands at the same time."""

    def __init__(self) -> None:
        self._made: tuple[int, children.ForkServer] | None = None  # by the process of that id
        # a server that another thread has started meanwhile would be lost, and never ended (tests/lang/test_shell.py:
        # test_threads_that_run_their_first_commands_at_once_share_one_guard); a signal's handler may come in between
        self._lock = threading.RLock()

    def watch(self, mark: str) -> None:
        """From now on, what carries the mark ends when this process is killed."""
        with self._lock:
            if self._made is None or self._made[0] != os.getpid():
                server = children.ForkServer()
                server.will("commands", "postroom.lang.run.pipeline:kill_marked", mark)
                self._made = (os.getpid(), server)

    def end(self, mark: str) -> None:
        """End what carries the mark, and the server, if there is one."""
        with self._lock:
            if self._made is not None and self._made[0] == os.getpid():
                kill_marked(mark)
                self._made[1].kill()  # a program that is over before its guard is up does not wait for it
                self._made = None

    def renew_lock(self) -> None:
        """This process was forked: another thread of the parent may have held the lock."""
        self._lock = threading.RLock()


_guard: Final = _Guard()
os.register_at_fork(after_in_child=_guard.renew_lock)


def own_mark(*, guarded: bool) -> str:
    """The mark of everything that this process starts. Guarded: its carriers end when this process is killed."""
    mark = this_process()
    if guarded:
        _guard.watch(mark)
    return mark


def end_own() -> None:
    """End everything that this process started, and what watched over it: the program is over."""
    _guard.end(this_process())


def end_marked(mark: str, number: int) -> int:
    """Send a signal to all processes that carry the mark; returns how many there were."""
    pids = proc.marked(MARK, mark)
    for pid in pids:
        with suppress(ProcessLookupError, PermissionError):
            os.kill(pid, number)
    return len(pids)


def kill_marked(mark: str) -> None:
    """Kill all processes that carry the mark, and those that they started meanwhile."""
    for _ in range(100):
        if not end_marked(mark, signal.SIGKILL):
            return
        SYSTEM.sleep(0.01)
