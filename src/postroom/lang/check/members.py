"""The kinds of members, as far as they are known: of `self`, of mailboxes, of strings, lists and objects."""

from __future__ import annotations

from typing import Final

from postroom.lang.values.attributes import METHODS, PROPERTIES

from .kinds import ANY, BOOLEAN, INT, LIST, NULL, NUMBER, STRING, Kind

SELF: Final = {"session": Kind("session"), "delegate": Kind("delegate")}
SESSION: Final = {"id": STRING, "timestamp": STRING, "dir": STRING, "mailbox": Kind("mailroom")}
MAILBOX: Final = {"send": Kind("send"), "receive": Kind("receive")}

_TEXTS: Final = Kind("list", element=STRING)
#: The kind of a call's result, for members that always give the same; of all others nothing is known.
_GIVES: Final = {
    "string": {
        **dict.fromkeys(("upper", "lower", "toUpperCase", "toLowerCase", "trim", "trimStart", "trimEnd"), STRING),
        **dict.fromkeys(("replace", "slice", "repeat", "padStart", "padEnd"), STRING),
        **dict.fromkeys(("startsWith", "endsWith", "includes", "contains"), BOOLEAN),
        "split": _TEXTS, "lines": _TEXTS, "indexOf": INT, "number": NUMBER,
    },
    "list": {
        **dict.fromkeys(("slice", "concat", "reverse", "sort", "map", "filter", "flat"), LIST),
        "push": INT, "insert": NULL, "join": STRING, "includes": BOOLEAN, "contains": BOOLEAN, "indexOf": INT, "sum": NUMBER,
    },
    "object": {"keys": _TEXTS, "values": LIST, "entries": LIST, "has": BOOLEAN},
    "number": {"round": NUMBER, "floor": INT, "ceil": INT, "abs": NUMBER},
}  # fmt: skip


def members_of(kind: Kind) -> set[str]:
    """Every name that can stand after the dot of such a value."""
    if kind.name in {"session", "mailbox"}:
        return set(SESSION if kind.name == "session" else MAILBOX)
    name = {"int": "number", "list": "array"}.get(kind.name, kind.name)
    return {*METHODS.get(name, ()), *PROPERTIES.get(name, ()), *(kind.fields or ())}


def kind_of_member(kind: Kind, name: str) -> Kind | None:
    """The kind of a member; ANY when it is not known, None when there is certainly none."""
    if kind.name in {"session", "mailbox"}:
        return (SESSION if kind.name == "session" else MAILBOX).get(name)
    if kind.fields is not None and name in kind.fields:
        return kind.fields[name]
    if kind.name in {"object", "list", "string", "int", "number"}:
        if name in members_of(kind):
            return _method(kind, name)
        return None if kind.name != "object" or kind.closed else ANY
    return None if kind.name in {"boolean", "null", "function", "job", "builtin", "method"} else ANY


def _method(kind: Kind, name: str) -> Kind:
    if name == "length":
        return INT
    if name in {"first", "last"}:
        return kind.element or ANY
    gives = _GIVES.get("number" if kind.name == "int" else kind.name, {})
    return Kind("method", element=gives.get(name, ANY))
