"""A room in memory: its tables, how a step on them is rolled back, and the waiters for a change of them."""

from __future__ import annotations

import weakref
from collections import defaultdict
from collections.abc import Sequence
from operator import attrgetter
from typing import Any, Final, NamedTuple, Self

from postroom.core.clock import Clock
from postroom.core.config import Config
from postroom.core.message import room_start_ms
from postroom.stores.pipes import PipeWaiter, ring
from postroom.stores.tables.store import Turn
from postroom.stores.tables.tables import Row, Tables

#: The fields of a row that may change; its ledger only grows.
_CHANGING: Final = (
    *("expires_ms", "state", "wake_ms", "token", "deliveries", "claimed_by", "owner", "waiter"),
    *("last_delivered_ms", "error"),
)
_values: Final = attrgetter(*_CHANGING)


class _Saved(NamedTuple):
    """A row as it was before a step changed it."""

    row: Row
    values: tuple[Any, ...]
    entries: int
    finished_ms: int | None

    def put_back(self) -> Row:
        for name, value in zip(_CHANGING, self.values, strict=True):
            setattr(self.row, name, value)
        del self.row.ledger[self.entries :]
        return self.row


class MemoryTables(Tables):
    """The tables of one room, entered (`with`) for each step by the one whose turn it is.

    What a step is about to change is saved first. `undo` puts the rows back from that, when a step did not come to its
    end; all other tables follow from the rows, and are made anew: a step may be interrupted in the middle of changing
    any of them.
    """

    def __init__(self, config: Config, clock: Clock, name: str) -> None:
        # Room time begins as the wall clock's and from then on follows the steady clock alone.
        base_ns = room_start_ms(clock) * 1_000_000 - clock.steady_ns()
        super().__init__(config, clock, int(clock.random() * 2**53), base_ns)
        self.name = name
        self.users = 0
        self.turn = Turn()
        #: What the step has changed: rows by their keys (None for new ones), and the values of cells, subscriptions and
        #: figures.
        self._saved: dict[Any, Any] = {}
        self._feed_before = self.feed, 0
        #: Topic -> its listeners. Weakly: one that was interrupted while it was about to wait is forgotten, and goes.
        self.waiters: defaultdict[str, list[weakref.ref[PipeWaiter[str]]]] = defaultdict(list)

    def __enter__(self) -> Self:
        if self._saved:  # the rollback was interrupted, too
            self.undo()
        self._feed_before = self.feed, len(self.feed)
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is None:
            self._saved = {}  # from here on the step counts

    # Taking a step back

    def before_change(self, row: Row) -> None:
        key = row.key
        if key in self._saved:
            return
        if key in self.rows:
            self._saved[key] = _Saved(row, _values(row), len(row.ledger), self.finished.get(key))
        else:
            self._saved[key] = None

    def set_cell(self, name: str, text: str | None) -> int:
        self._saved.setdefault(("cells", name), self.cells.get(name))
        return super().set_cell(name, text)

    def set_subscriber(self, channel: str, agent: str, since_ms: int | None) -> None:
        self._saved.setdefault(("subscribers", (channel, agent)), self.subscribers.get((channel, agent)))
        super().set_subscriber(channel, agent, since_ms)

    def delete(self, rows: Sequence[Row]) -> int:
        for name in {(row.claimed_by, done) for row in rows for done in (True, False)}:
            self._saved.setdefault(("tally", name), self.tally.get(name))
        return super().delete(rows)

    def undo(self) -> None:
        """Put everything back as it was when the step began, if one did not end.

        Can be done again, should it be interrupted.
        """
        if not self._saved:
            return
        rows, finished = dict(self.rows), dict(self.finished)
        for key, saved in self._saved.items():
            if isinstance(key, tuple):
                table, name = getattr(self, key[0]), key[1]
                table.pop(name, None)
                if saved is not None:
                    table[name] = saved
                continue
            rows.pop(key, None)
            finished.pop(key, None)
            if saved is not None:
                rows[key] = saved.put_back()
                if saved.finished_ms is not None:
                    finished[key] = saved.finished_ms
        feed, length = self._feed_before
        self.feed = feed[:length]
        self._make_anew(rows, finished)
        self._saved = {}

    def _make_anew(self, rows: dict[int, Row], finished: dict[int, int]) -> None:
        """Make all tables that follow from the rows; `finished` says when finished messages were finished."""
        for table in (
            self.boxes,
            self.timers,
            self.owners,
            self.waits,
            self.answers,
            self.chains,
            self.correlated,
            self.sent,
            self.ordered,
            self.others,
            self.moved,
            self.limits,
        ):
            table.clear()
        self.finished, self.finished_bytes = {}, 0
        self.rows = dict(sorted(rows.items()))
        for row in sorted(rows.values(), key=lambda row: finished.get(row.key, 0)):
            if row.waiter is not None:
                self.waits[row.waiter].add(row.key)
            self.add(row)
            self.shelve(row, finished.get(row.key, 0))

    # Waking

    def ring(self, topic: str) -> None:
        for known in tuple(self.waiters.get(topic, ())):
            ring(known)

    def ring_one(self, topic: str) -> None:
        for known in tuple(self.waiters.get(topic, ())):
            if ring(known, topic):
                waiters = self.waiters[topic]
                waiters.remove(known)
                waiters.append(known)
                return
