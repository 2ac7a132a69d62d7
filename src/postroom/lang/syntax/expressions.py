"""The parser of expressions, and of what they hold: strings, prompts and commands. Recursive descent over one cursor.

By precedence: `=`, `|`, `||`, `&&`, comparisons, `...`, `+ -`, `* / %`, unary, postfix.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final, NoReturn

from . import nodes as n
from .cursor import Cursor
from .lexer import KEYWORDS
from .source import Span
from .text import dedented
from .types import number

#: How tightly an operator binds; all of them take their left side first.
BINDING: Final = {
    "|": 1,
    "||": 2,
    "&&": 3,
    **dict.fromkeys(["==", "!=", "<", ">", "<=", ">="], 4),
    "...": 5,
    **dict.fromkeys("+-", 6),
    **dict.fromkeys("*/%", 7),
}
_COMPARISON: Final = 4

WordParts = list[n.TextPart | n.Interpolation]

_ASSIGNMENT: Final = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)=")
_WORD_KINDS: Final = frozenset(["word", "lit", '"', "$name", "${", "$@{", "$(", "$?"])
_REDIRECT: Final = re.compile(r"(\d*)(&>>|&>|>>|>&|>\||>|<<<|<<|<&|<)(\d*)")
_COMMAND_HINTS: Final = {
    "&": "a command runs to its end; to run things in parallel, give workers to self.delegate([...])",
    "|&": "write 2>&1 | to pipe both outputs",
    ";": "join commands with &&, or write them on lines of their own; quote a ; that is meant as text",
    "(": "quote a ( that is meant as text",
    "newline": "a command ends with its line: end the line with |, && or || to continue, or with \\",
}


def expression(c: Cursor) -> n.Expr:
    """A whole expression, also an assignment."""
    c.deeper()
    start = c.starts[c.i]
    left = _binary(c, 1)
    if c.kinds[c.i] == "=":
        if not isinstance(left, n.Name | n.MemberAccess | n.Index):
            c.fail("assignment", "this cannot be assigned to: expected a name, a field or an item", span=left.span)
        c.i += 1
        c.skip_newlines()
        value = expression(c)
        left = n.Assign(c.span(start), left, value)
    c.depth -= 1
    return left


def _binary(c: Cursor, least: int) -> n.Expr:
    start = c.starts[c.i]
    left = _unary(c)
    kinds = c.kinds
    while True:
        op = kinds[c.i]
        if op == "newline" and c.free and c.after_newlines() in BINDING:
            c.skip_newlines()
            op = kinds[c.i]
        binding = BINDING.get(op, 0)
        if binding < least or binding == 0:
            return left
        c.i += 1
        c.skip_newlines()
        right = _binary(c, binding + 1)
        span = c.span(start)
        if op == "...":
            left = n.Range(span, left, right)
        elif op == "|":
            left = n.Pipe(span, left, right)
        else:
            left = n.Binary(span, op, left, right)


def _unary(c: Cursor) -> n.Expr:
    kind = c.kinds[c.i]
    if kind not in {"!", "-", "throw"}:
        return _postfix(c)
    c.deeper()
    start = c.step()
    operand = _binary(c, _COMPARISON) if kind == "throw" else _unary(c)
    c.depth -= 1
    return n.Throw(c.span(start), operand) if kind == "throw" else n.Unary(c.span(start), kind, operand)


# ---------------------------------------------------------------- postfix


def _postfix(c: Cursor) -> n.Expr:
    start = c.starts[c.i]
    left = _primary(c)
    kinds = c.kinds
    while True:
        kind = kinds[c.i]
        if kind in {".", "?."}:
            c.i += 1
            optional = kind == "?."
            read = _index if optional and c.accept("[") else _member
            left = read(c, start, left, optional)
        elif kind == "(":
            c.i += 1
            args = _items(c, ")", "an argument")
            left = n.Call(c.span(start), left, args)
        elif kind == "[":
            c.i += 1
            left = _index(c, start, left, False)
        elif kind in {"++", "--"}:
            if not isinstance(left, n.Name | n.MemberAccess | n.Index):
                c.fail("assignment", f"{kind} needs a name, a field or an item before it", span=left.span)
            c.i += 1
            left = n.Increment(c.span(start), left, kind)
        elif kind == "($" and c.starts[c.i] == c.ends[c.i - 1]:
            at = c.starts[c.i]
            test = _primary(c)
            left = n.Call(c.span(start), left, [test])
            test.span.start = at + 1
        elif kind == "newline" and c.after_newlines() in {".", "?."}:
            c.skip_newlines()
        else:
            return left


def _member(c: Cursor, start: int, left: n.Expr, optional: bool) -> n.Expr:
    if c.kinds[c.i] == "await":
        if optional:
            c.unexpected("a member's name after ?.", "awaiting is written .await")
        c.i += 1
        return n.Await(c.span(start), left)
    at = c.here()
    name = c.key("a member's name after .")
    return n.MemberAccess(c.span(start), left, name, at, optional)


def _index(c: Cursor, start: int, left: n.Expr, optional: bool) -> n.Expr:
    opened = c.starts[c.i - 1]
    index = _inside(c)
    c.close("]", opened)
    return n.Index(c.span(start), left, index, optional)


def _inside(c: Cursor) -> n.Expr:
    """An expression inside brackets, where a new line means nothing; the caller closes them."""
    c.free += 1
    c.skip_newlines()
    value = expression(c)
    c.skip_newlines()
    c.free -= 1
    return value


def _items(c: Cursor, closer: str, what: str) -> list[n.Expr]:
    """Expressions between commas, up to what closes them."""
    opened = c.starts[c.i - 1]

    def item(c: Cursor) -> n.Expr:
        if c.kinds[c.i] == ",":
            c.unexpected(f"{what} or {closer}")
        c.still_open(opened)
        return expression(c)

    c.free += 1
    found = c.listed(closer, item, opened)
    c.free -= 1
    return found


# ---------------------------------------------------------------- the smallest


def _primary(c: Cursor) -> n.Expr:
    kind, start = c.kinds[c.i], c.starts[c.i]
    read = _PRIMARY.get(kind)
    if read is None:
        _nothing(c, kind)
    c.i += 1
    return read(c, start)


def _single(c: Cursor, start: int) -> n.String:
    span, text = c.span(start), c.values[c.i - 1]
    return n.String(span, [n.TextPart(span, text)] if text else [])


def _list(c: Cursor, start: int) -> n.ListExpr:
    items = _items(c, "]", "an item")
    return n.ListExpr(c.span(start), items)


def _object(c: Cursor, start: int) -> n.ObjectExpr:
    c.free += 1
    fields = c.listed("}", _object_field, start)
    c.free -= 1
    return n.ObjectExpr(c.span(start), fields)


def _paren(c: Cursor, start: int) -> n.Paren:
    value = _inside(c)
    c.close(")", start)
    return n.Paren(c.span(start), value)


def _object_field(c: Cursor) -> n.ObjectField:
    start, kind = c.starts[c.i], c.kinds[c.i]
    key = _text_key(c) if kind in {'"', "single"} else c.key("a field's name or }")
    key_span = c.span(start)
    if c.accept(":"):
        c.skip_newlines()
        value = expression(c)
        return n.ObjectField(c.span(start), key, value, False)
    if kind != "name":
        c.unexpected(": and the field's value")
    return n.ObjectField(key_span, key, n.Name(key_span, key), True)


def _text_key(c: Cursor) -> str:
    if c.accept("single"):
        return c.values[c.i - 1]
    string = _string(c, c.step())
    texts = [part.text for part in string.parts if isinstance(part, n.TextPart)]
    if len(texts) < len(string.parts):
        c.fail("key", "a field's name cannot have values in it", span=string.span)
    return "".join(texts)


def _nothing(c: Cursor, kind: str) -> NoReturn:
    """The fault of a token that cannot begin an expression, with a hint at the probable meaning."""
    before, hint = c.kinds[c.i - 1], ""
    if kind == "$":
        hint = "a command as a value is $(cmd), its output, or ($ cmd), whether it succeeded"
    elif kind == "await":
        hint = "await comes after what is awaited: mailbox.receive(5000).await"
    elif kind == "/" and c.kinds[c.i + 1] == "/":
        hint = "a comment begins with #"
    elif kind == "=" and before in {"+", "-", "*", "/", "%"}:
        hint = f"write x = x {before} ..."
    elif kind in KEYWORDS:
        hint = f"{kind} is a reserved word"
    c.unexpected("a value", hint)


# ---------------------------------------------------------------- strings and prompts


def _string(c: Cursor, start: int) -> n.String:
    parts: WordParts = []
    while not c.accept('end"'):
        parts.append(_text_part(c, "the end of the string"))
    return n.String(c.span(start), parts)


def _prompt(c: Cursor, start: int) -> n.Prompt:
    """`think { }` or `ask { }`, after its first word."""
    which = c.kinds[c.i - 1]
    c.i -= 1
    c.deeper()
    c.i += 1
    c.expect("prompt{", f"{{ and the text of the {which}")
    parts: list[n.TextPart | n.Interpolation | n.DoBlock] = []
    steps = 0
    while not c.accept("}"):
        if c.kinds[c.i] == "do{":
            steps += 1
            at = c.step()
            body = c.block(c, c.ends[c.i - 1] - 1)
            parts.append(n.DoBlock(c.span(at), steps, body))
        else:
            parts.append(_text_part(c, "} to close the prompt"))
    c.depth -= 1
    return n.Prompt(c.span(start), which, dedented(parts))


def _text_part(c: Cursor, closer: str) -> n.TextPart | n.Interpolation:
    kind = c.kinds[c.i]
    if kind == "eof":
        c.unexpected(closer)
    start = c.step()
    if kind == "text":
        return n.TextPart(c.span(start), c.values[c.i - 1])
    value = _value_after(c, kind, start)
    return n.Interpolation(c.span(start), value, kind == "$@{")


def _value_after(c: Cursor, kind: str, start: int) -> n.Expr:
    """The value that an opening token (already stepped over) begins: `$name`, `$?`, `$( )`, `${ }`, `$@{ }`."""
    if kind == "$name":
        return n.Name(Span(c.source, start + 1, c.ends[c.i - 1]), c.values[c.i - 1])
    if kind == "$?":
        return n.ExitStatus(c.span(start))
    if kind == "$(":
        return _command_value(c, start, "capture")
    value = _inside(c)
    closer = ")" if kind == "$(e" else "}"
    c.expect(closer, f"{closer} to close the value")
    return value


# ---------------------------------------------------------------- commands


def _command_value(c: Cursor, start: int, mode: str) -> n.ShellExpr:
    """After `$(` or `($`: the command and its `)`."""
    c.deeper()
    c.skip_newlines()
    command = read_command(c)
    c.skip_newlines()
    if not c.accept(")"):
        command_goes_wrong(c, ") to close the command")
    c.depth -= 1
    return n.ShellExpr(c.span(start), mode, command)


def read_command(c: Cursor) -> n.ShellNode:
    """`a && b || c`: neither binds tighter than the other, as in every shell."""
    start = c.starts[c.i]
    parts = [_pipeline(c)]
    ops: list[str] = []
    while (op := c.kinds[c.i]) in {"&&", "||"}:
        c.i += 1
        ops.append(op)
        parts.append(_pipeline(c))
    return n.ShellChain(c.span(start), parts, ops) if ops else parts[0]


def _pipeline(c: Cursor) -> n.ShellCommand | n.ShellPipeline:
    start = c.starts[c.i]
    commands = [_command(c)]
    while c.accept("|"):
        commands.append(_command(c))
    return commands[0] if len(commands) == 1 else n.ShellPipeline(c.span(start), commands)


def _command(c: Cursor) -> n.ShellCommand:
    start = c.starts[c.i]
    assignments: list[n.ShellAssignment] = []
    words: list[n.ShellWord] = []
    redirects: list[n.ShellRedirect] = []
    while True:
        kind = c.kinds[c.i]
        if kind in _WORD_KINDS:
            if not words and (assignment := _assignment(c)):
                assignments.append(assignment)
            else:
                words.append(_word(c))
        elif kind == "redirect":
            redirects.append(_redirect(c))
        else:
            break
    if kind in {"(", "&", "|&"} or not (words or assignments or redirects):
        command_goes_wrong(c, "a command")
    if not words:
        c.unexpected("a program to run")
    return n.ShellCommand(c.span(start), assignments, words, redirects)


def command_goes_wrong(c: Cursor, what: str) -> NoReturn:
    """Something stands where a command cannot go on."""
    c.unexpected(what, _COMMAND_HINTS.get(c.kinds[c.i], ""))


def _assignment(c: Cursor) -> n.ShellAssignment | None:
    """`NAME=word` at a command's beginning."""
    found = _ASSIGNMENT.match(c.values[c.i]) if c.kinds[c.i] == "word" else None
    if found is None:
        return None
    rest = c.values[c.i][found.end() :]
    start = c.step()
    at = start + found.end()
    word = _rest_of_word(c, at, [n.TextPart(c.span(at), rest, False)] if rest else [])
    return n.ShellAssignment(c.span(start), found[1], word)


