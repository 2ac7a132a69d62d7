"""Installing and uninstalling: what each file becomes, written with a backup, and taken back byte for byte.

For every installation a record is kept under the user's data folder: each file that was touched, what it was before, and
what it became. Uninstalling restores a file that is still as we left it to exactly what it was. One that somebody changed
since keeps that change: only our own part is taken out of it.
"""

from __future__ import annotations

import base64
import difflib
import json
import os
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, NamedTuple

from ..errors import PostroomError
from . import jsonc
from .plans import Block, Entry, Own, Step, Wish, steps_for

RECORDS: Final = "installed"


class Change(NamedTuple):
    """What a file is, and what it becomes; None is no file."""

    path: Path
    before: bytes | None
    after: bytes | None
    step: Step | None = None

    @property
    def is_needed(self) -> bool:
        return self.before != self.after

    def diff(self) -> str:
        """The change as a patch shows it."""
        old, new = (_lines(content) for content in (self.before, self.after))
        names = (
            os.devnull if self.before is None else str(self.path),
            os.devnull if self.after is None else str(self.path),
        )
        return "".join(difflib.unified_diff(old, new, *names))


def _lines(content: bytes | None) -> list[str]:
    lines = [] if content is None else content.decode("utf-8", "replace").splitlines(keepends=True)
    if lines and not lines[-1].endswith("\n"):
        lines[-1] += "\n"
    return lines


def record_path(wish: Wish) -> Path:
    """Where the record of one installation is kept."""
    data = Path(os.environ.get("XDG_DATA_HOME") or wish.home / ".local" / "share")
    where = "user" if wish.scope == "user" else base64.urlsafe_b64encode(os.fsencode(wish.project)).decode().rstrip("=")
    return data / "postroom" / RECORDS / f"{wish.host}-{where}.json"


def recorded_files(wish: Wish) -> list[Path]:
    """The files that an installation has written."""
    return [Path(entry["path"]) for entry in _read_record(record_path(wish))["files"]]


def plan_install(wish: Wish) -> list[Change]:
    """What installing changes; nothing is changed yet. Raises PostroomError where a file cannot be changed safely."""
    return [change for change in map(_installed, steps_for(wish)) if change.is_needed]


def install(wish: Wish) -> list[Change]:
    """Do it. What was installed before by the same wish is brought up to date. Either all files are written, or none."""
    changes = [_installed(step) for step in steps_for(wish)]
    needed = [change for change in changes if change.is_needed]
    kept = _read_record(record_path(wish))
    record = {entry["path"]: entry for entry in kept["files"]}
    others = _records_of_others(wish)
    for change in changes:
        path = str(change.path)
        known = record.get(path) or others.get(path)  # a file that several need: what it was before all of them
        before = _packed(change.before) if known is None else known["before"]
        record[path] = {"path": path, "before": before, "after": _packed(change.after)}
    folders = dict.fromkeys(
        (*kept["folders"], *(str(each) for change in needed for each in _missing(change.path.parent)))
    )
    if needed or not record_path(wish).exists():
        _write_record(wish, {"files": list(record.values()), "folders": list(folders)})
    _write_all(needed)
    return needed


def plan_uninstall(wish: Wish) -> list[Change]:
    """What uninstalling changes. Without a record, what is ours by its place and its marks is taken out."""
    record = {entry["path"]: entry for entry in _read_record(record_path(wish))["files"]}
    shared = _records_of_others(wish)
    steps = {str(step.path): step for step in steps_for(wish)}
    changes = []
    for path in dict.fromkeys((*record, *steps)):
        if path in shared:
            continue
        now = _read(Path(path))
        entry = record.get(path)
        if entry is not None and _packed(now) == entry["after"]:
            changes.append(Change(Path(path), now, _unpacked(entry["before"])))
        elif path in steps:
            changes.append(_taken_out(steps[path]))
    return [change for change in changes if change.is_needed]


def uninstall(wish: Wish) -> list[Change]:
    """Do it, and forget the installation. Folders that were made for it are removed if nothing else is in them."""
    changes = plan_uninstall(wish)
    path = record_path(wish)
    kept = _read_record(path)
    _write_all(changes)
    path.unlink(missing_ok=True)
    for folder in sorted(kept["folders"], key=len, reverse=True):
        with suppress(OSError):
            os.rmdir(folder)
    left = [folder for folder in kept["folders"] if os.path.isdir(folder)]
    for other in sorted(path.parent.glob("*.json"))[:1]:  # whoever is left takes them away
        record = _read_record(other)
        write_file(other, json.dumps(record | {"folders": [*record["folders"], *left]}, indent=1).encode("ascii"))
    return changes


# One step


