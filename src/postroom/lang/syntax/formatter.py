"""The formatter: indentation, spaces between tokens, at most one blank line. Comments stay where they are.

Works on tokens, and touches only those that it understands: strings, the words of commands and the text of prompts
stay as they are, but for the indentation that prompts do not have anyway. Formatting is idempotent.
"""

from __future__ import annotations

from typing import Final

from . import nodes as n
from .expressions import BINDING
from .lexer import CLOSERS, KEYWORDS, OPENERS, Tokens, tokens_of
from .parser import deep_recursion, parse
from .source import Source
from .text import margin_of

INDENT: Final = "    "

_VALUE_ENDS: Final = frozenset(
    ["name", "number", "single", 'end"', ")", "]", "}", "self", "true", "false", "null", "$?", "++", "--", "_"]
)
_NO_SPACE_BEFORE: Final = frozenset([")", "]", ",", ";", ".", "?.", ":", "++", "--", "...", "?"])
_NO_SPACE_AFTER: Final = frozenset(["(", "[", ".", "?.", "@", "...", "!"])
_NEEDS_NO_SEMICOLON: Final = frozenset(["newline", "}", "eof", "comment", ";"])
#: After one of these the statement goes on in the next line.
_GOES_ON: Final = frozenset([*BINDING, "=", "->", ">>"])


def formatted(text: str, file: str) -> str:
    """The text in its one form, with the same meaning. Raises `SyntaxProblems` when it is not Patchwork."""
    before = parse(text, file)
    with deep_recursion():
        made = _Formatter(tokens_of(Source(text, file))).run()
    return made if n.same(before, parse(made, file)) else text


