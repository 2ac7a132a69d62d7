"""What a dropped file tells another agent and the board is to know, too: an assignment, a report, an abort.

In the source's protocol a lead drops `implement` and `abort` into a worker's inbox, and a worker leaves `done` and
`blocked` in its outbox; neither of them writes to the board. Processes of Postroom go by the board. So a task that a lead
assigns is put on the board, and of the others it gets a `status` that names the dropped message as its `report`: both in
the step that takes the file in. `postroom/board/mail.py` says what follows from a report.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

from postroom.core.message import Draft, check, decode_payload

from .board import BOARD, new_task, task_key
from .message import UNKNOWN_SENDER, Body
from .names import action_of
from .resting import FileRow
from .room import SIGNALS, TASKS, FileTables

LEAD: Final = "lead"
#: The cell with the names of other leads.
LEADS: Final = "board-lead"
_ASSIGNMENT: Final = "implement"
_REPORTS: Final = (*SIGNALS, "abort")
#: Between these and an agent nothing is said that the board has to be told.
_NOBODY: Final = frozenset({None, BOARD, UNKNOWN_SENDER})


def pass_on(room: FileTables, row: FileRow) -> None:
    """Let the board know of a message that somebody dropped for an agent, if it is about tasks."""
    draft = row.draft
    if not row.dropped or {draft.to_agent, draft.from_agent} & _NOBODY:
        return
    if draft.type == _ASSIGNMENT:
        _add_assigned(room, draft.from_agent, draft.to_agent, room.payload_of(row))
    elif draft.type in _REPORTS and room.cells.count_in(TASKS):  # where there is no task, nothing can follow
        said = Draft(from_agent=draft.from_agent, to_agent=BOARD, type="status", payload={"report": row.id})
        room.insert(check(said), BOARD)


def _add_assigned(room: FileTables, sender: str, worker: str | None, said: dict[str, Any]) -> None:
    """Put a task on the board that a lead assigns to a worker. One that is there stays as it is."""
    leads, id = [LEAD, *(_cell(room, LEADS) or ())], said.get("task_id")
    key = task_key(id) if isinstance(id, str) else None
    if key is None or f"{TASKS}{key}" in room.cells or sender not in leads or worker in leads:
        return
    usual = new_task(key)
    title = next((said[name] for name in ("title", "spec") if isinstance(said.get(name), str)), usual["title"])
    payload = {name: value for name, value in said.items() if name not in ("task_id", "title", "after")}
    task = {**usual, "title": title, "after": said.get("after", []), "payload": payload, "lead": sender}
    room.set_cell(TASKS + key, msgspec.json.encode(task).decode())


def _cell(room: FileTables, name: str) -> Any:
    return decode_payload(room.cells[name][1]) if name in room.cells else None


def lead_of_report(room: FileTables, body: Body, file: str) -> str | None:
    """The agent to be told of a report that names no recipient: the lead of its task; None where there is none."""
    fields = body.fields
    if (fields.get("action") or action_of(file)) not in SIGNALS:
        return None
    id = fields.get("task_id")
    task = _cell(room, f"{TASKS}{task_key(id)}") if isinstance(id, str) else None
    lead = task.get("lead") if isinstance(task, dict) else None
    return lead if isinstance(lead, str) and lead else None
