"""Validation of JSON-RPC lines before the SDK reads them, which passes over lines that it cannot read.

A client that gets no answer waits for ever. So each line that is no message gets an error: with the request's id where
that can be read, with null where it cannot, as JSON-RPC 2.0 says (tests/doors/test_stdio.py).
"""

from __future__ import annotations

import json
from typing import Any, Final, Literal, NamedTuple

import msgspec
from msgspec import UNSET, Raw, UnsetType

PARSE_ERROR: Final = -32700
INVALID_REQUEST: Final = -32600


class FrameFault(NamedTuple):
    """An error to answer with."""

    id: int | str | None
    code: int
    message: str


#: A line may have so many characters; four times what a request over HTTP may have.
MAX_LINE: Final = 16 * 1024 * 1024
#: What is told of a longer one. It is not kept, so its id is not known.
TOO_LONG: Final = FrameFault(None, INVALID_REQUEST, f"Invalid Request: the line is longer than {MAX_LINE} characters")


class _RpcFrame(msgspec.Struct):
    """The fields that every message may have."""

    jsonrpc: Literal["2.0"]
    id: int | str | UnsetType | None = UNSET
    method: str | UnsetType = UNSET
    params: dict[str, Raw] | UnsetType | None = UNSET
    result: Raw | UnsetType = UNSET
    error: Raw | UnsetType = UNSET


_frame: Final = msgspec.json.Decoder(_RpcFrame)


def fault_of(line: str) -> FrameFault | None:
    """The fault of a line; None for a message. Answers of the client's are never answered, right or wrong."""
    try:
        frame = _frame.decode(line)
    except msgspec.ValidationError as error:
        return _fault(line, str(error))
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return _fault(line, "a text in it is not Unicode")
    if frame.method is UNSET and frame.result is UNSET and frame.error is UNSET:
        id = None if frame.id is UNSET else frame.id
        return FrameFault(id, INVALID_REQUEST, "Invalid Request: it has no method")
    if frame.method is not UNSET and frame.id is None:
        return FrameFault(None, INVALID_REQUEST, "Invalid Request: the id must be a string or a whole number")
    return None


def _fault(line: str, problem: str) -> FrameFault | None:
    """No JSON, or JSON that is no message. A lone surrogate in a text hides neither its kind nor its id."""
    try:
        given = json.loads(line)
    except (ValueError, RecursionError):
        return FrameFault(None, PARSE_ERROR, "Parse error: the line is not JSON")
    if isinstance(given, dict) and "method" not in given and ("result" in given or "error" in given):
        return None
    return FrameFault(_id_of(given), INVALID_REQUEST, f"Invalid Request: {problem}")


def _id_of(given: Any) -> int | str | None:
    id = given.get("id") if isinstance(given, dict) else None
    if isinstance(id, str) and not any("\ud800" <= char <= "\udfff" for char in id):  # half a character cannot be sent
        return id
    return id if isinstance(id, int) and not isinstance(id, bool) else None
