"""The lexer: from text to tokens. Four modes on a stack, nested to any depth: code, prompt, command and string.

A token is a kind, two offsets and a value, kept in four lists of equal length. Keywords and operators are their own
kind. The lexer decides where a mode begins; the parser decides about its content.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Final
from unicodedata import normalize

from .nodes import Comment
from .problems import Problem
from .source import Source, Span

KEYWORDS: Final = frozenset([
    "think", "ask", "import", "export", "var", "if", "else", "for", "while", "await", "worker", "trait",
    "skill", "fun", "default", "type", "return", "succeed", "throw", "break", "continue", "try", "catch",
    "self", "in", "true", "false", "null", "_",
])  # fmt: skip

#: Kinds of tokens that open something, and those that close it: for skipping over what cannot be read.
OPENERS: Final = frozenset(["(", "[", "{", "${", "$@{", "$(", "$(e", "($", "prompt{", "do{", '"'])
CLOSERS: Final = frozenset([")", "]", "}", 'end"'])

_ESCAPES: Final = {"n": "\n", "t": "\t", "r": "\r", "\\": "\\", '"': '"', "'": "'", "$": "$", "0": "\0"}

_CODE: Final = re.compile(
    r"""(?P<space>[ \t\f\r]+(?!\n)|[ \t\f]+)
      | (?P<word>[^\W\d]\w*)
      | (?P<newline>\r?\n)
      | (?P<shellparen>\(\s*\$(?=[ \t]))
      | (?P<op>\.\.\.|->|==|!=|<=|>=|&&|\|\||\+\+|--|\?\.|>>|[<>+\-*/%!?=|&.()\[\]{};,:@])
      | (?P<number>[0-9]+(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?)
      | (?P<string>")
      | (?P<single>')
      | (?P<comment>\#[^\n]*)
      | (?P<capture>\$\()
      | (?P<status>\$\?)
      | (?P<shell>\$(?=[ \t\r\n]|\Z)[ \t]*)""",
    re.VERBOSE,
)
#: Tokens that open another mode in code: the token, the mode, and the end of that.
_OPENED_BY: Final = {
    "string": ('"', "string", '"'),
    "capture": ("$(", "shell", ")"),
    "shellparen": ("($", "shell", ")"),
    "shell": ("$", "shell", ""),
}
#: The brackets that are counted inside a value, by what closes it.
_BRACKETS: Final = {")": "()", "}": "{}"}
_STRING: Final = re.compile(
    r"""\\(?P<escape>.?)|\$(?P<name>[^\W\d]\w*)|(?P<open>\$@?\{|\$\()|(?P<status>\$\?)|(?P<end>")""", re.DOTALL
)
_SINGLE: Final = re.compile(r"(?:[^'\\]|\\.)*", re.DOTALL)
_ESCAPE: Final = re.compile(r"\\(.)", re.DOTALL)
_PROMPT: Final = re.compile(
    r"(?P<brace>[{}])|\$'(?P<escape>.)'|\$(?P<name>[^\W\d]\w*)|(?P<open>\$@?\{|\$\()|(?<![\w$])(?P<do>do\s*\{)",
    re.DOTALL,
)
_PROMPT_OPENS: Final = re.compile(r"\s*\{")
_SHELL: Final = re.compile(
    r"""(?P<space>[^\S\r\n]+|\\\r?\n|\r(?!\n))
      | (?P<word>[^\s$"'()<>|&;\\{}]+)
      | (?P<brace>[{}])
      | (?P<newline>\r?\n)
      | (?P<redirect>(?:>>|>&(?:[0-9]+)?|>\||>|<<<|<<|<&|<)|&>>|&>)
      | (?P<op>&&|\|\||\|&|\||&|;|\(|\))
      | (?P<string>")
      | '(?P<single>[^']*)'
      | (?P<quote>')
      | \\(?P<escape>.)
      | \$(?P<name>[^\W\d]\w*)
      | (?P<open>\$@?\{|\$\()
      | (?P<status>\$\?)
      | (?P<dollar>\$|\\)""",
    re.VERBOSE | re.DOTALL,
)
_NUMBERED: Final = re.compile(r"[0-9]+(?=[<>])")
#: After one of these a command goes on in the next line.
_SHELL_GOES_ON: Final = frozenset(["|", "&&", "||"])
#: No more faults of one file are told.
MAX_PROBLEMS: Final = 20


@dataclass(slots=True)
class _Mode:
    """One open mode: where it was opened, what closes it, how many of its own brackets are open inside."""

    mode: str
    closer: str
    start: int
    depth: int = 0


@dataclass(slots=True)
class Tokens:
    """The tokens of a source, its comments, and what could not be read. The last token is always "eof"."""

    source: Source
    kinds: list[str] = field(default_factory=list)
    starts: list[int] = field(default_factory=list)
    ends: list[int] = field(default_factory=list)
    values: list[str] = field(default_factory=list)
    comments: list[Comment] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)
    cut_off: int | None = None  # where something begins that is never closed: nothing after it can be judged


class Lexer:
    """Reads one source. Use `tokens_of`."""

    def __init__(self, source: Source) -> None:
        self.out = Tokens(source)
        self.text = source.text
        self.at = 1 if source.text.startswith("\ufeff") else 0
        self.stack = [_Mode("code", "", 0)]

    def run(self) -> Tokens:
        end = len(self.text)
        steps = {"code": self._code, "string": self._text, "prompt": self._text, "shell": self._shell}
        while self.at < end and len(self.out.problems) < MAX_PROBLEMS:
            frame = self.stack[-1]
            steps[frame.mode](frame)
        if self.at >= end:
            self._close_what_is_open()
        else:
            self.out.cut_off = self.at
        self._emit("eof", end, end)
        return self.out

    # ---------------------------------------------------------------- shared

    def _emit(self, kind: str, start: int, end: int, value: str = "") -> None:
        out = self.out
        out.kinds.append(kind)
        out.starts.append(start)
        out.ends.append(end)
        out.values.append(value)

    def _problem(self, start: int, end: int, code: str, message: str, hint: str = "") -> None:
        self.out.problems.append(Problem(Span(self.out.source, start, end), code, message, hint))

    def _push(self, mode: str, closer: str, start: int) -> None:
        self.stack.append(_Mode(mode, closer, start))

    def _close_what_is_open(self) -> None:
        """At the end of the text: a command may end here, anything else that is still open never ends."""
        while self.stack[-1].mode == "shell" and self.stack[-1].closer == "":
            self.stack.pop()
        open_frames = [frame for frame in self.stack if frame.closer]
        if not open_frames:
            return
        frame = open_frames[-1]
        what = {"string": "string", "prompt": "prompt", "shell": "command"}.get(frame.mode, "value")
        width = 1 if frame.mode in {"string", "prompt"} else 2
        message = f"this {what} is never closed: expected {frame.closer}"
        self._problem(frame.start, frame.start + width, "unclosed", message)
        self.out.cut_off = frame.start

    def _word_end(self, end: int) -> int:
        """Where a name really ends: a pattern's word leaves out marks that many scripts write inside one."""
        text = self.text
        while end < len(text) and ("a" + text[end]).isidentifier():
            end += 1
        return end

    def _value(self, start: int, end: int, opened: str | None, command: bool) -> None:
        """`$name` or what opens a value: `${`, `$@{`, `$(`."""
        if opened is None:
            end = self._word_end(end)
            self._emit("$name", start, end, normalize("NFC", self.text[start + 1 : end]))
        elif opened == "$(":
            self._emit("$(" if command else "$(e", start, end)
            self._push("shell" if command else "code", ")", start)
        else:
            self._emit(opened, start, end)
            self._push("code", "}", start)
        self.at = end

    # ---------------------------------------------------------------- code

    def _code(self, frame: _Mode) -> None:
        match, text, emit = _CODE.match, self.text, self._emit
        while found := match(text, self.at):
            kind, start, end = found.lastgroup, self.at, found.end()
            self.at = end
            if kind == "space":
                continue
            if kind == "word":
                if self._word(start, end):
                    return
            elif kind == "op":
                op = found.group()
                emit(op, start, end)
                if frame.closer and op in _BRACKETS[frame.closer] and self._closes(frame, opens=op != frame.closer):
                    self.stack.pop()
                    return
            elif kind in {"newline", "number"}:
                emit(str(kind), start, end, text[start:end])
            elif self._code_opens(str(kind), start, end):
                return
        if self.at < len(text):
            self._unreadable()

    def _closes(self, frame: _Mode, *, opens: bool) -> bool:
        """Counts the brackets inside a mode; true when this one closes it."""
        if not opens and not frame.depth:
            return True
        frame.depth += 1 if opens else -1
        return False

    def _word(self, start: int, end: int) -> bool:
        """A name or a keyword; true when a prompt begins after it."""
        text = self.text
        if end < len(text) and text[end] > "\x7f":
            end = self.at = self._word_end(end)
        word = text[start:end]
        if word not in KEYWORDS:
            self._emit("name", start, end, word if word.isascii() else normalize("NFC", word))
            return False
        kinds = self.out.kinds
        self._emit(word, start, end, word)
        if word in {"think", "ask"} and (len(kinds) == 1 or kinds[-2] not in {".", "?."}):
            opens = _PROMPT_OPENS.match(text, end)
            if opens:
                self.at = opens.end()
                self._emit("prompt{", self.at - 1, self.at)
                self._push("prompt", "}", self.at - 1)
                return True
        return False

    def _code_opens(self, kind: str, start: int, end: int) -> bool:
        """Comments, and what opens another mode; true when one was opened."""
        if kind == "comment":
            self._comment(start, end)
        elif kind == "single":
            self._single(start)
        elif kind == "status":
            self._emit("$?", start, end)
        else:
            token, mode, closer = _OPENED_BY[kind]
            self._emit(token, start, start + 1 if kind == "shell" else end)
            self._push(mode, closer, start)
            return True
        return False

    def _comment(self, start: int, end: int) -> None:
        text = self.text
        line = text.rfind("\n", 0, start) + 1
        own_line = not text[line:start].strip(" \t\f\r\ufeff")
        written = text[start:end].rstrip()
        self.out.comments.append(Comment(Span(self.out.source, start, start + len(written)), written, own_line))

    def _single(self, start: int) -> None:
        """`'text'` in code: escapes count, nothing is interpolated."""
        found = _SINGLE.match(self.text, start + 1)
        end = found.end() if found else start + 1
        if self.text[end : end + 1] != "'":
            self._never_closed(start, "this string is never closed: expected '")
            return
        cooked = _ESCAPE.sub(lambda m: _ESCAPES.get(m[1], m[0]), self.text[start + 1 : end])
        self.at = end + 1
        self._emit("single", start, end + 1, cooked)

    def _never_closed(self, start: int, message: str, hint: str = "") -> None:
        """A quote without its other half: nothing after it can be judged."""
        self._problem(start, start + 1, "unclosed", message, hint)
        self.out.cut_off = start
        self.at = len(self.text)

    def _unreadable(self) -> None:
        """A character that means nothing in code."""
        char = self.text[self.at]
        if char == "$":
            hint = "a variable is written without $ in code; a command is `$ cmd`, its output `$(cmd)`"
            self._problem(self.at, self.at + 1, "dollar", "$ means nothing here", hint)
        else:
            shown = char if char.isprintable() else f"U+{ord(char):04X}"
            self._problem(self.at, self.at + 1, "character", f"the character {shown} means nothing in code")
        self.at += 1

    # ---------------------------------------------------------------- strings and prompts

    def _text(self, frame: _Mode) -> None:
        """Text up to the next value, step, or the end of the string or prompt. Balanced braces of prompts are text."""
        text, start, at = self.text, self.at, self.at
        prompt = frame.mode == "prompt"
        search = (_PROMPT if prompt else _STRING).search
        cooked: list[str] = []
        while found := search(text, at):
            kind, stop = str(found.lastgroup), found.start()
            cooked.append(text[at:stop])
            at = found.end()
            if kind == "escape":
                cooked.append(found[kind] if prompt else _ESCAPES.get(found[kind], found[0]))
            elif (kind == "brace" and not self._closes(frame, opens=found[0] == "{")) or (
                kind == "status" and self.stack[-2].mode != "shell"
            ):
                cooked.append(found[0])
            else:
                if stop > start:
                    self._emit("text", start, stop, "".join(cooked))
                self._text_stops(kind, stop, found)
                return
        self.at = len(text)

    def _text_stops(self, kind: str, stop: int, found: re.Match[str]) -> None:
        end = self.at = found.end()
        if kind in {"end", "brace"}:
            self._emit('end"' if kind == "end" else "}", stop, end)
            self.stack.pop()
        elif kind == "status":
            self._emit("$?", stop, end)
        elif kind == "do":
            self._emit("do{", stop, end)
            self._push("code", "}", stop)
        else:
            self._value(stop, end, found["open"], command=self.stack[-1].mode == "prompt")

    # ---------------------------------------------------------------- commands

    def _shell(self, frame: _Mode) -> None:
        match, text = _SHELL.match, self.text
        while found := match(text, self.at):
            kind, start = str(found.lastgroup), self.at
            self.at = found.end()
            if kind == "word":
                self._shell_word(start, self.at)
            elif kind in {"single", "escape"}:
                self._emit("lit", start, self.at, found[kind])
            elif kind != "space" and self._shell_token(frame, kind, start, found):
                return

    def _shell_token(self, frame: _Mode, kind: str, start: int, found: re.Match[str]) -> bool:
        """Anything but words; true when the command is over or another mode was opened."""
        end, said = found.end(), found[0]
        if kind == "brace":
            return self._shell_brace(frame, start)
        if kind in {"newline", "op"}:
            return self._shell_ends(frame, said if kind == "op" else kind, start, end)
        if kind in {"name", "open"}:
            self._value(start, end, found["open"], command=True)
        elif kind == "string":
            self._emit('"', start, end)
            self._push("string", '"', start)
        elif kind == "quote":
            hint = "an apostrophe in a command is written \\' or \"'\""
            self._never_closed(start, "this quote is never closed: expected '", hint)
        elif kind == "status":
            self._emit("$?", start, end)
        else:
            self._emit("word" if kind == "dollar" else kind, start, end, said)
        return kind in {"open", "string", "quote"}

    def _shell_word(self, start: int, end: int) -> None:
        """Literal characters; a number right before `<` or `>` is the descriptor that is redirected."""
        ends = self.out.ends
        glued = bool(ends) and ends[-1] == start and self.out.kinds[-1] not in {"|", "&&", "||", "$(", "($", "$"}
        numbered = _NUMBERED.match(self.text, start)
        if numbered and numbered.end() == end and not glued:
            found = _SHELL.match(self.text, end)
            if found and found.lastgroup == "redirect":
                self.at = found.end()
                self._emit("redirect", start, self.at, self.text[start : self.at])
                return
        self._emit("word", start, end, self.text[start:end])

    def _shell_brace(self, frame: _Mode, start: int) -> bool:
        """Balanced braces are characters; a `}` that closes nothing ends a `$` statement, as it ends its block."""
        if self._closes(frame, opens=self.text[start] == "{") and frame.closer == "":
            self.at = start
            self.stack.pop()
            return True
        self._emit("word", start, start + 1, self.text[start])
        return False

    def _shell_ends(self, frame: _Mode, kind: str, start: int, end: int) -> bool:
        """Operators and line ends; true when the command is over."""
        if kind == "newline" and self.out.kinds[-1] in _SHELL_GOES_ON:
            return False
        if frame.closer == "" and kind in {"newline", ";", ")"}:
            self.at = start
            self.stack.pop()
            return True
        self._emit(kind, start, end)
        if kind == ")":
            self.stack.pop()
            return True
        return False


def tokens_of(source: Source) -> Tokens:
    """The tokens of a source. Never raises: what cannot be read is among `problems`, with its place."""
    return Lexer(source).run()
