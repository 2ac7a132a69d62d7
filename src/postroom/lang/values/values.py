"""The values of Patchwork, which are JSON's, and what operators do with them.

null, true and false, numbers, strings, lists, objects. Lists and objects are shared, not copied, when they are assigned
or passed on to a function; what is sent to a mailbox or to a worker is a copy.

The rules, which tests/lang/test_values.py holds:

- Truth: null, false, 0, "" and [] are false; everything else is true, also an empty object.
- `==` compares by content, at any depth. A number equals a number of the same size (1 == 1.0); nothing equals a value
  of another kind (1 != true, 1 != "1", null != false).
- `+` adds numbers, joins lists, and joins text when one side is a string: the other side is written as text.
- `- * / %` are for numbers. A division of whole numbers that comes out even gives a whole number (6 / 3 is 2), else a
  fraction (7 / 2 is 3.5). Dividing by zero is an error. The remainder has the sign of what is divided (-7 % 3 is -1).
- Whole numbers are exact and have at most 4,300 digits, as in messages; a result that is larger, or too large for a
  fraction, is an error, never infinity. So is such a number in JSON.
- `< > <= >=` compare two numbers, or two strings by their characters' numbers.
- `a...b` are the whole numbers from a to b, both included; none when b is smaller.
- As text: null, true, false and numbers as in JSON (2.0 is "2"), a list as its items joined with ", ", an object as
  JSON.
- A field that is missing is an error that names it; with `?.` it is null.
"""

from __future__ import annotations

import json
import math
import operator
import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

from postroom.lang.syntax.source import shortened

from .kinds import kind_of, shown
from .raised import ErrorValue, WrongValue

#: A range that is asked for as a list has at most so many numbers; a loop has no such limit.
MAX_LIST: Final = 10_000_000
#: Fractions are exact up to here; beyond, a whole number is shown as the fraction that it is.
EXACT: Final = 2**53
#: Python writes and reads no more of a whole number, and messages take none that is larger.
MAX_DIGITS: Final = 4300
_LARGEST: Final = 10**MAX_DIGITS - 1
#: Of a value or a line that may be long, so much stands in an error's sentence.
_SHOWN: Final = 60
#: A string or a number in a text of JSON.
_JSON_TOKEN: Final = re.compile(r'"(?:[^"\\]|\\.)*"|-?[0-9][0-9.eE+-]*', re.DOTALL)

#: The function of this module for each operator on two values.
OPERATORS: Final = {
    "+": "add",
    "-": "subtract",
    "*": "multiply",
    "/": "divide",
    "%": "remainder",
    "==": "equal",
    "<": "less",
    "<=": "less_or_equal",
    ">": "more",
    ">=": "more_or_equal",
}

Number = int | float


# Text


def text(value: object) -> str:
    """The value as text, as `"${value}"` shows it."""
    if isinstance(value, str):
        return value
    if value is None or isinstance(value, bool):
        return json.dumps(value)
    if isinstance(value, int):
        return str(value)
    if isinstance(value, float):
        return str(int(value)) if value.is_integer() and abs(value) < EXACT else repr(value)
    if isinstance(value, list | range):
        return ", ".join(map(text, value))
    if isinstance(value, ErrorValue):
        return text(value["message"])
    if isinstance(value, dict):
        return compact(value)
    raise WrongValue(f"{shown(value)} cannot be written as text")


def joined(value: object) -> str:
    """The text of `$@{list}`: the items as text, joined with ", "."""
    if not isinstance(value, list | range):
        raise WrongValue(f"$@{{...}} joins the items of a list, and this is {shown(value)}")
    return ", ".join(map(text, value))


def plain(value: object) -> Any:
    """The value with whole fractions as whole numbers and ranges as lists: as JSON writes it."""
    if isinstance(value, float) and value.is_integer() and abs(value) < EXACT:
        return int(value)
    if isinstance(value, list | range):
        return [plain(item) for item in value]
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    return value


def compact(value: object) -> str:
    """JSON on one line."""
    return _json(value, None)


