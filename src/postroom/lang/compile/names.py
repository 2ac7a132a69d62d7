"""Names of programs as names of Python, and small pieces of Python trees.

Patchwork has scopes of blocks and Python of functions, so a name that is declared twice in one function gets a number.
"""

from __future__ import annotations

import ast
import keyword
from collections import ChainMap
from collections.abc import Iterable
from typing import Any, Final, TypeVar

from postroom.lang.syntax import nodes as n

#: The runtime is known by this name in compiled programs; names of the compiler's own begin with it and `_`.
RUNTIME: Final = "pw"
_HIDDEN: Final = f"_{RUNTIME}_"
_RESERVED: Final = frozenset(
    [*keyword.kwlist, *keyword.softkwlist, RUNTIME, "self", "default", "main_block", "error", "Exception"]
)


#: A piece of Python that has a place.
Placed = TypeVar("Placed", bound=ast.expr | ast.stmt | ast.excepthandler)


def mangled(name: str) -> str:
    """A name that Python takes too. Two names never become one: those that end in `_` already get one more.

    Python gives names that begin with `__` another meaning in classes, which traits become, and some in modules: none
    does after this, and those that begin as these then do are moved too (tests/lang/test_compiler.py).
    """
    if name.startswith(("__", _HIDDEN)):
        return f"_{RUNTIME}{name}"
    bare = name.rstrip("_")
    clashes = bare in _RESERVED or bare.startswith(f"{RUNTIME}_")
    return f"{name}_" if clashes else name


class Names:
    """The names of one Python function, scope by scope. `outer` is the function around it, for steps of prompts."""

    def __init__(self, globals: Iterable[str], outer: Names | None = None) -> None:
        self._scopes: ChainMap[str, str] = ChainMap()
        self._own: set[str] = set()
        self.taken: set[str] = {*globals, "self", RUNTIME, *(outer.taken if outer else ())}
        self._outer = outer
        #: Names of functions around this one that are set in it.
        self.nonlocals: set[str] = set()

    def open(self) -> None:
        """A block begins."""
        self._scopes = self._scopes.new_child()

    def close(self) -> None:
        """The innermost block ends; its names are known no more."""
        self._scopes = self._scopes.parents

    def declare(self, name: str) -> str:
        """A new name in the innermost block; returns what it is called in Python."""
        found = self._free(mangled(name))
        self._own.add(found)
        self._scopes[name] = found
        return found

    def own(self, purpose: str) -> str:
        """A name for the compiler's own use."""
        return self._free(f"{RUNTIME}_{purpose}")

    def _free(self, wanted: str) -> str:
        """The name, with a number when it is taken."""
        found, number = wanted, 2
        while found in self.taken:
            found, number = f"{wanted}_{number}", number + 1
        self.taken.add(found)
        return found

    def find(self, name: str) -> str | None:
        """The name in Python of a local name; None when there is none."""
        own = self._scopes.get(name)
        return self._outer.find(name) if own is None and self._outer else own

    def find_to_set(self, name: str) -> str | None:
        """The same for a name that is about to be set, which Python wants to be told of in inner functions."""
        own = self._scopes.get(name)
        if own is not None or self._outer is None:
            return own
        found = self._outer.find_to_set(name)
        if found is not None:
            self.nonlocals.add(found)
        return found

    def mark_set(self, found: str) -> None:
        """An inner function sets this name of Python: if it is not this function's own, it must be told so too."""
        if self._outer is not None and found not in self._own:
            self.nonlocals.add(found)


# Pieces of Python


def load(name: str) -> ast.expr:
    """The value of a name."""
    return ast.Name(id=name, ctx=ast.Load())


def store(name: str) -> ast.Name:
    """A name that is set."""
    return ast.Name(id=name, ctx=ast.Store())


def constant(value: Any) -> ast.expr:
    """A constant."""
    return ast.Constant(value=value)


def attribute(value: ast.expr, name: str) -> ast.expr:
    """`value.name`."""
    return ast.Attribute(value=value, attr=name, ctx=ast.Load())


def call(function: str | ast.expr, *args: ast.expr, **named: ast.expr) -> ast.expr:
    """A call: of a function of the runtime when it is given by name."""
    callee = attribute(load(RUNTIME), function) if isinstance(function, str) else function
    keywords = [ast.keyword(arg=name, value=value) for name, value in named.items()]
    return ast.Call(func=callee, args=list(args), keywords=keywords)


def listed(items: list[ast.expr]) -> ast.expr:
    """A list."""
    return ast.List(elts=items, ctx=ast.Load())


def walrus(name: str, value: ast.expr) -> ast.expr:
    """`name := value`."""
    return ast.NamedExpr(target=store(name), value=value)


def item_of(value: ast.expr, key: str | int) -> ast.expr:
    """`value[key]`."""
    return ast.Subscript(value=value, slice=constant(key), ctx=ast.Load())


def assign(name: str, value: ast.expr) -> ast.stmt:
    """`name = value`."""
    return ast.Assign(targets=[store(name)], value=value)


def thunk(value: ast.expr) -> ast.expr:
    """`lambda: value`."""
    found = ast.parse("lambda: 0", mode="eval").body
    assert isinstance(found, ast.Lambda)
    found.body = value
    return found


def function(name: str, params: list[str], body: list[ast.stmt], decorators: list[ast.expr]) -> ast.FunctionDef:
    """A function, made from a template: which fields a definition has differs between versions of Python."""
    found = ast.parse("def f(): pass").body[0]
    assert isinstance(found, ast.FunctionDef)
    found.name = name
    found.args.args = [ast.arg(arg=param) for param in params]
    found.body = body or [ast.Pass()]
    found.decorator_list = decorators
    return found


def class_(name: str, base: ast.expr, body: list[ast.stmt]) -> ast.ClassDef:
    """A class, made from a template too."""
    found = ast.parse("class C(B): pass").body[0]
    assert isinstance(found, ast.ClassDef)
    found.name, found.bases, found.body = name, [base], body or [ast.Pass()]
    return found


def at(node: n.Node, made: Placed) -> Placed:
    """Let a piece of Python stand where its source stands. Parts that have no place of their own get it later."""
    span = node.span
    source, line, end_line = span.source, span.line, span.end_line
    made.lineno, made.end_lineno = line, end_line
    made.col_offset = _bytes(source.line_text(line), span.column - 1)
    made.end_col_offset = _bytes(source.line_text(end_line), span.end_column - 1)
    return made


def _bytes(line: str, characters: int) -> int:
    """Python counts columns in bytes of UTF-8."""
    return characters if line.isascii() else len(line[:characters].encode("utf-8", "replace"))
