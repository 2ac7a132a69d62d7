"""The parser: from tokens to a tree, by recursive descent. Statements and declarations stand here.

Written by hand, held to `patchwork.ebnf` by tests/lang/test_grammar.py.
"""

from __future__ import annotations

import re
import sys
from bisect import bisect_left
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final, NoReturn

from postroom.lang.builtins import MAIN

from . import nodes as n
from .cursor import Cursor, Stop
from .expressions import command_goes_wrong, expression, read_command
from .lexer import tokens_of
from .problems import SyntaxProblems
from .source import Source, Span
from .types import read_name, read_pattern, read_type, type_after_colon

_ITEM_WORDS: Final = frozenset(["import", "export", "default", "worker", "skill", "fun", "trait", "type"])
#: Words that other languages begin a statement with.
_FOREIGN: Final = {
    **dict.fromkeys(("let", "const", "mut", "auto"), "a variable is declared with var"),
    **dict.fromkeys(("def", "function", "fn", "func"), "a function is declared with fun, at the top of a file"),
    **dict.fromkeys(("elif", "elsif"), "write else if, after the }"),
    **dict.fromkeys(("raise", "fail"), "an error is thrown with throw"),
    "async": "every worker runs concurrently; nothing is declared async",
    "task": "a worker is declared with worker",
}
#: Tokens that cannot stand after a whole statement, with what was probably meant.
_AFTER_STATEMENT: Final = {
    "=": "== compares, = assigns to a name, a field or an item",
    "?": "?. asks a value that may be null for a field",
    "&": "&& is and",
    "{": "a block belongs to if, for, while, try or a declaration",
}
#: The words before a declaration: its comment, `export`, `default`.
_Words = tuple[str, bool, bool]
_RECURSION: Final = 20_000
_ONLY_A_LINE_END: Final = re.compile(r"[ \t\r]*\n[ \t]*")


@contextmanager
def deep_recursion() -> Iterator[None]:
    """Room for a tree as deep as `MAX_NESTING` allows; every recursive walk over a tree needs it too."""
    before = sys.getrecursionlimit()
    sys.setrecursionlimit(max(before, _RECURSION))
    try:
        yield
    finally:
        sys.setrecursionlimit(before)


def parse(text: str, file: str) -> n.Module:
    """The tree of a source. Raises `SyntaxProblems` with every fault that was found, each with its place."""
    c = Cursor(tokens_of(Source(text, file)), _block_after_brace)
    with deep_recursion():
        module = _module(c)
    if c.problems:
        raise SyntaxProblems(c.problems)
    return module


def _module(c: Cursor) -> n.Module:
    items: list[n.Item] = []
    body: n.Function | None = None
    c.skip_separators()
    while c.kinds[c.i] != "eof":
        first = c.i
        try:
            if c.kinds[c.i] == "{" and body is None:
                block = _block(c)
                body = n.Function(block.span, "", False, False, MAIN, block.span, "block", [], None, block, [])
            else:
                items.append(_item(c))
            if c.kinds[c.i] not in {"newline", ";", "eof"}:
                c.unexpected("a new line after the declaration")
        except Stop as stop:
            c.note(stop.problem)
            _skip_item(c, first)
        c.skip_separators()
    return n.Module(Span(c.source, 0, len(c.source.text)), items, body, c.tokens.comments)


def _skip_item(c: Cursor, first: int) -> None:
    """Goes on at the next line that begins like a declaration, outside all brackets."""
    c.depth = c.free = 0
    while c.kinds[c.i] != "eof":
        before = c.i
        c.skip_statement(first)
        if c.kinds[c.i] == "}" or c.i == before:
            c.i += 1
        else:
            c.skip_separators()
            if c.kinds[c.i] in _ITEM_WORDS or c.kinds[c.i] == "{":
                return
        first = c.i


# ---------------------------------------------------------------- declarations


def _item(c: Cursor) -> n.Item:
    start = c.starts[c.i]
    if c.kinds[c.i] == "import":
        return _import(c)
    words = _doc_above(c, start), c.accept("export"), c.accept("default")
    _, exported, default = words
    kind = c.kinds[c.i]
    if kind in {"worker", "skill", "fun"}:
        c.i += 1
        return _function(c, start, words, kind, [])
    if kind == "trait":
        return _trait(c, start, words)
    if kind == "type" and not default:
        return _type_declaration(c, start, words)
    hint = "statements belong inside a worker, a fun, or one bare { } block" if not exported else ""
    more = ("" if default else ", type") + ("" if exported or default else " or import")
    return c.unexpected("worker, fun, skill, trait" + more, hint)


