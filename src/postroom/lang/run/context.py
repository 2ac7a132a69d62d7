"""The context of the running code, one for each thread: the worker, its session, and the settings of the run.

Each worker has a process of its own, in a room in memory a thread of its own, so there is one context for each thread.
Settings reach the workers as an argument of each call that is delegated (`runtime.Self.delegate`).
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

from postroom.lang.builtins import MAIN
from postroom.lang.values.raised import WrongValue

if TYPE_CHECKING:
    from postroom.sessions.session import Session


class Settings(NamedTuple):
    """How a program is run."""

    #: The room of the run, once it is open.
    room: str | None = None
    #: The language model, as `postroom.inference.open_model` understands it; None for what the surroundings ask for.
    model: str | None = None
    #: The agent of the room that answers `ask`; None for the person at the terminal.
    human: str | None = None
    #: The agent through which workers reach the terminal that the program was started from.
    terminal: str | None = None
    #: Files of prompts and answers: to be written, and to be answered from.
    record: str | None = None
    replay: str | None = None
    #: How long one command, and one answer, may take.
    command_timeout_s: float | None = None
    answer_timeout_s: float | None = None
    #: Whether what workers write is shown.
    show: bool = True


class Context:
    """The surroundings of one worker's code."""

    def __init__(self, name: str, settings: Settings, session: Session | None = None, *, worker: bool = False) -> None:
        self.name = name
        self.settings = settings
        self.session = session
        #: Opens the session of a program that is run, when it is first needed.
        self.opener: Callable[[], Session] | None = None
        #: Whether this runs in a worker's process, whose whole group ends with it.
        self.worker = worker
        #: The value of `$?`.
        self.last_code = 0
        self._kept: dict[str, Any] = {}

    def open_session(self) -> Session:
        """The session, which is opened when there is none yet."""
        if self.session is None:
            if self.opener is None:
                raise WrongValue("there is no session here: run the program with `postroom run`")
            self.session = self.opener()
        return self.session

    def keep(self, name: str, make: Any) -> Any:
        """The context's cache of things that are made once: the model, a transcript."""
        if name not in self._kept:
            self._kept[name] = make()
        return self._kept[name]


_here = threading.local()


def enter(context: Context | None) -> Context | None:
    """Let this thread run in that context. Returns the one before."""
    before: Context | None = getattr(_here, "context", None)
    _here.context = context
    return before


def current() -> Context:
    """The context of this thread; a new one when there is none, as when a function is called from Python."""
    context: Context | None = getattr(_here, "context", None)
    if context is None:
        context = Context(MAIN, Settings())
        _here.context = context
    return context
