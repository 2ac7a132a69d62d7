"""Retention per channel: finished messages of a channel are deleted sooner than the room's own limits would delete them.

The limits are kept in a cell, {channel: {"age_s": …, "count": …, "bytes": …}}, each a number or null. The process that keeps house applies them, by what every store can do: count, find, purge.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec
from msgspec.structs import asdict, replace

from postroom.core.message import check_name, check_span, payload_text
from postroom.core.states import FINISHED, State
from postroom.errors import Fault, InvalidMessage, raise_faults
from postroom.stores.cells import DELETE
from postroom.stores.cells import update as update_cell
from postroom.stores.contract import RETENTION, Query, Store

MAX_CHANNELS: Final = 1000
#: Dead letters stay until somebody puts them back or purges them, here as everywhere.
_FORGETTABLE: Final = FINISHED - {State.DEAD}
_PAGE: Final = 500
#: So many messages are deleted in one step.
_DELETED_AT_ONCE: Final = 5000
_TRIES: Final = 3


class Retention(msgspec.Struct, frozen=True):
    """What is kept of the finished messages of one channel; None: no limit of that kind."""

    age_s: float | None = None  # sent so many seconds ago at most
    count: int | None = None  # so many at most, the newest
    bytes: int | None = None  # the newest whose payloads have so many bytes together


def read(store: Store) -> dict[str, Retention]:
    """The limits of each channel that has some."""
    cell = store.cell_read(RETENTION)
    return {} if cell is None else {channel: Retention(**limits) for channel, limits in sorted(cell.value.items())}


def change(store: Store, channel: str, retention: Retention) -> None:
    """Set the limits of a channel; without any, remove them. Raises InvalidMessage, and nothing was changed."""
    _check(channel, retention)

    def changed(value: Any) -> Any:
        others = {name: limits for name, limits in (value or {}).items() if name != channel}
        if retention == Retention():
            return others or DELETE if channel in (value or {}) else None
        if len(others) >= MAX_CHANNELS:
            raise InvalidMessage("channel", f"at most {MAX_CHANNELS} channels of a room have limits of their own")
        return others | {channel: asdict(retention)}

    update_cell(store, RETENTION, changed)


def _check(channel: object, retention: Retention) -> None:
    faults: list[Fault] = []
    check_name("channel", channel, faults)
    if retention.age_s is not None:
        check_span("age_s", retention.age_s, faults, zero=False)
    for name in ("count", "bytes"):
        value = getattr(retention, name)
        if value is not None and (type(value) is not int or not 0 <= value < 2**62):
            faults.append(Fault(name, f"must be a whole number of 0 or more, not {value!r}"))
    raise_faults(faults)


def apply(store: Store) -> int:
    """Delete what the limits of the channels no longer allow to keep. Returns how many messages."""
    return sum(_apply(store, channel, retention) for channel, retention in read(store).items())


def _apply(store: Store, channel: str, retention: Retention) -> int:
    finished = Query(channels=(channel,), states=_FORGETTABLE)
    deleted = 0
    if retention.age_s is not None:
        old = replace(finished, sent_before_ms=store.clock.wall_ms() - round(retention.age_s * 1000))
        deleted += _delete(store, old, store.count(old))
    if retention.count is not None:
        deleted += _delete(store, finished, store.count(finished) - retention.count)
    if retention.bytes is not None:
        deleted += _delete(store, finished, store.count(finished) - _newest_within(store, retention.bytes, finished))
    return deleted


def _newest_within(store: Store, most_bytes: int, finished: Query) -> int:
    """How many of the newest messages have so many bytes together."""
    size = number = 0
    for message in store.find_all(replace(finished, order="newest", limit=_PAGE)):
        size += len(payload_text(message.payload, []).encode())
        if size > most_bytes:
            break
        number += 1
    return number


def _delete(store: Store, query: Query, number: int) -> int:
    """Delete the oldest so many. Returns how many went: on NATS one that is being archived goes at the next try."""
    deleted = tries = 0
    while deleted < number and tries < _TRIES:
        gone = store.purge(replace(query, limit=min(number - deleted, _DELETED_AT_ONCE)))
        deleted, tries = deleted + gone, 0 if gone else tries + 1
    return deleted