def _doc_above(c: Cursor, start: int) -> str:
    """The comment lines right above a place, without their `#`."""
    comments, text = c.tokens.comments, c.source.text
    at = bisect_left(comments, start, key=lambda comment: comment.span.start) - 1
    lines: list[str] = []
    while at >= 0 and comments[at].own_line and _ONLY_A_LINE_END.fullmatch(text, comments[at].span.end, start):
        lines.append(comments[at].text[1:].removeprefix(" "))
        start = comments[at].span.start
        at -= 1
    return "\n".join(reversed(lines))


def _import(c: Cursor) -> n.Import:
    start = c.step()
    if c.kinds[c.i] != ".":
        at = c.starts[c.i]
        path = [c.identifier("a module's name, or ./{names}")]
        while c.accept("."):
            path.append(c.key("the rest of the module's name"))
        return n.Import(c.span(start), [n.ImportName(c.span(at), tuple(path), path[-1], False)])
    c.i += 1
    c.expect("/", "/ after .")
    if not c.accept("{"):
        names = [_relative_name(c)]
    elif c.after_newlines() == "}":
        c.skip_newlines()
        c.unexpected("a module's name")
    else:
        names = c.listed("}", _relative_name)
    return n.Import(c.span(start), names)


def _relative_name(c: Cursor) -> n.ImportName:
    start = c.starts[c.i]
    path = [c.identifier("a module's name")]
    while c.accept("/"):
        path.append(c.identifier("a module's name"))
    return n.ImportName(c.span(start), tuple(path), path[-1], True)


def _named(c: Cursor, what: str) -> tuple[str, Span]:
    """A name that is declared, and its place."""
    span = c.here()
    return c.identifier(what), span


def _function(c: Cursor, start: int, words: _Words, kind: str, annotations: list[n.Annotation]) -> n.Function:
    name = _named(c, f"the name of the {'fun' if kind == 'method' else kind}")
    c.expect("(", "( and the parameters")
    params = c.listed(")", lambda c: read_name(c, "a parameter or )"))
    returns = read_type(c) if c.accept("->") or c.accept(":") else None
    body = _block(c)
    return n.Function(c.span(start), *words, *name, kind, params, returns, body, annotations)


def _trait(c: Cursor, start: int, words: _Words) -> n.Trait:
    c.i += 1
    name = _named(c, "the name of the trait")
    base = type_after_colon(c)
    opened = c.expect("{", "{ and the trait's methods")
    methods: list[n.Function] = []
    c.skip_newlines()
    while c.kinds[c.i] != "}":
        first = c.i
        try:
            methods.append(_method(c, opened))
            if c.kinds[c.i] not in {"newline", "}"}:
                c.unexpected("a new line after the method")
        except Stop as stop:
            if c.kinds[c.i] == "eof":
                raise
            c.note(stop.problem)
            c.skip_statement(first)
            c.accept(";")
        c.skip_newlines()
    c.i += 1
    return n.Trait(c.span(start), *words, *name, base, methods)


def _method(c: Cursor, opened: int) -> n.Function:
    start = c.starts[c.i]
    doc = _doc_above(c, start)
    annotations: list[n.Annotation] = []
    while c.kinds[c.i] == "@":
        at = c.step()
        name = c.key("the annotation's name after @")
        argument = c.identifier("") if c.kinds[c.i] == "name" else None
        annotations.append(n.Annotation(c.span(at), name, argument))
        c.skip_newlines()
    if c.kinds[c.i] == "eof":
        c.unclosed(opened)
    c.expect("fun", "fun, @ or }: a trait holds methods")
    return _function(c, start, (doc, False, False), "method", annotations)


def _type_declaration(c: Cursor, start: int, words: _Words = ("", False, False)) -> n.TypeDecl:
    c.i += 1
    name = _named(c, "the name of the type")
    c.expect("=", "= and the type")
    c.skip_newlines()
    type_ = read_type(c)
    return n.TypeDecl(c.span(start), *words, *name, type_)


# ---------------------------------------------------------------- statements


def _block(c: Cursor, what: str = "{") -> n.Block:
    return _block_after_brace(c, c.expect("{", what))


