"""The stage: threads of which one runs at a time, and that hand over only where the world says so.

The product's code blocks and starts threads as it always does. Here each thread waits for a baton of its own, so that
one of all runs, and the one that has the baton asks the world which is next at every step of the store and at every
wait. A hand-over costs about five microseconds. Threads are kept for the next schedule, for starting one costs more.
"""

from __future__ import annotations

import ctypes
import os
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, Final, Protocol

#: So much processor time without a step: some code runs in a circle, and takes none.
SPINS_S: float = 2.0
#: So long a time without a step: some code waits in a way that the stage does not see.
_HANGS_S: Final = 60.0
#: A wait until then is one for ever.
NEVER_NS: Final = 2**63


class Killed(BaseException):
    """The simulated process is dead: nothing that it does counts any more, and its stack is taken down."""


class Hangs(RuntimeError):
    """A thread of the simulation takes no more steps: it runs in a circle, or waits for what the stage does not see."""


class _Hand:
    """A real thread that plays one actor after another."""

    def __init__(self) -> None:
        self.baton = threading.Lock()
        self.baton.acquire()
        self.play: Callable[[], _Hand | None] = lambda: None
        self.thread = threading.Thread(target=self._run, name="postroom simulation", daemon=True)
        self.thread.start()

    def interrupt(self) -> None:
        """Let the code that runs in this thread raise `Killed`, wherever it is."""
        assert self.thread.ident is not None
        ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(self.thread.ident), ctypes.py_object(Killed))

    def _run(self) -> None:
        system: Any = os  # Linux alone has such names
        with suppress(AttributeError, OSError):
            # wakes up when the thread that woke it waits, not before: a third of the cost
            system.sched_setscheduler(0, system.SCHED_BATCH, system.sched_param(0))
        while True:
            self.baton.acquire()
            following = self.play()
            if following is not None:
                following.baton.release()


class ThreadOwner(Protocol):
    """The process that an actor belongs to."""

    alive: bool
    frozen_ns: int | None  # until when it stands still
    stood_ns: int  # for how long it stood still in all


class SimulatedThread:
    """One thread of a simulated process."""

    __slots__ = (
        *("fds", "hand", "killed", "name", "number", "over", "process", "ready_fds", "until_ns", "waits", "wakes"),
    )

    def __init__(self, number: int, process: ThreadOwner, name: str) -> None:
        self.number = number
        self.process = process
        self.name = name
        self.over = self.killed = self.waits = False
        #: While it waits: for these descriptors, until that moment; then which of them could be read.
        self.fds: Sequence[int] = ()
        self.until_ns = NEVER_NS
        self.ready_fds: list[int] = []
        #: What it waits for beside descriptors and time.
        self.wakes: Callable[[], bool] | None = None
        self.hand: _Hand


class Director(Protocol):
    """What decides on a stage."""

    step: int

    def fail(self, error: BaseException) -> None:
        """The schedule has failed."""

    def decide(self) -> SimulatedThread | None:
        """The actor that goes on now; None when the schedule is over."""


class Stage:
    """The actors of one schedule, and which of them runs."""

    _idle: list[_Hand] = []  # noqa: RUF012  shared on purpose: threads are kept for the next schedule

    def __init__(self, director: Director) -> None:
        self._director = director
        #: Those that are not at their end, in the order in which they came.
        self.actors: list[SimulatedThread] = []
        self._added = 0
        self.current: SimulatedThread | None = None
        self._front = _Front()
        self._gives_back_to: _Hand | _Front | None = None

    def add(self, process: ThreadOwner, name: str, work: Callable[[], None]) -> SimulatedThread:
        """An actor that does this work, from its first turn on."""
        self._added += 1
        actor = SimulatedThread(self._added, process, name)
        actor.hand = self._idle.pop() if self._idle else _Hand()
        actor.hand.play = lambda: self._play(actor, work)
        self.actors.append(actor)
        return actor

    def run(self) -> None:
        """Let the director decide, until it says that the schedule is over; then take down what is left."""
        first = self._director.decide()
        if first is not None:
            self.current = first
            first.hand.baton.release()
            try:
                self._wait_for_the_end()
            except KeyboardInterrupt as interrupt:  # nothing runs any more when it is raised: the room is about to go
                self._director.fail(interrupt)
                self._front.wait()
                self._take_down_all()
                raise
        self._take_down_all()

    def _take_down_all(self) -> None:
        self.current = None
        for actor in tuple(self.actors):
            self.take_down(actor)

    def _wait_for_the_end(self) -> None:
        """Wait until the schedule is over. One that takes no more steps has failed, and what runs is interrupted."""
        step, since_s, waited_s = -1, 0.0, 0.0
        while not self._front.is_told(SPINS_S):
            waited_s += SPINS_S
            if self._director.step != step:
                step, since_s, waited_s = self._director.step, time.process_time(), 0.0
            elif time.process_time() - since_s >= SPINS_S and self.current is not None:
                self._director.fail(Hangs(f"{self.current.process!r} {self.current.name} runs in a circle"))
                self.current.hand.interrupt()
                step = -1
            elif waited_s >= _HANGS_S:
                raise Hangs("a thread of the simulation waits for something that the stage knows nothing of")

    def take_down(self, actor: SimulatedThread) -> None:
        """End an actor that does not run now: its stack is unwound here and now, and nothing of it counts."""
        if actor.over or actor is self.current:
            actor.killed = True
            return
        me, actor.killed = self.current, True
        mine: _Hand | _Front = self._front if me is None else me.hand
        outer, self._gives_back_to = self._gives_back_to, mine
        self.current = actor
        actor.hand.baton.release()
        if isinstance(mine, _Front):
            mine.wait()
        else:
            mine.baton.acquire()
        self.current, self._gives_back_to = me, outer

    def point(self) -> None:
        """The running actor could be interrupted here. Returns when it is its turn again."""
        me = self.current
        if me is None:
            return
        if me.killed:
            raise Killed
        following = self._director.decide()
        if following is not me and not me.killed:
            self._pass_on(following)
            me.hand.baton.acquire()
        if me.killed:
            raise Killed

    def _pass_on(self, following: SimulatedThread | None) -> None:
        self.current = following
        if following is None:
            self._front.tell()
        else:
            following.hand.baton.release()

    def _play(self, actor: SimulatedThread, work: Callable[[], None]) -> _Hand | None:
        """In the hand's thread: the whole life of an actor, and who gets the baton after it."""
        try:
            if not actor.killed:
                work()
        except Killed:
            pass
        actor.over = True
        self.actors.remove(actor)
        self._idle.append(actor.hand)
        if self._gives_back_to is not None:
            back = self._gives_back_to
        else:
            following = self._director.decide()
            self.current = following
            back = self._front if following is None else following.hand
        if isinstance(back, _Front):
            back.tell()
            return None
        return back


class _Front:
    """Where the caller of `run` waits."""

    def __init__(self) -> None:
        self._told = threading.Lock()
        self._told.acquire()

    def wait(self) -> None:
        if not self.is_told(_HANGS_S):
            raise Hangs("a thread of the simulation does not end")

    def is_told(self, timeout_s: float) -> bool:
        return self._told.acquire(timeout=timeout_s)

    def tell(self) -> None:
        self._told.release()
