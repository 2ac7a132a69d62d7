"""The board's two files, `board/status.json` and `board/claims.json`: what the board's cells say, for those who read files.

Each task is a cell `board/task/<key>` with an object (id, title, state, owner, after, lease, payload, …); its key, here as
in the files, is its id percent-encoded. The files are replaced whole after each change, so that a reader always finds
valid JSON. An edit made by hand is taken up, also under the plain id: each task in the files carries the version of its
cell, and counts only if that is still the cell's own.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from typing import Any, Final
from urllib.parse import quote, unquote

import msgspec

from ..clock import iso
from ..errors import Fault, InvalidMessage
from ..message import Draft, check, check_name, decode_payload
from .files_room import FileTables
from .files_tree import Tree

BOARD: Final = "board"
STATUS: Final = f"{BOARD}/status.json"
CLAIMS: Final = f"{BOARD}/claims.json"
TASKS: Final = f"{BOARD}/task/"
#: The tasks of the board by key: the version of each cell, and its value.
Tasks = dict[str, tuple[int, dict[str, Any]]]
_MOST_BYTES: Final = 64 * 1024 * 1024


class Board:
    """The two files of one room."""

    def __init__(self, tree: Tree) -> None:
        self._tree = tree
        #: Whether somebody may have changed the files.
        self.suspect = True
        self._looked: list[object] = []
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

    def write(self, room: FileTables) -> None:
        """Let the files say what the cells say."""
        tasks = self.tasks(room)
        head = b'{\n  "updated": %s,\n  "tasks": ' % _json(iso(room.clock.wall_ms()))
        self._replace(STATUS, head + _lines(_status(tasks), b"    ") + b"\n}\n")
        self._replace(CLAIMS, _lines(_claims(tasks), b"  ") + b"\n")
        self._looked = self._signatures()

    def _replace(self, path: str, data: bytes) -> None:
        self._tree.rename(self._tree.temp(data, sync=False), path)  # made anew from the log after a power cut

    def _signatures(self) -> list[object]:
        return [self._tree.signature(STATUS), self._tree.signature(CLAIMS)]

    # Edits made by hand

    def take_up(self, room: FileTables) -> None:
        """Change the cells as somebody changed the files. The caller has the lock."""
        if not self.suspect:
            return
        self.suspect = False
        looks = self._signatures()
        if looks == self._looked:
            return
        status, claims = self._read(STATUS), self._read(CLAIMS)
        if status is None or claims is None:  # half-written by somebody: look again
            return
        self._looked = looks
        tasks = self.tasks(room)
        edited = status.get("tasks")
        for key, entry in _entries(edited):
            self._take_up_task(room, key, entry, tasks)
        for key, entry in _entries(claims):
            if key in tasks:
                self._take_up_claim(room, key, entry, tasks)
        tasks = self.tasks(room)
        if (edited, claims) != (_status(tasks), _claims(tasks)) and (tasks or edited or claims):
            self.write(room)

    def _read(self, path: str) -> dict[str, Any] | None:
        try:
            value = msgspec.json.decode(self._tree.read(path, _MOST_BYTES))
        except FileNotFoundError:
            return {}
        except (OSError, msgspec.DecodeError, UnicodeDecodeError):
            return None
        return value if isinstance(value, dict) else {}

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

    def _take_up_claim(self, room: FileTables, key: str, entry: dict[str, Any], tasks: Tasks) -> None:
        (version, value), id = tasks[key], unquote(key)
        owner = entry.get("owner")
        if not isinstance(owner, str) or owner == value.get("owner") or entry.get("version", version) != version:
            return
        if value.get("owner") is None and value.get("state") == "ready":
            _set(room, key, {**value, "state": "claimed", "owner": owner, "lease": entry.get("lease")}, tasks)
            return
        said = f"{id} is {value.get('state')}" + (f" by {value['owner']}" if value.get("owner") else "")
        payload = {"task_id": id, "text": f"your claim in {CLAIMS} did not count: {said}"}
        with suppress(InvalidMessage):  # that is no agent's name: nobody to tell
            room.insert(check(Draft(from_agent=BOARD, to_agent=owner, type="info", payload=payload)), owner)


def _entries(said: object) -> Iterator[tuple[str, dict[str, Any]]]:
    """What somebody wrote of tasks, each under its key; what is no task's name is passed over."""
    for name, entry in (said if isinstance(said, dict) else {}).items():
        key = _key_of(name)
        if key is not None and isinstance(entry, dict):
            yield key, entry


def _key_of(name: str) -> str | None:
    """The key of a task, of its id or of the key itself. It is the one under which the board looks for it
    (tests/test_files_board.py: test_a_task_written_by_hand_under_any_id_can_be_claimed_and_done).
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
