"""The power goes under a NATS server.

The story. Two programs work in a room on a real nats-server; strace records every call by which the server changes a file, a name or
what is safe of them, and when each call of the programs returned (programs/nats_day.py, programs/system_calls.py). From a recording
disks are made, as a cut at a random moment may leave them (after_a_cut.py); a new server finds one of them, and the room is opened.

The invariant. With `sync_interval: always`, as the configuration of `postroom nats config` has it, nothing that a call returned is lost.
With the server's own setting, a sync every two minutes, what was confirmed since may be lost: how much is counted. Always, no half of a
message is delivered, and the room can be used.
"""

from __future__ import annotations

import random
import shutil
from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import closing
from pathlib import Path

import pytest
from tests.faults.programs import system_calls
from tests.faults.programs.nats_day import open_nats
from tests.faults.programs.power import Event
from tests.faults.programs.rooms import letter, want
from tests.support.nats_servers import Server, need_server

from postroom.core.states import State
from postroom.stores.contract import Query
from postroom.stores.nats.store import NatsStore

from .after_a_cut import Disk, is_whole, points_of
from .support import count, environment, program, seed

WHY_NOT = system_calls.why_not()
pytestmark = [pytest.mark.long, pytest.mark.skipif(bool(WHY_NOT), reason=WHY_NOT)]

ALWAYS, USUAL = "always", "2m"
CUTS_PER_DAY = 20


def record_day(place: Path, sync_interval: str, chance: random.Random) -> tuple[Path, list[Event]]:
    """Record some work; the server's folder, and what was done to it."""
    need_server()
    server = Server(place, sync_interval=sync_interval)
    root = place / "store"
    root.mkdir()
    calls, day = str(chance.randrange(10, 80)), str(chance.random())
    told, url = str(place / system_calls.TOLD), f"nats://{server.address}/room"
    command = program("nats_day", told, url, calls, day, *server.command())
    system_calls.run_recorded(command, place / "calls", environment())
    events = system_calls.read_calls(place / "calls", root)
    assert is_whole(root, events), "something was done to the files that is not in the recording"
    return root, events


def check(store: NatsStore, promises: Iterable[Event], *, keeps_all: bool) -> Counter[str]:
    """What was promised is there; the room can be used."""
    tally: Counter[str] = Counter()
    found = list(store.find_all(Query()))
    states = {message.id: message.exact_state for message in found}
    cells = {cell.name: cell.value for cell in store.cell_scan("power/")}
    for _, _, what, ids, value in promises:
        for id in ids:
            there = cells.get(id, 0) >= value if what == "wrote" else id in states
            kept = there and (what in ("wrote", "sent") or value == states[id])
            tally["promised"] += 1
            tally["lost"] += not kept
            assert kept or not keeps_all, f"{what} {id} is lost: {states.get(id)}, not {value}"
    [sent] = store.put([letter("zoe")])
    [delivery] = store.claim(want("zoe")).deliveries
    assert delivery.message.id == sent and store.settle(delivery.ticket, "acked").held
    deliveries = store.claim(want(limit=1000)).deliveries
    whole = {message.id for message in found if message.payload}
    tally["without payload"] = len(found) - len(whole)
    assert len(whole) == len(found) or not keeps_all
    ready = {id for id, state in states.items() if state is State.READY}
    assert ready & whole <= {each.message.id for each in deliveries} <= whole
    for each in deliveries:
        payload = each.message.payload
        assert payload.keys() == {"who", "batch", "of", "text"} and set(payload["text"]) <= {"x"}, "half a message"
    assert all(store.settle(each.ticket, "acked").held for each in deliveries)
    return tally


def cut_and_check(
    root: Path, events: list[Event], night: Path, points: Iterable[int], chance: random.Random, *, keeps_all: bool
) -> Counter[str]:
    disk, tally, played = Disk(root), Counter[str](), 0
    for point in sorted(points):
        for event in events[played:point]:
            disk.play(event)
        played = point
        server = Server(night)
        disk.leave(night / "store", chance, rubbish=0)
        server.start()
        try:
            with closing(open_nats(f"nats://{server.address}/room")) as store:
                promises = [event for event in events[:point] if event[0] == "returned"]
                tally += check(store, promises, keeps_all=keeps_all)
        finally:
            server.kill()
        tally["cuts"] += 1
        shutil.rmtree(night)
    return tally


def cut_days(in_memory: Path, keep: Path, sync_interval: str, cuts: int, figure: Callable[[str], None]) -> Counter[str]:
    tally, per_day = Counter[str](), min(cuts, CUTS_PER_DAY)
    for number in range(seed(), seed() + -(-cuts // per_day)):
        day, chance = in_memory / f"day{number}", random.Random(f"nats{sync_interval}{number}")
        root, events = record_day(day, sync_interval, chance)
        points = points_of(events, per_day, chance)
        try:
            tally += cut_and_check(root, events, day / "night", points, chance, keeps_all=sync_interval == ALWAYS)
        except Exception as error:
            shutil.copytree(day, keep / day.name)
            raise AssertionError(f"seed {number}, recording in {keep / day.name}: {error}") from error
        shutil.rmtree(day)
    figure(f"power cut, NATS, sync_interval {sync_interval}: {dict(sorted(tally.items()))}")
    return tally


def test_a_power_cut_takes_nothing_that_returned_where_the_server_always_syncs(
    in_memory: Path, tmp_path: Path, figure: Callable[[str], None]
) -> None:
    tally = cut_days(in_memory, tmp_path, ALWAYS, count("NATS_CUTS", 300), figure)
    assert tally["promised"] > tally["cuts"] and not tally["lost"]


def test_a_power_cut_takes_what_returned_since_the_last_sync_of_a_server_as_it_comes(
    in_memory: Path, tmp_path: Path, figure: Callable[[str], None]
) -> None:
    """This is why the configuration that Postroom writes says `always`; and it shows that the test above can fail."""
    assert cut_days(in_memory, tmp_path, USUAL, count("NATS_CUTS", 300), figure)["lost"]
