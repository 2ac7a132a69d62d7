"""From tokens to a tree: statements and declarations. Written by hand, held to `patchwork.ebnf` by tests/lang/test_grammar.py."""

from __future__ import annotations

import re
import sys
from bisect import bisect_left
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from . import nodes as n
from .cursor import Stop
from .expressions import ExpressionParser
from .lexer import tokens_of
from .problems import SyntaxProblems
from .source import Source, Span

_ITEM_WORDS: Final = frozenset(["import", "export", "default", "worker", "skill", "fun", "trait", "type"])
_STATEMENTS: Final = {
    "if": "_if",
    "for": "_for",
    "while": "_while",
    "var": "_var",
    "return": "_return",
    "succeed": "_word_alone",
    "break": "_word_alone",
    "continue": "_word_alone",
    "try": "_try",
    "type": "_local_type",
    "$": "_run_shell",
}
#: Words that other languages begin a statement with.
_FOREIGN: Final = {
    **dict.fromkeys(("let", "const", "mut", "auto"), "a variable is declared with var"),
    **dict.fromkeys(("def", "function", "fn", "func"), "a function is declared with fun, at the top of a file"),
    **dict.fromkeys(("elif", "elsif"), "write else if, after the }"),
    **dict.fromkeys(("raise", "fail"), "an error is thrown with throw"),
    "async": "every worker runs by itself; nothing is declared async",
    "task": "a worker is declared with worker",
}
_RECURSION: Final = 20_000
_ONLY_A_LINE_END: Final = re.compile(r"[ \t\r]*\n[ \t]*")


@contextmanager
def deep_recursion() -> Iterator[None]:
    """Room for a tree as deep as `MAX_NESTING` allows; whoever walks a tree by calling itself needs it too."""
    before = sys.getrecursionlimit()
    sys.setrecursionlimit(max(before, _RECURSION))
    try:
        yield
    finally:
        sys.setrecursionlimit(before)


