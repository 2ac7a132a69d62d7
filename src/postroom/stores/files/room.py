"""The tables of a files room: as its log has them, and where in the tree each message's file belongs."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, Final, NamedTuple

import msgspec

from postroom.core.clock import Clock, iso
from postroom.core.config import AGENT_LEASE_S, Config
from postroom.core.message import Draft, LedgerEntry, MessageWithLedger, id_of, key_of
from postroom.core.states import FINISHED, State
from postroom.errors import RoomUnreachable
from postroom.stores.rules import discard, later_ms
from postroom.stores.tables.tables import Row

from .log import Log, LogLine, LogRecord, RowRecord
from .message import Body, Unreadable, make_file, read_file
from .names import another_of, file_of, folder_of, is_cut, kept_as, key_of_us, us_of_key
from .resting import FIXED, FileRow, RestingTables
from .tree import OWN, Tree

CHANNELS: Final = "_channel"
#: The cells of tasks, which the board's files tell of.
TASKS: Final = "board/task/"
#: The cells of notes that agents leave on the board; the board's files tell of them, too.
NOTES: Final = "board-note/"
ON_BOARD: Final = (TASKS, NOTES)
#: Messages of these types are completion signals: a copy lies in the sender's outbox.
SIGNALS: Final = ("done", "blocked")
BY_HAND: Final = "its file was removed from the inbox by hand"
#: The folders of messages that are in no inbox.
_PLACES: Final = {State.DELAYED: "later", State.BLOCKED: "later", State.AWAITED: "held", State.DEAD: "dead"}
#: A message that was taken in is read whatever its size: another process may allow more than this one.
_MOST_BYTES: Final = 1024**3
#: A log that is written anew has lines of so many rows.
_ROWS_AT_ONCE: Final = 1000


class Prepared(NamedTuple):
    """A message's file, written before the room was locked."""

    us: int
    timestamp_ms: int
    path: str


def prepare(tree: Tree, clock: Clock, salt: int, draft: Draft, us: int) -> Prepared:
    """Write a message's file, in no inbox yet. It is on the disk when this returns."""
    timestamp_ms = clock.wall_ms()
    data = make_file(draft, id_of(key_of_us(us), salt), iso(timestamp_ms))
    return Prepared(us, timestamp_ms, tree.temp(data))


@dataclass(slots=True)
class LogStep:
    """What a step has changed so far."""

    rows: dict[int, FileRow] = field(default_factory=dict)
    entries: dict[int, list[LedgerEntry]] = field(default_factory=dict)
    #: Rows that were not there before; rows that the feed tells of.
    new: set[int] = field(default_factory=set)
    told: dict[int, None] = field(default_factory=dict)
    gone: list[tuple[int, str, str | None]] = field(default_factory=list)
    cells: dict[str, tuple[int, str | None]] = field(default_factory=dict)
    subscribers: dict[tuple[str, str], int | None] = field(default_factory=dict)
    everyone: dict[str, None] = field(default_factory=dict)
    one_each: list[str] = field(default_factory=list)

    def __bool__(self) -> bool:
        return bool(self.rows or self.gone or self.cells or self.subscribers)


