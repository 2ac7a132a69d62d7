"""Search in everything that a room keeps, whole payloads too, a bounded step at a time.

A step ends after so many hits, messages or seconds, and says how far it came: the page goes on from there, or stops and
says so (tests/doors/web/test_searching.py).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from msgspec.structs import replace

from postroom.core.message import Message
from postroom.core.search_query import has_terms, parse_query
from postroom.core.states import PUBLIC_STATES, states_named
from postroom.errors import InvalidMessage
from postroom.mail.handles import handle_of
from postroom.mail.searching import has_text as payload_has_text
from postroom.mail.view import search_of
from postroom.room import Room
from postroom.stores.contract import Page, Query

from .lines import text_of

#: What can be asked for. `agent` sent, gets or holds it; `to` is its recipient; `free` (any text): it has none;
#: `thread` is the id of the message that began a chain of causes; `text` stands anywhere in a message; `search` is a
#: full-text search (`core.search_query`).
FIELDS: Final = ("agent", "to", "free", "channel", "type", "state", "thread", "text", "search")
#: A step looks at no more messages than this, and ends after this time, in seconds.
MAX_SEARCHED: Final = 5000
STEP_S: Final = 0.5
#: So many messages are in memory at once; a payload may have a megabyte.
_PAGE: Final = 250


class Found(NamedTuple):
    """The hits of one step, in the query's order, and where to go on; `cursor` None: everything was searched."""

    messages: list[Message]
    cursor: int | None
    #: When the last message that was looked at was sent; None when there was none.
    reached_ms: int | None


def matches(message: Message, wanted: Mapping[str, str]) -> bool:
    """Whether a message is among those asked for: every field that is given must hold, text anywhere in it.

    Of a full-text search the words must hold; what its fields ask for is part of the query (`_query`).
    """
    agent, thread = wanted.get("agent"), wanted.get("thread")
    return (
        (not agent or agent in (message.from_agent, message.to_agent, message.claimed_by))
        and wanted.get("to", message.to_agent) == message.to_agent
        and not ("free" in wanted and message.to_agent is not None)
        and wanted.get("channel", message.channel) == message.channel
        and wanted.get("type", message.type) == message.type
        and wanted.get("state", message.state) == message.state
        and (not thread or thread in (message.id, message.chain_id))
        and ("text" not in wanted or has_text(message, wanted["text"]))
        and ("search" not in wanted or has_terms(message.payload, parse_query(wanted["search"]).terms))
    )


def has_text(message: Message, text: str) -> bool:
    """Whether a message has this text: in its payload (`mail.searching`) or as rows show that, its type, error or names.

    Large and small letters are alike.
    """
    wanted = text.casefold()
    marks = (message.type, message.error, message.id, handle_of(message.id), message.correlation_id)
    return (
        any(wanted in mark.casefold() for mark in marks if mark)
        or payload_has_text(message, text)
        or wanted in text_of(message.payload, None).translate(_BREAKS).casefold()
    )


#: Rows show what was written in several lines as one.
_BREAKS: Final = str.maketrans("\n\t", "  ")


def search(room: Room, wanted: Mapping[str, str], limit: int, cursor: int | None = None, **more: Any) -> Found:
    """One step through the room from a cursor; `more` are other parts of the query (its order, moments, ids)."""
    ends_ns = room.clock.steady_ns() + round(STEP_S * 1e9)
    # without a wish, all of a page is wanted: a whole page of hits and no more
    if wanted.get("thread"):  # a few searches, where the room would be gone through
        led_to = room.store.find_all(Query(chain_id=wanted["thread"], limit=_PAGE))
        more["ids"] = (wanted["thread"], *(message.id for message in led_to))
    query = query_of(room, wanted, limit=_PAGE if wanted else limit, **more)
    found: list[Message] = []
    searched, reached_ms = 0, None
    while True:
        page, left = _look(room, query, wanted, cursor)
        found += [message for message in page.messages if matches(message, left)]
        searched += len(page.messages)
        cursor = page.cursor
        if page.messages:
            reached_ms = page.messages[-1].timestamp_ms
        if cursor is None or len(found) >= limit or searched >= MAX_SEARCHED or room.clock.steady_ns() >= ends_ns:
            return Found(found, cursor, reached_ms)


def _look(room: Room, query: Query, wanted: Mapping[str, str], cursor: int | None) -> tuple[Page, Mapping[str, str]]:
    """The next page of messages, and what of the wish is still to be checked: not the words, where an index found them."""
    if "search" in wanted and query.order == "newest":
        page = room.store.find_text(query, parse_query(wanted["search"]).terms, cursor)
        if page is not None:
            return page, {name: text for name, text in wanted.items() if name != "search"}
    return room.store.find(query, cursor), wanted


def query_of(room: Room, wanted: Mapping[str, str], **more: Any) -> Query:
    """The part of a wish that the store itself can look for."""
    parts: dict[str, Any] = {"to_agent": wanted.get("to"), "type": wanted.get("type")}
    if "channel" in wanted:
        parts["channels"] = (wanted["channel"],)
    if "state" in wanted:
        if wanted["state"] not in PUBLIC_STATES:
            raise InvalidMessage("state", f"must be one of {', '.join(PUBLIC_STATES)}, not {wanted['state'][:40]!r}")
        parts["states"] = states_named(wanted["state"])
    query = Query(**parts, **more)
    return query if "search" not in wanted else _narrowed(query, search_of(parse_query(wanted["search"]), room.clock))


def _narrowed(query: Query, asked: Query) -> Query:
    """A query and what the fields of a full-text search ask for besides; nothing, where the two exclude each other."""
    changes: dict[str, Any] = {}
    for name in ("from_agent", "to_agent", "type", "channels", "states", "sent_after_ms", "sent_before_ms"):
        one, other = getattr(query, name), getattr(asked, name)
        if one is None or other is None or one == other:
            changes[name] = one if other is None else other
        elif name == "states":
            changes[name] = one & other
        elif name.endswith("_ms"):
            changes[name] = max(one, other) if name == "sent_after_ms" else min(one, other)
        else:
            return replace(query, ids=())
    return replace(query, **changes)
