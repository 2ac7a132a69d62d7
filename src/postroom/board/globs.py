"""Glob patterns of files, and whether two of them can match the same file.

`*` and `?` stay within one part of a path, `**` is any number of parts, `[abc]` and `[!abc]` are one character. A
pattern also means everything below what it matches, as in a .gitignore: `src/api` covers `src/api/users.py`. Paths are
written with slashes, from the top of the project.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any, Final, NamedTuple

from postroom.errors import Fault

MAX_GLOB_BYTES: Final = 1024


class Some(NamedTuple):
    """One character out of some, or (negated) none of them."""

    chars: frozenset[str]
    negated: bool

    def meets(self, other: Some) -> bool:
        """Whether one character fits both."""
        if self.negated and other.negated:
            return True  # there is always a third one
        if self.negated:
            return bool(other.chars - self.chars)
        if other.negated:
            return bool(self.chars - other.chars)
        return bool(self.chars & other.chars)


ANY_ONE: Final = Some(frozenset(), negated=True)
#: Any number of characters of one part; any number of parts.
STAR: Final = "*"
DEEP: Final = "**"

Part = tuple[Some | str, ...]


def normal(field: str, glob: object, faults: list[Fault]) -> str:
    """A pattern as it is kept: without `./`, doubled slashes and a slash at the end. Faults are added to the list."""
    if not isinstance(glob, str):
        faults.append(Fault(field, f"must be text, not {type(glob).__name__}"))
        return ""
    parts = [part for part in glob.split("/") if part not in ("", ".")]
    problem = None
    if glob.startswith("/"):
        problem = "must be a path from the top of the project, without a slash in front"
    elif ".." in parts:
        problem = "must not go up with `..`"
    elif not parts:
        problem = "must not be empty; everything is `**`"
    elif len(glob.encode("utf-8", "replace")) > MAX_GLOB_BYTES:
        problem = f"must be at most {MAX_GLOB_BYTES} bytes long"
    elif any(char < " " or char == "\x7f" for char in glob):
        problem = "must not contain control characters"
    if problem is not None:
        faults.append(Fault(field, f"{problem} ({glob[:100]!r})"))
    return "/".join(parts)


def overlap(first: str, second: str) -> bool:
    """Whether there can be a file that both patterns mean."""
    return _ways_meet(_parts(first), _parts(second))


def covers(glob: str, path: str) -> bool:
    """Whether a pattern means that file. The path is taken as it stands: no character of it is special."""
    plain = tuple(tuple(Some(frozenset(char), negated=False) for char in part) for part in path.split("/") if part)
    return _ways_meet(_parts(glob), plain)


@lru_cache(maxsize=4096)
def _parts(glob: str) -> tuple[Part | str, ...]:
    parts: list[Part | str] = [DEEP if part == DEEP else _characters(part) for part in glob.split("/")]
    return (*parts, DEEP)  # and everything below it


def _characters(part: str) -> Part:
    found: list[Some | str] = []
    place = 0
    while place < len(part):
        char = part[place]
        end = part.find("]", place + 2 + (part[place + 1 : place + 2] == "!")) if char == "[" else -1
        if char == "*":
            if not found or found[-1] != STAR:
                found.append(STAR)
        elif char == "?":
            found.append(ANY_ONE)
        elif end > 0:
            found.append(_one_of(part[place + 1 : end]))
            place = end
        else:
            found.append(Some(frozenset(char), negated=False))
        place += 1
    return tuple(found)


def _one_of(inside: str) -> Some:
    negated = inside.startswith("!")
    inside = inside[negated:]
    chars: set[str] = set()
    place = 0
    while place < len(inside):
        if place + 2 < len(inside) and inside[place + 1] == "-":
            low, high = ord(inside[place]), ord(inside[place + 2])
            chars.update(map(chr, range(low, min(high, low + 0x10000) + 1)))
            place += 3
        else:
            chars.add(inside[place])
            place += 1
    return Some(frozenset(chars), negated)


def _ways_meet(first: tuple[Part | str, ...], second: tuple[Part | str, ...]) -> bool:
    """Whether one path fits both rows of parts."""
    return _meet(first, second, DEEP, lambda a, b: _meet(a, b, STAR, Some.meets))


def _meet(first: tuple[Any, ...], second: tuple[Any, ...], many: str, meets: Callable[[Any, Any], bool]) -> bool:
    """Whether one row of things fits both patterns, in which `many` stands for any number of things.

    Walks over pairs of places that can be reached together, so the time is the product of the lengths at most.
    """
    todo, seen = [(0, 0)], {(0, 0)}
    while todo:
        a, b = todo.pop()
        if a == len(first) and b == len(second):
            return True
        left = first[a] if a < len(first) else None
        right = second[b] if b < len(second) else None
        steps: list[tuple[int, int]] = []
        if left == many:
            steps += [(a + 1, b), (a, b + 1)] if right is not None else [(a + 1, b)]
        elif right == many:
            steps += [(a, b + 1), (a + 1, b)] if left is not None else [(a, b + 1)]
        elif left is not None and right is not None and meets(left, right):
            steps.append((a + 1, b + 1))
        for step in steps:
            if step not in seen:
                seen.add(step)
                todo.append(step)
    return False
