"""The judge of limits and pauses: counts what is claimed, and when, beside the room; the product's gates are not asked."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Final

from postroom.core.message import Draft
from postroom.stores.contract import Want

from .broken import Broken
from .process import Around, Process
from .seen import Seen

#: Senders of other processes may go by older limits for so long.
_LEARNT_MS: Final = 2000
#: Buckets are counted in fractions of milliseconds.
_ROUNDING: Final = 1e-6

Rule = dict[str, Any]
#: Channel, what its messages are told apart by, so many a second, burst, and the group.
_Bucket = tuple[str, str | None, float, int, str]


class LimitJudge:
    """Sees every write of the limits, and every claim, extension and send under them."""

    def __init__(self, world: Around, all_seen: Callable[[], Iterable[Seen]]) -> None:
        self._world = world
        self._all_seen = all_seen
        self._channels: dict[str, Any] = {}
        self._agents: dict[str, Any] = {}
        self._since_ms = 0
        #: Claimers of other processes may go by older limits for so long: on servers, hints get lost.
        self.learnt_ms = 0
        #: When messages were claimed under each rate, since that stands there.
        self._taken: dict[_Bucket, list[int]] = {}
        self._taken_now: list[Seen] = []
        self._rate_since_ms: dict[tuple[str, str | None, float, int], int] = {}

    def __bool__(self) -> bool:
        """Whether there are limits or pauses."""
        return bool(self._channels or self._agents)

    def limits(self, channel: str) -> bool:
        """Whether a channel has limits of its own."""
        return channel in self._channels

    def _are_known(self, now_ms: int) -> bool:
        """Whether every process goes by these limits."""
        return now_ms >= self._since_ms + self.learnt_ms

    # What is written

    def cell_written(self, value: Any, now_ms: int) -> None:
        """The limits are these from now on; None: there are none."""
        value = value if isinstance(value, dict) else {}
        self._channels, self._agents = value.get("channels", {}), value.get("agents", {})
        self._since_ms = now_ms
        rates = [
            (channel, rule.get("by"), rule["per_s"], rule.get("burst", 1))
            for channel in self._channels
            for rule in self._rules(channel)
            if rule.get("per_s")
        ]
        self._taken = {bucket: times for bucket, times in self._taken.items() if bucket[:4] in rates}
        self._rate_since_ms = {rate: self._rate_since_ms.get(rate, now_ms) for rate in rates}
        if any("paused" in limits for limits in self._channels.values()) or self._agents:
            self._world.happened("something was paused")

    def goes_on_from(self, value: Any, now_ms: int) -> None:
        """A power cut has left this; the buckets may be fuller than they were."""
        self._channels = {}
        self.cell_written(None, now_ms)
        self.cell_written(value, now_ms)

    def _rules(self, channel: str) -> Sequence[Rule]:
        rules: Sequence[Rule] = self._channels.get(channel, {}).get("rules", ())
        return rules

    def _rules_for(self, seen: Seen) -> Iterator[tuple[Rule, str]]:
        """The rules that a message falls under, and its group in each."""
        for rule in self._rules(seen.draft.channel):
            group = _group(seen, rule.get("by"))
            if group is not None:
                yield rule, group

    # Claims

    def claim_begins(self) -> None:
        """What is told from now on is given by one claim; also what it takes and acks in one step counts in it."""
        self._taken_now.clear()

    def claimed(self, process: Process, want: Want, seen: Seen, now_ms: int) -> None:
        """A message is claimed now. Answers wait like other mail, but for one that is held for its asker; none counts."""
        agent, channel, is_answer = want.agent, seen.draft.channel, seen.draft.answer_to is not None
        if (is_answer and want.ids is not None) or not self or not self._are_known(now_ms):
            return
        if agent in self._agents:
            raise Broken(f"{process!r} was given {seen.label}, and {agent} is paused")
        if "paused" in self._channels.get(channel, {}):
            raise Broken(f"{seen.label} was given to {process!r}, and {channel} is paused")
        self._judge_at_once(seen, now_ms)
        for rule, group in self._rules_for(seen):
            if rule.get("per_s"):
                self._judge_rate(seen, rule, group, now_ms)
        if is_answer:
            self._world.happened("an answer was ordinary mail under limits")
        else:
            self._taken_now.append(seen)

    def _judge_at_once(self, seen: Seen, now_ms: int) -> None:
        for rule, group in self._rules_for(seen):
            most = rule.get("concurrent")
            if most is None:
                continue
            others = self._group(seen, rule, group)
            running = [other.label for other in others if other.is_held(now_ms) or other in self._taken_now]
            if len(running) >= most:
                raise Broken(f"{seen.label} runs beside {', '.join(running)}, and {most} may at once")
            if len(running) == most - 1:
                self._world.happened("a limit was reached: so many at once")

    def _group(self, seen: Seen, rule: Rule, group: str) -> Iterator[Seen]:
        """The others that a rule counts together with a message."""
        by, channel = rule.get("by"), seen.draft.channel
        for other in self._all_seen():
            counts = other is not seen and other.draft.channel == channel and other.draft.answer_to is None
            if counts and _group(other, by) == group:
                yield other

    def _judge_rate(self, seen: Seen, rule: Rule, group: str, now_ms: int) -> None:
        """In no span of time that ends now are there more claims than the burst and what the rate gives meanwhile."""
        rate = _rate(seen.draft.channel, rule)
        times = [*self._taken.get((*rate, group), ()), now_ms]
        if seen.draft.answer_to is None:
            self._taken[*rate, group] = times
        _, _, per_s, burst = rate
        for place, then_ms in enumerate(times):
            count, allowed = len(times) - place, burst + per_s * (now_ms - then_ms) / 1000
            if count > allowed + _ROUNDING:
                span_s = (now_ms - then_ms) / 1000
                raise Broken(f"{seen.label} is claim {count} within {span_s:g} s, and {allowed:g} are allowed")
        if len(times) > 1 and len(times) + 1 > burst + per_s * (now_ms - times[0]) / 1000:
            self._world.happened("a limit was reached: so many a second")

    def extended(self, seen: Seen, now_ms: int) -> None:
        """A holder whose lease had ended has its message again: it runs from now on."""
        self._taken_now.clear()
        if seen.draft.answer_to is None and self._are_known(now_ms):
            self._judge_at_once(seen, now_ms)
            if self.limits(seen.draft.channel):
                self._world.happened("a late holder had its message again under a limit")

    def may_refuse(self, seen: Seen, now_ms: int) -> bool:
        """Whether a late holder may be told that no more of its channel may run."""
        if seen.is_held(now_ms) or seen.draft.answer_to is not None:
            return False
        if not self._are_known(now_ms):
            return True
        full = any(not self._has_place(seen, rule, group) for rule, group in self._rules_for(seen))
        if full:
            self._world.happened("a late holder found its place taken")
        return full

    # What must be given

    def surely_lets_pass(self, seen: Seen, agent: str, now_ms: int) -> bool:
        """Whether nothing of the limits can be in the way of a message."""
        if (
            agent in self._agents
            or "paused" in self._channels.get(seen.draft.channel, {})
            or not self._are_known(now_ms)
        ):
            return False
        return all(
            self._has_place(seen, rule, group) and self._opens_ms(seen, rule, group) <= now_ms
            for rule, group in self._rules_for(seen)
        )

    def _has_place(self, seen: Seen, rule: Rule, group: str) -> bool:
        most: int | None = rule.get("concurrent")
        if most is None:
            return True
        return sum(other.held and other.final is None for other in self._group(seen, rule, group)) < most

    def _opens_ms(self, seen: Seen, rule: Rule, group: str) -> float:
        """From when on a rate surely lets a message pass, though its bucket may have been empty when it was set."""
        if not rule.get("per_s"):
            return 0
        rate = _rate(seen.draft.channel, rule)
        _, _, per_s, burst = rate
        times = sorted([self._rate_since_ms[rate]] * burst + self._taken.get((*rate, group), []))
        late = (then_ms + (len(times) - place + 1 - burst) * 1000 / per_s for place, then_ms in enumerate(times))
        return max(late) + 1

    def opens_s(self, seen: Seen, agent: str, now_ms: int) -> float | None:
        """After how many seconds at most a claim must be told that rates let a message pass; None: nobody knows."""
        if (
            agent in self._agents
            or "paused" in self._channels.get(seen.draft.channel, {})
            or not self._are_known(now_ms)
        ):
            return None
        rules = list(self._rules_for(seen))
        if not all(self._has_place(seen, rule, group) for rule, group in rules):
            return None
        return max((self._opens_ms(seen, rule, group) - now_ms for rule, group in rules), default=0) / 1000

    def is_concurrent(self, channel: str) -> bool:
        """Whether the end of a message may let another one run."""
        return any(rule.get("concurrent") is not None for rule in self._rules(channel))

    # Full mailboxes

    def stored(self, process: Process, seen: Seen, now_ms: int) -> None:
        """A message was stored: there was room for it."""
        most = self._channels.get(seen.draft.channel, {}).get("waiting")
        draft = seen.draft
        if most is None or draft.answer_to or draft.replaces or draft.debounce or now_ms < self._since_ms + _LEARNT_MS:
            return
        waiting = sum(
            other.draft.answer_to is None and other.surely_waits(now_ms)
            for other in self._all_seen()
            if (other.to_agent, other.draft.channel) == (seen.to_agent, draft.channel)
        )
        if waiting > most:
            raise Broken(f"{process!r} stored {seen.label}, and {waiting} wait there now: {most} may")

    def refused(self, process: Process, drafts: Sequence[Draft], now_ms: int) -> None:
        """A mailbox was said to be full."""
        self._world.happened("a mailbox was full")
        self._world.tell(process, "is told that a mailbox is full")
        if now_ms < self._since_ms + _LEARNT_MS:
            return
        for draft in drafts:
            most = self._channels.get(draft.channel, {}).get("waiting")
            waiting = sum(
                other.final is None and not other.is_held(now_ms)
                for other in self._all_seen()
                if (other.to_agent, other.draft.channel) == (draft.to_agent, draft.channel)
            )
            if most is not None and waiting + len(drafts) > most:
                return
        raise Broken(f"{process!r} was told that a mailbox is full, and none of its mailboxes is")


def _rate(channel: str, rule: Rule) -> tuple[str, str | None, float, int]:
    return channel, rule.get("by"), rule["per_s"], rule.get("burst", 1)


def _group(seen: Seen, by: str | None) -> str | None:
    return "" if by is None else seen.draft.from_agent if by == "sender" else seen.draft.order_key