def _block_after_brace(c: Cursor, start: int) -> n.Block:
    """Statements up to a `}`, after its `{`, which is at `start`."""
    c.deeper()
    depth, free, c.free = c.depth, c.free, 0
    kinds = c.kinds
    statements: list[n.Statement] = []
    c.skip_separators()
    while kinds[c.i] != "}":
        if kinds[c.i] == "eof":
            c.unclosed(start)
        first = c.i
        try:
            statements.append(_STATEMENTS.get(kinds[c.i], _expression_statement)(c))
            if kinds[c.i] not in {"newline", ";", "}"}:
                _statement_goes_on(c)
        except Stop as stop:
            if kinds[c.i] == "eof" and stop.problem.code == "unclosed":
                raise
            c.note(stop.problem)
            c.depth, c.free = depth, 0
            c.skip_statement(first)
        c.skip_separators()
    c.i += 1
    c.depth, c.free = depth - 1, free
    return n.Block(c.span(start), statements)


def _statement_goes_on(c: Cursor) -> NoReturn:
    """Something stands after a statement that is complete."""
    before = c.values[c.i - 1] if c.kinds[c.i - 1] == "name" else ""
    hint = _FOREIGN.get(before) or _AFTER_STATEMENT.get(c.kinds[c.i], "")
    c.unexpected("a new line or ; after the statement", hint)


def _expression_statement(c: Cursor) -> n.Statement:
    value = expression(c)
    if isinstance(value, n.Binary) and value.op == ">":
        return n.WriteFile(value.span, value.left, ">", value.right)
    if c.accept(">>"):
        c.skip_newlines()
        target = expression(c)
        return n.WriteFile(c.span(value.span.start), value, ">>", target)
    return n.ExprStatement(value.span, value)


def _if(c: Cursor) -> n.If:
    c.deeper()
    start = c.step()
    condition = expression(c)
    then = _block(c, "{ after the condition")
    otherwise: n.Block | n.If | None = None
    if c.after_newlines() == "else":
        c.skip_newlines()
        c.i += 1
        otherwise = _if(c) if c.kinds[c.i] == "if" else _block(c, "{ or if after else")
    c.depth -= 1
    return n.If(c.span(start), condition, then, otherwise)


def _for(c: Cursor) -> n.For:
    start = c.step()
    c.accept("var")
    target = read_pattern(c)
    c.expect("in", "in and what to go through")
    iterable = expression(c)
    if isinstance(iterable, n.ShellExpr) and iterable.mode == "test":
        iterable.mode = "lines"
    body = _block(c, "{ after what to go through")
    return n.For(c.span(start), target, iterable, body)


def _while(c: Cursor) -> n.While:
    start = c.step()
    condition = expression(c)
    body = _block(c, "{ after the condition")
    return n.While(c.span(start), condition, body)


def _var(c: Cursor) -> n.Var:
    start = c.step()
    target = read_pattern(c)
    value: n.Expr | None = None
    if c.accept("="):
        c.skip_newlines()
        value = expression(c)
    elif not isinstance(target, n.NamePattern):
        c.unexpected("= and the value to take apart")
    return n.Var(c.span(start), target, value)


def _return(c: Cursor) -> n.Return:
    start = c.step()
    value = None if c.kinds[c.i] in {"newline", ";", "}", "eof"} else expression(c)
    return n.Return(c.span(start), value)


def _try(c: Cursor) -> n.Try:
    start = c.step()
    body = _block(c, "{ after try")
    c.skip_newlines()
    c.expect("catch", "catch after the try block")
    name, name_span = (None, None) if c.kinds[c.i] == "{" else _named(c, "a name for the error, or {")
    handler = _block(c, "{ after catch")
    return n.Try(c.span(start), body, name, name_span, handler)


def _run_shell(c: Cursor) -> n.ExprStatement:
    start = c.step()
    command = read_command(c)
    if c.kinds[c.i] in {"&", "(", ")", "|&"}:
        command_goes_wrong(c, "the end of the command")
    return n.ExprStatement(c.span(start), n.ShellExpr(c.span(start), "run", command))


def _jump(c: Cursor) -> n.Jump:
    word = c.kinds[c.i]
    return n.Jump(c.span(c.step()), word)


_STATEMENTS: Final[dict[str, Callable[[Cursor], n.Statement]]] = {
    "if": _if,
    "for": _for,
    "while": _while,
    "var": _var,
    "return": _return,
    **dict.fromkeys(("succeed", "break", "continue"), _jump),
    "try": _try,
    "type": lambda c: _type_declaration(c, c.starts[c.i]),
    "$": _run_shell,
}
