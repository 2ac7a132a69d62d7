"""Workers of pools without processes: the fork server of a world, and the loop of a pool in it.

All of `postroom.pools` runs as it is, down to its lines and frames. What is replaced is the process at the other end
(`core/system/children.py`): a thread of the world, which answers, hangs, dies in the middle of its work, or tells the
result of an earlier try.
"""

from __future__ import annotations

import os
import selectors
import signal
import socket
import threading
from collections import Counter, deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import count
from typing import Any, Final

from postroom.core.clock import SYSTEM
from postroom.core.system.children import Child, ForkServer, play_server
from postroom.core.system.framing import HEADER_BYTES
from postroom.pools.evaluation import Evaluation
from postroom.pools.loop import PoolLoop
from postroom.pools.process import Life
from postroom.pools.protocol import Abort, Error, Evaluate, Ping, Pong, Ready, Result, Shutdown, Splitter, pack

from .stage import Killed, SimulatedThread
from .world import World

_SECOND_NS: Final = 1_000_000_000
_CHUNK: Final = 1 << 16
#: What a result says that must reach nobody.
EARLIER: Final = "of an earlier try"
#: How a worker does its work, and for how long, each as likely.
_WAYS: Final = (*("answer",) * 8, "die", "die", "hang", "raise", "look first", "earlier first", "earlier first")
_PACES_S: Final = (0.05, 0.3, 2.0)


def play_workers(world: World) -> SimulatedForkServer:
    """The fork server of a world. Until the world's end all pools have it, and the world's time."""
    server = SimulatedForkServer(world)
    before = play_server(server)
    SYSTEM.steady_ns = world.clock.steady_ns  # pools read no other clock
    SYSTEM.random = world.clock.random  # type: ignore[method-assign]

    def end() -> None:
        del SYSTEM.steady_ns, SYSTEM.random
        play_server(before)
        server.close()

    world.at_end(end)
    return server


