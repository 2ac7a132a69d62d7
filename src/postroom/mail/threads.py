"""Threads: a message, what it led to, and what its senders say belongs to it; found from any of its messages.

Two links make a thread. The chain of causes (`chain_id`) joins a message with its answers and with everything that was
sent because of it; a correlation id joins what senders gave the same one. Each is one search in an index.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple

from postroom.core.message import Message
from postroom.core.states import State
from postroom.errors import UnknownMessage
from postroom.stores.contract import Query, Store

#: Messages are read from the store in pages of this size.
_PAGE: Final = 500


class _Link(NamedTuple):
    """What several messages of a thread have in common: a field, and its value."""

    field: str
    value: str


def thread_of(store: Store, id: str) -> list[Message]:
    """All messages of a thread that are kept, in the order in which they were sent. UnknownMessage when `id` is not kept.

    Each link is followed once. Links to messages that are no longer kept lead no further.
    """
    first = store.get(id)
    if first is None:
        raise UnknownMessage(f"this room has no message {id}")
    found: dict[str, Message] = {}
    followed: set[_Link] = set()
    links = _links_of(store, first)
    while links:
        followed |= links
        new = {message.id: message for link in links for message in _linked(store, link) if message.id not in found}
        found |= new
        links = {link for message in new.values() for link in _links_of(store, message)} - followed
        links = links or (_to_bare_answers(found.values()) - followed)
    return [found[id] for id in sorted(found)]


def _links_of(store: Store, message: Message) -> set[_Link]:
    links = {_Link("chain_id", _root_of(store, message))}
    return links if message.correlation_id is None else links | {_Link("correlation_id", message.correlation_id)}


def _root_of(store: Store, message: Message) -> str:
    """The id of the message that began its chain; of an answer that says nothing of one, that of its question."""
    if message.chain_id is None and message.answer_to is not None:
        question = store.get(message.answer_to)
        if question is not None:
            return question.chain_id or question.id
    return message.chain_id or message.id


def _to_bare_answers(found: Iterable[Message]) -> set[_Link]:
    """Links to answers that do not say to which chain they belong, as those of the board and of files made by hand."""
    messages = [*found]
    answered = {message.answer_to for message in messages}
    return {
        _Link("answer_to", message.id)
        for message in messages
        if message.exact_state is State.ANSWERED and message.id not in answered
    }


def _linked(store: Store, link: _Link) -> list[Message]:
    """The messages that have this link; of a chain, also the message that began it."""
    if link.field == "correlation_id":
        return [*store.find_all(Query(correlation_id=link.value, limit=_PAGE))]
    if link.field == "answer_to":
        return [*store.find_all(Query(answer_to=link.value, limit=_PAGE))]
    began = store.find(Query(ids=(link.value,), limit=1)).messages
    return [*began, *store.find_all(Query(chain_id=link.value, limit=_PAGE))]
