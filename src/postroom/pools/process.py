"""One process of a worker, as the pool sees it: its two lines, what it writes, and how it ends.

Everything here runs in the loop's thread, but for the lines, which are made for all.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from itertools import count
from queue import Empty, SimpleQueue
from typing import Any, Final, Literal, Protocol

from postroom.core.clock import SYSTEM
from postroom.core.system.children import Child, Ended, caller_setting, shared_server
from postroom.core.system.framing import send_frame

from .line import Line
from .loop import PoolLoop, Timer
from .plan import WorkerPlan
from .protocol import Abort, Ping, Pong, Shutdown
from .request import Request
from .stats import WorkerFigures
from .worker_main import DUMP_SIGNAL

MODULE: Final = "postroom.pools.worker_main"
TARGET: Final = f"{MODULE}:run"
#: Of what a worker writes, so much is kept: the end of it.
KEPT_BYTES: Final = 16 * 1024
_CHUNK: Final = 64 * 1024
#: A process that hung up and still runs after this time is killed.
HANG_UP_S: Final = 1.0

#: Why a process was told to end; None: it was not.
Asked = Literal["shutdown", "recycle"] | None


#: When the answer to a ping came, and the request that the worker was at; None: the process ended.
Pinged = tuple[int, int | None] | None
_ping_numbers = count(1)


class Owner(Protocol):
    """The worker that a process belongs to."""

    name: str
    figures: WorkerFigures

    def take_work(self, life: Life, frames: Sequence[Any]) -> None:
        """Take the frames of the work line, in the thread that reads it."""

    def life_over(self, life: Life) -> None:
        """The process has ended, and all that it said was taken. In the loop's thread."""


