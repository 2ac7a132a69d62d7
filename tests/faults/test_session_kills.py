"""Anybody of a session is killed at any moment: there is one failure on record, nobody hangs, and nothing is left running.

A caller delegates to workers that talk all the time; one of them, or the caller itself, is killed with SIGKILL. When the
caller is killed, the one who started its workers ends them and records the failure in its place.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.nats_servers import room_name, shared_server

from postroom.room import Room, open_room
from postroom.sessions.members import members_of
from postroom.sessions.report import report

from .support import seed

PROGRAM = Path(__file__).parent / "programs" / "session.py"
WORKERS = 4
PATIENCE_S = 60.0
OPENER_GONE = "the process that opened the session was killed, or ended without closing it"
#: No hang over this.
HANG_S = 5.0


def processes_in(folder: Path) -> list[int]:
    """Everything that runs with this folder as its working directory: the caller, its fork server, its workers."""
    found = []
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                inside = os.readlink(f"/proc/{name}/cwd") == str(folder)
                with open(f"/proc/{name}/stat", "rb") as file:
                    inside = inside and file.read().rpartition(b")")[2].split()[0] not in (b"Z", b"X")
            except OSError:
                continue
            if inside:
                found.append(int(name))
    return found


def rounds(url: str, folder: Path, count: int, chance: random.Random) -> Iterator[tuple[str, float]]:
    """Whom each round killed, and how long it took until nothing of it ran any more."""
    with open_room(url) as room:
        for _ in range(count):
            yield one_round(room, url, folder, chance)


def one_round(room: Room, url: str, folder: Path, chance: random.Random) -> tuple[str, float]:
    words = [sys.executable, str(PROGRAM), url, str(WORKERS)]
    caller = subprocess.Popen(words, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    assert caller.stdout is not None
    id = caller.stdout.readline().strip()
    victim = chance.choice(["caller", *(f"worker {n}" for n in range(WORKERS))])
    pid = caller.pid if victim == "caller" else _pid_of(room, id, int(victim[7:]))
    time.sleep(chance.random() * chance.choice([0.002, 0.05]))
    os.kill(pid, signal.SIGKILL)
    watch = Stopwatch()
    while caller.poll() is None or processes_in(folder):
        watch.tick()
    caller.stdout.close()
    _check(room, id, victim, pid)
    return victim, watch.passed_s


class Stopwatch:
    """Counts the time in which this test could run: a machine that was held up for a while is no hang."""

    def __init__(self) -> None:
        self._last = time.monotonic()
        self.passed_s = 0.0

    def tick(self) -> None:
        time.sleep(0.005)
        now = time.monotonic()
        self.passed_s += min(now - self._last, 0.1)
        self._last = now
        assert self.passed_s < PATIENCE_S, "it hangs"


def _pid_of(room: Room, id: str, number: int) -> int:
    """The pid of a worker, as soon as it is a member."""
    watch = Stopwatch()
    while True:
        here = [member for member in members_of(room.gateway, id) if member.role == "worker" and member.number]
        if len(here) == WORKERS:
            worker = sorted(here, key=lambda member: member.number)[number]
            return int(worker.process.split(":")[1])
        watch.tick()


def _check(room: Room, id: str, victim: str, pid: int) -> None:
    """Exactly one failure, the same in the record and in the folder, and it tells the truth."""
    about = report(room.gateway, id)
    failure = about.info.failure
    assert failure is not None, f"{victim}: no failure was recorded"
    folder = Path(about.info.folder)
    told = json.loads((folder / ".failed").read_text(encoding="utf-8"))
    assert told["message"] == failure.message
    assert [path.name for path in folder.glob(".failed*")] == [".failed"]
    if victim == "caller":
        # killed before it had any worker, there was nobody to record it: the first look did
        assert failure.message in ("caller was killed, or ended, while its workers ran", OPENER_GONE)
    else:
        assert (
            failure.message == f"worker talk-{int(victim[7:]) + 1} was killed by signal 9 (SIGKILL) before it returned"
        )
        assert pid in [worker.pid for worker in about.workers]


def check_rounds(url: str, folder: Path, count: int) -> None:
    chance = random.Random(seed())
    done = list(rounds(url, folder, count, chance))
    slowest = max(took_s for _, took_s in done)
    victims = {victim for victim, _ in done}
    print(f"{count} rounds, {len(victims)} kinds of victims, slowest {slowest:.2f} s")
    assert "caller" in victims or count < 20
    assert slowest < HANG_S


@pytest.mark.slow
def test_whoever_is_killed_there_is_one_failure_and_nobody_is_left(tmp_path: Path) -> None:
    check_rounds(f"sqlite:{tmp_path}/room", tmp_path, 10)


@pytest.mark.slow
@pytest.mark.parametrize("count", [3, pytest.param(100, marks=pytest.mark.long)])
def test_whoever_is_killed_on_nats_there_is_one_failure_too(tmp_path: Path, count: int) -> None:
    check_rounds(f"nats://{shared_server().address}/{room_name()}", tmp_path, count)


@pytest.mark.long
def test_three_hundred_kills(tmp_path: Path) -> None:
    check_rounds(f"sqlite:{tmp_path}/room", tmp_path, 300)
