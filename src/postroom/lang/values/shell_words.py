"""Words of commands: how values get into them, and what `*` and `~` in the source mean."""

from __future__ import annotations

import os
import re
from glob import glob
from typing import Final

from . import values
from .kinds import shown
from .raised import WrongValue

_OPEN: Final = re.compile(r"[*?\[]")


def is_open(text: str) -> bool:
    """Whether a text of the source is a pattern of files."""
    return _OPEN.search(text) is not None


def word(*parts: object) -> str:
    """Parts glued together to one word. Values are written as text, and never looked at again."""
    glued = "".join(map(values.text, parts))
    if "\0" in glued:
        raise WrongValue("a command cannot be given text with a NUL character in it")
    try:
        glued.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        raise WrongValue("a command cannot be given text with half a surrogate pair in it") from None
    return glued


def spread(before: object, value: object, after: object) -> list[str]:
    """`$@{list}`: each item a word of its own, with what stands before and after it."""
    if not isinstance(value, list | range):
        raise WrongValue(f"$@{{...}} gives each item of a list as a word, and this is {shown(value)}")
    return [word(before, item, after) for item in value]


def matches(pattern: str, literal: str, at_home: bool) -> list[str]:
    """The files that a pattern of the source means, sorted; the literal text when there is none."""
    if at_home:
        pattern, literal = os.path.expanduser(pattern), os.path.expanduser(literal)
    return sorted(glob(pattern)) or [literal]


def home(literal: str) -> str:
    """A word of the source that begins with `~`."""
    return os.path.expanduser(literal)
