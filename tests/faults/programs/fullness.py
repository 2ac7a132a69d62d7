"""Processes on a disk that takes no more: a small disk of their own, a limit on the size of files, a folder to read only."""

from __future__ import annotations

import ctypes
import errno
import json
import os
import resource
import subprocess
import sys
from pathlib import Path
from typing import Any

import apsw

from postroom.core.system.process import this_process
from postroom.errors import RoomError, RoomUnreachable
from postroom.stores.bells.sockets import LOCKS
from postroom.stores.contract import Query
from postroom.stores.sqlite.store import SqliteStore

from .journal import Journal
from .rooms import letter, open_room, want

#: "This machine does not let me": the test is skipped.
NOT_ALLOWED = 77
_READ_ONLY, _REMOUNT, _BIND = 1, 32, 4096
_NEW_USERS, _NEW_MOUNTS, _PRIVATE = 0x10000000, 0x00020000, 0x44000  # CLONE_NEWUSER, CLONE_NEWNS, MS_REC | MS_PRIVATE


def _mount_small_disk(place: str, size: str) -> None:
    """Give this process, and nobody else, a small disk at that place. Exits with NOT_ALLOWED where that is forbidden."""
    libc = ctypes.CDLL(None, use_errno=True)
    user, group = os.geteuid(), os.getegid()
    if libc.unshare(_NEW_MOUNTS | (_NEW_USERS if user else 0)) != 0:
        os._exit(NOT_ALLOWED)
    if user:
        Path("/proc/self/setgroups").write_text("deny")
        Path("/proc/self/uid_map").write_text(f"0 {user} 1")
        Path("/proc/self/gid_map").write_text(f"0 {group} 1")
    if (
        libc.mount(None, b"/", None, _PRIVATE, None) != 0
        or libc.mount(b"small", place.encode(), b"tmpfs", 0, f"size={size}".encode()) != 0
    ):
        os._exit(NOT_ALLOWED)


def _mount(source: str, place: str, flags: int) -> None:
    if ctypes.CDLL(None, use_errno=True).mount(source.encode(), place.encode(), None, flags, None) != 0:
        raise OSError(ctypes.get_errno(), f"mount {source} {place}")


