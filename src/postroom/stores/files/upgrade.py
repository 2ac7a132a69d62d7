"""Migration of a files room: one of an older layout becomes one of today's, after a copy of it was kept.

Programs of an older layout that run meanwhile must not write into the newer one. Each of their steps begins with a look
at the log, so an upgrade ends by giving the log another name: it is not there for them any more. Programs that are
started later read `room.json`, which says so first. A process that dies in between leaves a room whose log has the
older name: programs that run go on with it, and the next that opens the room ends the upgrade.
"""

from __future__ import annotations

import shutil
import stat
from collections.abc import Callable
from contextlib import suppress
from typing import Final

import msgspec

from postroom.core import crashpoints
from postroom.errors import RoomUnreachable
from postroom.stores.layouts import free_copy, not_upgraded

from .board import BOARD
from .intake import INBOX, OUTBOX
from .layout import COPIED, LAYOUT, MARK, OLDEST, PLACES, About
from .tree import OWN, TEMP, Tree

#: What leads from each layout to the next. Each may be done again, after a process that died in the middle of it.
STEPS: Final[dict[int, Callable[[Tree], None]]] = {
    1: lambda _: None,  # the files are the same; from layout 2 on, programs know what it means that there is no log
}
_DRAFT: Final = f"{COPIED}.bak.new"
_MOST_BYTES: Final = 1024**4


def upgrade(tree: Tree, about: About) -> About:
    """Bring a room to today's layout, or bring that to its end. The caller has the lock.

    After: the room has today's layout, and a copy of it as it was lies in `.postroom`. If it raised: the room is as it
    was and no copy was left; or its `room.json` is of today's layout, and the next call does the rest.
    """
    is_done = tree.signature(about.log_path()) is not None  # or an upgrade to that layout was not brought to its end
    layout = about.layout if is_done else max(OLDEST, about.upgraded_from)
    numbers = (about.upgraded_to, 0, *range(2, LAYOUT))
    number = next((n for n in numbers if tree.signature(_of(about, layout, n).log_path()) is not None), None)
    if number is None:
        return about  # there is no log at all: it begins anew
    was, now = _of(about, layout, number), _of(about, LAYOUT, LAYOUT, layout)
    try:
        _keep_copy(tree, was)
        crashpoints.reached("upgrade.copied")
        tree.replace(MARK, msgspec.json.encode(now))
        tree.sync(OWN)  # from here on no program of an older layout opens the room
        crashpoints.reached("upgrade.announced")
        for each in range(layout, LAYOUT):
            STEPS[each](tree)
        tree.rename(was.log_path(), now.log_path())
        tree.sync(OWN)
    except OSError as error:
        why = RoomUnreachable(f"it cannot be written ({error.strerror}); nothing was lost")
        raise not_upgraded(tree.root, layout, LAYOUT, why) from error
    return now


def _of(about: About, layout: int, upgraded_to: int, upgraded_from: int = 0) -> About:
    return About(layout, about.salt, about.boot, about.base_ns, upgraded_to, upgraded_from)


def _keep_copy(tree: Tree, about: About) -> None:
    """Keep the room as it is. Messages, which nobody writes into, are kept as further names of their files."""
    place = tree.root / _DRAFT
    if tree.kind(_DRAFT) is not None:
        shutil.rmtree(place)  # of a process that was killed
    try:
        for folder in (INBOX, OUTBOX, *PLACES, TEMP):
            _copy_folder(tree, folder)
        crashpoints.reached("upgrade.copying")
        for name in (
            about.log_path(),
            f"{OWN}/keys",
            f"{OWN}/mark",
            *(f"{BOARD}/{file}" for file in tree.names(BOARD)),
        ):
            _copy_file(tree, name)
        tree.replace(f"{_DRAFT}/{MARK}", msgspec.json.encode(about))
        tree.rename(_DRAFT, f"{OWN}/{free_copy(tree.root / COPIED, about.layout).name}")
        tree.sync(OWN)
    except BaseException:
        shutil.rmtree(place, ignore_errors=True)
        raise


def _copy_folder(tree: Tree, folder: str) -> None:
    tree.folder(f"{_DRAFT}/{folder}", make=True)
    for name in tree.names(folder):
        path = f"{folder}/{name}"
        kind = tree.kind(path)
        if kind == stat.S_IFDIR:
            _copy_folder(tree, path)
        elif kind == stat.S_IFREG:
            try:
                tree.link(path, f"{_DRAFT}/{path}")
            except FileNotFoundError:  # taken by hand meanwhile
                continue
            except OSError:  # another user's, or a file system without links
                _copy_file(tree, path)
    tree.sync(f"{_DRAFT}/{folder}")


def _copy_file(tree: Tree, path: str) -> None:
    with suppress(FileNotFoundError):
        tree.replace(f"{_DRAFT}/{path}", tree.read(path, _MOST_BYTES))
