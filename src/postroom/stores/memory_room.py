"""The tables of a room in memory, the small steps that keep them in agreement, and those who wait for a change of them."""

from __future__ import annotations

import os
import threading
from bisect import bisect_left, bisect_right, insort
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, Final, Self

import msgspec

from .. import store as contract
from ..clock import Clock
from ..config import Config
from ..errors import RoomClosed
from ..message import Draft, LedgerEntry, id_of, key_at, key_of
from ..states import FINISHED, State

#: Finished messages are forgotten one day; dead letters stay until somebody puts them back or purges them.
FORGETTABLE: Final = FINISHED - {State.DEAD}
#: How the states of messages count as their last holder's work.
PROCESSED: Final = frozenset({State.ACKED, State.ANSWERED, State.REFUSED})
FAILED: Final = frozenset({State.READY, State.DELAYED, State.DEAD})


@dataclass(slots=True, eq=False)
class Row:
    """One kept message. `expires_ms` and `wake_ms` are room time; its other times are the wall clock's."""

    key: int
    id: str
    draft: Draft  # our own copy; the payload is kept as text, so that nobody shares objects with us
    timestamp_ms: int
    expires_ms: int | None
    state: State
    #: When the clock changes its state: the end of its lease, of its delay or of its time to live.
    wake_ms: int | None = None
    token: int = 0
    deliveries: int = 0
    claimed_by: str | None = None
    owner: str | None = None
    #: The process that waits for the answer to this question, or for this held answer.
    waiter: str | None = None
    last_delivered_ms: int | None = None
    error: str | None = None
    ledger: list[LedgerEntry] = field(default_factory=list)

    def judged(self, now_ms: int) -> State:
        """The state as a reader sees it: what the clock has ended counts as ended, though nobody has written it yet."""
        if self.wake_ms is None or self.wake_ms > now_ms:
            return self.state
        if self.state is State.CLAIMED and self.deliveries >= self.draft.max_deliveries:
            return State.DEAD
        return State.EXPIRED if self.expired(now_ms) else State.READY

    def expired(self, now_ms: int) -> bool:
        """Whether its time to live has ended."""
        return self.expires_ms is not None and self.expires_ms <= now_ms


