"""The judge: what the promises allow, kept beside the room in a few lines for each message, and compared at every step.

It believes the contract (`stores/contract.py`) and docs/guarantees.md, and never asks the room how it came to what it
did. What it finds it tells by raising `Broken`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final

from postroom.board import task
from postroom.board.records import CLAIMS
from postroom.core.message import Draft, MessageWithLedger
from postroom.core.states import FINISHED, State
from postroom.pools import decision_store
from postroom.stores.contract import (
    ANY,
    BUCKETS,
    LIMITS,
    Claimed,
    Delivery,
    Settled,
    Store,
    Ticket,
    Want,
    topic_channel,
    topic_to,
)

from .broken import Broken
from .decision_judge import DecisionJudge
from .limit_judge import LimitJudge
from .order_judge import OrderJudge
from .plans import CHANNEL
from .process import Around, Hinted, Process
from .seen import Seen
from .session_judge import MEMBER, SESSION, SessionJudge
from .task_judge import TaskJudge
from .tick_judge import PREFIX as SCHEDULE
from .tick_judge import TickJudge

#: What ends a message for good, and the state that follows.
_FINAL: Final = {
    "acked": State.ACKED,
    "answered": State.ANSWERED,
    "refused": State.REFUSED,
    "dead": State.DEAD,
}

_PRESENCE: Final = "agent/"


class ScheduleJudge:
    """Sees every step of every process, in the order in which they were done."""

    def __init__(self, world: Around) -> None:
        self._world = world
        #: The moment of what is judged, where that is not now: a room on servers is told of it a while later.
        self.at_ms: int | None = None
        #: Whether all that a step stores is told in one; a room on servers tells of each message by itself.
        self.tells_whole_steps = True
        #: Whether a message that is made ready rings at once, before the step is over.
        self.rings_at_once = True
        #: Whether deaths are seen at once, and not by the silence of processes on other machines; one that lives but
        #: was silent, because it stood still or was cut off, may be taken for gone then.
        self.sees_deaths = True
        #: Whether the messages of this line come in order.
        self.keeps_order: Callable[[Seen], bool] = lambda _: True
        self.seen: dict[str, Seen] = {}
        #: Sender, receiver, channel and priority -> the messages of that line that nobody was given yet.
        self._lines: dict[tuple[object, ...], list[Seen]] = {}
        self._keys: dict[tuple[str, str], list[str]] = {}
        self._versions: dict[str, int] = {}  # of cells
        self._highest: dict[str, int] = {}  # the highest version that a cell had, also before it was deleted
        self._presence: dict[tuple[Process, str], tuple[int, int]] = {}  # the last two looks at an agent
        self.subscribers: dict[str, set[str]] = {}  # of channels
        self.tasks = TaskJudge(world, self._is_gone)
        self.sessions = SessionJudge(world, self._has_open_mail)
        self.decisions = DecisionJudge(world, self._is_gone)
        self.ticks = TickJudge(world)
        self.orders = OrderJudge(world)
        self.limits = LimitJudge(world, self._all_seen)
        #: What has ended, or went back, in the step that is judged, and whether it surely ran until then.
        self._ended: list[tuple[Seen, bool]] = []
        #: What those that wait at the channel wait for.
        self.topic_of_channel = topic_channel(CHANNEL)

    def label(self, id: str) -> str:
        """A message's short name, the same in every run."""
        seen = self.seen.get(id)
        return "m?" if seen is None else seen.label

    def _all_seen(self) -> Iterable[Seen]:
        return self.seen.values()

    def now_ms(self) -> int:
        """The moment of what is judged, in room time."""
        return self._world.room_ms() if self.at_ms is None else self.at_ms

    # Steps

    def put(
        self,
        process: Process,
        drafts: Sequence[Draft],
        ids: Sequence[str],
        state_of: Callable[[str], State | None] | None = None,
    ) -> None:
        """Messages were stored. `state_of` tells how another one stands after that, where it can be asked."""
        now_ms, world = self.now_ms(), self._world
        self._judge_copies(drafts, ids)
        for at, id in enumerate(ids):
            if id in self.seen:
                world.happened("a repeated key stored nothing")
                continue
            draft = drafts[at if len(drafts) == len(ids) else 0]
            self.seen[id] = seen = Seen(len(self.seen) + 1, id, draft, now_ms, self._is_lost)
            seen.put_at = world.step
            self.orders.put(seen)
            if draft.waiter is not None:
                seen.asker = process
            is_plain = draft.answer_to is None and draft.order_key is None and not draft.publish
            if not draft.delay_s and draft.ttl_s is None and is_plain:
                self._lines.setdefault(_line(seen), []).append(seen)
            world.tell(process, f"puts {seen.label} for {draft.to_agent or draft.channel}")
            self.sessions.judge_acts(process, draft.channel)
            self.tasks.put(draft)
            self.ticks.put(process, draft)
            self._judge_answer(draft)
            if state_of is not None:
                self._judge_replaced(process, seen, state_of)
            if draft.answer_to is None and not draft.delay_s and not self.orders.is_behind(seen):
                self._judge_hints(draft)
            self.limits.stored(process, seen, now_ms)

    def _judge_replaced(self, process: Process, new: Seen, state_of: Callable[[str], State | None]) -> None:
        """What a message replaces is withdrawn in the step that stored it, if no receiver has it."""
        draft, now_ms = new.draft, self.now_ms()
        old = [self.seen[draft.replaces]] if draft.replaces in self.seen else []
        old += [each for each in self.orders.line_of(draft) if draft.debounce and each.number < new.number]
        for seen in dict.fromkeys(old):
            if seen.final is not None or seen.draft.from_agent != draft.from_agent:
                continue
            if state_of(seen.id) is State.WITHDRAWN:
                self._world.happened("a message was replaced")
                self.withdrawn(process, [seen.id])
            elif _must_be_withdrawable(seen, now_ms):
                raise Broken(f"{new.label} replaces {seen.label}, which waits all the same")

    def _judge_copies(self, drafts: Sequence[Draft], ids: Sequence[str]) -> None:
        """A key that is repeated stores nothing; what is published is stored once for each subscriber."""
        for draft in drafts:
            if draft.idempotency_key is not None:
                known = self._keys.setdefault((draft.from_agent, draft.idempotency_key), list(ids))
                if known != list(ids):
                    raise Broken(f"a repeated key stored another message: {self.label(known[0])} was there")
        if self.tells_whole_steps and len(drafts) == 1 and drafts[0].publish:
            wanted = len(self.subscribers.get(drafts[0].channel, ()))
            if len(ids) != wanted:
                raise Broken(f"what was published for {wanted} subscribers was stored {len(ids)} times")

    def _judge_hints(self, draft: Draft) -> None:
        """A message was just made ready, and no hint has been taken away yet: all that wait for it have one.

        Of those that wait at a channel, one has.
        """
        if not self.rings_at_once or self.at_ms is not None:  # a sender that died did not ring
            return
        topic = topic_channel(draft.channel) if draft.to_agent is None else topic_to(draft.to_agent)
        hints = [waiter.has_hint() for waiter in self._world.waiters() if topic in waiter.topics]
        if hints and not (any(hints) if draft.to_agent is None else all(hints)):
            raise Broken(f"there is a message for {draft.to_agent or draft.channel}, and its receiver got no hint")

    def held_by(self, process: Process) -> set[str]:
        """What a process holds, and could not have lost."""
        now_ms = self.now_ms()
        return {s.label for s in self.seen.values() if s.held and s.holder is process and s.until_ms > now_ms}

    def _judge_answer(self, draft: Draft) -> None:
        asked = self.seen.get(draft.answer_to or "")
        if asked is None or asked.draft.waiter is None:
            return
        if asked.asker is None:
            self._world.happened("an answer came when nobody waited for it any more")
        elif not asked.asker.alive:
            self._world.happened("an answer came to a dead asker")

    def claimed(self, process: Process, want: Want, deliveries: Sequence[Delivery]) -> None:
        """A claim gave these."""
        self.limits.claim_begins()
        for delivery in deliveries:
            seen = self.seen.get(delivery.message.id)
            if seen is None:
                raise Broken(f"a message was delivered that nobody sent: {delivery.message.id}")
            self._claimed_one(process, want, delivery, seen)
        if deliveries and any(waiter.missed for waiter in process.waiters):
            self._world.happened("a lost hint was covered by a look")
            for waiter in process.waiters:
                waiter.missed = False

    def _claimed_one(self, process: Process, want: Want, delivery: Delivery, seen: Seen) -> None:
        now_ms, token = self.now_ms(), delivery.ticket.token
        self.sessions.judge_acts(process, seen.draft.channel)
        self._world.tell(process, f"claims {seen.label} with token {token}")
        if seen.final is not None:
            raise Broken(f"{seen.label} was delivered again after it was {seen.final.name.lower()}")
        if token <= seen.token:
            raise Broken(f"{seen.label} was claimed with token {token}, after token {seen.token}")
        if seen.to_agent not in (None, want.agent):
            raise Broken(f"{seen.label} is for {seen.to_agent}, and {want.agent} was given it")
        if seen.held:
            self._judge_take_over(seen, now_ms)
        self._judge_time(seen, want, now_ms)
        self.orders.judge_claim(seen, now_ms)
        self.limits.claimed(process, want, seen, now_ms)
        if want.ids is None and self.tells_whole_steps:  # that an asker gave up may be stored before it is told
            self._judge_is_ordinary(seen)
        if not seen.claims and self.keeps_order(seen):
            self._judge_order(seen)
            if want.ids is None and self.tells_whole_steps:  # of others a claim knew nothing when it chose
                self._judge_urgency(seen, want)
        seen.claims += 1
        seen.called_at = process.called_at
        seen.deliveries += 1
        self._judge_count(seen, delivery.message.delivery_count)
        seen.token, seen.spent, seen.held = token, False, True
        seen.holder = None if want.owner is None else process
        seen.until_ms = now_ms + max(1, round(want.lease_s * 1000))
        if want.settle:
            seen.final, seen.held, seen.spent = State.ACKED, False, True

    def _judge_take_over(self, seen: Seen, now_ms: int) -> None:
        if seen.holder is not None and not seen.holder.alive:
            self._world.happened("a claim was taken over after a death")
        elif seen.holder is not None and seen.until_ms > now_ms and self._was_silent(seen.holder):
            self._world.happened("a claim was taken over after a silence")
        elif seen.until_ms <= now_ms:
            self._world.happened("a claim was taken over after its lease ended")
        else:
            left_ms = seen.until_ms - now_ms
            raise Broken(f"{seen.label} has two owners: {seen.holder or 'an agent'} holds it for {left_ms} ms more")

    @staticmethod
    def _judge_time(seen: Seen, want: Want, now_ms: int) -> None:
        if not seen.held and now_ms < seen.due_ms:
            raise Broken(f"{seen.label} was delivered {seen.due_ms - now_ms} ms before it was due")
        if seen.expires_ms is not None and seen.expires_ms <= now_ms and want.ids is None:
            raise Broken(f"{seen.label} was delivered after its time to live")

    @staticmethod
    def _judge_count(seen: Seen, told: int) -> None:
        if told != seen.deliveries:
            raise Broken(f"{seen.label}: delivery {seen.deliveries} counts as {told}")
        if seen.deliveries > seen.draft.max_deliveries:
            raise Broken(f"{seen.label} was delivered {seen.deliveries} times")

    def _judge_order(self, seen: Seen) -> None:
        line = self._lines.get(_line(seen), [])
        if seen in line:
            before = [other.label for other in line[: line.index(seen)] if other.final is None]
            if before:
                raise Broken(f"{seen.label} came before {', '.join(before)}, which its sender sent before it")
            line.remove(seen)

    def _judge_urgency(self, seen: Seen, want: Want) -> None:
        """Of what was ready for this receiver, nothing was more urgent."""
        for (_, to_agent, channel, _), line in self._lines.items():
            if not line or line[0].draft.priority <= seen.draft.priority or self.limits.limits(str(channel)):
                continue
            mine = to_agent == want.agent if want.channels is None else to_agent in (want.agent, None)
            if mine and (want.channels is None or channel in want.channels):
                before = [other.label for other in line if other.final is None and not other.claims]
                if before:
                    raise Broken(f"{seen.label} came before {before[0]}, which is more urgent")

    def _judge_is_ordinary(self, seen: Seen) -> None:
        """An answer for which its asker waits is nobody else's."""
        asked = self.seen.get(seen.draft.answer_to or "")
        if asked is not None and asked.asker is not None and asked.asker.alive and not seen.claims:
            raise Broken(f"{seen.label} is the answer that {asked.asker!r} waits for, and another took it")

    def _has_open_mail(self, channel: str) -> bool:
        return any(seen.draft.channel == channel and seen.final is None for seen in self.seen.values())

    # What programs see

    def handed_out(self, process: Process, ticket: Ticket) -> None:
        """A loop has come to a message: it must be the loop's."""
        seen = self.seen[ticket.id]
        if seen.token != ticket.token or seen.final is not None:
            raise Broken(f"{process!r} is given {seen.label} by its loop, and another has it")

    def was_taken_before(self, process: Process, ticket: Ticket, told_at: int) -> None:
        """A server has a message in hand, and was told at that step to take nothing more."""
        seen = self.seen[ticket.id]
        if seen.called_at > told_at:
            raise Broken(f"{process!r} was told to stop serving, and took {seen.label} after that")

    def presence_read(self, process: Process, name: str) -> None:
        """A process looked at a cell; that of an agent says whether it runs."""
        if name.startswith(_PRESENCE):
            before = self._presence.get((process, name), (0, 0))
            self._presence[process, name] = before[1], self._world.step

    def peer_is_gone(self, process: Process, peer: str, payload: dict[str, str]) -> None:
        """An asker is told that its peer is gone: what that answered before it was seen to be gone has come."""
        looked_at = self._presence.get((process, _PRESENCE + peer), (0, 0))[0]  # the last look was for the words alone
        questions = [id for id, seen in self.seen.items() if seen.draft.payload == payload]
        for answer in self.seen.values():
            if answer.draft.answer_to in questions and answer.put_at < looked_at and not answer.claims:
                raise Broken(f"{process!r} is told that {peer} is gone, and its answer {answer.label} was there")

    def withdrawn(self, process: Process, ids: Iterable[str]) -> None:
        """A sender has taken messages back: no receiver had them, and none gets them."""
        now_ms = self.now_ms()
        for id in ids:
            seen = self.seen[id]
            self._world.tell(process, f"withdraws {seen.label}")
            if seen.final is not None:
                raise Broken(f"{seen.label} was withdrawn after it was {seen.final.name.lower()}")
            if seen.held:
                self._judge_take_over(seen, now_ms)
            seen.final, seen.held, seen.spent = State.WITHDRAWN, False, True
            self._ended.append((seen, False))
            self._world.happened("a message was withdrawn")

    def not_withdrawn(self, process: Process, ids: Iterable[str], agent: str) -> None:
        """A sender was told that it could not take these back: somebody has them, or they have ended."""
        now_ms = self.now_ms()
        for seen in (self.seen[id] for id in ids if id in self.seen):
            if seen.draft.from_agent == agent and _must_be_withdrawable(seen, now_ms):
                raise Broken(f"{process!r} was told that it cannot withdraw {seen.label}, which nobody has")
            self._world.happened("a message could not be withdrawn")

    def requeued(self, process: Process, ids: Iterable[str]) -> None:
        """An operator has put messages back: they begin anew, and no ticket from before counts."""
        for id in ids:
            seen = self.seen[id]
            self._world.tell(process, f"puts {seen.label} back")
            self._world.happened("a message was put back")
            if seen.expires_ms is not None and seen.expires_ms <= self.now_ms():
                seen.expires_ms = None
            seen.final, seen.held, seen.spent, seen.deliveries, seen.asker = None, False, True, 0, None
            seen.put_back = True
            if seen in (line := self._lines.get(_line(seen), [])):
                line.remove(seen)
            if seen.draft.order_key is None:
                self._judge_hints(seen.draft)

    def waits_unseen(self, process: Process, waiter: Hinted) -> None:
        """A process waits: what came before it listened, it must have looked for since."""
        if process.claimed_at > waiter.armed_at or process.last_want is None:
            return
        channels = process.last_want.channels
        for seen in self.seen.values():
            if seen.claims or seen.final is not None or seen.put_at >= waiter.armed_at or not self._is_ready(seen):
                continue
            mine = seen.to_agent == process.last_want.agent
            if (mine and channels is None) or (channels and seen.draft.channel in channels and seen.to_agent is None):
                topic = topic_to(seen.to_agent) if seen.to_agent else topic_channel(seen.draft.channel)
                if topic in waiter.topics and not waiter.has_hint():
                    raise Broken(f"{process!r} waits, and has not looked for {seen.label}, which was there before")

    def _is_ready(self, seen: Seen) -> bool:
        return any(seen in line for line in self._lines.values())

    def settled(self, process: Process, ticket: Ticket, outcome: str, puts: Sequence[Draft], settled: Settled) -> None:
        """A receiver said what became of a message."""
        seen, world = self.seen[ticket.id], self._world
        world.tell(process, f"says {outcome} of {seen.label} with token {ticket.token}: {settled.held}")
        self._judge_ticket(seen, ticket, held=settled.held)
        if settled.held and puts:
            self.put(process, puts, settled.ids)
        if not settled.held:
            world.happened("a late word was refused")
            if settled.ids:
                raise Broken(f"a word on {seen.label} did not count, and its answer was stored")
            return
        if seen.until_ms <= self.now_ms():
            world.happened("a late word counted: nobody had taken the message")
        self._ended.append((seen, seen.is_held(self.now_ms())))
        seen.held, seen.spent = False, True
        state = settled.state
        if outcome == "returned":
            seen.deliveries -= 1
            world.happened("an unseen message went back")
        elif outcome == "retry":
            if (state is State.DEAD) != (seen.deliveries >= seen.draft.max_deliveries):
                raise Broken(f"{seen.label} is {state} after delivery {seen.deliveries}")
            if state is State.DEAD:
                world.happened("the last delivery failed")
                seen.final = State.DEAD
        else:
            seen.final = _FINAL[outcome]
        if state is State.READY:
            self._judge_hints(seen.draft)

    def _judge_ticket(self, seen: Seen, ticket: Ticket, *, held: bool) -> None:
        counts = self.counts(ticket)
        if held and not counts:
            raise Broken(f"a stale word on {seen.label} counted: token {ticket.token}, and the newest is {seen.token}")
        if held or not counts:
            return
        now_ms = self.now_ms()
        ended = seen.until_ms <= now_ms or (seen.holder is not None and not seen.holder.alive)
        used_up = seen.deliveries >= seen.draft.max_deliveries
        expired = seen.expires_ms is not None and seen.expires_ms <= now_ms
        if not (ended and (used_up or expired)):
            raise Broken(f"{seen.label} was the receiver's, and its word was refused")

    def extended(self, process: Process, ticket: Ticket, lease_s: float, *, held: bool, beat: bool) -> None:
        """A lease was extended, or could not be."""
        seen = self.seen[ticket.id]
        self._world.tell(process, f"{'keeps' if beat else 'extends'} {seen.label} for {lease_s:g} s: {held}")
        if held or not (self.counts(ticket) and self.limits.may_refuse(seen, self.now_ms())):
            self._judge_ticket(seen, ticket, held=held)
        if held:
            if not seen.is_held(self.now_ms()):
                self.limits.extended(seen, self.now_ms())
            until_ms = self.now_ms() + max(1, round(lease_s * 1000))
            seen.until_ms = max(seen.until_ms, until_ms) if beat else until_ms
            seen.held = True
            self._world.happened("a heartbeat kept a message" if beat else "a lease was extended")

    def is_leased(self, ticket: Ticket, message: MessageWithLedger | None) -> None:
        """A heartbeat kept a message: its lease lasts no shorter than it did."""
        seen = self.seen[ticket.id]
        if message is not None and message.lease_until_ms is not None:
            short_ms = seen.until_ms - self.now_ms() + self._world.clock.wall_ms() - message.lease_until_ms
            if short_ms > 1:
                raise Broken(f"a heartbeat made the lease of {seen.label} {short_ms} ms shorter")

    def abandoned(self, process: Process, id: str) -> None:
        """An asker waits no more."""
        if id in self.seen:
            self._world.tell(process, f"waits no more for the answer to {self.label(id)}")
            self.seen[id].asker = None

    def cell_written(self, process: Process, name: str, value: object, expect: int, version: int | None) -> None:
        """A cell was written, or another version than the expected one was there."""
        if name.startswith(f"{BUCKETS}/"):
            return  # claims write those, and tell nobody; what they hold back, the judge of limits knows
        self._judge_version(process, name, value, expect, version)
        if version is None:
            return
        if name.startswith((task.PREFIX, CLAIMS)):
            self.tasks.cell_written(process, name, value, version)
        elif name.startswith((MEMBER, SESSION)):
            self.sessions.cell_written(process, name, value)
        elif name.startswith(decision_store.PREFIX):
            self.decisions.cell_written(process, name, value)
        elif name.startswith(SCHEDULE):
            self.ticks.cell_written(process, name, value if isinstance(value, dict) else None)
        elif name == LIMITS:
            self._world.tell(process, f"limits: {value}")
            self.limits.cell_written(value, self.now_ms())
            self._judge_waiting_are_hinted()

    def _judge_version(self, process: Process, name: str, value: object, expect: int, version: int | None) -> None:
        """A cell's versions only grow, and a write that expects another one is lost."""
        there = self._versions.get(name, 0)
        if expect != ANY and (expect == there) != (version is not None):
            raise Broken(f"{process!r} expected version {expect} of {name}, {there} was there: {version}")
        if version is None:
            self._world.happened("a compare-and-set was lost")
            return
        if value is not None and version <= there:
            raise Broken(f"version {version} of {name} was written after version {there}")
        if value is not None and version <= self._highest.get(name, 0):
            raise Broken(f"version {version} of {name} is given a second time")
        self._highest[name] = max(version, self._highest.get(name, 0))
        self._versions[name] = 0 if value is None else version

    def version(self, cell: str) -> int:
        """The version of a cell that was written last; 0 without."""
        return self._versions.get(cell, 0)

    def _is_gone(self, process: str) -> bool:
        return self._world.is_alive(process) is False or self._was_silent(self._world.process(process))

    def _is_lost(self, process: Process) -> bool:
        return not process.alive or self._was_silent(process)

    def _was_silent(self, process: Process) -> bool:
        return not self.sees_deaths and bool(process.stood_ns or process.failed or self._world.stood_ns)

    # What an end makes possible

    def judge_freed(self) -> None:
        """A step is over: receivers of what may be taken because others ended in it have a hint."""
        ended, self._ended = self._ended, []
        now_ms = self.now_ms()
        for seen, ran in ended:
            first = self.orders.freed_by(seen, now_ms) if seen.final is not None else None
            if first is not None:
                self._judge_hints(first.draft)
            if ran and self.limits.is_concurrent(seen.draft.channel):
                self._judge_waiting_are_hinted(seen.draft.channel)

    def _judge_waiting_are_hinted(self, channel: str | None = None) -> None:
        """The limits were changed, or something ended in a channel that has some: receivers of what waits look again."""
        now_ms = self.now_ms()
        for seen in self.seen.values():
            if seen.is_fresh(now_ms) and not self.orders.is_behind(seen) and channel in (None, seen.draft.channel):
                self._judge_hints(seen.draft)

    def judge_empty(self, process: Process, want: Want, claimed: Claimed) -> None:
        """A claim gave nothing: there was nothing that it had to give."""
        if claimed.deliveries or want.ids is not None or not want.limit or not self.tells_whole_steps:
            return
        now_ms = self.now_ms()
        for seen in self.seen.values():
            if not seen.is_fresh(now_ms) or self.orders.is_behind(seen) or not _is_wanted(seen, want):
                continue
            if self.limits.surely_lets_pass(seen, want.agent, now_ms):
                raise Broken(f"{process!r} was given nothing, and {seen.label} was there for it")
            opens_s, due_s = self.limits.opens_s(seen, want.agent, now_ms), claimed.next_due_s
            if opens_s is not None and (due_s is None or due_s > opens_s):
                raise Broken(f"{process!r} is told to wait {due_s} s, and {seen.label} may pass in {opens_s:g} s")

    # Hints for one

    def hinted_alone(self, topic: str, before: dict[Hinted, bool]) -> None:
        """A message came to a channel: the waiters that have a hint by it have it for all others."""
        for waiter in self._world.waiters():
            if topic in waiter.topics and not before.get(waiter, False) and waiter.is_rung():
                waiter.alone_for.add(topic)

    def left_with_a_hint(self, waiter: Hinted) -> None:
        """A waiter has left without taking a hint that it alone had: somebody else that waits has it now."""
        for topic in waiter.alone_for:
            others = [other for other in self._world.waiters() if topic in other.topics and other is not waiter]
            if others and not any(other.has_hint() for other in others):
                raise Broken(f"a hint at {topic} is lost with the waiter that left, and others wait there")

    # Steps that were cut, and power cuts

    @contextmanager
    def back_at(self, room_ms: int) -> Iterator[None]:
        """What is told meanwhile happened at that time, in steps that were cut: nobody was rung."""
        self.at_ms = room_ms
        yield
        self.at_ms = None

    def counts(self, ticket: Ticket) -> bool:
        """Whether a ticket is that of the last claim, and was not used up."""
        seen = self.seen[ticket.id]
        return ticket.token == seen.token and not seen.spent and seen.final is None

    def is_repeat(self, draft: Draft) -> bool:
        """Whether its sender stored this under its key before."""
        return draft.idempotency_key is not None and (draft.from_agent, draft.idempotency_key) in self._keys

    def goes_on_from(self, messages: dict[str, MessageWithLedger], cells: dict[str, tuple[int, Any]]) -> None:
        """A power cut has ended all processes, and this is what is left: some moment of the past."""
        self.seen = {id: seen for id, seen in self.seen.items() if id in messages}
        kept = set(self.seen.values())
        self._lines = {line: [each for each in of_it if each in kept] for line, of_it in self._lines.items()}
        self.orders.goes_on_from(kept)
        self._ended.clear()
        self._keys = {key: ids for key, ids in self._keys.items() if all(id in messages for id in ids)}
        for id, seen in self.seen.items():
            message = messages[id]
            seen.claims = sum(entry.event == "claimed" for entry in message.ledger)
            seen.deliveries, seen.token = message.delivery_count, message.token
            seen.until_ms, seen.held, seen.spent = 0, message.exact_state is State.CLAIMED, True
            seen.final = message.exact_state if message.exact_state in FINISHED else None
        self._versions = {name: version for name, (version, _) in cells.items()}
        self._highest = dict(self._versions)
        self._presence.clear()
        values = {name: value for name, (_, value) in cells.items()}
        self.tasks.goes_on_from(cells, [seen.draft for seen in self.seen.values()])
        self.sessions.goes_on_from(values)
        self.decisions.goes_on_from(values)
        self.limits.goes_on_from(values.get(LIMITS), self.now_ms())
        self.ticks.goes_on_from(values, [seen.draft for seen in self.seen.values()])

    # The end

    def nothing_is_held_by_the_dead(self, store: Store) -> None:
        """What dead processes held was to be had at once, without waiting for any lease."""
        if not self.sees_deaths:
            return
        for id, seen in tuple(self.seen.items()):
            if seen.held and seen.holder is not None and not seen.holder.alive:
                message = store.get(id)
                if message is not None and message.exact_state in (State.CLAIMED, State.AWAITED):
                    raise Broken(f"{seen.label} is still held by {seen.holder!r}, which is dead")

    def has_open(self) -> bool:
        """Whether there are messages of which nobody has said a last word."""
        return any(seen.final is None for seen in self.seen.values())

    def at_the_end(self, store: Store) -> None:
        """Faults have stopped, time has passed, and what was left was received: nothing may be open."""
        now_ms = self.now_ms()
        for id, seen in tuple(self.seen.items()):
            message = store.get(id)
            if message is None:
                raise Broken(f"{seen.label} is lost")
            state = message.exact_state
            claims = sum(entry.event == "claimed" for entry in message.ledger)
            if claims != seen.claims:
                raise Broken(f"{seen.label} was claimed {seen.claims} times, and its ledger tells of {claims}")
            if seen.final is not None and state is not seen.final:
                raise Broken(f"{seen.label} was {seen.final.name.lower()}, and is {state.name.lower()} now")
            if seen.final is None:
                used_up = state is State.DEAD and seen.deliveries >= seen.draft.max_deliveries
                too_old = state is State.EXPIRED and seen.expires_ms is not None and seen.expires_ms <= now_ms
                if used_up:
                    self._world.happened("a message died with its last receiver")
                elif seen.draft.channel.startswith(SESSION):
                    continue  # what nobody took ends with its session
                elif too_old:
                    self._world.happened("a message expired")
                else:
                    raise Broken(f"{seen.label} is {state.name.lower()} at the end, and nobody can have it")


def _line(seen: Seen) -> tuple[object, ...]:
    draft = seen.draft
    return draft.from_agent, seen.to_agent, draft.channel, draft.priority


def _must_be_withdrawable(seen: Seen, now_ms: int) -> bool:
    """Whether nobody can have a message: it waits, or its receiver's lease has ended and it is not used up."""
    if seen.final is not None or seen.is_expired(now_ms) or seen.draft.answer_to is not None:
        return False
    lease_is_over = seen.until_ms <= now_ms and seen.deliveries < seen.draft.max_deliveries
    return not seen.held or lease_is_over


def _is_wanted(seen: Seen, want: Want) -> bool:
    """Whether a claim asks for a message."""
    if want.channels is None:
        return seen.to_agent == want.agent
    return seen.draft.channel in want.channels and seen.to_agent in (want.agent, None)
