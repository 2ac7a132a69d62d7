"""Finding messages by words: what it means that a message has a text, for the command line, the page and programs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from msgspec.structs import replace

from postroom.core.message import Message, readable
from postroom.stores.contract import Query, Store

_PAGE: Final = 500
#: A list in the order of claims has no pages.
_EVERYTHING: Final = 10**15


def has_text(message: Message, text: str) -> bool:
    """Whether a message's payload has this text, large or small letters alike: as lists show it, or in one of its strings."""
    wanted = text.casefold()
    return wanted in readable(message.payload).casefold() or any(
        wanted in each.casefold() for each in _strings(message.payload)
    )


def containing(store: Store, query: Query, text: str) -> Iterator[Message]:
    """All messages that a query means (its limit aside) and that have the text, in the query's order, read in pages."""
    everything = replace(query, limit=_EVERYTHING if query.order == "claim" else _PAGE)
    return (message for message in store.find_all(everything) if has_text(message, text))


def _strings(payload: Any) -> Iterator[str]:
    """The strings of a payload as they are: in JSON, quotes and new lines in them are written otherwise."""
    todo = [payload]
    while todo:
        value = todo.pop()
        if isinstance(value, str):
            yield value
        elif isinstance(value, dict):
            todo += value
            todo += value.values()
        elif isinstance(value, list):
            todo += value
