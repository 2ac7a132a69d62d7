"""Installing and uninstalling: what each file becomes, written with a backup, and taken back byte for byte.

For every installation a record is kept under the user's data folder: each file that was touched, what it was before, and
what it became. Uninstalling restores a file that is still as we left it to exactly what it was. One that somebody changed
since keeps that change: only our own part is taken out of it, and the record says which part that is, so that neither
another version nor another environment is needed to find it.
"""

from __future__ import annotations

import base64
import difflib
import json
import os
import re
import stat
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, NamedTuple

from postroom.core.system.files import write_file
from postroom.errors import PostroomError

from . import codex_settings, jsonc, toml_text
from .ours import is_server
from .plans import PROJECT, Codex, JsonEntry, MarkedBlock, Own, Step, Wish, steps_for

RECORDS: Final = "installed"


class FileChange(NamedTuple):
    """The content of a file before and after; None is no file."""

    path: Path
    before: bytes | None
    after: bytes | None
    step: Step | None = None

    @property
    def is_needed(self) -> bool:
        return self.before != self.after

    def diff(self) -> str:
        """The change as a patch shows it."""
        sides = (self.before, self.after)
        was, became = (os.devnull if content is None else str(self.path) for content in sides)
        old, new = map(_lines, sides)
        return "".join(difflib.unified_diff(old, new, was, became))


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


def needed_files(wish: Wish) -> list[Path]:
    """The files that were installed, and those that the program looks for now: its folder may have moved."""
    recorded = [Path(entry["path"]) for entry in _read_record(record_path(wish))["files"]]
    return list(dict.fromkeys((*recorded, *(step.path for step in steps_for(wish)))))


def missing_programs(files: Iterable[Path]) -> list[Path]:
    """The Postrooms that these files start and that are gone: their environment was moved or removed."""
    named = [
        found for path in files for found in re.findall(r'"(/[^"]*/postroom)"', path.read_text("utf-8", "replace"))
    ]
    return [Path(name) for name in dict.fromkeys(named) if not os.path.isfile(name)]


def plan_install(wish: Wish) -> list[FileChange]:
    """The changes of an installation; none is made yet. PostroomError where a file cannot be changed safely."""
    return [change for change in _installed_all(wish) if change.is_needed]


def _installed_all(wish: Wish) -> list[FileChange]:
    steps = steps_for(wish)
    for step in steps:
        _check_place(wish, step.path)
    return [_installed(step) for step in steps]


def install(wish: Wish) -> list[FileChange]:
    """Do it; an earlier installation of the same wish is brought up to date. Either all files are written, or none."""
    changes = _installed_all(wish)
    needed = [change for change in changes if change.is_needed]
    kept = _read_record(record_path(wish))
    record = {entry["path"]: entry for entry in kept["files"]}
    others = _records_of_others(wish)
    for change in changes:
        assert change.step is not None
        path = str(change.path)
        known = record.get(path) or others.get(path)  # a file that several need: what it was before all of them
        before = _before_us(change.step, change.before, known)
        part = _part_of(change.step)
        record[path] = {"path": path, "before": before, "after": _packed(change.after), "part": part}
    folders = dict.fromkeys(
        (*kept["folders"], *(str(each) for change in needed for each in _missing(change.path.parent)))
    )
    note = record_path(wish)
    noted, missing = _read(note), _missing(note.parent)
    try:
        if needed or noted is None:
            _write_record(wish, {"files": list(record.values()), "folders": list(folders)})
        _write_all(needed)
    except (OSError, PostroomError) as error:  # what was not installed is not noted; after an interrupt it may be both
        with suppress(OSError):
            _write(note, noted)
        for folder in missing:
            with suppress(OSError):
                folder.rmdir()
        if isinstance(error, PostroomError):
            raise
        raise PostroomError(f"{note} cannot be written ({error.strerror}); nothing was changed") from None
    return needed