class Tables:
    """The tables of one room, and the small steps that keep them in agreement. Entered (`with`) for each step."""

    def __init__(self, config: Config, clock: Clock, name: str) -> None:
        self.config = config
        self.clock = clock
        self.name = name
        self.users = 0
        self._lock = threading.RLock()
        self.salt = int(clock.random() * 2**53)
        # Room time begins as the wall clock's and from then on follows the steady clock alone.
        self._base_ns = clock.wall_ms() * 1_000_000 - clock.steady_ns()
        self._last_key = 0
        self.rows: dict[int, Row] = {}  # in the order of their keys, because keys only grow
        # recipient (or nobody) -> channel -> (-priority, key) of what is ready, so that the best stands first
        self.boxes: defaultdict[str | None, dict[str, list[tuple[int, int]]]] = defaultdict(dict)
        self.timers: list[tuple[int, int]] = []  # (room ms, key) of what the clock will change, the next first
        self.owners: defaultdict[str, set[int]] = defaultdict(set)  # process -> what it has claimed
        self.waits: defaultdict[str, set[int]] = defaultdict(set)  # process -> questions and answers it waits for
        self.answers: defaultdict[str, list[int]] = defaultdict(list)  # a question's id -> its answers
        self.correlated: defaultdict[str, list[int]] = defaultdict(list)
        self.sent: defaultdict[tuple[str, str], list[int]] = defaultdict(list)  # (sender, idempotency key) -> messages
        self.finished: dict[int, int] = {}  # key -> room ms, in the order in which they were finished
        self.finished_bytes = 0
        self.feed: list[tuple[int, int, LedgerEntry]] = []  # (number, key, entry)
        self.last_number = 0
        self.tally: Counter[tuple[str | None, bool]] = Counter()  # (agent, done or failed) -> messages no longer kept
        self.subscribers: dict[tuple[str, str], int] = {}  # (channel, agent) -> since, wall ms
        self.cells: dict[str, tuple[int, str]] = {}  # name -> (version, JSON text)
        self.last_version = 0
        self.waiters: defaultdict[str, list[MemoryWaiter]] = defaultdict(list)  # topic -> who listens

    def __enter__(self) -> Self:
        self._lock.acquire()
        return self

    def __exit__(self, *_: object) -> None:
        self._lock.release()

    def now_ns(self) -> int:
        """Room time."""
        return self._base_ns + self.clock.steady_ns()

    def now_ms(self) -> int:
        return self.now_ns() // 1_000_000

    def row_of(self, id: str) -> Row | None:
        key = key_of(id, self.salt)
        return None if key is None else self.rows.get(key)

    # The life of a row: insert, change (move), delete. Each keeps every table right.

    def insert(self, draft: Draft, to_agent: str | None) -> Row:
        """Store one message behind all others, and wake those who wait for it."""
        now_ns = self.now_ns()
        now_ms = now_ns // 1_000_000
        self._last_key = key = max(key_at(now_ns), self._last_key + 1)
        row = Row(
            key=key,
            id=id_of(key, self.salt),
            draft=msgspec.structs.replace(draft, to_agent=to_agent, payload=None),
            timestamp_ms=self.clock.wall_ms(),
            expires_ms=None if draft.ttl_s is None else now_ms + round(draft.ttl_s * 1000),
            state=State.DELAYED if draft.delay_s else State.READY,
        )
        question = self.row_of(draft.answer_to or "")
        if draft.waiter is not None:
            self.set_waiter(row, draft.waiter)
        elif question is not None and question.waiter is not None and question.state is not State.HELD:
            row.state = State.HELD
            self.set_waiter(row, question.waiter)
        self.rows[key] = row
        for table, name in self._indexes(draft):
            table[name].append(key)
        self._place(row, later_ms(now_ms, draft.delay_s) if row.state is State.DELAYED else None)
        self.write(row, "stored", draft.from_agent, None)
        self.ring_mail(row)
        return row

    def _indexes(self, draft: Draft) -> Iterator[tuple[dict[Any, list[int]], object]]:
        if draft.answer_to is not None:
            yield self.answers, draft.answer_to
        if draft.correlation_id is not None:
            yield self.correlated, draft.correlation_id
        if draft.idempotency_key is not None:
            yield self.sent, (draft.from_agent, draft.idempotency_key)

    def move(self, row: Row, state: State, event: str, agent: str | None, detail: str | None = None) -> None:
        """Change a message's state, and say so in its ledger and in the feed."""
        self.change(row, state)
        self.write(row, event, agent, detail)
        if state is State.READY:
            self.ring_mail(row)

    def change(self, row: Row, state: State, *, until_ms: int | None = None, owner: str | None = None) -> None:
        """Give a message another state: a lease or a delay until that moment, a lease for that process."""
        self._lift(row)
        if row.state is State.HELD or state in FINISHED:
            self.set_waiter(row, None)
        row.state, row.owner = state, owner
        self._place(row, until_ms)

    def delete(self, rows: Sequence[Row]) -> int:
        """Forget messages for good, also in the feed. Returns how many."""
        for row in rows:
            self.tally[row.claimed_by, row.state in PROCESSED] += row.state in PROCESSED | FAILED
            self._lift(row)
            self.set_waiter(row, None)
            del self.rows[row.key]
            for table, name in self._indexes(row.draft):
                discard(table, name, row.key)
        if rows:
            self.feed = [entry for entry in self.feed if entry[1] in self.rows]
        return len(rows)

    def set_waiter(self, row: Row, waiter: str | None) -> None:
        """Note which process waits for a question's answer, or for this answer."""
        if row.waiter is not None:
            discard(self.waits, row.waiter, row.key)
        row.waiter = waiter
        if waiter is not None:
            self.waits[waiter].add(row.key)

    def _place(self, row: Row, until_ms: int | None) -> None:
        """Put a row where its state belongs."""
        expires_ms = row.expires_ms if row.state in (State.READY, State.DELAYED) else None
        row.wake_ms = min((ms for ms in (until_ms, expires_ms) if ms is not None), default=None)
        if row.wake_ms is not None:
            insort(self.timers, (row.wake_ms, row.key))
        if row.owner is not None:
            self.owners[row.owner].add(row.key)
        if row.state is State.READY:
            insort(self.boxes[row.draft.to_agent].setdefault(row.draft.channel, []), (-row.draft.priority, row.key))
        elif row.state in FORGETTABLE:
            self.finished[row.key] = self.now_ms()
            self.finished_bytes += len(row.draft.payload_json)

    def _lift(self, row: Row) -> None:
        """Take a row from where `_place` put it."""
        if row.wake_ms is not None:
            del self.timers[bisect_left(self.timers, (row.wake_ms, row.key))]
        if row.owner is not None:
            discard(self.owners, row.owner, row.key)
        if row.state is State.READY:
            channels = self.boxes[row.draft.to_agent]
            box = channels[row.draft.channel]
            del box[bisect_left(box, (-row.draft.priority, row.key))]
            if not box:  # a room of many short-lived channels must not grow
                del channels[row.draft.channel]
            if not channels:
                del self.boxes[row.draft.to_agent]
        elif row.state in FORGETTABLE:
            del self.finished[row.key]
            self.finished_bytes -= len(row.draft.payload_json)

    def write(self, row: Row, event: str, agent: str | None, detail: str | None, *, in_ledger: bool = True) -> None:
        """Add a line to the ledger and to the feed, and wake those who follow either."""
        entry = LedgerEntry(event, self.clock.wall_ms(), agent, detail)
        if in_ledger:
            row.ledger.append(entry)
        self.last_number += 1
        self.feed.append((self.last_number, row.key, entry))
        self.ring(contract.FEED)
        self.ring(contract.topic_message(row.id))

    def written_after(self, number: int) -> Iterator[tuple[int, int, LedgerEntry]]:
        """The feed's entries with higher numbers."""
        return islice(self.feed, bisect_right(self.feed, number, key=lambda entry: entry[0]), None)

    # Waking

    def ring(self, topic: str) -> None:
        """Wake all who listen to the topic."""
        for waiter in self.waiters.get(topic, ()):
            waiter.ring()

    def ring_one(self, topic: str) -> None:
        """Wake one of those who listen to the topic; another one each time."""
        waiters = self.waiters.get(topic)
        if waiters:
            waiters.append(waiters.pop(0))
            waiters[-1].ring(alone_for=topic)

    def ring_mail(self, row: Row) -> None:
        """Wake those who may take this message. A delayed one too: they learn when it is due."""
        draft = row.draft
        if row.state is State.HELD:
            self.ring(contract.topic_message(str(draft.answer_to)))
        elif draft.to_agent is not None:
            self.ring(contract.topic_to(draft.to_agent))
        else:
            self.ring_one(contract.topic_channel(draft.channel))


