"""The receive loop: look, wait for a hint, look again."""

from __future__ import annotations

from typing import Final, Self

from postroom.errors import RoomClosed
from postroom.stores.contract import Delivery, Waiter, Want, topic_channel, topic_to

from .gateway import Deadline, Gateway, Latch, Pause, Steps

#: A store that says "something is due now" is asked again no sooner than this, in seconds.
SHORTEST_WAIT_S: Final = 0.001


def topics_of(want: Want) -> list[str]:
    """The topics that a receiver with this want must listen to."""
    return [topic_to(want.agent), *(topic_channel(channel) for channel in want.channels or ())]


class Inbox:
    """Where one receiver takes its messages from, one at a time.

    The waiter is made when there is nothing to take, and kept between messages only where every waiter hears of a
    message. In a channel only one is woken: if that one is busy, nobody comes.
    """

    def __init__(self, gateway: Gateway, want: Want, *, arm_first: bool = False) -> None:
        self.want = want
        #: Whether there was nothing to take at first. A receiver that had to wait will mostly have to wait again, and
        #: does well to arm first (`arm_first`): then it looks once before it waits, and not twice.
        self.waited = arm_first
        self._gateway = gateway
        self._waiter: Waiter | None = None

    def next(self, timeout_s: float | None, stop: Latch | None = None) -> Delivery | None:
        """Claim the next message, waiting for it; see `steps`."""
        return self._gateway.finish(self.steps(timeout_s, stop))

    def steps(
        self, timeout_s: float | None, stop: Latch | None = None, *, arm_first: bool = False
    ) -> Steps[Delivery | None]:
        """Claim the next message, pausing until it is there; None when none came in time, or when `stop` was set.

        Arms before it looks, so that no message is missed between looking and waiting. An interrupt while it waits
        leaves nothing claimed. `arm_first` is for callers that expect nothing: they have just looked.
        """
        deadline = Deadline(self._gateway.clock, timeout_s)
        if self._waiter is None and (self.waited or arm_first):
            self._arm()
        self.waited = False
        while not (stop is not None and stop.is_set()):
            if self._gateway.closing:
                raise RoomClosed("this room is closed")
            claimed = self._gateway.claim(self.want)
            if claimed.deliveries:
                self._rest()
                return claimed.deliveries[0]
            left_s = deadline.left_s()
            if left_s == 0:
                return None
            self.waited = True
            if self._waiter is None:
                self._arm()
            else:
                yield Pause(self._waiter, soonest(claimed.next_due_s, left_s), stop)
        return None

    def _arm(self) -> None:
        self._waiter = self._gateway.listen(topics_of(self.want))

    def _rest(self) -> None:
        if self.want.channels is not None:
            self.close()

    def close(self) -> None:
        """Stop listening."""
        waiter, self._waiter = self._waiter, None
        if waiter is not None:
            waiter.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def soonest(next_due_s: float | None, *spans_s: float | None) -> float | None:
    """The shortest of these spans, None when there is none.

    A store that says "due now" is asked again a little later.
    """
    spans = [span_s for span_s in spans_s if span_s is not None]
    if next_due_s is not None:
        spans.append(max(next_due_s, SHORTEST_WAIT_S))
    return min(spans, default=None)
