"""What `postroom doctor` checks. Each check says what it found, whether that is good, and what to do if it is not.

Nothing here changes anything, and the database's file is only asked for its size and modes: to open it is the store's
business alone.
"""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

from postroom import __version__
from postroom.cli.output import ago
from postroom.cli.top.picture import agent_lines, wait_lines
from postroom.core import trust
from postroom.core.config import AGENT_LEASE_S, FOLDER, URL_VARIABLE, RoomUrl, address_of, search_places, shown_address
from postroom.core.git_index import UnreadableIndex, tracked_of_room
from postroom.core.system.files import NETWORK_FILE_SYSTEMS, file_system_type
from postroom.core.system.process import LINUX, processes_with, sees_processes
from postroom.core.untrusted import quoted
from postroom.errors import RoomError, RoomNotAllowed
from postroom.mail import tokens
from postroom.mail.housekeeping import KEEPER_CELL, is_vacant
from postroom.mail.presence import GONE, HEARTBEAT_LATE_S
from postroom.room import Room
from postroom.stores.contract import Stats
from postroom.stores.liveness import BY_HEARTBEATS, BY_LOCKS, BY_PIDS

OK, WARN, FAIL = "ok", "warn", "fail"

MIN_PYTHON: Final = (3, 11)
MIN_DESCRIPTORS: Final = 256
#: With less than this the next message may not fit.
LITTLE_BYTES: Final = 64 * 1024**2
#: A room with its defaults may grow to this.
ENOUGH_BYTES: Final = 1024**3
MAX_WAL_BYTES: Final = 64 * 1024**2
#: The wall clock and the room's may differ by this before it is worth a word, in seconds.
CLOCK_APART_S: Final = 60.0
#: That tokens were recovered or switched off is worth a look for this long, in seconds.
TOLD_OF_S: Final = 7 * 86400.0
#: How many of a kind are named.
NAMED: Final = 3
DATABASE: Final = "messages.db"
#: File systems that are not kept, and until when they are.
FLEETING: Final = {
    "tmpfs": "until the next reboot",
    "ramfs": "until the next reboot",
    "overlay": "as long as the container",
    "overlayfs": "as long as the container",
}


class Check(NamedTuple):
    """One thing that was looked at: ok, warn or fail, what was found, and what to do."""

    check: str
    verdict: str
    says: str
    advice: str = ""


# --- the machine ---------------------------------------------------------------------------------------------------


def machine() -> Iterator[Check]:
    """What can be said without a room."""
    here = ".".join(map(str, sys.version_info[:3]))
    wanted = ".".join(map(str, MIN_PYTHON))
    fine = sys.version_info[:2] >= MIN_PYTHON
    yield Check("postroom", OK, f"version {__version__}")
    yield Check("python", OK if fine else FAIL, f"version {here}", "" if fine else f"use Python {wanted} or newer")
    yield sqlite()
    yield descriptors()


def sqlite() -> Check:
    """Whether this SQLite is one that keeps commits."""
    try:
        from postroom.stores.sqlite.layout import sqlite_is_safe, sqlite_version
    except ImportError as error:
        return Check("sqlite", FAIL, f"apsw cannot be loaded: {error}", "install apsw 3.51.3 or newer")
    version = sqlite_version()
    if sqlite_is_safe(version):
        return Check("sqlite", OK, f"version {version}")
    says = f"version {version} can lose commits of a write-ahead log"
    return Check("sqlite", FAIL, says, "install apsw 3.51.3 or newer")


def descriptors() -> Check:
    """Whether this process may open enough files: a waiting thread takes one, a connection three."""
    import resource

    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    says = "no limit" if soft == resource.RLIM_INFINITY else f"a process may open {soft}"
    if soft == resource.RLIM_INFINITY or soft >= MIN_DESCRIPTORS:
        return Check("descriptors", OK, says)
    return Check("descriptors", WARN, says, "raise it before you start many agents in one process: ulimit -n 1024")


# --- where the room is ---------------------------------------------------------------------------------------------


