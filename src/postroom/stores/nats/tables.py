"""An index in memory: the entries of a room on NATS that are followed here, in the order of claims.

A copy, never the truth: a claim that was chosen here is made by replacing exactly the entry that is known here, and
fails when somebody else was faster. Nothing in this module waits or talks to anybody; its caller holds the lock.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections import Counter, OrderedDict, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from heapq import merge
from itertools import chain, islice
from typing import Final, NamedTuple

from postroom.core.states import FINISHED, WITHDRAWABLE, State
from postroom.stores.contract import Want
from postroom.stores.gates import Group
from postroom.stores.rules import discard

from .entries import Entry, Kept, line_of

#: Deleted entries that are remembered, so that an older page of a slow server does not bring them back.
_MAX_DROPPED: Final = 20_000


class IndexedEntry(NamedTuple):
    """An entry as it is known here: a value that is replaced whole, with every hint.

    Only the entry that was judged may be replaced on the servers: a step that was made from the entry as it is a moment
    later would replace whatever stands there then, also another's claim (tests/stores/test_nats.py:
    test_what_another_takes_between_our_choice_and_our_claim_is_not_taken_again).
    """

    kept: Kept
    owner_gone: bool = False  # the process that holds it is gone
    waiter_gone: bool = False  # the process that waits for it, or for its answer, is gone

    @property
    def gone(self) -> bool:
        """Whether the process is gone that this message depends on as it stands."""
        return self.waiter_gone if self.kept.entry.state == State.AWAITED else self.owner_gone


class LimitCounts:
    """What limits count of the known entries: what runs, and how many wait."""

    def __init__(self) -> None:
        #: channel -> id -> what is claimed there, without answers
        self.running: defaultdict[str, dict[str, Group]] = defaultdict(dict)
        self.waiting: Counter[tuple[str | None, str]] = Counter()  # (recipient, channel) -> how many wait there

    def add(self, entry: Entry) -> None:
        """Count an entry, as it is written."""
        if entry.state == State.CLAIMED:
            if entry.answer_to is None:
                self.running[entry.channel][entry.id] = group_of(entry)
        elif entry.state in WITHDRAWABLE:
            self.waiting[entry.to_agent, entry.channel] += 1

    def remove(self, entry: Entry) -> None:
        """Count an entry no longer. A room of many short-lived channels must not grow."""
        if entry.state == State.CLAIMED:
            if entry.answer_to is None:
                running = self.running[entry.channel]
                del running[entry.id]
                if not running:
                    del self.running[entry.channel]
        elif entry.state in WITHDRAWABLE:
            box = (entry.to_agent, entry.channel)
            self.waiting[box] -= 1
            if not self.waiting[box]:
                del self.waiting[box]


class KnownEntries:
    """The entries that are known here."""

    def __init__(self) -> None:
        self.rows: dict[str, IndexedEntry] = {}
        self.order: list[tuple[int, str]] = []  # (first sequence, id)
        # recipient (or nobody) -> channel -> (-priority, first sequence, id) of what may be claimed, the best first
        self.boxes: defaultdict[str | None, dict[str, list[tuple[int, int, str]]]] = defaultdict(dict)
        self.timers: list[tuple[int, str]] = []  # (room ms, id) of what the clock will change, the next first
        # line of an order key -> (place, id) of what has not ended there; the first alone stands in its box
        self._lines: defaultdict[str, list[tuple[int, str]]] = defaultdict(list)
        #: Messages of lines that may be claimed when they are the first, and the one of each line that is in its box.
        self._eligible: dict[str, Kept] = {}
        self._heads: dict[str, str] = {}
        # id -> where it stands in its box, and among the timers
        self._ready: dict[str, tuple[int, int, str]] = {}
        self._timer: dict[str, tuple[int, str]] = {}
        self.owners: defaultdict[str, set[str]] = defaultdict(set)  # process -> what it has claimed
        self.waits: defaultdict[str, set[str]] = defaultdict(set)  # process -> questions and held answers it waits for
        #: What limits count. None while nothing asks for it: a room without limits does not pay for them.
        self._counts: LimitCounts | None = None
        #: What the clock or the end of a process has changed and nobody has written down yet.
        self.overdue: dict[str, None] = {}
        #: What a thread of this process is about to claim: other threads leave it alone.
        self.picked: set[str] = set()
        self.top_key = 0
        #: Whether a change was begun and not ended: the tables beside `rows` may contradict them.
        self._is_torn = False
        self._dropped: OrderedDict[str, int] = OrderedDict()

    # Interrupts

    def mend(self) -> None:
        """Make all tables anew from the rows, where a signal's handler raised in the middle of a change.

        The change itself may be lost. That is no harm: what was written, or is read again, is also heard of. Which
        processes are gone, and what the clock did, is found out anew.
        """
        if not self._is_torn:
            return
        for table in (
            self.boxes, self.timers, self._ready, self._timer, self.owners, self.waits, self.overdue, self._lines,
            self._eligible, self._heads,
        ):  # fmt: skip
            table.clear()
        self._counts = None
        self.order[:] = sorted((row.kept.first, id) for id, row in self.rows.items())
        for id, row in self.rows.items():
            self.rows[id] = IndexedEntry(row.kept)
            self._place(row.kept)
        self._is_torn = False

    # Learning

    def learn(self, id: str, seq: int, kept: Kept | None) -> None:
        """An entry was read, written or heard of; None when it was deleted. Old news changes nothing."""
        known = self.rows.get(id)
        if seq <= (self._dropped.get(id, 0) if known is None else known.kept.seq):
            return
        self.mend()
        self._is_torn = True
        if known is not None:
            self._lift(known.kept)
        if kept is None:
            self._drop(id, seq)
        else:
            if known is None:
                insort(self.order, (kept.first, id))
            self.rows[id] = IndexedEntry(kept)
            self.top_key = max(self.top_key, kept.entry.top_key)
            self._place(kept)
        newest = kept or (None if known is None else known.kept)
        if newest is not None and newest.entry.order_key is not None:
            self._order(str(line_of(newest.entry)))
        self._is_torn = False

    def forget(self, id: str) -> None:
        """Know nothing of it, as if it had never been heard of."""
        self.mend()
        self._is_torn = True
        kept = self.rows[id].kept
        self._lift(kept)
        self._remove(id)
        if kept.entry.order_key is not None:
            self._order(str(line_of(kept.entry)))
        self._is_torn = False

    def _drop(self, id: str, seq: int) -> None:
        self._dropped[id] = seq
        while len(self._dropped) > _MAX_DROPPED:
            self._dropped.popitem(last=False)
        if id in self.rows:
            self._remove(id)

    def _remove(self, id: str) -> None:
        row = self.rows.pop(id)
        del self.order[bisect_left(self.order, (row.kept.first, id))]

    def _place(self, kept: Kept) -> None:
        entry = kept.entry
        if self._counts is not None:
            self._counts.add(entry)
        if entry.owner is not None and entry.state == State.CLAIMED:
            self.owners[entry.owner].add(entry.id)
        if entry.waiter is not None:
            self.waits[entry.waiter].add(entry.id)
        line = line_of(entry)
        if line is not None and kept.state not in FINISHED:
            insort(self._lines[line], (kept.queued, entry.id))
        if entry.state == State.READY:
            self._make_ready(kept)
        self._set_timer(entry.id, entry.timer_ms())

    def _lift(self, kept: Kept) -> None:
        entry = kept.entry
        if self._counts is not None:
            self._counts.remove(entry)
        line = line_of(entry)
        if line is not None and kept.state not in FINISHED:
            discard(self._lines, line, (kept.queued, entry.id))
        for table, name in ((self.owners, entry.owner), (self.waits, entry.waiter)):
            if name is not None and entry.id in table.get(name, ()):
                discard(table, name, entry.id)
        self._make_unready(entry)
        self._set_timer(entry.id, None)
        self.overdue.pop(entry.id, None)

    # What limits count

    def running(self, channel: str) -> Mapping[str, Group]:
        """What is claimed in a channel, by its ids; without answers."""
        return self._counted().running.get(channel, {})

    def waiting(self, to_agent: str | None, channel: str) -> int:
        """How many messages wait in a mailbox."""
        return self._counted().waiting[to_agent, channel]

    def _counted(self) -> LimitCounts:
        self.mend()
        if self._counts is None:
            counts = LimitCounts()
            for row in self.rows.values():
                counts.add(row.kept.entry)
            self._counts = counts  # last: an interrupt before leaves none, and not half of them
        return self._counts

    def stop_counting(self) -> None:
        """There are no limits: nothing is counted until the next call of `running` or `waiting`."""
        self._counts = None

    # Order keys

    def _order(self, line: str) -> None:
        """Let the first of a line stand in its box, if it may be claimed, and none of the others."""
        places = self._lines.get(line)
        first = places[0][1] if places else None
        before = self._heads.pop(line, None)
        if before is not None and before != first and before in self._ready:
            self._take_from_box(self.rows[before].kept.entry)
        if first is not None and first in self._eligible:
            self._heads[line] = first
            if first not in self._ready:
                self._put_into_box(self._eligible[first])

    def is_unblocked(self, id: str) -> bool:
        """Whether the end of this message has let another one of its order key pass, which lies there to be claimed."""
        row = self.rows.get(id)
        line = None if row is None else line_of(row.kept.entry)
        return line is not None and line in self._heads and self._heads[line] != id

    def _make_ready(self, kept: Kept) -> None:
        line = line_of(kept.entry)
        if line is None:
            self._put_into_box(kept)
        else:
            self._eligible[kept.entry.id] = kept
            self._order(line)

    def _make_unready(self, entry: Entry) -> None:
        if entry.order_key is not None:
            self._eligible.pop(entry.id, None)
            if self._heads.get(line := str(line_of(entry))) == entry.id:
                del self._heads[line]
        self._take_from_box(entry)

    def _put_into_box(self, kept: Kept) -> None:
        entry = kept.entry
        ready = self._ready[entry.id] = (-entry.priority, kept.first, entry.id)
        insort(self.boxes[entry.to_agent].setdefault(entry.channel, []), ready)

    def _take_from_box(self, entry: Entry) -> None:
        ready = self._ready.pop(entry.id, None)
        if ready is None:
            return
        channels = self.boxes[entry.to_agent]
        box = channels[entry.channel]
        del box[bisect_left(box, ready)]
        if not box:  # a room of many short-lived channels must not grow
            del channels[entry.channel]
        if not channels:
            del self.boxes[entry.to_agent]

    def _set_timer(self, id: str, ms: int | None) -> None:
        timer = self._timer.pop(id, None)
        if timer is not None:
            del self.timers[bisect_left(self.timers, timer)]
        if ms is not None:
            timer = self._timer[id] = (ms, id)
            insort(self.timers, timer)

    # What the clock does

    def wind(self, now_ms: int) -> None:
        """Act on every timer that has run out, here alone: what is due may be claimed, what ended is overdue."""
        self.mend()
        while self.timers and self.timers[0][0] <= now_ms:
            self._turn(self.rows[self.timers[0][1]], now_ms)

    def bury(self, process: str, now_ms: int) -> list[str]:
        """A process is gone: what it held may be claimed, and what it waited for is ordinary mail.

        Returns the ids of the messages of which that was not known yet.
        """
        self.mend()
        found = []
        for id in sorted({*self.owners.get(process, ()), *self.waits.get(process, ())}):
            before, entry = self.rows[id], self.rows[id].kept.entry
            self._is_torn = True
            row = self.rows[id] = IndexedEntry(
                before.kept,
                owner_gone=before.owner_gone or entry.owner == process,
                waiter_gone=before.waiter_gone or entry.waiter == process,
            )
            if row != before:
                found.append(id)
            if row.gone and entry.state in (State.CLAIMED, State.AWAITED):
                self._turn(row, now_ms)
            else:
                self.overdue[id] = None
                self._is_torn = False
        return found

    def _turn(self, row: IndexedEntry, now_ms: int) -> None:
        """Put a row where its judged state belongs."""
        entry = row.kept.entry
        seen = entry.judged(now_ms, gone=row.gone)
        self._is_torn = True
        self._make_unready(entry)
        self._set_timer(entry.id, None)
        if seen is State.READY:
            self._make_ready(row.kept)
            if entry.expires_ms is not None and entry.expires_ms > now_ms:
                self._set_timer(entry.id, entry.expires_ms)
        if seen in FINISHED or entry.state in (State.CLAIMED, State.AWAITED):
            self.overdue[entry.id] = None
        self._is_torn = False

    # Choosing

    def best(self, want: Want, count: int, without: set[str]) -> list[IndexedEntry]:
        """The best messages that may be claimed, at most so many, without the named ones."""
        self.mend()
        boxes = (box for _, box in self._boxes_of(want))
        free = (islice((key for key in box if key[2] not in without), count) for box in boxes)
        return [self.rows[id] for _, _, id in sorted(chain.from_iterable(free))[:count]]

    def candidates(self, want: Want, without: set[str], is_shut: Callable[[str], bool]) -> Iterator[IndexedEntry]:
        """Everything that may be claimed, the best first, without the named ones and without channels that are shut."""
        self.mend()
        boxes = [box for channel, box in self._boxes_of(want) if not is_shut(channel)]
        return (self.rows[id] for _, _, id in merge(*boxes) if id not in without)

    def _boxes_of(self, want: Want) -> list[tuple[str, list[tuple[int, int, str]]]]:
        """The boxes that the agent takes from, each with its channel."""
        own, anyones = self.boxes.get(want.agent, {}), self.boxes.get(None, {})
        names: Iterable[str] = own if want.channels is None else dict.fromkeys(want.channels)
        sources = (own,) if want.channels is None else (own, anyones)
        return [(name, box[name]) for name in names for box in sources if name in box]

    def next_due_ms(self, want: Want, gated: Collection[str] = ()) -> int | None:
        """When something that the agent takes from may become claimable by itself.

        Where a channel may have so many claimed at once, that is also the end of a lease there, of any agent's.
        """
        self.mend()
        for ms, id in self.timers:
            entry = self.rows[id].kept.entry
            if _may_take(want, entry) or (entry.state == State.CLAIMED and entry.channel in gated):
                return ms
        return None

    def ended_in(self, channels: Collection[str]) -> list[IndexedEntry]:
        """Claims in these channels that have ended, and of which that is not written yet."""
        rows = (self.rows[id] for id in self.overdue if id not in self.picked)
        return [row for row in rows if row.kept.state is State.CLAIMED and row.kept.entry.channel in channels]

    def all_overdue(self) -> list[IndexedEntry]:
        """The messages that the clock or the end of a process has changed, and for which nothing is written yet."""
        self.mend()
        return [self.rows[id] for id in self.overdue]

    def forget_overdue(self, chosen: IndexedEntry) -> None:
        """There was nothing to write down for this one, unless it has changed meanwhile."""
        row = self.rows.get(chosen.kept.entry.id)
        if row is not None and row.kept is chosen.kept:
            self.overdue.pop(chosen.kept.entry.id, None)

    def overdue_for(self, want: Want) -> list[IndexedEntry]:
        """Messages that the clock has finished, in the boxes that the agent takes from; and answers of askers that are
        gone, in the entries of their questions there: nobody else may know of these before the next sweep.
        """
        self.mend()
        rows = [self.rows[id] for id in self.overdue if id not in self.picked]
        ended = [row for row in rows if row.kept.entry.id not in self._ready and _may_take(want, row.kept.entry)]
        return ended + [row for row in rows if row.kept.host is not None and row.gone]

    def in_order(self, after: int | None, *, newest: bool) -> Iterator[IndexedEntry]:
        """All rows by their first sequence, after (or, newest first, before) that one."""
        self.mend()
        if newest:
            end = len(self.order) if after is None else bisect_left(self.order, (after, ""))
            return (self.rows[id] for _, id in reversed(self.order[:end]))
        start = 0 if after is None else bisect_right(self.order, (after, "~"))
        return (self.rows[id] for _, id in self.order[start:])


def group_of(entry: Entry) -> Group:
    """What limits need to know of a message."""
    return Group(entry.from_agent, entry.order_key)


def _may_take(want: Want, entry: Entry) -> bool:
    """Whether a message lies in one of the boxes that the agent takes from."""
    if want.channels is None:
        return entry.to_agent == want.agent
    return entry.channel in want.channels and entry.to_agent in (want.agent, None)
