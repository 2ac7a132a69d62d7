"""The SQLite store: one file, any number of processes, no server.

Every statement stands in schema.sql; the file itself is opened in file.py. A method here is one step of the
store contract: it takes the room's time once, does its reads and writes in one transaction (or, where nobody else can come
in between, in single statements), and rings the bells after the commit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import msgspec

from postroom.core import crashpoints
from postroom.core.clock import Clock, iso
from postroom.core.config import Config
from postroom.core.message import FRACTION_BITS, Draft, id_of, ids_of, key_of, payload_text
from postroom.core.states import ASKER_GONE, LEASE_ENDED, NOT_IN_TIME, NOTES, OWNER_GONE, PUBLIC_NAME, State
from postroom.errors import Fault, InvalidMessage
from postroom.stores.bells.bells import WATCHING, Bells, Watcher
from postroom.stores.bells.sockets import NoBells
from postroom.stores.contract import (
    ANY,
    OUTCOMES,
    Claimed,
    Delivery,
    Query,
    Settled,
    Swept,
    Ticket,
    Waiter,
    Want,
    topic_cells,
    topic_message,
    topic_to,
)

from .connection import Row
from .file import SqliteFile
from .reading import SqliteReading, StepTime
from .rollback import whole
from .rows import STATE, Taken, ledger_text

#: While there is something to claim, timers are looked at this often: a delayed message may be so much late.
_LOOK_MS: Final = 5
_KEYS_KEPT: Final = 1000
#: The dead are looked for at most this often.
_ROLL_CALL_NS: Final = 400_000_000
_SETTLED_AS: Final = {
    "acked": State.ACKED,
    "answered": State.ANSWERED,
    "refused": State.REFUSED,
    "dead": State.DEAD,
}
#: What a claim took: the rows as they were before; where it found none, in how many seconds the next timer runs out (one who got
#: something will ask again before it waits); and on which terms.
_Found = tuple[list[Row], float | None, Taken]
_NO_WAITERS: Final[Mapping[str, int | None]] = {}
_to_json = msgspec.json.Encoder().encode
_from_json = msgspec.json.Decoder().decode


class Transaction:
    """One write transaction at one moment of the room; its end rings the bells."""

    __slots__ = ("_file", "_first", "_moment", "_now", "_ring")

    def __init__(self, file: SqliteFile, now: Callable[[], StepTime], ring: Callable[[StepTime], None]) -> None:
        self._file = file
        self._now = now
        self._ring = ring

    def __enter__(self) -> StepTime:
        self._file.begin()
        # under the lock, however long it took to get it: leases and expiry count from here (tests/stores/test_sqlite.py)
        self._moment = self._now()
        self._first = self._file.last_number
        crashpoints.reached("sqlite.begun")
        return self._moment

    def __exit__(self, kind: object, error: object, traceback: object) -> None:
        if kind is not None:
            self._file.roll_back()
            return
        crashpoints.reached("sqlite.written")
        self._file.commit()
        moment = self._moment
        if self._file.last_number != self._first or moment.one_each or len(moment.everyone) > 1:  # something changed
            self._ring(moment)


class SqliteStore(SqliteReading):
    """Keeps a room in `messages.db` inside a folder."""

    durable = True
    shared = True

    def __init__(self, folder: Path, config: Config, clock: Clock, *, vfs: str | None = None) -> None:
        super().__init__(folder, config, clock, vfs)
        self._next_roll_call_ns = 0
        self._next_look = 0
        self._last_cell: tuple[str, int] | None = None  # its name and version
        self._no_bells = ""
        self._bells = self._hang_bells(folder)

    def _hang_bells(self, folder: Path) -> Bells | None:
        try:
            return Bells(folder, self.clock)
        except NoBells as why:
            self._no_bells = f"{WATCHING} ({why})"
            return None

    @property
    def bells_kind(self) -> str:
        bells = self._bells
        return self._no_bells if bells is None else bells.way()

    def _ring(self, moment: StepTime) -> None:
        crashpoints.reached("sqlite.committed")
        bells = self._bells  # once: another thread may close the room meanwhile
        if bells is not None:
            bells.ring(moment.everyone, moment.one_each)

    def _step(self) -> Transaction:
        """One write transaction at one moment, and the bells after it."""
        return Transaction(self._file, self._moment, self._ring)

    # Putting

    def _call(self, topic: str) -> None:
        """Let who waits for this get up while it is being written; not where the disk is waited for, which takes longer."""
        bells = self._bells
        if bells is not None and self._config.sync != "full":
            bells.wake_early(topic)

    def put(self, drafts: Sequence[Draft]) -> list[str]:
        if len(drafts) == 1 and not self._file.left_open():
            draft = drafts[0]
            if not (draft.publish or draft.answer_to or draft.idempotency_key):
                return self._put_one_plain(draft)
        return self._put_in_a_step(drafts)

    @whole
    def _put_in_a_step(self, drafts: Sequence[Draft]) -> list[str]:
        if all(map(_is_plain, drafts)):
            return self._put_plain(drafts)
        for draft in drafts:
            self._enrol(draft.waiter)
        with self._step() as moment:
            return self._put_all(drafts, moment)

    def _put_one_plain(self, draft: Draft) -> list[str]:
        """The usual send or question: one statement, with nothing to read before it."""
        if draft.to_agent is not None and not draft.delay_s:
            self._call(topic_to(draft.to_agent))
        waiter = None
        if draft.waiter is not None:
            self._enrol(draft.waiter)
            waiter = self._process_id(draft.waiter)
        moment = self._moment()
        crashpoints.reached("sqlite.begun")
        ids = [self._insert(draft, moment, State.READY, draft.to_agent, waiter)]
        self._ring(moment)
        return ids

    def _put_plain(self, drafts: Sequence[Draft]) -> list[str]:
        """Many usual messages, written at once."""
        with self._step() as moment:
            keys = self._file.ticks(len(drafts))
            self._file.insert_many(
                self._row(key, draft, moment, State.READY, draft.to_agent, None)
                for key, draft in zip(keys, drafts, strict=True)
            )
            crashpoints.reached("sqlite.inserted")
            for to_agent, channel in {(draft.to_agent, draft.channel): None for draft in drafts if draft.to_agent}:
                moment.wake_receiver(to_agent, channel)
            for draft in drafts:
                if draft.to_agent is None:
                    moment.wake_receiver(None, draft.channel)
        return ids_of(keys, self._file.salt)

    def _put_all(
        self, drafts: Sequence[Draft], moment: StepTime, waiters: Mapping[str, int | None] = _NO_WAITERS
    ) -> list[str]:
        """Store them. `waiters` are known to wait for the answers to these questions; of others it is looked up."""
        ids: list[str] = []
        for draft in drafts:
            repeated = [] if draft.idempotency_key is None else self._repeat_of(draft)
            if repeated:
                ids += repeated
            elif draft.publish:
                agents = self._file.execute("subscribers", (draft.channel,))
                ids += [self._insert(draft, moment, State.READY, agent, None) for (agent,) in agents]
            else:
                ids.append(self._put_one(draft, moment, waiters))
            crashpoints.reached("sqlite.inserted")
        return ids

    def _put_one(self, draft: Draft, moment: StepTime, waiters: Mapping[str, int | None]) -> str:
        state, waiter = State.READY, None
        if draft.waiter is not None:
            waiter = self._process_id(draft.waiter)
        elif draft.answer_to is not None:
            if draft.answer_to in waiters:
                waiter = waiters[draft.answer_to]
            elif rows := self._file.execute("waiter_of", (self._key(draft.answer_to),)):
                waiter = rows[0][0]
            state = State.READY if waiter is None else State.AWAITED
        return self._insert(draft, moment, state, draft.to_agent, waiter)

    def _repeat_of(self, draft: Draft) -> list[str]:
        """The ids of what this sender stored under this draft's idempotency key before; [] when it is new."""
        rows = self._file.execute("by_idempotency_key", (draft.from_agent, draft.idempotency_key))
        for key, to_agent, *content in rows:
            same_receiver = draft.publish or to_agent == draft.to_agent
            if not same_receiver or content != [draft.channel, draft.type, draft.payload_json]:
                raise InvalidMessage(
                    "idempotency_key",
                    f"{draft.idempotency_key!r} was used by {draft.from_agent!r} for another message ({self._rows.id(key)})",
                )
        return [self._rows.id(row[0]) for row in rows]

    def _insert(self, draft: Draft, moment: StepTime, state: State, to_agent: str | None, waiter: int | None) -> str:
        key = self._file.insert(self._row(None, draft, moment, state, to_agent, waiter))
        if state is State.AWAITED:
            moment.everyone.add(topic_message(draft.answer_to or ""))
        else:
            moment.wake_receiver(to_agent, draft.channel)
        return id_of(key, self._file.salt)

    def _row(
        self, key: int | None, draft: Draft, moment: StepTime, state: State, to_agent: str | None, waiter: int | None
    ) -> Row:
        """What `insert` in schema.sql takes."""
        expires = None if draft.ttl_s is None else moment.now + round(draft.ttl_s * 1000)
        wake_at = expires
        if draft.delay_s and state is State.READY:
            state = State.DELAYED
            due = moment.now + max(1, round(draft.delay_s * 1000))
            wake_at = due if expires is None else min(due, expires)
        elif state is State.AWAITED:
            wake_at = None
        salt = self._file.salt
        return (
            key, int(state), wake_at, draft.priority, to_agent, draft.channel, draft.from_agent, draft.type, draft.version,
            draft.max_deliveries, moment.wall_ms, expires, waiter, draft.correlation_id, draft.chain_id, draft.hop_count,
            draft.lane, draft.trace, draft.idempotency_key,
            None if draft.answer_to is None else key_of(draft.answer_to, salt),
            None if draft.replay_of is None else key_of(draft.replay_of, salt), draft.payload_json,
        )  # fmt: skip

    # Claiming

    @whole
    def claim(self, want: Want) -> Claimed:
        self._check_owners_alive()
        mine = self._mine
        hinted, mine.hinted = mine.hinted, False
        claimed = self._look_first(want) if mine.was_empty and not hinted else None
        if claimed is None:
            self._enrol(want.owner)
            claimed = self._claim_here(want)
        if not hinted:  # what a hint brought says nothing of what is there without one
            mine.was_empty = not claimed.deliveries
        while not claimed.deliveries and claimed.next_due_s == 0:  # others got in between
            claimed = self._claim_here(want)
        return claimed

    @whole
    def claim_answer(self, question: str, want: Want) -> Delivery | None:
        asked = (self._key(question), want.agent)
        if not want.settle:
            with self._step() as moment:
                terms = self._terms(want, moment)
                taken = [row for row in self._file.execute("claim_answer", asked) if self._take(row, terms, moment)]
            return self._delivery(taken[0], terms, moment) if taken else None
        # Read, then taken and ended if it is still held: nobody else may have it, so there is no need to lock others out meanwhile.
        for row in self._file.execute("claim_answer", asked):
            moment = self._moment()
            crashpoints.reached("sqlite.begun")
            terms = self._terms(want, moment)
            if self._take(row, terms, moment):
                self._ring(moment)
                return self._delivery(row, terms, moment)
        return None

    def _claim_here(self, want: Want) -> Claimed:
        if self._config.sync == "full" and not want.settle:
            # a claim need not outlive the power: after a cut nobody holds anything (tests/faults/test_power_cut.py)
            with self._file.unsynced(), self._step() as moment:
                found = self._claim_now(want, moment)
        else:
            with self._step() as moment:
                found = self._claim_now(want, moment)
        return self._claimed(found, moment)

    def _look_first(self, want: Want) -> Claimed | None:
        """A look without the write lock, for those who found nothing the last time. None when it is worth locking."""
        now = self._moment().now
        if want.channels is None and want.ids is None:  # the usual
            found, *timers = self._file.execute("look", (want.agent, now))[0]
            due_s = _due_s(timers, now)
        else:
            due_s = self._next_due_s(now)
            found = due_s != 0 and self._candidates(want, now)
        return None if due_s == 0 or found else Claimed([], due_s)

    def _claim_now(self, want: Want, moment: StepTime) -> _Found:
        """Take what there is, in a step. Nothing, where more timers have run out than one step may act on: then it is made again."""
        terms = self._terms(want, moment)
        if moment.now >= self._next_look and self._is_due(moment.now):
            self._apply_due_timers(moment)
            if self._next_due_s(moment.now) == 0:
                return [], 0, terms
        rows, due_s = self._candidates(want, moment.now), None
        if not rows:
            due_s = self._next_due_s(moment.now)
            if due_s == 0:
                self._apply_due_timers(moment)
                rows = self._candidates(want, moment.now)
                due_s = None if rows else self._next_due_s(moment.now)
        for row in rows:
            self._take(row, terms, moment)
        return rows, due_s, terms

    def _terms(self, want: Want, moment: StepTime) -> Taken:
        """What a claim makes of a message."""
        if want.settle:
            return Taken(State.ACKED, None, want.agent, None)
        owner = None if want.owner is None else self._process_id(want.owner)
        return Taken(State.CLAIMED, moment.now + max(1, round(want.lease_s * 1000)), want.agent, owner)

    def _take(self, row: Row, terms: Taken, moment: StepTime) -> bool:
        """Give somebody a message that was read. False when it is no longer as it was read (never under the write lock)."""
        if terms.state is State.ACKED:
            taken = self._file.change("take_and_ack", (row[0], moment.wall_ms, terms.agent, row[STATE]))
        else:
            _, lease_ends, agent, owner = terms
            taken = self._file.change("take", (row[0], lease_ends, moment.wall_ms, agent, owner, row[STATE]))
        crashpoints.reached("sqlite.claimed")
        return taken > 0

    # What was taken is made into messages after the commit: others wait for the lock until then. A payload that is no JSON
    # (somebody has edited the file) raises here; the message stays claimed, and comes again until it is set aside.

    def _claimed(self, found: _Found, moment: StepTime) -> Claimed:
        rows, due_s, terms = found
        return Claimed([self._delivery(row, terms, moment) for row in rows], due_s)

    def _delivery(self, row: Row, terms: Taken, moment: StepTime) -> Delivery:
        message = self._rows.message(row, moment.now, moment.wall_ms, self._names, terms)
        if len(self._keys) >= _KEYS_KEPT:
            self._keys.clear()
        self._keys[message.id] = row[0]
        return Delivery(message, Ticket(message.id, message.token, terms.agent))

    def _next_due_s(self, now: int) -> float | None:
        """In how many seconds the next timer runs out; 0 when one has, None when there is none."""
        return _due_s(self._file.execute("next_timers")[0], now)

    def _is_due(self, now: int) -> bool:
        """Whether a timer has run out. While there is something to claim it is asked only every few milliseconds."""
        if self._next_due_s(now) == 0:
            return True
        self._next_look = now + _LOOK_MS
        return False

    def _apply_due_timers(self, moment: StepTime) -> Swept:
        """Act on timers that have run out: what is due is ready, what expired is expired, ended leases end.

        On some hundreds at most, for everybody else waits meanwhile. Those that are left have run out all the same: `_next_due_s` says 0.
        """
        expired = released = dead = 0
        rows = self._file.execute("due", (moment.now,)) + self._file.execute("ended_leases", (moment.now,))
        for key, state, expires, count, most, to_agent, channel in rows:
            if state == State.CLAIMED:
                ended = self._let_go(key, expires, count, most, LEASE_ENDED, moment)
            elif expires is not None and expires <= moment.now:
                ended = self._expire(key, moment)
            else:
                self._file.change("make_ready", (key,))
                ended = State.READY
            expired += ended is State.EXPIRED
            dead += ended is State.DEAD
            if ended is State.READY:
                released += state == State.CLAIMED
                moment.wake_receiver(to_agent, channel)
        return Swept(expired=expired, released=released, dead=dead)

    def _wind_all(self) -> Swept:
        """Act on all timers that have run out, in as many steps as it takes."""
        total = Swept()
        while self._next_due_s(self._moment().now) == 0:
            with self._step() as moment:
                swept = self._apply_due_timers(moment)
            total = Swept(*map(sum, zip(total, swept, strict=True)))
        return total

    def _expire(self, key: int, moment: StepTime) -> State:
        entry = ledger_text("expired", moment.wall_ms, None, NOT_IN_TIME)
        self._file.change("expire", (key, NOT_IN_TIME, entry))
        crashpoints.reached("sqlite.expired")
        moment.everyone.add(topic_message(self._rows.id(key)))
        return State.EXPIRED

    def _let_go(self, key: int, expires: int | None, count: int, most: int, why: str, moment: StepTime) -> State:
        """End a claim whose holder is late or gone: the message is ready again, or has had its chances.

        The token stays: until somebody else takes the message, its late holder may still settle it.
        """
        moment.everyone.add(topic_message(self._rows.id(key)))
        if count >= most:
            return self._mark_dead(key, f"{why} (delivery {count} of {most})", None, moment)
        if expires is not None and expires <= moment.now:
            return self._expire(key, moment)
        may_extend = why is LEASE_ENDED
        self._file.change("release", (key, ledger_text("released", moment.wall_ms, None, why), may_extend))
        return State.READY

    def _mark_dead(self, key: int, why: str, agent: str | None, moment: StepTime) -> State:
        self._file.change("bury", (key, why, ledger_text("dead", moment.wall_ms, agent, why)))
        crashpoints.reached("sqlite.buried")
        return State.DEAD

    # Processes that hold or wait

    def _enrol(self, name: str | None) -> None:
        """Make a process known before the step that needs its number, so that no rolled-back step leaves a false one."""
        if name is not None and name not in self._processes:
            number = self._file.execute("process_add", (name,))[0][0]
            self._processes[name] = number
            self._names[number] = name

    def _process_id(self, name: str) -> int:
        """The number of an enrolled process (enrolled anew, should others have forgotten it a moment ago)."""
        number = self._processes.get(name)
        return self._file.execute("process_add", (name,))[0][0] if number is None else number

    def _check_owners_alive(self) -> None:
        """Look now and then who is gone: before a claim, for what they held may be the best that there is."""
        now_ns = self.clock.steady_ns()
        if now_ns >= self._next_roll_call_ns:
            self._next_roll_call_ns = now_ns + _ROLL_CALL_NS
            self._file.attendance.hold()
            self._release_the_gone()

    def _release_the_gone(self) -> Swept:
        """Let go of what processes that no longer run hold or wait for."""
        gone = [number for number, name in self._learn_processes() if self.process_alive(name) is False]
        if not gone:
            return Swept()
        with self._step() as moment:
            swept = [self._bury_process(number, moment) for number in gone]
        self._learn_processes()
        return Swept(*(sum(counts) for counts in zip(*swept, strict=True)))

    def _bury_process(self, number: int, moment: StepTime) -> Swept:
        released = dead = expired = 0
        for key, expires, count, most, to_agent, channel in self._file.execute("claims_of_process", (number,)):
            ended = self._let_go(key, expires, count, most, OWNER_GONE, moment)
            released += ended is State.READY
            dead += ended is State.DEAD
            expired += ended is State.EXPIRED
            if ended is State.READY:
                moment.wake_receiver(to_agent, channel)
        for key, state, to_agent in self._file.execute("waits_of_process", (number,)):
            self._end_wait(key, state, to_agent, moment)
        self._file.execute("process_forget", (number,))
        return Swept(expired=expired, released=released, dead=dead)

    def _end_wait(self, key: int, state: int, to_agent: str | None, moment: StepTime) -> None:
        if state == State.AWAITED:
            self._file.change("unhold_by_key", (key,))
            self._next_look = 0
            moment.everyone.add(topic_to(to_agent or ""))
        else:
            entry = ledger_text("abandoned", moment.wall_ms, None, ASKER_GONE)
            self._file.change("stop_waiting", (key, entry))

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
            raise ValueError(f"no outcome is called {outcome!r}; there are: {', '.join(OUTCOMES)}")
        if outcome in _SETTLED_AS and not puts and claim_next is None and not self._file.left_open():
            moment = self._moment()
            crashpoints.reached("sqlite.begun")
            held = self._finish(ticket, _SETTLED_AS[outcome], detail, moment)
            if held:
                self._ring(moment)
            return Settled(held, _SETTLED_AS[outcome] if held else None, [], None)
        return self._settle_in_a_step(ticket, outcome, detail, delay_s, puts, claim_next)

    @whole
    def _settle_in_a_step(
        self,
        ticket: Ticket,
        outcome: str,
        detail: str | None,
        delay_s: float,
        puts: Sequence[Draft],
        claim_next: Want | None,
    ) -> Settled:
        if claim_next is not None:
            self._check_owners_alive()
            self._enrol(claim_next.owner)
        if outcome == "answered":
            self._call(topic_message(ticket.id))
        with self._step() as moment:
            state, ids = self._settle_now(ticket, outcome, detail, delay_s, puts, moment)
            crashpoints.reached("sqlite.settled")
            found = None if claim_next is None else self._claim_now(claim_next, moment)
        claimed = None if found is None else self._claimed(found, moment)
        if claimed is not None:
            self._mine.was_empty = not claimed.deliveries
        return Settled(state is not None, state, ids, claimed)

    def _settle_now(
        self, ticket: Ticket, outcome: str, detail: str | None, delay_s: float, puts: Sequence[Draft], moment: StepTime
    ) -> tuple[State | None, list[str]]:
        if outcome in _SETTLED_AS and not puts:
            state = _SETTLED_AS[outcome]
            return (state if self._finish(ticket, state, detail, moment) else None), []
        rows = self._file.execute("held", (self._key(ticket.id), ticket.token))
        if not rows:
            return None, []
        # before the question ends, so that its answer still finds the waiter
        ids = self._put_all(puts, moment, {ticket.id: rows[0][5]})
        if outcome == "retry":
            return self._retry(ticket, rows[0], detail, delay_s, moment), ids
        if outcome == "returned":
            return self._return(ticket, rows[0], detail, moment), ids
        state = _SETTLED_AS[outcome]
        self._finish(ticket, state, ids[0] if outcome == "answered" and ids else detail, moment)
        return state, ids

    def _finish(self, ticket: Ticket, state: State, detail: str | None, moment: StepTime) -> bool:
        """End a message, if the ticket still counts."""
        key, file = self._key(ticket.id), self._file
        held = state is State.ACKED and detail is None
        held = held and file.change("ack", (key, ticket.token, ticket.agent, moment.wall_ms)) > 0
        if not held:  # there is more to tell than an ack by the one who claimed it
            error = detail if state in (State.DEAD, State.REFUSED) else None
            entry = ledger_text(PUBLIC_NAME[state], moment.wall_ms, ticket.agent, detail)
            held = file.change("finish", (key, ticket.token, int(state), error, entry)) > 0
        if held:
            moment.everyone.add(topic_message(ticket.id))
        return held

    def _retry(self, ticket: Ticket, row: Row, detail: str | None, delay_s: float, moment: StepTime) -> State:
        count, most, expires, to_agent, channel, _ = row
        key = self._key(ticket.id)
        moment.everyone.add(topic_message(ticket.id))
        if count >= most:
            return self._mark_dead(key, detail or "no reason given", ticket.agent, moment)
        state, wake_at = State.READY, expires
        if delay_s > 0:
            due = moment.now + max(1, round(delay_s * 1000))
            state, wake_at = State.DELAYED, due if expires is None else min(due, expires)
        entry = ledger_text("retried", moment.wall_ms, ticket.agent, detail)
        self._file.change("retry", (key, int(state), wake_at, detail, entry))
        self._next_look = 0
        crashpoints.reached("sqlite.retried")
        moment.wake_receiver(to_agent, channel)
        return state

    def _return(self, ticket: Ticket, row: Row, detail: str | None, moment: StepTime) -> State:
        """Ready again, as if it had not been claimed; one that expires meanwhile is seen to by its timer."""
        _, _, _, to_agent, channel, _ = row
        entry = ledger_text("returned", moment.wall_ms, ticket.agent, detail)
        self._file.change("return", (self._key(ticket.id), entry))
        self._next_look = 0  # its timer may have run out while it was held
        moment.everyone.add(topic_message(ticket.id))
        moment.wake_receiver(to_agent, channel)
        return State.READY

    @whole
    def extend(self, ticket: Ticket, lease_s: float) -> bool:
        key = self._key(ticket.id)
        with self._step() as moment:
            lease_ends = moment.now + max(1, round(lease_s * 1000))
            entry = ledger_text("extended", moment.wall_ms, ticket.agent, f"{lease_s:g} s")
            return bool(self._file.change("extend", (key, ticket.token, lease_ends, entry)))

    @whole
    def note(self, id: str, event: str, agent: str | None, detail: str | None = None) -> bool:
        if event not in NOTES:
            raise InvalidMessage("event", f"must be one of {', '.join(NOTES)}, not {event!r}")
        moment = self._moment()
        entry = ledger_text(event, moment.wall_ms, agent, detail)
        moment.everyone.add(topic_message(id))
        noted = bool(self._file.change("note", (self._key(id), entry)))
        self._ring(moment)
        return noted

    @whole
    def abandon(self, id: str) -> None:
        key = self._key(id)
        with self._step() as moment:
            entry = ledger_text("abandoned", moment.wall_ms, None, "the asker no longer waits")
            self._file.change("stop_waiting", (key, entry))
            for (to_agent,) in self._file.execute("unhold", (key,)):
                moment.everyone.add(topic_to(to_agent))
            self._next_look = 0

    # Putting back, deleting

    @whole
    def requeue(self, ids: Iterable[str]) -> list[str]:
        done = []
        self._wind_all()
        with self._step() as moment:
            self._apply_due_timers(moment)
            entry = ledger_text("requeued", moment.wall_ms, None)
            for id in ids:
                for to_agent, channel in self._file.execute("requeue", (self._key(id), moment.now, entry)):
                    done.append(id)
                    moment.wake_receiver(to_agent, channel)
                    moment.everyone.add(topic_message(id))
        return done

    @whole
    def purge(self, query: Query) -> int:
        condition, values = self._where(query)
        self._wind_all()
        with self._step() as moment:
            self._apply_due_timers(moment)
            rows = self._file.select(
                f"SELECT key FROM mail WHERE {condition} AND state <> 1 ORDER BY key LIMIT :limit",
                {**values, "now": moment.now, "limit": query.limit},
            )
            return self._delete([key for (key,) in rows])

    def _delete(self, keys: list[int]) -> int:
        """Delete rows; their numbers are never given out again, and what agents did with them stays counted."""
        text = (_to_json(keys).decode(),)
        for name in ("tally_up", "tally_errors", "raise_floor"):
            self._file.execute(name, text)
        return len(self._file.execute("delete", text))

    # Subscriptions and cells

    @whole
    def subscribe(self, channel: str, agent: str) -> None:
        self._file.execute("subscribe", (channel, agent, iso(self.clock.wall_ms())))

    @whole
    def unsubscribe(self, channel: str, agent: str) -> bool:
        return bool(self._file.execute("unsubscribe", (channel, agent)))

    @whole
    def cell_write(self, name: str, value: Any, expect: int = ANY) -> int | None:
        faults: list[Fault] = []
        text = payload_text(value, faults)
        if faults:
            raise InvalidMessage(faults)
        with self._step() as moment:
            rows = self._file.execute("cell_read", (name,))
            if expect not in (ANY, rows[0][1] if rows else 0):
                return None
            moment.everyone = {topic_cells(name)}  # and not the feed, which is of messages
            number = self._file.tick()
            if value is None:
                for (last,) in self._file.execute("cell_delete", (name,)):
                    self._file.execute("raise_cell_floor", (last + 1,))
                version = 0
            else:
                number = max(number, self._file.execute("cell_floor")[0][0])
                version = self._file.execute("cell_put", (name, number, text))[0][0]
        if version:
            self._last_cell = (name, version)
        return version

    def check_there(self) -> None:
        """Also whether the last cell that was written here (a heartbeat, mostly) is still as new: versions never come back."""
        self._file.check_there()
        if self._last_cell is None or not self._file.is_connected():
            return  # a thread that only looks in, such as a loop's, opens no connection for it
        if not self._file.execute("cell_is_kept", self._last_cell)[0][0]:
            self._file.is_gone("was set back to an earlier state")

    # Waiting, housekeeping

    def listen(self, topics: Iterable[str]) -> Waiter:
        topics = list(topics)
        self._file.connection()
        bells = self._bells
        if bells is not None:
            try:
                return bells.listen(topics, self._expect_something)
            except (NoBells, OSError):  # or no descriptors are left
                pass
        return Watcher(self._file.data_version, self.clock)

    def _expect_something(self) -> None:
        """Who was just woken need not look before it claims."""
        self._mine.hinted = True

    @whole
    def sweep(self) -> Swept:
        before = self._file.execute("count_finished")
        swept = self._wind_all()
        gone = self._release_the_gone()
        purged = self._forget_old(dict(before))
        self._file.tidy()
        return Swept(swept.expired + gone.expired, swept.released + gone.released, swept.dead + gone.dead, purged)

    def _forget_old(self, finished: dict[int, int]) -> int:
        """Delete finished messages beyond what is to be kept, oldest first, a few hundred a step so that others get in."""
        config = self._config
        too_old = max(0, self._moment().now - round(config.keep_s * 1000)) << FRACTION_BITS
        kept = sum(count for state, count in finished.items() if state != State.DEAD)
        surplus = max(0, kept - config.keep_count, self._surplus_by_size(kept))
        purged = 0
        while True:
            limit = 500 if surplus <= purged else min(500, surplus - purged)
            newest = too_old if surplus <= purged else 2**63 - 1
            if not self._file.execute("oldest_finished", (newest, 1)):
                return purged  # mostly: a room that rests is not locked for it
            with self._step():
                keys = [key for (key,) in self._file.execute("oldest_finished", (newest, limit))]
                purged += self._delete(keys)

    def _surplus_by_size(self, kept: int) -> int:
        """About how many finished messages are too many for the size: their share of the file is their share of the rows."""
        used = (
            self._file.select(
                "SELECT (SELECT page_count FROM pragma_page_count) - (SELECT freelist_count FROM pragma_freelist_count)"
            )[0][0]
            * self._file.select("PRAGMA page_size")[0][0]
        )
        if used <= self._config.keep_bytes or not kept:
            return 0
        states = self.stats().states
        share = used * kept / max(1, sum(states.values()))
        return int(max(0.0, 1 - self._config.keep_bytes / share) * kept) if share else 0

    def close(self) -> None:
        bells = self._bells
        if bells is not None:
            bells.close()
            self._bells = None  # a map of its page keeps a descriptor, for as long as it is known
        self._file.close()

    def __del__(self) -> None:
        with suppress(AttributeError):  # it was interrupted while it was made
            if not self._file.inherited:
                self.close()


def _due_s(timers: Iterable[int | None], now: int) -> float | None:
    """In how many seconds the first of these runs out; 0 when one has, None when there is none."""
    first = min((timer for timer in timers if timer is not None), default=None)
    return None if first is None else max(0, first - now) / 1000


def _is_plain(draft: Draft) -> bool:
    """Whether nothing has to be read to store it."""
    return not (draft.publish or draft.answer_to or draft.idempotency_key or draft.waiter)
