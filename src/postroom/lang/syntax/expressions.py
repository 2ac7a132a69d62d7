"""Expressions, by precedence: `=`, `|`, `||`, `&&`, comparisons, `...`, `+ -`, `* / %`, unary, postfix."""

from __future__ import annotations

from typing import Final

from . import nodes as n
from .lexer import KEYWORDS
from .text import TextParser

#: How tightly an operator binds; all of them take their left side first.
BINDING: Final = {
    "|": 1,
    "||": 2,
    "&&": 3,
    **dict.fromkeys(["==", "!=", "<", ">", "<=", ">="], 4),
    "...": 5,
    "+": 6,
    "-": 6,
    "*": 7,
    "/": 7,
    "%": 7,
}
_COMPARISON: Final = 4


class ExpressionParser(TextParser):
    """Reads expressions."""

    def expression(self) -> n.Expr:
        self.deeper()
        start = self.starts[self.i]
        left = self._binary(1)
        if self.kinds[self.i] == "=":
            if not isinstance(left, n.Name | n.MemberAccess | n.Index):
                self.fail(
                    "assignment", "this cannot be assigned to: expected a name, a field or an item", span=left.span
                )
            self.i += 1
            self.skip_newlines()
            value = self.expression()
            left = n.Assign(self.span(start), left, value)
        self.depth -= 1
        return left

    def _binary(self, least: int) -> n.Expr:
        start = self.starts[self.i]
        left = self._unary()
        kinds = self.kinds
        while True:
            op = kinds[self.i]
            if op == "newline" and self.free and self.after_newlines() in BINDING:
                self.skip_newlines()
                op = kinds[self.i]
            binding = BINDING.get(op, 0)
            if binding < least or binding == 0:
                return left
            self.i += 1
            self.skip_newlines()
            right = self._binary(binding + 1)
            span = self.span(start)
            if op == "...":
                left = n.Range(span, left, right)
            elif op == "|":
                left = n.Pipe(span, left, right)
            else:
                left = n.Binary(span, op, left, right)

    def _unary(self) -> n.Expr:
        kind = self.kinds[self.i]
        if kind not in {"!", "-", "throw"}:
            return self._postfix()
        self.deeper()
        start = self.starts[self.i]
        self.i += 1
        if kind == "throw":
            value = self._binary(_COMPARISON)
            self.depth -= 1
            return n.Throw(self.span(start), value)
        operand = self._unary()
        self.depth -= 1
        return n.Unary(self.span(start), kind, operand)

    # ---------------------------------------------------------------- postfix

    def _postfix(self) -> n.Expr:
        start = self.starts[self.i]
        left = self._primary()
        kinds = self.kinds
        while True:
            kind = kinds[self.i]
            if kind == ".":
                self.i += 1
                left = self._member(start, left, False)
            elif kind == "(":
                self.i += 1
                args = self.items(")", "an argument")
                left = n.Call(self.span(start), left, args)
            elif kind == "[":
                self.i += 1
                left = self._index(start, left, False)
            elif kind in {"++", "--"}:
                if not isinstance(left, n.Name | n.MemberAccess | n.Index):
                    self.fail("assignment", f"{kind} needs a name, a field or an item before it", span=left.span)
                self.i += 1
                left = n.Increment(self.span(start), left, kind)
            elif kind == "?.":
                self.i += 1
                left = self._index(start, left, True) if self.accept("[") else self._member(start, left, True)
            elif kind == "($" and self.starts[self.i] == self.ends[self.i - 1]:
                at = self.starts[self.i]
                test = self._primary()
                left = n.Call(self.span(start), left, [test])
                test.span.start = at + 1
            elif kind == "newline" and self.after_newlines() in {".", "?."}:
                self.skip_newlines()
            else:
                return left

    def _member(self, start: int, left: n.Expr, optional: bool) -> n.Expr:
        if self.kinds[self.i] == "await":
            if optional:
                self.unexpected("a member's name after ?.", "awaiting is written .await")
            self.i += 1
            return n.Await(self.span(start), left)
        at = self.starts[self.i]
        name = self.key("a member's name after .")
        return n.MemberAccess(self.span(start), left, name, self.span(at), optional)

    def _index(self, start: int, left: n.Expr, optional: bool) -> n.Expr:
        opened = self.starts[self.i - 1]
        self.free += 1
        self.skip_newlines()
        index = self.expression()
        self.skip_newlines()
        self.close("]", opened)
        self.free -= 1
        return n.Index(self.span(start), left, index, optional)

    def items(self, closer: str, what: str) -> list[n.Expr]:
        """Expressions between commas, up to what closes them; a comma may stand after the last."""
        opened = self.starts[self.i - 1]
        self.free += 1
        self.skip_newlines()
        found: list[n.Expr] = []
        while self.kinds[self.i] != closer:
            if self.kinds[self.i] == ",":
                self.unexpected(f"{what} or {closer}")
            self.still_open(opened)
            found.append(self.expression())
            self.comma_or(closer, opened)
        self.i += 1
        self.free -= 1
        return found

    # ---------------------------------------------------------------- the smallest

    def _primary(self) -> n.Expr:
        kind, start = self.kinds[self.i], self.starts[self.i]
        if kind == "name":
            self.i += 1
            return n.Name(self.span(start), self.values[self.i - 1])
        if kind == '"':
            return self.string()
        if kind == "number":
            self.i += 1
            value = self.number(self.values[self.i - 1])
            return n.Number(self.span(start), value)
        if kind == "single":
            self.i += 1
            span, text = self.span(start), self.values[self.i - 1]
            return n.String(span, [n.TextPart(span, text)] if text else [])
        if kind in _SIMPLE:
            self.i += 1
            return self._simple(kind, start)
        if kind in {"(", "[", "{"}:
            return self._bracketed(kind, start)
        if kind in {"think", "ask"}:
            return self.prompt()
        if kind in {"$(", "($"}:
            self.i += 1
            command = self.shell_in_parens()
            return n.ShellExpr(self.span(start), "capture" if kind == "$(" else "test", command)
        return self._nothing(kind)

    def _simple(self, kind: str, start: int) -> n.Expr:
        span = self.span(start)
        if kind == "self":
            return n.SelfExpression(span)
        if kind == "null":
            return n.Null(span)
        return n.ExitStatus(span) if kind == "$?" else n.Bool(span, kind == "true")

    def _bracketed(self, kind: str, start: int) -> n.Expr:
        self.i += 1
        if kind == "[":
            items = self.items("]", "an item")
            return n.ListExpr(self.span(start), items)
        if kind == "{":
            return self._object(start)
        self.free += 1
        self.skip_newlines()
        value = self.expression()
        self.skip_newlines()
        self.close(")", start)
        self.free -= 1
        return n.Paren(self.span(start), value)

    def _object(self, start: int) -> n.ObjectExpr:
        self.free += 1
        self.skip_newlines()
        fields: list[n.ObjectField] = []
        while self.kinds[self.i] != "}":
            fields.append(self._object_field())
            self.comma_or("}", start)
        self.i += 1
        self.free -= 1
        return n.ObjectExpr(self.span(start), fields)

    def _object_field(self) -> n.ObjectField:
        at, kind = self.starts[self.i], self.kinds[self.i]
        key = self._text_key() if kind in {'"', "single"} else self.key("a field's name or }")
        key_span = self.span(at)
        if self.accept(":"):
            self.skip_newlines()
            value = self.expression()
            return n.ObjectField(self.span(at), key, value, False)
        if kind != "name":
            self.unexpected(": and the field's value")
        return n.ObjectField(key_span, key, n.Name(key_span, key), True)

    def _text_key(self) -> str:
        if self.accept("single"):
            return self.values[self.i - 1]
        string = self.string()
        if any(isinstance(part, n.Interpolation) for part in string.parts):
            self.fail("key", "a field's name cannot have values in it", span=string.span)
        return "".join(part.text for part in string.parts if isinstance(part, n.TextPart))

    def _nothing(self, kind: str) -> n.Expr:
        """What cannot begin an expression, with a word on what was probably meant."""
        hint = ""
        if kind == "$":
            hint = "a command as a value is $(cmd), its output, or ($ cmd), whether it succeeded"
        elif kind == "await":
            hint = "await comes after what is awaited: mailbox.receive(5000).await"
        elif kind == "/" and self.kinds[self.i + 1] == "/":
            hint = "a comment begins with #"
        elif kind == "=" and self.kinds[self.i - 1] in {"+", "-", "*", "/", "%"}:
            hint = f"write x = x {self.kinds[self.i - 1]} ..."
        elif kind in KEYWORDS:
            hint = f"{kind} is a word of the language"
        self.unexpected("a value", hint)


_SIMPLE: Final = frozenset(["true", "false", "null", "self", "$?"])
