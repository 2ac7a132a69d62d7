"""The tables of a files room without rows for messages that have ended: those are read from the log when they are asked for.

The feed is here too: of every row that it was stored, and its last change.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right, insort
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from postroom.core.clock import Clock
from postroom.core.config import Config
from postroom.core.message import Draft, LedgerEntry, id_of
from postroom.core.states import FINISHED, State
from postroom.stores.rules import discard
from postroom.stores.tables.tables import FORGETTABLE, Row, Tables

from .kept import KeptMessage, KeptMessages
from .log import Log, RowRecord
from .names import us_of_key

#: So many rows that were read from the log are remembered within a step.
_MOST_BORROWED: Final = 1000
#: What of a draft stands in the log.
FIXED: Final = tuple(name for name in Draft.__struct_fields__ if name not in ("payload", "waiter"))


@dataclass(slots=True, eq=False)
class FileRow(Row):
    """A row, and its file: the name it has in the inbox, and the path where it lies."""

    file: str = ""
    path: str = ""
    #: Where it lay before: for readers that come while it is being moved.
    before: str = ""
    #: Dropped by hand: what stands beside the envelope belongs to the payload.
    dropped: bool = False
    #: The copy in the outbox of its sender, when it is a completion signal.
    signal: str | None = None
    since_ms: int = 0
    #: Its numbers in the feed: when it was stored, and its last change.
    first: int = 0
    number: int = 0
    news: LedgerEntry | None = None
    #: Where the log tells of it; the last spot may be one that a later one makes superfluous.
    spots: list[int] = field(default_factory=list)
    superfluous: bool = False
    #: It was read from the log to be looked at: a message that has ended, and is not in the tables.
    is_kept: bool = False

    def told_at(self, spot: int, *, superfluous: bool) -> None:
        """The log tells of it at one more spot."""
        if self.superfluous:
            self.spots.pop()
        self.spots.append(spot)
        self.superfluous = superfluous


class FileRows(dict[int, FileRow]):
    """The rows of messages that have not ended; and, by their keys alone, all others, read from the log."""

    def __init__(self, kept: KeptMessages, read: Callable[[int], FileRow]) -> None:
        super().__init__()
        self._kept = kept
        self._read = read
        self.borrowed: dict[int, FileRow] = {}

    def __missing__(self, key: int) -> FileRow:
        row = self.borrowed.get(key)
        if row is None:
            if len(self.borrowed) >= _MOST_BORROWED:
                self.borrowed.clear()
            row = self.borrowed[key] = self._read(key)
        return row

    def __contains__(self, key: object) -> bool:
        return super().__contains__(key) or (isinstance(key, int) and key in self._kept)

    def get(self, key: int, default: Any = None) -> Any:
        """The row of that key, or what is given."""
        return self[key] if key in self else default  # noqa: SIM401  it is what is being made here


class RestingTables(Tables):
    """The tables of one room; the rows of messages that have ended leave them at the end of each step."""

    rows: FileRows  # type: ignore[assignment]

    def __init__(self, config: Config, clock: Clock, salt: int, base_ns: int, log: Log) -> None:
        super().__init__(config, clock, salt, base_ns)
        self._log = log
        self.kept = KeptMessages()
        self.rows = FileRows(self.kept, self._read_kept)
        self.resting: dict[int, None] = {}  # what may have ended with this step
        self.signals: defaultdict[str, list[int]] = defaultdict(list)  # path in an outbox -> key
        # the feed, by number: of a row only its first and its last number count
        self._numbers, self._numbered_keys = array("q"), array("q")
        self._in_order = True

    def keys(self, states: frozenset[State] | None = None) -> list[int]:
        """The keys in their order. Messages are numbered before they are stored, so they may come in another."""
        return sorted([*self.kept.keys(states), *self.rows])

    def sort_rows(self) -> None:
        """Here rows need no order."""

    def count(self) -> int:
        return len(self.kept) + len(self.rows)

    # Messages that have ended. Their rows leave the tables, and are read from the log when somebody asks for them; one
    # that is changed comes back first.

    def _read_kept(self, key: int) -> FileRow:
        kept, row = self.kept.get(key), None
        if kept is None:
            raise KeyError(key)
        for spot in kept.spots:
            each = self._log.row_at(spot)
            row = self.known_row(key, each.fixed or []) if row is None else row
            self.take_over(row, each)
        assert row is not None
        row.first, row.number, row.spots, row.is_kept = kept.first, kept.number, list(kept.spots), True
        return row

    def put_to_rest(self) -> None:
        """Let the rows go of messages that have ended. Nobody uses them any more: a step, or a line of the log, is over."""
        self.rows.borrowed.clear()
        resting, self.resting = self.resting, {}
        for key in resting:
            row = dict.get(self.rows, key)
            if row is not None and row.state in FINISHED and row.waiter is None and all(row.spots):
                self._rest(row)

    def _rest(self, row: FileRow) -> None:
        key = row.key
        self.finished.pop(key, None)
        for index, name in self.names_of(row):
            discard(getattr(self, index), name, key)
            self.kept.names.add((index, name), key)
        self.kept.put(KeptMessage(key, row.state, row.since_ms, row.size_bytes, row.first, row.number, row.spots))
        self.ended[row.claimed_by, row.state] += 1
        del self.rows[key]

    def before_change(self, row: Row) -> None:
        assert isinstance(row, FileRow)
        if row.is_kept:
            self._wake(row)

    def _wake(self, row: FileRow) -> None:
        """A message that has ended is about to be changed."""
        key = row.key
        row.is_kept = False
        self.kept.take(key)
        _take_one(self.ended, (row.claimed_by, row.state))
        for index, name in self.names_of(row):
            self.kept.names.discard((index, name), key)
            insort(getattr(self, index)[name], key)
        if row.state in FORGETTABLE:
            self.finished[key] = row.since_ms
        self.rows[key] = row
        self.resting[key] = None

    def named(self, index: str, name: object) -> Sequence[int]:
        found = super().named(index, name)
        kept = [key for key in self.kept.names.find((index, name)) if (index, name) in self.names_of(self.rows[key])]
        return sorted([*found, *kept]) if kept else found

    def names_of(self, row: Row) -> Iterator[tuple[str, object]]:
        assert isinstance(row, FileRow)
        yield from super().names_of(row)
        if row.signal is not None:
            yield "signals", row.signal

    def is_signal(self, path: str) -> bool:
        """Whether a file in an outbox is the copy of a message."""
        return path in self.signals or bool(self.kept.names.find(("signals", path)))

    def finished_first(self) -> Iterator[tuple[int, int, int]]:
        yield from self.kept.oldest(FORGETTABLE)
        yield from super().finished_first()

    def finished_count(self) -> int:
        ended = sum(count for (_, state), count in self.ended.items() if state in FORGETTABLE)
        return ended + len(self.finished)

    def last_ms(self) -> int:
        """The room's time when something last happened to a message."""
        key, since_ms = self.kept.last()
        rows = self.rows.values()
        return max(us_of_key(max([key, *self.rows])) // 1000, since_ms, *(row.since_ms for row in rows))

    # The feed: of every row that it was stored, and its last change, in the order of their numbers

    def news_after(self, number: int, limit: int | None = None) -> Iterator[tuple[int, int, LedgerEntry]]:
        self._put_in_order()
        start = bisect_right(self._numbers, number)
        given, last = 0, None
        for each in range(start, len(self._numbers)):
            at, key = self._numbers[each], self._numbered_keys[each]
            if at not in self._numbers_of(key):
                continue
            if limit is not None and given >= limit and at != last:
                return
            row, given, last = self.rows[key], given + 1, at
            if at == row.first:
                yield at, key, row.ledger[0]
            if at == row.number and row.news is not None and row.news != row.ledger[0]:
                yield at, key, row.news

    def last_change(self, rows: Sequence[Row]) -> int:
        return max((row.number for row in rows if isinstance(row, FileRow)), default=0)

    def _numbers_of(self, key: int) -> tuple[int, ...]:
        """The numbers of a message in the feed: when it was stored, and its last change."""
        row = dict.get(self.rows, key)
        return (row.first, row.number) if row is not None else self.kept.numbers(key) or ()

    def _put_in_order(self) -> None:
        if not self._in_order:
            pairs = sorted(zip(self._numbers, self._numbered_keys, strict=True))
            self._numbers, self._numbered_keys = array("q", [p[0] for p in pairs]), array("q", [p[1] for p in pairs])
            self._in_order = True

    def forget_news(self) -> None:
        if len(self._numbers) > 1000 + 3 * self.count():
            every = zip(self._numbers, self._numbered_keys, strict=True)
            left = [(at, key) for at, key in every if at in self._numbers_of(key)]
            self._numbers, self._numbered_keys = array("q", [p[0] for p in left]), array("q", [p[1] for p in left])

    def numbered(self, row: FileRow, number: int) -> None:
        """A row's last change has this number in the feed."""
        row.number = number
        row.first = row.first or number
        self.tell_at(number, row.key)

    def tell_at(self, number: int, key: int) -> None:
        self._in_order = self._in_order and (not self._numbers or number >= self._numbers[-1])
        self._numbers.append(number)
        self._numbered_keys.append(key)

    @staticmethod
    def take_over(row: FileRow, each: RowRecord) -> bool:
        """Make a row what a line of the log says. Returns whether that is news for the feed."""
        row.before = each.was
        (
            row.path, row.state, row.wake_ms, row.token, row.deliveries, row.claimed_by, row.owner, row.waiter,
            row.last_delivered_ms, row.error, row.expires_ms,
        ) = (
            each.path, State(each.state), each.wake_ms, each.token, each.deliveries, each.claimed_by, each.owner,
            each.waiter, each.last_delivered_ms, each.error, each.expires_ms,
        )  # fmt: skip
        row.since_ms = each.since_ms
        row.ledger += each.entries
        news = each.news or (each.entries[-1] if each.entries else None)
        if news is not None:
            row.news = news
        return news is not None

    def known_row(self, key: int, fixed: list[Any]) -> FileRow:
        timestamp_ms, size_bytes, file, dropped, signal, first, values, *own_id = fixed
        draft = Draft(payload=None, **dict(zip(FIXED, values, strict=False)))  # lines of layout 2 have fewer
        return FileRow(
            key=key, id=own_id[0] if own_id else id_of(key, self.salt), draft=draft, timestamp_ms=timestamp_ms,
            expires_ms=None, state=State.READY, size_bytes=size_bytes, file=file, dropped=dropped, signal=signal,
            first=first, moved=bool(own_id),
        )  # fmt: skip

    def keys_by_number(self) -> Iterator[int]:
        """The key of each message, in the order of their last changes."""
        self._put_in_order()
        for at, key in zip(self._numbers, self._numbered_keys, strict=True):
            numbers = self._numbers_of(key)
            if numbers and numbers[1] == at:
                yield key


def _take_one(counts: Counter[tuple[str | None, State]], name: tuple[str | None, State]) -> None:
    counts[name] -= 1
    if not counts[name]:
        del counts[name]
