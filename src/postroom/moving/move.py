"""Moving a room to another store: freeze, copy, check, hand over. A kill at any step leaves one room to be used.

1. The old room is marked: programs that open it, or have it open, are told within seconds that it is being moved.
2. The new room is marked as not whole, and filled: messages under their ids, in their order, with ledgers and tokens.
3. When nothing has changed in the old room since the copy began, it is marked as moved, for good.
4. The mark of the new room goes.

A move that was killed before step 3 leaves the old room usable, because the mark of a dead process does not count, and
the new one marked; after step 3 the new room is whole. Run again, the move goes on where it was: what the new room has
already is not written again, unless the old room was used in between; then the new one is emptied first.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, NamedTuple

from postroom.core.clock import SYSTEM
from postroom.core.crashpoints import reached
from postroom.errors import RoomBusy, RoomError, RoomMoved
from postroom.mail import moved
from postroom.mail.gateway import LOOK_S
from postroom.stores.contract import Query, Store

from .dump import Told, is_content, parts_of
from .filling import Filling, check_fillable
from .rest import MOVED

#: Programs that have the old room open look at its mark this often; their steps under way are over by then, too.
SETTLE_S: Final = 2 * LOOK_S
_MANY: Final = 1_000_000


class End(NamedTuple):
    """One end of a move: the store, its folder where it has one, and its address as people write it."""

    store: Store
    folder: Path | None
    address: str


class Moved(NamedTuple):
    """What a move did: how many of each kind are in the new room, and how many files had no place there."""

    counts: dict[str, int]
    left_out: int
    resumed: bool


def move(old: End, new: End, told: Told, settle: Callable[[float], object] = SYSTEM.sleep) -> Moved:
    """Move a room. The caller has opened both stores, and nothing else uses the new one.

    After: the new room holds everything, and the old one, which is left as it is, says where it went. If it raised:
    the old room can be used, or (when it was interrupted at the very end) the new one; the same move again finishes it.
    """
    mark, filling = moved.read(old.store), moved.read(new.store)
    if mark is not None and mark["is"] == moved.FILLING:
        raise RoomMoved(f"{old.address} is itself being filled by a move from {mark['other']}; finish that first")
    if mark is not None and mark["is"] == moved.MOVED:
        return _finish(old, new, mark, filling)
    if filling is None:
        check_fillable(
            new.store, new.address, used=False, needs_ways="move into a new room, or `postroom import` into it"
        )
    elif filling["is"] != moved.FILLING or filling["other"] != old.address:
        raise RoomError(f"{new.address} belongs to a move of {filling['other']}; nothing was changed")
    if mark is not None and old.store.process_alive(str(mark["process"])) and mark["process"] != old.store.process:
        raise RoomBusy(f"another process is moving {old.address} to {mark['other']} just now")
    old.store.sweep()
    old.store.cell_write(moved.CELL, moved.mark(moved.MOVING, new.address, old.store.process))
    try:
        reached("moving.marked")
        if _may_be_open(old.store):
            settle(SETTLE_S)
        return _copy(old, new, filling, told)
    except BaseException:
        if (moved.read(old.store) or {}).get("is") == moved.MOVING:
            old.store.cell_write(moved.CELL, None)
        raise


def _may_be_open(store: Store) -> bool:
    """Whether another process may have the room open; a store that cannot tell says that it may."""
    can_tell = not store.shared or type(store).open_elsewhere is not Store.open_elsewhere
    return store.open_elsewhere() if can_tell else True


def _copy(old: End, new: End, filling: dict[str, Any] | None, told: Told) -> Moved:
    state = state_of(old.store)
    resumed = filling is not None
    if filling is not None and is_changed(old.store, filling.get("state")):
        _empty(new.store)  # the old room was used since the copy began
    check_fillable(new.store, new.address, used=True, needs_ways="")
    new.store.cell_write(moved.CELL, moved.mark(moved.FILLING, old.address, new.store.process, state=state))
    reached("moving.begun")
    copy = Filling(new.store, new.folder, MOVED, told)
    copy.add_all(parts_of(old.store, old.folder))
    reached("moving.copied")
    if is_changed(old.store, state):
        raise RoomBusy(
            f"{old.address} was changed while it was copied, by a program that has it open; stop that program and move again"
        )
    old.store.cell_write(moved.CELL, moved.mark(moved.MOVED, new.address, old.store.process))
    reached("moving.handed")
    new.store.cell_write(moved.CELL, None)
    return Moved(copy.counts, copy.left_out, resumed)


def _finish(old: End, new: End, mark: dict[str, Any], filling: dict[str, Any] | None) -> Moved:
    """The old room says that it was moved: only the new one's mark may be left."""
    if mark["other"] != new.address:
        raise RoomMoved(f"{old.address} was moved to {mark['other']}; move that room instead", str(mark["other"]))
    if filling is not None and filling["is"] == moved.FILLING and filling["other"] == old.address:
        new.store.cell_write(moved.CELL, None)
    return Moved({"messages": new.store.count(Query())}, 0, resumed=True)


def state_of(store: Store) -> list[int]:
    """By what `is_changed` knows whether a room has changed: the feed's number, the versions of cells, subscriptions."""
    cells = sum(cell.version for cell in store.cell_scan("") if is_content(cell.name))
    return [store.number_at(), cells, len(store.subscriptions())]


def is_changed(store: Store, state: Any) -> bool:
    """Whether anything in a room has changed since.

    By the feed, not by its number alone: housekeeping on NATS puts finished messages away, which is no change.
    """
    match state:
        case [int(number), *rest]:
            return rest != state_of(store)[1:] or bool(store.events(number, 1))
        case _:
            return True


def _empty(store: Store) -> None:
    """Take everything out of a room that a move has begun to fill."""
    while store.purge(Query(limit=_MANY)):
        pass
    for subscription in store.subscriptions():
        store.unsubscribe(subscription.channel, subscription.agent)
    for cell in store.cell_scan(""):
        if cell.name != moved.CELL:
            store.cell_write(cell.name, None)
