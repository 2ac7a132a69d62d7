"""Reading a room in SQLite: messages as the clock sees them, and the feed.

Due, ended and expired are judged by the clock at the moment of reading, and the lives of owners by their locks; nothing
is written for it.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Sequence
from typing import Any, Final, NamedTuple

import msgspec

from postroom.core.message import DEFAULT_CHANNEL, Message, MessageT, MessageWithLedger
from postroom.core.states import WAITING, State
from postroom.errors import InvalidMessage
from postroom.stores.contract import ORDERS, Change, Page, Query

from .figures import Box, RoomFigures, is_about_boxes, is_meant, one_snapshot
from .rows import CHANGE, OWNER, SOURCES, STATE, WAITER, Row, StepTime, claim_order, naming, where
from .transactions import Transactions, whole

_to_json = msgspec.json.Encoder().encode
#: Of messages that are listed in the order of claims, so many more are looked up: some may be taken meanwhile.
_SPARE: Final = 10
#: Where mailboxes have more than that among them, reading everything in the order of claims is as fast.
_MOST_READ: Final = 10_000


class WordMatch(NamedTuple):
    """What to look for in the index of words (in FTS5's own language), and between which keys."""

    match: str
    first: int
    last: int


class RowReading:
    """Messages and the feed, as they are at one moment."""

    def __init__(self, steps: Transactions, figures: RoomFigures) -> None:
        self._steps = steps
        self._file = steps.file
        self._figures = figures

    def _messages(
        self, make: type[MessageT], rows: Sequence[Row], moment: StepTime, gone: Container[int] | None = None
    ) -> list[MessageT]:
        """Rows as messages. Which of their owners are gone is looked up, unless it is given."""
        steps = self._steps
        numbers = {number for row in rows for number in (row[OWNER], row[WAITER])} - {None}
        if not numbers <= steps.names.keys():
            steps.learn_processes()
        if gone is None:
            gone = self._gone({row[OWNER] for row in rows if row[STATE] == State.CLAIMED})
        return [steps.rows.message(make, row, moment, steps.names, gone=gone) for row in rows]

    def _gone(self, numbers: Iterable[int | None]) -> list[int]:
        """Of these processes, those that are gone. Each is asked for once in a look, and not for each row."""
        names, is_alive = self._steps.names, self._file.attendance.is_alive
        return [
            number for number in numbers if number is not None and number in names and is_alive(names[number]) is False
        ]

    def all_gone(self) -> list[int]:
        """Of the processes that hold or wait, those that are gone."""
        return self._gone(number for number, _ in self._steps.learn_processes())

    def get(self, id: str) -> MessageWithLedger | None:
        """See `Store.get`."""
        rows = self._file.execute("get", (self._steps.key(id),))
        for message in self._messages(MessageWithLedger, rows, self._steps.moment()):
            return message.fill(self._steps.rows.ledger(rows[0]))
        return None

    def find(self, query: Query, cursor: int | None, words: WordMatch | None = None) -> Page:
        """See `Store.find`. With `words`, of those messages that the index of words gives for them."""
        moment = self._steps.moment()
        if query.order not in ORDERS:
            raise InvalidMessage("order", f"must be one of {', '.join(ORDERS)}, not {query.order!r}")
        gone = None if query.states is None else self.all_gone()
        if query.order == "claim":
            return Page(self._messages(Message, self._in_claim_order(query, moment, gone or ()), moment, gone), None)
        condition, values = self.where(query)
        newest, source, key = query.order == "newest", "found", "key"
        if words is not None:
            source, key = "words_found", "mail_words.rowid"
            condition = f"mail_words MATCH :match AND {key} BETWEEN :first AND :last AND {condition}"
            values |= words._asdict()
        if cursor is not None:
            condition += f" AND {key} < :cursor" if newest else f" AND {key} > :cursor"
        rows = self._file.select(
            naming(
                gone or (),
                f"{self._file.statements[source]} WHERE {condition} "
                f"ORDER BY {key} {'DESC' if newest else ''} LIMIT :limit",
            ),
            {**values, "now": moment.now, "cursor": cursor, "limit": query.limit},
        )
        messages = self._messages(Message, rows, moment, gone)
        return Page(messages, rows[-1][0] if len(rows) == query.limit and rows else None)

    def count(self, query: Query) -> int:
        """See `Store.count`."""
        gone = [] if query.states is None else self.all_gone()
        counted = self._figures.count(query, gone)
        if counted is not None:
            return counted
        condition, values = self.where(query)
        values["now"] = self._steps.moment().now
        rows = self._file.select(naming(gone, f"{self._file.statements['count_found']} WHERE {condition}"), values)
        return int(rows[0][0])

    def where(self, query: Query) -> tuple[str, dict[str, Any]]:
        """The condition of a query as SQL and its bindings; `:now` and `:limit` are the caller's."""
        answer_to = self._steps.rows.reference(query.answer_to)
        keys = None if query.ids is None else _to_json(list(map(self._steps.key, query.ids))).decode()
        chain = None if query.chain_id is None else self._steps.key(query.chain_id)
        return where(query, self._file.statements, answer_to, keys, chain)

    def _in_claim_order(self, query: Query, moment: StepTime, gone: Iterable[int]) -> list[Row]:
        """What a receiver would get, best first: from the indexes that claims use, where the query allows it."""
        condition, values = self.where(query)
        first = self._first_ready(query, moment.now)
        if first is not None:
            values["candidates"] = _to_json([row[0] for row in first]).decode()
            parts = ["SELECT value FROM json_each(:candidates)", self._file.statements["late"]]
            parts += [self._file.statements[SOURCES[state]] for state in query.states or () if state in SOURCES]
            condition = f"key IN ({' UNION ALL '.join(parts)}) AND {condition}"
        found = f"{self._file.statements['found']} WHERE {condition} ORDER BY priority DESC, key LIMIT :limit"
        return self._file.select(naming(gone, found), {**values, "now": moment.now, "limit": query.limit})

    def _first_ready(self, query: Query, now: int) -> list[Row] | None:
        """The best rows that are ready in the mailboxes that a query means; None where reading everything is simpler."""
        if query.states is None or not query.states <= WAITING or not is_about_boxes(query):
            return None
        best: dict[Box, tuple[int, int]] = {}
        for box in self._figures.fronts():
            if is_meant(query, box.to_agent, box.channel):
                name, first = (box.to_agent, box.channel), (box.rank, box.key)
                best[name] = min(best.get(name, first), first)
        found: list[Row] = []
        wanted, read = query.limit + _SPARE, 0
        for to_agent, channel in sorted(best, key=best.__getitem__):
            # expired ones may stand first: what is behind them is no better
            if len(found) == wanted and best[to_agent, channel] > claim_order(found[-1]):
                break
            rows = self._of_box(to_agent, channel, now, wanted)
            read += len(rows)
            if read > _MOST_READ:
                return None
            found = sorted(found + rows, key=claim_order)[:wanted]
        return found

    def _of_box(self, to_agent: str | None, channel: str, now: int, limit: int) -> list[Row]:
        """The best rows of one mailbox."""
        if to_agent is None:
            return self._file.execute("claim_for_anyone", (channel, now, limit))
        if channel == DEFAULT_CHANNEL:
            return self._file.execute("claim_general", (to_agent, now, limit))
        return self._file.execute("claim_in_channel", (to_agent, now, limit, channel))

    @whole
    def events(self, after: int, limit: int) -> list[Change]:
        """See `Store.events`."""
        moment = self._steps.moment()
        with one_snapshot(self._file):
            stored = self._file.execute("stored_after", (after, limit))
            changed = self._file.execute("changed_after", (after, limit))
            changed += self._file.execute("claimed_after", (after, limit))
        messages = iter(self._messages(Message, stored + changed, moment))
        entries = [_stored(row, next(messages)) for row in stored]
        entries += [self._changed(row, next(messages)) for row in changed]
        entries.sort(key=lambda change: change.number)
        if len(entries) <= limit:
            return entries
        last = entries[limit - 1].number
        return [entry for entry in entries if entry.number <= last]

    def _changed(self, row: Row, message: Message) -> Change:
        ledger = self._steps.rows.ledger(row)
        if len(ledger) == 1:  # only stored: an answer that became ordinary mail
            return Change(row[CHANGE], "unheld", message.timestamp_ms, None, None, message)
        last = ledger[-1]
        return Change(row[CHANGE], last.event, last.time_ms, last.agent, last.detail, message)


def _stored(row: Row, message: Message) -> Change:
    detail = None if message.replay_of is None else f"replay of {message.replay_of}"
    return Change(row[0], "stored", message.timestamp_ms, message.from_agent, detail, message)