class FileTables(RestingTables):
    """The tables of one room as this process knows them. `took` is the step under way."""

    def __init__(self, config: Config, clock: Clock, salt: int, base_ns: int, tree: Tree, log: Log) -> None:
        super().__init__(config, clock, salt, base_ns, log)
        self.tree = tree
        self.took = LogStep()
        self.prepared: dict[int, Prepared] = {}  # id(draft) -> its file
        self.bodies: dict[int, Body] = {}  # what was read in this step
        self.lying: dict[str, int] = {}  # path -> key of what is ready, or was dropped: what may lie in the inboxes
        self.board_number = 0  # the number of the last step that changed a task or a note

    # Payloads lie in the messages' files; here is a digest.

    def body_of(self, draft: Draft) -> str:
        return hashlib.blake2b(draft.payload_json.encode(), digest_size=16).hexdigest()

    def payload_of(self, row: Row) -> dict[str, Any]:
        assert isinstance(row, FileRow)
        try:
            return (self.bodies.get(row.key) or self.read(row)).payload()
        except (FileNotFoundError, Unreadable):
            return {}

    def read(self, row: FileRow) -> Body:
        """The content of a message's file. Raises FileNotFoundError, or Unreadable with the reason.

        A reader without the lock may come while the file is moved, or after it was moved on: it is looked for.
        """
        for path in self._hunt(row):
            try:
                return read_file(self.tree, path, _MOST_BYTES, merge=row.dropped)
            except FileNotFoundError:
                continue
        raise FileNotFoundError(row.path)

    def _hunt(self, row: FileRow, rounds: int = 3) -> Iterator[str]:
        """Where a message's file may be: where it belongs, where it was, and then everywhere else."""
        yield row.path
        kept = kept_as(row.key, row.file)
        for _ in range(rounds):
            if row.before:
                yield row.before
            yield row.path
            claimed = f"{OWN}/claimed"
            for agent in self.tree.names(claimed):
                for name in self.tree.names(f"{claimed}/{agent}"):
                    if name.startswith(f"{row.key:016x}~"):
                        yield f"{claimed}/{agent}/{name}"
            for place in ("later", "held", "dead", f"done/{iso(row.key >> 21)[:10]}"):
                yield f"{OWN}/{place}/{kept}"
            yield f"{self.inbox_of(row)}/{row.file}"

    def find_stray(self, row: FileRow) -> bool:
        """Whether the file of a ready message lies elsewhere than it should, as after a power cut; it is there then."""
        for path in self._hunt(row, rounds=1):
            if self.tree.kind(path) is not None:
                self._stop_lying(row)
                row.path = path
                self.touch(row)  # and it is brought back
                return True
        return False

    def at_hand(self, row: Row) -> bool:
        assert isinstance(row, FileRow)
        if row.key in self.bodies:  # taken in a moment ago
            return True
        if self.tree.kind(row.path) is None and not self.find_stray(row):
            self.taken_by_hand(row)
            return False
        try:
            body = self.read(row)
            body.payload()  # a file may be read, and yet be no message any more
        except FileNotFoundError:
            self.taken_by_hand(row)
            return False
        except Unreadable as why:
            self._found_unreadable(row, str(why))
            return False
        self.bodies[row.key] = body
        return True

    def _found_unreadable(self, row: FileRow, why: str) -> None:
        """Somebody spoilt the file of a message that waits: it is set aside, with the reason."""
        row.error = f"its file can no longer be read: {why}"
        row.token += 1
        self.change(row, State.CLAIMED)
        self.move(row, State.DEAD, "dead", row.draft.to_agent, row.error)

    def taken_by_hand(self, row: FileRow) -> None:
        """An agent that works with files alone took a message: it is done; a question is for it to answer."""
        agent = row.draft.to_agent or "somebody"
        taken_before = any(entry.detail == BY_HAND for entry in row.ledger)
        theirs_to_answer = row.state is State.READY and row.waiter is not None and not taken_before
        self._stop_lying(row)
        self.claimed_by_hand(row, agent)
        if not theirs_to_answer:
            self.move(row, State.ACKED, "acked", agent, BY_HAND)
        row.path = self.place_of(row)  # there is no file to be moved

    def claimed_by_hand(self, row: FileRow, agent: str) -> None:
        """An agent that works with files alone has a message, for ten minutes."""
        row.token += 1
        row.deliveries += 1
        row.claimed_by = agent
        row.last_delivered_ms = self.clock.wall_ms()
        self.change(row, State.CLAIMED, until_ms=later_ms(self.now_ms(), AGENT_LEASE_S))
        self.write(row, "claimed", agent, BY_HAND)

    # New rows

    def make_row(self, draft: Draft, to_agent: str | None) -> FileRow:
        ready = self.prepared.pop(id(draft), None)
        if ready is None:  # a copy for a subscriber: how many there are was not known before
            copy = msgspec.structs.replace(draft, to_agent=to_agent)
            ready = prepare(self.tree, self.clock, self.salt, copy, self.next_us())
        row = self.row_at(draft, to_agent, ready.us, ready.timestamp_ms, file_of(ready.us, draft.type), ready.path)
        if draft.type in SIGNALS:
            row.signal = f"outbox/{folder_of(draft.from_agent)}/{row.file}"
        return row

    def row_for(self, message: MessageWithLedger, draft: Draft) -> FileRow:
        key = key_of(message.id, self.salt)
        us = self.next_us() if key is None else us_of_key(key)
        path = self.tree.temp(make_file(draft, message.id, iso(message.timestamp_ms)))
        row = self.row_at(draft, draft.to_agent, us, message.timestamp_ms, file_of(us, draft.type), path)
        row.id, row.state = message.id, message.exact_state
        return row

    def restore(self, message: MessageWithLedger, draft: Draft) -> FileRow:
        row = super().restore(message, draft)
        assert isinstance(row, FileRow)
        self.took.entries[row.key] = list(row.ledger)
        return row

    def row_at(self, draft: Draft, to_agent: str | None, us: int, timestamp_ms: int, file: str, path: str) -> FileRow:
        """A row for a file that is there."""
        key = key_of_us(us)
        body = self.body_of(draft)
        row = FileRow(
            key=key,
            id=id_of(key, self.salt),
            draft=msgspec.structs.replace(draft, to_agent=to_agent, payload=None, payload_json=body),
            timestamp_ms=timestamp_ms,
            expires_ms=None if draft.ttl_s is None else self.now_ms() + round(draft.ttl_s * 1000),
            state=State.DELAYED if draft.delay_s else State.READY,
            size_bytes=len(draft.payload_json),
            file=file,
            path=path,
        )
        self.took.new.add(key)
        return row

    # What a step changes

    def touch(self, row: Row) -> None:
        assert isinstance(row, FileRow)
        self.before_change(row)
        self.took.rows[row.key] = row

    def shelve(self, row: Row, since_ms: int) -> None:
        assert isinstance(row, FileRow)
        row.since_ms = since_ms
        super().shelve(row, since_ms)

    def tell(self, row: Row, entry: LedgerEntry, *, in_ledger: bool) -> None:
        assert isinstance(row, FileRow)
        row.news = entry
        self.took.told[row.key] = None
        if in_ledger:
            self.took.entries.setdefault(row.key, []).append(entry)

    def delete(self, rows: Iterable[Row]) -> int:
        gone = list(rows)
        for row in gone:
            assert isinstance(row, FileRow)
            self.took.gone.append((row.key, row.path, row.signal))
            self.before_change(row)
            self._stop_lying(row)
        count = super().delete(gone)
        for row in gone:
            self.took.rows.pop(row.key, None)
        return count

    def set_cell(self, name: str, text: str | None) -> int:
        version = super().set_cell(name, text)
        self.took.cells[name] = (version, text)
        return version

    def set_subscriber(self, channel: str, agent: str, since_ms: int | None) -> None:
        super().set_subscriber(channel, agent, since_ms)
        self.took.subscribers[channel, agent] = since_ms

    def ring(self, topic: str) -> None:
        self.took.everyone[topic] = None

    def ring_one(self, topic: str) -> None:
        self.took.one_each.append(topic)

    # The tree

    def inbox_of(self, row: FileRow) -> str:
        """The folder in which a message waits for its receiver."""
        draft = row.draft
        name = f"{CHANNELS}/{folder_of(draft.channel)}" if draft.to_agent is None else folder_of(draft.to_agent)
        return f"inbox/{name}"

    def place_of(self, row: FileRow) -> str:
        """Where a message's file belongs now."""
        kept = kept_as(row.key, row.file)
        if row.state is State.READY:
            return row.path if row.path.startswith("inbox/") else self.free_path(row)
        if row.state is State.CLAIMED:
            wall_ms = (row.wake_ms or self.now_ms()) - self.now_ms() + self.clock.wall_ms()
            until = iso(wall_ms).replace(":", "").replace("-", "")
            process = "agent" if row.owner is None else f"pid{row.owner.split(':')[1]}"
            claim = f"{row.key:016x}~token{row.token}~{process}~until{until}~{row.file}"
            return f"{OWN}/claimed/{folder_of(row.claimed_by or '')}/{_short(claim)}"
        if row.state in _PLACES:
            return f"{OWN}/{_PLACES[row.state]}/{kept}"
        return f"{OWN}/done/{iso(row.key >> 21)[:10]}/{kept}"

    def us_given(self, key: int | None) -> int | None:
        """The microsecond of a message that this room once stored and does not know any more; None for all others."""
        if key is None or key in self.rows:
            return None
        us = us_of_key(key)
        return us if key_of_us(us) == key and us <= self.now_ns() // 1000 + 1_000_000 else None

    def next_us(self) -> int:
        """A microsecond behind those of all other messages."""
        return self._log.reserve(self.now_ns() // 1000, 1)

    def free_path(self, row: FileRow) -> str:
        """A path in the inbox that nothing has. Under a name of ours, which no other program writes over."""
        folder, count = self.inbox_of(row), 1
        first = name = file_of(us_of_key(row.key), row.draft.type) if row.dropped else row.file
        try:
            self.tree.folder(folder, make=True)
        except OSError as error:
            raise RoomUnreachable(f"{self.tree.root / folder} is not a usable folder: {error.strerror}") from error
        if is_cut(folder):  # what it is cut from can be read there
            self.tree.tell(f"{OWN}/names/{folder.rpartition('/')[2]}", row.draft.to_agent or row.draft.channel)
        while (path := f"{folder}/{name}") in self.lying or self.tree.kind(path) is not None:
            count += 1
            name = another_of(first, count)
        return path

    def explain_rejected(self, path: str, reason: str) -> str:
        """Write down why a file that somebody made is set aside. Returns the path that it is to have there."""
        place = f"{OWN}/rejected/{kept_as(self.next_us(), path.rpartition('/')[2])}"
        # the file's name may be the reason, and no text
        self.tree.replace(f"{place.removesuffix('.json')}.reason.txt", reason.encode(errors="backslashreplace"))
        return place

    def lie(self, row: FileRow) -> None:
        """A ready message lies in its inbox."""
        if row.state is State.READY:
            self.lying[row.path] = row.key

    def _stop_lying(self, row: FileRow) -> None:
        if self.lying.get(row.path) == row.key:
            del self.lying[row.path]

    # Writing down, and reading what others wrote down

    def record(self) -> LogRecord:
        """The step that was taken, as it is written down; each row's file belongs to its new place from now on."""
        step = self.took
        return LogRecord(
            rows=[self._record_row(row, step) for row in step.rows.values()],
            gone=step.gone,
            cells=[(name, *cell) for name, cell in step.cells.items()],
            subscribers=[(*name, since_ms) for name, since_ms in step.subscribers.items()],
        )

    def _record_row(self, row: FileRow, step: LogStep) -> RowRecord:
        was = row.before = row.path
        self._stop_lying(row)
        row.path = self.place_of(row)
        self.lie(row)
        entries = step.entries.get(row.key, [])
        told = row.news if row.key in step.told and (not entries or entries[-1] is not row.news) else None
        return self._row_record(row, was, entries, told, fixed=row.key in step.new)

    def _row_record(
        self, row: FileRow, was: str, entries: list[LedgerEntry], news: LedgerEntry | None, *, fixed: bool
    ) -> RowRecord:
        draft = [getattr(row.draft, name) for name in FIXED]
        about = [row.timestamp_ms, row.size_bytes, row.file, row.dropped, row.signal, row.first]
        own_id = [row.id] if row.moved else []
        return RowRecord(
            row.key, was, row.path, row.state, row.wake_ms, row.token, row.deliveries, row.claimed_by, row.owner, row.waiter,
            row.last_delivered_ms, row.error, row.expires_ms, row.since_ms, entries, news, [*about, draft, *own_id] if fixed else None,
        )  # fmt: skip

    def end_step(self, line: LogLine, number: int) -> None:
        """The step was written down there, under this number."""
        if any(name.startswith(ON_BOARD) for name in self.took.cells):
            self.board_number = number
        for key in self.took.told:
            if key in self.rows:
                self.numbered(self.rows[key], number)
        self._note_spots(line)
        self.last_number = max(self.last_number, number)
        self.forget_news()

    def _note_spots(self, line: LogLine) -> None:
        for each, spot in zip(line.record.rows, line.spots, strict=True):
            row = dict.get(self.rows, each.key)
            if row is not None:
                row.told_at(spot, superfluous=not (each.entries or each.news or each.fixed))
                if row.state in FINISHED:
                    self.resting[each.key] = None

    def apply(self, line: LogLine, number: int) -> None:
        """Take over a step of somebody else (or of our own, when the room is read anew)."""
        record = line.record
        for each in record.rows:
            self._apply_row(each, each.number or number, at_start=record.base is not None)
        self._note_spots(line)
        self.delete([self.rows[key] for key, _, _ in record.gone if key in self.rows])
        for name, version, text in record.cells:
            self.cells.pop(name, None)
            if text is not None:
                self.cells[name] = (version, text)
            if name.startswith(ON_BOARD):
                self.board_number = number
            self.last_version = max(self.last_version, version)
        for channel, agent, since_ms in record.subscribers:
            super().set_subscriber(channel, agent, since_ms)
        for who, done, count in record.tally:
            self.tally[who, done] += count
        self.last_version = max(self.last_version, record.version)
        self.last_number = max(self.last_number, number)
        self.took = LogStep()
        self.put_to_rest()
        self.forget_news()

    def _apply_row(self, each: RowRecord, number: int, *, at_start: bool) -> None:
        row = self.rows.get(each.key)
        if row is None:
            if each.fixed is None:
                return  # a change of what was deleted before
            row = self.known_row(each.key, each.fixed)
            self.add(row)
        else:
            self.before_change(row)
            self.lift(row)
            self._stop_lying(row)
            if row.waiter is not None:
                discard(self.waits, row.waiter, row.key)
        has_news = self.take_over(row, each)
        if row.waiter is not None:
            self.waits[row.waiter].add(row.key)
        self.shelve(row, each.since_ms)
        self.lie(row)
        if has_news:
            self.numbered(row, number)
            if row.first != number and at_start:
                self.tell_at(row.first, row.key)

    def whole(self, base: int) -> Iterator[LogRecord]:
        """Everything, as the first lines of a new log.

        The last of several has no rows: damage of the others is not taken for an end that somebody is still writing.
        """
        first = LogRecord(
            cells=[(name, version, text) for name, (version, text) in self.cells.items()],
            subscribers=[(*name, since_ms) for name, since_ms in self.subscribers.items()],
            base=base,
            version=self.last_version,
            tally=[(*name, count) for name, count in self.tally.items()],
        )
        keys = self.keys_by_number()
        first.rows = self._whole_rows(islice(keys, _ROWS_AT_ONCE))
        yield first
        more = False
        while rows := self._whole_rows(islice(keys, _ROWS_AT_ONCE)):
            more = True
            yield LogRecord(rows=rows, base=base)
        if more:
            yield LogRecord(base=base)

    def _whole_rows(self, keys: Iterable[int]) -> list[RowRecord]:
        rows = []
        for key in keys:
            row = self.rows[key]
            each = self._row_record(row, row.path, row.ledger, row.news, fixed=True)
            each.number = row.number
            rows.append(each)
        return rows


def _short(name: str) -> str:
    """A file name of at most 255 bytes, which keeps its ending."""
    data = name.encode("utf-8", "surrogateescape")
    return name if len(data) <= 255 else data[:240].decode("utf-8", "ignore") + "~.json"