def _installed(step: Step) -> Change:
    before = _read(step.path)
    try:
        text = "" if before is None else before.decode("utf-8")
    except UnicodeDecodeError:
        raise PostroomError(f"{step.path} is not UTF-8 text; nothing was changed") from None
    if isinstance(step, Own):
        return Change(step.path, before, step.text.encode(), step)
    try:
        after = _with_entry(text, step) if isinstance(step, Entry) else _with_block(text, step)
    except jsonc.NotJson as error:
        raise PostroomError(f"{step.path}: {error}") from None
    return Change(step.path, before, after.encode(), step)


def _with_entry(text: str, step: Entry) -> str:
    if text.strip() and jsonc.has_member(text, step.member):
        kept = jsonc.value_at(text, step.member)
        return (
            text
            if kept == step.value
            else jsonc.with_member(jsonc.without_member(text, step.member), step.member, step.value)
        )
    return jsonc.with_member(text, step.member, step.value)


def _with_block(text: str, step: Block) -> str:
    start, end = _block_in(text, step)
    if start >= 0:
        return text[:start] + step.text + text[end:]
    if step.path.suffix == ".toml" and "[mcp_servers.postroom]" in text:
        raise PostroomError(f"{step.path} has an entry for postroom that is not ours; take it out first")
    gap = "" if not text else "\n" if text.endswith("\n") else "\n\n"
    return text + gap + step.text


def _block_in(text: str, step: Block) -> tuple[int, int]:
    """From where to where our block stands; -1 when it does not."""
    start = text.find(step.start)
    end = text.find(step.end, start)
    if start < 0 or end < 0:
        return -1, -1
    line_end = text.find("\n", end)
    return start, len(text) if line_end < 0 else line_end + 1


def _taken_out(step: Step) -> Change:
    """Our part of a file that somebody else changed too."""
    before = _read(step.path)
    if before is None:
        return Change(step.path, None, None, step)
    text = before.decode("utf-8", "surrogateescape")
    if isinstance(step, Own):
        after = None if text == step.text else text  # a file of ours that somebody made theirs stays
    elif isinstance(step, Entry):
        after = jsonc.without_member(text, step.member) if text.strip() else text
    else:
        start, end = _block_in(text, step)
        after = (
            text
            if start < 0
            else text[:start].removesuffix("\n") + ("\n" if text[:start].endswith("\n\n") else "") + text[end:]
        )
    return Change(step.path, before, None if after is None else after.encode("utf-8", "surrogateescape"), step)


# Files


def _read(path: Path) -> bytes | None:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise PostroomError(f"{path} cannot be read ({error.strerror}); nothing was changed") from None


def _write_all(changes: Iterable[Change]) -> None:
    """Write all, or put back those that were written."""
    done: list[Change] = []
    try:
        for change in changes:
            write_file(change.path, change.after)
            done.append(change)
    except OSError as error:
        for change in reversed(done):
            with suppress(OSError):
                write_file(change.path, change.before)
        raise PostroomError(f"{error.filename} cannot be written ({error.strerror}); nothing was changed") from None


def write_file(path: Path, content: bytes | None) -> None:
    """One file, whole or not at all; its rights stay as they are. A link is followed: what it names is changed."""
    path = Path(os.path.realpath(path))
    if content is None:
        path.unlink(missing_ok=True)
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    new = path.with_name(f".{path.name}.postroom-new")
    new.write_bytes(content)
    if path.exists():
        new.chmod(path.stat().st_mode & 0o777)
    new.replace(path)


def _missing(folder: Path) -> list[Path]:
    """The folders that will have to be made for this one to be there."""
    return [each for each in (folder, *folder.parents) if not each.exists()]


# Records


def _read_record(path: Path) -> dict[str, Any]:
    try:
        record: dict[str, Any] = json.loads(path.read_text(encoding="ascii"))
    except (OSError, ValueError):
        return {"files": [], "folders": []}
    return record


def _write_record(wish: Wish, record: dict[str, Any]) -> None:
    path = record_path(wish)
    record["folders"] += [str(each) for each in _missing(path.parent)]
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    write_file(path, json.dumps(record, indent=1).encode("ascii"))
    path.chmod(0o600)  # it holds copies of settings, which may hold secrets


def _records_of_others(wish: Wish) -> dict[str, dict[str, Any]]:
    """Files that another installation needs too, each with what it was before."""
    own = record_path(wish)
    found: dict[str, dict[str, Any]] = {}
    for other in sorted(own.parent.glob("*.json")):
        if other != own:
            found |= {entry["path"]: entry for entry in _read_record(other)["files"]}
    return found


def _packed(content: bytes | None) -> str | None:
    return None if content is None else base64.b64encode(content).decode("ascii")


def _unpacked(text: str | None) -> bytes | None:
    return None if text is None else base64.b64decode(text)
