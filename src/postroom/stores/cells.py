"""Compare-and-set, once for everything that changes a cell: read, work out the next value, write if nothing changed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from postroom.core import backoff
from postroom.core.clock import SYSTEM
from postroom.errors import RoomBusy

from .contract import Store

#: What `change` returns to delete the cell.
DELETE: Final = object()

#: An update gives up after losing so many races, which takes about four seconds.
TRIES: Final = 100
#: So many retries come at once: most races are lost once. The later ones come after a pause that doubles up to the cap.
_AT_ONCE: Final = 3
_PAUSE_BASE_S: Final = 0.001
_PAUSE_CAP_S: Final = 0.05


def update(store: Store, name: str, change: Callable[[Any], Any], *, busy: str | None = None) -> Any:
    """Change a cell by compare-and-set. Returns the value that stands there afterwards; None when there is no cell.

    `change` gets the value that is there, or None for no cell, and returns the next one; None to leave the cell as it
    is; DELETE to delete it. It is called again after each lost race, always with the newest value, so it must not
    change that value, nor anything else that counts; it may raise.

    After: what `change` made of the newest value is written, and no other writer's value was overwritten unseen. Where
    `change` returned None, nothing was written: the cell was as `change` saw it at one moment during the call.
    If it raised: nothing was written. RoomBusy, with the sentence `busy`, says that other writers won every race; what
    `change` raised passes through, and so does what the store raises (after OutcomeUnknown the value may be written).
    Not promised: an order among the writers; that the value still stands there when the call returns.
    """
    for lost in range(TRIES):
        if lost > _AT_ONCE:
            # in real time, also where the room's clock is a test's: the other writers are real
            SYSTEM.sleep(backoff.backoff_s(lost - _AT_ONCE, store.clock.random(), _PAUSE_BASE_S, _PAUSE_CAP_S))
        cell = store.cell_read(name)
        before, version = (None, 0) if cell is None else (cell.value, cell.version)
        after = change(before)
        if after is None:
            return before
        if after is DELETE:
            after = None
        if store.cell_write(name, after, expect=version) is not None:
            return after
    raise RoomBusy(busy or f"too many processes are changing {name} at once; try again")
