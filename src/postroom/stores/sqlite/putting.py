"""Putting in the SQLite store: single sends as one statement, batches, lines of order keys, withdrawing and restoring."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import repeat
from typing import Final

from postroom.core import crashpoints
from postroom.core.message import Draft, Message, MessageWithLedger, id_of, ids_of, is_usual
from postroom.core.states import WITHDRAWABLE, State
from postroom.errors import InvalidMessage
from postroom.stores.contract import FEED, topic_channel, topic_message, topic_to

from .housekeeping import SqliteHousekeeping
from .rows import StepTime, ledger_text
from .transactions import Transactions, whole

_NO_WAITERS: Final[Mapping[str, int | None]] = {}


def _is_plain(draft: Draft) -> bool:
    """Whether `insert_plain` in schema.sql stores all of it, and nothing is to be read before."""
    return is_usual(draft) and not (
        draft.publish or draft.waiter or draft.answer_to or draft.replay_of or draft.hop_count
    )


class Puts:
    """How messages get into the file."""

    def __init__(self, steps: Transactions, upkeep: SqliteHousekeeping) -> None:
        self._steps = steps
        self._file = steps.file
        self._upkeep = upkeep
        self._limits = upkeep.limits

    def put(self, drafts: Sequence[Draft]) -> list[str]:
        """See `Store.put`."""
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
        if moment.now >= self._limits.look_at_ms and self._limits.may_be_full(draft, moment.now):
            return self._put_in_a_step(drafts)
        crashpoints.reached("sqlite.begun")
        id = self._insert(draft, moment, State.READY, draft.to_agent, waiter)
        steps.ring(moment)
        return [id]

    @whole
    def _put_in_a_step(self, drafts: Sequence[Draft]) -> list[str]:
        is_plain = all([_is_plain(draft) for draft in drafts])  # noqa: C419  a list: an interrupt could leave a generator unfinished
        special = [] if is_plain else [
            draft for draft in drafts
            if draft.publish or draft.answer_to or draft.idempotency_key or draft.order_key or draft.replaces or draft.waiter
        ]  # fmt: skip
        for draft in special:
            self._steps.enrol(draft.waiter)
        if any([draft.replaces or draft.debounce for draft in special]):  # noqa: C419  a list, as above
            self._upkeep.apply_all_timers()  # a claim that has ended keeps nobody from withdrawing the message
            self._upkeep.release_the_gone()
        with self._steps.step() as moment:
            is_limited = self._limits.known_to_sender(moment.now) is not None
            ids = self.put_all(drafts, moment) if special or is_limited else self._put_at_once(drafts, moment, is_plain)
        if moment.everyone == {FEED} and not moment.one_each:  # all of them are repeats, and nothing was written
            self._file.sync_what_is_there()
        return ids

    def _put_at_once(self, drafts: Sequence[Draft], moment: StepTime, is_plain: bool) -> list[str]:
        """Many messages that need nothing to be read before, written at once."""
        keys, rows = self._file.numbers.ticks(len(drafts)), self._steps.rows
        if is_plain:
            self._file.insert_many("insert_plain", [*map(rows.to_insert_plain, keys, drafts, repeat(moment))])
        else:
            self._file.insert_many(
                "insert",
                [
                    rows.to_insert(key, draft, moment, State.READY, draft.to_agent, None)
                    for key, draft in zip(keys, drafts, strict=True)
                ],
            )
        crashpoints.reached("sqlite.inserted")
        moment.everyone |= {topic_to(agent) for agent in {draft.to_agent for draft in drafts} if agent is not None}
        moment.one_each += [topic_channel(draft.channel) for draft in drafts if draft.to_agent is None]
        return ids_of(keys, self._file.salt)

    def put_all(
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
        if state is State.READY and self.is_behind(draft, to_agent):
            state = State.BLOCKED
        id = self._insert(draft, moment, state, to_agent, waiter)
        replaced = [key for key in old if self.withdraw(key, draft.from_agent, f"replaced by {id}", moment)]
        if self._limits.version and not replaced and self._limits.is_full(draft, to_agent):
            self._upkeep.apply_due_timers(moment)  # what has expired waits no more
            self._limits.check_space(draft, to_agent)
        return id

    def is_behind(self, message: Draft | Message, to_agent: str | None) -> bool:
        """Whether a message that is about to be stored comes behind another one of its order key."""
        line = (message.order_key, message.channel, to_agent)
        return message.order_key is not None and bool(self._file.execute("is_behind", line)[0][0])

    def withdraw(self, key: int, agent: str, reason: str | None, moment: StepTime) -> bool:
        """Take back a message of that agent, if nobody has it, and let the next of its order key pass. In a step."""
        entry = ledger_text("withdrawn", moment.wall_ms, agent, reason)
        for own_id, state in self._file.execute("as_it_is", (key,)):
            if self._file.change("withdraw", (key, agent, entry)):
                moment.everyone.add(topic_message(self._steps.rows.id(key, own_id)))
                if state != State.BLOCKED:
                    self.let_the_next_pass(key, moment)
                for _, channel, *_ in self._file.execute("group_of", (key,)) if self._limits.learn() else ():
                    self._limits.made_space(channel, moment)
                return True
        return False

    def let_the_next_pass(self, key: int, moment: StepTime) -> None:
        """A message has ended: the next of its order key, if it has one, may be claimed. In a step."""
        for order_key, channel, to_agent in self._file.execute("line_of", (key,)):
            self._upkeep.let_the_next_pass(order_key, channel, to_agent, moment)

    @whole
    def restore(self, messages: Sequence[MessageWithLedger]) -> int:
        """See `Store.restore`."""
        steps, file = self._steps, self._file
        with steps.step() as moment:
            new = [message for message in messages if not file.execute("get", (steps.key(message.id),))]
            for message in new:
                is_behind = self.is_behind(message, message.to_agent)
                row = steps.rows.to_restore(message, file.numbers.ticks(2), moment, is_behind=is_behind)
                file.execute("restore", row)
                self._upkeep.figures.count_in(row[0])
                moment.everyone.add(topic_message(message.id))
                if message.exact_state in WITHDRAWABLE:
                    moment.wake_receiver(message.to_agent, message.channel)
            self._upkeep.next_look = 0  # the timers of some may have run out
        return len(new)
