"""The types of the checker, called kinds: declared, or inferred. An unknown kind is `ANY`, and fits all."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from postroom.lang.syntax import nodes as n


@dataclass(frozen=True, eq=False)
class Kind:
    """One kind of value. `name` is one of: any null boolean int number string list object function job module
    self session mailroom mailbox union.
    """

    name: str
    element: Kind | None = None  # of a list, when all items are of one kind
    items: tuple[Kind, ...] | None = None  # of a list whose items are all written down
    fields: dict[str, Kind] | None = None  # of an object
    optional: frozenset[str] = frozenset()
    closed: bool = False  # an object whose type is written: it has these fields and no others
    options: tuple[Kind, ...] = ()  # of a union
    value: object = None  # the one value of a literal
    declared: n.Function | None = None  # of a function or a job
    title: str = ""  # the name under which the type was declared

    def __str__(self) -> str:
        """In an error's words."""
        if self.title:
            return self.title
        if self.name == "union":
            return " | ".join(map(str, self.options))
        if self.name == "list":
            return f"[{self.element}]" if self.element and self.element.name != "any" else "a list"
        if self.value is not None and self.name in {"string", "number", "int", "boolean"}:
            return f'"{self.value}"' if self.name == "string" else str(self.value).lower()
        return _SAID.get(self.name, self.name)


_SAID: Final = {
    "int": "a whole number",
    "number": "a number",
    "string": "a string",
    "boolean": "true or false",
    "object": "an object",
    "function": "a function",
    "job": "a called worker",
    "module": "a module",
    "mailbox": "a mailbox",
}

ANY: Final = Kind("any")
NULL: Final = Kind("null")
BOOLEAN: Final = Kind("boolean")
INT: Final = Kind("int")
NUMBER: Final = Kind("number")
STRING: Final = Kind("string")
LIST: Final = Kind("list", element=ANY)
OBJECT: Final = Kind("object")

_PLAIN: Final = {"array": LIST, **{kind.name: kind for kind in (STRING, NUMBER, INT, BOOLEAN, NULL, ANY, OBJECT, LIST)}}
#: The types that every program knows, and the kind of value each stands for.
TYPE_NAMES: Final = {**_PLAIN, "float": NUMBER, "bool": BOOLEAN, "void": NULL}
#: Of these nothing is known that could be wrong.
UNKNOWN: Final = frozenset(["any", "union"])


def plain_kind(name: str) -> Kind:
    """The kind that a plain name stands for; ANY when it stands for none."""
    return _PLAIN.get(name, ANY)


def kind_of_type(node: n.TypeNode, types: Mapping[str, n.TypeDecl], seen: tuple[str, ...] = ()) -> Kind:
    """The kind that a written type stands for. A type that stands inside itself is ANY there."""
    if isinstance(node, n.TypeName):
        if node.name in TYPE_NAMES:
            return TYPE_NAMES[node.name]
        declared = types.get(node.name)
        if declared is None or node.name in seen:
            return ANY
        kind = kind_of_type(declared.type, types, (*seen, node.name))
        return Kind(**{**vars(kind), "title": node.name})
    if isinstance(node, n.TypeLiteral):
        return literal_kind(node.value)
    if isinstance(node, n.TypeList):
        return Kind("list", element=kind_of_type(node.element, types, seen))
    if isinstance(node, n.TypeObject):
        fields = {field.name: kind_of_type(field.type, types, seen) for field in node.fields}
        return Kind("object", fields=fields, optional=frozenset(f.name for f in node.fields if f.optional), closed=True)
    return Kind("union", options=tuple(kind_of_type(option, types, seen) for option in node.options))


def literal_kind(value: str | float | bool | None) -> Kind:
    """The kind of one value."""
    name = {bool: "boolean", str: "string", int: "int", type(None): "null"}.get(type(value), "number")
    return Kind(name, value=value)


def fits(given: Kind, wanted: Kind) -> bool:
    """Whether a value of one kind may stand where another is wanted; true whenever it is not known to be wrong."""
    if given.name == "any" or wanted.name == "any":
        return True
    if given.name == "union":
        return any(fits(option, wanted) for option in given.options)
    if wanted.name == "union":
        return any(fits(given, option) for option in wanted.options)
    if wanted.value is not None and given.value is not None and wanted.value != given.value:
        return False
    if wanted.name in {"int", "number"} and given.name in {"int", "number"}:
        return wanted.name == "number" or given.name == "int" or given.value is None
    if given.name != wanted.name:
        return False
    if wanted.name == "list":
        return all(fits(item, wanted.element or ANY) for item in given.items or [given.element or ANY])
    return wanted.name != "object" or not misfits(given, wanted)


def misfits(given: Kind, wanted: Kind) -> str:
    """The fault of an object's fields, in words; "" when none is known."""
    if given.fields is None or wanted.fields is None:
        return ""
    for name, kind in wanted.fields.items():
        if name not in given.fields:
            if name not in wanted.optional:
                return f"the field {name} is missing"
        elif not fits(given.fields[name], kind):
            return f"the field {name} must be {kind}, not {given.fields[name]}"
    if wanted.closed and (more := [name for name in given.fields if name not in wanted.fields]):
        return f"there is no field {more[0]} in it"
    return ""


def common(kinds: Iterable[Kind]) -> Kind:
    """One kind for several values: theirs, if they are all of one plain kind, else ANY."""
    found = list(kinds)
    names = {kind.name for kind in found}
    if names == {"int", "number"}:
        return NUMBER
    return plain_kind(found[0].name) if len(names) == 1 and found[0].name in _PLAIN else ANY
