"""Interleavings of threads: real threads run one at a time, and a search decides at which line another one goes on.

A scenario is a function that sets something up, lets threads run `together`, and asserts what must hold afterwards. It
is run again and again. Each thread goes on until it waits or ends, then the next one does; and the search departs from
that in every possible place: another thread goes on instead, in the middle of a line's neighbours or where several
could. It tries all orders with at most so many departures (delay-bounded scheduling, depth first). Most faults of
threads need one or two.

Threads, locks, queues, selectors and waits for descriptors are replaced while a scenario runs: a thread that would wait
gives way to the others until it need not. A wait with a time limit is a wait like any other: a hint that is lost, and
made good by the next look a second later, is found as threads that all wait (`Stuck`). Only an `impatient` search lets
such a wait run out, which is a departure too.

What would differ from run to run is held still: the clock, chance, and the collection of garbage, which is done between
runs alone. A lock that was made before the
search began is unknown to it, so a scenario replaces those of the modules that it explores.
"""

from __future__ import annotations

import asyncio
import gc
import queue
import select
import selectors
import socket
import sys
import threading
import traceback
from _thread import allocate_lock, get_ident
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import FrameType, ModuleType
from typing import Any, NamedTuple

from postroom.core.clock import SystemClock

#: Real time in which a run must be over: else a thread waits for something that is not known here.
HANGS_S = 120.0
#: A run with more steps than this never ends.
MOST_STEPS = 200_000


class Stuck(AssertionError):
    """All threads wait, and nothing will ever wake them."""


class Hangs(RuntimeError):
    """A thread waits for something that the search does not know."""


class Found(AssertionError):
    """An order of threads in which the scenario fails: the same search finds the same one again."""

    def __init__(self, error: BaseException, runs: int, switches: list[str]) -> None:
        told = "".join(traceback.format_exception(error)).rstrip()
        super().__init__(f"{told}\n\nin interleaving {runs}:\n" + "\n".join(switches))
        self.error = error
        self.runs = runs


class Explored(NamedTuple):
    """What a search went through."""

    runs: int
    steps: int  # the most that a run had


class _Abandoned(BaseException):
    """The run is over: the thread's stack is taken down."""


class _Choice(NamedTuple):
    options: int
    taken: int


class _Actor:
    """A thread of a run."""

    def __init__(self, number: int, name: str) -> None:
        self.number = number
        self.name = name
        self.ident = 0
        self.over = False
        self.ready: Callable[[], object] | None = None  # while it waits: whether it need not any more
        self.limited = False  # it waits for a time only
        self.ran_out = False  # which was over
        self.baton = allocate_lock()  # whichever has it runs
        self.baton.acquire()
        self.done = allocate_lock()
        self.done.acquire()

    def can_go(self) -> bool:
        return not self.over and (self.ready is None or bool(self.ready()))


