"""Reading a room in SQLite: messages as the clock sees them, the feed, figures, cells.

Due, ended and expired are judged by the clock at the moment of reading, and the lives of owners by their locks; nothing
is written for it.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final, NamedTuple

import msgspec

from postroom.core.message import Message, MessageT, MessageWithLedger
from postroom.core.states import PUBLIC_NAME, State
from postroom.errors import InvalidMessage
from postroom.stores.contract import ORDERS, Change, MailboxFigures, Page, Query, Want

from .rows import CHANGE, OWNER, STATE, WAITER, Row, StepTime, where
from .transactions import Transactions, whole

_to_json = msgspec.json.Encoder().encode
_GONE: Final = "/*gone*/"
#: The states that count as waiting in a mailbox.
_IN_BOX: Final = (State.READY, State.BLOCKED)


class WordMatch(NamedTuple):
    """What to look for in the index of words (in FTS5's own language), and between which keys."""

    match: str
    first: int
    last: int


class RowReading:
    """Messages, the feed and figures, as they are at one moment."""

    def __init__(self, steps: Transactions, candidates: Callable[[Want, int], list[Row]]) -> None:
        self._steps = steps
        self._file = steps.file
        self._candidates = candidates

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

    def _all_gone(self) -> list[int]:
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
        gone = None if query.states is None else self._all_gone()
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
            _naming(
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
        condition, values = self.where(query)
        values["now"] = self._steps.moment().now
        gone = () if query.states is None else self._all_gone()
        rows = self._file.select(_naming(gone, f"{self._file.statements['count_found']} WHERE {condition}"), values)
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
        simple = msgspec.structs.replace(query, order="claim", limit=100, visible_to=None, channels=None, states=None)
        if query.visible_to is not None and query.states == frozenset({State.READY}) and simple == Query(order="claim"):
            want = Want(agent=query.visible_to, lease_s=0, channels=query.channels, limit=query.limit)
            values["candidates"] = _to_json([row[0] for row in self._candidates(want, moment.now)]).decode()
            late = self._file.statements["late"]
            condition = f"(key IN (SELECT value FROM json_each(:candidates)) OR key IN ({late})) AND {condition}"
        found = f"{self._file.statements['found']} WHERE {condition} ORDER BY priority DESC, key LIMIT :limit"
        return self._file.select(_naming(gone, found), {**values, "now": moment.now, "limit": query.limit})

    @whole
    def events(self, after: int, limit: int) -> list[Change]:
        """See `Store.events`."""
        moment = self._steps.moment()
        with self._one_snapshot():
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

    @contextmanager
    def _one_snapshot(self) -> Iterator[None]:
        """Several reads of one state of the room, in one read transaction. For methods that are `whole`.

        `whole` rolls back where the block raises. Here it would be too late: an interrupt may leave this generator to
        be collected in the middle of another transaction of the thread.
        """
        self._file.select("BEGIN")
        yield
        self._file.select("COMMIT")

    def _changed(self, row: Row, message: Message) -> Change:
        ledger = self._steps.rows.ledger(row)
        if len(ledger) == 1:  # only stored: an answer that became ordinary mail
            return Change(row[CHANGE], "unheld", message.timestamp_ms, None, None, message)
        last = ledger[-1]
        return Change(row[CHANGE], last.event, last.time_ms, last.agent, last.detail, message)

    # Figures

    @whole
    def figures(self) -> tuple[dict[str, int], list[MailboxFigures]]:
        """Messages by public state, and the mailboxes; see `Stats`."""
        moment = self._steps.moment()
        rows: list[Row] = []
        gone = self._all_gone()
        with self._one_snapshot():
            for name in ("count_ready_general", "count_ready_in_channel", "count_ready_for_anyone"):
                rows += self._file.execute(name)
            blocked = self._file.execute("count_blocked")
            counts: dict[int, int] = {State.BLOCKED: sum(row[2] for row in blocked)}
            for name in ("count_claimed", "count_delayed", "count_held", "count_finished"):
                counts |= dict(self._file.execute(name))
            overdue = self._file.select(_naming(gone, self._file.statements["overdue"]), {"now": moment.now})
            counts[State.READY] = sum(row[2] for row in rows)
            boxes = {(to_agent, channel): [depth, oldest] for to_agent, channel, depth, oldest in rows}
            for to_agent, channel, depth, oldest in blocked:
                box = boxes.setdefault((to_agent, channel), [0, oldest])
                box[:] = box[0] + depth, min(box[1], oldest)
            for state, judged, to_agent, channel, count, oldest in overdue:
                counts[state] = counts.get(state, 0) - count
                counts[judged] = counts.get(judged, 0) + count
                if (state in _IN_BOX) != (judged in _IN_BOX):
                    box = boxes.setdefault((to_agent, channel), [0, oldest])
                    box[0] += count if judged in _IN_BOX else -count
                    box[1] = min(box[1], oldest) if judged in _IN_BOX else box[1]
            keys = _to_json([oldest for _, oldest in boxes.values()]).decode()
            sent_ms: dict[int, int] = dict(self._file.execute("sent_at", (keys,)))
        states = dict.fromkeys(PUBLIC_NAME.values(), 0)
        for state, count in counts.items():
            states[PUBLIC_NAME[State(state)]] += count
        mailboxes = [MailboxFigures(*name, depth, sent_ms[oldest]) for name, (depth, oldest) in boxes.items() if depth]
        return states, sorted(mailboxes, key=lambda box: (box.to_agent or "", box.channel))


def _naming(gone: Iterable[int], sql: str) -> str:
    """A statement that judges states, with the numbers of the processes that are gone; `late_claims` in schema.sql."""
    return sql.replace(_GONE, ", ".join(map(str, gone)))


def _stored(row: Row, message: Message) -> Change:
    detail = None if message.replay_of is None else f"replay of {message.replay_of}"
    return Change(row[0], "stored", message.timestamp_ms, message.from_agent, detail, message)
