"""Stand-ins for what only a run can know: parameters, the output of commands, the answers of models and people.

A stand-in is one value with an identity: calls and messages pass on the same one, and an assumption about it, once
made, holds for the whole rehearsal. So two workers that look at the same thing agree.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import count
from typing import Any, Final

from postroom.lang.syntax import nodes as n
from postroom.lang.syntax.program import LoadedModule

from .kinds import ANY, Kind

#: A value with more parts, or a text with more characters, is left alone.
MAX_SIZE: Final = 10_000

_numbers = count()


class Unclear(Exception):
    """The rehearsal does not know how to go on; nothing follows from it."""


class Raised(Exception):
    """The program threw something itself."""


class MissingField(Raised):
    """A message does not have what its receiver reads."""

    def __init__(self, node: n.MemberAccess, message: ReceivedObject) -> None:
        self.node = node
        self.message = message
        super().__init__(node.name)


class StandIn:
    """A value that is not known. A `given` one came in as a parameter: it is a small number when one is needed."""

    __slots__ = ("fields", "given", "items", "known", "number", "value")

    def __init__(self, *, given: bool = False) -> None:
        self.number = next(_numbers)  # not id(): that of one that is gone is given out again
        self.given = given
        self.known = False
        self.value: Any = None  # what it turned out to be, once something was assumed
        self.fields: dict[Any, Any] = {}
        self.items: list[Any] | None = None

    def become(self, value: Any) -> Any:
        self.known, self.value = True, value
        return value


class ReceivedObject(dict[str, Any]):
    """An object that came out of a mailbox: it remembers where it was sent."""

    __slots__ = ("mailbox", "sent_by")

    def __init__(self, fields: dict[str, Any], mailbox: str, sent_by: n.Call) -> None:
        super().__init__(fields)
        self.mailbox = mailbox
        self.sent_by = sent_by


@dataclass(frozen=True, eq=False)
class Code:
    """A function, worker or skill of the program, as a value."""

    function: n.Function
    loaded: LoadedModule


@dataclass(frozen=True, eq=False)
class CalledWorker:
    """A called worker."""

    callee: Code
    args: list[Any]


@dataclass(frozen=True, eq=False)
class Method:
    """A member of a value that waits to be called."""

    of: Any
    name: str


@dataclass(frozen=True, eq=False)
class Namespace:
    """As a value, by `what` it is: self, session (`self.session`), mailroom, mailbox, module or builtin."""

    what: str
    name: str = ""
    loaded: LoadedModule | None = None

    def member(self, name: str) -> Any:
        if self.what in {"self", "mailbox"}:
            return Namespace("session") if self.what == "self" and name == "session" else Method(self, name)
        if self.what == "session":
            return Namespace("mailroom") if name == "mailbox" else StandIn()
        if self.what == "mailroom":
            return Namespace("mailbox", name)
        item = self.loaded.exports().get(name) if self.loaded is not None else None
        if self.loaded is not None and isinstance(item, n.Function):
            return Code(item, self.loaded)
        raise Unclear


def stand_in(kind: Kind, size: int, depth: int = 0) -> Any:
    """A value of a kind: as exact as the kind is; lists have `size` items, numbers are `size`."""
    make: Callable[[Kind], Any] = lambda inner: stand_in(inner, size, depth + 1)  # noqa: E731
    if depth > 8:
        return StandIn(given=True)
    if kind.value is not None:
        return kind.value
    if kind.name in {"int", "number"}:
        return size
    if kind.name == "null":
        return None
    if kind.name == "list":
        return [make(kind.element or ANY) for _ in range(size)]
    if kind.name == "object" and kind.fields is not None:
        return {name: make(inner) for name, inner in kind.fields.items()}
    return StandIn(given=True)


def parts_of(value: Any) -> Iterator[Any]:
    """A value and everything in it, shared parts as often as they are shared. Unclear when there is too much of it.

    A list that has itself in it twice, sixty times over, has more parts than anybody can count, and one that is in
    itself has no end (tests/lang/test_choreography.py).
    """
    waiting = [value]
    for _ in range(MAX_SIZE):
        if not waiting:
            return
        part = waiting.pop()
        yield part
        if isinstance(part, list):
            waiting += part
        elif isinstance(part, dict):
            waiting += part.values()
    raise Unclear


def bounded(value: Any) -> Any:
    """The value, unless it has grown too large to go on with: a loop that doubles it would fill the memory."""
    if isinstance(value, str | list) and len(value) > MAX_SIZE:
        raise Unclear
    return value


def measured(value: Any) -> Any:
    """The value, which can be walked through: it has an end, and is not too large."""
    deque(parts_of(value), maxlen=0)
    return value


def copied(value: Any) -> Any:
    """A copy, as a message is one; stand-ins keep their identity."""
    return _copied(measured(value))


def _copied(value: Any) -> Any:
    if isinstance(value, list):
        return [_copied(item) for item in value]
    if isinstance(value, dict):
        return {key: _copied(item) for key, item in value.items()}
    return value


def has_stand_in(value: Any) -> bool:
    """Whether something in a value is not known."""
    return any(isinstance(part, StandIn | CalledWorker | Code | Namespace | Method) for part in parts_of(value))
