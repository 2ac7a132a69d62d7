"""Commands: chains, pipelines, words made of parts, and redirections."""

from __future__ import annotations

import re
from typing import Final

from . import nodes as n
from .source import Span
from .types import TypeParser

_ASSIGNMENT: Final = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)=")
_WORD_KINDS: Final = frozenset(["word", "lit", '"', "$name", "${", "$@{", "$(", "$?"])
_CHAINED: Final = frozenset(["&&", "||"])
_REDIRECT: Final = re.compile(r"(\d*)(&>>|&>|>>|>&|>\||>|<<<|<<|<&|<)(\d*)")


class ShellParser(TypeParser):
    """Reads what stands after `$`, in `$( )` and in `($ )`."""

    def expression(self) -> n.Expr:
        """A value of code, inside a word."""
        raise NotImplementedError

    def string(self) -> n.String:
        """A string, at its opening quote."""
        raise NotImplementedError

    def shell_in_parens(self) -> n.ShellNode:
        """After `$(` or `($`: the command and its `)`."""
        self.deeper()
        self.skip_newlines()
        command = self.shell()
        self.skip_newlines()
        if self.kinds[self.i] != ")":
            self._command_goes_wrong(") to close the command")
        self.i += 1
        self.depth -= 1
        return command

    def shell(self) -> n.ShellNode:
        """`a && b || c`: neither binds tighter than the other, as in every shell."""
        start = self.starts[self.i]
        parts = [self._pipeline()]
        ops: list[str] = []
        while (op := self.kinds[self.i]) in _CHAINED:
            self.i += 1
            ops.append(op)
            parts.append(self._pipeline())
        return n.ShellChain(self.span(start), parts, ops) if ops else parts[0]

    def _pipeline(self) -> n.ShellCommand | n.ShellPipeline:
        start = self.starts[self.i]
        commands = [self._command()]
        while self.accept("|"):
            commands.append(self._command())
        return commands[0] if len(commands) == 1 else n.ShellPipeline(self.span(start), commands)

    def _command(self) -> n.ShellCommand:
        start = self.starts[self.i]
        assignments: list[n.ShellAssignment] = []
        words: list[n.ShellWord] = []
        redirects: list[n.ShellRedirect] = []
        while True:
            kind = self.kinds[self.i]
            if kind in _WORD_KINDS:
                if not words and (assignment := self._assignment()):
                    assignments.append(assignment)
                else:
                    words.append(self._word())
            elif kind == "redirect":
                redirects.append(self._redirect())
            else:
                break
        if kind in {"(", "&", "|&"} or not (words or assignments or redirects):
            self._command_goes_wrong("a command")
        if not words:
            self.unexpected("a program to run")
        return n.ShellCommand(self.span(start), assignments, words, redirects)

    def _command_goes_wrong(self, what: str) -> None:
        hints = {
            "&": "a command runs to its end; to do things side by side, give workers to self.delegate([...])",
            "|&": "write 2>&1 | to pipe both outputs",
            ";": "join commands with &&, or write them on lines of their own; quote a ; that is meant as a word",
            "(": "quote a ( that is meant as a word",
            "newline": "a command ends with its line: end the line with |, && or || to go on, or with \\",
        }
        self.unexpected(what, hints.get(self.kinds[self.i], ""))

    # ---------------------------------------------------------------- words

    def _assignment(self) -> n.ShellAssignment | None:
        """`NAME=word` at a command's beginning."""
        if self.kinds[self.i] != "word":
            return None
        found = _ASSIGNMENT.match(self.values[self.i])
        if found is None:
            return None
        start = self.starts[self.i]
        rest = self.values[self.i][found.end() :]
        self.i += 1
        first: list[n.ShellText | n.ShellValue] = []
        if rest:
            span = Span(self.source, start + found.end(), self.ends[self.i - 1])
            first.append(n.ShellText(span, rest, False))
        glued = self.kinds[self.i] in _WORD_KINDS and self.starts[self.i] == self.ends[self.i - 1]
        word = self._word(first) if glued else n.ShellWord(self.span(start + found.end()), first)
        return n.ShellAssignment(self.span(start), found[1], word)

    def _word(self, first: list[n.ShellText | n.ShellValue] | None = None) -> n.ShellWord:
        """Parts that follow each other without a space."""
        start = first[0].span.start if first else self.starts[self.i]
        parts = list(first or ())
        kinds, starts, ends = self.kinds, self.starts, self.ends
        while True:
            self._word_part(parts)
            if kinds[self.i] not in _WORD_KINDS or starts[self.i] != ends[self.i - 1]:
                break
        return n.ShellWord(self.span(start), parts)

    def _word_part(self, parts: list[n.ShellText | n.ShellValue]) -> None:
        kind, start, value = self.kinds[self.i], self.starts[self.i], self.values[self.i]
        if kind == '"':
            self._quoted_parts(parts)
            return
        self.i += 1
        if kind in {"word", "lit"}:
            last = parts[-1] if parts else None
            if kind == "word" and isinstance(last, n.ShellText) and not last.quoted:
                last.text += value  # a brace is a token of its own, not a part of its own
                last.span = self.span(last.span.start)
            else:
                parts.append(n.ShellText(self.span(start), value, kind == "lit"))
        elif kind == "$(":
            command = self.shell_in_parens()
            span = self.span(start)
            parts.append(n.ShellValue(span, n.ShellExpr(span, "capture", command), False, False))
        else:
            expr = self.value_after(kind, start)
            parts.append(n.ShellValue(self.span(start), expr, False, kind == "$@{"))

    def _quoted_parts(self, parts: list[n.ShellText | n.ShellValue]) -> None:
        string = self.string()
        if not string.parts:
            parts.append(n.ShellText(string.span, "", True))
        for part in string.parts:
            if isinstance(part, n.TextPart):
                parts.append(n.ShellText(part.span, part.text, True))
            else:
                value = part.value
                if part.joined:
                    value = n.String(part.span, [part])
                parts.append(n.ShellValue(part.span, value, True, False))

    def value_after(self, kind: str, start: int) -> n.Expr:
        """The value that an opening token (already stepped over) begins: `$name`, `$?`, `${ }`, `$@{ }`, `$( )` of a string."""
        if kind == "$name":
            return n.Name(Span(self.source, start + 1, self.ends[self.i - 1]), self.values[self.i - 1])
        if kind == "$?":
            return n.ExitStatus(self.span(start))
        self.free += 1
        self.skip_newlines()
        value = self.expression()
        self.skip_newlines()
        self.expect(")" if kind == "$(e" else "}", f"{')' if kind == '$(e' else '}'} to close the value")
        self.free -= 1
        return value

    # ---------------------------------------------------------------- redirections

    def _redirect(self) -> n.ShellRedirect:
        start, text = self.starts[self.i], self.values[self.i]
        found = _REDIRECT.fullmatch(text)
        op = found[2] if found else ""
        if found is None or op in {"<<", "<&"}:
            self.fail(
                "redirect", f"{text} is not a redirection that is known here", "text for a command is <<< and a string"
            )
        fd = int(found[1]) if found[1] else 0 if op.startswith("<") else 1
        if op == ">&":
            if not found[3]:
                self.fail(
                    "redirect", "expected the number of a descriptor after >&", "&> file sends both outputs to a file"
                )
            self.i += 1
            return n.ShellRedirect(self.span(start), ">&", fd, None, int(found[3]))
        self.i += 1
        if self.kinds[self.i] not in _WORD_KINDS:
            self.unexpected("a file after " + text)
        target = self._word()
        return n.ShellRedirect(self.span(start), ">" if op == ">|" else op, fd, target, None)
