"""Waiting, in real time, for what other threads and processes do."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

#: Enough on a machine that is busy with other things: a test that waits so long has failed.
PATIENCE_S: Final = 60.0
EVERY_S: Final = 0.002


def until(holds: Callable[[], object], otherwise: str = "it never came true", patience_s: float = PATIENCE_S) -> None:
    """Return as soon as `holds` gives something true; fail with `otherwise` where it does not in time."""
    end_s = time.monotonic() + patience_s
    while not holds():
        assert time.monotonic() < end_s, otherwise
        time.sleep(EVERY_S)