def find(named: str | None) -> tuple[str | None, list[Check]]:
    """The address of the room, and how it was found or where it was looked for."""
    if named:
        return named, [Check("room", OK, f"{shown_address(named)}, named by --room")]
    here = Path.cwd()
    passed = list(_passed_over(here))
    try:
        found = trust.find_room(here)
    except RoomNotAllowed as error:
        return None, [*passed, Check("room", FAIL, str(error), "look at what it is, then: postroom allow")]
    if found is None:
        places = ", ".join(str(place) for place in search_places(here))
        says = f"none was found; looked at ${URL_VARIABLE} (not set), {places}"
        return None, [*passed, Check("room", FAIL, says, "make one with `postroom init`, or name one with --room")]
    how = f"named by ${URL_VARIABLE}" if os.environ.get(URL_VARIABLE) else f"found from {here}"
    return found.address, [*passed, Check("room", OK, f"{shown_address(found.address)}, {how}")]


def _passed_over(here: Path) -> Iterator[Check]:
    """Rooms of other users on the way; they are never used unless somebody names them."""
    if os.environ.get(URL_VARIABLE):
        return
    for place in search_places(here):
        try:
            owner = place.stat().st_uid
        except OSError:
            continue
        if owner != os.geteuid() and trust.judge_place(place).why:
            says = f"{place} belongs to user {owner} and was passed over"
            yield Check("other room", WARN, says, f"name it if you trust it: --room {address_of(place)}")
        else:
            return


def place(folder: Path) -> Iterator[Check]:
    """The folder, its file system and its disk."""
    yield rights(folder)
    yield tracked(folder)
    yield file_system(folder)
    yield space(folder)


def rights(folder: Path) -> Check:
    """Whether the folder is ours, and ours alone."""
    try:
        about = folder.stat()
        parts = [path for path in folder.iterdir() if path.name.startswith(DATABASE)]
        open_to_others = [path for path in (folder, *parts) if path.stat().st_mode & 0o077]
    except OSError as error:
        return Check("rights", FAIL, f"{folder} cannot be looked at: {error.strerror}", "check who owns it")
    mode = f"{stat.S_IMODE(about.st_mode):04o}"
    if not os.access(folder, os.W_OK | os.X_OK):
        says = f"{folder} (user {about.st_uid}, mode {mode}) cannot be written"
        return Check("rights", FAIL, says, "work as its owner, or choose another room")
    if about.st_uid != os.geteuid():
        says = f"{folder} belongs to user {about.st_uid}, and you are {os.geteuid()}"
        return Check("rights", WARN, says, "processes of several users in one room need a server between them")
    if open_to_others:
        says = "others on this machine can get at " + ", ".join(path.name for path in open_to_others)
        return Check("rights", WARN, says, f"close it: chmod -R go= '{folder}'")
    return Check("rights", OK, f"yours alone (mode {mode})")


def tracked(folder: Path) -> Check:
    """Whether git keeps the room's files: then each pull could bring other messages into it."""
    files = (folder / FOLDER).is_dir()
    own = folder / FOLDER if files else folder
    try:
        names = tracked_of_room(own, RoomUrl("files" if files else "sqlite", str(folder), {}))
    except UnreadableIndex as error:
        return Check("git", WARN, f"whether it tracks the room cannot be told: {error}", "look with git ls-files")
    if names:
        says = f"git tracks {', '.join(names[:NAMED])} in {own}, so each pull could bring other messages"
        return Check("git", FAIL, says, f"take it out: git rm -r --cached {FOLDER}")
    return Check("git", OK, "tracks nothing of the room")


def file_system(folder: Path) -> Check:
    """Whether the file system can hold a write-ahead log, and for how long it holds anything."""
    kind = file_system_type(folder)
    if kind in NETWORK_FILE_SYSTEMS:
        says = f"{kind} is a network file system, where SQLite's locks do not hold"
        return Check("file system", FAIL, says, "put the room on a local disk")
    if kind in FLEETING:
        says = f"{kind}: what is stored there lasts {FLEETING[kind]}"
        return Check("file system", WARN, says, f"for messages that must last, put {FOLDER} on a disk")
    return Check("file system", OK, kind or "of a kind that this system does not tell")


