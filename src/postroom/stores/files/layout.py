"""The layout of a files room: its folders, and `.postroom/room.json`, which says what room it is and how it is laid out."""

from __future__ import annotations

from typing import Final, TypeVar

import msgspec

from postroom.core.config import FILES_MARK, prepare_types
from postroom.core.message import SALT_BITS
from postroom.errors import RoomDamaged, RoomUnreachable
from postroom.stores import layouts

from .board import BOARD
from .intake import INBOX, OUTBOX
from .room import CHANNELS
from .tree import OWN, Tree

T = TypeVar("T")

LAYOUT: Final = 3
#: The oldest layout that can be upgraded (`upgrade.py`).
OLDEST: Final = 1
MARK: Final = f"{OWN}/{FILES_MARK}"
_MARK_BYTES: Final = 65536
#: What the names of copies that upgrades keep begin with.
COPIED: Final = f"{OWN}/room"
#: Is there once the room has had limits: a mere sender reads the log then. Never removed, for another process may be
#: setting a limit at that moment.
LIMITED: Final = f"{OWN}/limited"
#: Where messages lie that are in no inbox; what was rejected, and the whole of names that were cut.
PLACES: Final = tuple(f"{OWN}/{name}" for name in ("claimed", "later", "held", "done", "dead", "rejected", "names"))


class About(msgspec.Struct, omit_defaults=True):
    """`.postroom/room.json`: the room's number, and how its time is made of the machine's since this boot."""

    layout: int
    salt: int
    boot: str
    base_ns: int
    #: The layout of the last upgrade, which stands behind the name of the log; and the one it began from: while there is
    #: no log of that name, the upgrade is not over.
    upgraded_to: int = 0
    upgraded_from: int = 0

    def is_old(self, tree: Tree) -> bool:
        """Whether the room is to be upgraded, or an upgrade of it is to be brought to its end."""
        return self.layout < LAYOUT or (self.upgraded_from > 0 and tree.signature(self.log_path()) is None)

    def log_path(self) -> str:
        """Where the log lies. Each upgrade gives it another name: programs of the older layout find it no more."""
        return f"{OWN}/log-{self.upgraded_to}" if self.upgraded_to else f"{OWN}/log"


class _Layout(msgspec.Struct):
    """What every layout of that file says."""

    layout: int


def make_folders(tree: Tree) -> None:
    """Make what is missing of the tree."""
    for path in (f"{INBOX}/{CHANNELS}", OUTBOX, BOARD, *PLACES):
        tree.folder(path, make=True, sync=False)


def read_layout(tree: Tree) -> int:
    """The layout that a room has now."""
    return _decode(tree, tree.read(MARK, _MARK_BYTES), _Layout).layout


def read_about(tree: Tree) -> About | None:
    """What a room says of itself; None where there is none. Raises RoomDamaged for a layout that cannot be upgraded."""
    try:
        text = tree.read(MARK, _MARK_BYTES)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise _unreadable(tree, error) from error
    layout = _decode(tree, text, _Layout).layout
    if layout != LAYOUT:
        layouts.check_layout(tree.root, layout, OLDEST, LAYOUT)
    about = _decode(tree, text, About)
    if not 0 <= about.salt < 1 << SALT_BITS or abs(about.base_ns) >= 1 << 62:
        raise RoomDamaged(f"{tree.root / MARK} has numbers that no room has; another program made it")
    return about


def read_about_for_looking(tree: Tree, why: str) -> About:
    """The same, of a room that cannot be written, and why. Raises RoomUnreachable where it would have to be upgraded."""
    about = read_about(tree)
    if about is None or about.is_old(tree):
        raise RoomUnreachable(
            f"{tree.root} has an older layout than {LAYOUT}, and reading it requires an upgrade: {why}. Copy the folder to a "
            "writable disk, and read it there"
        )
    return about


def _decode(tree: Tree, text: bytes, type_: type[T]) -> T:
    try:
        return msgspec.json.decode(text, type=type_)
    except msgspec.MsgspecError as error:
        raise _unreadable(tree, error) from error


def _unreadable(tree: Tree, error: Exception) -> RoomDamaged:
    return RoomDamaged(f"{tree.root / MARK} cannot be read: {error}")


prepare_types(About, _Layout)
