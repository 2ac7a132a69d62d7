"""Migration of a files room: one of an older layout becomes one of today's, after a copy of it was kept.

Programs of an older layout that run meanwhile must not write into the newer one. Each of their steps begins with a look
at the log, so an upgrade ends by giving the log another name: it is not there for them any more. Programs that are
started later read `room.json`, which says so first. A process that dies in between leaves a room whose log has the
older name: programs that run go on with it, and the next that opens the room ends the upgrade.
"""

from __future__ import annotations

import errno
import shutil
import stat
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Final, TypeVar

import msgspec

from postroom.core import crashpoints
from postroom.errors import RoomDamaged, RoomUnreachable
from postroom.stores.layouts import free_copy, not_upgraded

from .board import BOARD, BOARD_FILES
from .intake import INBOX, OUTBOX
from .layout import COPIED, LAYOUT, MARK, OLDEST, PLACES, About, read_layout
from .tree import OWN, TEMP, Tree

T = TypeVar("T")

#: What leads from each layout to the next. Each may be done again, after a process that died in the middle of it.
STEPS: Final[dict[int, Callable[[Tree], None]]] = {
    1: lambda _: None,  # the files are the same; from layout 2 on, programs know what it means that there is no log
    2: lambda _: (
        None
    ),  # lines of the log may have order keys from now on, and states that programs of layout 2 do not know
}
_DRAFT: Final = f"{COPIED}.bak.new"
_MOST_BYTES: Final = 1024**4
#: So many slashes are in the path of a folder that has messages: `inbox/_channel/work`, `.postroom/claimed/bob`.
_DEEPEST: Final = 2
_NOT_OURS: Final = (errno.ENOENT, errno.EACCES, errno.EPERM, errno.ELOOP, errno.EINVAL, errno.ENXIO)


def upgrade(tree: Tree, about: About) -> About:
    """Bring a room to today's layout, or bring that to its end. The caller has the lock.

    After: the room has today's layout, and a copy of it as it was lies in `.postroom`. If it raised: the room is as it
    was and no copy was left; or its `room.json` is of today's layout, its copy is kept, and the next call does the rest.
    """
    is_done = tree.signature(about.log_path()) is not None  # or an upgrade to that layout was not brought to its end
    layout = about.layout if is_done else max(OLDEST, about.upgraded_from)
    numbers = (about.upgraded_to, 0, *range(2, LAYOUT))
    number = next((n for n in numbers if tree.signature(_of(about, layout, n).log_path()) is not None), None)
    if number is None:
        return about  # there is no log at all: it begins anew
    was, now = _of(about, layout, number), _of(about, LAYOUT, LAYOUT, layout)
    is_announced = about.layout > layout  # by a process that did not bring its upgrade to an end: it made a copy
    copy = f"{OWN}/{free_copy(tree.root / COPIED, layout).name}"
    trouble = "no copy of it can be kept ({}); nothing was changed"
    try:
        if not (is_announced and _has_copy(tree, layout)):
            _keep_copy(tree, was, copy)
        crashpoints.reached("upgrade.copied")
        trouble = "it cannot be written ({}); nothing was lost"
        tree.replace(MARK, msgspec.json.encode(now))
        tree.sync(OWN)  # from here on no program of an older layout opens the room
        crashpoints.reached("upgrade.announced")
        for each in range(layout, LAYOUT):
            STEPS[each](tree)
        tree.rename(was.log_path(), now.log_path())
        tree.sync(OWN)
    except BaseException as error:
        if not is_announced:
            _take_back(tree, layout, copy)
        shutil.rmtree(tree.root / _DRAFT, ignore_errors=True)
        if isinstance(error, OSError):
            why = RoomUnreachable(trouble.format(error.strerror or error))
            raise not_upgraded(tree.root, layout, LAYOUT, why) from error
        raise
    finally:
        tree.look_again()  # let go of the copy's folders
    return now


def _has_copy(tree: Tree, layout: int) -> bool:
    """Whether a copy was kept of the room as it was in that layout."""
    copy = f"{COPIED}.layout-{layout}.bak"
    return any(f"{OWN}/{name}.".startswith(f"{copy}.") for name in tree.folders(OWN))


def _take_back(tree: Tree, layout: int, copy: str) -> None:
    """Make a draft again of a copy whose room still has the older layout: it is of no use."""
    with suppress(OSError, RoomDamaged):
        if read_layout(tree) == layout:
            tree.rename(copy, _DRAFT)


def _of(about: About, layout: int, upgraded_to: int, upgraded_from: int = 0) -> About:
    return About(layout, about.salt, about.boot, about.base_ns, upgraded_to, upgraded_from)


def _keep_copy(tree: Tree, about: About, copy: str) -> None:
    """Keep the room as it is. Messages, which nobody writes into, are kept as further names of their files.

    All of it is on the disk when this returns. What people put into the room's folders and Postroom does not read, or
    cannot, is passed over: it stays where it is.
    """
    if tree.kind(_DRAFT) is not None:
        shutil.rmtree(tree.root / _DRAFT)  # of a process that was killed
    _copy_messages(tree)
    crashpoints.reached("upgrade.copying")
    for path in (about.log_path(), f"{OWN}/keys", f"{OWN}/mark"):
        with suppress(FileNotFoundError):
            tree.replace(f"{_DRAFT}/{path}", tree.read(path, _MOST_BYTES))
    tree.folder(f"{_DRAFT}/{BOARD}", make=True)
    for path in BOARD_FILES:
        _copy_if_readable(tree, path)
    tree.replace(f"{_DRAFT}/{MARK}", msgspec.json.encode(about))
    tree.sync(f"{_DRAFT}/{OWN}", f"{_DRAFT}/{BOARD}", _DRAFT)
    tree.rename(_DRAFT, copy)
    tree.sync(OWN)


def _copy_messages(tree: Tree) -> None:
    places = (INBOX, OUTBOX, *PLACES, TEMP)
    folders = list(places)
    for folder in folders:  # which gets longer meanwhile
        names = tree.names(folder) if folder in places else _if_readable(partial(tree.names, folder))
        tree.folder(f"{_DRAFT}/{folder}", make=True)
        for path in (f"{folder}/{name}" for name in names or ()):
            kind = _if_readable(partial(tree.kind, path))
            if kind == stat.S_IFDIR and path.count("/") <= _DEEPEST:
                folders.append(path)
            elif kind == stat.S_IFREG:
                try:
                    tree.link(path, f"{_DRAFT}/{path}")
                except OSError:  # taken by hand meanwhile, another user's, or a file system without links
                    _copy_if_readable(tree, path)
        tree.sync(f"{_DRAFT}/{folder}")


def _copy_if_readable(tree: Tree, path: str) -> None:
    data = _if_readable(partial(tree.read, path, _MOST_BYTES))
    if data is not None:
        tree.replace(f"{_DRAFT}/{path}", data)


def _if_readable(read: Callable[[], T]) -> T | None:
    """What is read; None for nothing, for what only others may read, and for a link, folder or pipe in a file's place.

    Other troubles, as of the disk or with too many open files, are raised.
    """
    try:
        return read()
    except OSError as error:
        if error.errno in _NOT_OURS:
            return None
        raise
