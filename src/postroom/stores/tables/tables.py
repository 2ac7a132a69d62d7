"""The tables of a room, and the small steps that keep them in agreement.

A store that keeps its room in these tables says what a row is, what a payload is kept as, and how waiters are woken;
the rules (`steps`) are the same for all of them.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections import Counter, defaultdict
from collections.abc import Callable, Container, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, Final

import msgspec

from postroom.core.clock import Clock
from postroom.core.config import Config
from postroom.core.message import Draft, LedgerEntry, MessageWithLedger, decode_payload, id_of, key_at, key_of
from postroom.core.states import FINISHED, WITHDRAWABLE, State, judge
from postroom.core.system.process import process_alive
from postroom.stores import contract
from postroom.stores.rules import FAILED, PROCESSED, discard, later_ms

from .cells import CellTable
from .limiting import TableLimits

#: Finished messages are forgotten one day; dead letters stay until somebody puts them back or purges them.
FORGETTABLE: Final = FINISHED - {State.DEAD}
#: A message with an order key in one of these keeps the others of its key waiting. One that is put back may stand before
#: it, BLOCKED: the end of such a one lets nobody pass.
_FIRST: Final = (State.READY, State.CLAIMED, State.DELAYED)


@dataclass(slots=True, eq=False)
class Row:
    """One kept message. `expires_ms` and `wake_ms` are room time; its other times are the wall clock's."""

    key: int
    id: str
    draft: Draft  # our own copy; the payload is kept as text, so that nobody shares objects with us
    timestamp_ms: int
    expires_ms: int | None
    state: State
    #: The payload's length as JSON text.
    size_bytes: int = 0
    #: When the clock changes its state: the end of its lease, of its delay or of its time to live.
    wake_ms: int | None = None
    token: int = 0
    deliveries: int = 0
    claimed_by: str | None = None
    #: The process that holds it, or did until its lease ended.
    owner: str | None = None
    #: The process that waits for the answer to this question, or for this held answer.
    waiter: str | None = None
    last_delivered_ms: int | None = None
    error: str | None = None
    ledger: list[LedgerEntry] = field(default_factory=list)
    #: It came from another room with its id, which is not made of the key.
    moved: bool = False

    def judged(self, now_ms: int, gone: Container[str | None] = ()) -> State:
        """The state as a reader sees it; see `states.judge`. The lease of a process that is gone has ended."""
        spent = self.deliveries >= self.draft.max_deliveries
        ended = self.state is State.CLAIMED and self.owner in gone
        return judge(self.state, now_ms if ended else self.wake_ms, self.expires_ms, spent, now_ms)

    def expired(self, now_ms: int) -> bool:
        """Whether its time to live has ended."""
        return self.expires_ms is not None and self.expires_ms <= now_ms


