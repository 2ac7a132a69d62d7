"""Waiting for peers that cannot wake another process: look, nap a millisecond, look again."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, TypeVar

from postroom.core.clock import SYSTEM

Got = TypeVar("Got")

NAP_S: Final = 0.001


def look_until(look: Callable[[], Got | None], timeout_s: float) -> Got | None:
    """What `look` finds, as soon as it finds something; None when time ran out."""
    until_ns = SYSTEM.steady_ns() + round(timeout_s * 1e9)
    while (got := look()) is None and SYSTEM.steady_ns() < until_ns:
        SYSTEM.sleep(NAP_S)
    return got
