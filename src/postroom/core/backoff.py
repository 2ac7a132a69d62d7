"""Exponential backoff with jitter: how long to wait before a failed message is delivered again. Pure."""

from __future__ import annotations

from typing import Final

#: The first delay, in seconds; each further one is twice as long.
BASE_S: Final = 1.0
#: No delay is longer than this.
CAP_S: Final = 300.0


def backoff_s(deliveries: int, chance: float, base_s: float = BASE_S, cap_s: float = CAP_S) -> float:
    """The delay after that many deliveries: doubling, capped, and jittered so that failures do not return in step.

    `chance` is a number from 0 to 1; the result lies between half the full delay and the full delay.
    """
    full = min(cap_s, base_s * 2.0 ** min(max(0, deliveries - 1), 60))
    return full * (0.5 + chance / 2)
