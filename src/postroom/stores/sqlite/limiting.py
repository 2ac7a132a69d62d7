"""Limits of the SQLite store: which messages a limited room gives to a claim, and which mailboxes are full.

Each process keeps the limits as it last read them, and every claim compares their version in the statement that takes the
message (`take` in schema.sql): a room without limits pays for one search of a small table. The index `limited` is made
with the first limit of a room.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

import msgspec

from postroom.core.message import DEFAULT_CHANNEL, MAX_NAME_BYTES, Draft
from postroom.core.states import State
from postroom.errors import MailboxFull
from postroom.stores import gates
from postroom.stores.contract import LIMITS, Want, topic_channel, topic_space, topic_to

from .rows import ANSWER_TO, CHANNEL, FROM_AGENT, ORDER_KEY, STATE, Row, StepTime, claim_order
from .transactions import Transactions

if TYPE_CHECKING:  # `gates` is loaded with the first limit that this process meets
    from postroom.stores.gates import ChannelLimits, Gates, Limits, UsedUp

#: A sender may go by the limits that it read for so long, in room ms; a claim never does.
_KNOWN_MS: Final = 2000
#: Candidates that are read at once where some of them may have to wait for their sender or their key.
_AT_ONCE: Final = 50
_from_json = msgspec.json.Decoder().decode
_to_json = msgspec.json.Encoder().encode


class SqliteLimits:
    """The limits of a room as this process knows them. Shared by its threads."""

    def __init__(self, steps: Transactions) -> None:
        self._steps = steps
        self._file = steps.file
        #: The version of their cell, and what it holds; one tuple, so that no thread sees half of a change.
        self._known: tuple[int, Limits | None] = (0, None)
        #: A sender must look from this room time on (`known_to_sender`); in a limited room it must at every send.
        self.look_at_ms = self._next_look_ms = 0

    @property
    def version(self) -> int:
        """The version of the limits that are known here; 0: there are none."""
        return self._known[0]

    def of(self, channel: str) -> ChannelLimits | None:
        """The limits of a channel, as they are known here; None where it has none."""
        limits = self._known[1]
        return None if limits is None else limits.channels.get(channel)

    def _is_paused(self, agent: str) -> bool:
        limits = self._known[1]
        return limits is not None and agent in limits.agents

    def learn(self) -> Limits | None:
        """Read the limits, where they have changed. For callers that hold the write lock, or whom a late look suffices."""
        rows = self._file.execute("cell_read", (LIMITS,))
        version = rows[0][1] if rows else 0
        if version != self._known[0]:
            self._known = (version, gates.parse_limits(_from_json(rows[0][2])) if rows else None)
        return self._known[1]

    def known_to_sender(self, now: int) -> Limits | None:
        """The limits as of two seconds ago at most."""
        if now >= self._next_look_ms:
            self._next_look_ms = now + _KNOWN_MS
            self.learn()
        self.look_at_ms = 0 if self._known[0] else self._next_look_ms
        return self._known[1]

    def changed(self, moment: StepTime) -> None:
        """The limits were written in this step: the index is there from now on, and receivers of what waits look again."""
        self._file.select(self._file.statements["limited_schema"])
        # (testing/limiting.py: test_a_holder_that_has_not_read_the_limits_yet_wakes_others_all_the_same)
        self._file.execute("write_claims")
        self.look_at_ms = self._next_look_ms = 0
        for to_agent, channel in self._file.execute("ready_boxes"):  # all of them: there may be many to take
            moment.everyone.add(topic_channel(channel) if to_agent is None else topic_to(to_agent))

    # Claiming

    def pick(self, want: Want, moment: StepTime) -> tuple[list[Row], float | None]:
        """The rows that a claim may take, best first, and in how many seconds a rate lets more pass.

        What is taken from buckets is written down. For callers that hold the write lock and know the limits as they are.
        """
        passing = self._gates(self._known[1] or gates.NO_LIMITS, moment.now)
        if want.ids is not None:
            picked = self._passing(self._named(want, moment.now), passing, len(want.ids), {})
        else:
            picked = {}
            before = -1
            while before < len(picked) < want.limit:  # those of one sender may have hidden others
                before = len(picked)
                picked = self._passing(self._best(want, passing, moment.now), passing, want.limit, picked)
        for name, full_ms in passing.taken.items():
            self._file.execute("cell_put", (name, self._file.numbers.tick(), f"{full_ms!r}"))
        return list(picked.values()), passing.opens_s()

    def _passing(self, rows: list[Row], passing: Gates, limit: int, picked: dict[int, Row]) -> dict[int, Row]:
        """What was picked, by key, and those of the rows that the gates let pass, so many together at most; counted."""
        picked = dict(picked)
        for row in rows:
            if row[0] in picked or len(picked) >= limit:
                continue
            channel, group = row[CHANNEL], gates.Group(row[FROM_AGENT], row[ORDER_KEY])
            if row[STATE] != State.AWAITED:  # an answer, which its asker gets all the same
                if not passing.lets_pass(channel, group):
                    continue
                if row[ANSWER_TO] is None:
                    passing.take(channel, group)
            picked[row[0]] = row
        return picked

    def _best(self, want: Want, passing: Gates, now: int) -> list[Row]:
        """The rows of the best messages in the mailboxes that an agent takes from."""
        if self._is_paused(want.agent):
            return []
        boxes = (self._box(passing, *box, want.limit, now) for box in self._boxes(want))
        return sorted((row for box in boxes for row in box), key=claim_order)

    def _named(self, want: Want, now: int) -> list[Row]:
        """The rows of the messages that are asked for by id."""
        keys = dict.fromkeys(map(self._steps.key, want.ids or ()))
        rows = [row for key in keys for row in self._file.execute("claim_by_key", (key, want.agent, now))]
        if self._is_paused(want.agent):
            rows = [row for row in rows if row[STATE] == State.AWAITED]
        return sorted(rows, key=claim_order)

    def _boxes(self, want: Want) -> Iterator[tuple[str | None, str]]:
        """The mailboxes that an agent takes from: recipient (or nobody) and channel."""
        if want.channels is not None:
            for channel in dict.fromkeys(want.channels):
                yield want.agent, channel
                yield None, channel
            return
        yield want.agent, DEFAULT_CHANNEL
        for (channel,) in self._file.execute("channels_of_agent", (want.agent,)):
            yield want.agent, channel

    def _box(self, passing: Gates, to_agent: str | None, channel: str, limit: int, now: int) -> Iterator[Row]:
        """The best rows of one mailbox that the gates may let pass, so many at most.

        Senders and keys of which none may run now are left out by the statement. Where the first rows all wait for a rate,
        so are those whose rate is used up, all at once: many of one sender hide no other, and a claim costs no more than a
        few looks, however many wait (bench/micro/growth.py).
        """
        if passing.is_shut(channel):
            return
        senders, keys = set(passing.full_groups(channel, "sender")), set(passing.full_groups(channel, "order_key"))
        asked = limit if self.of(channel) is None else max(limit, _AT_ONCE)
        left_out = False
        while True:
            found = self._file.execute(
                "claim_limited", (channel, to_agent, now, asked, _to_json(sorted(senders)), _to_json(sorted(keys)))
            )
            closed = [
                row for row in found if not passing.lets_pass(channel, gates.Group(row[FROM_AGENT], row[ORDER_KEY]))
            ]
            if len(closed) < len(found) or len(found) < asked:
                if left_out and len(closed) == len(found):
                    self._learn_when_it_opens(passing, to_agent, channel)
                yield from (row for row in found if row not in closed)
                return
            before = len(senders) + len(keys)
            for used_up in passing.used_up(channel):
                known = senders if used_up.rule.by == "sender" else keys
                found = self._file.execute("used_up", _between(used_up))
                known.update(name.removeprefix(used_up.prefix) for (name,) in found)
            for row in closed:
                self._leave_out(passing, row, senders, keys)
            if len(senders) + len(keys) == before:
                return
            left_out = True

    def _learn_when_it_opens(self, passing: Gates, to_agent: str | None, channel: str) -> None:
        """Messages were left out for rates that are used up: note which of these is the first that lets more pass."""
        for used_up in passing.used_up(channel):
            asked = (*_between(used_up), channel, to_agent, used_up.rule.by)
            for (full_ms,) in self._file.execute("first_to_open", asked):
                if full_ms is not None:
                    passing.opens_with(used_up.rule, full_ms)

    def _leave_out(self, passing: Gates, row: Row, senders: set[str], keys: set[str]) -> None:
        """Find out whether it is its sender or its key that a message waits for."""
        if not passing.lets_pass(row[CHANNEL], gates.Group(row[FROM_AGENT], None)):
            senders.add(row[FROM_AGENT])
        elif row[ORDER_KEY] is not None:
            keys.add(row[ORDER_KEY])

    def _gates(self, limits: Limits, now: int) -> Gates:
        return gates.Gates(limits, now, self._running, self._bucket)

    def _running(self, channel: str) -> Iterator[gates.Group]:
        return (gates.Group(sender, order_key) for sender, order_key in self._file.execute("running", (channel,)))

    def _bucket(self, name: str) -> object:
        rows = self._file.execute("cell_read", (name,))
        return _from_json(rows[0][2]) if rows else None

    def is_concurrent(self, key: int) -> bool:
        """Whether so many messages may run at once in the channel of this one, and no more."""
        found = (self.of(channel) for _, channel, *_ in self._file.execute("group_of", (key,)))
        return any(limits is not None and limits.is_concurrent() for limits in found)

    def may_run_again(self, key: int, now: int) -> bool:
        """Whether a late holder may have a message again whose lease has ended: not past the limits of its channel."""
        for state, channel, sender, order_key, answer_to in self._file.execute("group_of", (key,)):
            limits = self.of(channel)
            if state == State.READY and limits is not None and answer_to is None:
                passing = self._gates(gates.Limits({channel: limits.only_concurrent()}), now)
                return passing.lets_pass(channel, gates.Group(sender, order_key))
        return True

    # Waking

    def freed(self, channel: str, moment: StepTime) -> None:
        """A message of a channel is no longer claimed: another one may run."""
        limits = self.of(channel)
        if limits is not None and limits.is_concurrent():
            for to_agent, _ in self._file.execute("ready_boxes_of_channel", (channel,)):
                moment.wake_receiver(to_agent, channel)

    def freed_by_key(self, key: int, moment: StepTime) -> None:
        """The same for a message of which only the key is known; its holder may have been another process."""
        if moment.now >= self.look_at_ms:
            self.known_to_sender(moment.now)
        if self._known[1]:
            for _, channel, *_ in self._file.execute("group_of", (key,)):
                self.freed(channel, moment)

    def made_space(self, channel: str, moment: StepTime) -> None:
        """A message no longer waits in a channel: its senders may send another."""
        limits = self.of(channel)
        if limits is not None and limits.waiting is not None:
            moment.everyone.add(topic_space(channel))

    # Full mailboxes

    def may_be_full(self, draft: Draft, now: int) -> bool:
        """Whether the mailboxes of a draft's channel can be full, so that they must be counted."""
        self.known_to_sender(now)
        limits = self.of(draft.channel)
        return limits is not None and limits.waiting is not None

    def is_full(self, draft: Draft, to_agent: str | None) -> bool:
        """Whether more messages wait in a mailbox than its channel allows. In the step that puts."""
        limits = self.of(draft.channel)
        if limits is None or limits.waiting is None or draft.answer_to is not None:
            return False
        ((depth,),) = self._file.execute("depth", (draft.channel, to_agent, limits.waiting + 1))
        return bool(depth > limits.waiting)

    def check_space(self, draft: Draft, to_agent: str | None) -> None:
        """Raise MailboxFull when that is so."""
        limits = self.of(draft.channel)
        if limits is not None and limits.waiting is not None and self.is_full(draft, to_agent):
            raise MailboxFull(draft.channel, to_agent, limits.waiting)


def _between(used_up: UsedUp) -> tuple[str, str, float]:
    """What `used_up` in schema.sql takes: between which names the cells of its buckets are, and which of them are meant."""
    return used_up.prefix, used_up.prefix + "\U0010ffff" * MAX_NAME_BYTES, used_up.full_after_ms
