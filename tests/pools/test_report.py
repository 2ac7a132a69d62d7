"""What a room is told of the pools that work in it: the page and whoever else looks sees workers, states, restarts."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.support.nats_servers import room_name, shared_server
from tests.support.patience import until

import postroom
from postroom.core.clock import ManualClock
from postroom.pools import report
from postroom.pools.coordinator import Coordinator
from postroom.pools.report import CELLS, SILENCE_S, PoolInfo, pools
from postroom.room import Room

from .conftest import say


@pytest.fixture(autouse=True)
def no_beats(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is told is told because it happened, not because time went by."""
    monkeypatch.setattr(report, "HEARTBEAT_S", 3600.0)


@pytest.fixture(params=["memory", "sqlite", "files", pytest.param("nats", marks=pytest.mark.slow)])
def room(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Room]:
    urls = {"memory": "memory:", "sqlite": f"sqlite:{tmp_path}/room", "files": f"files:{tmp_path}/room"}
    if request.param == "nats":
        urls["nats"] = f"nats://{shared_server().address}/{room_name()}"
    with postroom.open(urls[request.param]) as room:
        yield room


@pytest.fixture
def sqlite_room(tmp_path: Path) -> Iterator[Room]:
    with postroom.open(f"sqlite:{tmp_path}/room") as room:
        yield room


def one(room: Room) -> PoolInfo:
    """The one pool of a room; one that knows nothing when there is none."""
    found = pools(room.gateway)
    assert len(found) <= 1
    return found[0] if found else PoolInfo("", "", "", "", "", None, [], 0)


def told(room: Room, name: str) -> Any:
    """What the room knows of one worker; None when it does not know it."""
    return next((worker for worker in one(room).workers if worker.name == name), None)


def test_a_room_knows_the_workers_of_its_pools_their_restarts_and_that_they_are_gone(room: Room, make_pool) -> None:
    pool = make_pool("act", workers=["ada", "bob"])
    pool.report_to(room, "judges")
    until(lambda: told(room, "bob") is not None, "nothing was told")
    before = told(room, "ada")
    assert (before.state, before.pid, before.restarts) == ("ready", pool.workers["ada"].pid, 0)

    os.kill(before.pid, signal.SIGKILL)
    until(lambda: told(room, "ada").restarts == 1 and told(room, "ada").state == "ready", "no restart was told")

    after, other = told(room, "ada"), told(room, "bob")
    assert after.pid == pool.workers["ada"].pid != before.pid
    assert "SIGKILL" in after.last_exit
    assert abs(after.last_exit_ms - room.clock.wall_ms()) < 30_000
    assert (other.restarts, other.last_exit) == (0, None)
    pool.shutdown()
    assert room.store.cell_scan(CELLS) == []


def test_one_that_waits_to_be_started_again_is_told_to_wait(sqlite_room: Room, make_pool) -> None:
    waits = postroom.RestartPolicy(max_restarts=10, period_s=3600, backoff_s=600, backoff_cap_s=600)
    pool = make_pool("act", workers=["ada"], restart=waits)
    pool.report_to(sqlite_room)
    for restarts in (1, 2):  # the first comes at once
        until(
            lambda: told(sqlite_room, "ada") is not None and told(sqlite_room, "ada").pid, "it was not told to be ready"
        )
        os.kill(told(sqlite_room, "ada").pid, signal.SIGKILL)
        until(lambda n=restarts: told(sqlite_room, "ada").restarts == n, "no restart was told")  # type: ignore[misc]

    assert (told(sqlite_room, "ada").state, told(sqlite_room, "ada").pid) == ("restarting", None)


def test_workers_that_come_and_leave_are_told(sqlite_room: Room, make_pool) -> None:
    pool = make_pool("act", workers=["ada"])
    pool.report_to(sqlite_room)
    until(lambda: told(sqlite_room, "ada") is not None, "nothing was told")
    pool.initialize_worker("bob")
    until(lambda: told(sqlite_room, "bob") is not None, "the newcomer was not told of")
    pool.workers["ada"].shutdown()
    until(lambda: told(sqlite_room, "ada") is None, "it is told of although it left")

    assert one(sqlite_room).name == pool.evaluator  # nobody named it


def test_a_pool_that_serves_a_room_tells_it_by_itself_and_has_its_agents_name(sqlite_room: Room, make_pool) -> None:
    pool = make_pool("act", workers=["ada"])
    stop = threading.Event()
    serving = threading.Thread(target=pool.serve, args=(sqlite_room, "judges"), kwargs={"stop": stop})
    with pool.follow(sqlite_room, ["general"]):
        serving.start()
        until(lambda: one(sqlite_room).name == "judges", "it was not told")
    stop.set()
    serving.join()


