"""Finding messages: by a text in them (`peek(text=…)`), and by words, in a store's index or by reading (full-text search)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, overload

from msgspec.structs import replace

from postroom.core.clock import iso
from postroom.core.message import Message, readable
from postroom.core.search_query import Term, has_terms
from postroom.stores.contract import Page, Query, Store

_PAGE: Final = 500
#: A search in a store without an index reads so many of the latest messages, and says so when there are more.
MAX_READ: Final = 10_000
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


# Full-text search


class Hits(Sequence[Message]):
    """The messages that a search found, the newest first: a sequence, with what is to be known about the search.

    `more`: there are older hits than the limit let through. `read` is None when the search used an index, which knows
    every message; otherwise it is how many messages were read, and `reached` is the time of the oldest of them.
    `complete` is False when older messages were not searched. `note` says so in one sentence, or is "".
    """

    def __init__(self, messages: list[Message], *, more: bool, read: int | None, reached_ms: int | None) -> None:
        self.messages = messages  # the hits, newest first
        self.more = more  # whether there are older hits than the limit let through
        self.read = read  # how many messages were read; None: an index was asked
        #: When the oldest of those was sent, if older ones were not read; else None.
        self.reached = None if reached_ms is None else iso(reached_ms)

    @property
    def complete(self) -> bool:
        """Whether everything that the room keeps was searched, up to the limit of hits."""
        return self.reached is None

    @property
    def note(self) -> str:
        """How far the search looked, when that was not everything."""
        if self.complete:
            return ""
        return (
            f"only the latest {self.read} messages were searched, back to {self.reached}: this room has no index of words; "
            "narrow the search with from:, to:, in:, type: or before:"
        )

    @overload
    def __getitem__(self, place: int) -> Message: ...
    @overload
    def __getitem__(self, place: slice) -> list[Message]: ...
    def __getitem__(self, place: int | slice) -> Message | list[Message]:
        return self.messages[place]

    def __len__(self) -> int:
        return len(self.messages)

    def __repr__(self) -> str:
        return f"<Hits {len(self.messages)} message{'' if len(self.messages) == 1 else 's'}{f', {self.note}' * (not self.complete)}>"


def with_terms(
    store: Store, query: Query, terms: tuple[Term, ...], told: Callable[[int, int], object] | None = None
) -> Hits:
    """The newest messages that a query means and that have the terms, at most `query.limit`: by the index, or by reading."""
    limit = query.limit
    page = store.find_text(replace(query, limit=limit + 1), terms, None, told)
    if page is not None:
        return Hits(page.messages[:limit], more=len(page.messages) > limit, read=None, reached_ms=None)
    query, cursor = replace(query, order="newest", limit=_PAGE), None
    hits: list[Message] = []
    read, page = 0, Page([], None)
    while len(hits) <= limit:
        page = store.find(query, cursor)
        hits += [message for message in page.messages if has_terms(message.payload, terms)]
        read, cursor = read + len(page.messages), page.cursor
        if cursor is None or read >= MAX_READ:
            break
    stopped = cursor is not None and len(hits) <= limit
    reached_ms = page.messages[-1].timestamp_ms if stopped else None
    return Hits(hits[:limit], more=len(hits) > limit, read=read, reached_ms=reached_ms)
