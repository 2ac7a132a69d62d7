"""Token buckets: a rate limit per sender that all processes of a room share.

It counts in the clock's steady time: a wall clock that is set forward gives nobody tokens, and one that is set back
locks nobody out (tests/core/test_limits.py).
"""

from __future__ import annotations

import math
from functools import partial
from typing import Any

from postroom.core.clock import SYSTEM, Clock
from postroom.core.limits import SECOND_NS
from postroom.errors import RateLimited
from postroom.stores.cells import update
from postroom.stores.contract import Store


class SenderLimit:
    """A rate per sender, or per sender and recipient, that holds over all processes of a room.

    Each sender (or pair) has a bucket of `burst` tokens (None: a second's worth) that refills at `rate_per_s`. It is
    kept in the cell "limit/<sender>" as one number, the moment at which it will be full again, and changed by
    compare-and-set. A restart of the machine fills every bucket.
    """

    def __init__(self, store: Store, rate_per_s: float, burst: int | None = None, clock: Clock = SYSTEM) -> None:
        if not 0 < rate_per_s < math.inf:
            raise ValueError(f"rate_per_s must be more than 0, not {rate_per_s!r}")
        if burst is not None and burst < 1:
            raise ValueError(f"rate_burst must be 1 or more, not {burst!r}")
        self.rate_per_s = rate_per_s
        self.burst = burst if burst is not None else max(1, math.ceil(rate_per_s))
        self._store = store
        self._clock = clock
        self._token_ns = SECOND_NS / rate_per_s

    def take(self, sender: str, count: int = 1) -> None:
        """Count so many messages of the sender against its rate.

        Raises RateLimited, and counts nothing, when they are too many; `retry_after_s` says when they would pass
        (infinity when they are more than may ever come at once). Raises RoomBusy when too many others kept
        changing the same bucket; nothing is counted then either.
        """
        self._take(f"limit/{sender}", sender, f"{sender} may send", count)

    def take_pair(self, sender: str, recipient: str, count: int = 1) -> None:
        """Count so many messages of the sender against its rate to this one recipient; raises as `take` does."""
        # the length keeps "a/b" to "c" apart from "a" to "b/c"
        name = f"limit-pair/{len(sender)}/{sender}/{recipient}"
        self._take(name, sender, f"{sender} may send {recipient}", count)

    def _take(self, name: str, sender: str, who: str, count: int) -> None:
        if count > self.burst:
            raise RateLimited(
                f"{who} at most {self.burst} messages at once here, not {count}; send fewer at a time", math.inf
            )
        busy = f"too many processes are sending as {sender} at once; try again"
        update(self._store, name, partial(self._after, who, count), busy=busy)

    def _after(self, who: str, count: int, value: Any) -> dict[str, Any]:
        """What the cell must hold once the messages are counted; raises RateLimited."""
        now_ns, boot_id = self._clock.steady_ns(), self._clock.boot_id()
        room_ns = round(self.burst * self._token_ns)
        full_ns = now_ns
        if value is not None and value["boot_id"] == boot_id:
            # no emptier than empty: another process may have been opened with a larger burst or a slower rate
            full_ns = min(max(value["full_ns"], now_ns), now_ns + room_ns)
        full_ns += round(count * self._token_ns)
        early_ns = full_ns - now_ns - room_ns
        if early_ns > 0:
            retry_after_s = early_ns / SECOND_NS
            raise RateLimited(
                f"{who} {self.rate_per_s:g} messages per second here ({self.burst} at once); "
                f"try again in {retry_after_s:.3f} s",
                retry_after_s,
            )
        return {"boot_id": boot_id, "full_ns": full_ns}
