"""How things are shown: JSON for programs, fenced text for pipes, tables for people at a terminal.

Text that others wrote is made harmless first: what would move the cursor, hide or turn the line round is written out.
A pipe may end in a model: there the text of a command that shows what others wrote stands behind the fence of
`postroom.core.untrusted`, unless --plain or --json was given (tests/doors/test_hostile_names.py).
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, Final

import msgspec

from postroom.core import untrusted
from postroom.core.clock import span_text
from postroom.core.message import Message, readable
from postroom.core.untrusted import KEPT
from postroom.core.untrusted import visible as visible  # noqa: PLC0414  commands say output.visible
from postroom.errors import PostroomError, sentence_of

if TYPE_CHECKING:
    from postroom.mail.received import Envelope

#: Stands for a name that is not plain on a line of our own.
QUOTED: Final = "(quoted in the words)"


class _Fence:
    """The fence around what one command writes; each message may have its own, all with one mark."""

    def __init__(self) -> None:
        self._mark = untrusted.new_mark()
        self.is_open = self._noted = False

    def begin(self, sender: str | None, facts: Mapping[str, str] | None = None) -> None:
        self.end()
        note, self.is_open, self._noted = not self._noted, True, True
        sys.stdout.write("\n".join(untrusted.begin(self._mark, sender, facts, note=note)) + "\n")

    def write(self, text: str) -> None:
        if not self.is_open:
            self.begin(None)
        sys.stdout.write("\n".join(untrusted.gutter(text)) + "\n")

    def end(self) -> None:
        if self.is_open:
            self.is_open = False
            sys.stdout.write(untrusted.end(self._mark) + "\n")


_fence: _Fence | None = None


@contextmanager
def fence_in_pipes(*, wanted: bool) -> Iterator[None]:
    """The output of this block is others' words, if that is wanted and standard output is no terminal."""
    global _fence  # noqa: PLW0603  one command is one process
    before, _fence = _fence, _Fence() if wanted and not sys.stdout.isatty() else None
    try:
        yield
    except BaseException:
        with suppress(OSError):
            end_words()
        raise
    else:
        end_words()
    finally:
        _fence = before


def write(text: str) -> None:
    """Write one line (or several) to standard output: behind the fence, where there is one."""
    if _fence is None:
        sys.stdout.write(text + "\n")
    else:
        _fence.write(text)


def say(text: str) -> None:
    """Write lines of our own, in which others have no word: never behind the fence."""
    end_words()
    sys.stdout.write(text + "\n")


def error_text(error: PostroomError, *, plain: bool) -> str:
    """An error as it stands on standard error: behind a fence if it quotes others and a model may read it."""
    if error.quotes_others and not plain and not sys.stderr.isatty():
        return f"the command failed; the reason, in other agents' words:\n{untrusted.wrap(sentence_of(error), None)}"
    return visible(sentence_of(error))


def note(text: str) -> None:
    """A line beside the result, on standard error."""
    print(f"postroom: {visible(text)}", file=sys.stderr)


def remark(text: str) -> None:
    """A line of our own that needs no fence, and closes none that is open."""
    if _fence is not None and _fence.is_open:
        _fence.write(text)
    else:
        sys.stdout.write(text + "\n")


def words_of(message: Envelope | Message) -> None:
    """The output that follows is the words of one message, in a fence of their own."""
    if _fence is not None:
        facts = {"type": message.type, "channel": message.channel}
        odd = {what: name for what, name in facts.items() if not untrusted.is_plain(name)}
        _fence.begin(message.from_agent, odd)


def end_words() -> None:
    """Close the fence, where one is open."""
    if _fence is not None:
        _fence.end()


def name(text: str) -> str:
    """A name on a line of our own: where others' words are fenced, only a plain one; the fence has the others."""
    return visible(text) if _fence is None or untrusted.is_plain(text) else QUOTED


def document(value: object) -> None:
    """Write one JSON document on one line, and let it go out at once."""
    try:
        text = msgspec.json.encode(value).decode()
    except UnicodeEncodeError:
        text = _document_with_odd_names(value)
    if sys.stdout.isatty() and not text.isprintable():
        # JSON leaves most of these as they are, and a terminal obeys them; inside JSON they can stand only in strings
        text = "".join(c if c.isprintable() or c in KEPT else _json_escape(c) for c in text)
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def _document_with_odd_names(value: object) -> str:
    """The same when the name of a file in it is not UTF-8: what is no text is written out, as `visible` does it."""
    import json  # few need it

    plain = json.dumps(msgspec.to_builtins(value), ensure_ascii=False, separators=(",", ":"))
    return "".join(f"\\\\u{ord(c):04x}" if "\ud800" <= c <= "\udfff" else c for c in plain)


def _json_escape(char: str) -> str:
    units = char.encode("utf-16-be")
    return "".join(f"\\u{units[i]:02x}{units[i + 1]:02x}" for i in range(0, len(units), 2))


def table(columns: Sequence[str], rows: Iterable[Sequence[object]], empty: str = "nothing", *, title: str = "") -> None:
    """Show rows under their columns: as a table at a terminal, as aligned text elsewhere."""
    cells = [["" if value is None else visible(str(value)) for value in row] for row in rows]
    if not cells:
        remark(f"{title}: {empty}" if title else empty)
    elif sys.stdout.isatty():
        from .terminal import draw_table

        draw_table(columns, cells, title)
    else:
        _plain_table(columns, cells, title)


def _plain_table(columns: Sequence[str], rows: list[list[str]], title: str) -> None:
    lines = [list(columns), *rows]
    widths = [max(len(line[i]) for line in lines) for i in range(len(columns))]
    if title:
        write(title)
    for line in lines:
        write("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip())


def payload_line(payload: dict[str, Any], keep: str = "") -> str:
    """A payload and nothing else: its text when it is nothing but text, else JSON on one line."""
    return visible(readable(payload), keep)


def payload_lines(payload: dict[str, Any]) -> list[str]:
    """A payload on as many lines as it needs, each indented, so that none can pass for a line of ours."""
    text = visible(readable(payload, indent=2), keep="\n\t")
    return ["    " + line for line in text.split("\n")]


def ago(since_ms: int, now_ms: int) -> str:
    """How long ago something was, in the largest unit that fits."""
    return f"{span_text(now_ms - since_ms)} ago"