def test_a_coordinator_of_a_room_lets_its_pool_tell_the_room(sqlite_room: Room, make_pool) -> None:
    Coordinator(make_pool("act", workers=["ada"]), room=sqlite_room)

    until(lambda: told(sqlite_room, "ada") is not None, "nothing was told")


def test_a_pool_that_fails_says_why(sqlite_room: Room, make_pool) -> None:
    pool = make_pool("act", workers=["ada"], restart=postroom.RestartPolicy(max_restarts=0))
    pool.report_to(sqlite_room)
    with pytest.raises(postroom.WorkerError):
        pool.workers["ada"].evaluate(say("die 3"))

    until(lambda: one(sqlite_room).failure, "the failure was not told")
    assert "worker ada will not be restarted" in str(one(sqlite_room).failure)
    assert told(sqlite_room, "ada").state == "failed"


def test_closing_the_room_takes_the_pool_out_of_it_and_the_pool_goes_on(sqlite_room: Room, make_pool) -> None:
    pool = make_pool("act", workers=["ada"])
    pool.report_to(sqlite_room)
    pool.report_to(sqlite_room)  # twice is once
    until(lambda: told(sqlite_room, "ada") is not None, "nothing was told")
    sqlite_room.close()
    with postroom.open(str(sqlite_room.url)) as second:
        assert second.store.cell_scan(CELLS) == []
        pool.report_to(second)
        until(lambda: told(second, "ada") is not None, "nothing was told")
    assert pool.workers["ada"].evaluate(say("say yes")).reasoning == "yes"


KILLED = """
import sys, postroom
room = postroom.open(sys.argv[1])
pool = postroom.WorkerPool("postroom.inference:mock", workers=["ada"])
pool.report_to(room)
print("up", flush=True)
sys.stdin.read()
"""


@pytest.mark.slow
def test_a_pool_that_was_killed_is_not_shown_and_the_next_one_clears_it_away(sqlite_room: Room, make_pool) -> None:
    room = sqlite_room
    program = subprocess.Popen(
        [sys.executable, "-c", KILLED, str(room.url)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert program.stdin
    assert program.stdout
    try:
        assert program.stdout.readline() == "up\n"
        until(lambda: told(room, "ada") is not None, "nothing was told")
    finally:
        program.kill()
        program.wait()
        program.stdin.close()
        program.stdout.close()

    assert pools(room.gateway) == []
    assert len(room.store.cell_scan(CELLS)) == 1  # looking deletes nothing
    make_pool("act", workers=["bob"]).report_to(room)
    until(lambda: told(room, "bob") is not None, "nothing was told")
    assert len(room.store.cell_scan(CELLS)) == 1


def test_one_whose_process_nobody_can_see_counts_until_it_is_silent_for_long() -> None:
    clock = ManualClock()
    with postroom.open("memory:", clock=clock) as room:
        value = {"process": "elsewhere:1:1", "beat_ms": clock.wall_ms(), "since_ms": clock.wall_ms(), "name": "far"}
        value |= {"evaluator": "minds:judge", "failure": None, "workers": [], "more": 0}
        room.store.cell_write(f"{CELLS}far", value)
        assert [pool.name for pool in pools(room.gateway)] == ["far"]

        clock.advance(SILENCE_S + 1)
        assert pools(room.gateway) == []


def test_many_changes_are_few_writes_and_a_quiet_pool_hardly_writes(sqlite_room: Room, make_pool, monkeypatch) -> None:
    writes: list[str] = []
    store = sqlite_room.store
    write = type(store).cell_write

    def counting(self: Any, name: str, *more: Any, **settings: Any) -> Any:
        writes.append(name)
        return write(self, name, *more, **settings)

    monkeypatch.setattr(type(store), "cell_write", counting)
    pool = make_pool("act", workers=["ada", "bob"])
    pool.report_to(sqlite_room)
    until(lambda: told(sqlite_room, "ada") is not None, "nothing was told")
    for _ in range(300):
        pool.evaluate(say("say yes"))
    mine = [name for name in writes if name.startswith(CELLS)]

    # evaluations write nothing: only changes of state do, and a beat every few seconds
    assert len(mine) <= 4
    assert pool.workers["ada"].figures.counts["done"] + pool.workers["bob"].figures.counts["done"] == 300
