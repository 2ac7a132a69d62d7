"""The mark in a room that was moved, or that a move is filling: what programs are told that open it or have it open.

The cell `room/moved` of the old room names the new address. While the move runs, the mark counts for as long as the
moving process lives: a move that was killed leaves the old room as usable as it was. In the new room it stands until
the move is over, for nobody is to use half a room.
"""

from __future__ import annotations

from typing import Any, Final

from postroom.errors import RoomMoved
from postroom.stores.contract import Store

CELL: Final = "room/moved"
#: What the mark says of the room that it stands in.
MOVING, MOVED, FILLING = "moving", "moved", "filling"
#: A longer address is not shown: a room may be written by others.
_MAX_ADDRESS: Final = 500


def mark(role: str, other: str, process: str, **more: Any) -> dict[str, Any]:
    """The mark of a room: what it is, the address of the other one, and the process that moves."""
    return {"is": role, "other": other, "process": process, **more}


def read(store: Store) -> dict[str, Any] | None:
    """The mark of a room; None where there is none."""
    cell = store.cell_read(CELL)
    return cell.value if cell is not None and isinstance(cell.value, dict) else None


def check_not_moved(store: Store) -> None:
    """Raise RoomMoved, with the address to use, when this room was moved, is being moved, or is not whole yet."""
    found = read(store)
    if found is None:
        return
    role, other = found.get("is"), str(found.get("other"))
    if not other.isprintable() or len(other) > _MAX_ADDRESS:  # somebody else's words, not a mark of ours
        other = "another address"
    if role == MOVED:
        raise RoomMoved(f"this room was moved to {other}; use that address", other, for_good=True)
    if role == FILLING:
        raise RoomMoved(
            f"this room is being filled by a move from {other}; if that was interrupted, run the same `postroom move` again",
            other,
        )
    if store.process_alive(str(found.get("process"))) is not False:
        raise RoomMoved(f"this room is being moved to {other}; wait, then use that address", other)
