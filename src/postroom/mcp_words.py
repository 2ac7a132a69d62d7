"""How messages, tasks and receipts are shown to a model: ids and short bodies, and others' words behind a fence."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from . import fence
from .message import Message
from .presence import AgentInfo
from .receipts import Receipt
from .states import NOTES
from .tasks import Task

#: A body is cut after so many characters; `inbox(id, offset)` gives the next, larger part.
MAX_BODY: Final = 1500
MAX_PART: Final = 8000
#: What a model was shown already is only recalled.
MAX_RECALLED: Final = 80
#: Names, types and ids of tasks are somebody's words too: they are shown up to so many characters.
MAX_NAME: Final = 100


class Words:
    """What one result shows of others' words: every fence has the same mark, the first one the note."""

    def __init__(self) -> None:
        self._mark = fence.new_mark()
        self._noted = False

    def fenced(self, text: str, sender: str) -> str:
        """The text behind the fence."""
        note, self._noted = not self._noted, True
        return fence.wrap(text, sender, mark=self._mark, note=note)


def name_of(text: str) -> str:
    """A name as it is shown outside of a fence."""
    shown = fence.visible(text)
    return shown if len(shown) <= MAX_NAME else shown[:MAX_NAME] + "…"


def text_of(payload: Mapping[str, Any]) -> str:
    """A payload as text: its text alone where that is all, otherwise as JSON."""
    import msgspec

    if set(payload) == {"text"} and isinstance(payload["text"], str):
        return payload["text"]
    return msgspec.json.encode(payload).decode()


def mail(message: Message, words: Words, *, seen_before: bool, offset: int = 0, most: int = MAX_BODY) -> dict[str, Any]:
    """One message. `more` is there when the body was cut: where to go on from."""
    text = text_of(message.payload)
    part = text[offset : offset + most]
    end = offset + len(part)
    shown = {
        "id": message.id,
        "from": name_of(message.from_agent),
        "lane": message.lane,
        "type": name_of(message.type),
        "channel": name_of(message.channel),
        "time": message.timestamp,
        "body": words.fenced(part, message.from_agent),
        "seen_before": seen_before,
    }
    return shown | ({"more": end} if end < len(text) else {})


def tasks(found: Iterable[Task], limit: int) -> dict[str, Any]:
    """Tasks, with what people wrote about them behind one fence."""
    listed = list(found)
    shown, lines = [], []
    for task in listed[:limit]:
        entry: dict[str, Any] = {"id": name_of(task.id), "state": task.state}
        if task.owner:
            entry["owner"] = name_of(task.owner)
        if task.unmet:
            entry["unmet"] = [name_of(id) for id in task.unmet[:10]]
        shown.append(entry)
        said = " · ".join(part for part in (task.title, _short(task.payload), task.why) if part)
        if said:
            lines.append(f"{task.id}: {said[:300]}")
    if len(listed) > limit:
        lines.append(f"({len(listed) - limit} more tasks)")
    result: dict[str, Any] = {"tasks": shown}
    return result | ({"words": Words().fenced("\n".join(lines), "those who wrote the tasks")} if lines else {})


def _short(payload: Mapping[str, Any]) -> str:
    return text_of(payload)[:200] if payload else ""


def people(you: str, agents: Iterable[AgentInfo]) -> dict[str, Any]:
    """Who is here; what they say of themselves stands behind a fence."""
    shown, lines = [], []
    for agent in agents:
        status = "running" if agent.alive else agent.status if agent.alive is None else "gone"
        shown.append(
            {
                "name": name_of(agent.name),
                "status": name_of(status),
                "waiting": agent.pending,
                "last_seen": agent.last_heartbeat,
            }
        )
        if agent.current_task:
            lines.append(f"{agent.name}: {agent.current_task[:200]}")
    result: dict[str, Any] = {"you": you, "agents": shown}
    return result | ({"words": Words().fenced("\n".join(lines), "each agent about its task")} if lines else {})


def receipt(found: Receipt, limit: int = 50) -> dict[str, Any]:
    """What became of a message, the newest steps; reasons and errors are somebody's words."""
    events, lines = [], []
    for event in found.events[-limit:]:
        entry = {"event": event.event, "time": event.time}
        if event.agent is not None:
            entry["by"] = name_of(event.agent)
        events.append(entry)
        if event.detail and event.event in NOTES:
            entry["how"] = name_of(event.detail)  # a door's own words
        elif event.detail:
            lines.append(f"{event.event}: {event.detail[:300]}")
    result: dict[str, Any] = {
        "id": found.id,
        "state": found.state,
        "recipient_known": found.recipient_known,
        "events": events,
    }
    return result | ({"words": Words().fenced("\n".join(lines), "those who handled it")} if lines else {})
