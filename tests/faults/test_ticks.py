"""Schedules beside kills and a clock that is set.

The story. Eight processes have a room open. Somebody sets the wall clock, forward and back, by up to an hour; processes
are killed with SIGKILL at any moment, and others come. Nobody is in charge of the ticks.

The invariant. Every tick of a schedule that catches up is sent once. One that does not sends none twice, each on its
grid, and leaves out only what came together with a later one. An interval goes on as if no clock had been set.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import pytest
from tests.faults.programs.ticks import OFFSET, SetClock
from tests.support.nats_servers import room_name, shared_server
from tests.support.patience import until

import postroom
from postroom.core.clock import SYSTEM, from_iso
from postroom.stores.contract import Query

from .support import Nursery, count, seed

MINUTE_MS = 60_000
HOUR_MS = 60 * MINUTE_MS
PROCESSES = 8
POLICIES = ("skip", "one", "all")


def sent(room: postroom.Room) -> dict[str, list[int]]:
    """The ticks that each schedule has sent, in order; also where several servers number the messages."""
    found: dict[str, list[int]] = {}
    for message in room.store.find_all(Query(limit=1000)):
        name, _, time = str(message.correlation_id).rpartition("@")
        found.setdefault(name, []).append(from_iso(time))
    return {name: sorted(ticks) for name, ticks in found.items()}


class Storm:
    """Eight keepers, of which one is killed and replaced now and then; and a hand at the clock."""

    def __init__(self, nursery: Nursery, url: str, clock: SetClock, file: Path) -> None:
        self._nursery, self._url, self._clock, self._file = nursery, url, clock, file
        self._chance = random.Random(seed())
        self._pids = [self._start(number) for number in range(PROCESSES)]
        self.kills = self.jumps = 0

    def _start(self, number: int) -> int:
        return self._nursery.fork("ticks.keeper", url=self._url, clock=str(self._file), number=number)

    def pass_minutes(self, minutes: int) -> None:
        """Let the wall clock go on to so many minutes after where it began, in steps and with detours."""
        reached = 0
        while reached < minutes:
            reached = min(minutes, reached + self._chance.choice((1, 1, 1, 1, 2, 7)))
            self._clock.set(reached * MINUTE_MS)
            if self._chance.random() < 0.2:
                self._kill()
            if self._chance.random() < 0.1:  # set back by up to an hour, and forward again
                self.jumps += 1
                self._clock.set(reached * MINUTE_MS - self._chance.randrange(HOUR_MS))
                SYSTEM.sleep(self._chance.random() * 0.05)
                self._clock.set(reached * MINUTE_MS)
            SYSTEM.sleep(self._chance.random() * 0.06)

    def _kill(self) -> None:
        place = self._chance.randrange(PROCESSES)
        self._nursery.kill(self._pids[place])
        self._pids[place] = self._start(place)
        self.kills += 1

    def end(self) -> None:
        self._nursery.kill(*self._pids)


def run(nursery: Nursery, url: str, file: Path, minutes: int, figure: Callable[[str], None]) -> None:
    file.write_bytes(OFFSET.pack(0))
    clock = SetClock(file)
    with postroom.open(url, clock=clock) as room:
        made = {name: room.schedule(name, cron="* * * * *", missed=name, to="bob") for name in POLICIES}
        made["every"] = room.schedule("every", every_s=1, missed="all", to="bob")
        first = {name: from_iso(str(each.next_tick)) for name, each in made.items() if name != "every"}
    storm = Storm(nursery, url, clock, file)
    storm.pass_minutes(minutes)
    last_ms = clock.wall_ms() // MINUTE_MS * MINUTE_MS
    with postroom.open(url, clock=clock) as room:
        until(lambda: len(sent(room).get("all", ())) >= (last_ms - first["all"]) // MINUTE_MS + 1)
        storm.end()
        until(lambda: all(each.next_tick and from_iso(each.next_tick) > last_ms for each in room.schedules()))
        found = sent(room)
        counts = {each.name: each.sent for each in room.schedules()}
    assert found["all"][: (last_ms - first["all"]) // MINUTE_MS + 1] == [*range(first["all"], last_ms + 1, MINUTE_MS)]
    for name in ("one", "skip"):
        assert {tick_ms % MINUTE_MS for tick_ms in found[name]} == {0} and found[name][-1] >= last_ms
    for name, ticks in found.items():
        assert all(earlier < later for earlier, later in pairwise(ticks)), f"a tick of {name} came twice"
        assert counts[name] >= len(ticks)
    assert {later - earlier for earlier, later in pairwise(found["every"])} <= {1000}, (
        "a tick of the interval is missing"
    )
    total = sum(map(len, found.values()))
    figure(f"ticks: {total} of 4 schedules, {PROCESSES} processes, {storm.kills} kills, {storm.jumps} clocks set back")


@pytest.mark.slow
@pytest.mark.parametrize("scheme", ["sqlite", "files", "nats"])
def test_no_tick_is_doubled_and_none_is_missed_beyond_its_policy(
    nursery: Nursery, folder: Path, tmp_path: Path, scheme: str, figure: Callable[[str], None]
) -> None:
    run(nursery, _url(scheme, folder), tmp_path / "clock", count("TICKS", 60), figure)


@pytest.mark.long
@pytest.mark.parametrize("scheme", ["sqlite", "files", "nats"])
def test_no_tick_of_two_thousand_is_doubled_or_missed(
    nursery: Nursery, folder: Path, tmp_path: Path, scheme: str, figure: Callable[[str], None]
) -> None:
    run(nursery, _url(scheme, folder), tmp_path / "clock", count("TICKS", 2000), figure)


def _url(scheme: str, folder: Path) -> str:
    return f"nats://{shared_server().address}/{room_name()}" if scheme == "nats" else f"{scheme}:{folder}"