class Run:
    """One run of a scenario: which thread goes on at each step. Everything here happens in the thread that has the baton."""

    def __init__(
        self, plan: list[_Choice], departures: int, within: frozenset[str], opcodes: bool, impatient: bool
    ) -> None:
        self.trail: list[_Choice] = []
        self.switches: list[str] = []
        self.steps = 0
        self.failure: BaseException | None = None
        self.aside = False  # the current thread waits for the system, and really
        self.abandoned = False
        self.first = self.current = _Actor(0, "the scenario")
        self.first.ident = get_ident()
        self._plan = plan
        self._left = departures
        self._within = within
        self._event = "opcode" if opcodes else "line"
        self._impatient = impatient
        self._exploring = False
        self._actors = {threading.current_thread(): self.first}

    # For scenarios

    def together(self, *calls: Callable[[], object]) -> None:
        """Make these calls, each in a thread of its own; they are over when this returns. Their orders are explored."""
        names = [f"{getattr(call, '__name__', 'thread')} {number}" for number, call in enumerate(calls, 1)]
        threads = [threading.Thread(target=call, name=name) for call, name in zip(calls, names, strict=True)]
        with self.exploring():
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()

    @contextmanager
    def exploring(self) -> Iterator[None]:
        """Explore what the threads do in here. Elsewhere each runs until it waits."""
        self._exploring = True
        yield
        self._exploring = False

    # Steps and waits

    def _trace(self, frame: FrameType, event: str, argument: Any) -> Callable[..., Any] | None:
        if frame.f_code.co_filename not in self._within:
            return None
        if self._event == "opcode":
            frame.f_trace_opcodes, frame.f_trace_lines = True, False
        return self._trace_lines

    def _trace_lines(self, frame: FrameType, event: str, argument: Any) -> Callable[..., Any]:
        if event == self._event and self._exploring:
            self._step(frame)
        return self._trace_lines

    def _step(self, frame: FrameType) -> None:
        """The current thread is about to do a line: it goes on, or another one does."""
        self.steps += 1
        if self.steps > MOST_STEPS:
            self._fail(Stuck(f"the threads go on for ever\n{self._standing()}"))
        if self._left:
            me, at = self.current, len(self.trail)
            if at < len(self._plan) and not self._plan[at].taken:  # as before: others need not be looked at
                self.trail.append(self._plan[at])
            else:
                self._go_on(me, [(me, False), *(option for option in self._options(me) if option[0] is not me)], frame)

    def wait(self, ready: Callable[[], object], *, limited: bool = False) -> bool:
        """Let the current thread wait until this is true. False when it waited for a time only, which is over."""
        if self.abandoned:
            raise _Abandoned
        if ready():
            return True
        me = self.current
        me.ready, me.limited = ready, limited
        try:
            self._give_way(me)
        finally:
            me.ready, ran_out, me.ran_out, me.limited = None, me.ran_out, False, False
        return not ran_out

    def sleep(self) -> None:
        """Let others go on, if there are any that can."""
        if self.abandoned:
            raise _Abandoned
        me = self.current
        options = self._options(me)[:-1]
        if options:
            self._go_on(me, options, None)

    def _options(self, me: _Actor) -> list[tuple[_Actor, bool]]:
        """The threads that can go on, in their turn, the current one last; and those whose time may be over instead."""
        actors = [*self._actors.values()]
        in_turn = actors[me.number + 1 :] + actors[: me.number + 1]
        able = [(actor, False) for actor in in_turn if actor.can_go()]
        if self._impatient and self._exploring and self._left:
            able += [(actor, True) for actor in in_turn if actor.limited and not actor.can_go()]
        return able

    def _give_way(self, me: _Actor) -> None:
        options = self._options(me)
        if all(ran_out for _, ran_out in options):
            self._fail(Stuck(f"all threads wait\n{self._standing()}"))
        self._go_on(me, options, None)

    def _go_on(self, me: _Actor, options: list[tuple[_Actor, bool]], held: FrameType | None) -> None:
        """The first of these goes on, or the search departs from that."""
        chosen, ran_out = self._choose(options) if self._left and self._exploring else options[0]
        if ran_out:
            chosen.ran_out, chosen.ready, chosen.limited = True, None, False
        if chosen is not me:
            self._note(me, chosen, held)
            self._hand_over(chosen)
            if not me.over:
                self._await_baton(me)

    def _choose(self, options: Sequence[tuple[_Actor, bool]]) -> tuple[_Actor, bool]:
        at = len(self.trail)
        choice = _Choice(len(options), 0)
        if at < len(self._plan):
            choice = choice._replace(taken=self._plan[at].taken)
            if choice != self._plan[at]:
                self._fail(AssertionError("the scenario does not do the same in each run"))
        self.trail.append(choice)
        self._left -= choice.taken > 0
        return options[choice.taken]

    def _hand_over(self, to: _Actor) -> None:
        self.current = to
        to.baton.release()

    def _await_baton(self, me: _Actor) -> None:
        if not me.baton.acquire(timeout=HANGS_S if me is self.first else -1):
            raise Hangs(f"{self.current.name} waits for something unknown\n{self._standing()}")
        if self.abandoned:
            raise _Abandoned

    # Threads

    def start(self, thread: threading.Thread) -> None:
        """Start a thread of this run; the current one goes on."""
        if self.abandoned:
            raise _Abandoned
        actor = self._actors[thread] = _Actor(len(self._actors), thread.name)
        run = thread.run
        thread.run = lambda: self._play(actor, run)  # type: ignore[method-assign]
        self.aside = True
        try:
            _thread_start(thread)
        finally:
            self.aside = False

    def _play(self, actor: _Actor, run: Callable[[], None]) -> None:
        actor.ident = get_ident()
        try:
            self._await_baton(actor)
            sys.settrace(self._trace)
            run()
        except _Abandoned:
            pass
        except BaseException as error:
            self._note_failure(error)
        finally:
            sys.settrace(None)
            actor.over = True
            self._leave(actor)
            actor.done.release()

    def _leave(self, actor: _Actor) -> None:
        """A thread is over: another goes on."""
        try:
            if not self.abandoned:
                self._give_way(actor)
        except _Abandoned:  # nobody can
            pass
        if self.abandoned and self.current is actor and not self._tidying:
            self._hand_over(self.first)

    _tidying = False

    def is_over(self, thread: threading.Thread) -> Callable[[], bool] | None:
        """What tells whether a thread of this run is over; None for others."""
        actor = self._actors.get(thread)
        return None if actor is None else lambda: actor.over

    # The end

    def _note_failure(self, error: BaseException) -> None:
        if not self.abandoned:
            self.failure, self.abandoned = error, True

    def _fail(self, error: BaseException) -> None:
        """The run has failed: the scenario's own thread is told first, the others when it is over."""
        self._note_failure(error)
        me = self.current
        if me is not self.first and not me.over:
            self._hand_over(self.first)
            self._await_baton(me)
        raise _Abandoned

    def finish(self, scenario: Callable[[Run], object]) -> None:
        """Run the scenario in this thread, and take down what it leaves."""
        sys.settrace(self._trace)
        try:
            scenario(self)
        except _Abandoned:
            pass
        except BaseException as error:
            self._note_failure(error)
        finally:
            sys.settrace(None)
        left = [actor for actor in self._actors.values() if actor is not self.first and not actor.over]
        if left:
            self._note_failure(AssertionError(f"threads were left running\n{self._standing()}"))
        self._tidying = True
        for actor in left:
            if not actor.over:
                self._hand_over(actor)
                if not actor.done.acquire(timeout=HANGS_S):
                    raise Hangs(f"{actor.name} cannot be ended\n{self._standing()}")

    # Telling

    def _note(self, me: _Actor, to: _Actor, held: FrameType | None) -> None:
        if self._exploring:
            how = "is over" if me.over else "waits" if held is None else "is held"
            frame = held or sys._getframe()
            self.switches.append(f"  {me.name} {how} at {self._place(frame)}; {to.name} goes on")

    def _place(self, frame: FrameType | None) -> str:
        while frame is not None:
            if frame.f_code.co_filename in self._within:
                path = "/".join(frame.f_code.co_filename.rsplit("/", 2)[1:])
                return f"{path}:{frame.f_lineno} ({frame.f_code.co_name})"
            frame = frame.f_back
        return "-"

    def _standing(self) -> str:
        frames = sys._current_frames()
        there = [actor for actor in self._actors.values() if not actor.over]
        return "\n".join(f"  {actor.name} is at {self._place(frames.get(actor.ident))}" for actor in there)


