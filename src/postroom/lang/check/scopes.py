"""Names and where they are known: a file's own, a function's, a block's."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from postroom.lang.syntax import nodes as n
from postroom.lang.syntax.program import LoadedModule
from postroom.lang.syntax.source import Span

from .kinds import ANY, Kind


@dataclass
class Symbol:
    """What a name stands for. `what` is one of: variable parameter function trait module builtin."""

    name: str
    what: str
    span: Span | None
    kind: Kind = ANY
    module: LoadedModule | None = None


class Scope:
    """The names of one block, and the scope around it."""

    __slots__ = ("names", "outer", "types")

    def __init__(self, outer: Scope | None = None) -> None:
        self.outer = outer
        self.names: dict[str, Symbol] = {}
        self.types: dict[str, n.TypeDecl] = {}

    def find(self, name: str) -> Symbol | None:
        scope: Scope | None = self
        while scope is not None:
            if name in scope.names:
                return scope.names[name]
            scope = scope.outer
        return None

    def find_type(self, name: str) -> n.TypeDecl | None:
        scope: Scope | None = self
        while scope is not None:
            if name in scope.types:
                return scope.types[name]
            scope = scope.outer
        return None

    def known(self) -> Iterator[str]:
        """Every name that is known here."""
        scope: Scope | None = self
        while scope is not None:
            yield from scope.names
            scope = scope.outer

    def known_types(self) -> Iterator[str]:
        scope: Scope | None = self
        while scope is not None:
            yield from scope.types
            scope = scope.outer
