"""The board's two files, `board/status.json` and `board/claims.json`: what the board's cells say, for readers of files.

Each task is a cell `board/task/<key>` with an object (id, title, state, owner, after, lease, payload, …); its key, here
as in the files, is its id percent-encoded. The files are replaced whole after each change, so that a reader always
finds valid JSON. An edit made by hand is taken up, also under the plain id: each task in the files carries the version
of its cell, and counts only if that is still the cell's own. What cannot be taken up is kept, and answered.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import Any, Final
from urllib.parse import quote, unquote

import msgspec

from postroom.core.clock import iso
from postroom.core.config import AGENT_LEASE_S
from postroom.core.message import Draft, check, check_name, decode_payload
from postroom.errors import Fault, InvalidMessage

from .room import FileTables
from .tree import FileSignature, Tree

BOARD: Final = "board"
STATUS: Final = f"{BOARD}/status.json"
CLAIMS: Final = f"{BOARD}/claims.json"
TASKS: Final = f"{BOARD}/task/"
BOARD_FILES: Final = (STATUS, CLAIMS)
#: What is no message, or no JSON, after so long without a change is set aside.
PATIENCE_S: Final = 10.0
#: How the owner of a claim may be called.
OWNERS: Final = ("owner", "agent", "claimed_by", "worker")
NO_JSON: Final = "it is not JSON"
_BROKEN: Final = object()
#: What is said to those whose file was not understood.
FORMS: Final = {
    STATUS: '{"tasks": {"T1": {"title": "…", "state": "ready", "after": []}}} is the expected form, with one entry for '
    "each task;\nto tell the board something else, send it a message of type `status`: a file in inbox/board/.\n",
    CLAIMS: '{"T1": {"owner": "worker-1"}} or {"T1": "worker-1"} is the expected form, with one entry for each task.\n',
}
#: The tasks of the board by key: the version of each cell, and its value.
Tasks = dict[str, tuple[int, dict[str, Any]]]
_MOST_BYTES: Final = 64 * 1024 * 1024


class BoardFiles:
    """The two files of one room."""

    def __init__(self, tree: Tree) -> None:
        self._tree = tree
        #: Whether somebody may have changed the files.
        self.suspect = True
        self._looked: dict[str, FileSignature | None] = {}
        self._broken: dict[
            str, tuple[FileSignature | None, int]
        ] = {}  # a file that is no JSON: its looks, and since when
        self._known: Tasks = {}

    def tasks(self, room: FileTables) -> Tasks:
        """The tasks of the board by key: the version of each cell, and its value."""
        before, self._known = self._known, {}
        for name, (version, text) in sorted(room.cells.items()):
            if name.startswith(TASKS):
                key = name.removeprefix(TASKS)
                known = before.get(key)
                value = known[1] if known is not None and known[0] == version else decode_payload(text)
                if isinstance(value, dict):
                    self._known[key] = (version, value)
        return self._known

    def write(self, room: FileTables, paths: Iterable[str] = BOARD_FILES) -> None:
        """Let the files say what the cells say."""
        for path in list(self._broken):
            self._set_aside(room, path, [NO_JSON])
        tasks = self.tasks(room)
        head = b'{\n  "updated": %s,\n  "tasks": ' % _json(iso(room.clock.wall_ms()))
        for path in paths:
            if path == STATUS:
                self._replace(path, head + _lines(_status(tasks), b"    ") + b"\n}\n")
            else:
                self._replace(path, _lines(_claims(tasks), b"  ") + b"\n")
            self._looked[path] = self._tree.signature(path)

    def _replace(self, path: str, data: bytes) -> None:
        self._tree.rename(self._tree.temp(data, sync=False), path)  # made anew from the log after a power cut

    # Edits made by hand

    def take_up(self, room: FileTables) -> None:
        """Change the cells as somebody changed the files. The caller has the lock.

        What is not understood is kept in `.postroom/rejected`, with the reason beside it, before the file is written
        anew.
        """
        if not self.suspect:
            return
        self.suspect = False
        edited = {path: said[0] for path in BOARD_FILES if (said := self._edited(room, path))}
        if not edited:
            return
        tasks = self.tasks(room)
        faults = {path: self._take_up_file(room, path, said, tasks) for path, said in edited.items()}
        for path, found in faults.items():
            if found:
                self._set_aside(room, path, found)
        tasks = self.tasks(room)
        says = {STATUS: _status(tasks), CLAIMS: _claims(tasks)}
        differs = any(said != says[path] and (tasks or said) for path, said in _parts(edited).items())
        if differs or any(faults.values()):
            self.write(room)

    def _edited(self, room: FileTables, path: str) -> list[Any]:
        """What a file says since it was looked at last; nothing when it is as it was, or half-written by somebody."""
        looks = self._tree.signature(path)
        if path in self._looked and looks == self._looked[path]:
            return []
        try:
            said = msgspec.json.decode(self._tree.read(path, _MOST_BYTES))
        except FileNotFoundError:
            said = {}
        except (OSError, msgspec.DecodeError, UnicodeDecodeError):
            now_ns = room.clock.steady_ns()
            before, since_ns = self._broken.get(path, (None, now_ns))
            since_ns = since_ns if before == looks else now_ns
            self._broken[path] = (looks, since_ns)
            stays = looks is not None and max(now_ns - since_ns, looks.unchanged_ns) >= PATIENCE_S * 1e9
            return [_BROKEN] if stays else []
        self._looked[path] = looks
        self._broken.pop(path, None)
        return [said]

    def _take_up_file(self, room: FileTables, path: str, said: Any, tasks: Tasks) -> list[str]:
        """Change the cells as one file says. Returns what in it was not understood."""
        if said is _BROKEN:
            return [NO_JSON]
        return self._take_up_status(room, said, tasks) if path == STATUS else self._take_up_claims(room, said, tasks)

    def _set_aside(self, room: FileTables, path: str, faults: list[str]) -> None:
        """Keep a file that somebody wrote, with the reason beside it, as files in inboxes that are no messages are."""
        reason = "".join(f"{path}: {fault}\n" for fault in faults) + f"\n{FORMS[path]}"
        with suppress(OSError):  # a process that may not do so leaves it to another
            self._tree.link(path, room.explain_rejected(path, reason))  # a slow writer goes on in the file that is kept
        self._broken.pop(path, None)

    def _take_up_status(self, room: FileTables, said: Any, tasks: Tasks) -> list[str]:
        if not isinstance(said, dict):
            return [f"it must be an object, not {_short(said)}"]
        faults = [f"{_short(name)} is not a known key there" for name in said if name not in ("updated", "tasks")]
        for name, entry in _pairs(said.get("tasks"), faults, "tasks"):
            key = _key_of(name)
            if key is None:
                faults.append(f"{_short(name)} cannot be the id of a task")
            elif not isinstance(entry, dict):
                faults.append(f"the entry of {_short(name)} must be an object, not {_short(entry)}")
            else:
                self._take_up_task(room, key, entry, tasks)
        return faults

    def _take_up_claims(self, room: FileTables, said: Any, tasks: Tasks) -> list[str]:
        faults: list[str] = []
        for name, entry in _claims_in(said, tasks, faults):
            key, owner = _key_of(name), _owner_of(entry)
            if owner is None:
                faults.append(f"there is no owner for {_short(name)}")
            elif key is not None and key in tasks:
                self._take_up_claim(room, key, owner, entry if isinstance(entry, dict) else {}, tasks)
            elif not (isinstance(entry, dict) and "version" in entry):  # else from an older copy of the file
                faults.append(f"there is no task {_short(name)}")
                self._tell_loser(room, owner, name, f"there is no task {_short(name)}")
        return faults

    def _take_up_task(self, room: FileTables, key: str, entry: dict[str, Any], tasks: Tasks) -> None:
        version, value = tasks.get(key, (0, {}))
        if entry.get("version", version) != version:
            return  # from an older copy of the file: the cell has changed since
        said = {name: item for name, item in entry.items() if name != "version"}
        if version == 0:
            usual: dict[str, Any] = {
                "id": unquote(key),
                "title": unquote(key),
                "state": "ready",
                "owner": None,
                "after": [],
                "lease": None,
                "payload": {},
            }
            said = {**usual, **said}
        if said != {name: item for name, item in value.items() if name in said}:
            _set(room, key, {**value, **said}, tasks)

    def _take_up_claim(self, room: FileTables, key: str, owner: str, entry: dict[str, Any], tasks: Tasks) -> None:
        version, value = tasks[key]
        if owner == value.get("owner") or entry.get("version", version) != version:
            return
        if value.get("owner") is None and value.get("state") == "ready":
            given, now_ms = entry.get("lease"), room.clock.wall_ms()
            lease = given if isinstance(given, int) and given > now_ms else now_ms + round(AGENT_LEASE_S * 1000)
            claim = {"state": "claimed", "owner": owner, "lease": lease, "steady": None}
            _set(room, key, {**value, **claim}, tasks)
            return
        said = f"{unquote(key)} is {value.get('state')}" + (f" by {value['owner']}" if value.get("owner") else "")
        self._tell_loser(room, owner, unquote(key), said)

    @staticmethod
    def _tell_loser(room: FileTables, owner: str, id: str, why: str) -> None:
        payload = {"task_id": id, "text": f"your claim in {CLAIMS} did not count: {why}"}
        with suppress(InvalidMessage):  # that is no agent's name: nobody to tell
            room.insert(check(Draft(from_agent=BOARD, to_agent=owner, type="info", payload=payload)), owner)


def _parts(edited: dict[str, Any]) -> dict[str, Any]:
    """What files say of tasks and claims."""
    status = edited.get(STATUS)
    return {**edited, STATUS: status.get("tasks")} if isinstance(status, dict) else edited


def _claims_in(said: Any, tasks: Tasks, faults: list[str]) -> Iterator[tuple[str, Any]]:
    """Each claim that a file has, by the name of its task: an object of them, or a list, also under `claims`."""
    if isinstance(said, dict) and isinstance(said.get("claims"), dict | list) and "claims" not in tasks:
        yield from _claims_in(said["claims"], tasks, faults)
        said = {name: entry for name, entry in said.items() if name not in ("claims", "updated")}
    if not isinstance(said, list):
        yield from _pairs(said, faults, "it")
        return
    for entry in said:
        match entry:
            case {"task_id": str(name)} | {"task": str(name)} | {"id": str(name)}:
                yield name, entry
            case _:
                faults.append(f"{_short(entry)} names no task")


def _pairs(said: Any, faults: list[str], what: str) -> Iterator[tuple[str, Any]]:
    if isinstance(said, dict):
        yield from said.items()
    elif said is not None:
        faults.append(f"{what} must be an object, not {_short(said)}")


def _owner_of(entry: Any) -> str | None:
    """The agent that a claim names, in any of the words that people use for it."""
    if isinstance(entry, dict):
        entry = next((entry[word] for word in OWNERS if isinstance(entry.get(word), str)), None)
    return entry if isinstance(entry, str) and entry else None


def _short(value: Any) -> str:
    text = msgspec.json.encode(value).decode()
    return text if len(text) <= 100 else f"{text[:100]}…"


def _key_of(name: str) -> str | None:
    """The key of a task, of its id or of the key itself. It is the one under which the board looks for it
    (tests/stores/files/test_board.py: test_a_task_written_by_hand_under_any_id_can_be_claimed_and_done).
    """
    faults: list[Fault] = []
    try:
        id = unquote(name, errors="strict")
    except UnicodeDecodeError:
        return None
    check_name("id", id, faults)
    return None if faults else quote(id, safe="")


def _set(room: FileTables, key: str, value: dict[str, Any], tasks: Tasks) -> None:
    """Change a task, also in `tasks`: one file may tell of it twice, under its key and under its id."""
    tasks[key] = (room.set_cell(TASKS + key, msgspec.json.encode(value).decode()), value)


def _status(tasks: Tasks) -> dict[str, Any]:
    return {key: {**value, "version": version} for key, (version, value) in tasks.items()}


def _claims(tasks: Tasks) -> dict[str, Any]:
    return {
        key: {
            "owner": value["owner"],
            "lease": value.get("lease"),
            "token": value.get("token", version),
            "version": version,
        }
        for key, (version, value) in tasks.items()
        if value.get("owner") is not None and value.get("state") == "claimed"
    }


_json: Final = msgspec.json.Encoder().encode


def _lines(entries: dict[str, Any], indent: bytes) -> bytes:
    """An object with each of its entries on a line of its own: thousands of tasks are written after every change."""
    if not entries:
        return b"{}"
    lines = b",\n".join(indent + _json(id) + b": " + _json(entry) for id, entry in entries.items())
    return b"{\n" + lines + b"\n" + indent[2:] + b"}"