class _Formatter:
    """Writes the tokens of one source anew."""

    def __init__(self, tokens: Tokens) -> None:
        merged = [
            *zip(tokens.starts, tokens.ends, tokens.kinds, strict=True),
            *((c.span.start, c.span.end, "comment") for c in tokens.comments),
        ]
        merged.sort(key=lambda item: item[:2] if item[2] != "eof" else (item[0], item[1] + 1))
        self.text = tokens.source.text
        self.starts = [start for start, _, _ in merged]
        self.ends = [end for _, end, _ in merged]
        self.kinds = [kind for _, _, kind in merged]
        self.lines: list[str] = []
        self.line = ""
        self.open: list[int] = []  # for each open bracket, the line in which it was opened
        self.blank_wanted = False
        self.previous = "newline"  # the kind of what stands before, as it matters for spaces
        self.last = ""  # the kind of the token before, whatever line it is in
        self.unary = False  # whether the token before is a sign or !
        self.goes_on = False  # whether this line goes on with the statement of the line before
        self.importing = False

    def run(self) -> str:
        self._code(0, len(self.kinds) - 1)
        self._end_line()
        while self.lines and not self.lines[-1]:
            self.lines.pop()
        return "\n".join(self.lines) + "\n" if self.lines else ""

    # ---------------------------------------------------------------- lines

    def _level(self) -> int:
        return len(set(self.open))

    def _end_line(self) -> None:
        if self.line.strip():
            self.lines.append(self.line.rstrip())
        self.line = ""
        self.previous = "newline"
        self.importing = False

    def _put(self, text: str, *, space: bool) -> None:
        """Adds to the line; at its beginning, the indentation and the blank line that was asked for."""
        if self.line:
            self.line += (" " if space else "") + text
            return
        if self.blank_wanted and self.lines:
            above = self.lines[-1]
            if not above.endswith(("{", "(", "[")) or above.lstrip().startswith("#"):
                self.lines.append("")
        self.blank_wanted = False
        self.line = INDENT * (self._level() + self.goes_on) + text

    # ---------------------------------------------------------------- code

    def _code(self, i: int, end: int) -> None:
        """Writes code from one place up to, not including, another."""
        while i < end:
            kind = self.kinds[i]
            i = self._newline(i) if kind == "newline" else self._token(i, kind)

    def _newline(self, i: int) -> int:
        """The end of one or more lines. `else` and `catch` come back to their block's `}`."""
        count = 0
        while self.kinds[i] == "newline":
            count += 1
            i += 1
        if self.kinds[i] in {"else", "catch"} and self.previous == "}":
            return i
        self._end_line()
        self.goes_on = self.last in _GOES_ON or self.kinds[i] in {".", "?."}
        self.blank_wanted = self.blank_wanted or count > 1
        return i

    def _token(self, i: int, kind: str) -> int:
        if kind == "comment":  # after code it stands two spaces away from it
            self.line = self.line.rstrip() + " " if self.line.strip() else self.line
            self._put(self._raw(i), space=True)
            self.previous = "comment"
            return i + 1
        if kind == ";" and (self.previous in {"newline", "{"} or self.kinds[i + 1] in _NEEDS_NO_SEMICOLON):
            return i + 1
        if kind in {'"', "single"}:
            end = self._end_of(i)
            self._put(self._source(i, end), space=self._spaced(kind, i))
            self._after('end"')
            return end + 1
        if kind in {"$(", "($", "$"}:
            return self._shell(i, kind)
        if kind == "prompt{":
            return self._prompt(i)
        if kind in {"(", "[", "{"}:
            self._put(kind, space=self._spaced(kind, i))
            self.open.append(len(self.lines))
        elif kind in CLOSERS:
            self._close(kind)
            return i + 1
        else:
            gives = kind == ":" and self.previous == ")"  # the type of what a function gives
            self._put("->" if gives else self._source(i, i), space=self._spaced(kind, i))
            begins = kind == "import" and not self.open  # inside of something it is the name of a field
            self.importing = (self.importing or begins) and kind != ";"
        self._after(kind)
        return i + 1

    def _after(self, kind: str) -> None:
        self.unary = kind == "!" or (kind == "-" and self.previous not in _VALUE_ENDS)
        member = self.previous in {".", "?."}
        self.previous = self.last = "name" if member and kind in KEYWORDS else kind
        self.goes_on = False

    def _close(self, kind: str) -> None:
        if self.open:
            self.open.pop()
        self.goes_on = self.blank_wanted = False
        space = kind == "}" and self.previous not in {"{", "newline"} and not self.importing
        self._put(kind, space=space)
        self._after(kind)

    def _spaced(self, kind: str, i: int) -> bool:
        """Whether a space stands before a token that is not the first of its line."""
        before = self.previous
        if self.importing:
            return before in {"import", ","}
        if kind in {"?.", "."}:
            return False
        if before == "-" and kind == "-":
            return True  # -- counts down
        if kind == ":" and before == ")":
            return True
        if before in _NO_SPACE_AFTER or kind in _NO_SPACE_BEFORE or self.unary:
            return False
        if kind in {"(", "["}:
            return before not in _VALUE_ENDS or before == "_"
        if kind == "($":
            return self.starts[i] != self.ends[i - 1]
        return not (kind == "}" and before == "{")

    def _source(self, i: int, end: int) -> str:
        """The tokens from one place to another, as they are written."""
        return self.text[self.starts[i] : self.ends[end]]

    def _end_of(self, i: int) -> int:
        """The place of what closes the token at a place; the place itself when it opens nothing."""
        if self.kinds[i] not in OPENERS:
            return i
        depth = 0
        while True:
            if self.kinds[i] in OPENERS:
                depth += 1
            elif self.kinds[i] in CLOSERS:
                depth -= 1
                if depth == 0:
                    return i
            i += 1

    # ---------------------------------------------------------------- commands

    def _shell(self, i: int, kind: str) -> int:
        """A command: its words as they are, one space between them; a line that was broken stays broken."""
        statement = kind == "$"
        self._put("$ " if statement else self._source(i, i), space=self._spaced(kind, i))
        if kind == "($":
            self.line = self.line[: -(self.ends[i] - self.starts[i])] + "($ "
        first, i = True, i + 1
        while True:
            kind = self.kinds[i]
            if kind in {"eof", ")"} or (statement and kind in {"newline", ";", "}"}):
                break
            if kind == "newline":
                i += 1
                continue
            end = self._end_of(i)
            self._shell_gap(i, first)
            self.line += self._source(i, end)
            first, i = False, end + 1
        if not statement:
            self.line += ")"
            i += 1
        self._after("name" if statement else ")")
        return i

    def _shell_gap(self, i: int, first: bool) -> None:
        gap = self.text[self.ends[i - 1] : self.starts[i]]
        if first:
            return
        if "\n" in gap:
            self.line = self.line.rstrip() + (" \\" if "\\" in gap else "")
            self.lines.append(self.line)
            self.line = INDENT * (self._level() + 1)
        elif gap:
            self.line += " "

    # ---------------------------------------------------------------- prompts

    def _prompt(self, i: int) -> int:
        """A prompt: its text keeps its shape and moves, as a whole, to where the program has it."""
        end = self._end_of(i)
        parts = self._parts(i, end)
        margin = margin_of([(self._raw(k), k + 1 < end) for k in parts if self.kinds[k] == "text"])
        self._put("{", space=True)
        self._open_brace()
        for k in parts:
            if self.kinds[k] == "text":
                self._prompt_text(k, margin, first=k == i + 1, last=k == end - 1)
                continue
            self.line = self.line or INDENT * self._level()
            if self.kinds[k] == "do{":
                self.line += "do {"
                self._open_brace()
                self._code(k + 1, self._end_of(k))
                self._close("}")
            else:
                self.line += self._source(k, self._end_of(k))
        self._close_prompt(i, end)
        return end + 1

    def _open_brace(self) -> None:
        self.open.append(len(self.lines))
        self.previous = "{"

    def _parts(self, i: int, end: int) -> list[int]:
        """The places of a prompt's own parts."""
        found, k = [], i + 1
        while k < end:
            found.append(k)
            k = self._end_of(k) + 1
        return found

    def _raw(self, k: int) -> str:
        return self._source(k, k).replace("\r\n", "\n")

    def _prompt_text(self, k: int, margin: str, *, first: bool, last: bool) -> None:
        lines = self._raw(k).split("\n")
        if first:
            while len(lines) > 2 and not lines[0].strip() and not lines[1].strip():
                del lines[1]
            head = lines[0].lstrip(" \t")
            self.line += (" " + head) if head else ""
            if len(lines) == 1 and last:
                self.line = self.line.rstrip()
        else:
            self.line = self.line or (INDENT * self._level() if lines[0] else "")
            self.line += lines[0]
        if last:
            while len(lines) > 2 and not lines[-1].strip() and not lines[-2].strip():
                del lines[-1]
        for place, line in enumerate(lines[1:], 1):
            self.lines.append(self.line if self.line.strip() else "")  # a prompt's spaces are its own
            rest = line.removeprefix(margin) if line.startswith(margin) else line.lstrip(" \t")
            final = place == len(lines) - 1
            self.line = INDENT * self._level() + rest if rest.strip() or (final and not last) else ""

    def _close_prompt(self, i: int, end: int) -> None:
        if self.open:
            self.open.pop()
        last = self._raw(end - 1) if self.kinds[end - 1] == "text" else ""
        self.line = self.line.rstrip()
        if "\n" in last and not last.rpartition("\n")[2].strip() and not self.line:
            self.line = INDENT * self._level() + "}"
        else:
            self.line += " }" if end > i + 1 and last else "}"
        self._after("}")