class Tables:
    """The tables of one room, and the small steps that keep them in agreement. One thread at a time takes a step."""

    def __init__(self, config: Config, clock: Clock, salt: int, base_ns: int) -> None:
        self.config = config
        self.clock = clock
        self.salt = salt
        self.base_ns = base_ns  # what makes room time of the steady clock
        #: Whether a process that stands in the room still runs; see `Store.process_alive`.
        self.process_alive: Callable[[str], bool | None] = process_alive
        self._last_key = 0
        self.rows: dict[int, Row] = {}
        # recipient (or nobody) -> channel -> (-priority, key) of what is ready, so that the best stands first
        self.boxes: defaultdict[str | None, dict[str, list[tuple[int, int]]]] = defaultdict(dict)
        self.timers: list[tuple[int, int]] = []  # (room ms, key) of what the clock will change, the next first
        self.owners: defaultdict[str, set[int]] = defaultdict(set)  # process -> what it has claimed
        self.waits: defaultdict[str, set[int]] = defaultdict(set)  # process -> questions and answers it waits for
        self.answers: defaultdict[str, list[int]] = defaultdict(list)  # a question's id -> its answers
        self.chains: defaultdict[str, list[int]] = defaultdict(list)  # a message's id -> those that it led to
        self.correlated: defaultdict[str, list[int]] = defaultdict(list)
        self.sent: defaultdict[tuple[str, str], list[int]] = defaultdict(list)  # (sender, idempotency key) -> messages
        self.moved: defaultdict[str, list[int]] = defaultdict(list)  # id -> the key of what came from another room
        # (recipient or nobody, channel, order key) -> what has not ended, in order: all but the first are BLOCKED
        self.ordered: defaultdict[tuple[str | None, str, str], list[int]] = defaultdict(list)
        self.others: set[int] = set()  # what is neither ready nor finished
        self.finished: dict[int, int] = {}  # key -> room ms, in the order in which they were finished
        self.finished_bytes = 0
        #: (last holder, state) -> messages that have ended and have no row, in tables that read those when they are asked for
        self.ended: Counter[tuple[str | None, State]] = Counter()
        self.feed: list[tuple[int, int, LedgerEntry]] = []  # (number, key, entry)
        self.last_number = 0
        self.tally: Counter[tuple[str | None, bool]] = Counter()  # (agent, done or failed) -> messages no longer kept
        self.subscribers: dict[tuple[str, str], int] = {}  # (channel, agent) -> since, wall ms
        self.cells = CellTable()
        self.last_version = 0
        self.limits = TableLimits(self.cells, self.boxes, self.ring, self.ring_one)

    def now_ns(self) -> int:
        """Room time."""
        return self.base_ns + self.clock.steady_ns()

    def now_ms(self) -> int:
        return self.now_ns() // 1_000_000

    def row_of(self, id: str) -> Row | None:
        key = key_of(id, self.salt)
        if key is None:
            key = next(iter(self.named("moved", id)), None)
        return None if key is None else self.rows.get(key)

    def keys(self, states: frozenset[State] | None = None) -> list[int]:  # noqa: ARG002  (others need not read all)
        """The keys of all rows that may be in these states, in their order: that of the rows, because keys only grow."""
        return list(self.rows)

    def sort_rows(self) -> None:
        """Rows came in another order than that of their keys."""
        self.rows = dict(sorted(self.rows.items()))

    def count(self) -> int:
        """How many messages are kept."""
        return len(self.rows)

    def named(self, index: str, name: object) -> Sequence[int]:
        """The keys that one of the indexes by names has under a name, in their order."""
        found: Sequence[int] = getattr(self, index).get(name, ())
        return found

    def finished_first(self) -> Iterator[tuple[int, int, int]]:
        """What may be forgotten one day, in the order in which it was finished: key, when (room ms), size."""
        for key, finished_ms in self.finished.items():
            yield key, finished_ms, self.rows[key].size_bytes

    def finished_count(self) -> int:
        """How many those are."""
        return len(self.finished)

    def unfinished(self, agents: Container[str | None] | None, channels: Container[str] | None) -> list[int]:
        """The keys of what has not ended, in their order: of ready messages, those for these agents in these channels
        (None: for all, in all of them).
        """
        found = [*self.others]
        for agent, boxes in self.boxes.items():
            if agents is None or agent in agents:
                for channel, box in boxes.items():
                    if channels is None or channel in channels:
                        found += [key for _, key in box]
        return sorted(found)

    # Payloads. Here they are kept as text, in the row's own copy of the draft.

    def body_of(self, draft: Draft) -> str:
        """The text that stands for the payload of a draft, in its row and when two are compared."""
        return draft.payload_json

    def payload_of(self, row: Row) -> dict[str, Any]:
        """The payload, as an object of the caller's own."""
        payload: dict[str, Any] = decode_payload(row.draft.payload_json)
        return payload

    def at_hand(self, row: Row) -> bool:
        """Whether a ready message is still there to be delivered. When it is not, it is no longer ready afterwards."""
        return row.state in (State.READY, State.AWAITED)

    # The life of a row: insert, change (move), delete. Each keeps every table right.

    def next_key(self, now_ns: int) -> int:
        """A key behind all others."""
        self._last_key = max(key_at(now_ns), self._last_key + 1)
        return self._last_key

    def make_row(self, draft: Draft, to_agent: str | None) -> Row:
        """A new row for a draft, in no table yet."""
        now_ns = self.now_ns()
        key = self.next_key(now_ns)
        return Row(
            key=key,
            id=id_of(key, self.salt),
            draft=msgspec.structs.replace(draft, to_agent=to_agent, payload=None, payload_json=self.body_of(draft)),
            timestamp_ms=self.clock.wall_ms(),
            expires_ms=None if draft.ttl_s is None else now_ns // 1_000_000 + round(draft.ttl_s * 1000),
            state=State.DELAYED if draft.delay_s else State.READY,
            size_bytes=len(draft.payload_json),
        )

    def touch(self, row: Row) -> None:
        """A row was changed. For tables that are written down."""

    def before_change(self, row: Row) -> None:
        """A row is about to be changed, or put in. For tables that must be able to take it back."""

    def insert(self, draft: Draft, to_agent: str | None) -> Row:
        """Store one message behind all others, and wake its waiters."""
        return self.store(self.make_row(draft, to_agent))

    def store(self, row: Row) -> Row:
        """Put a new row in all tables; an answer is held for an asker that waits."""
        self.before_change(row)
        draft = row.draft
        question = self.row_of(draft.answer_to or "")
        if draft.waiter is not None:
            self.set_waiter(row, draft.waiter)
        elif question is not None and question.waiter is not None and question.state is not State.AWAITED:
            row.state = State.AWAITED
            self.set_waiter(row, question.waiter)
        until_ms = later_ms(self.now_ms(), draft.delay_s) if row.state is State.DELAYED else None
        if self.is_behind(row):
            row.state = State.BLOCKED
        self.add(row)
        self._place(row, until_ms)
        self.write(row, "stored", draft.from_agent, None)
        self.ring_mail(row)
        return row

    def restore(self, message: MessageWithLedger, draft: Draft) -> Row:
        """Put in a message of another room as it stands, with its whole ledger, and tell of it once.

        `draft` is what it was sent as.
        """
        now_ms, wall_ms = self.now_ms(), self.clock.wall_ms()
        row = self.row_for(message, draft)
        row.moved = row.id != id_of(row.key, self.salt)
        self.before_change(row)
        row.token, row.deliveries, row.error = message.token, message.delivery_count, message.error
        row.claimed_by, row.last_delivered_ms = message.claimed_by, message.last_delivered_ms
        row.expires_ms = None if message.expires_at_ms is None else message.expires_at_ms - wall_ms + now_ms
        if row.state in WITHDRAWABLE:
            waits = State.READY if message.due_ms is None else State.DELAYED
            row.state = State.BLOCKED if self.is_behind(row) else waits
        self.add(row)
        self._place(row, None if message.due_ms is None else message.due_ms - wall_ms + now_ms)
        row.ledger += message.ledger
        self.tell(row, message.ledger[-1], in_ledger=False)
        self.ring(contract.FEED)
        self.ring(contract.topic_message(row.id))
        self.ring_mail(row)
        return row

    def row_for(self, message: MessageWithLedger, draft: Draft) -> Row:
        """A new row for a message of another room; in its old place, if this room has once stored it."""
        key = key_of(message.id, self.salt)
        return Row(
            key=self.next_key(self.now_ns()) if key is None else key,
            id=message.id,
            draft=msgspec.structs.replace(draft, payload=None, payload_json=self.body_of(draft)),
            timestamp_ms=message.timestamp_ms,
            expires_ms=None,
            state=message.exact_state,
            size_bytes=len(draft.payload_json),
        )

    def add(self, row: Row) -> None:
        """Put a new row in the tables that know rows by their names."""
        self.rows[row.key] = row
        for index, name in self.names_of(row):
            insort(getattr(self, index)[name], row.key)

    def names_of(self, row: Row) -> Iterator[tuple[str, object]]:
        """The names by which a row is found, each with its index."""
        draft = row.draft
        if draft.answer_to is not None:
            yield "answers", draft.answer_to
        if draft.chain_id is not None:
            yield "chains", draft.chain_id
        if draft.correlation_id is not None:
            yield "correlated", draft.correlation_id
        if draft.idempotency_key is not None:
            yield "sent", (draft.from_agent, draft.idempotency_key)
        if row.moved:
            yield "moved", row.id

    def move(self, row: Row, state: State, event: str, agent: str | None, detail: str | None = None) -> str:
        """Change a message's state, and say so in its ledger and in the feed. Returns the event."""
        self.change(row, state)
        self.write(row, event, agent, detail)
        if state is State.READY:
            self.ring_mail(row)
        return event

    def change(self, row: Row, state: State, *, until_ms: int | None = None, owner: str | None = None) -> None:
        """Give a message another state: a lease or a delay until that moment, a lease for that process."""
        self.before_change(row)
        self.lift(row)
        if row.state is State.AWAITED or state in FINISHED:
            self.set_waiter(row, None)
        before, was_first = row.state, row.state in _FIRST
        row.state, row.owner = state, owner
        self._place(row, until_ms)
        if contract.LIMITS in self.cells:
            self.limits.tell(row.draft.channel, before, state)
        if was_first and state in FINISHED:
            self._let_the_next_pass(row)

    # Order keys

    def is_behind(self, row: Row) -> bool:
        """Whether a message that has no place yet comes behind another one of its order key."""
        return self._line_of(row) in self.ordered if row.draft.order_key is not None else False

    def _line_of(self, row: Row) -> tuple[str | None, str, str]:
        return row.draft.to_agent, row.draft.channel, row.draft.order_key or ""

    def _let_the_next_pass(self, row: Row) -> None:
        """A message has ended: the next one of its order key may be claimed, or waits for its delay alone."""
        if row.draft.order_key is None:
            return
        for key in self.ordered.get(self._line_of(row), ())[:1]:
            head = self.rows[key]
            if head.state is State.BLOCKED:
                due_ms = head.wake_ms if head.wake_ms != head.expires_ms else None
                is_due = due_ms is None or due_ms <= self.now_ms()
                self.change(head, State.READY if is_due else State.DELAYED, until_ms=None if is_due else due_ms)
                self.ring_mail(head)

    def delete(self, rows: Sequence[Row]) -> int:
        """Forget messages for good, also in the feed. Returns how many."""
        for row in rows:
            self.before_change(row)
            self.tally[row.claimed_by, row.state in PROCESSED] += row.state in PROCESSED | FAILED
            self.lift(row)
            self.set_waiter(row, None)
            del self.rows[row.key]
            for index, name in self.names_of(row):
                discard(getattr(self, index), name, row.key)
        for row in rows:
            self.limits.tell(row.draft.channel, row.state, None)
            if row.state in _FIRST:
                self._let_the_next_pass(row)
        if rows:
            self.forget_news()
        return len(rows)

    def set_waiter(self, row: Row, waiter: str | None) -> None:
        """Note which process waits for a question's answer, or for this answer."""
        self.before_change(row)
        if row.waiter is not None:
            discard(self.waits, row.waiter, row.key)
        row.waiter = waiter
        if waiter is not None:
            self.waits[waiter].add(row.key)
        self.touch(row)

    def _place(self, row: Row, until_ms: int | None) -> None:
        """Put a row where its state belongs, from now on."""
        expires_ms = row.expires_ms if row.state in WITHDRAWABLE else None
        row.wake_ms = min((ms for ms in (until_ms, expires_ms) if ms is not None), default=None)
        self.touch(row)
        self.shelve(row, self.now_ms())

    def shelve(self, row: Row, since_ms: int) -> None:
        """Put a row in the tables that know rows by their states; it has its state since that moment."""
        if row.wake_ms is not None:
            insort(self.timers, (row.wake_ms, row.key))
        if row.owner is not None and row.state is State.CLAIMED:
            self.owners[row.owner].add(row.key)
        if row.state is State.READY:
            insort(self.boxes[row.draft.to_agent].setdefault(row.draft.channel, []), (-row.draft.priority, row.key))
        elif row.state in FORGETTABLE:
            self.finished[row.key] = since_ms
            self.finished_bytes += row.size_bytes
        elif row.state not in FINISHED:
            self.others.add(row.key)
        self.limits.add(row.key, row.draft, row.state)
        if row.draft.order_key is not None and row.state not in FINISHED:
            insort(self.ordered[self._line_of(row)], row.key)

    def lift(self, row: Row) -> None:
        """Take a row from where `shelve` put it."""
        if row.wake_ms is not None:
            del self.timers[bisect_left(self.timers, (row.wake_ms, row.key))]
        if row.owner is not None and row.state is State.CLAIMED:
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
            self.finished_bytes -= row.size_bytes
        else:
            self.others.discard(row.key)
        self.limits.remove(row.key, row.draft, row.state)
        if row.draft.order_key is not None and row.state not in FINISHED:
            line = self._line_of(row)
            del self.ordered[line][bisect_left(self.ordered[line], row.key)]
            if not self.ordered[line]:
                del self.ordered[line]

    def write(
        self,
        row: Row,
        event: str,
        agent: str | None,
        detail: str | None,
        *,
        in_ledger: bool = True,
        wall_ms: int | None = None,  # when; None: now
    ) -> None:
        """Add a line to the ledger and to the feed, and wake the followers of either."""
        self.before_change(row)
        entry = LedgerEntry(event, self.clock.wall_ms() if wall_ms is None else wall_ms, agent, detail)
        if in_ledger:
            row.ledger.append(entry)
        self.tell(row, entry, in_ledger=in_ledger)
        self.touch(row)
        self.ring(contract.FEED)
        self.ring(contract.topic_message(row.id))

    # The feed

    def tell(self, row: Row, entry: LedgerEntry, *, in_ledger: bool) -> None:  # noqa: ARG002  (others need to know)
        """Add a line to the feed."""
        self.last_number += 1
        self.feed.append((self.last_number, row.key, entry))

    def news_after(self, number: int, limit: int | None = None) -> Iterator[tuple[int, int, LedgerEntry]]:
        """The feed's entries with higher numbers, so many at most: number, key, entry."""
        start = bisect_right(self.feed, number, key=lambda entry: entry[0])
        return islice(self.feed, start, None if limit is None else start + limit)

    def last_change(self, rows: Sequence[Row]) -> int:
        """The highest number that the feed gives to a change of these messages."""
        keys = {row.key for row in rows}
        return next((number for number, key, _ in reversed(self.feed) if key in keys), 0)

    def forget_news(self) -> None:
        """Take what is no longer kept out of the feed."""
        self.feed = [entry for entry in self.feed if entry[1] in self.rows]

    # Small values

    def set_cell(self, name: str, text: str | None) -> int:
        """Give a cell a value, or delete it. Returns its new version, 0 for none."""
        self.ring(contract.topic_cells(name))
        if name == contract.LIMITS:
            self.limits.ring_boxes()
        if text is None:
            self.cells.pop(name, None)
            return 0
        self.last_version += 1
        self.cells[name] = (self.last_version, text)
        return self.last_version

    # Subscriptions

    def set_subscriber(self, channel: str, agent: str, since_ms: int | None) -> None:
        """From then on an agent gets copies; None: no more."""
        if since_ms is None:
            self.subscribers.pop((channel, agent), None)
        else:
            self.subscribers[channel, agent] = since_ms

    # Waking

    def ring(self, topic: str) -> None:
        """Wake all listeners to the topic."""
        raise NotImplementedError

    def ring_one(self, topic: str) -> None:
        """Wake one of the listeners to the topic; another one each time."""
        raise NotImplementedError

    def ring_mail(self, row: Row) -> None:
        """Wake the receivers that may take this message. A delayed one too: they learn when it is due."""
        draft = row.draft
        if row.state is State.AWAITED:
            self.ring(contract.topic_message(str(draft.answer_to)))
        elif draft.to_agent is not None:
            self.ring(contract.topic_to(draft.to_agent))
        else:
            self.ring_one(contract.topic_channel(draft.channel))
