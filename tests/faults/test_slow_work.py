"""Workers that are slow, stopped, frozen or killed in the middle of a job.

The invariant. No job is lost, and one ack of each counts. Two workers are at the same job at once only where the first
was stopped or frozen for longer than its lease; and that one is told so: `LateAck`.
"""

from __future__ import annotations

import os
import random
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

import postroom

from .programs.nursery import steady_ns
from .programs.rooms import UNTIRING
from .programs.slow import DOORS
from .support import Nursery, count, in_parts, journal, seed

#: Short leases, so that a job can be many of them long; heartbeats may come that much too late on a slow machine.
LEASE_S = 2.0
WORKERS = (*DOORS, "block", "ahead")


@pytest.fixture
def nursery(tmp_path: Path) -> Iterator[Nursery]:
    nursery = Nursery(tmp_path / "children.log", "journal", "rooms", "slow")
    yield nursery
    nursery.close()


class Workshop:
    """Workers in processes of their own. Those that stop are let go on when it is time; those that die are replaced."""

    def __init__(self, nursery: Nursery, url: str, notes: Path, terms: dict[str, Any]) -> None:
        self._nursery = nursery
        self._started = {"url": url, "journal": str(notes), "terms": terms}
        self._notes = notes
        self._seen = 0
        self._names: dict[int, tuple[str, str]] = {}
        self._go_on_ns: dict[int, int] = {}

    def hire(self, name: str, door: str) -> int:
        pid = self._nursery.fork("slow.worker", name=name, door=door, **self._started)
        self._names[pid] = (name, door)
        return pid

    def look_after(self) -> None:
        lines = journal.read(self._notes)
        for line in lines[self._seen :]:
            if line.event == "stopping":
                self._go_on_ns[line.pid] = line.at_ns + int(line.details[0] * 1e9)
        self._seen = len(lines)
        for pid, at_ns in list(self._go_on_ns.items()):
            if steady_ns() >= at_ns:
                os.kill(pid, signal.SIGCONT)
                del self._go_on_ns[pid]
        for pid, status in self._nursery.ended(self._names).items():
            assert status == -signal.SIGKILL, self._nursery.log()
            self.hire(*self._names.pop(pid))
        time.sleep(0.02)

    def close(self) -> None:
        self._nursery.kill(*self._names)


def jobs_of(chance: random.Random, jobs: int) -> list[dict[str, Any]]:
    """What is to befall each job the first time that somebody has it."""
    spans = {
        "slow": lambda: LEASE_S * chance.choice([0.02, 0.1, 1.2, 2]),
        "stop": lambda: LEASE_S * chance.choice([0.1, 1.5]),
        "freeze": lambda: LEASE_S * chance.choice([0.1, 1.5]),
        "kill": lambda: LEASE_S * chance.random(),
    }
    return [{"how": how, "for_s": spans[how]()} for how in chance.choices(list(spans), [5, 2, 2, 2], k=jobs)]


def check(room: postroom.Room, ids: list[str], lines: list[journal.Line]) -> Counter[str]:
    """Hold what happened against the invariant; how often what happened."""
    acks = Counter(line.details[0] for line in lines if line.event == "acked")
    assert max(acks.values()) == 1, "two acks counted"
    for id in ids:
        ledger = [entry.event for entry in room.get(id).ledger]
        assert ledger.count("acked") == 1 and ledger[-1] == "acked", ledger
    times = {(line.event, *line.details[:2]): line.at_ns for line in lines}
    told = Counter[str](line.event for line in lines)
    begun = [line for line in lines if line.event == "began"]
    for first in begun:
        id, delivery, how = first.details
        ends = [times.get((event, id, delivery)) for event in ("worked", "dying")]
        end_ns = min((end for end in ends if end is not None), default=None)
        later = times.get(("began", id, delivery + 1))
        if later is None or end_ns is None or later >= end_ns:
            continue
        told["at once"] += 1
        away_s = (end_ns - first.at_ns) / 1e9
        assert how in ("stop", "freeze") and away_s > LEASE_S * 2 / 3, f"{how}, {away_s:.2f} s: {id}"
        assert ("late", id, delivery) in times, f"nobody told the late worker of {id}"
        assert ("acked", id, delivery) not in times
    return told


def begun_of(lines: list[journal.Line], id: str) -> list[journal.Line]:
    return [line for line in lines if line.event == "began" and line.details[0] == id]


