"""A signal at a certain step of a call: Ctrl-C, or one whose handler does something."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable
from itertools import count
from types import FrameType
from typing import Any


def control_c() -> None:
    """What Python's own handler does."""
    raise KeyboardInterrupt


def interrupted_at(
    step: int, call: Callable[[], Any], within: str | tuple[str, ...] = "", handler: Callable[[], object] = control_c
) -> bool:
    """Make a call, and let a signal come at that step of it, with that handler. False when the call was over before.

    Steps are the moments at which Python looks for signals: as a function begins, and after one that is written in C. With
    `within` only those count that happen in files of that folder.
    """
    steps = count()
    came = False

    def count_steps(frame: FrameType, event: str, detail: Any) -> None:
        if event not in ("call", "c_return") or getattr(detail, "__name__", "") == "__enter__":
            return  # whoever has entered a `with` leaves it: Python does not look between
        nonlocal came
        if frame.f_code.co_filename.startswith(within) and next(steps) == step:
            came = True
            handler()

    gc.disable()  # what is collected meanwhile is no part of the call
    sys.setprofile(count_steps)
    try:
        call()
    except KeyboardInterrupt:
        pass
    finally:
        sys.setprofile(None)
        gc.enable()
    return came
