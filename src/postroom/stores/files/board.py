"""The board's two files, `board/status.json` and `board/claims.json`: what the board's cells say, for readers of files.

Each task is a cell `board/task/<key>` with an object (id, title, state, owner, after, lease, payload, …); its key, here
as in the files, is its id percent-encoded. The files are replaced whole, so that a reader always finds valid JSON: those of
a small board with each change, those of a large one at most so often that it costs a twentieth of the time
(docs/design/files.md). An edit made by hand is taken up, also under the plain id: each task in the files carries the version
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

from .board_mark import NEVER, BoardMark, Written
from .names import folder_of, name_of
from .room import NOTES, ON_BOARD, TASKS, FileTables
from .tree import FileSignature, Tree

BOARD: Final = "board"
STATUS: Final = f"{BOARD}/status.json"
CLAIMS: Final = f"{BOARD}/claims.json"
BOARD_FILES: Final = (STATUS, CLAIMS)
#: The files of a board with so many tasks at most are written with every change.
AT_ONCE: Final = 100
#: Those of a larger one are late by so many seconds at most, or by so many times as long as it takes to write them.
LATE_S: Final = 0.5
LATE_TIMES: Final = 20
#: What is no message, or no JSON, after so long without a change is set aside.
PATIENCE_S: Final = 10.0
#: How the owner of a claim may be called.
OWNERS: Final = ("owner", "agent", "claimed_by", "worker", "session", "from")
NO_JSON: Final = "it is not JSON"
_BROKEN: Final = object()
#: What is said to those whose file was not understood.
FORMS: Final = {
    STATUS: '{"tasks": {"T1": {"title": "…", "state": "ready", "after": []}}} is the expected form, with one entry for '
    'each task;\nanything else is a note, with one entry for each agent: {"notes": {"NAME": {"payload": {…}}}}.\n',
    CLAIMS: '{"T1": {"owner": "worker-1"}} or {"T1": "worker-1"} is the expected form, with one entry for each task.\n',
}
#: The tasks of the board by key: the version of each cell, and its value.
Tasks = dict[str, tuple[int, dict[str, Any]]]
_MOST_BYTES: Final = 64 * 1024 * 1024


class BoardFiles:
    """The two files of one room."""

    def __init__(self, tree: Tree, mark: BoardMark | None) -> None:
        """`mark` None: nothing can be written here."""
        self._tree = tree
        self._mark = mark
        #: Whether somebody may have changed the files.
        self.suspect = True
        #: When the files are to be written, by the steady clock, where they lie behind the cells.
        self.due_ns: int | None = None
        #: Whether the next writing is due at once: somebody edited them, or the room is closed.
        self.must_write = False
        self._written = NEVER
        self._looked: dict[str, FileSignature | None] = {}
        self._broken: dict[
            str, tuple[FileSignature | None, int]
        ] = {}  # a file that is no JSON: its looks, and since when

    # Writing. The caller has the lock, and the cells are written down.

    def follow(self, room: FileTables) -> None:
        """Let the files say what the cells say: now, or at `due_ns` where a large board was written a moment ago."""
        self._written = written = self._mark_now()
        now_ns, self.due_ns = room.clock.steady_ns(), None
        if written.number == room.board_number and not self.must_write:
            return
        due_ns = written.at_ns + max(round(LATE_S * 1e9), LATE_TIMES * written.took_ns)
        is_large = room.cells.count_in(TASKS) > AT_ONCE
        if is_large and not self.must_write and written.at_ns <= now_ns < due_ns:  # a later one is from before a boot
            self.due_ns = due_ns
        else:
            self.write(room)

    def write(self, room: FileTables, paths: Iterable[str] = BOARD_FILES) -> None:
        """Let the files say what the cells say, now. An edit that nobody has looked at is left, to be taken up first."""
        begun_ns = room.clock.steady_ns()
        self._written = self._mark_now()
        for path in list(self._broken):
            self._set_aside(room, path, [NO_JSON])
        mine = [path for path in paths if self._is_known(path)]
        for path in mine:
            data = _status_file(room) if path == STATUS else _claims_file(room)
            self._tree.rename(self._tree.temp(data, sync=False), path)  # made anew from the log after a power cut
            self._looked[path] = self._tree.signature(path)
        self.due_ns, self.must_write = None, False
        if mine != list(BOARD_FILES):
            self.suspect = True
        elif self._mark is not None:
            took_ns = room.clock.steady_ns() - begun_ns
            looks = [self._looked[path] or NEVER.status for path in BOARD_FILES]
            self._mark.write(Written(room.board_number, begun_ns, took_ns, *looks))

    def _mark_now(self) -> Written:
        return NEVER if self._mark is None else self._mark.read()

    def _is_known(self, path: str) -> bool:
        """Whether a file is as it was written, or as it was looked at last."""
        looks = self._tree.signature(path)
        return looks is None or looks == self._looked.get(path) or self._is_ours(path, looks)

    def _is_ours(self, path: str, looks: FileSignature | None) -> bool:
        return looks == (self._written.status if path == STATUS else self._written.claims)

    def forget(self) -> None:
        """Of the files nothing is known any more: after a power cut they may be anything."""
        if self._mark is not None:
            self._mark.write(NEVER)

    # Edits made by hand

    def take_up(self, room: FileTables) -> None:
        """Change the cells as somebody changed the files. The caller has the lock.

        What is not understood is kept in `.postroom/rejected`, with the reason beside it, before the file is written
        anew: with the step, or at once where no cell was changed.
        """
        if not self.suspect:
            return
        self.suspect, self._written = False, self._mark_now()
        edited = {path: said[0] for path in BOARD_FILES if (said := self._edited(room, path))}
        if edited:
            self._take_up_files(room, edited)
        if not any(name.startswith(ON_BOARD) for name in room.took.cells):
            self.follow(room)

    def _take_up_files(self, room: FileTables, edited: dict[str, Any]) -> None:
        tasks = _tasks(room)
        faults = {path: self._take_up_file(room, path, said, tasks) for path, said in edited.items()}
        for path, found in faults.items():
            if found:
                self._set_aside(room, path, found)
        tasks = _tasks(room)
        says = {STATUS: {"tasks": _status(tasks), "notes": _notes(room)}, CLAIMS: _claims(tasks)}
        differs = any(said != says[path] for path, said in _parts(edited).items())
        self.must_write = self.must_write or differs or any(faults.values())

    def _edited(self, room: FileTables, path: str) -> list[Any]:
        """What a file says since it was looked at last; nothing when it is as it was, or half-written by somebody."""
        looks = self._tree.signature(path)
        if path in self._looked and looks == self._looked[path]:
            return []
        if self._is_ours(path, looks):  # written by another process
            self._looked[path] = looks
            self._broken.pop(path, None)
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
            self._looked[path] = self._tree.signature(path)  # which the link has changed
        self._broken.pop(path, None)

    def _take_up_status(self, room: FileTables, said: Any, tasks: Tasks) -> list[str]:
        if not isinstance(said, dict):
            return [f"it must be an object, not {_short(said)}"]
        known = ("updated", "tasks", "notes")
        faults = [f"{_short(name)} is not a known key there" for name in said if name not in known]
        for name, entry in _pairs(said.get("tasks"), faults, "tasks"):
            key = task_key(name)
            if key is None:
                faults.append(f"{_short(name)} cannot be the id of a task")
            elif not isinstance(entry, dict):
                faults.append(f"the entry of {_short(name)} must be an object, not {_short(entry)}")
            else:
                self._take_up_task(room, key, entry, tasks)
        for name, entry in _pairs(said.get("notes"), faults, "notes"):
            if not isinstance(entry, dict) or not isinstance(entry.get("payload"), dict):
                faults.append(f'the note of {_short(name)} must be {{"payload": {{…}}}}, not {_short(entry)}')
            elif name_of(folder_of(name)) != name:
                faults.append(f"{_short(name)} cannot be the name of an agent")
            else:
                _take_up_note(room, name, entry)
        return faults

    def _take_up_claims(self, room: FileTables, said: Any, tasks: Tasks) -> list[str]:
        faults: list[str] = []
        for name, entry in _claims_in(said, tasks, faults):
            key, owner = task_key(name), _owner_of(entry)
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
            said = {**new_task(key), **said}
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


def _take_up_note(room: FileTables, agent: str, entry: dict[str, Any]) -> None:
    """Somebody left a note in the file: as with tasks, it counts unless the version it names is an old one."""
    version, text = room.cells.get(NOTES + agent, (0, "{}"))
    payload = entry["payload"]
    if entry.get("version", version) == version and decode_payload(text).get("payload") != payload:
        note = {"payload": payload, "at_ms": room.clock.wall_ms()}
        room.set_cell(NOTES + agent, msgspec.json.encode(note).decode())


def _parts(edited: dict[str, Any]) -> dict[str, Any]:
    """What files say of tasks, notes and claims."""
    status = edited.get(STATUS)
    if not isinstance(status, dict):
        return edited
    return {**edited, STATUS: {name: status.get(name) or {} for name in ("tasks", "notes")}}


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


def new_task(key: str) -> dict[str, Any]:
    """A task that somebody names by hand, as it is when nothing more is said of it."""
    id = unquote(key)
    return {"id": id, "title": id, "state": "ready", "owner": None, "after": [], "lease": None, "payload": {}}


def task_key(name: str) -> str | None:
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


def _tasks(room: FileTables) -> Tasks:
    """The tasks of the board by key: the version of each cell, and its value."""
    tasks: Tasks = {}
    for name in room.cells.starting(TASKS):
        version, text = room.cells[name]
        value = decode_payload(text)
        if isinstance(value, dict):
            tasks[name.removeprefix(TASKS)] = (version, value)
    return tasks


def _status(tasks: Tasks) -> dict[str, Any]:
    return {key: {**value, "version": version} for key, (version, value) in tasks.items()}


def _notes(room: FileTables) -> dict[str, Any]:
    return {agent: msgspec.json.decode(entry) for agent, entry in _entries(room, NOTES)}


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


def _status_file(room: FileTables) -> bytes:
    head = b'{\n  "updated": %s,\n  "tasks": ' % _json(iso(room.clock.wall_ms()))
    notes = _lines(_entries(room, NOTES), "    ")
    more = b"" if notes == b"{}" else b',\n  "notes": ' + notes
    return head + _lines(_entries(room, TASKS), "    ") + more + b"\n}\n"


def _entries(room: FileTables, of: str) -> Iterator[tuple[str, str]]:
    """The entries of all tasks, or notes, made of the text of their cells: there may be a hundred thousand."""
    cells, start = room.cells, len(of)
    for name in cells.starting(of):
        version, text = cells[name]
        if text[:1] != "{":
            continue
        if text == "{}" or '"version"' in text:
            yield name[start:], _json({**decode_payload(text), "version": version}).decode()
        else:
            yield name[start:], f'{text[:-1]},"version":{version}}}'


def _claims_file(room: FileTables) -> bytes:
    claimed: Tasks = {}
    for name in room.cells.starting(TASKS):
        version, text = room.cells[name]
        if '"claimed"' in text and isinstance(value := decode_payload(text), dict):
            claimed[name.removeprefix(TASKS)] = (version, value)
    claims = ((key, _json(entry).decode()) for key, entry in _claims(claimed).items())
    return _lines(claims, "  ") + b"\n"


def _lines(entries: Iterable[tuple[str, str]], indent: str) -> bytes:
    """An object with each of its entries, which are JSON, on a line of its own."""
    lines = ",\n".join(f"{indent}{_json(key).decode()}: {entry}" for key, entry in entries)
    return f"{{\n{lines}\n{indent[2:]}}}".encode() if lines else b"{}"
