"""Limits: a token bucket and a circuit breaker inside one process, and a rate per sender that all processes share.

All of them count in the clock's steady time: a wall clock that is set forward gives nobody tokens, and one that is set
back locks nobody out (tests/test_limits.py).
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable
from enum import Enum
from typing import Any, Final, ParamSpec, TypeVar

from .clock import SYSTEM, Clock
from .errors import CircuitOpen, RateLimited, RoomBusy
from .store import Store

P = ParamSpec("P")
T = TypeVar("T")

SECOND_NS: Final = 1_000_000_000


class TokenBucket:
    """Lets `capacity` things happen at once and `refill_rate` per second after that. Shared by threads."""

    def __init__(self, capacity: float, refill_rate: float, *, clock: Clock = SYSTEM) -> None:
        if not capacity > 0:
            raise ValueError(f"capacity must be more than 0, not {capacity!r}")
        if not refill_rate >= 0:
            raise ValueError(f"refill_rate must be 0 or more tokens per second, not {refill_rate!r}")
        self.capacity = capacity
        self.refill_rate = refill_rate
        self._clock = clock
        self._lock = threading.Lock()
        # Below zero while somebody sleeps for tokens it has already taken: those who come later queue behind it.
        self._level: float = capacity
        self._refilled_ns = clock.steady_ns()

    @property
    def tokens(self) -> float:
        """How many tokens `consume` could take at this moment."""
        with self._lock:
            return max(0, self._refill())

    @tokens.setter
    def tokens(self, value: float) -> None:
        with self._lock:
            self._refill()
            self._level = min(self.capacity, value)

    def consume(self, tokens: float = 1) -> bool:
        """Take tokens if they are there. Returns whether they were; False takes nothing."""
        _check_tokens(tokens)
        with self._lock:
            if self._refill() < tokens:
                return False
            self._level -= tokens
            return True

    def wait_for_token(self, tokens: float = 1, timeout: float = 10.0) -> bool:
        """Take tokens, sleeping exactly until they are there; the first to wait is the first to get them.

        False takes nothing: at once when the bucket can never hold so many, otherwise after `timeout` seconds.
        """
        _check_tokens(tokens)
        if tokens > self.capacity:
            return False
        with self._lock:
            wait_s = self._seconds_until(tokens)
            taken = wait_s <= max(0, timeout)
            if taken:
                self._level -= tokens
        try:
            self._clock.sleep(max(0, min(wait_s, timeout)))
        except BaseException:  # interrupted: what was taken ahead of time goes back
            if taken:
                self._give_back(tokens)
            raise
        return taken

    def _seconds_until(self, tokens: float) -> float:
        missing = tokens - self._refill()
        if missing <= 0:
            return 0
        return missing / self.refill_rate if self.refill_rate else math.inf

    def _refill(self) -> float:
        """Add what has dripped in since the last look. Call it with the lock held; returns the level."""
        now_ns = self._clock.steady_ns()
        elapsed_s = (now_ns - self._refilled_ns) / SECOND_NS
        self._level = min(self.capacity, self._level + elapsed_s * self.refill_rate)
        self._refilled_ns = now_ns
        return self._level

    def _give_back(self, tokens: float) -> None:
        with self._lock:
            self._level = min(self.capacity, self._refill() + tokens)


def _check_tokens(tokens: float) -> None:
    if not tokens >= 0:
        raise ValueError(f"tokens must be 0 or more, not {tokens!r}")


class CircuitState(Enum):
    """Whether calls pass: all of them, none, or one to try."""

    CLOSED = "closed"
    OPEN = "open"
    HALF_OPEN = "half_open"


class CircuitBreaker:
    """Stops calling what keeps failing. Shared by threads.

    After `failure_threshold` failures in a row the circuit is open, and `call` raises CircuitOpen without calling.
    After `timeout` seconds one call is let through to try: its success closes the circuit, its failure opens it for
    another `timeout`. The function itself runs without any lock held.
    """

    def __init__(self, failure_threshold: int = 5, timeout: float = 60, *, clock: Clock = SYSTEM) -> None:
        if failure_threshold < 1:
            raise ValueError(f"failure_threshold must be 1 or more, not {failure_threshold!r}")
        if not timeout >= 0:
            raise ValueError(f"timeout must be 0 or more seconds, not {timeout!r}")
        self.failure_threshold = failure_threshold
        self.timeout = timeout
        self.failures = 0
        #: When a call failed last, in seconds of the wall clock, for people to read; None when none has.
        self.last_failure_time: float | None = None
        self.state = CircuitState.CLOSED
        self._clock = clock
        self._lock = threading.Lock()
        self._failed_ns = 0
        # Grows whenever the state changes, so that a call which began before the change has no say after it.
        self._round = 0

    def call(self, func: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        """Call the function and return what it returns, or raise what it raises; CircuitOpen when it was not called.

        Only an `Exception` counts as a failure: Ctrl-C during the trying call leaves the next caller to try.
        """
        admitted = self._admit(func)
        try:
            result = func(*args, **kwargs)
        except Exception:
            self._failed(admitted)
            raise
        except BaseException:
            self._interrupted(admitted)
            raise
        self._succeeded(admitted)
        return result

    def _admit(self, func: Callable[..., Any]) -> int:
        """The round in which the call is made; raises CircuitOpen when it must not be."""
        with self._lock:
            if self.state is CircuitState.CLOSED:
                return self._round
            rested_s = (self._clock.steady_ns() - self._failed_ns) / SECOND_NS
            if self.state is CircuitState.HALF_OPEN or rested_s < self.timeout:
                raise CircuitOpen(f"Circuit breaker OPEN for {getattr(func, '__name__', repr(func))}")
            return self._turn(CircuitState.HALF_OPEN)

    def _succeeded(self, admitted: int) -> None:
        with self._lock:
            if admitted != self._round:
                return
            self.failures = 0
            if self.state is CircuitState.HALF_OPEN:
                self._turn(CircuitState.CLOSED)

    def _failed(self, admitted: int) -> None:
        with self._lock:
            if admitted != self._round:
                return
            self.failures += 1
            self.last_failure_time = self._clock.wall_ms() / 1000
            self._failed_ns = self._clock.steady_ns()
            if self.state is CircuitState.HALF_OPEN or self.failures >= self.failure_threshold:
                self._turn(CircuitState.OPEN)

    def _interrupted(self, admitted: int) -> None:
        with self._lock:
            if admitted == self._round and self.state is CircuitState.HALF_OPEN:
                self._turn(CircuitState.OPEN)  # it has rested long enough already: the next call tries

    def _turn(self, state: CircuitState) -> int:
        self.state = state
        self._round += 1
        return self._round


class SenderLimit:
    """A rate per sender, or per sender and recipient, that holds over all processes of a room.

    Each sender (or pair) has a bucket of `burst` tokens (None: a second's worth) that refills at `rate_per_s`. It is kept in the
    cell "limit/<sender>" as one number, the moment at which it will be full again, and changed by compare-and-set.
    A restart of the machine fills every bucket.
    """

    #: So many others may change a sender's bucket at the same moment before a send gives up.
    MAX_TRIES: Final = 200

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
        for _ in range(self.MAX_TRIES):
            cell = self._store.cell_read(name)
            value = self._after(who, count, None if cell is None else cell.value)
            if self._store.cell_write(name, value, expect=0 if cell is None else cell.version) is not None:
                return
        raise RoomBusy(f"too many processes send as {sender} at the same moment; try again")

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
