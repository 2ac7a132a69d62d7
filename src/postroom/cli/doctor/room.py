"""The room itself: whether its file is whole, whether its agents run, and what is left lying there."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from postroom.cli.output import ago
from postroom.cli.top.picture import agent_lines, wait_lines
from postroom.core.clock import from_iso
from postroom.core.config import AGENT_LEASE_S
from postroom.core.system import LINUX
from postroom.core.system.process import processes_with, sees_processes
from postroom.core.untrusted import quoted
from postroom.errors import RoomError
from postroom.mail import tokens
from postroom.mail.housekeeping import KEEPER_CELL, is_vacant
from postroom.mail.presence import GONE, HEARTBEAT_LATE_S
from postroom.room import Room
from postroom.stores.contract import Stats
from postroom.stores.layouts import copies
from postroom.stores.liveness import BY_HEARTBEATS, BY_LOCKS, BY_PIDS

from . import FAIL, NAMED, OK, WARN, Check, some

MAX_WAL_BYTES: Final = 64 * 1024**2
#: The wall clock and the room's may differ by this before it is worth a word, in seconds.
CLOCK_APART_S: Final = 60.0
#: That tokens were recovered or switched off is worth a look for this long, in seconds.
TOLD_OF_S: Final = 7 * 86400.0
#: A pause that is older may have been forgotten, in seconds.
OLD_PAUSE_S: Final = 86400.0


def room_checks(room: Room, integrity_s: float) -> Iterator[Check]:
    """The checks that ask the room."""
    store: Any = room.store
    has_file = hasattr(store, "faults")  # what only a SQLite room can tell
    if hasattr(store, "layout"):  # a room in a folder
        yield layout(store)
    if has_file and integrity_s:
        yield integrity(store, integrity_s)
    stats, now_ms = room.stats(), room.clock.wall_ms()
    yield wake_up(stats)
    yield liveness(room, stats)
    if has_file:
        yield log_size(stats)
        yield clocks(store, now_ms)
        yield claims(store, now_ms)
    yield names_proved(room, now_ms)
    yield agents(room, now_ms)
    yield waiting(room, now_ms)
    yield dead_letters(stats)
    yield questions(room, now_ms)
    yield pauses(room, now_ms)
    yield upkeep(room, now_ms)


def questions(room: Room, now_ms: int) -> Check:
    """What waits for a person to answer. Questions that are over get their defaults by this look."""
    found = room.people.open()
    if not found:
        return Check("questions", OK, "none waits for a person")
    oldest = ago(from_iso(found[0].asked), now_ms)
    says = f"{len(found)} wait for a person, the oldest was asked {oldest}; `postroom questions` lists them"
    return Check("questions", OK, says)


def layout(store: Any) -> Check:
    """The layout, and whether copies of the room in older ones are still kept."""
    number, path = store.layout()
    kept = f"; kept by an upgrade, remove when all is well: {some(found)}" if (found := copies(path)) else ""
    return Check("layout", OK, f"version {number}{kept}")


def integrity(store: Any, limit_s: float) -> Check:
    """Whether the file passes its integrity check, as far as it can be read in that time."""
    try:
        faults = store.faults(limit_s)
    except RoomError as error:
        faults = [str(error)]
    if faults is None:
        says = f"no errors in what could be read in {limit_s:g} s; the rest was not checked"
        return Check("integrity", WARN, says, "check all of it: postroom doctor --integrity 10m")
    if faults:
        advice = "stop the processes that use the room, keep a copy of its folder, then restore or remove it"
        return Check("integrity", FAIL, f"damaged: {'; '.join(faults[:NAMED])}", advice)
    return Check("integrity", OK, "the file passes its integrity check")


def wake_up(stats: Stats) -> Check:
    """How waiting receivers are woken."""
    kind = str(stats.store.get("wake_up", "the store's own"))
    if kind.startswith("watching"):
        says = f"{kind}: waiting processes poll a hundred times a second"
        advice = "put the room where sockets and shared memory work; no messages are lost until then"
        return Check("wake-up", WARN, says, advice)
    return Check("wake-up", OK, kind)


def liveness(room: Room, stats: Stats) -> Check:
    """How it is judged whether processes are alive, and which of them cannot be seen from here."""
    pids_will_do = stats.store.get("kind") == "nats" or not LINUX  # heartbeats beside them, or no pid namespaces
    judged_by = stats.store.get("liveness", BY_PIDS if sees_processes() else BY_HEARTBEATS)
    unseen = {p for a in room.agents() for p in a.processes if room.store.process_alive(p) is None}
    if unseen:
        says = f"by {judged_by}; {len(unseen)} in this room cannot be seen from here: {some(sorted(unseen))}"
        return Check(
            "liveness", WARN, says, "their messages are not taken from them: each is released when its lease ends"
        )
    if judged_by == BY_LOCKS and sees_processes():
        return Check("liveness", OK, "by locks, even across containers")
    if judged_by == BY_LOCKS and not LINUX:
        says = "by locks; `ps` is missing, so programs outside the room cannot be seen"
        return Check("liveness", WARN, says, "install ps")
    if judged_by == BY_LOCKS:
        says = "by locks; /proc does not show this pid namespace, so programs outside the room cannot be seen"
        return Check("liveness", WARN, says, "let the sandbox mount its own /proc (bwrap --proc /proc)")
    if judged_by == BY_PIDS:
        says = "by pid and start time; processes in other pid namespaces or on other machines only by their heartbeats"
        return Check("liveness", OK, says) if pids_will_do else Check("liveness", WARN, says, "put it on a local disk")
    says = "by heartbeats only: messages of a process that dies are released when their leases end, not sooner"
    sees = "let the sandbox mount its own /proc" if LINUX else "install ps"
    return Check("liveness", WARN, says, f"put the room on a local disk, and {sees}")


def log_size(stats: Stats) -> Check:
    """Whether the write-ahead log is folded back into the file."""
    size = int(stats.store["wal_bytes"])
    users = processes_with(Path(stats.store["path"]))
    says = f"{size / 1024**2:.1f} MB" + (f"; the room is open in process {some(users)}" if users else "")
    if size <= MAX_WAL_BYTES:
        return Check("log", OK, says)
    advice = "a long read keeps the log from being folded back into the file: end that reader (the sqlite3 shell?)"
    return Check("log", WARN, says, advice)


def clocks(store: Any, now_ms: int) -> Check:
    """Whether the wall clock was set since the room's time was fixed."""
    ahead_s = (now_ms - store.room_ms()) / 1000
    if abs(ahead_s) <= CLOCK_APART_S:
        return Check("clock", OK, f"{abs(ahead_s):.1f} s between the wall clock and the room's time")
    says = f"the wall clock was set {'forward' if ahead_s > 0 else 'back'} by {abs(ahead_s):.0f} s since the boot"
    advice = (
        "nothing to do: leases, delays, expiry and order follow the room's own time; only the times that ledgers show "
        "jump with the wall clock"
    )
    return Check("clock", WARN, says, advice)


