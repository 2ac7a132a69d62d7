"""An hour with kills: six processes work in one room the whole time, while others beside them are killed.

The story. One sends, one receives and acks, one listens, one serves, one asks, and one shows the room's page to a browser
that looks every five seconds. Beside them, twice a second, a process of the storm (`test_kill_storm.py`) comes into the
same room, works, and is killed within a tenth of a second. It is a soak and no storm: all of it takes
about a tenth of two cores. The hour has twelve parts of five minutes; the six live through all of them, and between two
of them they work on.

The invariant. After a warm-up of a quarter of the hour, in which the page cache of each connection fills up to its 2 MB,
the memory, descriptors and threads of each of the six are level: the median of a part is not higher than that of the
fourth by more than `curves.GAIN_MOST`. The write-ahead log never exceeds 64 MB. After the last part nothing of the six was lost or delivered twice, and all that the
storm promises holds.

The picture. Each part writes its samples into `build/soak` (POSTROOM_SOAK_CURVES says where else). `make soak` runs the hour and
makes docs/pictures/soak.svg of them, `python -m tests.faults.curves` only the picture.
"""

from __future__ import annotations

import json
import os
import random
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import parse_qs, urlsplit
from xml.etree import ElementTree as ET

import pytest
from tests.faults import curves
from tests.faults.programs.nursery import steady_ns
from tests.faults.programs.rooms import open_room

from .support import ACKED, ANSWERED, Look, Nursery, count, in_parts, journal, seed
from .test_kill_storm import ROLES, check_storm
from .test_liveness import wait_for
from .test_soak import WAL_MOST, check_day, open_files, rss_bytes, threads, wal_bytes

pytestmark = pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="only Linux tells what a process has open")

PARTS = 12
WARM_UP_PARTS = 3
CURVES = Path(os.environ.get("POSTROOM_SOAK_CURVES") or Path(__file__).parents[2] / "build" / "soak")
SAMPLE_EVERY_S = 5.0
KILL_EVERY_S = 0.5
#: Those that are killed live at most so long, and rest between their steps: the room is to hold all that was ever sent.
LIFE_S = 0.1
PAUSE_S = 0.002
#: Messages of the storm are between these two, and the six never name them.
OF_THE_SIX = "from_agent NOT IN ('ada', 'bob')"


