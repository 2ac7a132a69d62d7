"""Operators, members and builtins in a rehearsal: exact where values are known, stand-ins where they are not."""

from __future__ import annotations

from collections import Counter
from typing import Any, Final

from postroom.lang.syntax import nodes as n
from postroom.lang.values import attributes, values
from postroom.lang.values.kinds import kind_of
from postroom.lang.values.raised import WrongValue

from .stand_ins import (
    Method,
    MissingField,
    Namespace,
    ReceivedObject,
    StandIn,
    Unclear,
    bounded,
    has_stand_in,
    measured,
)

MAX_STEPS: Final = 6_000  # of one run: more is a loop that only real values end
#: Members of lists that do not look into the items: they work with stand-ins too.
_BLIND: Final = frozenset(["push", "pop", "insert", "remove", "at", "slice", "concat", "reverse", "flat"])
_MAX_ITEMS: Final = 200


class Judge:
    """Decides about values that are not known, in one run: the first decisions are given. Counts the run's steps."""

    def __init__(self, size: int, given: tuple[bool, ...]) -> None:
        self.size = size
        self.steps = 0
        self.decisions: list[tuple[bool, n.Node]] = []
        self._given = given
        self._memo: dict[object, bool] = {}
        self._derived: dict[object, StandIn] = {}
        self._visits: Counter[int] = Counter()

    def step(self) -> None:
        self.steps += 1
        if self.steps > MAX_STEPS:
            raise Unclear

    def decide(self, key: object, node: n.Node) -> bool:
        if key not in self._memo:
            place, visits = len(self.decisions), self._visits[id(node)]
            self._visits[id(node)] += 1
            self._memo[key] = self._given[place] if place < len(self._given) else visits % 2 == 0
            self.decisions.append((self._memo[key], node))
        return self._memo[key]

    def derived(self, key: object) -> StandIn:
        """The result of an operation on stand-ins: the same each time that it is worked out anew."""
        return self._derived.setdefault(key, StandIn())

    def truth(self, value: Any, node: n.Node) -> bool:
        value = known(value)
        return self.decide(("true", value.number), node) if isinstance(value, StandIn) else values.truth(value)


def known(value: Any) -> Any:
    """The value that a stand-in turned out to be; any other value as it is."""
    return value.value if isinstance(value, StandIn) and value.known else value


def binary(op: str, left: Any, right: Any, node: n.Node, judge: Judge) -> Any:
    """`left op right`."""
    if op in {"==", "!="}:
        return equal(left, right, node, judge) == (op == "==")
    left, right = _as_number(left, right, judge), _as_number(right, left, judge)
    if isinstance(left, StandIn) or isinstance(right, StandIn):
        if op in {"<", ">", "<=", ">="}:
            return judge.decide((op, key_of(left), key_of(right)), node)
        return judge.derived((op, key_of(left), key_of(right)))
    if op == "+" and isinstance(left, list) and isinstance(right, list):
        return bounded([*left, *right])
    if has_stand_in(left) or has_stand_in(right):
        return judge.derived((op, key_of(left), key_of(right)))
    try:
        return bounded(getattr(values, values.OPERATORS[op])(left, right))
    except WrongValue:
        raise Unclear from None


def _as_number(value: Any, other: Any, judge: Judge) -> Any:
    """A parameter that is counted with is a small number, from then on."""
    value, other = known(value), known(other)
    numbers = isinstance(other, int | float) or (isinstance(other, StandIn) and other.given)
    if isinstance(value, StandIn) and value.given and numbers:
        return value.become(judge.size)
    return value


def key_of(value: Any) -> str:
    """The key of a value in the rehearsal's caches: the same value has the same key for the whole rehearsal."""
    return _key_of(measured(value))


def _key_of(value: Any) -> str:
    value = known(value)
    if isinstance(value, StandIn):
        return f"#{value.number}"
    if isinstance(value, list):
        return f"[{','.join(map(_key_of, value))}]"
    if isinstance(value, dict):
        return f"{{{','.join(f'{name!r}:{_key_of(item)}' for name, item in value.items())}}}"
    return repr(value)


def equal(left: Any, right: Any, node: n.Node, judge: Judge) -> bool:
    """`left == right`; what is assumed about a stand-in stays."""
    left, right = known(left), known(right)
    if left is right:
        return True
    if isinstance(right, StandIn):
        left, right = right, left
    if isinstance(left, StandIn):
        same = judge.decide(("==", *sorted([key_of(left), key_of(right)])), node)
        if same and not has_stand_in(right):
            left.become(right)
        return same
    if has_stand_in(left) or has_stand_in(right):
        return judge.decide(("==", *sorted([key_of(left), key_of(right)])), node)
    return values.equal(left, right)


def walk_through(value: Any, judge: Judge) -> list[Any]:
    """The items that a loop goes through."""
    value = known(value)
    if isinstance(value, StandIn):
        if value.items is None:
            value.items = [StandIn(given=value.given) for _ in range(judge.size)]
        return value.items
    if isinstance(value, dict):
        return list(value)
    if isinstance(value, str):
        return list(value.splitlines())
    if isinstance(value, list) and len(value) <= _MAX_ITEMS:
        return list(value)
    raise Unclear


def member_of(given: Any, node: n.MemberAccess, judge: Judge) -> Any:
    """`given.name`. MissingField for what is certainly missing from a message."""
    of, name = known(given), node.name
    if isinstance(of, Namespace):
        return of.member(name)
    if isinstance(of, StandIn):
        if name == "length":
            return len(walk_through(of, judge))
        if name in {"map", "filter"}:
            return Method(of, name)
        return of.fields.setdefault(name, StandIn(given=of.given))
    if isinstance(of, dict) and name in of:
        return of[name]
    found = _own_member(of, name)
    if found is not None:
        return found
    if isinstance(given, ReceivedObject) and not node.optional:
        raise MissingField(node, given)
    if isinstance(of, ReceivedObject) or (node.optional and (of is None or isinstance(of, dict))):
        return None
    raise Unclear


def _own_member(of: Any, name: str) -> Any:
    """A member that values of this kind have; None when they have none of that name."""
    kind = kind_of(of)
    if name in attributes.METHODS.get(kind, {}):
        return Method(of, name)
    if name == "length" and isinstance(of, str | list | dict):
        return len(of)
    return of[0 if name == "first" else -1] if name in {"first", "last"} and isinstance(of, list) and of else None


def call_method(method: Method, args: list[Any], judge: Judge) -> Any:
    """A member of a string, list, object or number."""
    of = known(method.of)
    unknown = (method.name, key_of(of), *map(key_of, args))
    if isinstance(of, StandIn | Namespace):
        return judge.derived(unknown)
    function = attributes.METHODS.get(kind_of(of), {}).get(method.name)
    if function is None:
        raise Unclear
    blind = isinstance(of, list) and method.name in _BLIND
    if not blind and (has_stand_in(of) or any(map(has_stand_in, args))):
        return judge.derived(unknown)
    try:
        return bounded(function(of, *map(known, args)))
    except (WrongValue, TypeError, ValueError, IndexError):
        raise Unclear from None


def builtin(name: str, args: list[Any], judge: Judge) -> Any:
    """A function that every program knows; files are not touched."""
    value = known(args[0]) if args else None
    if name in {"print", "log", "write"}:
        return None
    if name == "len" and isinstance(value, StandIn | str | list | dict):
        return len(walk_through(value, judge) if isinstance(value, StandIn) else value)
    if name in {"keys", "values"} and isinstance(value, dict):
        return list(value) if name == "keys" else list(value.values())
    return judge.derived((name, *map(key_of, args)))
