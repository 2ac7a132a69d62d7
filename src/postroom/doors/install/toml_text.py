"""A format-preserving TOML editor: one value is put into a text or taken out of it, and every other byte stays.

The text must be valid TOML (`tomllib` says so first); `items` then only finds where each thing stands. Comments on lines of
their own are never touched, wherever they stand: they may be somebody's.
"""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Iterable
from typing import Any, Final, NamedTuple

from postroom.errors import PostroomError

#: Where something stands in the data: names of keys, and numbers of elements of arrays.
Path = tuple[str | int, ...]

_SPACE: Final = re.compile(r"(?:[ \t\r\n]+|#[^\n]*)*")
_BLANK: Final = re.compile(r"[ \t\r\n]*")
_KEY: Final = re.compile(r'[ \t]*("(?:\\.|[^"\\\n])*"|\'[^\'\n]*\'|[^\s.=\[\]"\'#]+)[ \t]*')
_SCALAR: Final = re.compile(
    r'"""(?:\\.|[^\\])*?"""(?!")'
    r"|'''.*?'''(?!')"
    r'|"(?:\\.|[^"\\\n])*"'
    r"|'[^'\n]*'"
    r"|\d{4}-\d\d-\d\d \d\d:[^\s,\]}#]+"  # a date and a time may have a space between them
    r"|[^\s,\]}#\[{]+",
    re.S,
)

COMMENT: Final = "comment"
HEADER: Final = "header"
PAIR: Final = "pair"  # a key and its value, on a line
PART: Final = "part"  # a member of an inline table, or an element of an array


class NotToml(PostroomError):
    """The text is not TOML, or has a form in which this edit cannot be made. Nothing was changed."""


class Item(NamedTuple):
    """Something in the text, from `start` to `end`, and the path that it has in the data."""

    kind: str
    path: Path
    start: int
    end: int
    #: Where its value begins; -1 without one.
    value: int = -1
    #: Where the last part of its value ends; -1 when the value has no parts.
    last: int = -1


def data_of(text: str) -> dict[str, Any]:
    """The text as plain data. NotToml says where it is not TOML."""
    try:
        return tomllib.loads(text.removeprefix("\ufeff"))
    except tomllib.TOMLDecodeError as error:
        raise NotToml(f"it is not TOML ({error}); fix the file first, nothing was changed") from None
    except RecursionError:
        raise NotToml("it is nested too deeply for settings; fix the file first, nothing was changed") from None


def items(text: str) -> list[Item]:
    """Everything in a valid text, in its order; a table comes before its parts."""
    return _Scan(text).found


def literal(value: Any) -> str:
    """A text, a number, a list or a dict as TOML writes it on one line."""
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{_key(name)} = {literal(each)}" for name, each in value.items()) + " }"
    if isinstance(value, list):
        return "[" + ", ".join(map(literal, value)) + "]"
    # Texts are written as JSON writes them, but TOML knows no pairs of surrogates, and no bare DEL.
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


def _key(name: str) -> str:
    return name if re.fullmatch(r"[A-Za-z0-9_-]+", name) else literal(name)


def without(text: str, path: Path) -> str:
    """The text without what stands at that path. Inline tables and arrays that become empty stay."""
    lines = [item for item in items(text) if item.kind in (HEADER, PAIR) and item.path[: len(path)] == path]
    for item in reversed(lines):
        text = without_lines(text, item)
    while not lines:
        part = next((each for each in items(text) if each.kind == PART and each.path[: len(path)] == path), None)
        if part is None:
            break
        text = _without_part(text, part)
        if isinstance(path[-1], int):  # the next element has its number now
            break
    return text


def without_lines(text: str, item: Item) -> str:
    """The text without the lines of a header, a pair or a comment; a blank line before a header goes with it."""
    start = max(text.rfind("\n", 0, item.start) + 1, 1 if text.startswith("\ufeff") else 0)
    end = text.find("\n", item.end) + 1 or len(text)
    if item.kind != PAIR:
        blank = re.search(r"(?:\A|\n)(\r?\n)\Z", text[:start])
        start = blank.start(1) if blank else start
    return text[:start] + text[end:]


def _without_part(text: str, part: Item) -> str:
    comma = _skip(text, part.end)
    if text[comma] == ",":
        return text[: part.start] + text[_BLANK.match(text, comma + 1).end() :]  # type: ignore[union-attr]
    whole = max(each.value for each in items(text) if 0 <= each.value < part.start and each.end >= part.end)
    before = max((each.end for each in items(text) if each.kind == PART and whole < each.end <= part.start), default=-1)
    if before < 0:
        return text[: part.start] + text[part.end :]
    between = text[_skip(text, before) + 1 : part.start]  # behind the comma; a comment there stays
    return text[:before] + (between if between.strip() else "") + text[part.end :]


