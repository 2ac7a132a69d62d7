"""Prefetch: messages that a loop has claimed and not yet come to."""

from __future__ import annotations

from collections import deque
from typing import Final, Self
from weakref import ref

import msgspec

from postroom.stores.contract import Delivery, Want

from .gateway import Gateway
from .leases import Terms
from .received import ACKED, Received

#: No loop claims more in one step: others wait for the write lock meanwhile.
MAX_PREFETCH: Final = 1000


class Prefetcher:
    """Settles one message and claims the next, or several at once; at its end, gives back what nobody saw.

    The loop holds what it has not come to, for as long as it comes round within `max_hold_s`.
    """

    def __init__(self, gateway: Gateway, want: Want, terms: Terms, prefetch: int) -> None:
        self._gateway = gateway
        #: How it holds what it has not come to, when that was claimed, and when the loop last came round.
        self.terms = terms
        self.claimed_ns = self.since_ns = 0
        self._want = msgspec.structs.replace(want, limit=prefetch)
        self._waiting: deque[Delivery] = deque()
        #: Whether `after` looked for the next message when it returned None.
        self.looked = False

    def after(self, message: Received) -> Delivery | None:
        """Ack the message unless it was settled, and return the next one; None when there is none to have just now."""
        was_open = message.settled is None
        if self._waiting:
            message.conclude(ACKED)
            if was_open and not message.settled and message.was_late():
                message.tell_late()
            self._gateway.check_open()  # what waited here is given back when the room closes
            self.since_ns = self._gateway.now_ns
            while self._waiting:
                delivery = self._next()
                if self._still_ours(delivery):
                    return delivery
            was_open = False
        if message.settled is not None and self._want.limit == 1:
            self.looked = False  # there is nothing to be done in one step: the caller will look, and wait
            return None
        claimed, self.looked = message.conclude(ACKED, claim_next=self._want).claimed, True
        if claimed is not None and claimed.deliveries:
            self._hold(claimed.deliveries)
        if was_open and not message.settled and message.was_late():
            message.tell_late()  # when it raises, what was claimed goes back
        return self._next() if self._waiting else None

    def _hold(self, deliveries: list[Delivery]) -> None:
        self.claimed_ns = self.since_ns = self._gateway.now_ns
        self._waiting.extend(deliveries)
        self._gateway.unseen.update(delivery.ticket for delivery in deliveries)
        if len(deliveries) > 1 and self.terms.hold_ns:
            leases = self._gateway.leases
            leases.held.update(dict.fromkeys((delivery.ticket for delivery in deliveries), ref(self)))
            if self.terms.lease_s < leases.short_s:
                leases.in_time(self.terms.lease_s)

    def _next(self) -> Delivery:
        delivery = self._waiting.popleft()
        self._gateway.unseen.discard(delivery.ticket)
        return delivery

    def _still_ours(self, delivery: Delivery) -> bool:
        """Whether nobody else has it. One whose lease ended while it waited its turn gets a new one."""
        leased_ns = self._gateway.leases.leased_ns(delivery.ticket, self.claimed_ns)
        if self.since_ns - leased_ns < self.terms.lease_ns:
            return True
        return not self._gateway.store.heartbeat([delivery.ticket], self.terms.lease_s)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        while self._waiting:
            Received(self._gateway, self._next(), self.terms).return_unseen()
