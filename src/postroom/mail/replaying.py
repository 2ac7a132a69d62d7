"""Sending kept messages again: which ones, once each, and a page at a time."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Final

from postroom.core.message import Draft, Message
from postroom.stores.contract import Query

from .gateway import Gateway

#: So many are stored in one step.
PAGE: Final = 500
#: What a replay has from the message that it repeats.
_REPEATED: Final = (
    "payload", "to_agent", "channel", "type", "priority", "correlation_id", "chain_id", "hop_count", "trace",
)  # fmt: skip


def originals(gateway: Gateway, query: Query, among: Collection[str] | None) -> list[str]:
    """The ids of the messages to send again, the oldest first; of a message and its replays, the first alone."""
    found: dict[str, str] = {}
    for message in gateway.store.find_all(query):
        if among is None or message.id in among:
            found.setdefault(message.replay_of or message.id, message.id)
    return list(found.values())


def send_again(gateway: Gateway, query: Query, ids: list[str], by: str | None, lane: str) -> Iterator[list[str]]:
    """Send those of the query's messages, and give the new ids of each page as soon as it is stored.

    They are read again rather than kept in memory; one that is no longer kept is left out.
    """
    wanted = set(ids)
    drafts: list[Draft] = []
    for message in gateway.store.find_all(query) if wanted else ():
        if message.id in wanted:
            wanted.discard(message.id)
            drafts.append(_again(message, by, lane, gateway.config.max_deliveries))
        if drafts and (len(drafts) == PAGE or not wanted):
            yield gateway.put(drafts, limited=False)
            drafts = []
        if not wanted:  # what comes after these was sent since, by this replay or by others
            return
    if drafts:
        yield gateway.put(drafts, limited=False)


def _again(message: Message, by: str | None, lane: str, max_deliveries: int) -> Draft:
    return Draft(
        **{name: getattr(message, name) for name in _REPEATED},
        from_agent=by or message.from_agent,
        lane=lane,
        max_deliveries=max_deliveries,
        replay_of=message.replay_of or message.id,
    )
