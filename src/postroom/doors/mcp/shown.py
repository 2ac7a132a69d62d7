"""How messages, tasks and receipts are shown to a model: ids and short bodies, and others' words behind a fence."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any, Final

import msgspec

from postroom.board.reservations import Reserved
from postroom.board.task import Task
from postroom.core import untrusted
from postroom.core.message import Message, readable
from postroom.core.states import NOTES
from postroom.errors import AskFailed, MailboxFull, PostroomError, Refused, how_many_wait
from postroom.mail.presence import AgentInfo
from postroom.mail.reasons import Reason
from postroom.mail.receipts import Receipt

#: A body is cut after so many characters; `inbox(id, offset)` gives the next, larger part.
MAX_BODY: Final = 1500
MAX_PART: Final = 8000
#: A body that the model was shown already is only recalled.
MAX_RECALLED: Final = 80
#: A reason, or what is said of a task, is cut after so many characters; and a list of tasks that one waits for.
MAX_REASON: Final = 300
#: In a list of tasks, each text of one.
MAX_LISTED: Final = 150
MAX_UNMET: Final = 10
#: Reasons of which the whole sentence is told: it names the pause or the limit, which no event of the message does.
HELD_BACK: Final = ("paused", "limited")
#: Stands for a name, a type, a channel or a task that is no plain name: the fence of the same result has it.
QUOTED: Final = "(quoted in the words)"
#: Names inside of a fence are whole: longer than any name of a room.
MAX_QUOTED: Final = 300
#: How a door says that it told somebody: "claude-code PostToolUse", "mcp: it named the id".
_DOORS_WORDS: Final = re.compile(r"[A-Za-z0-9:_ -]{1,40}")


class Words:
    """Others' words in one result: every fence has the same mark, the first one the note."""

    def __init__(self) -> None:
        self._mark = untrusted.new_mark()
        self._noted = False

    def fenced(self, text: str, sender: str | None, facts: Mapping[str, str] | None = None) -> str:
        """The text behind the fence, after the facts that are no plain names; `sender` None is others."""
        note, self._noted = not self._noted, True
        return untrusted.wrap(text, sender, mark=self._mark, note=note, facts=facts)


def name_of(text: str) -> str:
    """A name as it is shown outside of a fence."""
    return text if untrusted.is_plain(text) else QUOTED


def _odd(**names: str) -> dict[str, str]:
    """Those that must stand inside of the fence."""
    return {what: name for what, name in names.items() if not untrusted.is_plain(name)}


def mail(message: Message, words: Words, *, seen_before: bool, offset: int = 0, most: int = MAX_BODY) -> dict[str, Any]:
    """One message. `more` is there when the body was cut: where to go on from."""
    text = readable(message.payload)
    part = text[offset : offset + most]
    end = offset + len(part)
    shown = {
        "id": message.id,
        "from": name_of(message.from_agent),
        "lane": message.lane,
        "type": name_of(message.type),
        "channel": name_of(message.channel),
        "time": message.timestamp,
        "body": words.fenced(part, message.from_agent, _odd(type=message.type, channel=message.channel)),
        "seen_before": seen_before,
    }
    return shown | ({"more": end} if end < len(text) else {})


def answers(came: Iterable[Message], missing: Mapping[str, AskFailed]) -> dict[str, Any]:
    """The answers of several agents, as they came, and why the others gave none."""
    words = Words()
    reasons = [{"name": name_of(name), "why": error(why), "id": why.id} for name, why in missing.items()]
    return {"answers": [mail(message, words, seen_before=False) for message in came], "missing": reasons}


def error(error: PostroomError) -> str:
    """An error as a sentence; one that repeats others' words stands behind a fence."""
    if isinstance(error, MailboxFull):
        box = f"channel {untrusted.head(error.channel, 'of that name')}"
        box = box if error.to is None else f"the mailbox of {untrusted.head(error.to)} in {box}"
        return f"not sent: {box} is full, {how_many_wait(error.waiting)} there. Do something else, and send it again later."
    if isinstance(error, Refused):
        return f"refused; the reason, in its words:\n{Words().fenced(error.reason, None)}"
    text = str(error)
    if error.quotes_others:
        return f"it failed; the reason, in other agents' words:\n{Words().fenced(text, None)}"
    return untrusted.visible(text, keep="\n")


def tasks(found: Iterable[Task], limit: int = 1, offset: int = 0) -> dict[str, Any]:
    """Tasks, from the one at `offset` on, with all texts about them behind one fence; `more` is where to go on from."""
    listed = list(found)
    shown, lines = [], []
    for task in listed[offset : offset + limit]:
        shown.append(_entry(task))
        odd = _odd_names(task, task.unmet)
        facts = "; ".join(f"{what} {untrusted.quoted(name, MAX_QUOTED)}" for what, name in odd.items())
        said = " · ".join(_cut(text, MAX_LISTED) for _, text in _texts(task))
        if said or facts or not untrusted.is_plain(task.id):
            lines.append(f"{untrusted.quoted(task.id, MAX_QUOTED)}{f' ({facts})' if facts else ''}: {said}")
    end = offset + len(shown)
    return {"tasks": shown} | _in_words(lines) | ({"more": end} if end < len(listed) else {})


