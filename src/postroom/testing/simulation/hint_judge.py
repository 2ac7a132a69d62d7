"""The judge of hints: what may be taken has rung those that wait for it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from postroom.core.message import Draft
from postroom.stores.contract import topic_channel, topic_to

from .broken import Broken
from .process import Around, Hinted, Process

if TYPE_CHECKING:
    from .judges import ScheduleJudge


class HintJudge:
    """Looks at the waiters of all processes where a message is made ready, and where one of them waits or leaves."""

    def __init__(self, world: Around, judge: ScheduleJudge) -> None:
        self._world = world
        self._judge = judge
        #: Whether a message that is made ready rings at once, before the step is over.
        self.rings_at_once = True

    def judge_ready(self, draft: Draft) -> None:
        """A message was just made ready, and no hint has been taken away yet: all that wait for it have one.

        Of those that wait at a channel, one has.
        """
        if not self.rings_at_once or self._judge.at_ms is not None:  # a sender that died did not ring
            return
        topic = topic_channel(draft.channel) if draft.to_agent is None else topic_to(draft.to_agent)
        hints = [waiter.has_hint() for waiter in self._world.processes.waiters() if topic in waiter.topics]
        if hints and not (any(hints) if draft.to_agent is None else all(hints)):
            raise Broken(f"there is a message for {draft.to_agent or draft.channel}, and its receiver got no hint")

    def judge_waiting(self, channel: str | None = None) -> None:
        """The limits were changed, or something ended in a channel that has some: receivers of what waits look again."""
        now_ms = self._judge.now_ms()
        for seen in self._judge.seen.values():
            if (
                seen.is_fresh(now_ms)
                and not self._judge.orders.is_behind(seen)
                and channel in (None, seen.draft.channel)
            ):
                self.judge_ready(seen.draft)

    def waits_unseen(self, process: Process, waiter: Hinted) -> None:
        """A process waits: what came before it listened, it must have looked for since."""
        if process.claimed_at > waiter.armed_at or process.last_want is None:
            return
        channels = process.last_want.channels
        for seen in self._judge.seen.values():
            if (
                seen.claims
                or seen.final is not None
                or seen.put_at >= waiter.armed_at
                or not self._judge.is_ready(seen)
            ):
                continue
            mine = seen.to_agent == process.last_want.agent
            if (mine and channels is None) or (channels and seen.draft.channel in channels and seen.to_agent is None):
                topic = topic_to(seen.to_agent) if seen.to_agent else topic_channel(seen.draft.channel)
                if topic in waiter.topics and not waiter.has_hint():
                    raise Broken(f"{process!r} waits, and has not looked for {seen.label}, which was there before")

    def hinted_alone(self, topic: str, before: dict[Hinted, bool]) -> None:
        """A message came to a channel: the waiters that have a hint by it have it for all others."""
        for waiter in self._world.processes.waiters():
            if topic in waiter.topics and not before.get(waiter, False) and waiter.is_rung():
                waiter.alone_for.add(topic)

    def left_with_a_hint(self, waiter: Hinted) -> None:
        """A waiter has left without taking a hint that it alone had: somebody else that waits has it now."""
        for topic in waiter.alone_for:
            others = [
                other for other in self._world.processes.waiters() if topic in other.topics and other is not waiter
            ]
            if others and not any(other.has_hint() for other in others):
                raise Broken(f"a hint at {topic} is lost with the waiter that left, and others wait there")
