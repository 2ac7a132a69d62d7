"""The parser's cursor: a place among the tokens, the steps that every part takes, and recovery after a fault."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NoReturn, TypeVar

from . import nodes as n
from .lexer import CLOSERS, KEYWORDS, MAX_PROBLEMS, OPENERS, Tokens
from .problems import Problem
from .source import Span, shortened

#: Deeper than any program a person writes, and shallow enough for Python to compile what comes of it.
MAX_NESTING: Final = 1000

_ROUND: Final = frozenset(["(", "[", "$(", "$(e", "($"])
#: Tokens that begin a statement or declaration, or stand after the last one: a bracket does not go on there.
_BEGIN_ANEW: Final = frozenset([
    "}", "eof", "$", "var", "if", "for", "while", "return", "try", "break", "continue", "worker", "fun",
    "trait", "type", "import", "export",
])  # fmt: skip
_NAMES: Final = {
    "eof": "the end of the file",
    "newline": "the end of the line",
    '"': "a string",
    'end"': "the end of the string",
    "single": "a string",
    "prompt{": "a prompt",
    "do{": "do {",
    "$(e": "$(",
    "($": "($",
    "$": "a command",
}


T = TypeVar("T")


class Stop(Exception):
    """Raised where a fault is found; caught where reading can go on."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        super().__init__(problem.message)


class Cursor:
    """The tokens with a place among them: `kinds[i]` is the kind of the token at the place.

    `block` reads the statements of a step in a prompt: expressions hold prompts, and prompts hold statements.
    """

    def __init__(self, tokens: Tokens, block: Callable[[Cursor, int], n.Block]) -> None:
        self.block = block
        self.tokens = tokens
        self.source = tokens.source
        self.kinds = tokens.kinds
        self.starts = tokens.starts
        self.ends = tokens.ends
        self.values = tokens.values
        self.i = 0
        self.depth = 0
        self.free = 0  # inside brackets, where a new line means nothing
        self.problems: list[Problem] = list(tokens.problems)

    # ---------------------------------------------------------------- places

    def span(self, start: int) -> Span:
        """From an offset to the end of the token before the place."""
        return Span(self.source, start, self.ends[self.i - 1])

    def here(self) -> Span:
        """The token at the place."""
        return Span(self.source, self.starts[self.i], self.ends[self.i])

    # ---------------------------------------------------------------- steps

    def step(self) -> int:
        """Steps over the token at the place and gives its start."""
        self.i += 1
        return self.starts[self.i - 1]

    def accept(self, kind: str) -> bool:
        """Steps over a token of this kind, if it is one."""
        if self.kinds[self.i] == kind:
            self.i += 1
            return True
        return False

    def expect(self, kind: str, what: str = "") -> int:
        """Steps over a token of this kind and gives its start; anything else is a fault."""
        if self.kinds[self.i] != kind:
            self.unexpected(what or kind)
        return self.step()

    def skip_newlines(self) -> None:
        while self.kinds[self.i] == "newline":
            self.i += 1

    def skip_separators(self) -> None:
        while self.kinds[self.i] in {"newline", ";"}:
            self.i += 1

    def after_newlines(self) -> str:
        """The kind of the next token that is not the end of a line; the place stays."""
        i, kinds = self.i, self.kinds
        while kinds[i] == "newline":
            i += 1
        return kinds[i]

    def listed(self, closer: str, read: Callable[[Cursor], T], opened: int | None = None) -> list[T]:
        """Items between commas, up to and with what closes them; a comma may stand after the last."""
        found: list[T] = []
        self.skip_newlines()
        while self.kinds[self.i] != closer:
            found.append(read(self))
            self.skip_newlines()
            if self.accept(","):
                self.skip_newlines()
            elif self.kinds[self.i] != closer:
                if opened is not None:
                    self.still_open(opened)
                self.unexpected(f", or {closer}")
        self.i += 1
        return found

    def identifier(self, what: str) -> str:
        """A name that somebody chose; a word of the language is a fault that says so."""
        if self.kinds[self.i] in KEYWORDS:
            self.fail("keyword", f"{self.kinds[self.i]} is a reserved word and cannot be {what}")
        return self.key(what)

    def key(self, what: str) -> str:
        """The name of a field: any name, also a word of the language."""
        if self.kinds[self.i] != "name" and self.kinds[self.i] not in KEYWORDS:
            self.unexpected(what)
        self.i += 1
        return self.values[self.i - 1]

    # ---------------------------------------------------------------- faults

    def unexpected(self, what: str, hint: str = "") -> NoReturn:
        found = _NAMES.get(self.kinds[self.i]) or shortened(self.here().text, 30)
        self.fail("syntax", f"expected {what}, found {found}", hint)

    def fail(self, code: str, message: str, hint: str = "", span: Span | None = None) -> NoReturn:
        raise Stop(Problem(span or self.here(), code, message, hint))

    def deeper(self) -> None:
        """One level further in. The caller takes it back when it is out again."""
        self.depth += 1
        if self.depth > MAX_NESTING:
            self.fail("nesting", f"nested more than {MAX_NESTING} levels deep")

    def note(self, problem: Problem) -> None:
        """Keeps a fault, unless it only follows from something that is never closed."""
        cut_off = self.tokens.cut_off
        follows = cut_off is not None and (problem.code == "unclosed" or problem.span.start >= cut_off)
        if not follows and len(self.problems) < MAX_PROBLEMS:
            self.problems.append(problem)

    def unclosed(self, start: int) -> NoReturn:
        """The bracket at an offset is never closed."""
        opened = self.source.text[start]
        closer = {"(": ")", "[": "]"}.get(opened, "}")
        message = f"this {opened} is never closed: expected {closer}"
        self.fail("unclosed", message, span=Span(self.source, start, start + 1))

    def still_open(self, start: int) -> None:
        """Where a line begins with a new statement instead of going on, the open bracket at an offset is the fault."""
        if self.kinds[self.i] in _BEGIN_ANEW and self.kinds[self.i - 1] == "newline":
            self.i -= 1  # the new statement is to be read too
            self.unclosed(start)

    def close(self, closer: str, start: int) -> None:
        """Steps over what closes the bracket at an offset."""
        if self.kinds[self.i] != closer:
            self.still_open(start)
            self.unexpected(closer)
        self.i += 1

    def skip_statement(self, start: int) -> None:
        """Goes on after a fault in the statement whose first token is at `start`: at the end of a line outside its
        braces, or at the `}` of the block around it. A round or square bracket that is still open there is probably the
        fault itself.
        """
        fault, self.i = self.i, start
        open_ones: list[bool] = []  # for each bracket that is open, whether it is a brace or a quote
        braces = 0
        kinds = self.kinds
        while (kind := kinds[self.i]) != "eof":
            if kind in OPENERS:
                open_ones.append(kind not in _ROUND)
                braces += open_ones[-1]
            elif kind in {"}", 'end"'}:
                if not braces and kind == "}" and self.i >= fault:
                    return
                while open_ones and not open_ones.pop():
                    pass
                braces = max(0, braces - 1)
            elif kind in CLOSERS:
                if open_ones and not open_ones[-1]:
                    open_ones.pop()
            elif not braces and self.i >= fault and kind in {"newline", ";"}:
                return
            self.i += 1
