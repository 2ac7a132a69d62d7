"""Layouts of rooms on a disk: the words where one cannot be read, and the names of the copies that upgrades keep.

Each store has a list of steps, one for each layout up to the last but one, that leads to the next (`upgrade.py` there).
"""

from __future__ import annotations

import os
from itertools import chain, count
from pathlib import Path

from postroom.errors import RoomDamaged, RoomError, RoomGone


def check_layout(what: Path, layout: int, oldest: int, newest: int) -> None:
    """Raise RoomDamaged unless this program reads that layout, or can upgrade it."""
    if layout > newest:
        raise RoomDamaged(
            f"{what} has layout {layout}, and this Postroom reads layouts up to {newest}; it was made or upgraded by a "
            "newer Postroom: upgrade this one"
        )
    if layout < oldest:
        raise RoomDamaged(
            f"{what} has layout {layout}, and this Postroom reads layouts {oldest} to {newest}; it is too old: "
            f"open it first with a Postroom that upgrades layout {layout}"
        )


def upgraded(what: Path, layout: int, newest: int) -> RoomGone:
    """The error for a program that had the room open when a newer one upgraded it."""
    return RoomGone(
        f"{what} was upgraded to layout {layout} while the room was open here, and this program reads layouts up to "
        f"{newest}; nothing was changed: restart this program with the newer Postroom"
    )


def not_upgraded(what: Path, layout: int, newest: int, why: RoomError) -> RoomError:
    """The error for a room that is as it was, because its upgrade failed."""
    return type(why)(f"{what} has layout {layout} and must be upgraded to layout {newest} to be used: {why}")


def free_copy(path: Path, layout: int) -> Path:
    """A name that nothing has yet, for the copy of what lies at that path."""
    first = path.with_name(f"{path.name}.layout-{layout}.bak")
    names = chain([first], (Path(f"{first}.{number}") for number in count(2)))
    return next(name for name in names if not os.path.lexists(name))


def copies(path: Path) -> list[str]:
    """The names of the copies that were kept of what lies at that path, the oldest layout first."""
    return sorted(found.name for found in path.parent.glob(f"{path.name}.layout-*.bak*"))