def pretty(value: object) -> str:
    """JSON with two spaces of indentation: what `cat` gives."""
    return _json(value, 2)


def _json(value: object, indent: int | None) -> str:
    try:
        return json.dumps(plain(value), ensure_ascii=False, indent=indent, allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise WrongValue(f"this value cannot be written as JSON: {error}") from None


def parsed(source: object) -> Any:
    """The value that a JSON text tells: what `json` gives."""
    if not isinstance(source, str):
        raise WrongValue(f"json() reads a string, and this is {shown(source)}")
    try:
        return json.loads(source, parse_constant=_no_constant, parse_float=_fraction)
    except RecursionError:
        raise WrongValue("this JSON is nested too deeply") from None
    except json.JSONDecodeError as error:
        raise WrongValue(f"this is not JSON: {error.msg} {_place_in(source, error.pos)}") from None
    except ValueError:  # of a number; where it stands is not told
        at = next(found.start() for found in _JSON_TOKEN.finditer(source) if _is_too_large(found[0]))
        raise WrongValue(f"a number in this JSON is too large {_place_in(source, at)}") from None


def _place_in(source: str, at: int) -> str:
    """Where something stands in a text of several lines, and what that line says."""
    before, line = source.count("\n", 0, at), source.rfind("\n", 0, at) + 1
    said = source[line:].partition("\n")[0].strip()[:_SHOWN] or ("the text ends there" if source.strip() else "")
    return f"at line {before + 1}, column {at - line + 1}" + (f": {said}" if said else " (it is empty)")


def _no_constant(word: str) -> Any:
    raise WrongValue(f"this is not JSON: {word} is not a value")


def _fraction(word: str) -> float:
    if _is_too_large(word):
        raise ValueError(word)
    return float(word)


def _is_too_large(word: str) -> bool:
    """Whether a string or number of JSON is a number that has no value here."""
    if word.startswith('"'):
        return False
    digits = word.removeprefix("-")
    return len(digits) > MAX_DIGITS if digits.isdigit() else math.isinf(float(word))


# Truth and equality


def truth(value: object) -> bool:
    """Whether it counts as true."""
    if isinstance(value, dict):
        return True
    return bool(value)


def equal(one: object, other: object) -> bool:
    """Whether two values are the same by content."""
    kind = kind_of(one)
    if kind != kind_of(other):
        return False
    if isinstance(one, list | range) and isinstance(other, list | range):
        return len(one) == len(other) and all(map(equal, one, other))
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(equal(value, other[key]) for key, value in one.items())
    return one is other or one == other


# Numbers


def is_number(value: object) -> bool:
    """Whether it is a number; true and false are none."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def add(one: Any, other: Any) -> Any:
    """`one + other`."""
    if isinstance(one, str) or isinstance(other, str):
        return text(one) + text(other)
    if isinstance(one, list | range) and isinstance(other, list | range):
        return [*one, *other]
    return _plus(one, other)


def _quotient(one: Number, other: Number) -> Number:
    """Whole when it comes out even."""
    whole = isinstance(one, int) and isinstance(other, int) and one % other == 0
    return one // other if whole else one / other


def _remainder(one: Number, other: Number) -> Number:
    """With the sign of what is divided."""
    if isinstance(one, int) and isinstance(other, int):
        rest = abs(one) % abs(other)
        return -rest if one < 0 else rest
    return math.fmod(one, other)


def negate(value: Any) -> Number:
    """`-value`."""
    if not is_number(value):
        raise WrongValue(f"- is for numbers, and this is {shown(value)}")
    negative: Number = -value
    return negative


def _calculates(sign: str, result: Callable[[Any, Any], Number]) -> Callable[[Any, Any], Number]:
    def calculated(one: Any, other: Any) -> Number:
        if not (is_number(one) and is_number(other)):
            hint = "numbers, strings and lists" if sign == "+" else "numbers"
            raise WrongValue(f"{sign} is for {hint}, and here are {shown(one)} and {shown(other)}")
        try:
            value = result(one, other)
        except (ZeroDivisionError, ValueError):
            raise WrongValue(f"{_short(one)} cannot be divided by zero") from None
        except OverflowError:
            value = math.inf
        if isinstance(value, float) and not math.isfinite(value):
            raise WrongValue(f"the result of {_short(one)} {sign} {_short(other)} is too large")
        if not -_LARGEST <= value <= _LARGEST:
            raise WrongValue(f"the result of {_short(one)} {sign} {_short(other)} has more than {MAX_DIGITS} digits")
        return value

    return calculated


_plus = _calculates("+", operator.add)
subtract = _calculates("-", operator.sub)
multiply = _calculates("*", operator.mul)
divide = _calculates("/", _quotient)
remainder = _calculates("%", _remainder)


def _short(value: object) -> str:
    return shortened(text(value), _SHOWN)


# Order


def _ordered(sign: str, compare: Callable[[Any, Any], bool]) -> Callable[[Any, Any], bool]:
    def compared(one: Any, other: Any) -> bool:
        if not (is_number(one) and is_number(other)) and not (isinstance(one, str) and isinstance(other, str)):
            said = f"{shown(one)} and {shown(other)}"
            raise WrongValue(f"{sign} compares two numbers or two strings, and here are {said}")
        return compare(one, other)

    return compared


less = _ordered("<", operator.lt)
less_or_equal = _ordered("<=", operator.le)
more = _ordered(">", operator.gt)
more_or_equal = _ordered(">=", operator.ge)


def sort_key(value: object) -> Any:
    """For sorting a list of numbers or one of strings; whatever else is in it is an error."""
    if is_number(value) or isinstance(value, str):
        return value
    raise WrongValue(f"only numbers and strings can be sorted, and here is {shown(value)}")


# Ranges and loops


def span(first: object, last: object) -> range:
    """The whole numbers from first to last, both included, for a loop."""
    for value in (first, last):
        if not is_number(value) or value != int(value):  # type: ignore[call-overload]
            raise WrongValue(f"... goes from a whole number to a whole number, and here is {shown(value)}")
    return range(int(first), int(last) + 1)  # type: ignore[call-overload]


def span_list(first: object, last: object) -> list[int]:
    """The same as a list."""
    numbers = span(first, last)
    count = numbers.stop - numbers.start  # len() does not know numbers as large as this may be
    if count > MAX_LIST:
        raise WrongValue(f"a list of {_short(count)} numbers is too long; the limit is {MAX_LIST}")
    return list(numbers)


def items(value: object) -> Iterable[Any]:
    """The values that a loop goes through: a list's items, a text's lines, an object's field names."""
    if isinstance(value, list | dict):
        return tuple(value)  # what the loop's body does to the list does not change the loop
    if isinstance(value, range):
        return value
    if isinstance(value, str):
        return lines_of(value)
    raise WrongValue(
        f"a loop goes through a list, the lines of a string or the fields of an object, not {shown(value)}"
    )


def lines_of(value: str) -> list[str]:
    """The lines of a text, without their ends. Only a new line ends one: not the rarer marks that Python knows too."""
    lines = value.replace("\r\n", "\n").split("\n")
    return lines if lines[-1] else lines[:-1]


# Taking apart


def take(value: object, count: int) -> Sequence[Any]:
    """The items of a list for `var [a, b] = value`, of which there must be so many at least."""
    if not isinstance(value, list | range):
        raise WrongValue(f"only a list can be taken apart with [...], and this is {shown(value)}")
    if len(value) < count:
        raise WrongValue(f"{count} items are taken from a list that has {len(value)}")
    return value


def key_of(index: object, length: int) -> int:
    """An index into something of that length; an error that names both when there is nothing there."""
    if not is_number(index) or index != int(index):  # type: ignore[call-overload]
        raise WrongValue(f"a place in a list is a whole number, not {shown(index)}")
    place: int = int(index)  # type: ignore[call-overload]
    if not 0 <= place < length:
        known = f"the last one is {length - 1}" if length else "it is empty"
        raise WrongValue(f"there is nothing at place {place}: {known}")
    return place
