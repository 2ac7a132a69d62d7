"""The views of the page at one moment, as plain data. Looking changes nothing: no worker is blamed, released or told,
as commands that look at sessions and at the board would do (tests/doors/web/test_views.py).
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from msgspec import to_builtins

from postroom.board.records import Book
from postroom.board.task import DONE, READY, STATES
from postroom.core.clock import from_iso, span_text
from postroom.core.states import State
from postroom.core.system.files import no_follow
from postroom.doors.waits import in_cycles
from postroom.errors import UnknownSession
from postroom.mail import people
from postroom.mail.limiting import RoomLimits, rule_text, running_text
from postroom.mail.receipts import attempts_of
from postroom.pools import report as pool_report
from postroom.room import Room
from postroom.sessions import report as session_report
from postroom.sessions.deadlock import wait_words
from postroom.sessions.members import Standing, members_of
from postroom.sessions.output import ERR, OUT, output_path
from postroom.sessions.record import SessionRecord
from postroom.sessions.report import WorkerInfo
from postroom.stores.contract import Query

from .hour import Hour
from .lines import PREVIEW, line_of, text_of

Data = dict[str, Any]

#: Limits of long lists; the rest is counted.
MAX_CLAIMED: Final = 200
MAX_BOXES: Final = 60
MAX_SCHEDULES: Final = 100
MAX_LIMITS: Final = 100
FAILED_ARE_PASSED: Final = "failed messages with an order key are passed"
MAX_TASKS: Final = 200
MAX_SESSIONS: Final = 50
MAX_WORKERS: Final = 64
MAX_DEAD: Final = 200
#: Of the latest so many dead letters the page tells how many failed in the same way.
MAX_GROUPED: Final = 1000
MAX_DELAYED: Final = 1000
#: Of a task's result, so many characters are shown.
MAX_RESULT: Final = 2000
MAX_DECISIONS: Final = 30
#: Questions to people above every view, and the characters of each.
MAX_QUESTIONS: Final = 20
MAX_QUESTION: Final = 2000
CUT: Final = "… (cut: `postroom questions ID` shows all of it)"
MAX_OUTPUT_BYTES: Final = 16 * 1024

#: Cells in which coordinators keep what they decided begin so.
DECISIONS: Final = "decision/"
#: The cell in which what people did from the page is remembered (`by_hand.py`); a view shows the latest.
DEEDS_CELL: Final = "web-deeds"
MAX_DEEDS_SHOWN: Final = 50
#: The column of tasks that are ready but for others that are not done.
WAITS: Final = "waiting"
#: A session whose opener died before it could say so.
GONE: Final = "gone"
#: Fields of an agent that the page gets as the room has them.
_AGENT_FIELDS: Final = ("name", "status", "alive", "current_task", "pending", "transient")
#: Every view but the first, which is made of frames.
VIEWS: Final = ("agents", "mailboxes", "board", "sessions", "dead")


class Views:
    """The views of one room, looked at again and again."""

    def __init__(self, room: Room, hour: Callable[[], Hour]) -> None:
        self._room = room
        self._hour = hour
        self._book = Book(room.gateway)

    def pulse(self) -> Data:
        """The figures at the top of every view."""
        stats = self._room.stats()
        return {"time_ms": self._room.clock.wall_ms(), "states": stats.states, "questions": self._for_people()}

    def _for_people(self) -> Data:
        """The questions that wait for a person, the oldest first."""
        found = people.open_questions(self._room.gateway, write=False)
        shown = [
            {
                **{field: getattr(each, field) for field in ("id", "asker", "person", "options", "default")},
                "text": text_of({"text": each.text}, MAX_QUESTION) + CUT * (len(each.text) > MAX_QUESTION),
                "until_ms": None if each.deadline is None else from_iso(each.deadline),
            }
            for each in found[:MAX_QUESTIONS]
        ]
        return {"list": shown, "more": len(found) - len(shown)}

    def look(self, view: str, pick: str = "") -> Data:
        """One view; `pick` names what of it was chosen."""
        if view == "sessions":
            return self._sessions(pick)
        if view == "dead":
            return self._dead(pick)
        look: Callable[[], Data] = getattr(self, f"_{view}")
        return look()

    # Agents

    def _agents(self) -> Data:
        room, hour, now_ms = self._room, self._hour(), self._room.clock.wall_ms()
        held = room.peek(state="claimed", order="newest", limit=MAX_CLAIMED)
        paused, agents = room.limits().agents, []
        for agent in room.agents():
            flow = hour.agent_figures(agent.name, now_ms)
            agents.append(
                {
                    **{field: getattr(agent, field) for field in _AGENT_FIELDS},
                    "heartbeat_ms": from_iso(agent.last_heartbeat),
                    "processes": len(agent.processes),
                    "paused": agent.name in paused,
                    "sent_per_s": flow.in_per_s,
                    "ended_per_s": flow.out_per_s,
                    "holds": [line_of(m) for m in held if m.claimed_by == agent.name][:5],
                }
            )
        return {"agents": agents, "waits": [*self._questions(), *self._session_waits()]}

    def _questions(self) -> list[Data]:
        waits = self._room.waits()
        cycles = in_cycles([(wait.asker, wait.peer) for wait in waits])
        return [
            {
                "asker": wait.asker,
                "peer": wait.peer,
                "id": wait.question_id,
                "since_ms": from_iso(wait.since),
                "cycle": cycle,
                "kind": "question",
            }
            for wait, cycle in zip(waits, cycles, strict=True)
        ]

    def _session_waits(self) -> list[Data]:
        """The waits of sessions' members, for mailboxes or workers. In a stuck session, all of them are a cycle."""
        found = []
        infos, _ = session_report.list_sessions(self._room.gateway, blame=False, limit=MAX_SESSIONS)
        for info in infos:
            if info.state not in (session_report.OPEN_STATE, session_report.STUCK):
                continue
            stuck = info.state == session_report.STUCK
            for member in members_of(self._room.gateway, info.id):
                found += [
                    {
                        "asker": member.name,
                        "peer": ", ".join(wait["names"]),
                        "id": info.id,
                        "since_ms": wait["since_ms"],
                        "cycle": stuck and not wait["timed"],
                        "kind": wait["on"],
                    }
                    for wait in member.waits
                    if self._room.store.process_alive(member.process) is not False
                ]
        return found

    # Mailboxes

    def _mailboxes(self) -> Data:
        now_ms = self._room.clock.wall_ms()
        stats, hour = self._room.stats(), self._hour()  # the depth at this moment is known in any case
        depths = {(box.to_agent, box.channel): box for box in stats.mailboxes}
        hour.note_depths({key: box.depth for key, box in depths.items()}, now_ms)
        found = []
        later, limits = self._later(), self._room.limits()
        for key in depths.keys() | hour.boxes(now_ms) | later.keys():
            box, figures = depths.get(key), hour.box_figures(key, now_ms)
            found.append(
                {
                    "to_agent": key[0],
                    "channel": key[1],
                    "depth": 0 if box is None else box.depth,
                    "oldest_ms": None if box is None else box.oldest_ms,
                    "later": len(later.get(key, ())),
                    "next_due_ms": min(later.get(key, ()), default=None),
                    "paused": any(limits.pause_of(*each) is not None for each in ((key[1], None), (None, key[0]))),
                    **figures._asdict(),
                }
            )
        found.sort(key=lambda box: (-box["depth"], -box["in_per_s"], box["to_agent"] or "", box["channel"]))
        for each in found[:MAX_BOXES]:
            each["plot"] = hour.plot((each["to_agent"], each["channel"]), now_ms)._asdict()
        more = max(0, len(found) - MAX_BOXES)
        below = {"limits": limit_rows(limits), "schedules": self._schedules()}
        return {"mailboxes": found[:MAX_BOXES], "more": more, **below, "states": stats.states}

    def _schedules(self) -> Data:
        found = self._room.schedules()
        shown = [
            {
                **{field: getattr(each, field) for field in ("name", "to", "channel", "missed", "sent")},
                "when": f"every {span_text(round(each.every_s * 1000))}"
                if each.every_s
                else f"{each.cron} ({each.zone})",
                "next_ms": None if each.next_tick is None else from_iso(each.next_tick),
                "says": text_of(each.payload, PREVIEW),
            }
            for each in found[:MAX_SCHEDULES]
        ]
        return {"list": shown, "more": len(found) - len(shown)}

    def _later(self) -> dict[tuple[str | None, str], list[int]]:
        """When delayed mail is due, by mailbox: delayed sends, and what is tried again."""
        found: dict[tuple[str | None, str], list[int]] = {}
        for message in self._room.store.find(Query(states=frozenset({State.DELAYED}), limit=MAX_DELAYED)).messages:
            if message.due_ms is not None:
                found.setdefault((message.to_agent, message.channel), []).append(message.due_ms)
        return found

    # Board

    def _board(self) -> Data:
        room = self._room
        found = self._book.all()
        states = {id: str(each.value["state"]) for id, each in found.items()}
        columns: dict[str, list[Data]] = {state: [] for state in (WAITS, *STATES)}
        for each in found.values():
            task = self._book.show(each.value, states.get)
            lease_ms = None if task.lease_until is None else from_iso(task.lease_until)
            result = task.result if isinstance(task.result, dict) else {"value": task.result}
            said = None if task.result is None else text_of(result, MAX_RESULT)
            shown = {**task.to_dict(), "lease_until_ms": lease_ms, "payload": None, "result": said}
            columns[WAITS if task.state == READY and task.unmet else task.state].append(shown)
        columns[DONE].reverse()  # the latest are of interest
        return {
            "columns": [
                {"state": state, "count": len(tasks), "tasks": tasks[:MAX_TASKS]} for state, tasks in columns.items()
            ],
            "reservations": [
                {**each.to_dict(), "until_ms": from_iso(each.until), "since_ms": from_iso(each.since)}
                for each in room.reservations()
            ],
        }

    # Sessions

    def _sessions(self, pick: str) -> Data:
        infos, _ = session_report.list_sessions(self._room.gateway, blame=False)
        shown = infos[::-1][:MAX_SESSIONS]
        chosen = next((info for info in infos if info.id == pick), shown[0] if shown else None)
        return {
            "sessions": [self._session_line(info) for info in shown],
            "more": len(infos) - len(shown),
            "chosen": None if chosen is None else self._session(chosen.id),
            "pools": pools(self._room),
            "decisions": decisions(self._room),
        }

    def _session_line(self, info: session_report.SessionInfo) -> Data:
        return {
            "id": info.id,
            "state": GONE if self._is_left_alone(info) else info.state,
            "opened_ms": from_iso(info.opened),
            "members": info.members,
            "failure": None if info.failure is None else info.failure.message[:200],
        }

    def _is_left_alone(self, info: session_report.SessionInfo) -> bool:
        """Whether the process that opened it is gone, which is not recorded yet. Looking does not record it."""
        if info.state not in (session_report.OPEN_STATE, session_report.STUCK):
            return False
        with suppress(UnknownSession):
            opener = SessionRecord(self._room.gateway, info.id).read().value["opener"]
            return self._room.store.process_alive(opener) is False
        return False

    def _session(self, id: str) -> Data | None:
        try:
            about = session_report.report(self._room.gateway, id, blame=False)
        except UnknownSession:  # cleared away since it was listed
            return None
        members = members_of(self._room.gateway, id)
        folder = Path(about.info.folder)
        return {
            **self._session_line(about.info),
            "failure": None if about.info.failure is None else about.info.failure._asdict(),
            "folder": about.info.folder,
            "workers": [self._worker(worker, members, folder) for worker in about.workers[:MAX_WORKERS]],
            "more_workers": max(0, len(about.workers) - MAX_WORKERS),
            "mailboxes": [box._asdict() for box in about.mailboxes],
        }

    @staticmethod
    def _worker(worker: WorkerInfo, members: Sequence[Standing], folder: Path) -> Data:
        standing = next((each for each in members if each.number == worker.number), None)
        parents = {each.id: each.number for each in members}
        outputs = {stream: tail_of(output_path(folder, worker.number, worker.name, stream)) for stream in (OUT, ERR)}
        return {
            **worker._asdict(),
            "parent": None if standing is None else parents.get(standing.parent or ""),
            "waits": worker.waits if standing is None else [wait_words(wait) for wait in standing.waits],
            "out": outputs[OUT],
            "err": outputs[ERR],
        }

    # Dead letters

    def _dead(self, pick: str) -> Data:
        """The latest dead letters, or those whose error is like the picked one; and the errors there are."""
        room, store = self._room, self._room.store
        found = room.peek(state="dead", order="newest", limit=MAX_GROUPED)
        groups = Counter(error_key(message.error) for message in found)
        chosen = [message.id for message in found if pick in ("", error_key(message.error))][:MAX_DEAD]
        letters = []
        for id in chosen:
            whole = store.get(id)
            if whole is not None and whole.exact_state is State.DEAD:
                attempts = [attempt._asdict() for attempt in attempts_of(whole)]
                letters.append({"line": line_of(whole), "group": error_key(whole.error), "attempts": attempts})
        return {
            "letters": letters,
            "groups": [{"group": group, "count": count} for group, count in groups.most_common()],
            "grouped": len(found),
            "count": room.stats().states.get("dead", 0),
            "deeds": deeds(room)[:MAX_DEEDS_SHOWN],
        }


