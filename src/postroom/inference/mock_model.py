"""A model that is none: the same question gets the same answer. For tests, and to try things without a model."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from itertools import count
from typing import Any, ClassVar, Final

from .model import Completion, Model, ModelRequest

_WORDS: Final = ("yes", "no", "perhaps", "later", "first", "then", "we", "look", "at", "the", "plan", "again", "well")


#: In a value of a type that has itself inside, it stands so often inside itself; then no more than it must.
_DEEPEST: Final = 2


class MockModel(Model):
    """Answers by chance that is a function of the seed and the question; with a schema, by a value that obeys it."""

    kind: ClassVar[str] = "mock"

    def __init__(self, seed: str = "") -> None:
        self.name = seed

    def _answer(self, asked: ModelRequest) -> Completion:
        chance = chances(self.name, asked.system or "", asked.prompt)
        if asked.schema is None:
            text = _some_words(chance, min(asked.max_tokens, 3 + int(next(chance) * 9)))
        else:
            text = json.dumps(value_for(asked.schema, chance))
        return Completion(text, self.spec, len(asked.prompt.split()), len(text.split()))


def _some_words(chance: Iterator[float], count: int) -> str:
    return " ".join(_WORDS[int(next(chance) * len(_WORDS))] for _ in range(count))


def chances(*parts: object) -> Iterator[float]:
    """Numbers from 0 up to, not including, 1; the same ones for the same parts, on every machine."""
    key = hashlib.sha256(json.dumps([str(part) for part in parts]).encode()).digest()
    for number in count():
        block = hashlib.sha256(key + number.to_bytes(8)).digest()
        for place in range(0, 32, 8):
            yield int.from_bytes(block[place : place + 7]) / 2**56


def value_for(schema: Mapping[str, Any], chance: Iterator[float]) -> Any:
    """Some value that a JSON schema allows. Known of schemas: types, enums, bounds, lists, objects, `$defs`."""
    return _value(schema, chance, schema.get("$defs", {}), 0)


def _value(schema: Mapping[str, Any], chance: Iterator[float], shared: Mapping[str, Any], depth: int) -> Any:
    """`depth` says how many shared schemas stand around this one: at some point the value has to end."""
    if "$ref" in schema:
        schema, depth = shared[schema["$ref"].rpartition("/")[2]], depth + 1
    if "const" in schema:
        return schema["const"]
    if "enum" in schema:
        return schema["enum"][int(next(chance) * len(schema["enum"]))]
    options = schema.get("anyOf") or schema.get("oneOf")
    if options:
        if depth > _DEEPEST:
            options = [option for option in options if "$ref" not in option] or options
        return _value(options[int(next(chance) * len(options))], chance, shared, depth)
    kind = schema.get("type", "object" if "properties" in schema else "string")
    if isinstance(kind, list):
        kind = kind[0]
    if kind == "object":
        fields = _fields(schema, depth)
        return {name: _value(inner, chance, shared, depth) for name, inner in fields.items()}
    if kind == "array":
        return [_value(schema.get("items", {}), chance, shared, depth) for _ in range(_size(schema, chance, depth))]
    return _plain_value(kind, schema, chance)


def _fields(schema: Mapping[str, Any], depth: int) -> Mapping[str, Any]:
    fields: Mapping[str, Any] = schema.get("properties", {})
    if depth <= _DEEPEST:
        return fields
    return {name: inner for name, inner in fields.items() if name in schema.get("required", fields)}


def _size(schema: Mapping[str, Any], chance: Iterator[float], depth: int) -> int:
    if depth > _DEEPEST:
        return int(schema.get("minItems", 0))
    return max(int(schema.get("minItems", 1)), min(int(schema.get("maxItems", 3)), 1 + int(next(chance) * 3)))


def _plain_value(kind: str, schema: Mapping[str, Any], chance: Iterator[float]) -> Any:
    if kind == "boolean":
        return next(chance) < 0.5
    if kind in ("integer", "number"):
        low, high = schema.get("minimum", 0), schema.get("maximum", 1 if kind == "number" else 100)
        drawn = low + next(chance) * (high - low)
        return round(drawn) if kind == "integer" else round(drawn, 4)
    if kind == "null":
        return None
    return _some_words(chance, 1 + int(next(chance) * 5))
