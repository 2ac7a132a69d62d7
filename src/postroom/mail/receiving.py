"""Prefetch: messages that a loop has claimed and not yet come to."""

from __future__ import annotations

from collections import deque
from typing import Final, Self

import msgspec

from postroom.stores.contract import Delivery, Want

from .gateway import Gateway
from .received import ACKED, Received

#: No loop claims more in one step: others wait for the write lock meanwhile.
MAX_PREFETCH: Final = 1000


class Prefetcher:
    """Settles one message and claims the next, or several at once; at its end, gives back what nobody saw."""

    def __init__(self, gateway: Gateway, want: Want, prefetch: int) -> None:
        self._gateway = gateway
        self._want = msgspec.structs.replace(want, limit=prefetch)
        self._waiting: deque[Delivery] = deque()
        self._claimed_ns = 0
        #: Whether `after` looked for the next message when it returned None.
        self.looked = False

    def after(self, message: Received) -> Delivery | None:
        """Ack the message unless it was settled, and return the next one; None when there is none to have just now."""
        while self._waiting:
            message.conclude(ACKED)
            delivery = self._next()
            if self._still_ours(delivery):
                return delivery
        if message.settled is not None and self._want.limit == 1:
            self.looked = False  # there is nothing to be done in one step: the caller will look, and wait
            return None
        claimed, self.looked = message.conclude(ACKED, claim_next=self._want).claimed, True
        if claimed is None or not claimed.deliveries:
            return None
        self._claimed_ns = self._gateway.clock.steady_ns()
        self._waiting.extend(claimed.deliveries)
        self._gateway.unseen.update(delivery.ticket for delivery in claimed.deliveries)
        return self._next()

    def _next(self) -> Delivery:
        delivery = self._waiting.popleft()
        self._gateway.unseen.discard(delivery.ticket)
        return delivery

    def _still_ours(self, delivery: Delivery) -> bool:
        """Whether nobody else has it. One whose lease ended while it waited its turn gets a new one."""
        waited_s = (self._gateway.clock.steady_ns() - self._claimed_ns) / 1e9
        if waited_s < self._want.lease_s:
            return True
        return self._gateway.store.extend(delivery.ticket, self._want.lease_s)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        while self._waiting:
            Received(self._gateway, self._next(), self._want.lease_s).return_unseen()
