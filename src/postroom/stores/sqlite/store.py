"""The SQLite store: one file, any number of processes, no server.

Every statement stands in schema.sql. The store is made of parts, each with a file of its own: the open database
(`file.py`), transactions and what all parts share (`steps.py`), claims (`claiming.py`), reading (`reading.py`) and
housekeeping (`upkeep.py`). A method of the contract is one step: it takes the room's time once, does its reads and
writes in one transaction (or, where no other writer can come in between, in single statements), and rings the bells
after the commit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec

from postroom.core import crashpoints
from postroom.core.clock import Clock, iso
from postroom.core.config import Config
from postroom.core.message import (
    FRACTION_BITS,
    MAX_NAME_BYTES,
    Draft,
    Message,
    MessageWithLedger,
    id_of,
    ids_of,
    payload_text,
)
from postroom.core.states import NOTES, PUBLIC_NAME, WITHDRAWABLE, State
from postroom.core.system.files import why_unwritable
from postroom.errors import Fault, InvalidMessage
from postroom.stores.bells.bells import WATCHING, Bells, Watcher
from postroom.stores.bells.sockets import NoBells
from postroom.stores.contract import (
    ANY,
    LIMITS,
    OUTCOMES,
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
    topic_channel,
    topic_message,
    topic_to,
)

from . import search
from .claiming import Claims
from .file import SqliteFile
from .housekeeping import SqliteHousekeeping
from .reading import RowReading
from .rows import SEARCH_MARK, Row, StepTime, first_timer, ledger_text, subscription
from .transactions import Transactions, whole

if TYPE_CHECKING:
    from postroom.core.search_query import Term

_SETTLED_AS: Final = {"acked": State.ACKED, "answered": State.ANSWERED, "refused": State.REFUSED, "dead": State.DEAD}
#: The state of a settled message (None: the ticket no longer counts), and the ids of what was put with it.
_SettledNow = tuple[State | None, list[str]]
_NO_WAITERS: Final[Mapping[str, int | None]] = {}
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
        self._reading = RowReading(self._steps, self._claiming.candidates)

    # Putting

    def put(self, drafts: Sequence[Draft]) -> list[str]:
        draft = drafts[0] if len(drafts) == 1 else None
        if (
            draft is None or draft.publish or draft.answer_to or draft.idempotency_key or draft.order_key or draft.replaces
            or self._file.left_open()
        ):  # fmt: skip
            return self._put_in_a_step(drafts)
        # the usual send or question: one statement, with nothing to read before it
        steps, waiter = self._steps, None
        if draft.waiter is not None:
            steps.enrol(draft.waiter)
            waiter = steps.process_id(draft.waiter)
        moment = steps.moment()
        if self._limits.may_be_full(draft, moment.now):
            return self._put_in_a_step(drafts)
        crashpoints.reached("sqlite.begun")
        id = self._insert(draft, moment, State.READY, draft.to_agent, waiter)
        steps.ring(moment)
        return [id]

    @whole
    def _put_in_a_step(self, drafts: Sequence[Draft]) -> list[str]:
        waiters = {draft.waiter for draft in drafts}
        for waiter in waiters:
            self._steps.enrol(waiter)
        if any([draft.replaces or draft.debounce for draft in drafts]):  # noqa: C419
            self._upkeep.apply_all_timers()  # a claim that has ended keeps nobody from withdrawing the message
            self._upkeep.release_the_gone()
        # lists: an interrupt could leave a generator unfinished
        with self._steps.step() as moment:
            if waiters != {None} or self._limits.known_to_sender(moment.now) or any([  # noqa: C419
                draft.publish or draft.answer_to or draft.idempotency_key or draft.order_key or draft.replaces
                for draft in drafts
            ]):  # fmt: skip
                return self._put_all(drafts, moment)
            return self._put_plain(drafts, moment)

    def _put_plain(self, drafts: Sequence[Draft], moment: StepTime) -> list[str]:
        """Many usual messages, written at once."""
        to_insert, keys = self._steps.rows.to_insert, self._file.numbers.ticks(len(drafts))
        self._file.insert_many(
            to_insert(key, draft, moment, State.READY, draft.to_agent, None)
            for key, draft in zip(keys, drafts, strict=True)
        )
        crashpoints.reached("sqlite.inserted")
        moment.everyone |= {topic_to(agent) for agent in {draft.to_agent for draft in drafts} if agent is not None}
        moment.one_each += [topic_channel(draft.channel) for draft in drafts if draft.to_agent is None]
        return ids_of(keys, self._file.salt)

    def _put_all(
        self, drafts: Sequence[Draft], moment: StepTime, waiters: Mapping[str, int | None] = _NO_WAITERS
    ) -> list[str]:
        """Store them. `waiters` are known to wait for the answers to these questions; of others it is looked up."""
        ids: list[str] = []
        for draft in drafts:
            repeated = [] if draft.idempotency_key is None else self._repeat_of(draft)
            if repeated:
                self._file.sync_what_is_there()
                ids += repeated
            elif draft.publish:
                agents = self._file.execute("subscribers", (draft.channel,))
                ids += [self._insert_in_line(draft, moment, State.READY, agent, None) for (agent,) in agents]
            else:
                state, waiter = State.READY, None
                if draft.waiter is not None:
                    waiter = self._steps.process_id(draft.waiter)
                elif draft.answer_to is not None:
                    known = draft.answer_to in waiters
                    waiter = waiters[draft.answer_to] if known else self._steps.waiter_of(draft.answer_to)
                    state = State.READY if waiter is None else State.AWAITED
                ids.append(self._insert_in_line(draft, moment, state, draft.to_agent, waiter))
            crashpoints.reached("sqlite.inserted")
        return ids

    def _repeat_of(self, draft: Draft) -> list[str]:
        """The ids of what this sender stored under this draft's idempotency key before; [] when it is new."""
        rows = self._file.execute("by_idempotency_key", (draft.from_agent, draft.idempotency_key))
        ids = [self._steps.rows.id(key, own_id) for key, own_id, *_ in rows]
        for id, (_, _, to_agent, *content) in zip(ids, rows, strict=True):
            same_receiver = draft.publish or to_agent == draft.to_agent
            if not same_receiver or content != [draft.channel, draft.type, draft.payload_json]:
                raise InvalidMessage(
                    "idempotency_key",
                    f"{draft.idempotency_key!r} was used by {draft.from_agent!r} for another message ({id})",
                )
        return ids

    def _insert(self, draft: Draft, moment: StepTime, state: State, to_agent: str | None, waiter: int | None) -> str:
        key = self._file.insert(self._steps.rows.to_insert(None, draft, moment, state, to_agent, waiter))
        if state is State.AWAITED:
            moment.everyone.add(topic_message(draft.answer_to or ""))
        else:
            moment.wake_receiver(to_agent, draft.channel)
        return id_of(key, self._file.salt)

    def _insert_in_line(
        self, draft: Draft, moment: StepTime, state: State, to_agent: str | None, waiter: int | None
    ) -> str:
        """Store a message behind those of its order key, and withdraw what it replaces."""
        line = (draft.order_key, draft.channel, to_agent)
        old = [] if draft.replaces is None else [self._steps.key(draft.replaces)]
        if draft.debounce:
            old += [key for (key,) in self._file.execute("waiting_in_line", (*line, draft.from_agent))]
        if old:
            self._upkeep.apply_due_timers(moment)  # a claim whose lease has ended keeps nobody from withdrawing it
        if state is State.READY and self._is_behind(draft, to_agent):
            state = State.BLOCKED
        id = self._insert(draft, moment, state, to_agent, waiter)
        for key in old:
            self._withdraw(key, draft.from_agent, f"replaced by {id}", moment)
        if self._limits.version:
            self._limits.check_space(draft, to_agent)
        return id

    def _is_behind(self, message: Draft | Message, to_agent: str | None) -> bool:
        """Whether a message that is about to be stored comes behind another one of its order key."""
        line = (message.order_key, message.channel, to_agent)
        return message.order_key is not None and bool(self._file.execute("is_behind", line)[0][0])

    def _withdraw(self, key: int, agent: str, reason: str | None, moment: StepTime) -> bool:
        entry = ledger_text("withdrawn", moment.wall_ms, agent, reason)
        for own_id, state in self._file.execute("as_it_is", (key,)):
            if self._file.change("withdraw", (key, agent, entry)):
                moment.everyone.add(topic_message(self._steps.rows.id(key, own_id)))
                if state != State.BLOCKED:
                    self._let_the_next_pass(key, moment)
                for _, channel, _, _ in self._file.execute("group_of", (key,)) if self._limits.learn() else ():
                    self._limits.made_space(channel, moment)
                return True
        return False

    def _let_the_next_pass(self, key: int, moment: StepTime) -> None:
        for order_key, channel, to_agent in self._file.execute("line_of", (key,)):
            self._upkeep.let_the_next_pass(order_key, channel, to_agent, moment)

    @whole
    def restore(self, messages: Sequence[MessageWithLedger]) -> int:
        steps, file = self._steps, self._file
        with steps.step() as moment:
            new = [message for message in messages if not file.execute("get", (steps.key(message.id),))]
            for message in new:
                is_behind = self._is_behind(message, message.to_agent)
                row = steps.rows.to_restore(message, file.numbers.ticks(2), moment, is_behind=is_behind)
                file.execute("restore", row)
                moment.everyone.add(topic_message(message.id))
                if message.exact_state in WITHDRAWABLE:
                    moment.wake_receiver(message.to_agent, message.channel)
            self._upkeep.next_look = 0  # the timers of some may have run out
        return len(new)

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
        if outcome not in OUTCOMES:
            raise ValueError(f"there is no outcome {outcome!r}; the outcomes are: {', '.join(OUTCOMES)}")
        if outcome in _SETTLED_AS and not puts and claim_next is None and not self._file.left_open():
            moment = self._steps.moment()
            crashpoints.reached("sqlite.begun")
            state = _SETTLED_AS[outcome]
            if self._ack(ticket, state, detail, moment) or self._end(ticket, state, detail, moment, "finish_alone"):
                self._limits.freed_by_key(self._steps.key(ticket.id), moment)
                self._steps.ring(moment)
                return Settled(True, state, [], None)
            # a stale ticket; limits that are new here; or an order key, whose next message is let pass in the same step
        return self._settle_in_a_step(claim_next, partial(self._settle_now, ticket, outcome, detail, delay_s, puts))

    @whole
    def _settle_in_a_step(self, claim_next: Want | None, settle: Callable[[StepTime], _SettledNow]) -> Settled:
        if claim_next is not None:
            self._upkeep.check_owners_alive()
            self._steps.enrol(claim_next.owner)
        with self._steps.step() as moment:
            state, ids = settle(moment)
            crashpoints.reached("sqlite.settled")
            found = None if claim_next is None else self._claiming.claim_now(claim_next, moment)
        claimed = None if found is None else self._claiming.claimed(found, moment)
        if claimed is not None:
            self._claiming.expect_nothing(claimed)
        return Settled(state is not None, state, ids, claimed)

    def _settle_now(
        self, ticket: Ticket, outcome: str, detail: str | None, delay_s: float, puts: Sequence[Draft], moment: StepTime
    ) -> _SettledNow:
        key = self._steps.key(ticket.id)
        if outcome in _SETTLED_AS and not puts:
            state = _SETTLED_AS[outcome]
            if not self._finish(ticket, state, detail, moment):
                return None, []
            self._limits.freed_by_key(key, moment)
            return state, []
        rows = self._file.execute("held", (key, ticket.token))
        if not rows:
            return None, []
        self._limits.learn()
        self._limits.freed_by_key(key, moment)
        # before the question ends, so that its answer still finds the waiter
        ids = self._put_all(puts, moment, {ticket.id: rows[0][5]})
        if outcome not in _SETTLED_AS:
            return self._put_back(ticket, rows[0], outcome, detail, delay_s, moment), ids
        state = _SETTLED_AS[outcome]
        said = ids[0] if outcome == "answered" and ids else detail
        self._finish(ticket, state, said, moment, is_ordered=rows[0][6] is not None)
        return state, ids

    def _finish(
        self, ticket: Ticket, state: State, detail: str | None, moment: StepTime, *, is_ordered: bool | None = None
    ) -> bool:
        """End a message, if the ticket still counts, and let the next of its order key pass. In a step.

        Whether it has such a key is looked up, unless it is known.
        """
        if self._ack(ticket, state, detail, moment):
            return True  # it has none
        # (testing/limiting.py: test_a_holder_that_has_not_read_the_limits_yet_wakes_others_all_the_same)
        self._limits.learn()
        held = self._end(ticket, state, detail, moment, "finish")
        if held and is_ordered is not False:
            self._let_the_next_pass(self._steps.key(ticket.id), moment)
        return held

    def _ack(self, ticket: Ticket, state: State, detail: str | None, moment: StepTime) -> bool:
        """End a message without an order key by its claimer's ack: there is nothing more to tell than that.

        False also when the limits are not those that this process knows.
        """
        if state is not State.ACKED or detail is not None:
            return False
        values = (self._steps.key(ticket.id), ticket.token, ticket.agent, moment.wall_ms, self._limits.version)
        if not self._file.change("ack", values):
            return False
        moment.everyone.add(topic_message(ticket.id))
        return True

    def _end(self, ticket: Ticket, state: State, detail: str | None, moment: StepTime, statement: str) -> bool:
        """End a message by that statement, if the ticket still counts."""
        error = detail if state in (State.DEAD, State.REFUSED) else None
        entry = ledger_text(PUBLIC_NAME[state], moment.wall_ms, ticket.agent, detail)
        known = (self._limits.version,) if statement == "finish_alone" else ()
        values = (self._steps.key(ticket.id), ticket.token, int(state), error, entry, *known)
        if not self._file.change(statement, values):
            return False
        moment.everyone.add(topic_message(ticket.id))
        return True

    def _put_back(
        self, ticket: Ticket, row: Row, outcome: str, detail: str | None, delay_s: float, moment: StepTime
    ) -> State:
        """Ready again: after a failure, perhaps later ("retry"), or as if it had not been claimed ("returned")."""
        count, most, expires, to_agent, channel, _, order_key = row
        key, state = self._steps.key(ticket.id), State.READY
        moment.everyone.add(topic_message(ticket.id))
        if outcome == "returned":
            self._file.change("return", (key, ledger_text("returned", moment.wall_ms, ticket.agent, detail)))
        elif count >= most:
            state = self._upkeep.mark_dead(key, detail or "no reason given", ticket.agent, moment)
            if order_key is not None:
                self._upkeep.let_the_next_pass(order_key, channel, to_agent, moment)
            return state
        else:
            wake_at = expires
            if delay_s > 0:
                state, wake_at = State.DELAYED, first_timer(moment.now, delay_s, expires)
            entry = ledger_text("retried", moment.wall_ms, ticket.agent, detail)
            self._file.change("retry", (key, int(state), wake_at, detail, entry))
            crashpoints.reached("sqlite.retried")
        self._upkeep.next_look = 0  # its timer may have run out while it was held
        moment.wake_receiver(to_agent, channel)
        return state

    def extend(self, ticket: Ticket, lease_s: float) -> bool:
        return self._claiming.extend(ticket, lease_s)

    def heartbeat(self, tickets: Sequence[Ticket], lease_s: float) -> list[Ticket]:
        return self._claiming.heartbeat(tickets, lease_s)

    @whole
    def note(self, id: str, event: str, agent: str | None, detail: str | None = None) -> bool:
        if event not in NOTES:
            raise InvalidMessage("event", f"must be one of {', '.join(NOTES)}, not {event!r}")
        moment = self._steps.moment()
        entry = ledger_text(event, moment.wall_ms, agent, detail)
        moment.everyone.add(topic_message(id))
        noted = bool(self._file.change("note", (self._steps.key(id), entry)))
        self._steps.ring(moment)
        return noted

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
            return [id for id, key in known.items() if self._withdraw(key, agent, reason, moment)]

    @whole
    def requeue(self, ids: Iterable[str]) -> list[str]:
        done = []
        self._upkeep.apply_all_timers()
        self._upkeep.release_the_gone()
        with self._steps.step() as moment:
            self._upkeep.apply_due_timers(moment)
            entry = ledger_text("requeued", moment.wall_ms, None)
            for id in ids:
                for to_agent, channel in self._file.execute("requeue", (self._steps.key(id), moment.now, entry)):
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
        states, mailboxes = self._reading.figures()
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
            ids = self._put_all(drafts, moment)
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