def explore(
    scenario: Callable[[Run], object],
    within: Sequence[ModuleType],
    *,
    departures: int = 2,
    opcodes: bool = False,
    impatient: bool = False,
    part: tuple[int, int] = (0, 1),
) -> Explored:
    """Run a scenario in every order of its threads' lines (or instructions) in these modules, as far as bounded.

    Raises Found for the first order in which it fails: an assertion or error in any thread, threads that all wait, and
    threads that are left running. `part` is (which, of how many): the orders are shared out by their first departure.
    """
    files = frozenset(module.__file__ or "" for module in within)
    following: list[_Choice] | None = []
    runs = steps = 0
    with _replaced(within):
        while following is not None:
            run = _one_run(scenario, Run(following, departures, files, opcodes, impatient))
            runs += 1
            steps = max(steps, run.steps)
            if run.failure is not None:
                raise Found(run.failure, runs, run.switches)
            following = _next(run.trail, part)
            if runs % 1000 == 0:
                gc.collect()
    return Explored(runs, steps)


def _one_run(scenario: Callable[[Run], object], run: Run) -> Run:
    global _run  # noqa: PLW0603  (one run at a time)
    _run = run
    try:
        run.finish(scenario)
    finally:
        _run = None
    return run


def _next(trail: list[_Choice], part: tuple[int, int]) -> list[_Choice] | None:
    """How the next run begins: depth first, the last choice that has an option left. None when all were tried."""
    which, parts = part
    first = next((at for at, choice in enumerate(trail) if choice.taken), len(trail))
    for at in range(len(trail) - 1, -1, -1):
        is_anothers = at <= first and at % parts != which
        if trail[at].taken + 1 < trail[at].options and not is_anothers:
            return [*trail[:at], trail[at]._replace(taken=trail[at].taken + 1)]
    return None