class Hour:
    """The six, and those that are killed beside them."""

    def __init__(self, folder: Path, nursery: Nursery) -> None:
        self.folder = folder
        self.nursery = nursery
        self.notes, self.storm_notes = folder.parent / "journal", folder.parent / "storm-journal"
        self.enough, self.over = folder.parent / "enough", folder.parent / "over"
        self.chance = random.Random(seed())
        self.killed: dict[int, list[int]] = {}
        self.kills = 0
        self.parts: list[curves.Part] = []
        open_room(folder).close()
        place = {"folder": str(folder), "journal": str(self.notes)}
        self.pids = {
            name: nursery.fork(f"soak.{name}", **place, over=str(self.over))
            for name in ("receiver", "listener", "server", "page")
        }
        self.address = urlsplit(wait_for(self.notes, "serves", nursery).details[0])
        pace = count("SOAK_HOUR_PER_S", 20)
        for name in ("sender", "asker"):
            self.pids[name] = nursery.fork(f"soak.{name}", **place, enough=str(self.enough), per_s=pace)
        self.began_ns = steady_ns()

    def run(self, seconds: float) -> curves.Part:
        """One part: kill and look until its time is over. Its samples."""
        until_ns, sample_ns, rows = steady_ns() + int(seconds * 1e9), 0, []
        every_s = min(SAMPLE_EVERY_S, seconds / 4)
        while (now_ns := steady_ns()) < until_ns:
            self.kill_one()
            if steady_ns() >= sample_ns:
                self.look_at_page()
                rows.append(self.sample())
                sample_ns = steady_ns() + int(every_s * 1e9)
            assert self.nursery.ended(self.pids.values()) == {}, self.nursery.log()
            time.sleep(max(0, now_ns + KILL_EVERY_S * 1e9 - steady_ns()) / 1e9)
        self.parts.append(curves.Part(curves.machine(), rows))
        return self.parts[-1]

    def kill_one(self) -> None:
        """A process of the storm comes, works, and is killed."""
        place = {"folder": str(self.folder), "journal": str(self.storm_notes)}
        role = f"storm.{ROLES[self.kills % len(ROLES)]}"
        pid = self.nursery.fork(role, **place, seed=seed() + self.kills, pause_s=PAUSE_S)
        time.sleep(self.chance.random() * LIFE_S)
        assert self.nursery.ended([pid]) == {}, self.nursery.log()
        self.killed.setdefault(pid, []).append(self.nursery.kill(pid))
        self.kills += 1

    def look_at_page(self) -> None:
        """As a browser that shows what is new, and a program that gathers figures."""
        token = parse_qs(self.address.query)["token"][0]
        for path in ("/api/recent", "/metrics"):
            url = f"{self.address.scheme}://{self.address.netloc}{path}"
            request = urllib.request.Request(url, headers={"Authorization": f"Bearer {token}"})
            with urllib.request.urlopen(request, timeout=120) as response:
                assert response.status == 200 and response.read()

    def sample(self) -> curves.Row:
        row = {"seconds": (steady_ns() - self.began_ns) // 10**9, "kills": self.kills}
        row["wal_kib"] = wal_bytes(self.folder) // 1024
        for name, pid in self.pids.items():
            row[f"{name}.rss_kib"] = rss_bytes(pid) // 1024
            row[f"{name}.descriptors"] = len(open_files(pid))
            row[f"{name}.threads"] = threads(pid)
        return row

    def check_level(self) -> None:
        """The part that has just been run is no higher than the first after the warm-up."""
        last = self.parts[-1]
        assert max(row["wal_kib"] for row in last.rows) * 1024 <= WAL_MOST
        if len(self.parts) > WARM_UP_PARTS:
            assert curves.gains(self.parts[WARM_UP_PARTS], last) == {}

    def end(self) -> str:
        """Let the six come to their end, and check all that they and the storm did. Figures about it."""
        self.enough.touch()
        self.nursery.finish(self.pids["sender"], self.pids["asker"])
        notes = {"folder": str(self.folder), "journal": str(self.notes)}
        self.nursery.finish(self.nursery.fork("soak.waiter", **notes, idle_s=0.5))
        self.over.touch()
        self.nursery.finish(*(self.pids[name] for name in ("receiver", "listener", "server", "page")))
        notes["journal"] = str(self.storm_notes)
        self.nursery.finish(self.nursery.fork("storm.drain", **notes))
        told = check_storm(self.folder, self.storm_notes, self.killed)
        of_the_six = check_day(self.folder, journal.read(self.notes), set(), OF_THE_SIX)
        with Look(self.folder) as look:
            assert look.value(f"SELECT count(*) FROM messages WHERE state NOT IN ({ACKED}, {ANSWERED})") == 0
        return f"{of_the_six} messages of the six, {self.kills} kills; of those beside them: {told}"


@pytest.fixture(scope="module")
def hour(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hour]:
    """One room for all parts that are run, one after another."""
    place = tmp_path_factory.mktemp("hour")
    nursery = Nursery(place / "children.log", "journal", "rooms")
    yield Hour(place / "room", nursery)
    nursery.close()


@pytest.mark.long
@in_parts(PARTS)
def test_an_hour_beside_kills_is_level(part: int, hour: Hour, figure: Callable[[str], None]) -> None:
    seen = hour.run(count("SOAK_HOUR_PART_S", 300))
    seen.write(CURVES / f"part-{part + 1:02}.txt")
    if part == PARTS - 1:
        figure(f"soak of an hour: {hour.end()}")
    hour.check_level()


@pytest.mark.slow
def test_some_seconds_of_the_hour_lose_nothing_and_are_drawn(
    folder: Path, nursery: Nursery, tmp_path: Path, figure: Callable[[str], None]
) -> None:
    hour = Hour(folder, nursery)
    for number in range(3):
        hour.run(count("SOAK_HOUR_S", 3) / 3).write(tmp_path / f"part-{number}.txt")

    figure(f"soak of some seconds: {hour.end()}")
    assert hour.kills >= 3
    assert curves.main([str(tmp_path), str(tmp_path / "soak.svg")]) == 0
    drawn = (tmp_path / "soak.svg").read_text(encoding="utf-8")
    assert all(f">{panel.title}</text>" in drawn for panel in curves.PANELS)
    assert ET.fromstring(drawn).tag.endswith("svg")


# The curves


def made_part(**gained: int) -> curves.Part:
    rows = [
        {"seconds": n, "kills": n, "wal_kib": 1024, "one.rss_kib": 50_000, "one.descriptors": 20, "one.threads": 5}
        for n in range(9)
    ]
    return curves.Part("a machine", [{name: row[name] + gained.get(name, 0) for name in row} for row in rows])


@pytest.mark.parametrize(("name", "leaked"), [("one.rss_kib", 5000), ("one.descriptors", 4), ("one.threads", 3)])
def test_what_grows_from_part_to_part_is_seen(name: str, leaked: int) -> None:
    assert curves.gains(made_part(), made_part(**{name: leaked})) == {name: leaked}
    assert curves.gains(made_part(), made_part(**{name: leaked // 2})) == {}


def test_samples_are_read_as_they_were_written(tmp_path: Path) -> None:
    made_part().write(tmp_path / "part-01.txt")

    assert curves.Part.read(tmp_path / "part-01.txt") == made_part()


def test_a_moment_is_no_leak() -> None:
    late = made_part()
    late.rows[3]["one.descriptors"] = 90

    assert curves.gains(made_part(), late) == {}


def test_a_picture_of_nothing_is_refused(tmp_path: Path) -> None:
    assert curves.main([str(tmp_path), str(tmp_path / "none.svg")]) == 1


def test_the_ticks_of_an_axis_are_few_and_reach_what_is_shown() -> None:
    for most in (0.3, 1, 7, 12, 60, 99, 730, 4096):
        assert 2 <= len(curves.ticks(most)) <= 6 and curves.ticks(most)[-1] >= most, json.dumps(curves.ticks(most))
