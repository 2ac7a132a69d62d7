"""The judge: what the promises allow, kept beside the room in a few lines for each message, and compared at every step.

It believes the contract (`stores/contract.py`) and docs/guarantees.md, and never asks the room how it came to what it
did. What it finds it tells by raising `Broken`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final

from postroom.board import task
from postroom.core.message import Draft
from postroom.core.states import State
from postroom.sessions.deadlock import channel_of
from postroom.sessions.record import DEADLOCK
from postroom.stores.contract import ANY, Delivery, Settled, Store, Ticket, Want, topic_channel, topic_to

from .process import Around, Process

#: What ends a message for good, and the state that follows.
_FINAL: Final = {
    "acked": State.ACKED,
    "answered": State.ANSWERED,
    "refused": State.REFUSED,
    "dead": State.DEAD,
}


_MEMBER: Final = "member:"
_SESSION: Final = "session:"

#: Stands for a member that waits for no mailbox for ever.
ACTS: Final = ""


class Broken(AssertionError):
    """A promise does not hold."""


class Seen:
    """What the judge knows of one message."""

    __slots__ = (
        *("asker", "claims", "deliveries", "draft", "due_ms", "expires_ms", "final", "held", "holder", "label"),
        *("number", "spent", "to_agent", "token", "until_ms"),
    )

    def __init__(self, number: int, draft: Draft, to_agent: str | None, now_ms: int) -> None:
        self.number = number
        self.label = f"m{number}"
        self.draft = draft
        self.to_agent = to_agent
        self.due_ms = now_ms + round(draft.delay_s * 1000)
        self.expires_ms = None if draft.ttl_s is None else now_ms + round(draft.ttl_s * 1000)
        self.token = self.deliveries = self.claims = self.until_ms = 0
        #: The process that claimed it last, whether it still holds it, whether the last token was used up.
        self.holder: Process | None = None
        self.held = False
        self.spent = True
        self.final: State | None = None
        #: The process that waits for its answer.
        self.asker: Process | None = None


class ScheduleJudge:
    """Sees every step of every process, in the order in which they were done."""

    def __init__(self, world: Around) -> None:
        self._world = world
        self.seen: dict[str, Seen] = {}
        #: Sender, receiver, channel and priority -> the messages of that line that nobody was given yet.
        self._lines: dict[tuple[object, ...], list[Seen]] = {}
        self._keys: dict[tuple[str, str], list[str]] = {}
        self._members: dict[str, dict[Process, str]] = {}  # of sessions: what each waits for, for ever
        self._failures: dict[str, dict[str, Any]] = {}
        self.over: set[str] = set()  # the sessions that have ended or failed
        self.tasks: dict[str, task.Value] = {}  # as they were written last
        self._versions: dict[str, int] = {}  # of cells
        self._standing: dict[str, dict[str, Any]] = {}  # the cells of members

    def label(self, id: str) -> str:
        """A message's short name, the same in every run."""
        seen = self.seen.get(id)
        return "m?" if seen is None else seen.label

    def _now_ms(self) -> int:
        return self._world.room_ms()

    # Steps

    def put(self, process: Process, drafts: Sequence[Draft], ids: Sequence[str]) -> None:
        """Messages were stored."""
        now_ms, world = self._now_ms(), self._world
        for draft in drafts:
            if draft.idempotency_key is not None:
                known = self._keys.setdefault((draft.from_agent, draft.idempotency_key), list(ids))
                if known != list(ids):
                    raise Broken(f"a repeated key stored another message: {self.label(known[0])} was there")
        for at, id in enumerate(ids):
            if id in self.seen:
                world.happened("a repeated key stored nothing")
                continue
            draft = drafts[at if len(drafts) == len(ids) else 0]
            to_agent = draft.to_agent
            self.seen[id] = seen = Seen(len(self.seen) + 1, draft, to_agent, now_ms)
            if draft.waiter is not None:
                seen.asker = process
            if not draft.delay_s and draft.ttl_s is None and draft.answer_to is None and not draft.publish:
                self._lines.setdefault(_line(seen), []).append(seen)
            world.tell(process, f"puts {seen.label} for {to_agent or draft.channel}")
            self._judge_acts(process, draft.channel)
            self._judge_answer(draft)
            if draft.answer_to is None and not draft.delay_s:
                self._judge_hints(draft)

    def _judge_hints(self, draft: Draft) -> None:
        """A message was just made ready, and no hint has been taken away yet: all that wait for it have one.

        Of those that wait at a channel, one has.
        """
        topic = topic_channel(draft.channel) if draft.to_agent is None else topic_to(draft.to_agent)
        hints = [waiter.has_hint() for waiter in self._world.waiters() if topic in waiter.topics]
        if hints and not (any(hints) if draft.to_agent is None else all(hints)):
            raise Broken(f"there is a message for {draft.to_agent or draft.channel}, and its receiver got no hint")

    def held_by(self, process: Process) -> set[str]:
        """What a process holds, and could not have lost."""
        now_ms = self._now_ms()
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
        now_ms, token = self._now_ms(), delivery.ticket.token
        self._judge_acts(process, seen.draft.channel)
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
        if not seen.claims:
            self._judge_order(seen)
        seen.claims += 1
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
        if seen.until_ms <= self._now_ms():
            world.happened("a late word counted: nobody had taken the message")
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
        counts = ticket.token == seen.token and not seen.spent and seen.final is None
        if held and not counts:
            raise Broken(f"a stale word on {seen.label} counted: token {ticket.token}, and the newest is {seen.token}")
        if held or not counts:
            return
        now_ms = self._now_ms()
        ended = seen.until_ms <= now_ms or (seen.holder is not None and not seen.holder.alive)
        used_up = seen.deliveries >= seen.draft.max_deliveries
        expired = seen.expires_ms is not None and seen.expires_ms <= now_ms
        if not (ended and (used_up or expired)):
            raise Broken(f"{seen.label} was the receiver's, and its word was refused")

    def extended(self, process: Process, ticket: Ticket, lease_s: float, *, held: bool, beat: bool) -> None:
        """A lease was extended, or could not be."""
        seen = self.seen[ticket.id]
        self._world.tell(process, f"{'keeps' if beat else 'extends'} {seen.label} for {lease_s:g} s: {held}")
        self._judge_ticket(seen, ticket, held=held)
        if held:
            until_ms = self._now_ms() + max(1, round(lease_s * 1000))
            seen.until_ms = max(seen.until_ms, until_ms) if beat else until_ms
            seen.held = True
            self._world.happened("a heartbeat kept a message" if beat else "a lease was extended")

    def abandoned(self, process: Process, id: str) -> None:
        """An asker waits no more."""
        if id in self.seen:
            self._world.tell(process, f"waits no more for the answer to {self.label(id)}")
            self.seen[id].asker = None

    def cell_written(self, process: Process, name: str, value: object, expect: int, version: int | None) -> None:
        """A cell was written, or another version than the expected one was there."""
        there = self._versions.get(name, 0)
        if expect != ANY and (expect == there) != (version is not None):
            raise Broken(f"{process!r} expected version {expect} of {name}, {there} was there: {version}")
        if version is None:
            self._world.happened("a compare-and-set was lost")
            return
        if value is not None and version <= there:
            raise Broken(f"version {version} of {name} was written after version {there}")
        self._versions[name] = 0 if value is None else version
        if name.startswith(_MEMBER):
            self._member_written(process, name, value)
        elif name.startswith(task.PREFIX) and isinstance(value, dict):
            self._task_written(process, value)
        elif name.startswith(_SESSION) and isinstance(value, dict) and "failure" in value:
            self._session_written(process, name, value)

    def _task_written(self, process: Process, value: task.Value) -> None:
        name, state, token = value["id"], value["state"], value["token"]
        before, self.tasks[name] = self.tasks.get(name), value
        self._world.tell(process, f"writes task {name}: {state}, token {token}")
        if before is None:
            return
        if before["state"] == task.DONE:
            raise Broken(f"task {name} was done, and is written as {state}")
        if token < before["token"]:
            raise Broken(f"the token of task {name} went back, from {before['token']} to {token}")
        said = state in (task.DONE, task.BLOCKED) or (state == task.READY and token != before["token"])
        if said and before["state"] == task.CLAIMED and before["process"] != process.name:
            raise Broken(f"task {name} was {before['owner']}'s, and {process!r} wrote that it is {state}")
        taken = state == task.CLAIMED and token != before["token"]
        if (
            taken
            and before["state"] == task.CLAIMED
            and task.lapse_of(self._world.clock, before, self._is_gone) is None
        ):
            raise Broken(f"task {name} has two owners: {before['owner']} held it when {value['owner']} took it")
        if taken and before.get("last_owner") is not None:
            self._world.happened("a task was taken over")
        if state == task.DONE:
            self._world.happened("a task was done")

    def _is_gone(self, process: str) -> bool:
        return self._world.is_alive(process) is False

    # Sessions

    def _member_written(self, process: Process, name: str, value: object) -> None:
        if isinstance(value, dict):
            self._standing[name] = value
            self._world.tell(process, f"is {'blocked' if value['blocked'] else 'not blocked'} in its session")
        else:
            self._standing.pop(name, None)

    def _judge_acts(self, process: Process, channel: str) -> None:
        """A process sent or took mail of a session: its cell must not say that it is blocked."""
        if channel.startswith(_SESSION):
            mine = self.standings(process, channel.removeprefix(_SESSION).partition("/")[0])
            if mine and all(standing["blocked"] for standing in mine):
                raise Broken(f"{process!r} acts in a session, and its cell says that it is blocked")

    def standings(self, process: Process, session: str = "") -> list[dict[str, Any]]:
        """What the cells say of a process as a member of sessions, or of that one."""
        beginning = _MEMBER + session
        return [s for name, s in self._standing.items() if s["process"] == process.name and name.startswith(beginning)]

    def is_member(self, session: str, process: Process) -> None:
        """A process has become a member of a session, and acts."""
        self._members.setdefault(session, {})[process] = ACTS

    def leaves(self, session: str, process: Process) -> None:
        """It is about to leave."""
        self._members[session].pop(process, None)

    @contextmanager
    def waits_for(self, session: str, process: Process, box: str | None) -> Iterator[None]:
        """It waits for this mailbox for ever; with None, for a while."""
        self._members[session][process] = ACTS if box is None else channel_of(session, box)
        yield
        self._members[session][process] = ACTS

    def _session_written(self, process: Process, name: str, value: dict[str, Any]) -> None:
        failure = value["failure"]
        if failure is not None or value["ended_ms"] is not None:
            self.over.add(_session_of(name))
        before = self._failures.get(name)
        if before is not None and failure != before:
            raise Broken(f"a session failed twice: {before['message']}; and then: {failure and failure['message']}")
        if failure is None or before is not None:
            return
        self._failures[name] = failure
        self._world.tell(process, f"writes that the session failed: {failure['kind'] or failure['message']}")
        self._world.happened("a session failed")
        if failure["kind"] == DEADLOCK:
            self._world.happened("a deadlock was found")
            self._judge_deadlock(_session_of(name))

    def _judge_deadlock(self, session: str) -> None:
        waits = {member: box for member, box in self._members.get(session, {}).items() if member.alive}
        for member, box in waits.items():
            if box == ACTS:
                raise Broken(f"a false alarm: {member!r} can act, and a deadlock was found")
            if any(seen.draft.channel == box and seen.final is None for seen in self.seen.values()):
                raise Broken(f"a false alarm: there is mail for {member!r}, and a deadlock was found")

    # The end

    def nothing_is_held_by_the_dead(self, store: Store) -> None:
        """What dead processes held was to be had at once, without waiting for any lease."""
        for id, seen in self.seen.items():
            if seen.held and seen.holder is not None and not seen.holder.alive:
                message = store.get(id)
                if message is not None and message.exact_state in (State.CLAIMED, State.AWAITED):
                    raise Broken(f"{seen.label} is still held by {seen.holder!r}, which is dead")
        for name, value in self.tasks.items():
            if value["state"] == task.CLAIMED and value["process"] is not None and self._is_gone(value["process"]):
                raise Broken(f"task {name} is still held by {value['owner']}, whose process is dead")

    def has_open(self) -> bool:
        """Whether there are messages of which nobody has said a last word."""
        return any(seen.final is None for seen in self.seen.values())

    def at_the_end(self, store: Store) -> None:
        """Faults have stopped, time has passed, and what was left was received: nothing may be open."""
        now_ms = self._now_ms()
        for id, seen in self.seen.items():
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
                elif seen.draft.channel.startswith(_SESSION):
                    continue  # what nobody took ends with its session
                elif too_old:
                    self._world.happened("a message expired")
                else:
                    raise Broken(f"{seen.label} is {state.name.lower()} at the end, and nobody can have it")


def _line(seen: Seen) -> tuple[object, ...]:
    draft = seen.draft
    return draft.from_agent, seen.to_agent, draft.channel, draft.priority


def _session_of(cell: str) -> str:
    return cell.removeprefix(_SESSION).partition("/")[0]