def later_ms(now_ms: int, seconds: float) -> int:
    """A moment after now; never now itself."""
    return now_ms + max(1, round(seconds * 1000))


def discard(table: dict[Any, Any], name: object, item: object) -> None:
    """Take an item out of an index, and the index's entry away with its last one."""
    table[name].remove(item)
    if not table[name]:
        del table[name]


class MemoryWaiter(contract.Waiter):
    """A waiter with a pipe of its own: a byte lies in it while there is a hint that nobody has taken."""

    def __init__(
        self,
        room: Tables,
        topics: Iterable[str],
        enter: Callable[[], AbstractContextManager[object]],
        forget: Callable[[MemoryWaiter], None],
    ) -> None:
        self._room = room
        self._enter = enter  # raises when the store that listens was closed
        self._forget = forget
        self._topics = tuple(dict.fromkeys(topics))
        self._reader, self._writer = os.pipe()
        self._rung = False
        self._alone_for: list[str] = []  # for these messages nobody else was woken
        self._closed = False
        for topic in self._topics:
            room.waiters[topic].append(self)

    def ring(self, alone_for: str | None = None) -> None:
        """Leave a hint. The caller has entered the room."""
        if alone_for is not None:
            self._alone_for.append(alone_for)
        if not self._rung:
            self._rung = True
            os.write(self._writer, b"!")

    def wait(self, timeout_s: float | None) -> bool:
        if self._take():
            return True
        self._room.clock.wait_readable([self._reader], timeout_s)
        return self._take()

    def _take(self) -> bool:
        with self._enter():
            if self._closed:
                raise RoomClosed("this waiter is closed")
            if self._rung:
                self._rung = False
                self._alone_for.clear()
                os.read(self._reader, 1)
                return True
            return False

    def fileno(self) -> int:
        return self._reader

    def close(self) -> None:
        with self._room:
            if self._closed:
                return
            self._closed = True
            for topic in self._topics:
                discard(self._room.waiters, topic, self)
            # A hint that this waiter alone was given, and did not take, would be lost with it: somebody else gets it
            # (tests/test_memory_store.py).
            for topic in self._alone_for:
                self._room.ring_one(topic)
            self._forget(self)
            os.close(self._reader)
            os.close(self._writer)