class Parser(ExpressionParser):
    """Reads a whole file."""

    def module(self) -> n.Module:
        items: list[n.Item] = []
        body: n.Block | None = None
        self.skip_separators()
        while self.kinds[self.i] != "eof":
            first = self.i
            try:
                if self.kinds[self.i] == "{" and body is None:
                    self.i += 1
                    body = self.block_after_brace(self.starts[self.i - 1])
                else:
                    items.append(self._item())
                if self.kinds[self.i] not in {"newline", ";", "eof"}:
                    self.unexpected("a new line after the declaration")
            except Stop as stop:
                self.note(stop.problem)
                self._skip_item(first)
            self.skip_separators()
        end = len(self.source.text)
        return n.Module(Span(self.source, 0, end), items, body, self.tokens.comments)

    def _skip_item(self, first: int) -> None:
        """Goes on at the next line that begins like a declaration, outside all brackets."""
        self.depth = self.free = 0
        while self.kinds[self.i] != "eof":
            before = self.i
            self.skip_statement(first)
            if self.kinds[self.i] == "}" or self.i == before:
                self.i += 1
                first = self.i
                continue
            self.skip_separators()
            if self.kinds[self.i] in _ITEM_WORDS or self.kinds[self.i] == "{":
                return
            first = self.i

    # ---------------------------------------------------------------- declarations

    def _item(self) -> n.Item:
        start = self.starts[self.i]
        if self.kinds[self.i] == "import":
            return self._import(start)
        doc = self.doc_above(start)
        exported = self.accept("export")
        default = self.accept("default")
        kind = self.kinds[self.i]
        if kind in {"worker", "skill", "fun"}:
            self.i += 1
            return self._function(start, kind, exported, default, [], doc)
        if kind == "trait":
            return self._trait(start, exported, default, doc)
        if kind == "type" and not default:
            return self._type_declaration(start, exported, doc)
        hint = "statements stand inside a worker, a fun, or one bare { } block" if not exported else ""
        return self.unexpected(
            "worker, fun, skill, trait" + ("" if default else ", type") + ("" if exported or default else " or import"),
            hint,
        )

    def doc_above(self, start: int) -> str:
        """The comment lines right above a place, without their `#`."""
        comments, text = self.tokens.comments, self.source.text
        at = bisect_left(comments, start, key=lambda comment: comment.span.start) - 1
        lines: list[str] = []
        while at >= 0 and comments[at].own_line and _ONLY_A_LINE_END.fullmatch(text, comments[at].span.end, start):
            lines.append(comments[at].text[1:].removeprefix(" "))
            start = comments[at].span.start
            at -= 1
        return "\n".join(reversed(lines))

    def _import(self, start: int) -> n.Import:
        self.i += 1
        names: list[n.ImportName] = []
        if self.kinds[self.i] != ".":
            at = self.starts[self.i]
            path = [self.identifier("a module's name, or ./{names}")]
            while self.accept("."):
                path.append(self.key("the rest of the module's name"))
            return n.Import(self.span(start), [n.ImportName(self.span(at), tuple(path), path[-1], False)])
        self.i += 1
        self.expect("/", "/ after .")
        if not self.accept("{"):
            name = self._relative_name()
            return n.Import(self.span(start), [name])
        self.skip_newlines()
        while self.kinds[self.i] != "}" or not names:
            names.append(self._relative_name())
            self.comma_or("}")
        self.i += 1
        return n.Import(self.span(start), names)

    def _relative_name(self) -> n.ImportName:
        at = self.starts[self.i]
        path = [self.identifier("a module's name")]
        while self.accept("/"):
            path.append(self.identifier("a module's name"))
        return n.ImportName(self.span(at), tuple(path), path[-1], True)

    def _function(
        self, start: int, kind: str, exported: bool, default: bool, annotations: list[n.Annotation], doc: str
    ) -> n.Function:
        at = self.starts[self.i]
        name = self.identifier(f"the name of the {'fun' if kind == 'method' else kind}")
        name_span = self.span(at)
        params = self._params()
        returns = None
        if self.kinds[self.i] in {"->", ":"}:
            self.i += 1
            returns = self.type_()
        body = self.block()
        return n.Function(
            self.span(start), kind, name, name_span, params, returns, body, exported, default, annotations, doc
        )

    def _params(self) -> list[n.Param]:
        self.expect("(", "( and the parameters")
        self.skip_newlines()
        params: list[n.Param] = []
        while self.kinds[self.i] != ")":
            at = self.starts[self.i]
            name = self.identifier("a parameter or )")
            type_ = self.type_after_colon()
            params.append(n.Param(self.span(at), name, type_))
            self.comma_or(")")
        self.i += 1
        return params

    def _trait(self, start: int, exported: bool, default: bool, doc: str) -> n.Trait:
        self.i += 1
        at = self.starts[self.i]
        name = self.identifier("the name of the trait")
        name_span = self.span(at)
        base = self.type_after_colon()
        opened = self.expect("{", "{ and the trait's methods")
        methods: list[n.Function] = []
        self.skip_newlines()
        while self.kinds[self.i] != "}":
            first = self.i
            try:
                methods.append(self._method(opened))
                if self.kinds[self.i] not in {"newline", "}"}:
                    self.unexpected("a new line after the method")
            except Stop as stop:
                if self.kinds[self.i] == "eof":
                    raise
                self.note(stop.problem)
                self.skip_statement(first)
                self.accept(";")
            self.skip_newlines()
        self.i += 1
        return n.Trait(self.span(start), name, name_span, base, methods, exported, default, doc)

    def _method(self, opened: int) -> n.Function:
        start = self.starts[self.i]
        doc = self.doc_above(start)
        annotations: list[n.Annotation] = []
        while self.kinds[self.i] == "@":
            at = self.starts[self.i]
            self.i += 1
            name = self.key("the annotation's name after @")
            argument = self.identifier("") if self.kinds[self.i] == "name" else None
            annotations.append(n.Annotation(self.span(at), name, argument))
            self.skip_newlines()
        if self.kinds[self.i] == "eof":
            self.unclosed(opened)
        self.expect("fun", "fun, @ or }: a trait holds methods")
        return self._function(start, "method", False, False, annotations, doc)

    def _type_declaration(self, start: int, exported: bool, doc: str) -> n.TypeDecl:
        self.i += 1
        at = self.starts[self.i]
        name = self.identifier("the name of the type")
        name_span = self.span(at)
        self.expect("=", "= and the type")
        self.skip_newlines()
        type_ = self.type_()
        return n.TypeDecl(self.span(start), name, name_span, type_, exported, doc)

    # ---------------------------------------------------------------- statements

    def block(self, what: str = "{") -> n.Block:
        start = self.expect("{", what)
        return self.block_after_brace(start)

    def block_after_brace(self, start: int) -> n.Block:
        self.deeper()
        depth, free, self.free = self.depth, self.free, 0
        kinds = self.kinds
        statements: list[n.Statement] = []
        self.skip_separators()
        while kinds[self.i] != "}":
            if kinds[self.i] == "eof":
                self.unclosed(start)
            first = self.i
            try:
                statements.append(self.statement())
                if kinds[self.i] not in {"newline", ";", "}"}:
                    self._statement_goes_on()
            except Stop as stop:
                if kinds[self.i] == "eof" and stop.problem.code == "unclosed":
                    raise
                self.note(stop.problem)
                self.depth, self.free = depth, 0
                self.skip_statement(first)
            self.skip_separators()
        self.i += 1
        self.depth, self.free = depth - 1, free
        return n.Block(self.span(start), statements)

    def _statement_goes_on(self) -> None:
        """Something stands after a statement that is complete."""
        kind = self.kinds[self.i]
        before = self.values[self.i - 1] if self.kinds[self.i - 1] == "name" else ""
        if before in _FOREIGN:
            self.unexpected("a new line or ; after the statement", _FOREIGN[before])
        hints = {
            "=": "== compares, = assigns to a name, a field or an item",
            "?": "?. asks a value that may be null for a field",
            "&": "&& is and",
            "{": "a block belongs to if, for, while, try or a declaration",
        }
        self.unexpected("a new line or ; after the statement", hints.get(kind, ""))

    def statement(self) -> n.Statement:
        reader = _STATEMENTS.get(self.kinds[self.i], "_expression_statement")
        statement: n.Statement = getattr(self, reader)()
        return statement

    def _expression_statement(self) -> n.Statement:
        start = self.starts[self.i]
        value = self.expression()
        if isinstance(value, n.Binary) and value.op == ">":
            return n.WriteFile(value.span, value.left, ">", value.right)
        if self.kinds[self.i] == ">>":
            self.i += 1
            self.skip_newlines()
            target = self.expression()
            return n.WriteFile(self.span(start), value, ">>", target)
        return n.ExprStatement(value.span, value)

    def _if(self) -> n.If:
        self.deeper()
        start = self.starts[self.i]
        self.i += 1
        condition = self.expression()
        then = self.block("{ after the condition")
        otherwise: n.Block | n.If | None = None
        if self.after_newlines() == "else":
            self.skip_newlines()
            self.i += 1
            otherwise = self._if() if self.kinds[self.i] == "if" else self.block("{ or if after else")
        self.depth -= 1
        return n.If(self.span(start), condition, then, otherwise)

    def _for(self) -> n.For:
        start = self.starts[self.i]
        self.i += 1
        self.accept("var")
        target = self.pattern()
        self.expect("in", "in and what to go through")
        iterable = self.expression()
        if isinstance(iterable, n.ShellExpr) and iterable.mode == "test":
            iterable.mode = "lines"
        body = self.block("{ after what to go through")
        return n.For(self.span(start), target, iterable, body)

    def _while(self) -> n.While:
        start = self.starts[self.i]
        self.i += 1
        condition = self.expression()
        body = self.block("{ after the condition")
        return n.While(self.span(start), condition, body)

    def _var(self) -> n.Var:
        start = self.starts[self.i]
        self.i += 1
        target = self.pattern()
        value: n.Expr | None = None
        if self.accept("="):
            self.skip_newlines()
            value = self.expression()
        elif not isinstance(target, n.NamePattern):
            self.unexpected("= and the value to take apart")
        return n.Var(self.span(start), target, value)

    def _return(self) -> n.Return:
        start = self.starts[self.i]
        self.i += 1
        ends = self.kinds[self.i] in {"newline", ";", "}", "eof"}
        value = None if ends else self.expression()
        return n.Return(self.span(start), value)

    def _word_alone(self) -> n.Statement:
        kind, span = self.kinds[self.i], self.here()
        self.i += 1
        if kind == "succeed":
            return n.Succeed(span)
        return n.Break(span) if kind == "break" else n.Continue(span)

    def _try(self) -> n.Try:
        start = self.starts[self.i]
        self.i += 1
        body = self.block("{ after try")
        self.skip_newlines()
        self.expect("catch", "catch after the try block")
        name, name_span = None, None
        if self.kinds[self.i] != "{":
            at = self.starts[self.i]
            name = self.identifier("a name for the error, or {")
            name_span = self.span(at)
        handler = self.block("{ after catch")
        return n.Try(self.span(start), body, name, name_span, handler)

    def _local_type(self) -> n.TypeDecl:
        start = self.starts[self.i]
        return self._type_declaration(start, False, "")

    def _run_shell(self) -> n.RunShell:
        start = self.starts[self.i]
        self.i += 1
        command = self.shell()
        if self.kinds[self.i] in {"&", "(", ")", "|&"}:
            self._command_goes_wrong("the end of the command")
        return n.RunShell(self.span(start), command)


def parse(text: str, file: str) -> n.Module:
    """The tree of a source. Raises `SyntaxProblems` with every fault that was found, each with its place."""
    parser = Parser(tokens_of(Source(text, file)))
    with deep_recursion():
        module = parser.module()
    if parser.problems:
        raise SyntaxProblems(parser.problems)
    return module
