"""The main program of a pool's worker: load the evaluator, say ready, judge one message after the other.

The main thread reads the work line and calls the evaluator. A second thread reads the side line, so that a worker
answers a ping and hears an abort while it works. An abort is a signal to the main thread that raises `Abandoned` in it,
also in the middle of a blocking call; an evaluator that catches it, or that is deep in C code, is killed by the pool.
"""

from __future__ import annotations

import faulthandler
import inspect
import json
import os
import signal
import socket
import threading
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from typing import Any, Final

from postroom.core.clock import SYSTEM
from postroom.core.system.fork_server import take_over
from postroom.core.system.framing import HEADER_BYTES, read_exactly
from postroom.core.system.memory import MemoryGauge
from postroom.core.system.startup import load_target

from .evaluation import Evaluation
from .protocol import (
    Abort,
    Error,
    ErrorKind,
    Evaluate,
    Ping,
    Pong,
    Ready,
    Result,
    Shutdown,
    Splitter,
    evaluation_of,
    pack,
)

#: Stops the evaluation that runs. Nothing happens by default when it comes, and programs rarely use it.
ABORT_SIGNAL: Final = signal.SIGURG
#: Lets the process write to its standard error where each of its threads is, also when it hangs in C code.
DUMP_SIGNAL: Final = signal.SIGUSR2
EXIT_BOOT: Final = 78
#: A read of more than the allocator keeps at hand costs twenty microseconds for nothing.
_CHUNK: Final = 32 * 1024
_MAX_TRACE: Final = 20_000
_MAX_CALLED_OFF: Final = 1000

Evaluator = Callable[[dict[str, Any]], Any]


class Abandoned(BaseException):
    """Raised in the middle of an evaluation that was called off. Not an Exception: evaluators catch those."""


def run(control: socket.socket) -> int:
    """Be a worker until the pool hangs up. Returns the exit code of the process."""
    received = _read_setup(control)
    if received is None:
        return EXIT_BOOT  # the pool is gone
    setup, side = received
    take_over(setup["setting"])
    faulthandler.register(DUMP_SIGNAL, all_threads=True)
    with side:
        station = WorkerMain(control, side)
        try:
            evaluator = load_evaluator(setup["evaluator"], setup["context"])
        except BaseException as error:  # noqa: BLE001  whatever it was, the pool is told
            traceback.print_exc()
            station.tell_error(0, 0, "boot", error)
            return EXIT_BOOT
        return station.serve(evaluator)


def _read_setup(control: socket.socket) -> tuple[dict[str, Any], socket.socket] | None:
    """The first frame of the work line: what to be; with it comes our end of the side line."""
    head, descriptors, _, _ = socket.recv_fds(control, HEADER_BYTES, 1)
    if not head or not descriptors:
        return None
    body = read_exactly(control, int.from_bytes(head, "big"))
    if body is None:
        return None
    os.set_inheritable(descriptors[0], False)
    return json.loads(body), socket.socket(fileno=descriptors[0])


def load_evaluator(name: str, context: Mapping[str, Any]) -> Evaluator:
    """The function behind "module:function"; with the worker's settings, if it takes an argument `context`.

    A function may carry a `prepare(context)` of its own: it is called once, before the worker is ready (to load a
    model).
    """
    function = load_target(name)
    prepare = getattr(function, "prepare", None)
    if callable(prepare):
        prepare(dict(context))
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):  # written in C
        return function
    if any(p.name == "context" or p.kind is p.VAR_KEYWORD for p in parameters):
        return lambda message: function(message, context=dict(context))
    return function


