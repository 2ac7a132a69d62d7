"""Dynamic types: the kind of a value, and how it is shown in an error's sentence."""

from __future__ import annotations

import json
from typing import Final

_KINDS: Final[dict[type, str]] = {
    type(None): "null", bool: "boolean", int: "number", float: "number", str: "string", list: "array", range: "array",
    dict: "object",
}  # fmt: skip


def kind_of(value: object) -> str:
    """The answer of `typeof`: null boolean number string array object function."""
    for kind in type(value).__mro__:
        if kind in _KINDS:
            return _KINDS[kind]
    return "function" if callable(value) else "thing"


def shown(value: object) -> str:
    """A value in an error's sentence: its kind, and the value itself when it is short."""
    kind = kind_of(value)
    if kind in ("null", "function", "thing"):
        return kind if kind != "thing" else f"a {type(value).__name__}"
    said = json.dumps(value, ensure_ascii=False, default=str)
    return f"the {kind} {said if len(said) <= 40 else said[:37] + '...'}"
