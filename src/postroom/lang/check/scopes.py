"""Scopes and symbols: the names that are known in a place: a file's own, a function's, a block's."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

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


@dataclass(slots=True, eq=False)
class Scope:
    """The names of one block, and the scope around it."""

    outer: Scope | None = None
    names: dict[str, Symbol] = field(default_factory=dict)
    types: dict[str, n.TypeDecl] = field(default_factory=dict)

    def _outward(self) -> Iterator[Scope]:
        scope: Scope | None = self
        while scope is not None:
            yield scope
            scope = scope.outer

    def find(self, name: str) -> Symbol | None:
        return next((scope.names[name] for scope in self._outward() if name in scope.names), None)

    def find_type(self, name: str) -> n.TypeDecl | None:
        return next((scope.types[name] for scope in self._outward() if name in scope.types), None)

    def known(self) -> Iterator[str]:
        """Every name that is known here."""
        return (name for scope in self._outward() for name in scope.names)

    def known_types(self) -> Iterator[str]:
        return (name for scope in self._outward() for name in scope.types)