def space(folder: Path) -> Check:
    """Whether the disk has room left."""
    disk = os.statvfs(folder)
    free_bytes = disk.f_bavail * disk.f_frsize
    says = f"{free_bytes / 1024**3:.1f} GB free"
    if disk.f_files and not disk.f_favail:
        return Check("disk", FAIL, "no file can be made any more: its inodes are used up", "remove files")
    if free_bytes < LITTLE_BYTES:
        return Check("disk", FAIL, f"{free_bytes / 1024**2:.0f} MB free", "make room: sends will fail soon")
    if free_bytes < ENOUGH_BYTES:
        return Check("disk", WARN, says, "make room, or keep less: keep_bytes, keep_count and keep_s of the room")
    return Check("disk", OK, says)


# --- the room ------------------------------------------------------------------------------------------------------


def room_checks(room: Room, integrity_s: float) -> Iterator[Check]:
    """What the room tells of itself."""
    store: Any = room.store
    has_file = hasattr(store, "faults")  # what only a SQLite room can tell
    if has_file:
        yield Check("layout", OK, f"version {store.layout()}")
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
    yield upkeep(room, now_ms)


def integrity(store: Any, limit_s: float) -> Check:
    """Whether the file is whole, as far as it can be read in that time."""
    try:
        faults = store.faults(limit_s)
    except RoomError as error:
        faults = [str(error)]
    if faults is None:
        says = f"nothing wrong in what could be read in {limit_s:g} s; the rest was not looked at"
        return Check("integrity", WARN, says, "look at all of it: postroom doctor --integrity 10m")
    if faults:
        advice = "stop the processes that use the room, keep a copy of its folder, then restore or remove it"
        return Check("integrity", FAIL, f"damaged: {'; '.join(faults[:NAMED])}", advice)
    return Check("integrity", OK, "the file is whole")


def wake_up(stats: Stats) -> Check:
    """How waiting receivers are woken."""
    kind = str(stats.store.get("wake_up", "the store's own"))
    if kind.startswith("watching"):
        says = f"{kind}: whoever waits looks a hundred times a second"
        advice = "put the room where sockets and shared memory work; nothing is lost meanwhile"
        return Check("wake-up", WARN, says, advice)
    return Check("wake-up", OK, kind)


def liveness(room: Room, stats: Stats) -> Check:
    """How it is judged whether processes are alive, and what cannot be seen from here."""
    pids_will_do = stats.store.get("kind") == "nats" or not LINUX  # heartbeats beside them, or no pid namespaces
    judged_by = stats.store.get("liveness", BY_PIDS if sees_processes() else BY_HEARTBEATS)
    unseen = {p for a in room.agents() for p in a.processes if room.store.process_alive(p) is None}
    if unseen:
        says = f"by {judged_by}; {len(unseen)} in this room cannot be seen from here: {_some(sorted(unseen))}"
        return Check("liveness", WARN, says, "nothing of theirs is taken: it is free when its lease ends")
    if judged_by == BY_LOCKS and sees_processes():
        return Check("liveness", OK, "by locks, in whatever container a process runs")
    if judged_by == BY_LOCKS:
        says = "by locks; /proc does not show this pid namespace, so programs that do not use the room cannot be seen"
        return Check("liveness", WARN, says, "let the sandbox mount its own /proc (bwrap --proc /proc)")
    if judged_by == BY_PIDS:
        says = "by pid and start time; processes of other pid namespaces or machines by their heartbeats alone"
        return Check("liveness", OK, says) if pids_will_do else Check("liveness", WARN, says, "put it on a local disk")
    says = "by heartbeats alone: what a process that dies holds is free when its lease ends, not sooner"
    return Check("liveness", WARN, says, "put the room on a local disk, and let the sandbox mount its own /proc")


def log_size(stats: Stats) -> Check:
    """Whether the write-ahead log is folded back into the file."""
    size = int(stats.store["wal_bytes"])
    users = processes_with(Path(stats.store["path"]))
    says = f"{size / 1024**2:.1f} MB" + (f"; the room is open in process {_some(users)}" if users else "")
    if size <= MAX_WAL_BYTES:
        return Check("log", OK, says)
    advice = "somebody reads for very long, so that the log cannot be folded back: end that reader (the sqlite3 shell?)"
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
    """Whether messages are held by nobody who works on them, the oldest first."""
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
        advice = "the next `receive`, or any open agent within seconds, takes them up; start a receiver"
        says = f"{len(left)} left behind by a receiver that is late or gone: {_some(left)}"
        return Check("claims", WARN, says, advice)
    if by_time:
        says = f"{len(by_time)} taken by `postroom receive` and not settled: {_some(by_time)}"
        return Check("claims", WARN, says, "settle each: postroom ack ID --as NAME, or postroom retry ID WHY --as NAME")
    return Check("claims", OK, f"{len(rows)} under way, none stuck")


