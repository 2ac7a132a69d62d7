"""Diagnostics, called problems: what is wrong with a program, and where. One problem per fault, each with its line, a
caret and what was expected.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any, Final
from unicodedata import combining, east_asian_width

from postroom.errors import PostroomError

from .source import Span

ERROR: Final = "error"
WARNING: Final = "warning"

_WIDTH: Final = 160  # a longer line is cut around the caret


@dataclass(slots=True, eq=False, repr=False)
class Problem:
    """A fault of a program. `code` is its kind; `severity` is "error" or "warning"; `hint` is a way out."""

    span: Span
    code: str
    message: str
    hint: str = ""
    severity: str = ERROR

    def __repr__(self) -> str:
        return f"<{self.headline()}>"

    def headline(self) -> str:
        """One line: file, line, column, what is wrong."""
        return f"{self.span.file}:{self.span.line}:{self.span.column}: {self.severity}: {self.message}"

    def text(self) -> str:
        """The headline, the line with carets under the place, and the hint."""
        shown, carets = _line_and_carets(self.span)
        lines = [self.headline(), f"  {shown}", f"  {carets}"]
        return "\n".join([*lines, f"  {self.hint}"] if self.hint else lines)

    def plain(self) -> dict[str, Any]:
        """The same as data, for `--json`."""
        place = {name: getattr(self.span, name) for name in ("file", "line", "column", "end_line", "end_column")}
        return place | {name: getattr(self, name) for name in ("severity", "code", "message", "hint")}


class ProgramProblems(PostroomError):
    """A program cannot be run. `problems` holds every fault that was found; the sentence shows them all."""

    def __init__(self, problems: Iterable[Problem]) -> None:
        self.problems = sorted(problems, key=lambda problem: (problem.span.file, problem.span.start))
        super().__init__("\n\n".join(problem.text() for problem in self.problems))


class SyntaxProblems(ProgramProblems):
    """A text that is not Patchwork."""


def near(name: str, known: Iterable[str]) -> str:
    """A sentence that names the known names near a mistyped one; "" when none is near."""
    found = get_close_matches(name, sorted(set(known) - {name}), n=2, cutoff=0.6)
    return f"did you mean {' or '.join(found)}?" if found else ""


def _line_and_carets(span: Span) -> tuple[str, str]:
    """The first line of a place, with carets under what belongs to it; control characters are shown as spaces."""
    line = span.source.line_text(span.line)
    first = span.column - 1
    last = span.end_column - 1 if span.end_line == span.line else len(line)
    cut = max(0, first - _WIDTH // 2) if len(line) > _WIDTH else 0
    shown = line[cut : cut + _WIDTH]
    carets = "^" * max(1, min(last, cut + _WIDTH) - first)
    return "".join(c if c.isprintable() else " " for c in shown), " " * _columns(line[cut:first]) + carets


def _columns(text: str) -> int:
    """How many columns a text takes on a terminal: wide characters two, combining ones none."""
    if text.isascii():
        return len(text)
    return sum(0 if combining(c) else 2 if east_asian_width(c) in "WF" else 1 for c in text)
