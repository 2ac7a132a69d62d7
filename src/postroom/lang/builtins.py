"""The functions that every program knows: their names, and how many values they take.

The checks read this table; the runtime has the functions themselves, and a test holds the two together.
"""

from __future__ import annotations

from typing import Final, NamedTuple

#: The worker that a run starts with, when no other is named.
MAIN: Final = "main"
ANY_NUMBER: Final = 1_000_000


class Signature(NamedTuple):
    """How many values a function takes, and the kind of value it gives ("" when that depends)."""

    least: int
    most: int
    gives: str = ""


BUILTINS: Final = {
    "cat": Signature(1, 1, "string"),  # a value as JSON, indented by two
    "json": Signature(1, 1),  # a text of JSON as a value
    "print": Signature(0, ANY_NUMBER, "null"),  # values with a space between; ends the line if they do not
    "log": Signature(0, ANY_NUMBER, "null"),  # a line for people; needs import std.log
    "len": Signature(1, 1, "number"),
    "keys": Signature(1, 1, "array"),
    "values": Signature(1, 1, "array"),
    "typeof": Signature(1, 1, "string"),
    "read": Signature(1, 1, "string"),  # a file's text
    "write": Signature(2, 2, "null"),  # a file, a value
    "exists": Signature(1, 1, "boolean"),  # whether there is such a file
    "askMany": Signature(2, 4, "object"),  # agents of the room, a question, how many are enough, milliseconds
}

#: Functions that must be imported from std before they are known.
ONLY_IMPORTED: Final = frozenset(["log"])