#: The kind of an error that nobody gave.
NO_REASON: Final = "no reason given"
_VARIES: Final = re.compile(r"0x[0-9a-fA-F]+|[0-9a-fA-F-]{16,}|\d+")


def error_key(error: str | None) -> str:
    """The kind of an error: its first line, with numbers and ids left open."""
    lines = (error or "").strip().splitlines()
    return _VARIES.sub("…", lines[0][:PREVIEW]) if lines else NO_REASON


def limit_rows(limits: RoomLimits) -> Data:
    """The channels that have limits and those that are paused, and the paused agents; what is paused comes first."""
    rows: list[Data] = [
        {
            "channel": each.channel,
            "agent": None,
            "limits": "; ".join([*map(rule_text, each.rules), *[FAILED_ARE_PASSED] * each.pass_failed]),
            "running": running_text(each),
            "waiting": each.waiting,
            "paused": None if each.paused is None else to_builtins(each.paused),
        }
        for each in limits.channels
    ]
    rows += [
        {"channel": None, "agent": name, "limits": "", "running": "", "waiting": None, "paused": to_builtins(paused)}
        for name, paused in limits.agents.items()
    ]
    rows.sort(key=lambda row: row["paused"] is None)
    return {"list": rows[:MAX_LIMITS], "more": max(0, len(rows) - MAX_LIMITS)}


