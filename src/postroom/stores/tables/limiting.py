"""Limits of a room in tables: what runs and what waits in each channel, and the waiters that hear of a change."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Mapping

from postroom.core.message import Draft, decode_payload
from postroom.core.states import WITHDRAWABLE, State
from postroom.errors import MailboxFull
from postroom.stores import contract
from postroom.stores.gates import NO_LIMITS, ChannelLimits, Gates, Group, Limits, parse_limits


class TableLimits:
    """Knows, for the tables of one room, what is claimed and what waits; both follow from the rows."""

    def __init__(
        self,
        cells: Mapping[str, tuple[int, str]],
        boxes: Mapping[str | None, Mapping[str, object]],
        ring: Callable[[str], None],
        ring_one: Callable[[str], None],
    ) -> None:
        self._cells = cells
        self._boxes = boxes
        self._ring = ring
        self._ring_one = ring_one
        self._known: tuple[int, Limits] = (0, NO_LIMITS)
        #: channel -> key -> what is claimed there, without answers
        self._running: defaultdict[str, dict[int, Group]] = defaultdict(dict)
        #: (recipient or nobody, channel) -> how many messages wait there
        self._waiting: Counter[tuple[str | None, str]] = Counter()

    def clear(self) -> None:
        """Know of no rows: they are about to be told anew."""
        self._running.clear()
        self._waiting.clear()

    def add(self, key: int, draft: Draft, state: State) -> None:
        """A message has this state from now on."""
        if state is State.CLAIMED:
            if draft.answer_to is None:
                self._running[draft.channel][key] = group_of(draft)
        elif state in WITHDRAWABLE:
            self._waiting[draft.to_agent, draft.channel] += 1

    def remove(self, key: int, draft: Draft, state: State) -> None:
        """A message no longer has this state."""
        if state is State.CLAIMED:
            if draft.answer_to is None:
                del self._running[draft.channel][key]
                if not self._running[draft.channel]:  # a room of many short-lived channels must not grow
                    del self._running[draft.channel]
        elif state in WITHDRAWABLE:
            box = (draft.to_agent, draft.channel)
            self._waiting[box] -= 1
            if not self._waiting[box]:
                del self._waiting[box]

    def read(self) -> Limits:
        """The limits of the room, parsed once for each version of their cell."""
        cell = self._cells.get(contract.LIMITS)
        if cell is None:
            return NO_LIMITS
        version, text = cell
        if self._known[0] != version:
            self._known = (version, parse_limits(decode_payload(text)))
        return self._known[1]

    def of(self, channel: str) -> ChannelLimits | None:
        """The limits of one channel; None where it has none."""
        return self.read().channels.get(channel)

    def gates(self, limits: Limits, now_ms: int) -> Gates:
        """The gates as they stand at this moment."""
        return Gates(limits, now_ms, lambda channel: self._running.get(channel, {}).values(), self._bucket)

    def _bucket(self, name: str) -> object:
        return decode_payload(self._cells[name][1]) if name in self._cells else None

    def is_concurrent(self, channel: str) -> bool:
        """Whether so many messages of a channel may run at once, and no more."""
        limits = self.of(channel)
        return limits is not None and limits.is_concurrent()

    def may_run_again(self, draft: Draft, now_ms: int) -> bool:
        """Whether a late holder may have a message again whose lease has ended: not past the limits of its channel."""
        limits = self.of(draft.channel)
        if limits is None or draft.answer_to is not None:
            return True
        gates = self.gates(Limits({draft.channel: limits.only_concurrent()}), now_ms)
        return gates.lets_pass(draft.channel, group_of(draft))

    def is_full(self, draft: Draft, to_agent: str | None) -> bool:
        """Whether one more message is too many for a mailbox."""
        limits = self.of(draft.channel)
        if limits is None or limits.waiting is None or draft.answer_to is not None:
            return False
        return self._waiting[to_agent, draft.channel] >= limits.waiting

    def check_space(self, draft: Draft, to_agent: str | None) -> None:
        """Raise MailboxFull when that is so."""
        limits = self.of(draft.channel)
        if limits is not None and limits.waiting is not None and self.is_full(draft, to_agent):
            raise MailboxFull(draft.channel, to_agent, limits.waiting)

    def tell(self, channel: str, before: State, after: State | None) -> None:
        """A message has changed (None: it was deleted): wake those for whom that made space."""
        limits = self.of(channel)
        if limits is None:
            return
        if before is State.CLAIMED and after is not State.CLAIMED and limits.is_concurrent():
            self.ring_boxes(channel)
        if before in WITHDRAWABLE and after not in WITHDRAWABLE and limits.waiting is not None:
            self._ring(contract.topic_space(channel))

    def ring_boxes(self, channel: str | None = None) -> None:
        """Wake the receivers of what lies in a channel (None: in all of them), ready to be taken."""
        for agent, channels in self._boxes.items():
            for name in channels if channel is None else channels.keys() & {channel}:
                if agent is None and channel is not None:
                    self._ring_one(contract.topic_channel(name))
                elif agent is None:  # all of them: there may be many to take
                    self._ring(contract.topic_channel(name))
                else:
                    self._ring(contract.topic_to(agent))


def group_of(draft: Draft) -> Group:
    """What limits need to know of a message."""
    return Group(draft.from_agent, draft.order_key)