def _word(c: Cursor) -> n.ShellWord:
    """Parts that follow each other without a space."""
    start = c.starts[c.i]
    parts: WordParts = []
    _word_part(c, parts)
    return _rest_of_word(c, start, parts)


def _rest_of_word(c: Cursor, start: int, parts: WordParts) -> n.ShellWord:
    while c.kinds[c.i] in _WORD_KINDS and c.starts[c.i] == c.ends[c.i - 1]:
        _word_part(c, parts)
    return n.ShellWord(c.span(start), parts)


def _word_part(c: Cursor, parts: WordParts) -> None:
    kind, start, value = c.kinds[c.i], c.starts[c.i], c.values[c.i]
    if kind == '"':
        parts += _quoted_parts(_string(c, c.step()))
    elif kind not in {"word", "lit"}:
        parts.append(_text_part(c, ""))
    else:
        c.i += 1
        last = parts[-1] if parts else None
        if kind == "word" and isinstance(last, n.TextPart) and not last.quoted:
            last.text += value  # a brace is a token of its own, not a part of its own
            last.span = c.span(last.span.start)
        else:
            parts.append(n.TextPart(c.span(start), value, kind == "lit"))


def _quoted_parts(string: n.String) -> WordParts:
    """The parts of a string that stands in a word, where no value is spread."""
    for part in string.parts:
        if isinstance(part, n.Interpolation) and part.spread:
            part.value, part.spread = n.String(part.span, [n.Interpolation(part.span, part.value, True)]), False
    return string.parts or [n.TextPart(string.span, "")]