def _before_us(step: Step, now: bytes | None, known: dict[str, Any] | None) -> str | None:
    """The content that uninstalling is to restore: the file without our part.

    That is its content before the first installation, unless the file was changed since
    (tests/doors/test_install_codex.py: test_what_codex_wrote_between_two_installs_survives_the_uninstall).
    """
    if known is not None and (isinstance(step, Own) or _packed(now) == known["after"]):
        before: str | None = known["before"]
        return before
    if now is None:
        return None
    if isinstance(step, Own):
        return None if now == step.text.encode() else _packed(now)
    if isinstance(step, JsonEntry) and known is None and not is_server(_value_in(step, now)):
        return _packed(now)  # an entry of that name that somebody else wrote comes back
    return _packed(_taken_out(step.path, now, _part_of(step), _original(known)))


def plan_uninstall(wish: Wish) -> list[FileChange]:
    """The changes of uninstalling. Without a record, our part is known by its place and its content."""
    record = {entry["path"]: entry for entry in _read_record(record_path(wish))["files"]}
    shared = _records_of_others(wish)
    steps = {str(step.path): step for step in steps_for(wish)}
    changes = []
    for name in dict.fromkeys((*record, *steps)):
        path, entry, step = Path(name), record.get(name), steps.get(name)
        now = None if name in shared else _read(path)
        if now is None:
            continue
        _check_place(wish, path)
        after: bytes | None = now
        if entry is not None and _packed(now) == entry["after"]:
            after = _unpacked(entry["before"])
        elif entry is not None and "part" in entry:
            after = _taken_out(path, now, entry["part"], _original(entry))
        elif isinstance(step, Own):  # one that somebody made theirs stays
            after = None if now == step.text.encode() else now
        elif step is not None and (not isinstance(step, JsonEntry) or is_server(_value_in(step, now))):
            after = _taken_out(path, now, _part_of(step), _original(entry))
        changes.append(FileChange(path, now, after))
    return [change for change in changes if change.is_needed]


def uninstall(wish: Wish) -> list[FileChange]:
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
    for other in sorted(path.parent.glob("*.json"))[:1]:  # the installation that is left takes them away
        record = _read_record(other)
        write_file(other, json.dumps(record | {"folders": [*record["folders"], *left]}, indent=1).encode("ascii"))
    return changes


# One step


def _check_place(wish: Wish, path: Path) -> None:
    """Refuse a path that a link leads out of the project: a clone must not reach the rest of the machine."""
    real, project = Path(os.path.realpath(path)), Path(os.path.realpath(wish.project))
    if wish.scope == PROJECT and project not in real.parents:
        raise PostroomError(f"{path} leads out of the project, to {real}; nothing was changed")


def _installed(step: Step) -> FileChange:
    before = _read(step.path)
    try:
        text = "" if before is None else before.decode("utf-8")
    except UnicodeDecodeError:
        raise PostroomError(f"{step.path} is not UTF-8 text; nothing was changed") from None
    try:
        match step:
            case Own():
                after = step.text
            case JsonEntry():
                head = json.dumps(step.head, indent=2) + "\n" if step.head and not text.strip() else text
                after = jsonc.with_member(head, step.member, step.value)
            case Codex():
                after = codex_settings.with_ours(text, step.wanted)
            case _:
                after = _with_block(text, step)
    except (jsonc.NotJson, toml_text.NotToml) as error:
        raise PostroomError(f"{step.path}: {error}") from None
    return FileChange(step.path, before, after.encode(), step)


def _with_block(text: str, step: MarkedBlock) -> str:
    start, end = _block_in(text, step.start, step.end)
    if start >= 0:
        return text[:start] + step.text + text[end:]
    gap = "" if not text else "\n" if text.endswith("\n") else "\n\n"
    return text + gap + step.text


def _block_in(text: str, start: str, end: str) -> tuple[int, int]:
    """From where to where our block stands; -1 when it does not. Its marks are whole lines, with none between them."""
    first, last = (rf"^{re.escape(mark)}[ \t]*\r?$" for mark in (start, end))
    found = re.search(rf"{first}(?:(?!{first}|{last}).)*{last}\n?", text, re.M | re.S)
    return (-1, -1) if found is None else found.span()


