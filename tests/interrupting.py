"""Ctrl-C at a certain step of a call."""

from __future__ import annotations

import sys
from collections.abc import Callable
from itertools import count
from types import FrameType
from typing import Any


def interrupted_at(step: int, call: Callable[[], Any], within: str = "") -> bool:
    """Make a call, and let Ctrl-C come at that step of it. False when the call was over before.

    Steps are the moments at which Python looks for signals: as a function begins, and after one that is written in C. With
    `within` only those count that happen in files of that folder.
    """
    steps = count()

    def count_steps(frame: FrameType, event: str, detail: Any) -> None:
        if event not in ("call", "c_return") or getattr(detail, "__name__", "") == "__enter__":
            return  # whoever has entered a `with` leaves it: Python does not look between
        if frame.f_code.co_filename.startswith(within) and next(steps) == step:
            raise KeyboardInterrupt

    sys.setprofile(count_steps)
    try:
        call()
    except KeyboardInterrupt:
        return True
    finally:
        sys.setprofile(None)
    return False