def _redirect(c: Cursor) -> n.ShellRedirect:
    start, text = c.starts[c.i], c.values[c.i]
    found = _REDIRECT.fullmatch(text)
    op = found[2] if found else ""
    if found is None or op in {"<<", "<&"}:
        hint = "text for a command is <<< and a string"
        c.fail("redirect", f"{text} is not a known redirection", hint)
    fd = int(found[1]) if found[1] else 0 if op.startswith("<") else 1
    if op == ">&":
        if not found[3]:
            hint = "&> file sends both outputs to a file"
            c.fail("redirect", "expected the number of a descriptor after >&", hint)
        c.i += 1
        return n.ShellRedirect(c.span(start), ">&", fd, None, int(found[3]))
    c.i += 1
    if c.kinds[c.i] not in _WORD_KINDS:
        c.unexpected("a file after " + text)
    target = _word(c)
    return n.ShellRedirect(c.span(start), ">" if op == ">|" else op, fd, target, None)


#: How each expression is read, by its first token, after that was stepped over.
_PRIMARY: Final[dict[str, Callable[[Cursor, int], n.Expr]]] = {
    "name": lambda c, start: n.Name(c.span(start), c.values[c.i - 1]),
    "number": lambda c, start: n.Literal(c.span(start), number(c)),
    "true": lambda c, start: n.Literal(c.span(start), True),
    "false": lambda c, start: n.Literal(c.span(start), False),
    "null": lambda c, start: n.Literal(c.span(start), None),
    "self": lambda c, start: n.SelfExpression(c.span(start)),
    "$?": lambda c, start: n.ExitStatus(c.span(start)),
    "single": _single,
    '"': _string,
    "[": _list,
    "{": _object,
    "(": _paren,
    "think": _prompt,
    "ask": _prompt,
    "$(": lambda c, start: _command_value(c, start, "capture"),
    "($": lambda c, start: _command_value(c, start, "test"),
}