class SimulatedForkServer(ForkServer):
    """Starts threads of a world in the place of processes."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._numbers = count(1)
        self._workers: dict[int, SimulatedWorkerProcess] = {}
        self._children: list[Child] = []
        #: How often the work on each request was begun.
        self.begun: Counter[int] = Counter()

    @property
    def alive(self) -> bool:
        return True

    def is_over(self, patience_s: float) -> bool:
        del patience_s
        return True

    def start(self, target: str) -> Child:
        self._children.append(super().start(target))
        return self._children[-1]

    def ask(self, what: dict[str, Any], descriptors: list[int] | None = None) -> None:
        if "start" in what:
            self._start(what["start"], [os.dup(each) for each in descriptors or ()])
        elif what.get("with") == signal.SIGKILL:
            self._workers[what["signal"]].kill()

    def _start(self, number: int, given: list[int]) -> None:
        current = self._world.stage.current
        if current is None or current.killed:
            raise Killed
        worker = self._workers[number] = SimulatedWorkerProcess(self._world, self, number, given)
        worker.actor = self._world.stage.add(current.process, f"worker {number}", worker.live)

    def close(self) -> None:
        """The world ends: let go of what dead processes had open."""
        for worker in self._workers.values():
            worker.close()
        for child in self._children:
            child.close()


class SimulatedWorkerProcess:
    """A worker's process, as its pool sees it from outside."""

    actor: SimulatedThread

    def __init__(self, world: World, server: SimulatedForkServer, number: int, given: list[int]) -> None:
        self._world = world
        self._server = server
        self._status, control, *self._others = given
        self._control = socket.socket(fileno=control)
        self._side: socket.socket | None = None
        self._number = number
        self._says_end = "killed 9"
        self._waiting: deque[Evaluate] = deque()
        self._open = True
        os.write(self._status, b"%d\n" % number)

    def kill(self) -> None:
        """SIGKILL."""
        self._world.stage.take_down(self.actor)
        self.close()  # one that had not run yet has closed nothing

    def live(self) -> None:
        """From its start to its end."""
        try:
            self._work()
            self._says_end = "exited 0"
        finally:
            self.close()

    def close(self) -> None:
        """It has ended: everything that it had open is closed, and its status tells how it ended."""
        if self._open:
            self._open = False
            with suppress(OSError):
                os.write(self._status, f"{self._says_end}\n".encode())
            for each in (self._status, *self._others):
                os.close(each)
            self._control.close()
            if self._side is not None:
                self._side.close()

    def _work(self) -> None:
        self._side = self._take_setup()
        self._say(Ready(self._number, 0))
        work, aside = Splitter(in_worker=True), Splitter(in_worker=True)
        current: Iterator[float] | None = None
        due_ns = 0
        while True:
            if current is None and self._waiting:
                current, due_ns = self._evaluate(self._waiting.popleft()), self._world.clock.now_ns
            left_s = None if current is None else max(0, due_ns - self._world.clock.now_ns) / _SECOND_NS
            if current is not None and left_s == 0:
                pause_s = next(current, None)
                current = None if pause_s is None else current
                due_ns += round((pause_s or 0) * _SECOND_NS)
                continue
            for fd in self._world.wait([self._control.fileno(), self._side.fileno()], left_s):
                if fd == self._side.fileno():
                    if not self._hear(aside):
                        return
                elif not self._take_work(work):
                    return

    def _take_setup(self) -> socket.socket:
        """What the pool says first, with the side line along."""
        data, descriptors, _, _ = socket.recv_fds(self._control, _CHUNK, 1)
        while len(data) - HEADER_BYTES < int.from_bytes(data[:HEADER_BYTES], "big"):
            data += self._control.recv(_CHUNK)
        return socket.socket(fileno=descriptors[0])

    def _take_work(self, work: Splitter) -> bool:
        part = self._control.recv(_CHUNK)
        self._waiting += work.feed(part) if part else []
        return bool(part)

    def _hear(self, aside: Splitter) -> bool:
        """See what the pool says beside the work; False when it is to end."""
        assert self._side is not None
        part = self._side.recv(_CHUNK)
        for frame in aside.feed(part) if part else ():
            if isinstance(frame, Shutdown):
                return False
            if isinstance(frame, Ping):
                self._side.send(pack(Pong(frame.number, None, 0)))
            elif isinstance(frame, Abort):
                self._waiting = deque(each for each in self._waiting if not self._is_off(each, frame))
        return bool(part)

    def _is_off(self, waiting: Evaluate, abort: Abort) -> bool:
        if waiting.request != abort.request:
            return False
        self._say(Error(waiting.request, waiting.attempt, "aborted", "", "", 0))
        return True

    def _evaluate(self, frame: Evaluate) -> Iterator[float]:
        """Work on a request: yields how long to wait before it goes on."""
        self._server.begun[frame.request] += 1
        random, is_calm = self._world.clock.random, self._world.is_calm()
        way = "answer" if is_calm else _WAYS[int(random() * len(_WAYS))]
        yield _PACES_S[int(random() * len(_PACES_S))]
        self._world.happened(f"a worker: {way}")
        if way == "die":
            self._world.tell(None, f"worker {self._number} dies at request {frame.attempt}")
            raise Killed
        while way == "hang":
            yield 3600.0
        if way == "raise":
            self._say(Error(frame.request, frame.attempt, "raised", "simulated", "", 0))
            return
        if way == "earlier first":
            self._say(self._result(frame, EARLIER, attempt=frame.attempt - 1, final=False))
        elif way == "look first":
            self._say(self._result(frame, "", stage="quick", final=False))
            yield 0.1
        self._say(self._result(frame, str(frame.message.get("content", ""))))

    @staticmethod
    def _result(
        frame: Evaluate, reasoning: str, *, attempt: int | None = None, final: bool = True, stage: Any = "deep"
    ) -> Result:
        evaluation = Evaluation(frame.message["id"], 0.9, should_respond=True, reasoning=reasoning, stage=stage)
        return Result(frame.request, frame.attempt if attempt is None else attempt, final, evaluation, 0)

    def _say(self, frame: Ready | Result | Error) -> None:
        with suppress(OSError):  # the pool's process is gone
            self._control.send(pack(frame))


class SimulatedSelector(selectors.PollSelector):
    """What a pool's loop waits with: the world's time passes meanwhile."""

    def __init__(self, world: World) -> None:
        super().__init__()
        self._world = world

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        ready = super().select(0)
        if not ready and timeout != 0:
            fds = [key.fd for key in self.get_map().values() if key.events & selectors.EVENT_READ]
            self._world.wait(fds, timeout)
            ready = super().select(0)
        return ready


class SimulatedPoolLoop(PoolLoop):
    """The loop of the pools of one simulated process."""

    def __init__(self, world: World) -> None:
        super().__init__(SimulatedSelector(world))
        self._is_open = True
        self._lives: list[Life] = []
        world.at_end(self._close)

    def _run(self) -> None:
        super()._run()
        self._is_open = False

    def watch(self, descriptor: int, call: Callable[[], None], *, read: bool = True, write: bool = False) -> None:
        super().watch(descriptor, call, read=read, write=write)
        owner = getattr(call, "__self__", None)
        if isinstance(owner, Life):  # it watches for its end
            self._lives.append(owner)

    def is_here(self) -> bool:
        return threading.current_thread().name == self.thread.name

    def _close(self) -> None:
        """The world ends, and the process of this loop may have been killed: let go of its descriptors."""
        for life in self._lives:
            life.work.close()
            life.side.close()
        if self._is_open:
            self._selector.close()
            os.close(self._woken)
            os.close(self._wake)