def _part_of(step: Step) -> dict[str, Any]:
    """Our part of a file as a record describes it: enough to take it out."""
    match step:
        case JsonEntry():
            return {"kind": "entry", "member": list(step.member)}
        case MarkedBlock():
            return {"kind": "block", "start": step.start, "end": step.end}
        case Codex():
            return {"kind": "codex"}
    return {"kind": "own"}


def _taken_out(path: Path, now: bytes, part: dict[str, Any], original: str | None) -> bytes | None:
    """A file that somebody else changed too, without our part; None when nothing of theirs is in it.

    `original` is what the file was before us: "" when it was not there, None when that is not known.
    """
    text = now.decode("utf-8", "surrogateescape")
    try:
        match part:
            case {"kind": "entry", "member": [*member]}:
                after = _without_entry(text, tuple(member), original)
            case {"kind": "codex"}:
                after = codex_settings.without_ours(text)
            case {"kind": "block", "start": str(first), "end": str(last)}:
                start, end = _block_in(text, first, last)
                gap = 1 if text[: max(start, 0)].endswith("\n\n") else 0  # the blank line that came with it
                after = text if start < 0 else text[: start - gap] + text[end:]
            case _:
                after = text  # a file of ours that somebody made theirs stays
    except (jsonc.NotJson, toml_text.NotToml) as error:
        raise PostroomError(f"{path}: {error}") from None
    return None if original == "" and not after.strip() else after.encode("utf-8", "surrogateescape")


def _without_entry(text: str, member: tuple[str, ...], original: str | None) -> str:
    """Without the entry, and without the objects around it that were made for it and are empty."""
    text = jsonc.without_member(text, member)
    for path in (member[:depth] for depth in range(len(member) - 1, 0, -1)):
        made = original is not None and jsonc.value_at(original, path) is None
        if made and jsonc.value_at(text, path) == {}:
            text = jsonc.without_member(text, path)
    if original == "" and "//" not in re.sub(r'"[^"]*"', "", text) and "/*" not in text:
        left = jsonc.value_at(text, ()) if text.strip() else {}
        return "" if isinstance(left, dict) and set(left) <= {"$schema"} else text
    return text


def _value_in(step: JsonEntry, now: bytes) -> Any:
    """The value in a JSON file where our entry belongs; None when there is none."""
    try:
        return jsonc.value_at(now.decode("utf-8", "surrogateescape"), step.member)
    except jsonc.NotJson as error:
        raise PostroomError(f"{step.path}: {error}") from None


def _original(known: dict[str, Any] | None) -> str | None:
    """The content of a file before us, from its record: "" when it was not there; None without a record."""
    return None if known is None else (_unpacked(known["before"]) or b"").decode("utf-8", "surrogateescape")


# Files


def _read(path: Path) -> bytes | None:
    try:
        if stat.S_ISFIFO(os.stat(path).st_mode):  # nothing may ever be written to it
            raise PostroomError(f"{path} is a pipe, not a file; nothing was changed")
        return path.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise PostroomError(f"{path} cannot be read ({error.strerror}); nothing was changed") from None


def _write_all(changes: Iterable[FileChange]) -> None:
    """Write all, or put back those that were written."""
    done: list[FileChange] = []
    path = Path()
    try:
        for change in changes:
            path = change.path
            if _read(change.path) != change.before:
                raise PostroomError(
                    f"{change.path} was just changed by another program; nothing was written, try again"
                )
            _write(change.path, change.after)
            done.append(change)
    except (OSError, PostroomError) as error:
        for written in reversed(done):
            with suppress(OSError):
                _write(written.path, written.before)
        if isinstance(error, PostroomError):
            raise
        raise PostroomError(f"{path} cannot be written ({error.strerror}); nothing was changed") from None


def _write(path: Path, content: bytes | None) -> None:
    if content is None:
        Path(os.path.realpath(path)).unlink(missing_ok=True)
    else:
        write_file(path, content)


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
