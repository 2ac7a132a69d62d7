"""Short handles of messages: eight characters for people to read and type, made of the id and leading back to it.

The first digits of an id are its time and the last are the room's, so neither tells messages apart. A handle is made of
what lies between: the last 19 bits of the milliseconds (they come round every nine minutes) and all bits of the fraction,
stirred, so that neighbours look unlike each other. Two messages share one only if they were stored the same fraction of a
nanosecond apart from a multiple of that span.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from msgspec.structs import replace

from postroom.core.message import FRACTION_BITS, SALT_BITS, id_of
from postroom.core.states import State
from postroom.errors import InvalidMessage, UnknownMessage
from postroom.stores.contract import Query, Store

#: Digits and letters that are not taken for each other: no i, l, o, u.
_LETTERS: Final = "0123456789abcdefghjkmnpqrstvwxyz"
_LENGTH: Final = 8
_BITS: Final = 5 * _LENGTH
_ALL: Final = (1 << _BITS) - 1
#: An odd number, so that multiplying by it can be undone.
_STIR: Final = 0x9E3779B97F
_UNSTIR: Final = pow(_STIR, -1, 1 << _BITS)
_HANDLE: Final = re.compile(f"[{_LETTERS}]{{{_LENGTH}}}")
_ID: Final = re.compile(r"([0-9a-f]{8})-([0-9a-f]{4})-7([0-9a-f]{3})-([89ab][0-9a-f]{3})-([0-9a-f]{12})")
_PAGE: Final = 500
_OLDEST: Final = Query(order="oldest", limit=1)
_NEWEST: Final = Query(order="newest", limit=1)
assert _BITS > FRACTION_BITS


def handle_of(id: str) -> str:
    """The handle of a message; an id that is no UUIDv7, of a store that makes its own, is its own handle."""
    parts = _parts(id)
    if parts is None:
        return id
    bits = (parts[0] & _ALL) * _STIR & _ALL
    return "".join(_LETTERS[bits >> shift & 31] for shift in range(_BITS - 5, -1, -5))


def id_of_handle(store: Store, text: str) -> str:
    """The id behind a handle; an id is itself, without a look. Changes nothing.

    Costs two looks and one for every nine minutes of the room's time, where ids end alike: in memory, SQLite and files.
    Elsewhere (NATS) everything that is kept is gone through.
    Raises UnknownMessage; InvalidMessage, naming the ids, when several messages have this handle.
    """
    handle = text.lower()
    if _parts(handle) is not None:
        return handle
    if _HANDLE.fullmatch(handle) is None:
        if text and store.get(text) is not None:  # of a store that makes ids of another kind
            return text
        raise UnknownMessage(
            f"{text!r} is neither a message's id nor its handle, the {_LENGTH} characters that lists show"
        )
    found = list(_candidates(store, handle))
    if not found:
        raise UnknownMessage(f"this room has no message with the handle {handle}")
    if len(found) > 1:
        raise InvalidMessage(
            "id", f"{handle} is the handle of more than one message: {', '.join(found)}; give the whole id"
        )
    return found[0]


def newest(store: Store, agent: str | None, *, held: bool = False) -> str:
    """The newest message of the room; that an agent sent or claimed; or, `held`, that it holds. Raises UnknownMessage."""
    if agent is None:
        queries, what = [_NEWEST], "is kept in this room"
    elif held:
        queries, what = [replace(_NEWEST, states=frozenset({State.CLAIMED}), claimed_by=agent)], f"is held by {agent}"
    else:
        queries = [replace(_NEWEST, from_agent=agent), replace(_NEWEST, claimed_by=agent)]
        what = f"was sent or claimed by {agent}"
    found = [message.id for query in queries for message in store.find(query).messages]
    if not found:
        raise UnknownMessage(f"there is no last message: none {what}")
    return max(found)  # ids grow with time


def _parts(id: str) -> tuple[int, int] | None:
    """The key of an id, and the bits that are its room's; None for ids of another kind."""
    match = _ID.fullmatch(id)
    if match is None:
        return None
    last = int(match[4], 16)
    key = int(match[1] + match[2] + match[3], 16) << 9 | (last >> 5 & 0x1FF)
    return key, (last & 0x1F) << (SALT_BITS - 5) | int(match[5], 16)


def _candidates(store: Store, handle: str) -> Iterator[str]:
    ends = [message.id for query in (_OLDEST, _NEWEST) for message in store.find(query).messages]
    first, last = (_parts(id) for id in ends) if len(ends) == 2 else (None, None)
    if first is None or last is None or first[1] != last[1]:
        everything = store.find_all(Query(order="newest", limit=_PAGE))
        yield from (message.id for message in everything if handle_of(message.id) == handle)
        return
    low = _number_of(handle) * _UNSTIR & _ALL
    step, salt = 1 << _BITS, first[1]
    for key in range(first[0] + (low - first[0]) % step, last[0] + 1, step):
        id = id_of(key, salt)
        if store.get(id) is not None:
            yield id


def _number_of(handle: str) -> int:
    number = 0
    for letter in handle:
        number = number << 5 | _LETTERS.index(letter)
    return number
