"""Processes that wait for the disk, and end or stand still while they do.

The story. With sync=full several processes send into one room. Each syncs the log after its commit, without the write lock. Some
are killed in the middle of a sync, or stopped there.

The invariant. Nobody waits for another process's sync, and a send that returned is kept.
"""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
from tests.faults.programs.nursery import steady_ns
from tests.faults.programs.rooms import letter, open_room

from .support import Look, Nursery, count, in_parts, journal, seed

AT_ONCE = 4
#: A sender that is to be killed gets that far at most.
MOST_SYNCS = 12


def wait_until(what: Callable[[], bool]) -> None:
    until_ns = steady_ns() + 60_000_000_000
    while not what():
        assert steady_ns() < until_ns
        time.sleep(0.005)


def is_stopped(pid: int) -> bool:
    return Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()[0] == "T"


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="only /proc tells that a process is stopped")
def test_a_process_that_is_stopped_in_the_middle_of_a_sync_holds_nobody_up(
    nursery: Nursery, folder: Path, tmp_path: Path
) -> None:
    with closing(open_room(folder, sync="full")) as store:
        store.put([letter()])
        stopped = nursery.fork("storm.stops_in_a_sync", folder=str(folder), journal=str(tmp_path / "journal"))
        try:
            wait_until(lambda: is_stopped(stopped))
            for _ in range(20):
                store.put([letter()])
            assert is_stopped(stopped)
        finally:
            os.kill(stopped, signal.SIGCONT)
        nursery.finish(stopped)
    [sent] = journal.read(tmp_path / "journal")
    with Look(folder) as look:
        assert look.damage() == "ok"
        assert set(sent.details[0]) <= look.ids()
        assert len(look.ids()) == 22


def kill_in_syncs(nursery: Nursery, folder: Path, notes: Path, kills: int) -> float:
    """Let so many senders be killed in the middle of a sync, while this process sends. Returns its longest send, in seconds."""
    chance, alive, begun, longest_ns = random.Random(seed()), set[int](), 0, 0
    sent: list[str] = []
    with closing(open_room(folder, sync="full", busy_timeout_s=60)) as store:
        while begun < kills or alive:
            while len(alive) < AT_ONCE and begun < kills:
                at = chance.randint(1, MOST_SYNCS)
                alive.add(nursery.fork("storm.dies_in_a_sync", folder=str(folder), journal=str(notes), at=at))
                begun += 1
            began_ns = steady_ns()
            sent += store.put([letter()])
            longest_ns = max(longest_ns, steady_ns() - began_ns)
            ended = nursery.ended(alive)
            assert set(ended.values()) <= {-signal.SIGKILL}, nursery.log()
            alive -= set(ended)
    told = {id for line in journal.read(notes) for id in line.details[0]}
    assert told
    with Look(folder) as look:
        assert look.damage() == "ok"
        assert (told | set(sent)) - look.ids() == set()
    return longest_ns / 1e9


@pytest.mark.slow
def test_kills_in_the_middle_of_syncs_lose_nothing(
    nursery: Nursery, folder: Path, tmp_path: Path, figure: Callable[[str], None]
) -> None:
    kills = count("SYNC_KILLS", 60)
    longest_s = kill_in_syncs(nursery, folder, tmp_path / "journal", kills)
    figure(f"syncs: {kills} kills in the middle of one; the longest send beside them took {longest_s * 1000:.0f} ms")


@pytest.mark.long
@in_parts(4)
@pytest.mark.usefixtures("part")
def test_ten_thousand_kills_in_the_middle_of_syncs_make_nobody_wait_for_a_second(
    nursery: Nursery, folder: Path, tmp_path: Path, figure: Callable[[str], None]
) -> None:
    kills = count("SYNC_KILLS_LONG", 10_000) // 4
    longest_s = kill_in_syncs(nursery, folder, tmp_path / "journal", kills)
    figure(f"syncs: {kills} kills in the middle of one; the longest send beside them took {longest_s * 1000:.0f} ms")
    assert longest_s < 1
