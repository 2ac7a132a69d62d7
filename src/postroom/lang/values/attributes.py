"""Attributes, after a dot or in brackets: fields of objects, and members of strings, lists, objects and numbers.

An object's own fields come before members of the same name. Members change nothing, but for `push`, `pop`, `insert` and
`remove` of lists and `remove` of objects, which change what they are called on.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import suppress
from difflib import get_close_matches
from functools import partial, reduce
from typing import Any, Final

from . import values
from .kinds import kind_of, shown
from .raised import WrongValue
from .values import text

# Strings


def _piece(value: Any, start: Any = 0, end: Any = None) -> Any:
    """From start up to, not including, end; negative places count from the end."""
    return value[_whole(start) : None if end is None else _whole(end)]


def _whole(value: object) -> int:
    if not values.is_number(value) or value != int(value):  # type: ignore[call-overload]
        raise WrongValue(f"this must be a whole number, not {shown(value)}")
    return int(value)  # type: ignore[call-overload, no-any-return]


def _words(name: str, *given: object) -> None:
    for value in given:
        if not isinstance(value, str):
            raise WrongValue(f"{name}() takes strings, not {shown(value)}")


def _split(value: str, at: Any = None) -> list[str]:
    if at is None:
        return value.split()
    _words("split", at)
    return list(value) if at == "" else value.split(at)


def _replace(value: str, old: Any, new: Any) -> str:
    _words("replace", old, new)
    return value.replace(old, new)


def _about_text(name: str, ask: Callable[[str, str], Any]) -> Callable[[str, Any], Any]:
    def tell(value: str, part: Any) -> Any:
        _words(name, part)
        return ask(value, part)

    return tell


def _number(value: str) -> int | float:
    """The number that a string tells."""
    with suppress(WrongValue):
        number: int | float = values.parsed(value.strip())
        if values.is_number(number):
            return number
    raise WrongValue(f"{shown(value)} is not a number")


def _repeat(value: str, times: Any) -> str:
    count = _whole(times)
    if count < 0 or count * len(value) > values.MAX_LIST:
        raise WrongValue(f"a string cannot be repeated {count} times")
    return value * count


def _padding(value: str, width: Any, fill: Any) -> str:
    _words("padding", fill)
    missing = _whole(width) - len(value)
    if missing <= 0 or not fill:
        return ""
    if missing > values.MAX_LIST:
        raise WrongValue(f"a string cannot be padded with {missing} characters")
    return str(fill * (missing // len(fill) + 1))[:missing]


_includes = _about_text("includes", lambda value, part: part in value)

STRING: Final[dict[str, Callable[..., Any]]] = {
    "upper": lambda value: value.upper(),
    "lower": lambda value: value.lower(),
    "toUpperCase": lambda value: value.upper(),
    "toLowerCase": lambda value: value.lower(),
    "trim": lambda value: value.strip(),
    "trimStart": lambda value: value.lstrip(),
    "trimEnd": lambda value: value.rstrip(),
    "split": _split,
    "lines": values.lines_of,
    "replace": _replace,
    "startsWith": _about_text("startsWith", str.startswith),
    "endsWith": _about_text("endsWith", str.endswith),
    "includes": _includes,
    "contains": _includes,
    "indexOf": _about_text("indexOf", str.find),
    "slice": _piece,
    "repeat": _repeat,
    "padStart": lambda value, width, fill=" ": _padding(value, width, fill) + value,
    "padEnd": lambda value, width, fill=" ": value + _padding(value, width, fill),
    "number": _number,
}

# Lists


def _place(value: list[Any], item: object) -> int:
    return next((place for place, other in enumerate(value) if values.equal(item, other)), -1)


def _push(value: list[Any], *more: Any) -> int:
    value.extend(more)
    return len(value)


def _pop(value: list[Any]) -> Any:
    if not value:
        raise WrongValue("pop() takes the last item of a list, and this one is empty")
    return value.pop()


def _at(value: Any, place: Any) -> Any:
    where = _whole(place)
    return value[where] if -len(value) <= where < len(value) else None


def _sort(value: list[Any], by: Any = None) -> list[Any]:
    keys = [values.sort_key(item if by is None else _call(by, item)) for item in value]
    if len({isinstance(key, str) for key in keys}) > 1:
        raise WrongValue("a list of both numbers and strings cannot be sorted")
    order = sorted(range(len(keys)), key=keys.__getitem__)
    return [value[place] for place in order]


def _call(function: Any, *given: Any) -> Any:
    if not callable(function):
        raise WrongValue(f"this must be a function, not {shown(function)}")
    return function(*given)


def _sum(value: list[Any]) -> Any:
    total: Any = 0
    for item in value:
        if not values.is_number(item):
            raise WrongValue(f"sum() adds numbers, and here is {shown(item)}")
        total = values.add(total, item)
    return total


def _flat(value: list[Any]) -> list[Any]:
    return [inner for item in value for inner in (item if isinstance(item, list) else [item])]


def _join(value: list[Any], between: Any = ", ") -> str:
    _words("join", between)
    return str(between).join(map(text, value))


LIST: Final[dict[str, Callable[..., Any]]] = {
    "push": _push,
    "pop": _pop,
    "insert": lambda value, place, item: value.insert(values.key_of(place, len(value) + 1), item),
    "remove": lambda value, place: value.pop(values.key_of(place, len(value))),
    "at": _at,
    "join": _join,
    "slice": _piece,
    "concat": lambda value, *more: [*value, *_flat(list(more))],
    "reverse": lambda value: value[::-1],
    "sort": _sort,
    "includes": lambda value, item: _place(value, item) >= 0,
    "contains": lambda value, item: _place(value, item) >= 0,
    "indexOf": _place,
    "map": lambda value, by: [_call(by, item) for item in value],
    "filter": lambda value, by: [item for item in value if values.truth(_call(by, item))],
    "reduce": lambda value, by, first: reduce(partial(_call, by), value, first),
    "sum": _sum,
    "flat": _flat,
}

# Objects


def _merge(value: dict[str, Any], other: Any) -> dict[str, Any]:
    if not isinstance(other, dict):
        raise WrongValue(f"merge() takes an object, not {shown(other)}")
    return {**value, **other}


def _field_name(name: object) -> str:
    if not isinstance(name, str):
        raise WrongValue(f"a field's name is a string, not {shown(name)}")
    return name


OBJECT: Final[dict[str, Callable[..., Any]]] = {
    "keys": list,
    "values": lambda value: list(value.values()),
    "entries": lambda value: [[key, item] for key, item in value.items()],
    "has": lambda value, name: _field_name(name) in value,
    "get": lambda value, name, otherwise=None: value.get(_field_name(name), otherwise),
    "merge": _merge,
    "remove": lambda value, name: value.pop(_field_name(name), None),
}

# Numbers

#: A fraction has no more places behind the point that a scale could reach.
_PLACES: Final = 308


def _round(value: float, digits: Any = 0) -> int | float:
    """To the nearest, halves away from zero, as people count."""
    places = _whole(digits)
    if places >= 0 and (isinstance(value, int) or places > _PLACES):
        return value
    scale = 10**places
    scaled = abs(value) * scale
    if places > 0 and scaled >= values.EXACT:  # it has no such places
        return value
    whole = math.floor(scaled) + (scaled - math.floor(scaled) >= 0.5)
    return values.divide(int(math.copysign(whole, value)) if whole else 0, scale)


NUMBER: Final[dict[str, Callable[..., Any]]] = {
    "round": _round,
    "floor": math.floor,
    "ceil": math.ceil,
    "abs": abs,
}

#: The methods, which are called after a dot, by kind of value. The checks read the names too.
METHODS: Final = {"string": STRING, "array": LIST, "object": OBJECT, "number": NUMBER}
#: The properties, which are read after a dot without a call.
PROPERTIES: Final = {"string": ("length",), "array": ("length", "first", "last"), "object": ("length",)}


def member(value: Any, name: str) -> Any:
    """`value.name`: a field of an object, else a member that its kind has. WrongValue when there is none."""
    if isinstance(value, dict) and name in value:
        return value[name]
    kind = kind_of(value)
    if name in PROPERTIES.get(kind, ()):
        return _property(value, name)
    method = METHODS.get(kind, {}).get(name)
    if method is not None:
        return partial(_called, kind, name, method, list(value) if isinstance(value, range) else value)
    if kind == "thing" and hasattr(value, "named"):
        return value.named(name)
    if kind == "thing" and not name.startswith("_") and hasattr(value, name):
        return getattr(value, name)
    raise WrongValue(_missing(value, kind, name))


def _property(value: Any, name: str) -> Any:
    if name == "length":
        return len(value)
    if not value:
        raise WrongValue(f"an empty list has no {name} item")
    return value[0 if name == "first" else -1]


def _called(kind: str, name: str, method: Callable[..., Any], value: Any, *given: Any) -> Any:
    try:
        return method(value, *given)
    except TypeError as error:
        if error.__traceback__ is not None and error.__traceback__.tb_next is None:  # it was the call itself
            raise WrongValue(f".{name}() of {_article(kind)} does not take {len(given)} values") from None
        raise


def _article(kind: str) -> str:
    return f"an {kind}" if kind[0] in "ao" else f"a {kind}"


def _missing(value: Any, kind: str, name: str) -> str:
    if kind == "null":
        return f"null has no field {name!r}; with ?.{name} the result would be null"
    if kind in ("boolean", "function"):
        return f"{_article(kind)} has no field {name!r}"
    if kind == "object":
        known = [*value, *OBJECT]
        has = ", ".join(map(repr, list(value)[:12])) + (" and more" if len(value) > 12 else "")
        said = f"the object has no field {name!r}; it has {has or 'no fields'}"
    else:
        known = [*METHODS.get(kind, {}), *PROPERTIES.get(kind, ())]
        said = f"{_article(kind)} has no member {name!r}"
    near = get_close_matches(name, known, n=1)
    return said + (f" (did you mean {near[0]!r}?)" if near else "")


def maybe_member(value: Any, name: str) -> Any:
    """`value?.name`: null when the value is null or has no such field."""
    if value is None or (isinstance(value, dict) and name not in value and name not in {*OBJECT, "length"}):
        return None
    return member(value, name)


def index(value: Any, place: Any) -> Any:
    """`value[place]`: an item of a list, a character of a string, a field of an object."""
    if isinstance(value, dict):
        name = _field_name(place)
        if name not in value:
            raise WrongValue(_missing(value, "object", name))
        return value[name]
    if isinstance(value, list | str | range):
        return value[values.key_of(place, len(value))]
    if hasattr(value, "named"):
        return value.named(_field_name(place))
    raise WrongValue(f"[...] is for lists, strings and objects, and this is {shown(value)}")


def maybe_index(value: Any, place: Any) -> Any:
    """`value?.[place]`: null when the value is null, or when there is nothing at that place."""
    if value is None:
        return None
    if isinstance(value, dict):
        return value.get(_field_name(place))
    if isinstance(value, list | str | range):
        where = _whole(place)
        return value[where] if 0 <= where < len(value) else None
    return index(value, place)


def set_member(value: Any, name: str, new: Any) -> Any:
    """`value.name = new`; gives the new value."""
    if not isinstance(value, dict):
        raise WrongValue(f"only an object's field can be set, and this is {shown(value)}")
    value[name] = new
    return new


def set_index(value: Any, place: Any, new: Any) -> Any:
    """`value[place] = new`; gives the new value. Lists do not grow by this: `push` is for that."""
    if isinstance(value, dict):
        return set_member(value, _field_name(place), new)
    if not isinstance(value, list):
        raise WrongValue(f"only an item of a list or a field of an object can be set, and this is {shown(value)}")
    value[values.key_of(place, len(value))] = new
    return new


def field(value: Any, name: str) -> Any:
    """A field for `var { name } = value`."""
    if not isinstance(value, dict):
        raise WrongValue(f"only an object can be taken apart with {{...}}, and this is {shown(value)}")
    return index(value, name)
