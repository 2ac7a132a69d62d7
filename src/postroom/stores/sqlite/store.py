"""The SQLite store: one file, any number of processes, no server.

Every statement stands in schema.sql. The store is made of parts, each with a file of its own: the open database
(`file.py`), transactions and what all parts share (`transactions.py`), `putting.py`, `claiming.py`, `settling.py`,
`limiting.py`, `reading.py` and `housekeeping.py`. A method of the contract is one step: it takes the room's time once, does its reads and
writes in one transaction (or, where no other writer can come in between, in single statements), and rings the bells
after the commit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from postroom.core.clock import Clock, iso
from postroom.core.config import Config
from postroom.core.message import (
    FRACTION_BITS,
    MAX_NAME_BYTES,
    Draft,
    MessageWithLedger,
    payload_text,
)
from postroom.core.states import ENDED_BADLY, NOTES, WITHDRAWABLE, State
from postroom.core.system.files import why_unwritable
from postroom.errors import Fault, InvalidMessage
from postroom.stores.bells.bells import WATCHING, Bells, Watcher
from postroom.stores.bells.sockets import NoBells
from postroom.stores.contract import (
    ANY,
    LIMITS,
    Cell,
    Change,
    Claimed,
    Delivery,
    Page,
    Query,
    Settled,
    Stats,
    Store,
    Subscription,
    Swept,
    Ticket,
    Waiter,
    Want,
    WorkDone,
    topic_cells,
    topic_message,
    topic_to,
)

from . import search
from .claiming import Claims
from .file import SqliteFile
from .housekeeping import SqliteHousekeeping
from .putting import Puts
from .reading import RowReading
from .rows import SEARCH_MARK, Row, ledger_text, subscription
from .settling import Settlements
from .transactions import Transactions, whole

if TYPE_CHECKING:
    from postroom.core.search_query import Term

_from_json = msgspec.json.Decoder().decode


class SqliteStore(Store):
    """Keeps a room in `messages.db` inside a folder."""

    durable = True
    shared = True
    restores = True

    def __init__(self, folder: Path, config: Config, clock: Clock, *, vfs: str | None = None) -> None:
        self.clock = clock
        self._config = config
        self._file = SqliteFile(folder, config, clock, vfs)
        self._last_cell: tuple[str, int] | None = None  # its name and version
        bells, self._no_bells = _hang_bells(folder, clock)
        self._steps = Transactions(self._file, clock, bells)
        self._upkeep = SqliteHousekeeping(self._steps, config)
        self._limits = self._upkeep.limits
        self._claiming = Claims(self._steps, self._upkeep, config)
        self._putting = Puts(self._steps, self._upkeep)
        self._settling = Settlements(self._steps, self._upkeep, self._claiming, self._putting)
        self._reading = RowReading(self._steps, self._upkeep.figures)

    # Putting

    def put(self, drafts: Sequence[Draft]) -> list[str]:
        return self._putting.put(drafts)

    def restore(self, messages: Sequence[MessageWithLedger]) -> int:
        return self._putting.restore(messages)

    # Claiming

    def claim(self, want: Want) -> Claimed:
        return self._claiming.claim(want)

    def claim_answer(self, question: str, want: Want) -> Delivery | None:
        return self._claiming.claim_answer(question, want)

    # Settling

    def settle(
        self,
        ticket: Ticket,
        outcome: str,
        *,
        detail: str | None = None,
        delay_s: float = 0,
        puts: Sequence[Draft] = (),
        claim_next: Want | None = None,
    ) -> Settled:
        return self._settling.settle(ticket, outcome, detail, delay_s, puts, claim_next)

    def extend(self, ticket: Ticket, lease_s: float) -> bool:
        return self._claiming.extend(ticket, lease_s)

    def heartbeat(self, tickets: Sequence[Ticket], lease_s: float) -> list[Ticket]:
        return self._claiming.heartbeat(tickets, lease_s)

    @whole
    def note(self, id: str, event: str, agent: str | None, detail: str | None = None) -> bool:
        if event not in NOTES:
            raise InvalidMessage("event", f"must be one of {', '.join(NOTES)}, not {event!r}")
        key = self._steps.key(id)
        with self._steps.step() as moment:
            entry = ledger_text(event, moment.wall_ms, agent, detail)
            moment.everyone.add(topic_message(id))
            self._upkeep.figures.count_out([key], stays=True)
            return bool(self._file.change("note", (key, entry)))

    @whole
    def abandon(self, *ids: str) -> None:
        with self._steps.step() as moment:
            entry = ledger_text("abandoned", moment.wall_ms, None, "the asker no longer waits")
            for key in map(self._steps.key, ids):
                self._file.change("stop_waiting", (key, entry))
                for (to_agent,) in self._file.execute("unhold", (key,)):
                    moment.everyone.add(topic_to(to_agent))
            self._upkeep.next_look = 0

    # Taking back, putting back, deleting

    @whole
    def withdraw(self, ids: Iterable[str], agent: str, reason: str | None = None) -> list[str]:
        self._upkeep.apply_all_timers()
        self._upkeep.release_the_gone()
        with self._steps.step() as moment:
            self._upkeep.apply_due_timers(moment)
            known = {id: self._steps.key(id) for id in ids}
            return [id for id, key in known.items() if self._putting.withdraw(key, agent, reason, moment)]

    @whole
    def requeue(self, ids: Iterable[str]) -> list[str]:
        done = []
        self._upkeep.apply_all_timers()
        self._upkeep.release_the_gone()
        with self._steps.step() as moment:
            self._upkeep.apply_due_timers(moment)
            entry = ledger_text("requeued", moment.wall_ms, None)
            for id in ids:
                key = self._steps.key(id)
                if any(state in ENDED_BADLY for _, state in self._file.execute("as_it_is", (key,))):
                    self._upkeep.figures.count_out([key], stays=True)
                for to_agent, channel in self._file.execute("requeue", (key, moment.now, entry)):
                    done.append(id)
                    moment.wake_receiver(to_agent, channel)
                    moment.everyone.add(topic_message(id))
        return done

    @whole
    def purge(self, query: Query) -> int:
        condition, values = self._reading.where(query)
        self._upkeep.apply_all_timers()
        self._upkeep.release_the_gone()
        with self._steps.step() as moment:
            self._upkeep.apply_due_timers(moment)
            rows = self._file.select(
                f"{self._file.statements['keys']} WHERE {condition} AND state <> 1 ORDER BY key LIMIT :limit",
                {**values, "now": moment.now, "limit": query.limit},
            )
            purged = self._upkeep.delete([key for key, *_ in rows])
            ended = [row[2:] for row in rows if row[2] is not None and row[1] in (State.READY, State.DELAYED)]
            for order_key, channel, to_agent in dict.fromkeys(ended):
                self._upkeep.let_the_next_pass(order_key, channel, to_agent, moment)
            if purged and self._limits.learn():
                for channel in {row[3] for row in rows if row[1] in WITHDRAWABLE}:
                    self._limits.made_space(channel, moment)
        if purged and self._file.execute("meta_read", (SEARCH_MARK,)):
            search.SearchIndex(self._steps).merge_all()  # until nothing of them is left in the file
        return purged

    # Reading

    def get(self, id: str) -> MessageWithLedger | None:
        return self._reading.get(id)

    def find(self, query: Query, cursor: int | None = None) -> Page:
        return self._reading.find(query, cursor)

    def find_text(
        self,
        query: Query,
        terms: Sequence[Term],
        cursor: int | None = None,
        told: Callable[[int, int], object] | None = None,
    ) -> Page | None:
        index = search.SearchIndex(self._steps)
        if not index.is_current() and (self._file.why_only_looking or not index.bring_up_to_date(told)):
            return None
        words = index.match(query, terms)
        if words is None and terms:
            return None  # nothing that an index could begin with
        return self._reading.find(msgspec.structs.replace(query, order="newest"), cursor, words)

    def count(self, query: Query) -> int:
        return self._reading.count(query)

    def events(self, after: int = 0, limit: int = 1000) -> list[Change]:
        return self._reading.events(after, limit)

    def number_at(self, wall_ms: int | None = None) -> int:
        if wall_ms is None:
            return int(self._file.execute("last_number")[0][0])
        self._file.connection()  # a closed room says so
        moment = self._steps.moment()
        # one less than the moment's first number, for the feed gives what comes after its cursor
        number = ((moment.now - moment.wall_ms + wall_ms) << FRACTION_BITS) - 1
        return min(max(0, number), 2**63 - 1)

    def forgotten(self) -> int:
        rows = self._file.execute("meta_read", ("floor",))
        return int(rows[0][0]) - 1 if rows else 0

    def stats(self) -> Stats:
        states, mailboxes = self._upkeep.figures.look(self._reading.all_gone())
        bells = self._steps.bells
        about = {
            "kind": "sqlite",
            "path": str(self._file.path),
            "sync": self._config.sync,
            "wake_up": self._no_bells if bells is None else bells.way(),
            "liveness": self._file.attendance.judged_by(),
            "wal_bytes": self._file.log.size_bytes(),
        }
        return Stats(states=states, mailboxes=mailboxes, store=about)

    def work_of(self, agent: str) -> WorkDone:
        return WorkDone(*self._file.execute("work_of", (agent,))[0])

    def read_only(self, sql: str, bindings: Any = ()) -> tuple[list[str], list[Row]]:
        """Run somebody's own SELECT; column names and rows. Cannot change anything."""
        return self._file.read_only(sql, bindings)

    def faults(self, limit_s: float) -> list[str] | None:
        """What is wrong with the file: nothing is []; None when it could not be read through in that time."""
        return self._file.faults(limit_s)

    def copy_to(self, folder: Path) -> None:
        """Copy the room's file as it is at one moment, while others use it; see `SqliteFile.copy_to`."""
        self._file.copy_to(folder)

    def room_ms(self) -> int:
        return self._steps.moment().now

    def layout(self) -> tuple[int, Path]:
        """The number of the file's layout, and what the names of copies that upgrades keep begin with."""
        return int(self._file.select("PRAGMA user_version")[0][0]), self._file.path

    # Subscriptions and cells

    @whole
    def subscribe(self, channel: str, agent: str) -> None:
        if not self._file.change("subscribe", (channel, agent, iso(self.clock.wall_ms()))):
            self._file.sync_what_is_there()

    @whole
    def unsubscribe(self, channel: str, agent: str) -> bool:
        return bool(self._file.execute("unsubscribe", (channel, agent)))

    def subscriptions(self) -> list[Subscription]:
        return [subscription(row) for row in self._file.execute("subscriptions")]

    def cell_read(self, name: str) -> Cell | None:
        rows = self._file.execute("cell_read", (name,))
        return Cell(rows[0][0], rows[0][1], _from_json(rows[0][2])) if rows else None

    def cell_scan(self, prefix: str) -> list[Cell]:
        rows = self._file.execute("cell_scan", (prefix, prefix + "\U0010ffff" * MAX_NAME_BYTES))
        return [Cell(name, version, _from_json(value)) for name, version, value in rows]

    @whole
    def cell_write(self, name: str, value: Any, expect: int = ANY) -> int | None:
        text = _cell_text(value)
        with self._steps.step() as moment:
            rows = self._file.execute("cell_read", (name,))
            if expect not in (ANY, rows[0][1] if rows else 0):
                return None
            moment.everyone = {topic_cells(name)}  # and not the feed, which is of messages
            version = self._write_cell(name, None if value is None else text)
            if name == LIMITS:
                self._limits.changed(moment)
        if version:
            self._last_cell = (name, version)
        return version

    @whole
    def put_with_cell(self, drafts: Sequence[Draft], name: str, value: Any, expect: int) -> list[str] | None:
        text = _cell_text(value)
        with self._steps.step() as moment:
            rows = self._file.execute("cell_read", (name,))
            if not rows or rows[0][1] != expect:
                return None
            self._limits.known_to_sender(moment.now)
            ids = self._putting.put_all(drafts, moment)
            moment.everyone.add(topic_cells(name))
            version = self._write_cell(name, text)
        self._last_cell = (name, version)
        return ids

    def _write_cell(self, name: str, text: str | None) -> int:
        """Its new version; 0 after a delete."""
        number = self._file.numbers.tick()
        if text is None:
            for (last,) in self._file.execute("cell_delete", (name,)):
                self._file.execute("raise_cell_floor", (last + 1,))
            return 0
        number = max(number, self._file.execute("cell_floor")[0][0])
        version: int = self._file.execute("cell_put", (name, number, text))[0][0]
        return version

    # Processes, the file

    @property
    def process(self) -> str:
        return self._file.attendance.process

    def process_alive(self, process: str) -> bool | None:
        return self._file.attendance.is_alive(process)

    def why_only_looking(self) -> str:
        return self._file.why_only_looking or why_unwritable(self._file.folder, self._file.path)

    def open_elsewhere(self) -> bool:
        return self._file.attendance.open_elsewhere()

    def check_there(self) -> None:
        """Also whether the last cell written here (mostly a heartbeat) is still as new: versions never come back."""
        self._file.check_there()
        if self._last_cell is None or not self._file.is_connected():
            return  # a thread that only looks in, such as a loop's, opens no connection for it
        if not self._file.execute("cell_is_kept", self._last_cell)[0][0]:
            self._file.is_gone("was set back to an earlier state")

    # Waiting, housekeeping

    def listen(self, topics: Iterable[str]) -> Waiter:
        topics = list(topics)
        self._file.connection()
        bells = self._steps.bells
        if bells is not None:
            try:
                return bells.listen(topics, self._claiming.expect_something)
            except (NoBells, OSError):  # or no descriptors are left
                pass
        return Watcher(self._file.data_version, self.clock)

    def sweep(self) -> Swept:
        return self._upkeep.sweep()

    def close(self) -> None:
        bells = self._steps.bells
        if bells is not None:
            bells.close()
            self._steps.bells = None  # a map of its page keeps a descriptor, for as long as it is known
        self._file.close()

    def __del__(self) -> None:
        try:
            if not self._file.inherited:
                self.close()
        except (AttributeError, TypeError):  # it was interrupted while it was made; or Python ends
            pass


def _hang_bells(folder: Path, clock: Clock) -> tuple[Bells | None, str]:
    """The bells of a room, or None and how its waiters are woken without."""
    try:
        return Bells(folder, clock), ""
    except NoBells as why:
        return None, f"{WATCHING} ({why})"


def _cell_text(value: Any) -> str:
    """A cell's value as JSON text; InvalidMessage for one that has none."""
    faults: list[Fault] = []
    text = payload_text(value, faults)
    if faults:
        raise InvalidMessage(faults)
    return text
