"""Types as JSON schemas: what a model is told to answer with, and what answers and arguments are held against.

Types are read, written as a schema once, when a program is compiled, and known by that schema alone from then on.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

from postroom.lang.syntax import nodes as n

from .kinds import kind_of, shown
from .values import equal, parsed

Schema = dict[str, Any]
Types = Mapping[str, n.TypeNode]

ANY: Final[Schema] = {}
#: The word of JSON schemas for each type that every program knows.
_WORDS: Final = {name: name for name in ("string", "number", "boolean", "null", "object")} | {
    "float": "number", "int": "integer", "bool": "boolean", "void": "null", "list": "array",
}  # fmt: skip
#: The words of schemas, as people say them.
_SAID: Final = {"integer": "a whole number", "array": "a list", "object": "an object", "null": "null"}
_MAX_FAULTS: Final = 8
#: Where a schema names one that it has under `$defs`.
_SHARED: Final = "#/$defs/"


def schema_of(node: n.TypeNode, types: Types) -> Schema:
    """The schema of a type; names are looked up in `types`. A name that stands for nothing known here means any value.

    A type that has itself inside is written once, under `$defs`, and named where it stands again.
    """
    writer = _Writer(types)
    schema = _looked_up(writer.schema(node), writer.shared)
    return {**schema, "$defs": writer.shared} if schema and writer.shared else schema


class _Writer:
    """Writes types as schemas; `shared` are those that have themselves inside."""

    def __init__(self, types: Types) -> None:
        self.shared: dict[str, Schema] = {}
        self._types = types
        self._open: list[str] = []
        self._met_again: set[str] = set()

    def schema(self, node: n.TypeNode, names: tuple[str, ...] = ()) -> Schema:
        """`names` are those that stand for this very type, without a list or an object in between."""
        if isinstance(node, n.TypeName):
            return self._named(node.name, names)
        if isinstance(node, n.TypeLiteral):
            return {"enum": [node.value]}
        if isinstance(node, n.TypeList):
            return {"type": "array", "items": self.schema(node.element)}
        if isinstance(node, n.TypeObject):
            return self._object(node)
        return _union([self.schema(option, names) for option in node.options])

    def _named(self, name: str, names: tuple[str, ...]) -> Schema:
        if name not in self._types or name in names:  # one that stands for nothing but itself tells nothing
            return {"type": _WORDS[name]} if name in _WORDS else {}
        if name in self.shared or name in self._open:
            self._met_again.add(name)
            return {"$ref": _SHARED + name}
        self._open.append(name)
        written = self.schema(self._types[name], (*names, name))
        self._open.pop()
        if name not in self._met_again:
            return written
        self.shared[name] = written
        return {"$ref": _SHARED + name}

    def _object(self, node: n.TypeObject) -> Schema:
        return {
            "type": "object",
            "properties": {field.name: self.schema(field.type) for field in node.fields},
            "required": [field.name for field in node.fields if not field.optional],
            "additionalProperties": False,
        }


def _union(options: list[Schema]) -> Schema:
    if all(option.keys() == {"enum"} for option in options):
        return {"enum": [value for option in options for value in option["enum"]]}
    return ANY if ANY in options else {"anyOf": options}


def _looked_up(schema: Schema, shared: Mapping[str, Schema]) -> Schema:
    """The schema itself, where only its name is written."""
    while "$ref" in schema:
        schema = shared[schema["$ref"].removeprefix(_SHARED)]
    return schema


# Values against schemas


def faults(value: Any, schema: Schema, place: str = "", shared: Mapping[str, Schema] | None = None) -> list[str]:
    """The faults of a value, each with its place; none when it is of that shape. Fields too many are no fault."""
    shared = schema.get("$defs", shared or {})
    schema = _looked_up(schema, shared)
    if "anyOf" in schema:
        fits = not all(faults(value, option, place, shared) for option in schema["anyOf"])
    elif "enum" in schema:
        fits = any(equal(value, allowed) for allowed in schema["enum"])
    else:
        fits = "type" not in schema or _is(value, schema["type"])
    if not fits:
        return [f"{place or 'it'} must be {said(schema)}, not {shown(value)}"]
    found: list[str] = []
    if isinstance(value, list) and "items" in schema:
        for index, item in enumerate(value):
            found += faults(item, schema["items"], f"{place}[{index}]", shared)
    if isinstance(value, dict) and "properties" in schema:
        found += [f"{place or 'it'} lacks the field {name!r}" for name in schema["required"] if name not in value]
        for name, inner in schema["properties"].items():
            if name in value:
                found += faults(value[name], inner, f"{place}.{name}" if place else name, shared)
    return found[:_MAX_FAULTS]


def _is(value: object, word: str) -> bool:
    if word == "integer":
        return kind_of(value) == "number" and value == int(value)  # type: ignore[call-overload]
    return kind_of(value) == word


def said(schema: Schema) -> str:
    """The values that a schema allows, in words."""
    if "$ref" in schema:
        return f"a {schema['$ref'].removeprefix(_SHARED)}"
    if "anyOf" in schema:
        return " or ".join(said(option) for option in schema["anyOf"])
    if "enum" in schema:
        return " or ".join(json.dumps(value, ensure_ascii=False) for value in schema["enum"])
    if schema.get("type") == "array" and schema.get("items"):
        return f"a list, each item {said(schema['items'])}"
    if schema.get("type") == "object" and schema.get("properties"):
        return f"an object with {', '.join(schema['properties'])}"
    word = schema.get("type")
    return _SAID.get(word, f"a {word}") if word else "any value"


# Texts that people or models wrote


def is_text(schema: Schema) -> bool:
    """Whether a text is taken as it is."""
    return not schema or schema == {"type": "string"}


def from_text(text: str, schema: Schema) -> Any:
    """The value of that shape that a text tells; ValueError, which says what is wrong, when it tells none.

    Text is taken as it is where a string is wanted, or one of several; everything else is read as JSON.
    """
    if is_text(schema):
        return text
    problem = ""
    try:
        value = parsed(text)
    except Exception as error:  # noqa: BLE001  whatever it is, it is not JSON
        value, problem = text, str(error)
    try:
        wrong = faults(value, schema)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    if wrong and not faults(text, schema):
        return text
    if wrong:
        raise ValueError(problem if problem and not _wants_text(schema) else "; ".join(wrong))
    return value


def _wants_text(schema: Schema) -> bool:
    return "enum" in schema or any(map(_wants_text, schema.get("anyOf", ())))