# What waits, as the threads of a run do it. Threads that belong to no run do it as ever.

_run: Run | None = None
_thread_start = threading.Thread.start
_thread_join = threading.Thread.join
_real_poll = select.poll
_real_recv, _real_recvmsg = socket.socket.recv, socket.socket.recvmsg


def _held() -> Run | None:
    """The run, where the calling thread belongs to it."""
    run = _run
    return run if run is not None and not run.aside and run.current.ident == get_ident() else None


class _Lock:
    """threading.Lock."""

    def __init__(self) -> None:
        self._lock = allocate_lock()
        self.locked = self._lock.locked

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        if self._lock.acquire(False):
            return True
        if not blocking or timeout == 0:
            return False
        run = _held()
        if run is None:
            return self._lock.acquire(True, timeout)
        return run.wait(lambda: not self._lock.locked(), limited=timeout > 0) and self._lock.acquire(False)

    def release(self) -> None:
        run = _run
        if run is None or not run.abandoned or self._lock.locked():
            self._lock.release()

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, *_: object) -> None:
        self.release()

    def _at_fork_reinit(self) -> None:
        self._lock = allocate_lock()


class _SimpleQueue:
    """queue.SimpleQueue."""

    def __init__(self) -> None:
        self._items: deque[Any] = deque()
        self._there = threading.Semaphore(0)
        self.qsize = self._items.__len__

    def put(self, item: Any, block: bool = True, timeout: float | None = None) -> None:
        self._items.append(item)
        self._there.release()

    def get(self, block: bool = True, timeout: float | None = None) -> Any:
        run = _held()
        if run is None or not block:
            if not self._there.acquire(block, timeout if block else None):
                raise queue.Empty
        elif not run.wait(lambda: self._items, limited=timeout is not None):
            raise queue.Empty
        else:
            self._there.acquire(False)
        return self._items.popleft()

    def empty(self) -> bool:
        return not self._items


class _Selector(selectors.DefaultSelector):
    def select(self, timeout: float | None = None) -> Any:
        look = super().select
        run = _held()
        if run is not None and (timeout is None or timeout > 0):
            run.wait(lambda: look(0), limited=timeout is not None)
            timeout = 0
        return look(timeout)


