"""Presence: the agents of a room, their heartbeats, whether they still run, and which messages they hold.

Every agent has a cell "agent/<name>" that all processes change by compare-and-set:

    {"status": "active", "current_task": None, "heartbeat_ms": …, "heartbeat_room_ms": …, "first_seen_ms": …,
     "processes": [...], "transient": False, "kept_ms": …}

`processes` are those that have the agent open (see `core.system.process.this_process`). Where their locks or pids can
be seen, they are gone the moment they are; all others are judged by their heartbeat, whose time is told by the wall
clock and by the room's.

Heartbeats cost per process, not per agent: a process writes one cell "process/<process>" for all agents that it has
open, and an agent was last heard of when its own cell says so, or that of one of its processes (`last_heard`).

Claims of one-shot commands, hooks and MCP servers belong to the agent, and no process extends their leases. Whenever the
agent shows that it lives, they get their ten minutes anew; `kept_ms` is when that was last done.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from typing import Any, Final, NamedTuple

from postroom.core.clock import iso
from postroom.core.config import AGENT_LEASE_S, HEARTBEAT_S
from postroom.core.message import GROUP_SIGN, Message
from postroom.core.states import OPEN, State
from postroom.stores.cells import update
from postroom.stores.contract import MailboxFigures, Query, Ticket

from .gateway import Gateway

ACTIVE: Final = "active"
STOPPED: Final = "stopped"
GONE: Final = "gone"
SEEN: Final = "seen"
#: The words for how an agent is, unless it says another one of itself, as the help tells them.
STATUSES: Final = {
    ACTIVE: "a running process has it open",
    STOPPED: "every process that had it open has closed it",
    GONE: "the last process that had it open died",
    SEEN: "only commands or hooks have used its name, or its HTTP connection has ended",
}

#: An agent that nobody can see the process of counts as running for this long after a heartbeat.
HEARTBEAT_LATE_S: Final = 3 * HEARTBEAT_S
#: What an agent holds is extended at most this often, in seconds: a sign of life costs a look at its cell, mostly.
KEEP_EVERY_S: Final = 60.0
#: After so long without a heartbeat it counts as gone: nobody is to wait for it for ever.
SILENT_S: Final = 12 * HEARTBEAT_S
_MANY: Final = 10_000
#: Leases end in the room's time, and are told in that of the wall clock.
_ROUNDING_MS: Final = 1000
CELLS: Final = "agent/"
#: The cells in which processes say that they live: {"heartbeat_ms": …, "heartbeat_room_ms": …}.
PROCESSES: Final = "process/"
#: The cells of groups (`groups.py`).
GROUPS: Final = "group/"
#: The cells of tokens (`tokens.py`).
TOKENS: Final = "token/"

Value = dict[str, Any]

SECOND_NS: Final = 1_000_000_000
_MAX_SEEN: Final = 1000
_seen_alive_ns: dict[str, int] = {}  # process -> when it was seen to run


class AgentInfo(NamedTuple):
    """What is known of one agent. `alive` is None when its processes cannot be seen from here."""

    name: str  # the agent's
    status: str  # active, stopped, gone, seen, or what the agent says of itself
    alive: bool | None  # whether a process has it open; None: cannot be seen from here
    current_task: str | None  # what it said last that it works on
    last_heartbeat: str  # when it was last heard of, as ISO 8601 text
    pending: int  # how many messages wait for it
    processes: list[str]  # those that have it open
    transient: bool  # whether only commands or hooks speak in its name


def enter(gateway: Gateway, name: str, *, transient: bool) -> None:
    """The agent is open in this process; or, transient, was only seen. One read when the room knows that already.

    An agent that was seen has shown that it lives: what it holds is its own for ten minutes from now on, to the minute.
    """
    keeps = False

    def is_right(value: Value) -> bool:
        return value["status"] not in (STOPPED, GONE) if transient else gateway.process in value["processes"]

    def change(value: Value | None) -> Value | None:
        nonlocal keeps
        now_ms = gateway.clock.wall_ms()
        if value is None:
            value = _newcomer(now_ms, SEEN if transient else ACTIVE, transient)
        else:
            keeps = transient and abs(now_ms - value.get("kept_ms", 0)) >= KEEP_EVERY_S * 1000
            if not keeps and is_right(value) and _is_fresh(last_heard(gateway, value), now_ms):
                return None
        value = _heard(gateway, _without_the_dead(gateway, value), now_ms)
        if not transient:
            return _joined(value, gateway.process)
        value |= {"kept_ms": now_ms} if keeps else {}
        return value | {"status": SEEN, "transient": True} if value["status"] in (STOPPED, GONE) else value

    _update(gateway, name, change)
    if keeps:
        keep(gateway, held_by(gateway, name))


def keep(gateway: Gateway, held: Iterable[Message]) -> None:
    """Let these claims have their ten minutes anew: those that belong to the agent, and not to a process.

    A lease that was asked to be shorter stays as it is, and none is kept for longer than the room's `max_hold_s` after the
    claim. Like every heartbeat, this leaves no line in a ledger and waits for no disk.
    """
    least_ms, now_ms, most_s = AGENT_LEASE_S * 1000 - _ROUNDING_MS, gateway.clock.wall_ms(), gateway.config.max_hold_s
    tickets: dict[float, list[Ticket]] = {}  # by the seconds that they get
    for message in held:
        since_ms = message.last_delivered_ms or 0
        if message.owner is None and (message.lease_until_ms or 0) - since_ms >= least_ms:
            left_s = AGENT_LEASE_S if most_s is None else most_s - (now_ms - since_ms) / 1000
            ticket = Ticket(message.id, message.token, str(message.claimed_by))
            tickets.setdefault(min(AGENT_LEASE_S, left_s), []).append(ticket)
    for span_s, together in tickets.items():
        if span_s > 0:
            gateway.store.heartbeat(together, span_s)


def beat(gateway: Gateway, name: str, status: str | None = None, current_task: str | None = None) -> None:
    """The agent is alive. With a status, it also says how it is and what it does; without one, that stays as it was."""

    def change(value: Value | None) -> Value | None:
        now_ms = gateway.clock.wall_ms()
        value = value or _newcomer(now_ms, ACTIVE, transient=True)
        if status is not None:
            value = value | {"status": status, "current_task": current_task}
        elif _is_fresh(value, now_ms, HEARTBEAT_S / 2) and gateway.process in value["processes"]:
            return None  # another process that has the same agent open was faster
        else:
            value = _joined(value, gateway.process)
        return _heard(gateway, value, now_ms)

    _update(gateway, name, change)


def beat_process(gateway: Gateway) -> bool:
    """This process lives, and with it every agent that it has open. Returns whether that was known.

    If not, it is new, or was taken for gone, and its agents have to say themselves that they are open here (`beat`).
    """
    name, heard = PROCESSES + gateway.process, _heard(gateway, {}, gateway.clock.wall_ms())
    cell = gateway.store.cell_read(name)
    if cell is not None and gateway.store.cell_write(name, heard, expect=cell.version) is not None:
        return True
    # none is there, or the process that keeps house deleted it just now (tests/mail/test_idle_cost.py)
    gateway.store.cell_write(name, heard)
    return False


def leave_process(gateway: Gateway) -> None:
    """This process has closed all of its agents."""
    gateway.store.cell_write(PROCESSES + gateway.process, None)


def last_heard(gateway: Gateway, value: Value, beats: dict[str, Value] | None = None) -> Value:
    """What is known of an agent, with its last heartbeat: its own, or that of a process that has it open.

    `beats` are the heartbeats of all processes (`heartbeats`), where they have been read.
    """
    newest = value
    for process in value["processes"]:
        if beats is None:
            cell = gateway.store.cell_read(PROCESSES + process)
            beat = None if cell is None else cell.value
        else:
            beat = beats.get(process)
        # by the room's time: that of the wall clock may have been set back
        if beat is not None and beat["heartbeat_room_ms"] > newest.get("heartbeat_room_ms", -1):
            newest = value | beat
    return newest


def heartbeats(gateway: Gateway) -> dict[str, Value]:
    """The last heartbeat of each process that has agents open."""
    return {cell.name.removeprefix(PROCESSES): cell.value for cell in gateway.store.cell_scan(PROCESSES)}


def leave(gateway: Gateway, name: str, *, runs: bool | None = False) -> None:
    """This process has closed the agent. When no other has it open it is stopped; only seen, if it may run (`runs` None)."""
    end = {"status": STOPPED} if runs is False else {"status": SEEN, "transient": True}

    def change(value: Value | None) -> Value | None:
        if value is None or gateway.process not in value["processes"]:
            return None
        others = [p for p in value["processes"] if p != gateway.process]
        return value | {"processes": others} | ({} if others else end | {"current_task": None})

    _update(gateway, name, change)


def stop(gateway: Gateway, name: str) -> None:
    """The agent has ended, as its program says. It is stopped unless a process still has it open."""

    def change(value: Value | None) -> Value | None:
        if value is None or value["status"] == STOPPED or _without_the_dead(gateway, value)["processes"]:
            return None
        return value | {"processes": [], "status": STOPPED, "current_task": None}

    _update(gateway, name, change)


class Silences:
    """Since when each agent and each process has been silent, by the steady clock of the process that keeps house."""

    def __init__(self) -> None:
        self._heard: dict[str, tuple[int, int]] = {}  # cell -> its last heartbeat, and when that was first seen

    def is_long(self, cell: str, heartbeat_ms: int, now_ns: int) -> bool:
        """Whether this has been the last heartbeat in that cell for SILENT_S."""
        heard = self._heard.get(cell)
        if heard is None or heard[0] != heartbeat_ms:
            heard = self._heard[cell] = (heartbeat_ms, now_ns)
        return now_ns - heard[1] >= SILENT_S * SECOND_NS


def all_run(gateway: Gateway) -> bool:
    """Whether every process that said that it has agents open is seen to run. One read for each of these processes."""
    return all(gateway.store.process_alive(process) for process in heartbeats(gateway))


def prune(gateway: Gateway, silences: Silences) -> int:
    """Take processes that are gone out of every agent's cell. Returns how many agents lost one.

    Processes that cannot be seen go when their agent has been silent for long: askers stop waiting for them, and their
    own questions are given up. Should one only have been stopped, its next heartbeat brings it back.
    """
    pruned, now_ns = 0, gateway.clock.steady_ns()
    beats, alive = heartbeats(gateway), functools.cache(gateway.store.process_alive)
    for cell in gateway.store.cell_scan(CELLS):
        name, value = cell.name.removeprefix(CELLS), last_heard(gateway, cell.value, beats)
        seen = {alive(process) for process in value["processes"]}
        if False in seen:
            pruned += 1
            _update(gateway, name, lambda value: None if value is None else _without_the_dead(gateway, value))
        elif seen == {None} and silences.is_long(cell.name, value["heartbeat_ms"], now_ns):
            pruned += 1
            _bury_silent(gateway, name, value)
    for process, beat in beats.items():  # the last: one that finds its own missing lets its agents join again
        name, runs = PROCESSES + process, alive(process)
        if runs is False or (runs is None and silences.is_long(name, beat["heartbeat_ms"], now_ns)):
            gateway.store.cell_write(name, None)
    return pruned


def _bury_silent(gateway: Gateway, name: str, silent: Value) -> None:
    def change(value: Value | None) -> Value | None:
        if value is None or last_heard(gateway, value)["heartbeat_ms"] != silent["heartbeat_ms"]:
            return None  # it has just spoken
        return value | {"processes": [], "status": GONE, "current_task": None}

    value = _update(gateway, name, change)
    if value is None or value["processes"]:
        return
    asked = gateway.store.find(Query(waiting=True, from_agent=name, limit=_MANY)).messages
    held = gateway.store.find(Query(states=frozenset({State.AWAITED}), to_agent=name, limit=_MANY)).messages
    waits = [(message.id, message.waiter) for message in asked]
    waits += [(str(message.answer_to), message.waiter) for message in held]
    for question, waiter in waits:
        if waiter in silent["processes"]:
            gateway.store.abandon(question)


def is_known(gateway: Gateway, name: str) -> bool:
    """Whether an agent of that name was ever here, is subscribed to something, or is registered: a token proves it."""
    return (
        gateway.store.cell_read(CELLS + name) is not None
        or any(subscription.agent == name for subscription in gateway.store.subscriptions())
        or name in _registered(gateway)
    )


def _registered(gateway: Gateway) -> set[str]:
    """The names that tokens prove, whether or not their agents were ever here."""
    return {cell.value["agent"] for cell in gateway.store.cell_scan(TOKENS) if cell.value["revoked_ms"] is None}


def is_addressee(gateway: Gateway, name: str) -> bool:
    """Whether a door sends to that name without being told that it is new: it is known, or mail waits for it already.

    The rule of the command line, the page and MCP. A question needs more: `is_known`, for mail answers nothing.
    """
    mail = Query(states=OPEN, to_agent=name, limit=1)
    return is_known(gateway, name) or bool(gateway.store.find(mail).messages)


def names(gateway: Gateway) -> list[str]:
    """The names of all agents that were ever here."""
    return [cell.name.removeprefix(CELLS) for cell in gateway.store.cell_scan(CELLS)]


def addressees(gateway: Gateway) -> list[str]:
    """The names that a sender may have meant: of agents, registered or here, of subscribers, where mail waits, of groups."""
    subscribers = {subscription.agent for subscription in gateway.store.subscriptions()}
    boxes = {box.to_agent for box in gateway.store.stats().mailboxes if box.to_agent is not None}
    groups = {GROUP_SIGN + cell.name.removeprefix(GROUPS) for cell in gateway.store.cell_scan(GROUPS)}
    return sorted({*names(gateway), *_registered(gateway), *subscribers, *boxes, *groups})


def agents(gateway: Gateway, mailboxes: Iterable[MailboxFigures] | None = None) -> list[AgentInfo]:
    """All agents that were ever here, with what waits for each: as these mailboxes say, where the caller has looked already."""
    pending: dict[str | None, int] = {}
    for box in gateway.store.stats().mailboxes if mailboxes is None else mailboxes:
        pending[box.to_agent] = pending.get(box.to_agent, 0) + box.depth
    found, beats, process_alive = [], heartbeats(gateway), functools.cache(gateway.store.process_alive)
    for cell in gateway.store.cell_scan(CELLS):
        name, value = cell.name.removeprefix(CELLS), last_heard(gateway, cell.value, beats)
        alive = _runs(gateway, value, [process_alive(process) for process in value["processes"]])
        if alive is None and value["processes"] and _is_silent(gateway, value):
            alive = False  # as the process that keeps house will write, if there is one
        found.append(
            AgentInfo(
                name=name,
                status=GONE if value["processes"] and alive is False else value["status"],
                alive=alive,
                current_task=value["current_task"],
                last_heartbeat=iso(value["heartbeat_ms"]),
                pending=pending.get(name, 0),
                processes=value["processes"],
                transient=value["transient"],
            )
        )
    return found


def held_by(gateway: Gateway, name: str) -> list[Message]:
    """The messages that the agent holds at this moment (claimed, not settled), the newest first."""
    query = Query(states=frozenset({State.CLAIMED}), claimed_by=name, order="newest", limit=_MANY)
    return gateway.store.find(query).messages


def held_cause(gateway: Gateway, name: str, to: str | None) -> Message | None:
    """The message that an agent would send one to `to` because of, at doors where nobody says so.

    What an agent sends while it holds a message is taken to be caused by it: the newest from there, else the newest of
    all. So a loop of agents that keep each other busy is one chain, its hops are counted, and the room's limit ends it.
    An agent that settles a message first and then sends begins something new; the rate of a pair is what limits that.
    """
    held = held_by(gateway, name)
    return next((message for message in held if message.from_agent == to), next(iter(held), None))


def look(gateway: Gateway, name: str) -> Value | None:
    """What the room knows of an agent; None when it never was here."""
    cell = gateway.store.cell_read(CELLS + name)
    return None if cell is None else cell.value


def is_running(gateway: Gateway, value: Value) -> bool | None:
    """Whether a process has the agent open. None: only one-shot commands speak for it, or nobody here can see."""
    return _runs(gateway, value, [gateway.store.process_alive(p) for p in value["processes"]])


def _runs(gateway: Gateway, value: Value, seen: list[bool | None]) -> bool | None:
    if True in seen:
        return True
    if None in seen:  # on another machine: its heartbeat has to do
        return True if _is_fresh(last_heard(gateway, value), gateway.clock.wall_ms(), HEARTBEAT_LATE_S) else None
    return None if value["transient"] else False


def ran_lately(gateway: Gateway, value: Value) -> bool:
    """Whether a process had the agent open within the last second. Mostly without looking: a look costs 0.1 ms."""
    now_ns = gateway.clock.steady_ns()
    for process in value["processes"]:
        if 0 <= now_ns - _seen_alive_ns.get(process, -SECOND_NS) < SECOND_NS:
            return True
        if gateway.store.process_alive(process):
            if len(_seen_alive_ns) >= _MAX_SEEN:
                _seen_alive_ns.clear()
            _seen_alive_ns[process] = now_ns
            return True
    return is_running(gateway, value) is True


def _is_silent(gateway: Gateway, value: Value) -> bool:
    """Whether the last heartbeat is SILENT_S old, by the room's time and by the wall clock.

    By both: a wall clock that was set makes nobody gone, and a program of an older version writes the one alone. This
    is for looking: after a machine slept, all are silent for a moment. What is to be buried is watched (`Silences`).
    """
    room_ms = int(value.get("heartbeat_room_ms", -1))
    by_room = room_ms < 0 or abs(gateway.store.room_ms() - room_ms) >= SILENT_S * 1000
    return by_room and not _is_fresh(value, gateway.clock.wall_ms(), SILENT_S)


def _heard(gateway: Gateway, value: Value, now_ms: int) -> Value:
    return value | {"heartbeat_ms": now_ms, "heartbeat_room_ms": gateway.store.room_ms()}


def _newcomer(now_ms: int, status: str, transient: bool) -> Value:
    return {
        "status": status,
        "current_task": None,
        "heartbeat_ms": now_ms,
        "first_seen_ms": now_ms,
        "processes": [],
        "transient": transient,
        "kept_ms": now_ms,  # it holds nothing yet
    }


def _joined(value: Value, process: str) -> Value:
    status = ACTIVE if value["status"] in (STOPPED, GONE, SEEN) else value["status"]
    others = [p for p in value["processes"] if p != process]
    return value | {"status": status, "processes": [*others, process], "transient": False}


def _is_fresh(value: Value, now_ms: int, span_s: float = HEARTBEAT_S) -> bool:
    # both ways: after the wall clock was set back, a heartbeat from "the future" is not fresh
    return abs(now_ms - int(value["heartbeat_ms"])) < span_s * 1000


def _without_the_dead(gateway: Gateway, value: Value) -> Value:
    living = [p for p in value["processes"] if gateway.store.process_alive(p) is not False]
    if len(living) == len(value["processes"]):
        return value
    return value | {"processes": living} | ({} if living else {"status": GONE, "current_task": None})


def _update(gateway: Gateway, name: str, change: Callable[[Value | None], Value | None]) -> Value | None:
    busy = f"too many processes are updating the record of {name} at once; try again"
    value: Value | None = update(gateway.store, CELLS + name, change, busy=busy)
    return value
