"""The SQLite store, as far as it only reads: messages as the clock sees them, the feed, figures, cells.

Due, ended and expired are judged by the clock at the moment of reading; nothing is written for it.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec

from postroom.core.clock import Clock
from postroom.core.config import Config
from postroom.core.message import DEFAULT_CHANNEL, FRACTION_BITS, MAX_NAME_BYTES, Message, key_of
from postroom.core.states import PUBLIC_NAME, State
from postroom.errors import InvalidMessage
from postroom.stores.contract import (
    FEED,
    ORDERS,
    Cell,
    Change,
    MailboxFigures,
    Page,
    Query,
    Stats,
    Store,
    Subscription,
    Want,
    WorkDone,
    topic_channel,
    topic_to,
)

from .connection import Row
from .file import SqliteFile
from .rollback import whole
from .rows import CHANGE, COLUMNS, OWNER, PRIORITY, WAITER, Rows, subscription, where

_to_json = msgspec.json.Encoder().encode
_from_json = msgspec.json.Decoder().decode


class StepTime(msgspec.Struct, gc=False):
    """The times of one step, and whom to wake when it is committed."""

    now: int
    wall_ms: int
    everyone: set[str]
    one_each: list[str]

    def wake_receiver(self, to_agent: str | None, channel: str) -> None:
        if to_agent is None:
            self.one_each.append(topic_channel(channel))
        else:
            self.everyone.add(topic_to(to_agent))


class _ThreadClaims(threading.local):
    """What a thread knows of its own claims: whether the last one that nobody hinted at was in vain, and whether one did now."""

    was_empty = False
    hinted = False


class SqliteReading(Store):
    """The half of the store that changes nothing."""

    def __init__(self, folder: Path, config: Config, clock: Clock, vfs: str | None) -> None:
        self.clock = clock
        self._config = config
        self._file = SqliteFile(folder, config, clock, COLUMNS, vfs)
        self._rows = Rows(self._file.salt)
        self._mine = _ThreadClaims()
        self._processes: dict[str, int] = {}
        #: The keys of what was claimed lately: who settles it need not work them out of its id.
        self._keys: dict[str, int] = {}
        self._names: dict[int, str] = {}

    def _moment(self) -> StepTime:
        clock = self.clock
        return StepTime((clock.steady_ns() + self._file.offset_ns) // 1_000_000, clock.wall_ms(), {FEED}, [])

    def _key(self, id: str) -> int:
        """The key of an id; -1, which no message has, for ids of other rooms."""
        key = self._keys.get(id)
        if key is None:
            key = key_of(id, self._file.salt)
        return -1 if key is None else key

    def _candidates(self, want: Want, now: int) -> list[Row]:
        """The rows of the best messages that the claimer may have, best first."""
        if want.limit == 1 and want.ids is None:  # the usual
            if want.channels is None:
                return self._best_of_two("claim_one", (want.agent, now), "claim_elsewhere", (want.agent, now, 1))
            if len(want.channels) == 1 and want.channels[0] != DEFAULT_CHANNEL:
                (channel,) = want.channels
                for_anyone, own = (channel, now, want.agent), (want.agent, now, 1, channel)
                return self._best_of_two("claim_one_in_channel", for_anyone, "claim_in_channel", own)
        execute = self._file.execute
        if want.ids is not None:
            keys = dict.fromkeys(self._key(id) for id in want.ids)
            found = [row for key in keys for row in execute("claim_by_key", (key, want.agent, now))]
            return found if len(found) < 2 else sorted(found, key=_claim_order)
        asked = (want.agent, now, want.limit)
        if want.channels is None:
            found = execute("claim_general", asked) + execute("claim_elsewhere", asked)
        else:
            found = []
            for channel in dict.fromkeys(want.channels):
                if channel == DEFAULT_CHANNEL:
                    found += execute("claim_general", asked)
                else:
                    found += execute("claim_in_channel", (*asked, channel))
                found += execute("claim_for_anyone", (channel, now, want.limit))
        found.sort(key=_claim_order)
        return found[: want.limit]

    def _best_of_two(self, first: str, asked: Row, second: str, asked_second: Row) -> list[Row]:
        """The better of what two queues hold. The first statement also says whether there is anything in the second queue."""
        found = self._file.execute(first, asked)
        if found:
            row = found[0]
            found = [row[:-1]]
            if not row[-1]:
                return found
        others = self._file.execute(second, asked_second)
        if not found or not others:
            return found or others
        return min(found, others, key=lambda rows: _claim_order(rows[0]))

    @property
    def process(self) -> str:
        return self._file.attendance.process

    def process_alive(self, process: str) -> bool | None:
        return self._file.attendance.is_alive(process)

    def _learn_processes(self) -> list[Row]:
        rows = self._file.execute("processes")
        self._names = dict(rows)
        self._processes = {name: number for number, name in rows}
        return rows

    # Reading

    def _message(self, row: Row, moment: StepTime) -> Message:
        if any(number is not None and number not in self._names for number in (row[OWNER], row[WAITER])):
            self._learn_processes()
        return self._rows.message(row, moment.now, moment.wall_ms, self._names)

    def get(self, id: str) -> Message | None:
        rows = self._file.execute("get", (self._key(id),))
        return self._message(rows[0], self._moment()) if rows else None

    def find(self, query: Query, cursor: int | None = None) -> Page:
        moment = self._moment()
        if query.order not in ORDERS:
            raise InvalidMessage("order", f"must be one of {', '.join(ORDERS)}, not {query.order!r}")
        if query.order == "claim":
            return Page([self._message(row, moment) for row in self._in_claim_order(query, moment)], None)
        condition, values = self._where(query)
        newest = query.order == "newest"
        if cursor is not None:
            condition += " AND key < :cursor" if newest else " AND key > :cursor"
        rows = self._file.select(
            f"SELECT {COLUMNS} FROM mail WHERE {condition} ORDER BY key {'DESC' if newest else ''} LIMIT :limit",
            {**values, "now": moment.now, "cursor": cursor, "limit": query.limit},
        )
        messages = [self._message(row, moment) for row in rows]
        return Page(messages, rows[-1][0] if len(rows) == query.limit and rows else None)

    def _where(self, query: Query) -> tuple[str, dict[str, Any]]:
        answer_to = None if query.answer_to is None else self._key(query.answer_to)
        keys = None if query.ids is None else _to_json([self._key(id) for id in query.ids]).decode()
        statements = self._file.statements
        return where(query, statements["judged"], statements["late_claims"], answer_to, keys)

    def _in_claim_order(self, query: Query, moment: StepTime) -> list[Row]:
        """What a receiver would get, best first: straight from the indexes that claims use, where the query allows it."""
        simple = msgspec.structs.replace(query, order="claim", limit=100, visible_to=None, channels=None, states=None)
        if query.visible_to is not None and query.states == frozenset({State.READY}) and simple == Query(order="claim"):
            want = Want(agent=query.visible_to, lease_s=0, channels=query.channels, limit=query.limit)
            keys = [row[0] for row in self._candidates(want, moment.now)]
            condition, values = self._where(query)
            late = self._file.statements["late"]
            source = f"key IN (SELECT value FROM json_each(:candidates)) OR key IN ({late})"
            condition = f"({source}) AND {condition}"
            values = {**values, "candidates": _to_json(keys).decode()}
        else:
            condition, values = self._where(query)
        return self._file.select(
            f"SELECT {COLUMNS} FROM mail WHERE {condition} ORDER BY priority DESC, key LIMIT :limit",
            {**values, "now": moment.now, "limit": query.limit},
        )

    @whole
    def events(self, after: int = 0, limit: int = 1000) -> list[Change]:
        moment = self._moment()
        with self._one_snapshot():
            stored = self._file.execute("stored_after", (after, limit))
            changed = self._file.execute("changed_after", (after, limit))
            changed += self._file.execute("claimed_after", (after, limit))
        entries = [self._stored(row, moment) for row in stored] + [self._changed(row, moment) for row in changed]
        entries.sort(key=lambda change: change.number)
        if len(entries) <= limit:
            return entries
        last = entries[limit - 1].number
        return [entry for entry in entries if entry.number <= last]

    @contextmanager
    def _one_snapshot(self) -> Iterator[None]:
        """Several reads of one state of the room; the read transaction ends with the block. For methods that are `whole`.

        Those end it where the block raises. Here it would be too late: an interrupt may leave this generator to be collected, in
        the middle of another transaction of the thread.
        """
        self._file.select("BEGIN")
        yield
        self._file.select("COMMIT")

    def _stored(self, row: Row, moment: StepTime) -> Change:
        message = self._message(row, moment)
        detail = None if message.replay_of is None else f"replay of {message.replay_of}"
        return Change(row[0], "stored", message.timestamp_ms, message.from_agent, detail, message)

    def _changed(self, row: Row, moment: StepTime) -> Change:
        full = self._message(row, moment)
        message = msgspec.structs.replace(full, ledger=())
        if len(full.ledger) == 1:  # only stored: an answer that became ordinary mail
            return Change(row[CHANGE], "unheld", message.timestamp_ms, None, None, message)
        last = full.ledger[-1]
        return Change(row[CHANGE], last.event, last.time_ms, last.agent, last.detail, message)

    def number_at(self, wall_ms: int | None = None) -> int:
        if wall_ms is None:
            return int(self._file.execute("last_number")[0][0])
        self._file.connection()  # a closed room says so
        moment = self._moment()
        # one less than the moment's first number, for the feed gives what comes after its cursor
        number = ((moment.now - moment.wall_ms + wall_ms) << FRACTION_BITS) - 1
        return min(max(0, number), 2**63 - 1)

    def forgotten(self) -> int:
        rows = self._file.execute("meta_read", ("floor",))
        return int(rows[0][0]) - 1 if rows else 0

    # Cells and subscriptions

    def cell_read(self, name: str) -> Cell | None:
        rows = self._file.execute("cell_read", (name,))
        return Cell(rows[0][0], rows[0][1], _from_json(rows[0][2])) if rows else None

    def cell_scan(self, prefix: str) -> list[Cell]:
        rows = self._file.execute("cell_scan", (prefix, prefix + "\U0010ffff" * MAX_NAME_BYTES))
        return [Cell(name, version, _from_json(value)) for name, version, value in rows]

    def subscriptions(self) -> list[Subscription]:
        return [subscription(row) for row in self._file.execute("subscriptions")]

    # Figures

    @whole
    def stats(self) -> Stats:
        moment = self._moment()
        rows: list[Row] = []
        with self._one_snapshot():
            for name in ("count_ready_general", "count_ready_in_channel", "count_ready_for_anyone"):
                rows += self._file.execute(name)
            counts: dict[int, int] = {}
            for name in ("count_claimed", "count_delayed", "count_held", "count_finished"):
                counts |= dict(self._file.execute(name))
            overdue = self._file.select(self._file.statements["overdue"], {"now": moment.now})
        counts[State.READY] = sum(row[2] for row in rows)
        boxes = {(to_agent, channel): [depth, oldest] for to_agent, channel, depth, oldest in rows}
        for state, judged, to_agent, channel, count, oldest in overdue:
            counts[state] = counts.get(state, 0) - count
            counts[judged] = counts.get(judged, 0) + count
            if (state == State.READY) != (judged == State.READY):
                box = boxes.setdefault((to_agent, channel), [0, oldest])
                box[0] += count if judged == State.READY else -count
                box[1] = min(box[1], oldest) if judged == State.READY else box[1]
        states = dict.fromkeys(PUBLIC_NAME.values(), 0)
        for state, count in counts.items():
            states[PUBLIC_NAME[State(state)]] += count
        return Stats(states=states, mailboxes=_mailboxes(boxes, moment), store=self._about())

    def work_of(self, agent: str) -> WorkDone:
        return WorkDone(*self._file.execute("work_of", (agent,))[0])

    def _about(self) -> dict[str, Any]:
        return {
            "kind": "sqlite",
            "path": str(self._file.path),
            "sync": self._config.sync,
            "wake_up": self.bells_kind,
            "liveness": self._file.attendance.judged_by(),
            "wal_bytes": self._file.wal_bytes(),
        }

    @property
    def bells_kind(self) -> str:
        """How waiters are woken."""
        raise NotImplementedError

    def read_only(self, sql: str) -> tuple[list[str], list[Row]]:
        """Run somebody's own SELECT; column names and rows. Cannot change anything."""
        return self._file.read_only(sql)

    def faults(self, limit_s: float) -> list[str] | None:
        """What is wrong with the file: nothing is []; None when it could not be read through in that time."""
        return self._file.faults(limit_s)

    def open_elsewhere(self) -> bool:
        return self._file.attendance.open_elsewhere()

    def room_ms(self) -> int:
        """The room's time now, in which leases, delays and expiry are counted."""
        return self._moment().now

    def layout(self) -> int:
        """The version of the file's tables."""
        return int(self._file.select("PRAGMA user_version")[0][0])


def _mailboxes(boxes: dict[tuple[str | None, str], list[int]], moment: StepTime) -> list[MailboxFigures]:
    """Boxes with something in them, in the order of their names; `oldest` was a key."""
    behind_ms = moment.wall_ms - moment.now
    found = [
        MailboxFigures(to_agent, channel, depth, (oldest >> FRACTION_BITS) + behind_ms)
        for (to_agent, channel), (depth, oldest) in boxes.items()
        if depth
    ]
    return sorted(found, key=lambda box: (box.to_agent or "", box.channel))


def _claim_order(row: Row) -> tuple[int, int]:
    """Sorts what may be claimed: what is more urgent first, then what came first."""
    return -row[PRIORITY], row[0]