class _Poll:
    """select.poll."""

    def __init__(self) -> None:
        self._poll = _real_poll()
        self.register, self.unregister = self._poll.register, self._poll.unregister

    def poll(self, timeout: float | None = None) -> list[tuple[int, int]]:
        run = _held()
        if run is not None and (timeout is None or timeout > 0):
            run.wait(lambda: self._poll.poll(0), limited=timeout is not None)
            timeout = 0
        return self._poll.poll(timeout)


def _wait_readable(self: SystemClock, fds: Sequence[int], timeout_s: float | None) -> list[int]:
    poll = _Poll()  # made anew: those that are kept wait for real
    for fd in fds:
        poll.register(fd, select.POLLIN)
    return [fd for fd, _ in poll.poll(None if timeout_s is None else timeout_s * 1000)]


def _sleep(self: SystemClock, seconds: float) -> None:
    run = _held()
    if run is not None:
        run.sleep()


def _wait_for(connection: socket.socket) -> None:
    """Wait until a socket that blocks can be read."""
    run = _held()
    if run is not None and connection.gettimeout() != 0:
        poll = _real_poll()
        poll.register(connection.fileno(), select.POLLIN)
        if not run.wait(lambda: poll.poll(0), limited=connection.gettimeout() is not None):
            raise TimeoutError


def _recv(self: socket.socket, *arguments: Any) -> bytes:
    _wait_for(self)
    return _real_recv(self, *arguments)


def _recvmsg(self: socket.socket, *arguments: Any) -> Any:
    _wait_for(self)
    return _real_recvmsg(self, *arguments)


def _start(self: threading.Thread) -> None:
    run = _held()
    if run is None:
        _thread_start(self)
    else:
        run.start(self)


def _join(self: threading.Thread, timeout: float | None = None) -> None:
    run = _held()
    is_over = None if run is None else run.is_over(self)
    if run is None or is_over is None or run.wait(is_over, limited=timeout is not None):
        _thread_join(self, timeout)


_REPLACED: list[tuple[Any, str, Any]] = [
    (threading, "Lock", _Lock),
    (threading, "_allocate_lock", _Lock),
    (threading, "RLock", threading._PyRLock),  # type: ignore[attr-defined]  # is made of the one before
    (threading.Thread, "start", _start),
    (threading.Thread, "join", _join),
    (queue, "SimpleQueue", _SimpleQueue),
    (select, "poll", _Poll),
    (selectors, "DefaultSelector", _Selector),
    (socket.socket, "recv", _recv),
    (socket.socket, "recvmsg", _recvmsg),
    (SystemClock, "wait_readable", _wait_readable),
    (SystemClock, "sleep", _sleep),
    (SystemClock, "steady_ns", staticmethod(lambda: 10**15)),
    (SystemClock, "random", lambda _: 0.0),
    (asyncio.BaseEventLoop, "time", lambda _: 10.0**6),
]


@contextmanager
def _replaced(within: Sequence[ModuleType]) -> Iterator[None]:
    """Replace what waits, also where a module has its own name for it."""
    gc.freeze()  # what is here now is not gone through again and again
    gc.disable()
    traced = sys.gettrace()
    ours = {id(getattr(place, name)): new for place, name, new in _REPLACED if isinstance(place, ModuleType)}
    named = [
        (module, name, ours[id(was)]) for module in within for name, was in vars(module).items() if id(was) in ours
    ]
    places = [*_REPLACED, *named]
    before = [(place, name, vars(place).get(name)) for place, name, _ in places]
    for place, name, new in places:
        setattr(place, name, new)
    try:
        yield
    finally:
        for place, name, was in before:
            if was is None:  # it is of a class above
                delattr(place, name)
            else:
                setattr(place, name, was)
        sys.settrace(traced)
        gc.collect()
        gc.unfreeze()
        gc.enable()