def whole_task(task: Task, offset: int = 0) -> dict[str, Any]:
    """One task with its texts, from `offset` on, each behind a fence of its own; `more` is where to go on from."""
    words, texts = Words(), _texts(task)
    entry = _entry(task)
    if task.after:
        entry["after"] = [name_of(id) for id in task.after]
    start, left = offset, MAX_PART
    for name, text in texts:
        part = text[start : start + left]
        if part:
            entry[name] = words.fenced(part, None, _odd_names(task, task.after))
        start, left = max(0, start - len(text)), left - len(part)
    end = offset + MAX_PART - left
    return {"tasks": [entry]} | ({"more": end} if end < sum(len(text) for _, text in texts) else {})


def _entry(task: Task) -> dict[str, Any]:
    """What is known of a task, without anybody's words."""
    entry: dict[str, Any] = {"id": name_of(task.id), "state": task.state}
    if task.owner:
        entry["owner"] = name_of(task.owner)
    if task.lease_until:
        entry["until"] = task.lease_until
    if task.unmet:
        entry["unmet"] = [name_of(id) for id in task.unmet[:MAX_UNMET]]
    if len(task.unmet) > MAX_UNMET:
        entry["unmet_more"] = len(task.unmet) - MAX_UNMET
    return entry


def _odd_names(task: Task, others: Iterable[str]) -> dict[str, str]:
    """Those names of a task, and of the tasks that it waits for, that must stand inside of the fence."""
    return _odd(owner=task.owner or "-", **{f"waits for {n}": id for n, id in enumerate(list(others)[:MAX_UNMET])})


def _texts(task: Task) -> list[tuple[str, str]]:
    """What was said of a task: what is to be done, why it stands where it does, its result."""
    more = readable(task.payload) if task.payload else ""
    text = more if more.startswith(task.title) else " · ".join(part for part in (task.title, more) if part)
    result = "" if task.result is None else _as_text(task.result)
    return [(name, said) for name, said in (("text", text), ("why", task.why), ("result", result)) if said]


def _as_text(value: Any) -> str:
    if isinstance(value, str):
        return value
    return readable(value) if isinstance(value, dict) else msgspec.json.encode(value).decode()


def reserved(found: Iterable[Reserved], limit: int) -> dict[str, str]:
    """Which files agents have reserved, one line for each reservation, behind a fence."""
    listed = list(found)
    lines = [
        f"{untrusted.quoted(each.agent, MAX_QUOTED)} until {each.until}{'' if each.exclusive else ' (shared)'}: "
        + _cut(", ".join(untrusted.quoted(glob, MAX_QUOTED) for glob in each.globs), MAX_REASON)
        + (f" · {untrusted.visible(_cut(each.why, MAX_REASON))}" if each.why else "")
        for each in listed[:limit]
    ]
    lines += [f"({len(listed) - limit} more)"] if len(listed) > limit else []
    return {"reserved": Words().fenced("\n".join(lines), None)} if lines else {}


def _cut(text: str, most: int) -> str:
    """The text; where it is longer, its beginning, with a sign that there is more."""
    return text if len(text) <= most else text[: most - 1] + "…"


def _in_words(lines: list[str]) -> dict[str, str]:
    return {"words": Words().fenced("\n".join(lines), None)} if lines else {}


def people(you: str, agents: Iterable[AgentInfo], limit: int) -> dict[str, Any]:
    """The agents of the room; their own descriptions stand behind a fence. `more` are those that are left out."""
    found = list(agents)
    shown, lines = [], []
    for agent in found[:limit]:
        status = "running" if agent.alive else agent.status if agent.alive is None else "gone"
        entry = {"name": name_of(agent.name), "status": name_of(status)}
        shown.append({**entry, "waiting": agent.pending, "last_seen": agent.last_heartbeat})
        odd = _odd(status=status)
        facts = f" (status {untrusted.quoted(status, MAX_QUOTED)})" if odd else ""
        if agent.current_task or odd or not untrusted.is_plain(agent.name):
            lines.append(f"{untrusted.quoted(agent.name, MAX_QUOTED)}{facts}: {_cut(agent.current_task or '', 200)}")
    more = {"more": len(found) - limit} if len(found) > limit else {}
    return {"you": you, "agents": shown, **more, **_in_words(lines)}


def receipt(found: Receipt, why: Reason | None = None, limit: int = 50) -> dict[str, Any]:
    """The newest steps of a message's life, and why it is where it is; reasons and errors are others' words, behind a fence.

    `earlier` is how many steps came before them.
    """
    events: list[dict[str, str]] = []
    lines: list[str] = []
    if why is not None and why.kind in HELD_BACK:
        lines.append(f"{why.kind}: {_cut(why.text, MAX_REASON)}")
    for event in found.events[-limit:]:
        entry = {"event": event.event, "time": event.time}
        if event.agent is not None:
            entry["by"] = name_of(event.agent)
            lines += [f"{event.event} by {untrusted.quoted(event.agent, MAX_QUOTED)}"] if _odd(by=event.agent) else []
        events.append(entry)
        if event.detail and event.event in NOTES and _DOORS_WORDS.fullmatch(event.detail):
            entry["how"] = event.detail
        elif event.detail:
            lines.append(f"{event.event}: {_cut(event.detail, MAX_REASON)}")
    about = {"id": found.id, "state": found.state, "recipient_known": found.recipient_known}
    about |= {} if why is None or why.kind == "ended" else {"why": why.kind}
    about |= {"earlier": len(found.events) - limit} if len(found.events) > limit else {}
    return {**about, "events": events, **_in_words(lines)}
