"""`postroom doctor`: what it finds wrong with machines and rooms, and that it says what to do."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import apsw
import pytest

import postroom
from postroom.cli.doctor import Check
from postroom.cli.doctor import machine as doctor_machine
from postroom.cli.doctor import room as doctor_room
from postroom.core.clock import ManualClock
from postroom.core.system import LINUX
from postroom.core.system.process import processes_with
from postroom.room import Room
from postroom.stores.contract import FEED, Stats
from postroom.stores.sqlite import layout as sqlite_layout

from .support import PATIENCE_S, Cli, Result, clean_environment, start

MACHINE = ["postroom", "python", "sqlite", "descriptors"]


def found(result: Result) -> dict[str, dict[str, str]]:
    return {check["check"]: check for check in result.json["checks"]}


def doctor(cli: Cli, *more: str) -> tuple[int, dict[str, dict[str, str]]]:
    result = cli("doctor", "--json", *more)
    return result.code, found(result)


@pytest.fixture
def sqlite_room(tmp_path: Path, clock: ManualClock) -> Iterator[Room]:
    with postroom.open(f"sqlite:{tmp_path}/doctored", clock=clock) as room:
        yield room


# --- a room that is well -------------------------------------------------------------------------------------------


def test_a_healthy_room_passes(cli: Cli) -> None:
    cli.send()

    code, seen = doctor(cli)

    assert code == 0
    assert {check["verdict"] for check in seen.values()} <= {"ok", "warn"}
    assert list(seen)[:4] == MACHINE
    assert {"room", "rights", "file system", "disk", "layout", "integrity", "wake-up", "log", "clock"} <= set(seen)
    assert (seen["liveness"]["verdict"], seen["liveness"]["says"][:8]) == ("ok", "by locks")
    assert {"claims", "agents", "waiting", "dead letters", "upkeep"} <= set(seen)
    assert all(seen[name]["verdict"] == "ok" for name in ("room", "rights", "integrity", "claims", "upkeep"))


def test_a_healthy_room_of_files_passes(cli: Cli, tmp_path: Path) -> None:
    address = f"files:{tmp_path}/mail"
    code, seen = doctor(cli, "--room", address)
    assert (code, seen["room"]["verdict"]) == (4, "fail")
    cli.ok("init", "--room", address)
    cli.send("hi", "--room", address)

    code, seen = doctor(cli, "--room", address)

    assert code == 0
    assert all(seen[name]["verdict"] == "ok" for name in ("room", "rights", "wake-up", "dead letters", "upkeep"))
    assert seen["liveness"]["verdict"] == "ok"


def test_where_locks_cannot_be_seen_the_doctor_says_how_lives_are_judged_and_whom_it_cannot_see(
    cli: Cli, tmp_path: Path
) -> None:
    address = f"sqlite:{tmp_path}/room"
    cli.ok("init", "--room", address)
    (tmp_path / "room/alive").unlink()
    (tmp_path / "room/alive").mkdir()

    _, seen = doctor(cli, "--room", address)
    assert seen["liveness"]["verdict"] == ("warn" if LINUX else "ok"), "other systems have no pid namespaces"
    assert "by pid and start time" in seen["liveness"]["says"]

    with postroom.open(address) as room:
        about = {"status": "active", "current_task": None, "heartbeat_ms": 0, "first_seen_ms": 0, "transient": False}
        room.store.cell_write("agent/eve", {**about, "processes": ["elsewhere.1:7:9"]})
        _, seen = doctor(cli, "--room", address)
    assert "1 in this room cannot be seen from here: elsewhere.1:7:9" in seen["liveness"]["says"]
    assert "lease ends" in seen["liveness"]["advice"]


def test_a_room_of_files_whose_log_is_damaged_is_told_with_the_place_and_what_to_do(cli: Cli, tmp_path: Path) -> None:
    address, log = f"files:{tmp_path}/mail", tmp_path / "mail/.postroom/log"
    cli.ok("init", "--room", address)
    for _ in range(3):
        cli.send("hi", "--room", address)
    first, second, *others = log.read_bytes().splitlines(keepends=True)
    log.write_bytes(b"".join([first, second.replace(b"o", b"0"), *others]))

    code, seen = doctor(cli, "--room", address)

    assert code == 1
    assert seen["reading"]["verdict"] == "fail"
    assert f"{log} is damaged: its bytes {len(first)} to {len(first + second)} " in seen["reading"]["says"]
    assert "keep a copy" in seen["reading"]["says"]


def test_for_people_each_check_is_a_line(cli: Cli) -> None:
    lines = cli.ok("doctor").lines

    assert lines[0].split()[:2] == ["ok", "postroom"]
    assert "0 failed" in lines[-1]


def test_a_finding_is_followed_by_the_page_that_explains_it(cli: Cli, tmp_path: Path) -> None:
    address = f"sqlite:{tmp_path}/open"
    cli.ok("init", "--room", address)
    (tmp_path / "open").chmod(0o755)

    said = cli.ok("doctor", "--room", address).lines[-1]
    page = re.findall(r"`postroom (help \S+)` explains", said)[0]

    assert "0 failed, 1 warning" in said or "0 failed, 2 warnings" in said  # the second: a temporary folder is fleeting
    assert "### rights" in cli.ok(*page.split()).out


def test_it_changes_nothing(cli: Cli) -> None:
    cli.send()
    tables = ("messages", "cells", "channel_subscriptions", "processes", "meta")
    before = [cli.json("sql", f"SELECT * FROM {table}") for table in tables]

    cli.ok("doctor")

    assert [cli.json("sql", f"SELECT * FROM {table}") for table in tables] == before


# --- no room -------------------------------------------------------------------------------------------------------


def test_without_a_room_the_machine_is_checked_and_it_says_where_it_looked(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / ".postroom").rename(tmp_path / "not-a-room")

    code, seen = doctor(cli)

    assert code == 4
    assert list(seen) == [*MACHINE, "room"]
    assert str(tmp_path / ".postroom") in seen["room"]["says"]
    assert "postroom init" in seen["room"]["advice"]


def test_a_folder_without_a_room_in_it_stays_without_one(cli: Cli, tmp_path: Path) -> None:
    empty = tmp_path / "empty"
    empty.mkdir()

    code, seen = doctor(cli, "--room", f"sqlite:{empty}")

    assert code == 4
    assert seen["room"]["verdict"] == "fail"
    assert list(empty.iterdir()) == []


@pytest.mark.parametrize("url", ["pigeon:coop", "sqlite:", "memory:", "sqlite:nowhere"])
def test_an_address_that_leads_nowhere_is_exit_code_4(cli: Cli, url: str) -> None:
    code, seen = doctor(cli, "--room", url)

    assert code == 4
    assert [name for name, check in seen.items() if check["verdict"] == "fail"]


def test_it_says_how_the_room_was_found(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert f"found from {tmp_path}" in doctor(cli)[1]["room"]["says"]
    monkeypatch.setenv("POSTROOM_URL", f"sqlite:{tmp_path}/.postroom")
    assert "$POSTROOM_URL" in doctor(cli)[1]["room"]["says"]
    assert "--room" in doctor(cli, "--room", ".postroom")[1]["room"]["says"]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a folder to somebody else")
def test_a_room_of_somebody_else_is_passed_over_and_told(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    below = tmp_path / "below"
    (below / ".postroom").mkdir(parents=True)
    os.chown(below / ".postroom", 12345, -1)
    monkeypatch.chdir(below)

    code, seen = doctor(cli)

    assert code == 0
    assert "12345" in seen["other room"]["says"]
    assert str(tmp_path / ".postroom") in seen["room"]["says"]


# --- the machine ---------------------------------------------------------------------------------------------------


def test_a_sqlite_that_can_lose_commits_fails(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(apsw, "sqlite_lib_version", lambda: "3.46.1")

    code, seen = doctor(cli)

    assert code == 1
    assert "apsw" in seen["sqlite"]["advice"]
    assert seen["opening"]["verdict"] == "fail"


def test_few_descriptors_are_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    import resource

    monkeypatch.setattr(resource, "getrlimit", lambda _: (64, 4096))

    assert doctor_machine.descriptors().verdict == "warn"
    assert "ulimit" in doctor_machine.descriptors().advice


# --- the place -----------------------------------------------------------------------------------------------------


def test_a_folder_that_others_can_enter_is_a_warning(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / ".postroom").chmod(0o755)

    code, seen = doctor(cli)

    assert code == 0
    assert seen["rights"]["verdict"] == "warn"
    assert "chmod" in seen["rights"]["advice"]


@pytest.mark.parametrize(
    ("kind", "verdict"), [("nfs4", "fail"), ("tmpfs", "warn"), ("overlay", "warn"), ("ext4", "ok"), ("", "ok")]
)
def test_the_file_system_must_keep_what_is_stored(
    kind: str, verdict: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doctor_machine, "file_system_type", lambda _: kind)

    check = doctor_machine.file_system(tmp_path)

    assert check.verdict == verdict
    assert bool(check.advice) == (verdict != "ok")


def test_a_room_on_a_network_file_system_fails(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (doctor_machine, sqlite_layout):
        monkeypatch.setattr(module, "file_system_type", lambda _: "nfs4")

    code, seen = doctor(cli)

    assert code == 1
    assert seen["file system"]["verdict"] == seen["opening"]["verdict"] == "fail"


@pytest.mark.parametrize(
    ("free_bytes", "inodes", "verdict"), [(2**40, 9, "ok"), (2**28, 9, "warn"), (2**20, 9, "fail"), (2**40, 0, "fail")]
)
def test_a_disk_that_is_nearly_full_is_told(
    free_bytes: int, inodes: int, verdict: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = SimpleNamespace(f_bavail=free_bytes // 4096, f_frsize=4096, f_files=100, f_favail=inodes)
    monkeypatch.setattr(os, "statvfs", lambda _: disk)

    assert doctor_machine.space(tmp_path).verdict == verdict


# --- the file ------------------------------------------------------------------------------------------------------


def damage(path: Path) -> None:
    """Overwrite pages in the middle of a file that nobody has open."""
    size = path.stat().st_size
    with path.open("r+b") as file:
        file.seek(size // 4096 * 2048)
        file.write(b"\xff" * 8192)


def test_a_damaged_file_fails_and_it_says_what_to_do(cli: Cli, tmp_path: Path) -> None:
    with postroom.open(create=False) as room:
        room.agent("ada").send_many([{"to": "bob", "payload": {"text": "x" * 500}}] * 500)
    damage(tmp_path / ".postroom" / "messages.db")

    code, seen = doctor(cli)

    assert code == 1
    failed = [check for check in seen.values() if check["verdict"] == "fail"]
    assert any("damaged" in check["says"] for check in failed)
    assert any("copy" in check["says"] + check["advice"] for check in failed)


def test_the_integrity_check_ends_when_its_time_is_over(sqlite_room: Room) -> None:
    sqlite_room.agent("ada").send_many([{"to": "bob", "payload": {"text": "x" * 100}}] * 5000)

    assert doctor_room.integrity(sqlite_room.store, 0.0).verdict == "warn"
    assert doctor_room.integrity(sqlite_room.store, PATIENCE_S).verdict == "ok"


def test_the_integrity_check_can_be_left_out(cli: Cli) -> None:
    assert "integrity" not in doctor(cli, "--integrity", "0")[1]


def test_a_layout_of_a_newer_postroom_fails(cli: Cli, tmp_path: Path) -> None:
    connection = apsw.Connection(str(tmp_path / ".postroom" / "messages.db"))
    connection.pragma("user_version", 99)
    connection.close()

    code, seen = doctor(cli)

    assert code == 1
    assert "layout 99" in seen["opening"]["says"]


def test_a_room_without_bells_is_told_with_the_reason(cli: Cli, tmp_path: Path) -> None:
    bells = tmp_path / ".postroom" / "bells"
    bells.unlink(missing_ok=True)
    bells.mkdir()

    code, seen = doctor(cli)

    assert code == 0
    assert seen["wake-up"]["verdict"] == "warn"
    assert "directory" in seen["wake-up"]["says"].lower()


def test_a_log_that_only_grows_is_a_warning_and_names_who_has_the_room_open(cli: Cli, tmp_path: Path) -> None:
    path = tmp_path / ".postroom" / "messages.db"
    with postroom.open(create=False) as room, listening(room) as listener:
        store = {"path": str(path), "wal_bytes": 65 * 2**20}
        check = doctor_room.log_size(Stats(states={}, mailboxes=[], store=store))
        assert processes_with(path) == [listener.pid]

    assert check.verdict == "warn"
    assert str(listener.pid) in check.says


# --- what goes on in it --------------------------------------------------------------------------------------------


def now_ms(room: Room) -> int:
    return room.clock.wall_ms()


@pytest.mark.parametrize(("jump_s", "word"), [(3600, "forward"), (-3600, "back")])
def test_a_wall_clock_that_was_set_is_told_with_what_that_means(
    sqlite_room: Room, clock: ManualClock, jump_s: float, word: str
) -> None:
    assert doctor_room.clocks(sqlite_room.store, now_ms(sqlite_room)).verdict == "ok"

    clock.jump_wall(jump_s)

    check = doctor_room.clocks(sqlite_room.store, now_ms(sqlite_room))
    assert check.verdict == "warn"
    assert f"{word} by 3600 s" in check.says
    assert "leases" in check.advice


def test_a_claim_past_its_lease_is_stuck(sqlite_room: Room, clock: ManualClock) -> None:
    ada, bob = (sqlite_room.agent(name, transient=True) for name in ("ada", "bob"))  # nobody keeps house meanwhile
    ids = [ada.send("bob", {"n": n}) for n in range(5)]
    for _ in ids:
        bob.receive(timeout_s=0, lease_s=30)
        clock.advance(1)
    assert doctor_room.claims(sqlite_room.store, now_ms(sqlite_room)).verdict == "ok"

    clock.advance(60)

    check = doctor_room.claims(sqlite_room.store, now_ms(sqlite_room))
    assert check.verdict == "warn"
    assert check.says.startswith("5 left behind")
    assert check.says.index(ids[0]) < check.says.index(ids[1])  # the oldest first
    assert "and 2 more" in check.says


def test_a_claim_of_a_one_shot_command_that_nobody_settles_is_told(sqlite_room: Room, clock: ManualClock) -> None:
    id = sqlite_room.agent("ada").send("bob", {"n": 1})
    sqlite_room.agent("bob", transient=True).receive(timeout_s=0)

    clock.advance(400)

    check = doctor_room.claims(sqlite_room.store, now_ms(sqlite_room))
    assert check.verdict == "warn"
    assert id in check.says
    assert "postroom ack" in check.advice


HOLD = """
import sys, postroom
room = postroom.open(sys.argv[1])
message = room.agent("bob").receive(timeout_s=30)
print("held", flush=True)
sys.stdin.read()
"""


def test_who_was_killed_is_named_with_what_it_held(cli: Cli, tmp_path: Path) -> None:
    id = cli.send()
    words = [sys.executable, "-c", HOLD, f"sqlite:{tmp_path}/.postroom"]
    with subprocess.Popen(
        words, env=clean_environment(), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        holder.kill()

    code, seen = doctor(cli)

    assert code == 0
    assert (seen["claims"]["verdict"], seen["agents"]["verdict"]) == ("warn", "warn")
    assert id in seen["claims"]["says"]
    assert "bob" in seen["agents"]["says"]


def test_an_agent_that_fell_silent_where_nobody_sees_it_is_named_as_gone(sqlite_room: Room, clock: ManualClock) -> None:
    sqlite_room.agent("ada", transient=True)
    cell = sqlite_room.store.cell_read("agent/ada")
    assert cell is not None
    elsewhere = {"processes": ["another-host.1:1:1"], "status": "active", "transient": False}
    sqlite_room.store.cell_write("agent/ada", cell.value | elsewhere)
    assert doctor_room.agents(sqlite_room, now_ms(sqlite_room)).verdict == "ok"

    clock.advance(61)

    check = doctor_room.agents(sqlite_room, now_ms(sqlite_room))
    assert (check.verdict, check.says) == ("warn", "1 ended without closing: ada")


def test_an_agent_that_runs_and_says_nothing_is_told(sqlite_room: Room, clock: ManualClock) -> None:
    sqlite_room.agent("ada")
    assert doctor_room.agents(sqlite_room, now_ms(sqlite_room)).verdict == "ok"

    check = doctor_room.agents(sqlite_room, now_ms(sqlite_room) + 60_000)

    assert check.verdict == "warn"
    assert "ada (60 s)" in check.says


def test_dead_letters_are_told(cli: Cli) -> None:
    with postroom.open(create=False) as room:
        room.agent("ada").send("bob", {"n": 1})
        room.agent("bob").receive(timeout_s=0).dead("broken")

    code, seen = doctor(cli)

    assert code == 0
    assert (seen["dead letters"]["verdict"], seen["dead letters"]["says"]) == ("warn", "1 set aside")


def test_those_who_wait_for_each_other_are_told(
    sqlite_room: Room, in_background: Callable[..., object], pass_time: Callable[..., None]
) -> None:
    room = sqlite_room
    ada, bob = room.agent("ada"), room.agent("bob")
    asking = [
        in_background(lambda: ada.ask("bob", {}, timeout_s=5)),
        in_background(lambda: bob.ask("ada", {}, timeout_s=5)),
    ]
    with room.store.listen([FEED]) as waiter:
        while len(room.waits()) < 2:
            waiter.wait(None)

    check = doctor_room.waiting(room, now_ms(room))

    assert check.verdict == "warn"
    assert "ada for bob" in check.says
    for call in asking:
        pass_time(call)


def test_a_pause_that_may_have_been_forgotten_is_told(sqlite_room: Room, clock: ManualClock) -> None:
    def check() -> Check:
        return doctor_room.pauses(sqlite_room, now_ms(sqlite_room))

    assert (check().verdict, check().says) == ("ok", "none")
    sqlite_room.pause("jobs", by="mia")
    clock.advance(86400 - 60)
    sqlite_room.pause(agent="bob", by="mia")
    assert (check().verdict, check().says) == ("ok", "2 paused, none of them for more than a day")
    clock.advance(120)
    assert (check().verdict, check().says) == ("warn", "1 older than a day: channel jobs by mia 1 d ago")
    sqlite_room.resume("jobs")
    assert check().verdict == "ok"


def test_the_one_who_keeps_house_is_named(sqlite_room: Room, clock: ManualClock) -> None:
    assert "next" in doctor_room.upkeep(sqlite_room, now_ms(sqlite_room)).says
    sqlite_room.agent("ada")
    assert doctor_room.upkeep(sqlite_room, now_ms(sqlite_room)).verdict == "warn"

    sqlite_room._upkeep.round()

    check = doctor_room.upkeep(sqlite_room, now_ms(sqlite_room))
    assert (check.verdict, str(os.getpid()) in check.says) == ("ok", True)


class listening:  # noqa: N801  reads as a word
    """A process that has the room open."""

    def __init__(self, room: Room) -> None:
        self._room = room

    def __enter__(self) -> subprocess.Popen[str]:
        self._process = start("listen", "--as", "bob")
        with self._room.store.listen(["cells:agent"]) as waiter:
            while not any(agent.alive for agent in self._room.agents()):
                waiter.wait(1)
        return self._process

    def __exit__(self, *_: object) -> None:
        self._process.send_signal(signal.SIGINT)
        self._process.communicate(timeout=PATIENCE_S)
