"""The runtime library: values, commands, prompts, workers. Compiled programs call nothing else of Postroom.

Sessions, mailboxes, delegation and failure are those of `postroom.sessions.session`; here they are only given the
language's face.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Sequence
from functools import update_wrapper
from types import ModuleType
from typing import TYPE_CHECKING, Any, Final, NoReturn, TextIO

from postroom.lang.compile.import_hook import load_module
from postroom.lang.run.context import Context, Settings, current, enter
from postroom.lang.values.attributes import index, member, set_index, set_member
from postroom.lang.values.kinds import kind_of, shown
from postroom.lang.values.raised import ErrorValue, Thrown, WrongValue, located
from postroom.sessions.worker import Worker, WorkerCall

from .values import values

if TYPE_CHECKING:
    from postroom.sessions.mailbox import Mailbox, Mailroom
    from postroom.sessions.session import Session

#: Functions of compiled programs that stand elsewhere, by module. Loaded when first used: a program without commands or
#: prompts does not pay for them.
_ELSEWHERE: Final = {
    "values.values": "add subtract multiply divide remainder negate equal less less_or_equal more more_or_equal truth"
    " joined items span span_list take",
    "values.attributes": "field maybe_index maybe_member",
    "values.shell_words": "home matches spread word",
    "run.files": "read write exists write_file",
    "run.shell": "capture chain command last_code lines pipeline redirect run test",
    "run.prompts": "think ask askMany",
}
_MODULE_OF: Final = {name: module for module, names in _ELSEWHERE.items() for name in names.split()}


def __getattr__(name: str) -> Any:
    if name not in _MODULE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f".{_MODULE_OF[name]}", __package__), name)
    globals()[name] = value
    return value


# Sessions


class Self:
    """`self` in a worker: its session, and delegating to others."""

    __slots__ = ("_context",)

    def __init__(self, context: Context) -> None:
        self._context = context

    @property
    def session(self) -> SessionFace:
        """The session of this worker; of a program that was run, one that is opened when it is first needed."""
        return SessionFace(self._context.open_session())

    def delegate(self, workers: Any) -> list[Any]:
        """Run workers side by side, each in a process of its own; their results in order."""
        session = self._context.open_session()  # which settles the settings: the room, and the terminal's agent
        settings = self._context.settings
        calls = [call.worker(*call.decoded()[0], settings=settings._asdict()) for call in _calls(workers)]
        return session.delegate(calls, show=settings.show)


_WANTED: Final = "self.delegate takes a list of called workers, such as [a(1), b()]"


def _calls(workers: Any) -> Sequence[WorkerCall]:
    if isinstance(workers, list):
        for found in workers:
            if not isinstance(found, WorkerCall):
                kind = f"the worker {found.name} itself" if isinstance(found, Worker) else shown(found)
                raise WrongValue(f"{_WANTED}, and here is {kind}")
        return workers
    raise WrongValue(_WANTED)


class SessionFace:
    """`self.session`."""

    __slots__ = ("_session", "dir", "id", "timestamp")

    def __init__(self, session: Session) -> None:
        self._session = session
        self.id = session.id
        self.timestamp = session.timestamp
        self.dir = str(session.dir)

    @property
    def mailbox(self) -> MailroomFace:
        return MailroomFace(self._session.mailbox)


class MailroomFace:
    """`self.session.mailbox`: every name is a mailbox."""

    __slots__ = ("_mailroom",)

    def __init__(self, mailroom: Mailroom) -> None:
        self._mailroom = mailroom

    def __getitem__(self, name: str) -> MailboxFace:
        return MailboxFace(self._mailroom[name])

    #: For names that are only known when the program runs.
    named = __getitem__


class MailboxFace:
    """`self.session.mailbox.name`."""

    __slots__ = ("_mailbox",)

    def __init__(self, mailbox: Mailbox) -> None:
        self._mailbox = mailbox

    def send(self, value: Any) -> None:
        """Put a copy of a value into the mailbox, without waiting for a reader."""
        self._mailbox.send(values.plain(value))

    def receive(self, timeout_ms: Any = None) -> Any:
        """Take the oldest value; wait for one, for ever or that many milliseconds."""
        return self._mailbox.receive(timeout_ms)


def here() -> Self:
    """`self`, where a function has none of its own."""
    return Self(current())


# Workers


class Agent:
    """The base of every trait: a plugin, whose methods are its entry points."""


def worker(function: Callable[..., Any]) -> Worker:
    """Make a worker of a function. Calling it describes a call, which `self.delegate` runs in a process of its own."""

    def run(session: Session, *given: Any, settings: dict[str, Any] | None = None) -> Any:
        context = Context(session.name, Settings(**settings or {}), session, worker=True)
        return run_in(context, function, *given)

    made = Worker(update_wrapper(run, function))
    made.body = function  # type: ignore[attr-defined]  # for `postroom run`, which starts it in its own process
    return made


def run_in(context: Context, function: Callable[..., Any], *given: Any) -> Any:
    """Run a function of a program. Errors that it raises tell their place in the program."""
    before = enter(context)
    try:
        return values.plain(function(Self(context), *given))
    except Exception as error:  # noqa: BLE001  whatever it was, it is told with its place
        raise located(error) from error.__cause__
    finally:
        enter(before)


def waited(value: Any) -> Any:
    """`value.await`: the result of a worker, run by itself; any other value is there already."""
    return here().delegate([value])[0] if isinstance(value, WorkerCall) else value


def load(file: str, *path: str) -> ModuleType:
    """The module that a program's file imports."""
    return load_module(file, path)