def looking_only(place: str, out: str, scheme: str, how: str) -> None:
    """Commands that look, and one that writes, in a room on a disk of this process's own that takes nothing.

    `how`: "read-only"; "full"; and "... in use", by another process that keeps the room open. (A disk on which a file is
    open for writing cannot be made read-only; a view of it can.)
    """
    environment = os.environ | {"POSTROOM_CONFIG": f"{place}/config"}
    _mount_small_disk(place, "4m")
    url, disk = f"{scheme}:{place}/room", place
    for name in ("room", "view"):
        Path(place, name).mkdir()

    def run(*words: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "postroom", *words, "--room", url]
        return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)

    run("init")
    first = run("send", "bob", "first", "--as", "ada", "--new").stdout.strip()
    holder = None
    if "in use" in how:  # what it has sent lies in the log alone
        words = [sys.executable, "-c", _HOLD, url]
        holder = subprocess.Popen(words, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert holder.stdout is not None
        holder.stdout.readline()
    if "full" in how:
        _fill(Path(place) / "filler")
    elif holder is not None:
        disk, url = f"{place}/view", f"{scheme}:{place}/view/room"
        _mount(place, disk, _BIND)
        _mount(place, disk, _REMOUNT | _BIND | _READ_ONLY)
    else:
        _mount("small", place, _REMOUNT | _READ_ONLY)
    before = _tree(Path(place))
    report: dict[str, Any] = {}
    for words in (["peek"], ["status"], ["receipt", first], ["doctor"], ["board", "list"]):
        if words[0] == "board":  # it tidies the board, where the disk still has a few bytes for that
            report["unchanged"] = _tree(Path(place)) == before
        done = run(*words, "--json")
        report[words[0]] = [done.returncode, json.loads(done.stdout or "null"), done.stderr]
    write = run("send", "bob", "second", "--as", "ada", "--new")
    report["send"] = [write.returncode, write.stdout, write.stderr]
    if holder is not None:
        holder.communicate()
    Path(out).write_text(json.dumps({"first": first, **report}), encoding="utf-8")


_HOLD = """
import sys, postroom
room = postroom.open(sys.argv[1])
room.agent("eve").send("bob", {"text": "from eve"})
print("open", flush=True)
sys.stdin.read()
"""


def _tree(place: Path) -> dict[str, int]:
    """What lies in a room, but for what SQLite and the bells make beside it for an open process."""
    passing = ("-shm", "-wal", "filler")
    files = (path for path in place.rglob("*") if path.is_file() and path.parent.name != LOCKS)
    paths = (path for path in files if not path.name.endswith(passing))
    return {str(path): path.stat().st_size for path in paths}


def _send_until_told(store: SqliteStore) -> tuple[list[str], str]:
    """Send until the room says that it cannot; the ids that were returned, and what it said."""
    sent: list[str] = []
    for number in range(100_000):
        try:
            sent += store.put([letter(payload={"n": number, "text": "x" * 2000})])
        except RoomUnreachable as error:
            return sent, str(error)
    raise AssertionError("this disk is never full")


def _fill(path: Path) -> None:
    """Take every byte that is left."""
    with path.open("wb", buffering=0) as file:
        for size in (65536, 4096, 1):
            try:
                while file.write(bytes(size)):
                    pass
            except OSError as error:
                if error.errno != errno.ENOSPC:
                    raise


def on_a_full_disk(place: str, out: str) -> None:
    """Fill a disk with messages, look at what is there, make room, and go on. All checks that need the disk are made here."""
    this_process()  # while all of Python's library can still be read, wherever it lies
    import postroom.stores.sqlite.upgrade  # noqa: F401  (likewise)

    _mount_small_disk(place, "1m")
    folder, reserve = Path(place) / "room", Path(place) / "reserve"
    reserve.write_bytes(bytes(200_000))
    store = open_room(folder)
    sent, told = _send_until_told(store)
    _fill(Path(place) / "filler")
    # as large as the one that failed: a small one may find space in the log that this one had begun to use
    refused = _fails(lambda: store.put([letter(payload={"text": "x" * 2000})]))
    new_room = _fails(lambda: open_room(Path(place) / "another"))
    received = [delivery.message.id for delivery in _claim_or_nothing(store)]
    reserve.unlink()
    again = store.put([letter(payload={"again": True})])
    store.close()
    report = _look(folder)
    report |= {
        "sent": sent,
        "told": told,
        "refused": refused,
        "again": again,
        "new_room": new_room,
        "received": received,
    }
    Path(out).write_text(json.dumps(report), encoding="utf-8")


def _claim_or_nothing(store: SqliteStore) -> list[Any]:
    try:
        return store.claim(want()).deliveries
    except RoomUnreachable:
        return []


def _fails(call: Any) -> str:
    """The name of the error that the call raises; "" when it raises none."""
    try:
        call()
    except BaseException as error:
        return type(error).__name__
    return ""


def _look(folder: Path) -> dict[str, Any]:
    connection = apsw.Connection(str(folder / "messages.db"))
    try:
        ids = [row[0] for row in connection.execute("SELECT id FROM messages")]
        return {"ids": ids, "damage": connection.execute("PRAGMA integrity_check").fetchall()[0][0]}
    finally:
        connection.close()


def under_a_size_limit(folder: str, journal: str, limit_bytes: int) -> None:
    """Send until files may not grow, then go on when they may again."""
    note = Journal(journal).note
    _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    store = open_room(folder)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit_bytes, hard))
    sent, told = _send_until_told(store)
    resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
    again = store.put([letter(payload={"again": True})])
    note("sent", sent, told, again)
    store.close()


def as_a_reader(folder: str, out: str, user: int) -> None:
    """As an ordinary user: open a room in a folder that may only be read, and say what came of it."""
    this_process()  # while all of Python's library can still be read, wherever it lies
    import postroom.stores.sqlite.upgrade  # noqa: F401  (likewise)

    if os.geteuid() == 0:
        os.setgroups([])
        os.setgid(user)
        os.setuid(user)
    said: dict[str, Any] = {}
    try:
        store = open_room(folder)
        said["found"] = len(store.find(Query()).messages)
        store.put([letter()])
    except RoomError as error:
        said |= {"error": type(error).__name__, "text": str(error)}
    descriptor = os.open(out, os.O_WRONLY | os.O_TRUNC)
    os.write(descriptor, json.dumps(said).encode())
