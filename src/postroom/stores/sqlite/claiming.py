"""Claims of the SQLite store: which messages a receiver gets, and giving them to it."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Final

from postroom.core import crashpoints
from postroom.core.clock import sooner
from postroom.core.config import Config
from postroom.core.message import DEFAULT_CHANNEL, Message
from postroom.core.states import State
from postroom.stores.contract import Claimed, Delivery, Ticket, Want

from .housekeeping import SqliteHousekeeping, due_s
from .rows import CHANNEL, ORDER_KEY, STATE, TO_AGENT, Row, StepTime, Taken, claim_order, lease_end, ledger_text
from .transactions import Transactions, whole

_KEYS_KEPT: Final = 1000
#: What a claim took: the rows as they were before; where it found none, in how many seconds the next timer runs out (a
#: claimer that got something will ask again before it waits); and on which terms.
Found = tuple[list[Row], float | None, Taken]


class _ThreadClaims(threading.local):
    """What a thread knows of its claims: whether the last one without a hint was in vain, whether a hint came now."""

    was_empty = False
    hinted = False


class Claims:
    """Finds and takes messages."""

    def __init__(self, steps: Transactions, upkeep: SqliteHousekeeping, config: Config) -> None:
        self._steps = steps
        self._file = steps.file
        self._upkeep = upkeep
        self._limits = upkeep.limits
        self._waits_for_disk = config.sync == "full"
        self._mine = _ThreadClaims()

    def expect_something(self) -> None:
        """A hint came to this thread: its next claim need not look before it takes the write lock."""
        self._mine.hinted = True

    def expect_nothing(self, claimed: Claimed) -> None:
        """Remember whether a claim of this thread was in vain: then the next one looks before it locks."""
        self._mine.was_empty = not claimed.deliveries

    @whole
    def claim(self, want: Want) -> Claimed:
        """See `Store.claim`."""
        self._upkeep.check_owners_alive()
        mine = self._mine
        hinted, mine.hinted = mine.hinted, False
        claimed = self._look_first(want) if mine.was_empty and not hinted else None
        if claimed is None:
            self._steps.enrol(want.owner)
            claimed = self._claim_here(want)
        if not hinted:  # what a hint brought says nothing of what is there without one
            mine.was_empty = not claimed.deliveries
        while not claimed.deliveries and claimed.next_due_s == 0:  # others got in between
            claimed = self._claim_here(want)
        return claimed

    @whole
    def claim_answer(self, question: str, want: Want) -> Delivery | None:
        """See `Store.claim_answer`."""
        asked = (self._steps.key(question), want.agent)
        if not want.settle:
            with self._steps.step() as moment:
                terms = self._terms(want, moment)
                found = self._file.execute("claim_answer", asked)
                taken = [row for row in found if self._take(row, terms, moment, None)]
            return self._delivery(taken[0], terms, moment) if taken else None
        # Read, then taken and ended if it is still held: a compare-and-set. No other agent may have it, so there is no
        # need to lock writers out meanwhile.
        for row in self._file.execute("claim_answer", asked):
            moment = self._steps.moment()
            crashpoints.reached("sqlite.begun")
            terms = self._terms(want, moment)
            if self._take(row, terms, moment, None):
                self._steps.ring(moment)
                return self._delivery(row, terms, moment)
        return None

    def _claim_here(self, want: Want) -> Claimed:
        if self._waits_for_disk and not want.settle:
            # a claim need not outlive the power: after a cut nobody holds anything (tests/faults/test_power_cut.py)
            with self._file.unsynced(), self._steps.step() as moment:
                found = self.claim_now(want, moment)
        else:
            with self._steps.step() as moment:
                found = self.claim_now(want, moment)
        return self.claimed(found, moment)

    @whole
    def extend(self, ticket: Ticket, lease_s: float) -> bool:
        """See `Store.extend`."""
        with self._steps.step() as moment:
            self._end_leases([ticket], moment)
            return self._extend(ticket, lease_s, moment)

    def _end_leases(self, tickets: Sequence[Ticket], moment: StepTime) -> None:
        """Where so many may run at once, leases that have ended leave their places before a late holder is given one.

        (testing/limiting.py: test_of_two_late_holders_one_finds_its_place_taken)
        """
        if self._limits.learn() and any(self._limits.is_concurrent(self._steps.key(each.id)) for each in tickets):
            self._upkeep.apply_due_timers(moment)

    def _extend(self, ticket: Ticket, lease_s: float, moment: StepTime) -> bool:
        key = self._steps.key(ticket.id)
        if self._limits.version and not self._limits.may_run_again(key, moment.now):
            return False
        entry = ledger_text("extended", moment.wall_ms, ticket.agent, f"{lease_s:g} s")
        bindings = (key, ticket.token, lease_end(moment, lease_s), entry)
        return self._file.change("extend", bindings) > 0

    @whole
    def heartbeat(self, tickets: Sequence[Ticket], lease_s: float) -> list[Ticket]:
        """See `Store.heartbeat`."""
        if not self._waits_for_disk:
            return self._heartbeat(tickets, lease_s)
        with self._file.unsynced():
            return self._heartbeat(tickets, lease_s)

    def _heartbeat(self, tickets: Sequence[Ticket], lease_s: float) -> list[Ticket]:
        lost = []
        with self._steps.step() as moment:
            self._end_leases(tickets, moment)
            ends = lease_end(moment, lease_s)
            for ticket in tickets:
                held = self._file.change("heartbeat", (self._steps.key(ticket.id), ticket.token, ends)) > 0
                if not held and not self._extend(ticket, lease_s, moment):  # its lease had ended, or it is lost
                    lost.append(ticket)
        return lost

    def _look_first(self, want: Want) -> Claimed | None:
        """A look without the write lock, for threads that found nothing the last time.

        None when it is worth locking.
        """
        now = self._steps.moment().now
        if want.channels is None and want.ids is None:  # the usual
            found, *timers = self._file.execute("look", (want.agent, now))[0]
            next_s = due_s(timers, now)
        else:
            next_s = self._upkeep.next_due_s(now)
            found = next_s != 0 and self.candidates(want, now)
        return None if next_s == 0 or found else Claimed([], next_s)

    def claim_now(self, want: Want, moment: StepTime) -> Found:
        """Take what there is, in a step.

        Nothing, where more timers have run out than one step may act on: then it is made again.
        """
        upkeep, now = self._upkeep, moment.now
        terms = self._terms(want, moment)
        if now >= upkeep.next_look and upkeep.is_due(now):
            upkeep.apply_due_timers(moment)
            if upkeep.next_due_s(now) == 0:
                return [], 0, terms
        rows, next_s = self._best(want, moment)
        if not rows:
            next_s = sooner(next_s, upkeep.next_due_s(now))
            if next_s == 0:
                upkeep.apply_due_timers(moment)
                rows, next_s = self._best(want, moment)
                next_s = None if rows else sooner(next_s, upkeep.next_due_s(now))
        version = self._limits.version
        for row in rows:
            if not self._take(row, terms, moment, version):
                self._limits.learn()  # they have changed since this process read them: nothing is taken yet
                return self.claim_now(want, moment)
            if version:
                self._limits.made_space(row[CHANNEL], moment)
            if want.settle and row[ORDER_KEY] is not None:
                upkeep.let_the_next_pass(row[ORDER_KEY], row[CHANNEL], row[TO_AGENT], moment)
        return rows, next_s, terms

    def _best(self, want: Want, moment: StepTime) -> tuple[list[Row], float | None]:
        """What may be claimed, best first; in a limited room also in how many seconds a rate lets more pass."""
        if self._limits.version and self._limits.learn():
            return self._limits.pick(want, moment)
        return self.candidates(want, moment.now), None

    def _terms(self, want: Want, moment: StepTime) -> Taken:
        """What a claim makes of a message."""
        if want.settle:
            return Taken(State.ACKED, None, want.agent, None)
        owner = None if want.owner is None else self._steps.process_id(want.owner)
        return Taken(State.CLAIMED, lease_end(moment, want.lease_s), want.agent, owner)

    def _take(self, row: Row, terms: Taken, moment: StepTime, limits: int | None) -> bool:
        """Give a message that was read to its claimer, by the limits of that version; None: whatever they are.

        False when it is no longer as it was read (never under the write lock), or when the limits have changed.
        """
        statement = "take" if terms.state is State.CLAIMED else "take_and_ack"
        bindings = (row[0], terms.lease_ends, moment.wall_ms, terms.agent, terms.owner, row[STATE], limits)
        taken = self._file.change(statement, bindings)
        crashpoints.reached("sqlite.claimed")
        return taken > 0

    # Rows that were taken are made into messages after the commit: other writers wait for the lock until then. A
    # payload that is no JSON (somebody has edited the file) raises here; the message stays claimed, and comes again
    # until it is set aside.

    def claimed(self, found: Found, moment: StepTime) -> Claimed:
        """What a claim returns, of what it took."""
        rows, next_s, terms = found
        return Claimed([self._delivery(row, terms, moment) for row in rows], next_s)

    def _delivery(self, row: Row, terms: Taken, moment: StepTime) -> Delivery:
        steps = self._steps
        message = steps.rows.message(Message, row, moment, steps.names, terms)
        if len(steps.keys) >= _KEYS_KEPT:
            steps.keys.clear()
        steps.keys[message.id] = row[0]
        return Delivery(message, Ticket(message.id, message.token, terms.agent))

    # What may be claimed

    def candidates(self, want: Want, now: int) -> list[Row]:
        """The rows of the best messages that the claimer may have, best first."""
        if want.limit == 1 and want.ids is None:  # the usual
            if want.channels is None:
                return self._best_of_two("claim_one", (want.agent, now), "claim_elsewhere", (want.agent, now, 1))
            if len(want.channels) == 1 and want.channels[0] != DEFAULT_CHANNEL:
                (channel,) = want.channels
                for_anyone, own = (channel, now, want.agent), (want.agent, now, 1, channel)
                return self._best_of_two("claim_one_in_channel", for_anyone, "claim_in_channel", own)
        execute = self._file.execute
        asked = (want.agent, now, want.limit)
        if want.ids is not None:
            keys = dict.fromkeys(map(self._steps.key, want.ids))
            return sorted((row for key in keys for row in execute("claim_by_key", (key, *asked[:2]))), key=claim_order)
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
        return sorted(found, key=claim_order)[: want.limit]

    def _best_of_two(self, first: str, asked: Row, second: str, asked_second: Row) -> list[Row]:
        """The better of what two queues hold.

        The first statement also says whether there is anything in the second queue.
        """
        found = self._file.execute(first, asked)
        if found:
            row = found[0]
            found = [row[:-1]]
            if not row[-1]:
                return found
        others = self._file.execute(second, asked_second)
        if not found or not others:
            return found or others
        return min(found, others, key=lambda rows: claim_order(rows[0]))