def names_proved(room: Room, now_ms: int) -> Check:
    """Whether names are proved here, whether a person can administer that, and what was done to get round it."""
    found = [token for token in tokens.tokens(room.gateway) if token.revoked_at is None]
    proved, persons = tokens.has_tokens(room.gateway), sum(token.human for token in found)
    deeds = tokens.deeds(room.gateway)
    says = f"{len(found)} tokens, {persons} of them of a person" if proved else "none: names are believed"
    told = [f"{deed.what} {ago(deed.time_ms, now_ms)} by user {deed.uid} ({deed.agent})" for deed in deeds]
    says += f"; {_some(reversed(told))}" if told else ""
    if proved and not persons:
        advice = "nobody can add or revoke any: end what uses the room, then `postroom agent recover NAME`"
        return Check("tokens", FAIL, says, advice)
    if any(now_ms - deed.time_ms < TOLD_OF_S * 1000 for deed in deeds):
        advice = "make sure that it was you; if not, look at who can write to the room's folder"
        return Check("tokens", WARN, says, advice)
    return Check("tokens", OK, says)


def agents(room: Room, now_ms: int) -> Check:
    """Whether those who were here still run, and say so."""
    lines = agent_lines(room.agents(), now_ms)
    gone = [quoted(a.name) + (f" ({a.pending} waiting)" if a.pending else "") for a in lines if a.status == GONE]
    running = [a for a in lines if a.alive]
    late = [f"{quoted(a.name)} ({s:.0f} s)" for a in running if (s := a.heartbeat_age_s) > HEARTBEAT_LATE_S]
    if gone:
        says = f"{len(gone)} ended without closing: {_some(gone)}"
        return Check("agents", WARN, says, "start them again; what they held goes to others, what waits for them waits")
    if late:
        says = f"{len(late)} run, but their heartbeat is late: {_some(late)}"
        advice = "look whether they are stopped (Ctrl-Z, a debugger) or starved of processor time"
        return Check("agents", WARN, says, advice)
    return Check("agents", OK, f"{len(running)} of {len(lines)} run")


def waiting(room: Room, now_ms: int) -> Check:
    """Whether somebody waits for an answer that cannot come."""
    lines = wait_lines(room.waits(), now_ms)
    ring = [f"{line.asker} for {line.peer}" for line in lines if line.cycle]
    if ring:
        return Check("waiting", WARN, f"they wait for each other: {_some(ring)}", "let one of them answer, or time out")
    return Check("waiting", OK, f"{len(lines)} wait for an answer, none of them in a circle")


def dead_letters(stats: Stats) -> Check:
    """Whether messages were set aside."""
    count = stats.states.get("dead", 0)
    if count:
        advice = "`postroom dead` shows why, `postroom requeue ID` puts one back"
        return Check("dead letters", WARN, f"{count} set aside", advice)
    return Check("dead letters", OK, "none")


def upkeep(room: Room, now_ms: int) -> Check:
    """Whether one of the open processes keeps house."""
    cell = room.store.cell_read(KEEPER_CELL)
    if cell is not None and not is_vacant(cell.value, now_ms, room.store.process_alive):
        return Check("upkeep", OK, f"process {cell.value['owner'].split(':')[1]} keeps house")
    if any(agent.alive for agent in room.agents()):
        advice = "look again in ten seconds: one takes over"
        return Check("upkeep", WARN, "nobody keeps house, though agents run", advice)
    return Check("upkeep", OK, "nobody has the room open; whoever opens it next keeps house")


def _some(things: Iterable[object]) -> str:
    """The first few of them, and how many there are beyond."""
    texts = [str(thing) for thing in things]
    more = len(texts) - NAMED
    return ", ".join(texts[:NAMED]) + (f" and {more} more" if more > 0 else "")
