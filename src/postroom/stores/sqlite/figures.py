"""Figures of a SQLite room: how many messages are in which state, and what waits in which mailbox.

In a room with many messages the housekeeping remembers what it has counted (an incremental aggregate, the table `counted`),
and a look adds what came since: it costs the same with ten messages and with a million. What is waiting is not counted at
all: it is what is kept and neither finished nor claimed, delayed or held for an asker, and those are few, or have indexes of
their own. So no message pays for figures on its way (docs/design/figures.md).

Where nothing is remembered, or too much came since, everything is counted in the indexes. Both ways give the same figures
(tests/stores/test_sqlite_figures.py).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Final, NamedTuple

import msgspec

from postroom.core.clock import SYSTEM
from postroom.core.states import FINISHED, OPEN, PUBLIC_NAME, State
from postroom.stores.contract import MailboxFigures, Query

from .file import SqliteFile
from .rows import naming
from .transactions import Transactions, whole

#: Rooms in which so much was never counted begin to remember.
_MANY: Final = 10_000
#: A round adds up when so much came since.
_WORTH_ADDING: Final = 100
#: Where more than that came since, counting everything is as fast.
_TOO_MUCH: Final = 100_000
#: Messages that one step adds up at most: other writers wait meanwhile.
_AT_ONCE: Final = 1000
#: A pause follows each step, and a round ends after so long: heartbeats wait for it.
_PAUSE_S: Final = 0.004
_ROUND_NS: Final = 3_000_000_000
#: What is remembered is counted anew so often: other programs may have changed the file.
_ANEW_MS: Final = 86_400_000
#: In `counted`, what stands for all messages of a mailbox; from `count_finished`, for all that changed.
_ALL: Final = -1
_ANY: Final = Query()
#: The states that count as waiting in a mailbox.
_IN_BOX: Final = (State.READY, State.BLOCKED)
_ENDED: Final = tuple(map(int, FINISHED))
_to_json = msgspec.json.Encoder().encode

Box = tuple[str | None, str]


class Marks(NamedTuple):
    """How far was counted: messages by their keys, ends by their changes; and since when, in room ms."""

    keys: int
    changes: int
    since_ms: int


_SPOILT: Final = Marks(0, 0, 0)


class RoomCounts(NamedTuple):
    """What there is at one moment."""

    states: Counter[int]
    #: What is not finished in each mailbox, by state.
    boxes: dict[Box, Counter[int]]
    #: The oldest that is ready or blocked in each mailbox, by its key.
    oldest: dict[Box, int]


class Front(NamedTuple):
    """The first message of one priority in one mailbox: of those that are ready, and have not expired at the last look."""

    to_agent: str | None
    channel: str
    rank: int  # the priority, the other way round: what is best comes first
    key: int


class RoomFigures:
    """Counts, and remembers what it counted."""

    def __init__(self, steps: Transactions) -> None:
        self._steps = steps
        self._file = steps.file

    def _marks(self) -> Marks | None:
        """How far was counted; None in a room that remembers nothing.

        Marks that another program spoilt are of long ago: the next round counts anew.
        """
        marks = self._file.execute("counted_marks")[0]
        if None in marks:
            return None
        return Marks(*marks) if all(isinstance(mark, int) for mark in marks) else _SPOILT

    def _came_since(self, marks: Marks | None, most: int) -> int:
        """How much came since, up to a number of each kind."""
        return int(sum(self._file.execute("uncounted", (*(marks or (0, 0))[:2], most))[0]))

    def _known(self) -> Marks | None:
        """The marks, where it is worth adding to what was counted up to them."""
        marks = self._marks()
        if marks is None or marks is _SPOILT:
            return None
        return marks if self._came_since(marks, _TOO_MUCH) < _TOO_MUCH else None

    # Looking

    @whole
    def look(self, gone: Sequence[int]) -> tuple[dict[str, int], list[MailboxFigures]]:
        """Messages by public state, and the mailboxes; see `Stats`. The owners in `gone` are."""
        with one_snapshot(self._file):
            counts = self._judged(gone)
            keys = _to_json(list(counts.oldest.values())).decode()
            sent_ms: dict[int, int] = dict(self._file.execute("sent_at", (keys,)))
        states = dict.fromkeys(PUBLIC_NAME.values(), 0)
        for state, count in counts.states.items():
            states[PUBLIC_NAME[State(state)]] += count
        mailboxes = [
            MailboxFigures(*name, depth, sent_ms[counts.oldest[name]])
            for name, box in counts.boxes.items()
            if (depth := sum(box[state] for state in _IN_BOX))
        ]
        return states, sorted(mailboxes, key=lambda box: (box.to_agent or "", box.channel))

    @whole
    def count(self, query: Query, gone: Sequence[int]) -> int | None:
        """How many messages a query means; None where figures do not tell: then it asks for more than states and mailboxes."""
        of_boxes = any(wish is not None for wish in (query.visible_to, query.to_agent, query.channels))
        if query.states is None or not is_about_boxes(query) or (of_boxes and not query.states <= OPEN):
            return None
        with one_snapshot(self._file):
            counts = self._judged(gone)
        if not of_boxes:
            return sum(counts.states[state] for state in query.states)
        found = [box for name, box in counts.boxes.items() if is_meant(query, *name)]
        return sum(box[state] for box in found for state in query.states)

    def _judged(self, gone: Sequence[int]) -> RoomCounts:
        """What there is, as the clock sees it. In a snapshot."""
        marks = self._known()
        counts = (marks and self._added_up(marks)) or self._counted()
        late = naming(gone, self._file.statements["overdue"])
        for state, judged, to_agent, channel, count, oldest in self._file.select(
            late, {"now": self._steps.moment().now}
        ):
            box = to_agent, channel
            for counter in (counts.states, counts.boxes.setdefault(box, Counter())):
                counter[state] -= count
                counter[judged] += count
            if judged in _IN_BOX:
                counts.oldest[box] = min(oldest, counts.oldest.get(box, oldest))
        return counts

    def _counted(self) -> RoomCounts:
        """Everything, counted in the indexes. In a snapshot."""
        execute = self._file.execute
        counts = RoomCounts(Counter(self._all_finished()), {}, {})
        for name in ("count_ready_general", "count_ready_in_channel", "count_ready_for_anyone"):
            for to_agent, channel, count, oldest in execute(name):
                counts.boxes[to_agent, channel] = Counter({State.READY: count})
                counts.oldest[to_agent, channel] = oldest
        self._add_blocked(counts)
        for to_agent, channel, state, count in execute("open_elsewhere"):
            counts.boxes.setdefault((to_agent, channel), Counter())[state] += count
        for box in counts.boxes.values():
            counts.states.update(box)
        return counts

    def _add_blocked(self, counts: RoomCounts) -> None:
        for to_agent, channel, count, oldest in self._file.execute("count_blocked"):
            box = to_agent, channel
            counts.boxes.setdefault(box, Counter())[State.BLOCKED] += count
            counts.oldest[box] = min(oldest, counts.oldest.get(box, oldest))

    def _all_finished(self) -> dict[int, int]:
        counts: dict[int, int] = dict(self._file.execute("count_finished"))
        counts[State.ACKED] = counts.pop(_ALL) - sum(count for state, count in counts.items() if state != _ALL)
        return {state: count for state, count in counts.items() if state in _ENDED}

    def _added_up(self, marks: Marks) -> RoomCounts | None:
        """What was remembered, and what came since. In a snapshot.

        None where it does not fit what the indexes have: another program has changed the file.
        """
        execute = self._file.execute
        counts = RoomCounts(Counter(), {}, {})
        left: Counter[Box] = Counter()
        for to_agent, channel, state, count in execute("counted_boxes", marks[:2]):
            left[to_agent, channel] += count if state == _ALL else -count
            if state != _ALL:
                counts.states[state] += count
        for to_agent, channel, state, count in execute("open_elsewhere"):
            counts.boxes.setdefault((to_agent, channel), Counter())[state] += count
        for front in self.fronts():
            name = front.to_agent, front.channel
            counts.oldest[name] = min(front.key, counts.oldest.get(name, front.key))
        ready = set(counts.oldest)
        self._add_blocked(counts)
        for name in left.keys() | counts.boxes.keys():
            box = counts.boxes.setdefault(name, Counter())
            box[State.READY] = left[name] - box.total()
            counts.states.update(box)
            if box[State.READY] < 0 or (box[State.READY] > 0) != (name in ready):
                return None
        return counts if ready <= counts.boxes.keys() and min(counts.states.values(), default=0) >= 0 else None

    def fronts(self) -> list[Front]:
        """The first message of each priority in each mailbox, of what is ready."""
        return [Front(*row) for row in self._file.execute("ready_fronts")]

    @whole
    def finished(self) -> dict[int, int]:
        """Finished messages by state."""
        with one_snapshot(self._file):
            marks = self._known()
            return self._all_finished() if marks is None else dict(self._file.execute("counted_finished", marks[:2]))

    # Remembering

    def count_up(self) -> None:
        """A round of the housekeeping: add up what came since the last one. Gives way to other writers.

        What a round does not come to is left to the next one, and to looks.
        """
        until_ns = SYSTEM.steady_ns() + _ROUND_NS
        marks = self._marks()
        if marks is None:
            if self._came_since(None, _MANY) < _MANY:
                return
            with self._steps.step():
                if self._marks() is None:  # nobody made it meanwhile
                    self._file.select(self._file.statements["counted_schema"])
            self._forget()
        elif marks.since_ms + _ANEW_MS < self._steps.moment().now:
            self._forget()
        while self._came_since(self._marks(), _WORTH_ADDING) >= _WORTH_ADDING and SYSTEM.steady_ns() < until_ns:
            with self._steps.step():
                self._add_up()
            SYSTEM.sleep(_PAUSE_S)

    def _add_up(self) -> None:
        marks = self._marks()
        if marks is None:
            return
        ((keys, changes),) = self._file.execute("next_to_count", (*marks[:2], _AT_ONCE))
        ends = keys or marks.keys, changes or marks.changes
        self._file.execute("count_up", (*marks[:2], *ends))
        for name, value in zip(_MARKS, ends, strict=False):
            self._file.change("meta_write", (name, value))

    def _forget(self) -> None:
        with self._steps.step() as moment:
            self._file.select("DELETE FROM counted")
            for name, value in zip(_MARKS, (0, 0, moment.now), strict=True):
                self._file.change("meta_write", (name, value))

    # What changes it again. In the steps that do so

    def count_out(self, keys: Iterable[int], *, stays: bool) -> None:
        """Messages are about to be deleted, or to change after their end, if they have ended (`stays`)."""
        marks = self._marks()
        if marks is not None:
            self._file.execute("count_out", (*marks[:2], _to_json(list(keys)).decode(), not stays))

    def count_in(self, key: int) -> None:
        """A message was stored under a key of its own."""
        marks = self._marks()
        if marks is not None:
            self._file.execute("count_in", (*marks[:2], key))


def is_about_boxes(query: Query) -> bool:
    """Whether a query asks for nothing but states and mailboxes."""
    asked = {"states": None, "visible_to": None, "to_agent": None, "channels": None, "order": _ANY.order}
    return msgspec.structs.replace(query, limit=_ANY.limit, **asked) == _ANY


def is_meant(query: Query, to_agent: str | None, channel: str) -> bool:
    """Whether a query that names agents and channels means the messages of a mailbox."""
    if query.channels is not None and channel not in query.channels:
        return False
    if query.to_agent not in (None, to_agent):
        return False
    return query.visible_to in (None, to_agent) or (to_agent is None and query.channels is not None)


_MARKS: Final = ("counted keys", "counted changes", "counted since")


@contextmanager
def one_snapshot(file: SqliteFile) -> Iterator[None]:
    """Several reads of one state of the room, in one read transaction. For methods that are `whole`.

    `whole` rolls back where the block raises. Here it would be too late: an interrupt may leave this generator to be
    collected in the middle of another transaction of the thread.
    """
    file.select("BEGIN")
    yield
    file.select("COMMIT")
