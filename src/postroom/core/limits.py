"""A token bucket and a circuit breaker, each inside one process.

Both count in the clock's steady time: a wall clock that is set forward gives nobody tokens, and one that is set
back locks nobody out (tests/core/test_limits.py).
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable
from enum import Enum
from typing import Any, Final, ParamSpec, TypeVar

from postroom.errors import CircuitOpen

from .clock import SYSTEM, Clock

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
        self.capacity = capacity  # the most tokens that there can be
        self.refill_rate = refill_rate  # tokens per second
        self._clock = clock
        #: Held by every method. Hold it yourself to look at `tokens` and set them in one step.
        self.lock = threading.RLock()
        # Below zero while a caller sleeps for tokens that it has already taken: later callers queue behind it.
        self._level: float = capacity
        self._refilled_ns = clock.steady_ns()

    @property
    def tokens(self) -> float:
        """How many tokens `consume` could take at this moment."""
        with self.lock:
            return max(0, self._refill())

    @tokens.setter
    def tokens(self, value: float) -> None:
        with self.lock:
            self._refill()
            self._level = min(self.capacity, value)

    @property
    def last_refill(self) -> float:
        """When what had dripped in was last added, in seconds of the wall clock, for people to read."""
        with self.lock:
            return self._clock.wall_ms() / 1000 - (self._clock.steady_ns() - self._refilled_ns) / SECOND_NS

    def consume(self, tokens: float = 1) -> bool:
        """Take tokens if they are there. Returns whether they were; False takes nothing."""
        _check_tokens(tokens)
        with self.lock:
            if self._refill() < tokens:
                return False
            self._level -= tokens
            return True

    def wait_for_token(self, tokens: float = 1, timeout: float = 10.0) -> bool:
        """Take tokens, sleeping exactly until they are there; the first to wait is the first to get them.

        False takes nothing: at once when the bucket can never hold that many, otherwise after `timeout` seconds.
        """
        _check_tokens(tokens)
        if tokens > self.capacity:
            return False
        with self.lock:
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
        with self.lock:
            self._level = min(self.capacity, self._refill() + tokens)


def _check_tokens(tokens: float) -> None:
    if not tokens >= 0:
        raise ValueError(f"tokens must be 0 or more, not {tokens!r}")


class CircuitState(Enum):
    """Whether calls pass: all of them, none, or one to try."""

    CLOSED = "closed"  # all calls pass
    OPEN = "open"  # none does
    HALF_OPEN = "half_open"  # one may try


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
        self.failure_threshold = failure_threshold  # this many failures in a row open it
        self.timeout = timeout  # seconds until one call may try
        self.failures = 0  # failures in a row so far
        #: When a call failed last, in seconds of the wall clock, for people to read; None when none has.
        self.last_failure_time: float | None = None
        self.state = CircuitState.CLOSED  # closed, open or half open
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
