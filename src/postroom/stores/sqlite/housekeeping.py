"""Housekeeping of the SQLite store: timers that ran out, claims of processes that are gone, and retention."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import msgspec

from postroom.core import crashpoints
from postroom.core.config import Config
from postroom.core.message import FRACTION_BITS
from postroom.core.states import ASKER_GONE, LEASE_ENDED, NOT_IN_TIME, OWNER_GONE, State
from postroom.stores.contract import Swept, topic_message, topic_to

from . import search
from .figures import RoomFigures
from .limiting import SqliteLimits
from .rows import SEARCH_MARK, StepTime, ledger_text
from .transactions import Transactions, whole

#: While there is something to claim, timers are looked at this often: a delayed message may be so much late.
_LOOK_MS: Final = 5
#: Dead owners are looked for at most this often.
_ROLL_CALL_NS: Final = 400_000_000
#: Rows that one step of retention deletes at most, so that others get in between.
_DELETED_AT_ONCE: Final = 500
_to_json = msgspec.json.Encoder().encode


class SqliteHousekeeping:
    """Keeps states current and the file small. Claims call it for the timers, `sweep` for everything."""

    def __init__(self, steps: Transactions, config: Config) -> None:
        self._steps = steps
        self._file = steps.file
        self._config = config
        self.limits = SqliteLimits(steps)
        self.figures = RoomFigures(steps)
        #: The room time before which claims do not look at the timers; 0 after one was set that the last look did not
        #: see.
        self.next_look = 0
        self.next_roll_call_ns = 0

    # Timers

    def next_due_s(self, now: int) -> float | None:
        """In how many seconds the next timer runs out; 0 when one has, None when there is none."""
        return due_s(self._file.execute("next_timers")[0], now)

    def is_due(self, now: int) -> bool:
        """Whether a timer has run out. While there is something to claim it is asked only every few milliseconds."""
        if self.next_due_s(now) == 0:
            return True
        self.next_look = now + _LOOK_MS
        return False

    def apply_due_timers(self, moment: StepTime) -> Swept:
        """Act on timers that have run out: what is due is ready, what expired is expired, ended leases end.

        On some hundreds at most, for every other writer waits meanwhile. Those that are left have run out all the same:
        `next_due_s` says 0.
        """
        ends: list[State | None] = []
        passed: set[int | None] = set()  # since these rows were read: no longer BLOCKED
        rows = self._file.execute("due", (moment.now,)) + self._file.execute("ended_leases", (moment.now,))
        if rows:  # (testing/limiting.py: test_so_does_housekeeping_that_has_not_read_the_limits_yet)
            self.limits.learn()
        for key, own_id, state, expires, count, most, to_agent, channel, order_key in rows:
            if state == State.CLAIMED:
                ended = self._end_claim(key, own_id, expires, count, most, LEASE_ENDED, moment)
                self.limits.freed(channel, moment)
            elif expires is not None and expires <= moment.now:
                ended = self._expire(key, own_id, moment)
                self.limits.made_space(channel, moment)
            elif state == State.BLOCKED:
                self._file.change("stay_blocked", (key,))  # its delay is over
                continue
            else:
                self._file.change("make_ready", (key,))
                ended = State.READY
            if ended is State.READY:
                moment.wake_receiver(to_agent, channel)
            elif order_key is not None and (state != State.BLOCKED or key in passed):
                passed.add(self.let_the_next_pass(order_key, channel, to_agent, moment))
            ends.append(None if ended is State.READY and state != State.CLAIMED else ended)
        return _counted(ends)

    def apply_all_timers(self) -> Swept:
        """Act on all timers that have run out, in as many steps as it takes."""
        total = Swept()
        while self.next_due_s(self._steps.moment().now) == 0:
            with self._steps.step() as moment:
                swept = self.apply_due_timers(moment)
            total = _sum(total, swept)
        return total

    def _expire(self, key: int, own_id: str | None, moment: StepTime) -> State:
        entry = ledger_text("expired", moment.wall_ms, None, NOT_IN_TIME)
        self._file.change("expire", (key, NOT_IN_TIME, entry))
        crashpoints.reached("sqlite.expired")
        moment.everyone.add(topic_message(self._steps.rows.id(key, own_id)))
        return State.EXPIRED

    def _end_claim(
        self, key: int, own_id: str | None, expires: int | None, count: int, most: int, why: str, moment: StepTime
    ) -> State:
        """End a claim whose holder is late or gone: the message is ready again, or has had its chances.

        The token stays: until another agent takes the message, its late holder may still settle it.
        """
        moment.everyone.add(topic_message(self._steps.rows.id(key, own_id)))
        if count >= most:
            return self.mark_dead(key, f"{why} (delivery {count} of {most})", None, moment)
        if expires is not None and expires <= moment.now:
            return self._expire(key, own_id, moment)
        may_extend = why is LEASE_ENDED
        self._file.change("release", (key, ledger_text("released", moment.wall_ms, None, why), may_extend))
        return State.READY

    def mark_dead(self, key: int, why: str, agent: str | None, moment: StepTime) -> State:
        """Make a message a dead letter."""
        self._file.change("bury", (key, why, ledger_text("dead", moment.wall_ms, agent, why)))
        crashpoints.reached("sqlite.buried")
        return State.DEAD

    # Order keys

    def let_the_next_pass(self, order_key: str, channel: str, to_agent: str | None, moment: StepTime) -> int | None:
        """The message that kept others of that key waiting has ended: the next may be claimed, or waits for its delay alone.

        Returns that one's key. Not for one that ended BLOCKED: a message that was put back may stand before the one that
        is claimed.
        """
        for key, state in self._file.execute("next_of_key", (order_key, channel, to_agent)):
            if state == State.BLOCKED:
                self._file.change("unblock", (key, moment.now))
                self.next_look = 0
                moment.wake_receiver(to_agent, channel)
                return int(key)
        return None

    # Processes that are gone

    def check_owners_alive(self) -> None:
        """Look now and then which processes are gone: before a claim, for they may have held the best message."""
        now_ns = self._steps.clock.steady_ns()
        if now_ns >= self.next_roll_call_ns:
            self.next_roll_call_ns = now_ns + _ROLL_CALL_NS
            self._file.attendance.hold()
            self.release_the_gone()

    def release_the_gone(self) -> Swept:
        """Let go of what processes that no longer run hold or wait for."""
        is_alive = self._file.attendance.is_alive
        gone = [number for number, name in self._steps.learn_processes() if is_alive(name) is False]
        if not gone:
            return Swept()
        with self._steps.step() as moment:
            self.limits.learn()
            swept = [self._release_process(number, moment) for number in gone]
        self._steps.learn_processes()
        return _sum(*swept)

    def _release_process(self, number: int, moment: StepTime) -> Swept:
        ends: list[State | None] = []
        claims = self._file.execute("claims_of_process", (number,))
        for key, own_id, expires, count, most, to_agent, channel, order_key in claims:
            ends.append(self._end_claim(key, own_id, expires, count, most, OWNER_GONE, moment))
            self.limits.freed(channel, moment)
            if ends[-1] is State.READY:
                moment.wake_receiver(to_agent, channel)
            elif order_key is not None:
                self.let_the_next_pass(order_key, channel, to_agent, moment)
        for key, state, to_agent in self._file.execute("waits_of_process", (number,)):
            self._end_wait(key, state, to_agent, moment)
        self._file.execute("process_forget", (number,))
        return _counted(ends)

    def _end_wait(self, key: int, state: int, to_agent: str | None, moment: StepTime) -> None:
        if state == State.AWAITED:
            self._file.change("unhold_by_key", (key,))
            self.next_look = 0
            moment.everyone.add(topic_to(to_agent or ""))
        else:
            entry = ledger_text("abandoned", moment.wall_ms, None, ASKER_GONE)
            self._file.change("stop_waiting", (key, entry))

    # Retention

    @whole
    def sweep(self) -> Swept:
        """See `Store.sweep`."""
        swept = _sum(self.apply_all_timers(), self.release_the_gone())
        self.figures.count_up()
        finished = self.figures.finished()
        purged = self._forget_old(sum(count for state, count in finished.items() if state != State.DEAD))
        if self._file.execute("meta_read", (SEARCH_MARK,)):
            search.SearchIndex(self._steps).look_after()
        self._file.tidy()
        return swept._replace(purged=purged)

    def _forget_old(self, kept: int) -> int:
        """Delete finished messages beyond what is to be kept, oldest first, some hundreds a step."""
        config = self._config
        too_old = max(0, self._steps.moment().now - round(config.keep_s * 1000)) << FRACTION_BITS
        surplus = max(0, kept - config.keep_count, self._surplus_by_size(kept))
        purged = 0
        while True:
            limit, newest = _DELETED_AT_ONCE, too_old
            if purged < surplus:
                limit, newest = min(limit, surplus - purged), 2**63 - 1
            if not self._file.execute("oldest_finished", (newest, 1)):
                return purged  # mostly: a room that rests is not locked for it
            with self._steps.step():
                purged += self.delete([key for (key,) in self._file.execute("oldest_finished", (newest, limit))])

    def _surplus_by_size(self, kept: int) -> int:
        """About how many finished messages are too many for the size, by their share of the rows."""
        ((used,),) = self._file.select(
            "SELECT (page_count - freelist_count) * page_size "
            "FROM pragma_page_count, pragma_freelist_count, pragma_page_size"
        )
        if used <= self._config.keep_bytes or not kept:
            return 0
        ((rows,),) = self._file.execute("count_all")
        share = used * kept / max(1, rows)
        return int(max(0.0, 1 - self._config.keep_bytes / share) * kept)

    def delete(self, keys: list[int]) -> int:
        """Delete rows; their numbers are never given out again, and what agents did with them stays counted."""
        self.figures.count_out(keys, stays=False)
        text = (_to_json(keys).decode(),)
        for name in ("tally_up", "tally_errors", "raise_floor"):
            self._file.execute(name, text)
        for (mark,) in self._file.execute("meta_read", (SEARCH_MARK,)):
            search.SearchIndex(self._steps).take_out(keys, mark)
        return len(self._file.execute("delete", text))


def due_s(timers: Iterable[int | None], now: int) -> float | None:
    """In how many seconds the first of these runs out; 0 when one has, None when there is none."""
    first = min((timer for timer in timers if timer is not None), default=None)
    return None if first is None else max(0, first - now) / 1000


def _counted(ends: list[State | None]) -> Swept:
    """How many messages ended in which state; None is not counted."""
    return Swept(ends.count(State.EXPIRED), ends.count(State.READY), ends.count(State.DEAD))


def _sum(*swept: Swept) -> Swept:
    return Swept(*map(sum, zip(*swept, strict=True)))