def with_value(text: str, path: Path, value: Any) -> str:
    """The text with that value at that path, instead of the one there, or as a new part of its table or array.

    NotToml when there is neither a value nor such a table.
    """
    found = items(text)
    for item in found:
        if item.path == path and item.value >= 0:
            return text[: item.value] + literal(value) + text[item.end :]
    name = path[-1]
    said = literal(value) if isinstance(name, int) else f"{_key(name)} = {literal(value)}"
    for number, item in enumerate(found):
        if item.path != path[:-1]:
            continue
        if item.value >= 0 and text[item.value] in "{[":
            return _with_part(text, item, said)
        if item.kind == HEADER:
            end = item.end
            for each in found[number + 1 :]:
                if each.kind == HEADER:
                    break
                end = each.end if each.kind == PAIR else end
            end = text.find("\n", end) + 1 or len(text)
            gap = "" if text[:end].endswith("\n") else newline(text)
            return text[:end] + f"{gap}{said}{newline(text)}" + text[end:]
    raise NotToml(f"its {'.'.join(map(str, path[:-1]))} is not a table that can be added to; nothing was changed")


def _with_part(text: str, whole: Item, said: str) -> str:
    if whole.last < 0:
        inside = f" {said} " if text[whole.value] == "{" else said
        return text[: whole.value + 1] + inside + text[whole.value + 1 :].lstrip(" ")
    comma = _skip(text, whole.last)
    if text[comma] == ",":  # a trailing comma: ours comes behind it
        return text[: comma + 1] + f" {said}" + text[comma + 1 :]
    return text[: whole.last] + f", {said}" + text[whole.last :]


def appended(text: str, lines: Iterable[str]) -> str:
    """The text with lines at its end, after a blank one."""
    end = newline(text)
    gap = "" if not text.strip("\ufeff") else end if text.endswith("\n") else end * 2
    return text + gap + "".join(line + end for line in lines)


def newline(text: str) -> str:
    """How the text ends its lines."""
    first = text.find("\n")
    return "\r\n" if first > 0 and text[first - 1] == "\r" else "\n"


def _skip(text: str, place: int) -> int:
    """Past white space, line ends and comments."""
    return _SPACE.match(text, place).end()  # type: ignore[union-attr]


class _Scan:
    """Finds where everything stands in a text that is known to be TOML."""

    def __init__(self, text: str) -> None:
        self._text = text
        self.found: list[Item] = []
        self._arrays: dict[Path, int] = {}  # an array of tables by its path, and the number of its last table
        table: Path = ()
        place = 1 if text.startswith("\ufeff") else 0
        while (place := _BLANK.match(text, place).end()) < len(text):  # type: ignore[union-attr]
            if text[place] == "#":
                end = text.find("\n", place)
                end = len(text) if end < 0 else end
                self.found.append(Item(COMMENT, (), place, len(text[:end].rstrip("\r"))))
                place = end
            elif text[place] == "[":
                table, end = self._header(place)
                self.found.append(Item(HEADER, table, place, end))
                place = self._line_end(end)
            else:
                place = self._line_end(self._pair(PAIR, table, place))

    def _line_end(self, place: int) -> int:
        """The end of the line, past the comment behind a header or a pair."""
        end = self._text.find("\n", place)
        return len(self._text) if end < 0 else end

    def _header(self, start: int) -> tuple[Path, int]:
        many = self._text.startswith("[[", start)
        keys, end = self._keys(start + 1 + many)
        path: Path = ()
        for key in keys[:-1]:
            path = self._current((*path, key))
        path = (*path, keys[-1])
        if many:
            self._arrays[path] = self._arrays.get(path, -1) + 1
        return self._current(path), end + 1 + many

    def _current(self, path: Path) -> Path:
        return (*path, self._arrays[path]) if path in self._arrays else path

    def _keys(self, place: int) -> tuple[list[str], int]:
        keys: list[str] = []
        while match := _KEY.match(self._text, place):
            word = match[1]
            keys.append(str(tomllib.loads(f"a = {word}")["a"]) if word[0] in "\"'" else word)
            place = match.end()
            if self._text[place : place + 1] != ".":
                return keys, place
            place += 1
        raise self._lost(place)

    def _pair(self, kind: str, table: Path, start: int) -> int:
        """A key and its value. Returns where it ends."""
        keys, place = self._keys(start)
        if self._text[place : place + 1] != "=":
            raise self._lost(place)
        return self._value(kind, (*table, *keys), start, _skip(self._text, place + 1))

    def _value(self, kind: str, path: Path, start: int, place: int) -> int:
        opening = self._text[place : place + 1]
        if opening not in ("{", "["):
            match = _SCALAR.match(self._text, place)
            if match is None:
                raise self._lost(place)
            self.found.append(Item(kind, path, start, match.end(), place))
            return match.end()
        own = len(self.found)
        self.found.append(Item(kind, path, start, place, place))
        last, number, here = -1, 0, _skip(self._text, place + 1)
        while self._text[here : here + 1] not in ("}", "]"):
            last = self._pair(PART, path, here) if opening == "{" else self._value(PART, (*path, number), here, here)
            number += 1
            here = _skip(self._text, last)
            if self._text[here : here + 1] == ",":
                here = _skip(self._text, here + 1)
        self.found[own] = Item(kind, path, start, here + 1, place, last)
        return here + 1

    def _lost(self, place: int) -> NotToml:
        line = self._text.count("\n", 0, place) + 1
        return NotToml(f"line {line} has a form that Postroom cannot change; nothing was changed")