_CLAIMS: Final = """
SELECT id, claimed_by, last_delivered_ms, wake_at, (SELECT name FROM processes WHERE processes.id = owner), owner
FROM messages WHERE state = 1 AND live_agent IS NULL AND live_channel IS NULL ORDER BY last_delivered_ms LIMIT 10000"""


def claims(store: Any, now_ms: int) -> Check:
    """Whether claims are left without a receiver at work on them, the oldest first."""
    room_ms = store.room_ms()
    left: list[str] = []
    by_time: list[str] = []
    _, rows = store.read_only(_CLAIMS)
    for id, agent, since_ms, lease_ends, process, owner in rows:
        told = f"{id} by {agent}, claimed {ago(since_ms, now_ms)}"
        if lease_ends <= room_ms or (process is not None and store.process_alive(process) is False):
            left.append(told)
        elif owner is None and now_ms - since_ms > AGENT_LEASE_S * 500:
            by_time.append(told)
    if left:
        advice = "the next `receive`, or any open agent within seconds, takes them over; start a receiver"
        says = f"{len(left)} left behind by a receiver that is late or gone: {some(left)}"
        return Check("claims", WARN, says, advice)
    if by_time:
        says = f"{len(by_time)} taken by `postroom receive` and not settled: {some(by_time)}"
        return Check("claims", WARN, says, "settle each: postroom ack ID --as NAME, or postroom retry ID WHY --as NAME")
    return Check("claims", OK, f"{len(rows)} under way, none stuck")