def deeds(room: Room) -> list[Data]:
    """The deeds of people on the page, the latest first."""
    cell = room.store.cell_read(DEEDS_CELL)
    return [] if cell is None else list(reversed(cell.value["deeds"]))


def pools(room: Room) -> list[Data]:
    """The pools that work in the room, as far as they tell of themselves (`pools/report.py`)."""
    return [
        {**pool._asdict(), "since_ms": from_iso(pool.since), "workers": [worker._asdict() for worker in pool.workers]}
        for pool in pool_report.pools(room.gateway)
    ]


def decisions(room: Room) -> list[Data]:
    """The decisions of coordinators about which agent answers which message, from their cells, the latest first.

    A cell that is not understood is left out; one without a decision is being considered.
    """
    found: list[Data] = []
    for cell in room.store.cell_scan(DECISIONS):
        match cell.value:
            case {"until_ms": int(until_ms), "decision": {"outcomes": dict(outcomes), **decision}}:
                shown = [
                    {"name": name, **{field: outcome.get(field) for field in ("granted", "reason", "confidence")}}
                    for name, outcome in outcomes.items()
                    if isinstance(outcome, dict)
                ]
                kept = {field: decision.get(field) for field in ("trigger", "granted", "after_s")}
                found.append(
                    {"message_id": cell.name.removeprefix(DECISIONS), "time_ms": until_ms, **kept, "outcomes": shown}
                )
    return sorted(found, key=lambda each: -each["time_ms"])[:MAX_DECISIONS]


def tail_of(path: Path) -> str:
    """The end of a file, from the beginning of a line; nothing when there is none."""
    with suppress(OSError), open(path, "rb", opener=no_follow) as file:
        file.seek(0, 2)
        start = max(0, file.tell() - MAX_OUTPUT_BYTES)
        file.seek(start)
        text = file.read(MAX_OUTPUT_BYTES).decode("utf-8", "replace")
        return text.partition("\n")[2] if start else text
    return ""
