"""The indentation of prompts: what all lines share is not part of the text."""

from __future__ import annotations

import os.path

from . import nodes as n

_Parts = list[n.TextPart | n.Interpolation | n.DoBlock]


def dedented(parts: _Parts) -> _Parts:
    """The parts of a prompt without the indentation that all its lines share, and without blank lines around it.

    Only what the program says counts: the lines of a value are never touched, and never taken as a measure.
    Guarded by tests/lang/test_prompts_parse.py.
    """
    for part in parts:
        if isinstance(part, n.TextPart):
            part.text = part.text.replace("\r\n", "\n")
    texts = [(part.text, place + 1 < len(parts)) for place, part in enumerate(parts) if isinstance(part, n.TextPart)]
    margin = margin_of(texts)
    for place, part in enumerate(parts):
        if isinstance(part, n.TextPart):
            part.text = _without_margin(part.text, margin, followed=place + 1 < len(parts))
            if place == 0:
                part.text = _without_blank_start(part.text)
            if place == len(parts) - 1:
                part.text = part.text.rstrip()
    return [part for part in parts if not (isinstance(part, n.TextPart) and not part.text)]


def _without_margin(text: str, margin: str, *, followed: bool) -> str:
    """Every line but the first without the margin; a line of spaces alone is empty, unless a value ends it."""
    first, *lines = text.split("\n")
    for number, line in enumerate(lines):
        blank = not line.strip() and not (followed and number == len(lines) - 1)
        lines[number] = "" if blank else line.removeprefix(margin)
    return "\n".join([first, *lines])


def _without_blank_start(text: str) -> str:
    """Without the lines before the first one that says something; text right after the brace loses its spaces."""
    if not text.strip():
        return ""
    first, newline, rest = text.partition("\n")
    while not first.strip():
        first, newline, rest = rest.partition("\n")
        if first.strip():
            return first + newline + rest
    return first.lstrip(" \t") + newline + rest


def margin_of(texts: list[tuple[str, bool]]) -> str:
    """The whitespace that every line but the first begins with. Each text comes with whether something follows it in
    its line; lines with nothing on them do not count.
    """
    margins: list[str] = []
    for text, followed in texts:
        lines = text.split("\n")
        for number, line in enumerate(lines[1:], 1):
            if line.strip() or (followed and number == len(lines) - 1):
                margins.append(line[: len(line) - len(line.lstrip(" \t"))])
    return os.path.commonprefix(margins)  # noqa: RUF071  characters are meant, not parts of paths