# Errors


def thrown(value: Any) -> Exception:
    """The error for `throw value`; one that was caught is thrown again as what it was."""
    if isinstance(value, ErrorValue):
        return value.error
    return Thrown(values.plain(value), kind_of(value))


def throw(value: Any) -> NoReturn:
    """`throw value` inside an expression."""
    raise thrown(value)


#: The value of `e` in `catch e`.
caught = ErrorValue.of


def unknown(name: str) -> NoReturn:
    """A name that nobody declared; the checks say so before anything runs."""
    raise WrongValue(f"there is nothing called {name}")


# Values


def join(*parts: Any) -> str:
    """The parts of a string, as one text."""
    return "".join(map(values.text, parts))


def step(value: Any, by: int) -> Any:
    """`value++` and `value--`: the new value."""
    if not values.is_number(value):
        raise WrongValue(f"{'++' if by > 0 else '--'} is for numbers, and this is {shown(value)}")
    return values.add(value, by)


def step_member(value: Any, name: str, by: int) -> Any:
    """`value.name++`: sets it, and gives what it was before."""
    before = member(value, name)
    set_member(value, name, step(before, by))
    return before


def step_index(value: Any, place: Any, by: int) -> Any:
    """`value[place]++`: sets it, and gives what it was before."""
    before = index(value, place)
    set_index(value, place, step(before, by))
    return before


def call(function: Any, *given: Any) -> Any:
    """Call a value that may or may not be a function."""
    if not callable(function):
        raise WrongValue(f"only a function can be called, and this is {shown(function)}")
    return function(*given)


def method(value: Any, name: str, *given: Any) -> Any:
    """`value.name(given)`."""
    found = member(value, name)
    if not callable(found):
        raise WrongValue(f"the field {name!r} is not a function: it is {shown(found)}")
    return found(*given)


def maybe_method(value: Any, name: str, *given: Any) -> Any:
    """`value?.name(given)`: null when the value is null."""
    return None if value is None else method(value, name, *given)


# Functions that every program knows


def cat(value: Any) -> str:
    """The value as JSON, indented by two spaces."""
    return values.pretty(value)


def json_(text: Any) -> Any:
    """The value that a JSON text tells."""
    return values.parsed(text)


def print_(*given: Any) -> None:
    """Write values with a space between them, and end the line if they do not end with a new line themselves."""
    _write(sys.stdout, given)


def log(*given: Any) -> None:
    """Write a line for people: to the standard error, so that it is never taken for a result."""
    _write(sys.stderr, given)


def _write(stream: TextIO, given: tuple[Any, ...]) -> None:
    said = " ".join(map(values.text, given))
    said = said if said.endswith("\n") else said + "\n"
    try:
        stream.write(said)
    except UnicodeEncodeError:  # bytes that are no text, or a terminal that lacks a letter
        stream.write(said.encode(stream.encoding or "ascii", "backslashreplace").decode(stream.encoding or "ascii"))
    stream.flush()


def len_(value: Any) -> int:
    """How many characters, items or fields a value has."""
    if isinstance(value, str | list | range | dict):
        return len(value)
    raise WrongValue(f"len() is for strings, lists and objects, and this is {shown(value)}")


def keys(value: Any) -> list[str]:
    """The names of an object's fields."""
    return list(_object("keys", value))


def values_(value: Any) -> list[Any]:
    """The values of an object's fields."""
    return list(_object("values", value).values())


def _object(name: str, value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise WrongValue(f"{name}() is for objects, and this is {shown(value)}")
    return value


def typeof(value: Any) -> str:
    """null, boolean, number, string, array, object or function."""
    return kind_of(value)
