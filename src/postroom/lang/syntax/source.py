"""A source text and places in it. A place is two offsets; lines and columns are worked out on demand."""

from __future__ import annotations

import re
from bisect import bisect_right
from dataclasses import dataclass
from functools import cached_property


def shortened(text: str, limit: int) -> str:
    """A text that may be long, as an error shows it."""
    return text if len(text) <= limit else text[: limit - 3] + "..."


@dataclass(eq=False, repr=False)
class Source:
    """The text of one `.pw` file and its name, as its author knows it."""

    text: str
    file: str

    @cached_property
    def line_starts(self) -> list[int]:
        """The offset at which each line begins; the first line begins at 0."""
        return [0, *(found.end() for found in re.finditer("\n", self.text))]

    def line_of(self, offset: int) -> int:
        """The line of an offset, counted from 1."""
        return bisect_right(self.line_starts, offset)

    def column_of(self, offset: int) -> int:
        """The column of an offset in characters, counted from 1."""
        return offset - self.line_starts[self.line_of(offset) - 1] + 1

    def line_text(self, line: int) -> str:
        """The text of a line (counted from 1), without its end."""
        starts = self.line_starts
        end = starts[line] - 1 if line < len(starts) else len(self.text)
        return self.text[starts[line - 1] : end].removesuffix("\r")


@dataclass(slots=True, eq=False, repr=False)
class Span:
    """A place in a source: from `start` up to, not including, `end`. Lines and columns count from 1."""

    source: Source
    start: int
    end: int

    def __repr__(self) -> str:
        return f"{self.file}:{self.line}:{self.column}"

    @property
    def file(self) -> str:
        return self.source.file

    @property
    def line(self) -> int:
        return self.source.line_of(self.start)

    @property
    def column(self) -> int:
        return self.source.column_of(self.start)

    @property
    def end_line(self) -> int:
        return self.source.line_of(self.end)

    @property
    def end_column(self) -> int:
        return self.source.column_of(self.end)

    @property
    def text(self) -> str:
        """The source as written."""
        return self.source.text[self.start : self.end]