def names_proved(room: Room, now_ms: int) -> Check:
    """Whether names are proved here, whether a person can administer that, and what was done to get round it."""
    found = [token for token in tokens.tokens(room.gateway) if token.revoked_at is None]
    proved, persons = tokens.has_tokens(room.gateway), sum(token.human for token in found)
    deeds = tokens.deeds(room.gateway)
    says = f"{len(found)} tokens, {persons} of them for people" if proved else "none: names are not checked"
    told = [f"{deed.what} {ago(deed.time_ms, now_ms)} by user {deed.uid} ({deed.agent})" for deed in deeds]
    says += f"; {some(reversed(told))}" if told else ""
    if proved and not persons:
        advice = (
            "no one can add or revoke tokens: stop every process that uses the room, then `postroom agent recover NAME`"
        )
        return Check("tokens", FAIL, says, advice)
    if any(now_ms - deed.time_ms < TOLD_OF_S * 1000 for deed in deeds):
        advice = "make sure that it was you; if not, check who can write to the room's folder"
        return Check("tokens", WARN, says, advice)
    return Check("tokens", OK, says)


def agents(room: Room, now_ms: int) -> Check:
    """Whether the agents still run, and their heartbeats come in time."""
    lines = agent_lines(room.agents(), now_ms)
    gone = [quoted(a.name) + (f" ({a.pending} waiting)" if a.pending else "") for a in lines if a.status == GONE]
    running = [a for a in lines if a.alive]
    late = [f"{quoted(a.name)} ({s:.0f} s)" for a in running if (s := a.heartbeat_age_s) > HEARTBEAT_LATE_S]
    if gone:
        says = f"{len(gone)} ended without closing: {some(gone)}"
        return Check("agents", WARN, says, "start them again; messages they held go to others, and mail for them waits")
    if late:
        says = f"{len(late)} run, but their heartbeat is late: {some(late)}"
        advice = "check whether they are stopped (Ctrl-Z, a debugger) or starved of processor time"
        return Check("agents", WARN, says, advice)
    return Check("agents", OK, f"{len(running)} of {len(lines)} run")


def waiting(room: Room, now_ms: int) -> Check:
    """Whether agents wait for answers that cannot come: a deadlock."""
    lines = wait_lines(room.waits(), now_ms)
    ring = [f"{line.asker} for {line.peer}" for line in lines if line.cycle]
    if ring:
        return Check("waiting", WARN, f"they wait for each other: {some(ring)}", "let one of them answer, or time out")
    return Check("waiting", OK, f"{len(lines)} wait for an answer, none of them in a cycle")


def dead_letters(stats: Stats) -> Check:
    """Whether messages were set aside."""
    count = stats.states.get("dead", 0)
    if count:
        advice = "`postroom dead` shows why, `postroom requeue ID` puts one back"
        return Check("dead letters", WARN, f"{count} set aside", advice)
    return Check("dead letters", OK, "none")


def pauses(room: Room, now_ms: int) -> Check:
    """Whether a pause was perhaps forgotten: it has no end of its own."""
    limits = room.limits()
    paused = [(f"channel {quoted(each.channel)}", each.paused) for each in limits.channels if each.paused is not None]
    paused += [(f"agent {quoted(name)}", each) for name, each in limits.agents.items()]
    old = [
        f"{what} by {quoted(each.by)} {ago(each.since_ms, now_ms)}"
        for what, each in paused
        if now_ms - each.since_ms > OLD_PAUSE_S * 1000
    ]
    if not old:
        return Check("pauses", OK, f"{len(paused)} paused, none of them for more than a day" if paused else "none")
    advice = "resume what was forgotten: postroom resume CHANNEL, or --agent NAME"
    return Check("pauses", WARN, f"{len(old)} older than a day: {some(old)}", advice)


def upkeep(room: Room, now_ms: int) -> Check:
    """Whether one of the open processes keeps house."""
    cell = room.store.cell_read(KEEPER_CELL)
    if cell is not None and not is_vacant(cell.value, now_ms, room.store.process_alive):
        return Check("upkeep", OK, f"process {cell.value['owner'].split(':')[1]} does the maintenance")
    if any(agent.alive for agent in room.agents()):
        advice = "check again in ten seconds: one of them should take over"
        return Check("upkeep", WARN, "no process does maintenance, though agents run", advice)
    return Check("upkeep", OK, "no process has the room open; the next one to open it does the maintenance")
