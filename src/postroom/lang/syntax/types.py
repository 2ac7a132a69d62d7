"""The parser of types and patterns: what may follow a `:`, and what may follow a `var`."""

from __future__ import annotations

from math import inf
from typing import Final

from . import nodes as n
from .cursor import Cursor
from .lexer import KEYWORDS

_MAX_DIGITS: Final = 300  # more is beyond what any number of JSON holds


def read_type(c: Cursor) -> n.TypeNode:
    """`A | B`: a union, or the one type that stands there."""
    c.deeper()
    start = c.starts[c.i]
    c.accept("|")
    options = [_one_type(c)]
    while c.accept("|"):
        c.skip_newlines()
        options.append(_one_type(c))
    c.depth -= 1
    return options[0] if len(options) == 1 else n.TypeUnion(c.span(start), options)


def _one_type(c: Cursor) -> n.TypeNode:
    kind, start = c.kinds[c.i], c.starts[c.i]
    if kind in {"name", "null"}:
        c.i += 1
        return n.TypeName(c.span(start), c.values[c.i - 1])
    if kind in {'"', "single"}:
        return _type_of_text(c, start)
    if kind in {"number", "-"}:
        sign = -1 if c.accept("-") else 1
        c.expect("number", "a number")
        return n.TypeLiteral(c.span(start), sign * number(c))
    if kind in {"true", "false"}:
        c.i += 1
        return n.TypeLiteral(c.span(start), kind == "true")
    if kind == "[":
        c.i += 1
        c.skip_newlines()
        element = read_type(c)
        c.skip_newlines()
        c.expect("]")
        return n.TypeList(c.span(start), element)
    if kind == "{":
        c.i += 1
        fields = c.listed("}", _type_field)
        return n.TypeObject(c.span(start), fields)
    return c.unexpected("a type", 'a type is a name, a "literal", [Type] or { field: Type }')


def _type_of_text(c: Cursor, start: int) -> n.TypeLiteral:
    if c.accept("single"):
        return n.TypeLiteral(c.span(start), c.values[c.i - 1])
    c.i += 1
    text = c.values[c.i - 1] if c.accept("text") else ""  # accept() has stepped over it
    c.expect('end"', "the end of the string: a type's text has no values in it")
    return n.TypeLiteral(c.span(start), text)


def _type_field(c: Cursor) -> n.TypeField:
    start = c.starts[c.i]
    name = c.key("a field's name or }")
    optional = c.accept("?")
    c.expect(":", ": and the field's type")
    type_ = read_type(c)
    return n.TypeField(c.span(start), name, type_, optional)


def type_after_colon(c: Cursor) -> n.TypeNode | None:
    """The type, if a `:` stands there."""
    return read_type(c) if c.accept(":") else None


def read_pattern(c: Cursor) -> n.Pattern:
    """A name, `_`, `{ fields }` or `[items]`."""
    start = c.starts[c.i]
    if c.accept("_"):
        return n.IgnorePattern(c.span(start))
    if c.accept("{"):
        fields = c.listed("}", _pattern_field)
        return n.ObjectPattern(c.span(start), fields)
    if c.kinds[c.i] == "[":
        c.deeper()
        c.i += 1
        items = c.listed("]", read_pattern)
        c.depth -= 1
        return n.ListPattern(c.span(start), items)
    return read_name(c, "a name, _, { } or [ ]")


def _pattern_field(c: Cursor) -> n.NamePattern:
    word = c.kinds[c.i]
    if word in KEYWORDS:
        hint = f"take that field separately: var x = value.{word}"
        c.fail("keyword", f"{word} is a reserved word and cannot be a variable", hint)
    return read_name(c, "a field's name or }")


def read_name(c: Cursor, what: str) -> n.NamePattern:
    """A new name, and its type if one is written."""
    start = c.starts[c.i]
    name = c.identifier(what)
    type_ = type_after_colon(c)
    return n.NamePattern(c.span(start), name, type_)


def number(c: Cursor) -> int | float:
    """The value of the number that was just stepped over."""
    text = c.values[c.i - 1]
    value = int(text) if text.isdigit() and len(text) <= _MAX_DIGITS else float(text)
    if value == inf:
        c.fail("number", "this number is too large", span=c.span(c.starts[c.i - 1]))
    return value
