"""Calls that are stopped between two accesses to the store: each access is a gate, which the test opens.

A model's step is one writing of a cell with the readings before it, or one reading on which a later writing stands. A
call of the board or of a session takes several of them. So the call runs in a thread of its own, on a store whose
methods wait at the gate until a step of the trace lets them pass. One thread runs at a time, so a run is always the same.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Sequence
from typing import Any, cast

from postroom.core.config import Config
from postroom.core.message import Draft
from postroom.mail.gateway import Gateway
from postroom.stores.contract import ANY, Cell, Store

from .replaying import Replay

#: Tells what an access is: from the method, the name of the cell, and what is written there.
Classify = Callable[[str, str, Any], str]
#: An access that no step is about: it may pass with any of them.
OTHER = "other"


class Killed(BaseException):
    """The process of this call was killed: nothing of it reaches the store any more."""


class SteppedCall:
    """One call, from its beginning to its end or its death."""

    def __init__(self, function: Callable[[], Any]) -> None:
        self._function = function
        self._may: Collection[str] = ()
        self._until: str | None = None
        self.reached = self._killed = False
        self._go, self._stopped = threading.Semaphore(0), threading.Semaphore(0)
        self.finished = False
        self.result: Any = None
        self.error: BaseException | None = None
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()

    def _run(self) -> None:
        self._go.acquire()
        try:
            if not self._killed:
                self.result = self._function()
        except BaseException as error:
            self.error = error
        self.finished = True
        self._stopped.release()

    def go(self, *may: str, until: str | None = None) -> None:
        """Let it go on with accesses of these kinds, until it wants one of another kind, or has made one of `until`."""
        assert not self.finished, "the call has ended already"
        self._may, self._until, self.reached = may, until, False
        self._go.release()
        self._stopped.acquire()

    def kill(self) -> None:
        if not self.finished:
            self._killed = True
            self._go.release()
            self._stopped.acquire()
        self.thread.join()

    def pass_gate(self, kind: str) -> None:
        """Called by the thread of the call before an access: waits until it may be made."""
        while not self._killed and (self.reached or kind not in (OTHER, *self._may)):
            self._stopped.release()
            self._go.acquire()
        if self._killed:
            raise Killed
        self.reached = kind == self._until


class GatedStore:
    """A store as one process of a trace sees it: under that process's name, and with a gate before each access."""

    def __init__(self, store: Store, process: str, classify: Classify) -> None:
        self._store = store
        self._classify = classify
        self.process = process
        self.call: SteppedCall | None = None

    def as_store(self) -> Store:
        return cast("Store", self)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def _pass(self, method: str, name: str, value: Any = None) -> None:
        if self.call is not None and threading.current_thread() is self.call.thread:
            self.call.pass_gate(self._classify(method, name, value))

    def cell_read(self, name: str) -> Cell | None:
        self._pass("read", name)
        return self._store.cell_read(name)

    def cell_scan(self, prefix: str) -> list[Cell]:
        self._pass("read", prefix)
        return self._store.cell_scan(prefix)

    def cell_write(self, name: str, value: Any, expect: int = ANY) -> int | None:
        self._pass("write", name, value)
        return self._store.cell_write(name, value, expect=expect)

    def put(self, drafts: Sequence[Draft]) -> list[str]:
        self._pass("put", "")
        return self._store.put(drafts)

    def close(self) -> None:
        """The store itself is shared, and stays open."""


class Actor:
    """A process of a trace: its way to the store, and the call in which it is, if it is in one."""

    def __init__(self, replay: Replay, process: str, classify: Classify) -> None:
        self.store = GatedStore(replay.store, process, classify)
        self.gateway = Gateway(self.store.as_store(), Config(), replay.clock)
        self.process = process

    @property
    def call(self) -> SteppedCall:
        assert self.store.call is not None, "it is in no call"
        return self.store.call

    @property
    def is_in_call(self) -> bool:
        return self.store.call is not None and not self.store.call.finished

    def begin(self, function: Callable[[], Any]) -> None:
        assert not self.is_in_call, "it is in the middle of another call"
        self.store.call = SteppedCall(function)

    def go(self, *may: str) -> None:
        """Go on with these accesses, until it wants to make another."""
        self.call.go(*may)

    def reach(self, goal: str, *may: str) -> None:
        """Go on with these accesses, until it has made the one that is the goal."""
        self.call.go(goal, *may, until=goal)
        assert self.call.reached, f"it came to no {goal}"

    def finish(self, *may: str) -> Any:
        """Go on with these accesses to the end of the call; what it returned. What it raised is raised here."""
        if not self.call.finished:
            self.go(*may)
        assert self.call.finished, "the call wants to do more than that"
        if self.call.error is not None:
            raise self.call.error
        return self.call.result

    def end(self) -> None:
        """Whatever call it is in goes no further."""
        if self.store.call is not None:
            self.store.call.kill()
            self.store.call = None

    def close(self) -> None:
        """At the end of a trace."""
        self.end()
        self.gateway.close()


def onlooker(replay: Replay) -> Actor:
    """One that is in no call, and is never stopped: to begin a trace, and to compare."""
    return Actor(replay, replay.store.process, lambda *_: OTHER)
