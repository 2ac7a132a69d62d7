"""`postroom init --layout windsurf`: everything that several sessions of one project need to work together.

The tree of mailboxes, texts that tell each session its role, and, if asked, a git worktree for each worker. Every step
looks first: what is there already is left as it is, so that running it twice changes nothing.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final, NamedTuple

from postroom.board.actions import ACTIONS
from postroom.core.config import FOLDER, POINTER, RoomUrl, parse_url, room_folder
from postroom.core.system.files import write_file
from postroom.errors import PostroomError
from postroom.mail.presence import enter, names
from postroom.room import Room

LAYOUTS: Final = ("windsurf",)
MAX_WORKERS: Final = 64
#: The room's cell that remembers where each worker's checkout is.
CELL: Final = "layout"

_TEXTS: Final = Path(__file__).with_name("windsurf")
_ROLE: Final = ".windsurf/rules/postroom-role.md"
_RULES: Final = ".windsurf/rules/postroom.md"
#: The files of the main checkout, each with its text.
_FILES: Final = {
    _RULES: "rules.md",
    ".windsurf/workflows/check-inbox.md": "check-inbox.md",
    ".claude/agents/context-manager.md": "context-manager.md",
}
_BEGIN: Final = "<!-- postroom: begin (made by `postroom init --layout windsurf`) -->"
_END: Final = "<!-- postroom: end -->"


class LayoutFailed(PostroomError):
    """The layout cannot be made here."""


class Step(NamedTuple):
    """One thing to be made: what, where, and how. `word` is empty when it is there already."""

    word: str
    path: str
    make: Callable[[], object]


class Layout:
    """The layout of one project: a lead and some workers around one room."""

    def __init__(self, root: Path, url: str, workers: int, *, worktrees: bool) -> None:
        self.root = root.absolute()
        self.names = [f"worker-{number}" for number in range(1, workers + 1)]
        self.worktrees = worktrees
        address = parse_url(url)
        self.folder = room_folder(address)
        if self.folder is not None:
            address = RoomUrl(address.scheme, str(self.folder), address.options)
        self.address = address
        self.mailbox = self.folder if address.scheme == "files" else None

    @property
    def url(self) -> str:
        return str(self.address)

    def steps(self) -> Iterator[Step]:
        """Everything that belongs to it, in order. What is there already has no word."""
        yield from self._pointer()
        if self.mailbox is not None:
            yield from (self._folder(self.mailbox / "inbox" / name) for name in ("lead", *self.names, "board"))
            yield from (self._folder(self.mailbox / "outbox" / name) for name in self.names)
        for path, name in _FILES.items():
            yield self._file(self.root / path, self._text(name, self.root))
        yield self._block(self.root / "AGENTS.md", self._text("agents-block.md", self.root))
        for name in self.names if self.worktrees else ():
            yield from self._worktree(name)

    def enter(self, room: Room) -> list[str]:
        """Let the room know the agents, and where they work. Returns those it did not know."""
        gateway = room._gateway  # noqa: SLF001  a door; agents that nobody has opened have no other way in
        new = [name for name in ("lead", *self.names) if name not in names(gateway)]
        for name in new:
            enter(gateway, name, transient=True)
        places = {name: str(self.checkout(name)) for name in self.names} if self.worktrees else {}
        cell = room.store.cell_read(CELL)
        known = cell.value["worktrees"] if cell is not None else {}
        if places and known != {**known, **places}:
            room.store.cell_write(CELL, {"worktrees": {**known, **places}})
        return new

    def checkout(self, name: str) -> Path:
        """A worker's own checkout: beside the main one."""
        return self.root.with_name(f"{self.root.name}-{name}")

    # One kind of step each

    def _pointer(self) -> Iterator[Step]:
        """`.postroom/room` says where the room is, so that commands find it from here and from every worktree."""
        place = self.root / FOLDER
        if self.folder == place:
            return
        yield self._folder(place)
        yield self._file(place / ".gitignore", "*\n")
        address = self.address
        if self.folder is not None and self.folder.is_relative_to(self.root):  # the project may be moved
            address = RoomUrl(address.scheme, str(self.folder.relative_to(self.root)), address.options)
        yield self._file(place / POINTER, f"{address.without_credentials()}\n")

    def _inside(self, path: Path) -> Path:
        """The path, if no link leads from it out of its checkout: what lies there may have come with a clone."""
        for base in (self.root, *map(self.checkout, self.names)):
            if path.is_relative_to(base) and not Path(os.path.realpath(path)).is_relative_to(os.path.realpath(base)):
                real = os.path.realpath(path)
                raise LayoutFailed(f"{path} links to {real}, which is not in {base}; remove the link first")
        return path

    def _folder(self, path: Path) -> Step:
        word = "" if self._inside(path).is_dir() else "make"
        return Step(word, f"{path}/", lambda: self._inside(path).mkdir(mode=0o700, parents=True, exist_ok=True))

    def _file(self, path: Path, text: str) -> Step:
        word = "" if self._inside(path).exists() else "make"
        return Step(word, str(path), lambda: write_file(self._inside(path), text.encode()))

    def _block(self, path: Path, text: str) -> Step:
        """A marked block at the end of a file that belongs to others. One that was edited is left as it is."""
        before = _text_of(self._inside(path))
        block = f"{_BEGIN}\n{text.strip()}\n{_END}\n"
        if _BEGIN in before:
            return Step("", str(path), lambda: None)
        lines = before.replace("\r\n", "\n")
        gap = "" if not lines or lines.endswith("\n\n") else "\n" if lines.endswith("\n") else "\n\n"
        more = gap + block if lines == before else (gap + block).replace("\n", "\r\n")  # as the file ends its lines
        return Step("add to" if before else "make", str(path), lambda: write_file(path, (before + more).encode()))

    def _worktree(self, name: str) -> Iterator[Step]:
        place = self.checkout(name)
        made = (place / ".git").is_file()
        if place.exists() and not made:
            raise LayoutFailed(f"{place} exists and is not a worktree of this repository; move it first")
        shown = f"{place}/ (git worktree, branch {name})"
        yield Step("" if made else "make", shown, lambda: self._add_worktree(name, place))
        role = place / _ROLE
        yield from self._keep_out_of_git()
        yield self._file(place / _RULES, self._text("rules.md", place))
        yield self._file(role, self._text("role.md", place).replace("{name}", name).replace("{role}", "worker"))

    def _add_worktree(self, name: str, place: Path) -> None:
        known = _git(self.root, "branch", "--list", name).strip() != ""
        words = ["--", str(place), name] if known else ["-b", name, "--", str(place)]
        _git(self.root, "worktree", "add", *words)

    def _keep_out_of_git(self) -> Iterator[Step]:
        """A role belongs to one checkout: it must not be committed and reach the others."""
        path = self.root / _git(self.root, "rev-parse", "--git-path", "info/exclude").strip()
        before = path.read_bytes() if path.exists() else b""  # names of files, so it need not be text
        if _ROLE.encode() not in before.splitlines():
            gap = "" if not before or before.endswith(b"\n") else "\n"
            yield Step("add to", str(path), lambda: write_file(path, before + f"{gap}{_ROLE}\n".encode()))

    def check_git(self) -> None:
        """Raise LayoutFailed where no worktrees can be made."""
        try:
            _git(self.root, "rev-parse", "--verify", "HEAD")
        except LayoutFailed:
            raise LayoutFailed(
                f"{self.root} has no git commit to make worktrees from; commit something first, or leave out --worktrees"
            ) from None

    def _text(self, name: str, place: Path) -> str:
        """A text of the layout as it reads in one checkout."""
        text = (_TEXTS / name).read_text(encoding="utf-8")
        by_hand = (_TEXTS / "by_hand.md").read_text(encoding="utf-8") if self.mailbox is not None else ""
        actions = "\n".join(f"| `{a}` | {r.sender} → {r.recipient} | {r.purpose} |" for a, r in ACTIONS.items())
        for word, meaning in (
            ("{by_hand}", by_hand),
            ("{actions}", actions),
            ("{workers}", ", ".join(f"`{worker}`" for worker in self.names)),
            ("{mailbox}", self._mailbox_seen_from(place)),
        ):
            text = text.replace(word, meaning)
        return text.rstrip("\n") + "\n"

    def _mailbox_seen_from(self, place: Path) -> str:
        if self.mailbox is None:
            return self.url
        inside = place == self.root and self.mailbox.is_relative_to(self.root)
        return str(self.mailbox.relative_to(self.root)) if inside else str(self.mailbox)


def _text_of(path: Path) -> str:
    """The text of a file of others, its line ends as they are; empty when it is not there."""
    try:
        return path.read_bytes().decode("utf-8")
    except FileNotFoundError:
        return ""
    except UnicodeDecodeError:
        raise LayoutFailed(f"{path} is not UTF-8 text, so nothing can be added to it; nothing was made") from None


def _git(folder: Path, *words: str) -> str:
    try:
        done = subprocess.run(["git", *words], cwd=folder, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        raise LayoutFailed("git is not installed, so no worktrees can be made") from None
    if done.returncode != 0:
        raise LayoutFailed(f"git {words[0]} says: {done.stderr.strip() or done.stdout.strip()}")
    return done.stdout