def work_off(
    nursery: Nursery, tmp_path: Path, jobs: list[dict[str, Any]], doors: Sequence[str], terms: dict[str, Any]
) -> tuple[postroom.Room, list[str], list[journal.Line]]:
    """Let workers do all jobs. The room, the ids of the jobs and what was written down meanwhile."""
    room = postroom.open(f"sqlite:{tmp_path}/room", max_deliveries=UNTIRING)
    ids = [room.agent("lead").send(None, job, channel="jobs") for job in jobs]
    notes = tmp_path / "journal"
    shop = Workshop(nursery, str(room.url), notes, terms)
    for number, door in enumerate(doors):
        shop.hire(f"worker-{number}", door)
    until_s = time.monotonic() + 280
    while room.stats().states.get("acked", 0) < len(jobs) or is_at_work(journal.read(notes)):
        assert time.monotonic() < until_s, f"it takes too long; seed {seed()}\n{nursery.log()}"
        shop.look_after()
    shop.close()
    return room, ids, journal.read(notes)


def is_at_work(lines: list[journal.Line]) -> bool:
    """Whether somebody still works, or has not yet learnt that it was too late."""
    over = {tuple(line.details[:2]) for line in lines if line.event in ("acked", "late", "dying")}
    worked = {tuple(line.details[:2]) for line in lines if line.event == "worked"}
    last = {id: max(d for i, d in worked if i == id) for id, _ in worked}  # a loop notes it with its next message only
    begun = {tuple(line.details[:2]) for line in lines if line.event == "began"}
    return any(key not in over and (key not in worked or key[1] < last[key[0]]) for key in begun)


def run_mix(nursery: Nursery, tmp_path: Path, jobs: int, figure: Callable[[str], None]) -> None:
    chance = random.Random(f"slow work {seed()}")
    terms = {"lease_s": LEASE_S, "max_hold_s": None}
    room, ids, lines = work_off(nursery, tmp_path, jobs_of(chance, jobs), WORKERS, terms)
    told = check(room, ids, lines)
    room.close()
    figure(
        f"slow work: {jobs} jobs, {told['began']} begun, {told['stopping']} stops, {told['dying']} kills, "
        f"{told['at once']} at work at once, {told['late']} late acks, all of them told; none lost"
    )


@pytest.mark.slow
def test_of_slow_stopped_frozen_and_killed_workers_no_job_is_lost_or_done_twice_at_once(
    nursery: Nursery, tmp_path: Path, figure: Callable[[str], None]
) -> None:
    run_mix(nursery, tmp_path, count("SLOW_JOBS", 12), figure)


@pytest.mark.long
@in_parts(5)
def test_so_in_a_thousand_mixes(nursery: Nursery, tmp_path: Path, figure: Callable[[str], None], part: int) -> None:
    run_mix(nursery, tmp_path, count("SLOW_JOBS_LONG", 200), figure)


# Under default settings, in real time


@pytest.mark.long
def test_jobs_of_many_leases_are_done_once_each_under_default_settings(nursery: Nursery, tmp_path: Path) -> None:
    """Jobs of 100 s, to stay below five minutes; those of ten minutes are in tests/mail/test_leases.py."""
    room, ids, lines = work_off(nursery, tmp_path, [{"how": "slow", "for_s": 100}] * 6, ("block", "loop", "plain"), {})
    assert [len(begun_of(lines, id)) for id in ids] == [1] * 6
    assert all([entry.event for entry in room.get(id).ledger] == ["stored", "claimed", "acked"] for id in ids)
    room.close()


@pytest.mark.long
def test_a_worker_that_is_killed_half_way_is_replaced_at_once_and_a_stopped_one_after_its_lease(
    nursery: Nursery, tmp_path: Path, figure: Callable[[str], None]
) -> None:
    jobs = [{"how": "kill", "for_s": 45}, {"how": "stop", "for_s": 60}]
    room, ids, lines = work_off(nursery, tmp_path, jobs, ("block", "loop", "plain", "plain"), {})
    (died,) = [line for line in lines if line.event == "dying"]
    (_, again), (stopped, instead) = (begun_of(lines, id) for id in ids)
    after_death_s = (again.at_ns - died.at_ns) / 1e9
    after_stop_s = (instead.at_ns - stopped.at_ns) / 1e9
    assert after_death_s < 5
    assert 29 < after_stop_s < 40
    assert [line.details[0] for line in lines if line.event == "late"] == [ids[1]]
    room.close()
    figure(f"slow work: taken over {after_death_s:.2f} s after a kill, {after_stop_s:.1f} s after a stop (lease 30 s)")
