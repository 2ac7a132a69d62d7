"""Settling in the SQLite store: a lone ack as one statement; the answer, and the next claim, in one transaction with it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

from postroom.core import crashpoints
from postroom.core.message import Draft
from postroom.core.states import PUBLIC_NAME, State
from postroom.stores.contract import OUTCOMES, Settled, Ticket, Want, topic_message

from .claiming import Claims
from .housekeeping import SqliteHousekeeping
from .putting import Puts
from .rows import Row, StepTime, first_timer, ledger_text
from .transactions import Transactions, whole

_SETTLED_AS: Final = {"acked": State.ACKED, "answered": State.ANSWERED, "refused": State.REFUSED, "dead": State.DEAD}
#: The state of a settled message (None: the ticket no longer counts), and the ids of what was put with it.
_SettledNow = tuple[State | None, list[str]]


class Settlements:
    """How claimed messages end, or go back."""

    def __init__(self, steps: Transactions, upkeep: SqliteHousekeeping, claims: Claims, puts: Puts) -> None:
        self._steps = steps
        self._file = steps.file
        self._upkeep = upkeep
        self._limits = upkeep.limits
        self._claiming = claims
        self._putting = puts

    def settle(
        self,
        ticket: Ticket,
        outcome: str,
        detail: str | None,
        delay_s: float,
        puts: Sequence[Draft],
        claim_next: Want | None,
    ) -> Settled:
        """See `Store.settle`."""
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
        ids = self._putting.put_all(puts, moment, {ticket.id: rows[0][5]})
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

        Whether it has such a key is looked up, unless it is known; then this step has read the limits, too.
        """
        if self._ack(ticket, state, detail, moment):
            return True  # it has none
        if is_ordered is None:
            # (testing/limiting.py: test_a_holder_that_has_not_read_the_limits_yet_wakes_others_all_the_same)
            self._limits.learn()
        held = self._end(ticket, state, detail, moment, "finish")
        if held and is_ordered is not False:
            self._putting.let_the_next_pass(self._steps.key(ticket.id), moment)
        return held

    def _ack(self, ticket: Ticket, state: State, detail: str | None, moment: StepTime) -> bool:
        """End a message without an order key by its claimer's ack: there is nothing more to tell than that.

        False also when the limits have changed since its claim.
        """
        if state is not State.ACKED or detail is not None:
            return False
        if not self._file.change("ack", (self._steps.key(ticket.id), ticket.token, ticket.agent, moment.wall_ms)):
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
