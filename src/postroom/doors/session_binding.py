"""The binding of an agent program's session to an agent of the room, and the mail that the session was told of.

Hooks and the MCP server of one session are different processes that must agree. They meet in the cell "door/<agent>":

    {"host": "claude-code", "session": "…", "process": "host:pid:start", "attended": True, "told": [ids], "held_back": id,
     "busy_until_ms": …, "since_ms": …}

`told` are the unread messages that the session was pointed at already, so that each is told once, and told again when it
comes back. A name whose program is gone goes to the next session of the same kind.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Final, NamedTuple
from urllib.parse import quote

from postroom.core import untrusted
from postroom.core.config import RoomUrl, room_folder
from postroom.core.message import Message
from postroom.core.states import State
from postroom.core.system.process import process_alive
from postroom.errors import RoomBusy
from postroom.mail import presence
from postroom.mail.gateway import Gateway
from postroom.stores.cells import update
from postroom.stores.contract import Query

CELLS: Final = "door/"
#: So many unread messages are looked at; a pointer names the first few.
MAX_UNREAD: Final = 50
MAX_POINTED: Final = 5
MAX_PREVIEW: Final = 120
BUSY_MS: Final = 60_000
_MAX_NAMES: Final = 100

Value = dict[str, Any]


class HostSession(NamedTuple):
    """An agent program's session, as far as it tells of itself."""

    host: str
    default_name: str
    session: str | None = None
    process: str | None = None
    attended: bool = False
    #: Whether its name is only what its client calls itself: an agent that has that name already keeps it.
    is_stranger: bool = False


def bind(gateway: Gateway, caller: HostSession, name: str | None = None) -> str:
    """The session's name in this room: the given one, the one it has, or a free one of its kind. It is bound to it."""
    for candidate in _candidates(gateway, caller, name):
        if _take(gateway, caller, candidate, sure=name is not None):
            return candidate
    raise RoomBusy(f"no free name like {caller.default_name} was found; set POSTROOM_AGENT")


def _candidates(gateway: Gateway, caller: HostSession, name: str | None) -> Iterable[str]:
    if name is not None:
        return [name]
    mine = [name for name, value in bound_to(gateway, caller.host).items() if _is_same(value, caller)]
    numbered = (f"{caller.default_name}-{number}" for number in range(2, _MAX_NAMES))
    return [*mine, caller.default_name, *numbered]


def _is_same(value: Value, caller: HostSession) -> bool:
    """Whether the cell is this session's; a session that cannot say which it is, is the one that is there."""
    said = {"session": caller.session, "process": caller.process}
    known = [field for field in said if said[field] is not None]
    return not known or any(value[field] == said[field] for field in known)


def _take(gateway: Gateway, caller: HostSession, name: str, *, sure: bool) -> bool:
    taken = False

    def change(value: Value | None) -> Value | None:
        nonlocal taken
        if value is None:
            taken = not sure and caller.is_stranger and presence.look(gateway, name) is not None
        else:
            taken = not sure and not _is_same(value, caller) and _is_taken(value, caller)
        after = _bound(value, caller, gateway.clock.wall_ms())
        return None if taken or after == value else after

    _update_cell(gateway, name, change)
    return not taken


def _is_taken(value: Value, caller: HostSession) -> bool:
    """Whether another session has the name. Of programs without a process of their own, the newest has it."""
    if value["host"] != caller.host:
        return True
    return value["process"] is not None and process_alive(value["process"]) is not False


def _bound(value: Value | None, caller: HostSession, now_ms: int) -> Value:
    if value is None or (caller.session is not None and value["session"] != caller.session):
        value = {"told": [], "held_back": None, "since_ms": now_ms}  # another session: it was told nothing yet
    return {
        "host": caller.host,
        "session": caller.session or value.get("session"),
        "process": caller.process or value.get("process"),
        "attended": caller.attended or bool(value.get("attended")),
        "told": value["told"],
        "held_back": value["held_back"],
        "busy_until_ms": value.get("busy_until_ms", 0),
        "since_ms": value.get("since_ms", now_ms),
    }


def look(gateway: Gateway, name: str) -> Value | None:
    """The session that is bound to a name; None when none is."""
    cell = gateway.store.cell_read(CELLS + name)
    return None if cell is None else cell.value


def bound_to(gateway: Gateway, host: str) -> dict[str, Value]:
    """The names that sessions of one kind have, with their cells."""
    cells = gateway.store.cell_scan(CELLS)
    return {cell.name.removeprefix(CELLS): cell.value for cell in cells if cell.value["host"] == host}


def listed(gateway: Gateway, name: str, session: str) -> None:
    """The session's program has asked our server for its tools: from now on its model has them."""
    _update(gateway, name, lambda value: value | {"listed": session} if value["session"] == session else None)


def leave(gateway: Gateway, caller: HostSession, name: str) -> None:
    """The session ended: its name is free for the next one."""
    free: Value = {"session": None, "process": None, "attended": False}
    _update(gateway, name, lambda value: value | free if _is_same(value, caller) else None)


# Telling a session of its mail


def unread(gateway: Gateway, name: str) -> list[Message]:
    """The messages that wait for the agent, in the order in which it would get them."""
    query = Query(states=frozenset({State.READY}), visible_to=name, order="claim", limit=MAX_UNREAD)
    return gateway.store.find(query).messages


def _left_over(gateway: Gateway, name: str, value: Value) -> list[Message]:
    """Claims that an earlier session of this agent left unsettled: to this one they are news."""
    since_ms = value.get("since_ms", 0)
    return [
        m for m in presence.held_by(gateway, name) if m.owner is None and (m.last_delivered_ms or since_ms) < since_ms
    ]


