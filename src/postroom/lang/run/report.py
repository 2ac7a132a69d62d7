"""The traceback of a program, told to people: what went wrong, the line with a caret, and the callers."""

from __future__ import annotations

import linecache
import re
from typing import Any, Final

from postroom.errors import PostroomError, SessionFailed
from postroom.lang.syntax.problems import ProgramProblems
from postroom.lang.values.raised import ProgramError, SourcePlace, places_of, shown_path

_FRAME: Final = re.compile(r'^  File "(.*\.pw)", line (\d+), in (.*)$', re.M)


def told(error: PostroomError) -> str:
    """The error on as many lines as it needs."""
    if isinstance(error, ProgramProblems):
        return str(error)
    places = places_of(error.__traceback__)
    if isinstance(error, ProgramError) and error.place is not None:
        place = error.place
        head = f"{shown_path(place.file)}:{place.line}:{place.column}: {error.message}"
        return "\n".join([head, *_line(place), *_callers(places[:-1])])
    lines = [f"postroom: {error}"]
    failure = error.failure if isinstance(error, SessionFailed) else None
    if failure is not None and failure.stack:
        theirs = [SourcePlace(file, int(line), 0, name) for file, line, name in _FRAME.findall(failure.stack)]
        if theirs:
            lines += [f"  in worker {failure.worker}, at {theirs[-1]}", *_line(theirs[-1]), *_callers(theirs[:-1])]
    return "\n".join([*lines, *_callers(places)])


def _line(place: SourcePlace) -> list[str]:
    text = linecache.getline(place.file, place.line).rstrip("\r\n")
    if not text.strip():
        return []
    shown = f"      {text.strip()}"
    before = text[: place.column - 1].lstrip() if place.column else ""
    return [shown, f"      {' ' * len(before)}^"] if place.column else [shown]


def _callers(places: list[SourcePlace]) -> list[str]:
    return [f"  called from {place.function}, {place}" for place in reversed(places)]


def document_of(error: PostroomError) -> dict[str, Any]:
    """The error as data, for programs."""
    said: dict[str, Any] = {"type": getattr(error, "kind", type(error).__name__), "message": str(error)}
    if isinstance(error, ProgramProblems):
        said["problems"] = [problem.plain() for problem in error.problems]
    if isinstance(error, ProgramError):
        said["message"] = error.message
        if error.place is not None:
            said |= {"file": shown_path(error.place.file), "line": error.place.line, "column": error.place.column}
        for name in ("value", "command", "code", "stderr"):
            if hasattr(error, name):
                said[name] = getattr(error, name)
    return said