class Life:
    """One process of a worker, from its start to its end."""

    def __init__(self, owner: Owner, plan: WorkerPlan, context: Mapping[str, Any], loop: PoolLoop) -> None:
        self.owner = owner
        self.ready = False
        self.pid = 0
        self.tasks = 0
        self.memory_bytes = 0
        self.retiring = False
        self.asked: Asked = None
        self.ended: Ended | None = None
        #: Why it was killed from here, in words.
        self.killed_because = ""
        #: Why it could not load its evaluator, in its own words.
        self.boot_error = ""
        #: Requests that it was sent and has not answered, in the order in which it was sent: it works on the first.
        self.running: dict[int, Request] = {}
        self.chance = SYSTEM.random()
        self.born_ns = SYSTEM.steady_ns()
        self._loop = loop
        self._plan = plan
        self._written = bytearray()
        self._timers: list[Timer] = []
        self._left = 3  # both lines, and the process
        self._pings: dict[int, SimpleQueue[Pinged]] = {}
        child, ours = _start(plan.evaluator, context)
        self._child: Child = child
        control = socket.socket(fileno=child.control.detach())
        self.work = Line(control, loop, lambda frames: owner.take_work(self, frames), self._line_gone)
        self.side = Line(ours, loop, self.take_side, self._line_gone)
        loop.watch(child.status, self._on_status)
        loop.watch(child.output, lambda: self._on_output(child.output))
        loop.watch(child.errors, lambda: self._on_output(child.errors))
        late_s = plan.start_timeout_s
        self.after(late_s, lambda: None if self.ready else self.kill(f"was not ready within {late_s:g} s"))
        self.work.expect(1)  # that it is ready
        self.work.leave_to_loop()

    @property
    def takes_work(self) -> bool:
        """Whether it may be sent something: it is ready, nobody told it to end, and it can be talked to."""
        return self.ready and not (self.retiring or self.asked or self.work.hung_up or self.side.hung_up)

    @property
    def written(self) -> str:
        """The end of what it wrote to its standard output and standard error."""
        return bytes(self._written).decode("utf-8", "backslashreplace").strip()

    def say_how(self) -> str:
        """How it ended, in words that follow a name."""
        if self.boot_error:
            return f"could not load its evaluator: {self.boot_error}"
        return self.work.broken or self.side.broken or self.killed_because or str(self.ended)

    # Pinging

    def ping(self, until_ns: int) -> Pinged:
        """Ask whether it is there. None when it ended meanwhile; TimeoutError when no answer came until that moment."""
        answer: SimpleQueue[Pinged] = SimpleQueue()
        number = next(_ping_numbers)
        self._pings[number] = answer
        try:
            if self._left == 0:  # noted first, then looked: see `_count_down`
                return None
            self.side.send(Ping(number))
            self.side.read_until(lambda: not answer.empty(), until_ns)
            return answer.get(timeout=max(0, until_ns - SYSTEM.steady_ns()) / 1e9)
        except Empty:
            raise TimeoutError from None
        finally:
            self._pings.pop(number, None)

    def take_side(self, frames: Sequence[Any]) -> None:
        """See what came over the side line. In the thread that reads it."""
        now_ns = SYSTEM.steady_ns()
        for frame in frames:
            if isinstance(frame, Pong):
                self.memory_bytes = frame.memory_bytes
                self.side.answered()
                answer = self._pings.pop(frame.ping, None)
                if answer is None:
                    self.owner.figures.count("late")
                else:
                    answer.put((now_ns, frame.busy_with))

    # Ending

    def after(self, seconds: float, call: Callable[[], None]) -> None:
        """Call in the loop after that time, unless the process is over by then."""
        now_ns = SYSTEM.steady_ns()
        self._timers = [timer for timer in self._timers if timer.due_ns > now_ns]  # the others have gone off
        self._timers.append(self._loop.call_at(now_ns + int(seconds * 1e9), call))

    def kill(self, because: str) -> None:
        """End it with all that it started. `because` follows its name: "was killed: …"."""
        if self.ended is None:
            self.killed_because = self.killed_because or because
            self._child.send_signal(signal.SIGKILL)

    def end(self, why: Asked) -> None:
        """Tell it to end. It is killed when it still runs after the grace."""
        self.asked = why
        self.side.send(Shutdown(), answers=0)
        self.work.hang_up()
        self.after(self._plan.grace_s, lambda: self.kill("was killed: it did not end when told to"))

    def call_off(self, request: Request) -> None:
        """Stop the work on a request. If it goes on, say where it stands, then kill it."""
        self.side.send(Abort(request.id), answers=0)
        self.after(self._plan.grace_s / 2, lambda: self._dump(request))
        self.after(self._plan.grace_s, lambda: self._kill_if_still_at(request))

    def _is_at(self, request: Request) -> bool:
        return next(iter(self.running), None) == request.id

    def _dump(self, request: Request) -> None:
        if self._is_at(request):
            # Alone: it ends processes that do not expect it, such as a server that the evaluator has started
            # (tests/pools/test_worker.py).
            self._child.send_signal(DUMP_SIGNAL, alone=True)

    def _kill_if_still_at(self, request: Request) -> None:
        if self._is_at(request):  # one that only waits behind another is no reason to kill
            self.kill(f"was killed: it continued request {request.id} after it was cancelled")

    # Watching

    def _on_output(self, descriptor: int) -> None:
        try:
            raw = os.read(descriptor, _CHUNK)
        except BlockingIOError:
            return
        if not raw:
            self._loop.unwatch(descriptor)
            return
        self._written += raw
        del self._written[:-KEPT_BYTES]
        if self._plan.show:
            text = raw.decode("utf-8", "backslashreplace").removesuffix("\n")
            with suppress(OSError, ValueError):  # a screen that is gone is no reason to fail
                sys.stderr.write("".join(f"[{self.owner.name}] {line}\n" for line in text.split("\n")))
                sys.stderr.flush()

    def _on_status(self) -> None:
        self.ended = self._child.read_status()
        if self.ended is None:
            return
        self.pid = self._child.pid
        if self.ended.signal != signal.SIGKILL:
            self.killed_because = ""  # it ended by itself before the kill reached it (tests/pools/test_worker.py)
        self._loop.unwatch(self._child.status)
        self.work.finish()
        self.side.finish()
        self._count_down()

    def _line_gone(self) -> None:
        if self.ended is None:  # it ends, and that is told in a moment; or it closed its line, and cannot be talked to
            broken = self.work.broken or self.side.broken
            self.after(0 if broken else HANG_UP_S, lambda: self.kill(broken or "was killed: it hung up"))
        self._count_down()

    def _count_down(self) -> None:
        self._left -= 1
        if self._left == 0:
            for timer in self._timers:
                timer.cancel()
            for descriptor in (self._child.output, self._child.errors):
                self._on_output(descriptor)
                self._loop.unwatch(descriptor)
            self.work.close()
            self.side.close()
            self._child.close()
            for answer in tuple(self._pings.values()):
                answer.put(None)
            self.owner.life_over(self)


def _start(evaluator: str, context: Mapping[str, Any]) -> tuple[Child, socket.socket]:
    """Start a process and tell it what to be. Returns it with our end of its side line."""
    ours, theirs = socket.socketpair()
    try:
        child = shared_server([MODULE]).start(TARGET)
    except BaseException:
        ours.close()
        theirs.close()
        raise
    setup = {"evaluator": evaluator, "context": dict(context), "setting": caller_setting()}
    with theirs, suppress(BrokenPipeError, ConnectionResetError):  # it ended already: its status says how
        send_frame(child.control, json.dumps(setup).encode(), [theirs.fileno()])
    return child, ours