def news(gateway: Gateway, name: str) -> list[Message]:
    """The waiting and left-over messages that the agent's session was not told of."""
    value = look(gateway, name)
    if value is None:
        return unread(gateway, name)
    found = [*_left_over(gateway, name, value), *unread(gateway, name)]
    return [message for message in found if message.id not in value["told"]]


def tell(gateway: Gateway, name: str, messages: list[Message], how: str | None) -> list[Message]:
    """The session is told of these now: those of them that still wait and that nobody else tells it of.

    After: they are not told again while they stay unread, and their ledgers say "notified", and by which door. With None
    they do not say so yet: the caller notes it when the door has taken them (`note`), or takes it back (`untell`).
    """
    fresh: list[Message] = []

    def change(value: Value) -> Value | None:
        waiting = [message.id for message in (*_left_over(gateway, name, value), *unread(gateway, name))]
        before = set(value["told"])
        fresh[:] = [message for message in messages if message.id in waiting and message.id not in before]
        told = [id for id in waiting if id in before or any(id == message.id for message in fresh)]
        return value | {"told": told} if told != value["told"] else None

    _update(gateway, name, change)
    if how is not None:
        note(gateway, name, fresh, how)
    return fresh


def note(gateway: Gateway, name: str, messages: list[Message], how: str) -> None:
    """A door has taken a notice of these."""
    for message in messages:
        gateway.store.note(message.id, "notified", name, how)


def untell(gateway: Gateway, name: str, messages: list[Message]) -> None:
    """It could not be told after all."""
    ids = {message.id for message in messages}
    _update(gateway, name, lambda value: value | {"told": [id for id in value["told"] if id not in ids]})


def hold_back(gateway: Gateway, name: str) -> list[Message]:
    """The messages that the session should read before it stops; [] when it was held back for just these already."""
    waiting = unread(gateway, name)
    if not waiting:
        return []
    these = f"{max(message.id for message in waiting)} {len(waiting)}"
    held: list[bool] = []

    def change(value: Value) -> Value | None:
        held[:] = [value["held_back"] != these]
        return value | {"held_back": these} if held[0] else None

    _update(gateway, name, change)
    return waiting if held and held[0] else []


def _update(gateway: Gateway, name: str, change: Callable[[Value], Value | None]) -> None:
    """Change a door's cell, if there is one; None from `change` leaves it as it is."""
    _update_cell(gateway, name, lambda value: None if value is None else change(value))


def _update_cell(gateway: Gateway, name: str, change: Callable[[Value | None], Value | None]) -> None:
    busy = f"too many processes are changing the door of {name} at once; try again"
    update(gateway.store, CELLS + name, change, busy=busy)


def busy(gateway: Gateway, name: str, *, working: bool) -> None:
    """The session is in the middle of a turn, whose steps will tell it of mail; or its turn is over.

    A program that is interrupted does not say so: after a minute without a step it counts as idle again.
    """
    now_ms = gateway.clock.wall_ms()

    def change(value: Value) -> Value | None:
        left_ms = value.get("busy_until_ms", 0) - now_ms
        if working:
            return None if left_ms > BUSY_MS / 2 else value | {"busy_until_ms": now_ms + BUSY_MS}
        return value | {"busy_until_ms": 0} if left_ms > 0 else None

    _update(gateway, name, change)


def is_busy(gateway: Gateway, value: Value) -> bool:
    """Whether the session is in the middle of a turn, as far as it has told."""
    return 0 < int(value.get("busy_until_ms", 0)) - gateway.clock.wall_ms() <= BUSY_MS


def pointer(name: str, messages: list[Message], how_to_read: str) -> str:
    """A short notice of new mail: how many, from whom, and how each begins; never the whole of it.

    A name is somebody's choice too: outside of the fence stand only those that look like names.
    """
    senders = dict.fromkeys(untrusted.head(message.from_agent) for message in messages)
    whom = ", ".join(list(senders)[:MAX_POINTED]) + (" and others" if len(senders) > MAX_POINTED else "")
    more = f" The first {MAX_POINTED}:" if len(messages) > MAX_POINTED else ""
    lines = [_preview(message) for message in messages[:MAX_POINTED]]
    count = f"{len(messages)}{' or more' if len(messages) >= MAX_UNREAD else ''}"
    head = f"postroom: {count} new for {untrusted.quoted(name)} from {whom}. {how_to_read}{more}"
    return f"{head}\n{untrusted.wrap(chr(10).join(lines), None)}"


def _preview(message: Message) -> str:
    text = message.payload.get("text")
    said = text if isinstance(text, str) else str(message.payload)
    short = said if len(said) <= MAX_PREVIEW else said[:MAX_PREVIEW] + "…"
    notes = " (a person)" if message.lane == "human" else ""
    notes += " (taken before, not finished)" if message.exact_state is State.CLAIMED else ""
    return f"{message.id} from {untrusted.quoted(message.from_agent, 300)}{notes}: {short}".replace("\n", " ")


def signal_path(url: RoomUrl, name: str) -> Path:
    """The file whose change wakes a session that watches it. It need not be there yet."""
    folder = room_folder(url)
    if folder is None:
        return Path.home() / ".cache" / "postroom" / "signals" / quote(str(url), safe="") / quote(name, safe="")
    inner = folder / ".postroom" if url.scheme == "files" else folder
    return inner / "signals" / quote(name, safe="")


def touch_signal(path: Path, text: str = "") -> None:
    """Make a signal's file where there is none, and write a text into it. OSError, also for a link in its place."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        os.utime(descriptor)
        if text:
            os.ftruncate(descriptor, 0)
            os.write(descriptor, text.encode("ascii"))
    finally:
        os.close(descriptor)
