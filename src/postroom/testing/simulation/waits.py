"""Threads of simulated processes, and everything they wait for."""

from __future__ import annotations

import select
import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final

from postroom.core.system.process import Threads

from .broken import Broken
from .process import Process
from .stage import NEVER_NS, Killed, SimulatedThread

if TYPE_CHECKING:
    from .world import World

_SECOND_NS: Final = 1_000_000_000


class SimulatedWaits(Threads):
    """The threads of one schedule: the product starts them here, and waits here."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._playing: dict[threading.Thread, SimulatedThread] = {}
        self._waited: dict[int, int] = {}  # the descriptors that somebody waits for: how many do
        self._poll = select.poll()  # of all these

    # Threads

    def start(self, thread: threading.Thread) -> None:
        stage = self._world.stage
        me = stage.current
        if me is None or me.killed:
            raise Killed
        self._playing[thread] = stage.add(me.process, thread.name, lambda: self._play(thread))

    def _play(self, thread: threading.Thread) -> None:
        try:
            thread.run()
        except (Exception, Broken) as error:
            self._world.fail(error)

    def join(self, thread: threading.Thread, timeout_s: float | None) -> None:
        actor = self._playing.get(thread)
        if actor is not None and actor is not self._world.stage.current:
            self.until(lambda: actor.over, timeout_s)

    def wait_for(self, event: threading.Event, timeout_s: float | None) -> bool:
        return self.until(event.is_set, timeout_s)

    def acquire(self, lock: threading.Lock, timeout_s: float | None) -> bool:
        return self.until(lambda: not lock.locked(), timeout_s) and lock.acquire(blocking=False)

    # Waits

    def until(self, is_so: Callable[[], bool], timeout_s: float | None) -> bool:
        """Let others go on until that is so, or time is over. Returns whether it is so."""
        me = self._world.stage.current
        if me is None or is_so():
            return is_so()
        me.wakes = is_so
        try:
            self.wait((), timeout_s)
        finally:
            me.wakes = None
        return is_so()

    def wait(self, fds: Sequence[int], timeout_s: float | None) -> list[int]:
        """Let others go on until one of the descriptors can be read, or time is over."""
        world, waited = self._world, self._waited
        me, hints, since_ns = world.stage.current, world.hints, world.clock.now_ns
        if me is None or timeout_s == 0:
            return self.readable(fds)
        if me.killed:
            raise Killed
        me.fds, me.waits, me.ready_fds = fds, True, []
        me.until_ns = NEVER_NS if timeout_s is None else since_ns + max(1, round(timeout_s * _SECOND_NS))
        for fd in fds:
            waited[fd] = waited.get(fd, 0) + 1
            self._poll.register(fd, select.POLLIN)
            waiter = hints.waiters_by_fd.get(fd)
            if waiter is not None and isinstance(me.process, Process):
                world.judge.waits_unseen(me.process, waiter)
        try:
            world.point()
            if hints.were_lost:
                hints.judge_looks(me.process, fds, since_ns)
        finally:
            me.waits = False
            for fd in fds:
                waited[fd] -= 1
                if not waited[fd]:
                    del waited[fd]
                    self._poll.unregister(fd)
        return me.ready_fds

    def ready(self) -> list[int]:
        """Those of the descriptors that somebody waits for which can be read."""
        ready, hints = [fd for fd, _ in self._poll.poll(0)], self._world.hints
        return ready + hints.come_late(self._waited) if hints.late_by_ns else ready

    def readable(self, fds: Sequence[int]) -> list[int]:
        """Those of these descriptors that can be read."""
        poll, hints = select.poll(), self._world.hints
        for fd in fds:
            poll.register(fd, select.POLLIN)
        ready = [fd for fd, _ in poll.poll(0)]
        return ready + hints.come_late(fds) if hints.late_by_ns else ready
