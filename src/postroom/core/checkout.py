"""The place of a file in its checkout: the top of the project, and the file's name from there, as files are reserved.

Only the file system is asked, never git, which would run what a repository's own configuration names.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple

from .config import FOLDER, read_small


class Located(NamedTuple):
    """A file of the project."""

    #: The checkout that it lies in, by device and inode: the same in a container that has it under another path.
    tree: str
    #: Its name from the top, and the one it was called by where that leads through a symbolic link.
    names: tuple[str, ...]
    #: Whether the file system takes `A` and `a` for the same name.
    blind_to_case: bool
    #: The top of the checkout.
    top: str


def locate(path: str, cwd: str) -> Located | None:
    """Where a file is, which need not be there yet; None for one outside of the checkout around `cwd`.

    A worktree of the same repository belongs to the project, a repository of its own inside of it does not.
    """
    here = os.path.realpath(cwd)
    home = top_of(here) or here
    try:
        real = os.path.realpath(os.path.join(here, path))
    except (OSError, ValueError):  # a name that no file can have
        return None
    top = top_of(os.path.dirname(real)) or (home if _is_below(real, home) else None)
    if top is None or real == top or not (top == home or _is_same_repository(top, home)):
        return None
    called = os.path.normpath(os.path.join(here, path))
    names = [real, called] if _is_below(called, top) else [real]
    about = os.stat(top)
    tree = f"{about.st_dev:x}.{about.st_ino:x}"
    relative = dict.fromkeys(os.path.relpath(name, top) for name in names)
    return Located(tree, tuple(relative), is_blind_to_case(top), top)


def top_of(folder: str) -> str | None:
    """The top of the checkout around a folder: of its repository, else where the room is. None where neither is.

    A submodule is a part of the repository around it.
    """
    with_room = None
    for each in (folder, *map(str, Path(folder).parents)):
        marker = os.path.join(each, ".git")
        if os.path.isdir(marker) or (os.path.isfile(marker) and _common_folder(each) is not None):
            return each
        if with_room is None and os.path.isdir(os.path.join(each, FOLDER)):
            with_room = each
    return with_room


def is_blind_to_case(top: str) -> bool:
    """Whether the file system under a checkout takes `A` and `a` for the same name."""
    marks = (os.path.join(top, name) for name in (".git", FOLDER))
    found = next((mark for mark in marks if os.path.lexists(mark)), None)
    return found is not None and os.path.lexists(os.path.join(top, os.path.basename(found).upper()))


def _is_same_repository(top: str, home: str) -> bool:
    common = _common_folder(top)
    return common is not None and common == _common_folder(home)


def _common_folder(top: str) -> str | None:
    """The folder that all worktrees of a repository share; None for a submodule, which has one of its own elsewhere."""
    marker = Path(top, ".git")
    if marker.is_dir():
        return os.path.realpath(marker)
    word, _, target = read_small(marker).partition(": ")
    git_folder = marker.parent / target
    common = read_small(git_folder / "commondir") if word == "gitdir" else ""
    return os.path.realpath(git_folder / common) if common else None


def _is_below(path: str, folder: str) -> bool:
    return path.startswith(folder.rstrip("/") + "/")
