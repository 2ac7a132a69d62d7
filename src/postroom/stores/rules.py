"""Rules of the stores that judge messages in Python: which messages a query means, and how the figures are counted."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Final, TypeVar

from postroom.core.config import Config
from postroom.core.states import PUBLIC_NAME, PUBLIC_STATES, State
from postroom.errors import InvalidMessage

from .contract import MailboxFigures, Query, Stats, WorkDone

_T = TypeVar("_T")
#: How the states of messages count as their last holder's work.
PROCESSED: Final = frozenset({State.ACKED, State.ANSWERED, State.REFUSED})
FAILED: Final = frozenset({State.READY, State.DELAYED, State.DEAD})
#: A ledger takes no more notes when it is this large.
LEDGER_BYTES: Final = 64 * 1024


def check_word(field: str, word: str, known: Sequence[str]) -> None:
    """Raise InvalidMessage unless the word is known."""
    if word not in known:
        raise InvalidMessage(field, f"must be one of {', '.join(known)}, not {word!r}")


def later_ms(now_ms: int, seconds: float) -> int:
    """A moment after now; never now itself."""
    return now_ms + max(1, round(seconds * 1000))


def discard(table: dict[Any, Any], name: object, item: object) -> None:
    """Take an item out of an index, and the index's entry away with its last one."""
    table[name].remove(item)
    if not table[name]:
        del table[name]


def matches(query: Query, envelope: Any, row: Any, state: Callable[[Any], State]) -> bool:
    """Whether a message is one that a query asks for: its envelope (a draft's fields), and the row that keeps it.

    `state` judges a row as the reader sees it.
    """
    seen_by = (query.visible_to,) if query.channels is None else (query.visible_to, None)
    return (
        (query.ids is None or row.id in query.ids)
        and (query.states is None or state(row) in query.states)
        and (query.channels is None or envelope.channel in query.channels)
        and (query.visible_to is None or envelope.to_agent in seen_by)
        and query.to_agent in (None, envelope.to_agent)
        and query.from_agent in (None, envelope.from_agent)
        and query.type in (None, envelope.type)
        and query.correlation_id in (None, envelope.correlation_id)
        and query.chain_id in (None, envelope.chain_id)
        and query.answer_to in (None, envelope.answer_to)
        and query.claimed_by in (None, row.claimed_by)
        and query.order_key in (None, envelope.order_key)
        and query.concerns in (None, envelope.from_agent, envelope.to_agent, row.claimed_by)
        and not (query.waiting and (row.waiter is None or row.state == State.AWAITED))
        and (query.sent_after_ms is None or row.timestamp_ms >= query.sent_after_ms)
        and (query.sent_before_ms is None or row.timestamp_ms < query.sent_before_ms)
    )


def figures(
    messages: Iterable[tuple[State, str | None, str, int]],
    store: dict[str, Any],
    ended: Iterable[tuple[State, int]] = (),
) -> Stats:
    """The figures of messages: each with its state, its recipient (or nobody), its channel, and when it was sent.

    `ended`: how many more are in a state that ends a message.
    """
    states = dict.fromkeys(PUBLIC_STATES, 0)
    for state, count in ended:
        states[PUBLIC_NAME[state]] += count
    sent_ms: defaultdict[tuple[str | None, str], list[int]] = defaultdict(list)
    for state, to_agent, channel, timestamp_ms in messages:
        states[PUBLIC_NAME[state]] += 1
        if state in (State.READY, State.BLOCKED):
            sent_ms[to_agent, channel].append(timestamp_ms)
    names = sorted(sent_ms, key=lambda name: (name[0] or "", name[1]))
    mailboxes = [MailboxFigures(*name, len(sent_ms[name]), min(sent_ms[name])) for name in names]
    return Stats(states=states, mailboxes=mailboxes, store=store)


def work_done(states: Sequence[State], gone: WorkDone) -> WorkDone:
    """The work of an agent: by the states of the messages that it had last, and its work on messages no longer kept."""
    processed = sum(state in PROCESSED for state in states) + gone.processed
    return WorkDone(processed, sum(state in FAILED for state in states) + gone.errors)


def no_longer_kept(
    finished: Iterable[tuple[_T, int, int]], config: Config, now_ms: int, count: int, size: int
) -> Iterator[_T]:
    """Of so many finished messages of that size, those that the settings no longer allow to keep.

    `finished` are the oldest of them, oldest first, each with when it was finished (room time) and its size.
    """
    for message, finished_ms, its_size in finished:
        too_old = finished_ms + config.keep_s * 1000 <= now_ms
        if not too_old and count <= config.keep_count and size <= config.keep_bytes:
            return
        yield message
        count -= 1
        size -= its_size