class WorkerMain:
    """The worker's two lines, and what it is at."""

    def __init__(self, work: socket.socket, side: socket.socket) -> None:
        self._work = work
        self._side = side
        self._gauge = MemoryGauge()
        self._main = threading.get_ident()
        self._current = 0  # the request that the evaluator is at
        self._sending = False  # a frame is half-way out: not the moment to raise
        self._called_off: set[int] = set()
        self._stopping = False
        signal.signal(ABORT_SIGNAL, self._on_abort)

    def serve(self, evaluator: Evaluator) -> int:
        """Judge messages until the pool hangs up."""
        threading.Thread(target=self._hear, name="postroom side line", daemon=True).start()
        self._send(Ready(os.getpid(), self._gauge.bytes()))
        for frame in _frames(self._work):
            if isinstance(frame, Evaluate):
                self._judge(evaluator, frame)
        return 0

    # The main thread

    def _judge(self, evaluator: Evaluator, asked: Evaluate) -> None:
        """One evaluation, from its request to its last frame."""
        failed: tuple[ErrorKind, BaseException] | None = None
        last: Evaluation | None = None
        try:
            self._current = asked.request
            self._look_for_abort()
            last = self._evaluate(evaluator, asked)
            self._current = 0
        except Abandoned as error:
            failed = ("aborted", error)
        except Exception as error:  # noqa: BLE001  somebody's function
            failed = ("raised", error)
        self._current = 0
        self._called_off.discard(asked.request)
        if last is not None:
            try:
                self._tell(asked, last, final=True)
            except (TypeError, ValueError, RecursionError) as error:  # no frame can hold it: half of an emoji, for one
                failed = ("raised", error)
        if failed is not None:
            self.tell_error(asked.request, asked.attempt, *failed)

    def _evaluate(self, evaluator: Evaluator, asked: Evaluate) -> Evaluation:
        """Call the evaluator. Results before its last word are told at once; the last is returned."""
        started_ns = SYSTEM.steady_ns()
        message_id = str(asked.message.get("id", ""))
        given = evaluator(asked.message)
        if isinstance(given, Evaluation | Mapping) or not isinstance(given, Iterable):
            return _timed(evaluation_of(given, message_id), asked, started_ns)
        last: Evaluation | None = None
        try:
            for each in given:
                last = _timed(evaluation_of(each, message_id), asked, started_ns)
                if last.stage == "deep":  # the last word
                    break
                self._tell(asked, last, final=False)
        finally:  # a generator that is left early gets to its own `finally`
            getattr(given, "close", lambda: None)()
        if last is None:
            raise ValueError("the evaluator gave no evaluation")
        return last

    def _tell(self, asked: Evaluate, evaluation: Evaluation, *, final: bool) -> None:
        self._send(Result(asked.request, asked.attempt, final, evaluation, self._gauge.bytes()))

    def tell_error(self, request: int, attempt: int, kind: ErrorKind, error: BaseException) -> None:
        """Say why there is no evaluation of that request (0: why there will be no work)."""
        trace = "" if kind == "aborted" else _trace_of(error)
        self._send(Error(request, attempt, kind, _words_of(error), trace, self._gauge.bytes()))

    def _send(self, frame: Result | Error | Ready) -> None:
        """Say something. Raises what `pack` raises for what no frame can hold; then nothing was said."""
        self._sending = True
        try:
            data = pack(frame)
            with suppress(BrokenPipeError, ConnectionResetError):  # the pool is gone; so will we be
                self._work.sendall(data)
        finally:
            self._sending = False
        self._look_for_abort()

    def _on_abort(self, _number: int, _frame: object) -> None:
        if not self._sending:
            self._look_for_abort()

    def _look_for_abort(self) -> None:
        """Leave the evaluation that runs, if it was called off. In the main thread only."""
        current = self._current
        if current and (self._stopping or current in self._called_off):
            self._current = 0  # once
            raise Abandoned("called off")

    # The side line's thread

    def _hear(self) -> None:
        memory_bytes = self._gauge.bytes()
        with suppress(OSError):  # the pool is gone
            for frame in _frames(self._side):
                if isinstance(frame, Ping):
                    self._side.sendall(pack(Pong(frame.number, self._current or None, memory_bytes)))
                    memory_bytes = self._gauge.bytes()  # for the next one: nobody waits for this look
                elif isinstance(frame, Abort):
                    if len(self._called_off) >= _MAX_CALLED_OFF:
                        self._called_off.clear()  # the aborts left there came after their requests had ended
                    self._called_off.add(frame.request)  # before the look at what runs: one of us will see it
                    if self._current == frame.request:
                        signal.pthread_kill(self._main, ABORT_SIGNAL)
                elif isinstance(frame, Shutdown):
                    self._stopping = True
                    if self._current:
                        signal.pthread_kill(self._main, ABORT_SIGNAL)


def _frames(line: socket.socket) -> Iterator[Any]:
    """The frames that come over a line, until the pool hangs up."""
    incoming = Splitter(in_worker=True)
    while part := line.recv(_CHUNK):
        yield from incoming.feed(part)


def _words_of(error: BaseException) -> str:
    """What an exception says, as text that a frame can hold, whatever the exception is like."""
    try:
        said = str(error)
    except Exception:  # noqa: BLE001  somebody's exception
        said = "(it cannot say what)"
    return _plain(f"{type(error).__name__}: {said}")


def _trace_of(error: BaseException) -> str:
    """The traceback, or the end of it."""
    try:
        text = "".join(traceback.format_exception(error))
    except Exception:  # noqa: BLE001  somebody's exception
        text = "".join(traceback.format_tb(error.__traceback__))
    return _plain(text)[-_MAX_TRACE:]


def _plain(text: str) -> str:
    """Text that a frame can hold: halves of characters are written out."""
    return text.encode("utf-8", "backslashreplace").decode()


def _timed(evaluation: Evaluation, asked: Evaluate, started_ns: int) -> Evaluation:
    """With the times that only the worker knows. The message is the one that was asked about, whatever was said."""
    return evaluation.with_times(
        message_id=str(asked.message.get("id", "")),
        queue_delay_ms=(started_ns - asked.asked_ns) / 1e6,
        processing_time_ms=(SYSTEM.steady_ns() - started_ns) / 1e6,
    )
