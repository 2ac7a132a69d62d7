"""Types and patterns: what may follow a `:`, and what may follow a `var`."""

from __future__ import annotations

from math import inf
from typing import Final

from . import nodes as n
from .cursor import Cursor
from .lexer import KEYWORDS

_MAX_DIGITS: Final = 300  # more is beyond what any number of JSON holds


class TypeParser(Cursor):
    """Reads types and patterns."""

    def type_(self) -> n.TypeNode:
        """`A | B`: a union, or the one type that stands there."""
        self.deeper()
        start = self.starts[self.i]
        self.accept("|")
        options = [self._one_type()]
        while self.kinds[self.i] == "|":
            self.i += 1
            self.skip_newlines()
            options.append(self._one_type())
        self.depth -= 1
        return options[0] if len(options) == 1 else n.TypeUnion(self.span(start), options)

    def _one_type(self) -> n.TypeNode:
        kind, start = self.kinds[self.i], self.starts[self.i]
        if kind in {"name", "null"}:
            self.i += 1
            return n.TypeName(self.span(start), self.values[self.i - 1])
        if kind in {'"', "single"}:
            return self._type_of_text(start)
        if kind in {"number", "-"}:
            sign = -1 if self.accept("-") else 1
            self.expect("number", "a number")
            return n.TypeLiteral(self.span(start), sign * self.number(self.values[self.i - 1]))
        if kind in {"true", "false"}:
            self.i += 1
            return n.TypeLiteral(self.span(start), kind == "true")
        if kind == "[":
            self.i += 1
            self.skip_newlines()
            element = self.type_()
            self.skip_newlines()
            self.expect("]")
            return n.TypeList(self.span(start), element)
        if kind == "{":
            return self._object_type(start)
        return self.unexpected("a type", 'a type is a name, a "literal", [Type] or { field: Type }')

    def _type_of_text(self, start: int) -> n.TypeLiteral:
        if self.accept("single"):
            return n.TypeLiteral(self.span(start), self.values[self.i - 1])
        self.i += 1
        text = self.values[self.i - 1] if self.accept("text") else ""  # accept() has stepped over it
        self.expect('end"', "the end of the string: a type's text has no values in it")
        return n.TypeLiteral(self.span(start), text)

    def _object_type(self, start: int) -> n.TypeObject:
        self.expect("{")
        self.skip_newlines()
        fields: list[n.TypeField] = []
        while self.kinds[self.i] != "}":
            at = self.starts[self.i]
            name = self.key("a field's name or }")
            optional = self.accept("?")
            self.expect(":", ": and the field's type")
            type_ = self.type_()
            fields.append(n.TypeField(self.span(at), name, type_, optional))
            self.comma_or("}")
        self.i += 1
        return n.TypeObject(self.span(start), fields)

    def comma_or(self, closer: str, opened: int | None = None) -> None:
        """After an item of a list: a comma (and anything up to the next item), or what closes the list."""
        self.skip_newlines()
        if self.kinds[self.i] == ",":
            self.i += 1
            self.skip_newlines()
        elif self.kinds[self.i] != closer:
            if opened is not None:
                self.still_open(opened)
            self.unexpected(f", or {closer}")

    def type_after_colon(self) -> n.TypeNode | None:
        return self.type_() if self.accept(":") else None

    # ---------------------------------------------------------------- patterns

    def pattern(self) -> n.Pattern:
        start = self.starts[self.i]
        if self.accept("_"):
            return n.IgnorePattern(self.span(start))
        if self.kinds[self.i] == "{":
            return self._object_pattern(start)
        if self.kinds[self.i] == "[":
            return self._list_pattern(start)
        name = self.identifier("a name, _, { } or [ ]")
        type_ = self.type_after_colon()
        return n.NamePattern(self.span(start), name, type_)

    def _object_pattern(self, start: int) -> n.ObjectPattern:
        self.expect("{")
        self.skip_newlines()
        fields: list[n.PatternField] = []
        while self.kinds[self.i] != "}":
            at = self.starts[self.i]
            if self.kinds[self.i] in KEYWORDS:
                word = self.kinds[self.i]
                hint = f"take that field by hand: var x = value.{word}"
                self.fail("keyword", f"{word} is a word of the language and cannot be a variable", hint)
            name = self.identifier("a field's name or }")
            type_ = self.type_after_colon()
            fields.append(n.PatternField(self.span(at), name, type_))
            self.comma_or("}")
        self.i += 1
        return n.ObjectPattern(self.span(start), fields)

    def _list_pattern(self, start: int) -> n.ListPattern:
        self.deeper()
        self.expect("[")
        self.skip_newlines()
        items: list[n.Pattern] = []
        while self.kinds[self.i] != "]":
            items.append(self.pattern())
            self.comma_or("]")
        self.i += 1
        self.depth -= 1
        return n.ListPattern(self.span(start), items)

    def number(self, text: str) -> int | float:
        """The value of the number that was just stepped over."""
        value = int(text) if text.isdigit() and len(text) <= _MAX_DIGITS else float(text)
        if value == inf:
            self.fail("number", "this number is too large", span=self.span(self.starts[self.i - 1]))
        return value
