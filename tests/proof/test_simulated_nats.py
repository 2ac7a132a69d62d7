"""The simulated NATS server does what a real one does, and schedules of agents on it hold every promise."""

from __future__ import annotations

import os
import subprocess
import sys
from base64 import b64decode
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from spec import prove
from tests.proof.replaying import Sleepers
from tests.proof.test_simulation import hold_all
from tests.proof.test_specification import REPLAYS, replay
from tests.support.nats_servers import room_name, shared_server

from postroom.core.clock import SYSTEM, Chance, Clock, ManualClock
from postroom.core.config import Config, parse_url
from postroom.stores.contract import Store
from postroom.stores.nats import claims
from postroom.stores.nats.connection import Connection, NoReply
from postroom.stores.nats.link import play_background
from postroom.stores.nats.room import NatsRoom
from postroom.stores.nats.store import NatsStore
from postroom.stores.nats.wire import Changed, StoredEntry, Wire, Write
from postroom.testing import StoreContract
from postroom.testing.simulation import run, shrink, simulate
from postroom.testing.simulation.nats_client import Network, NetworkBackground


def new_network() -> Network:
    return Network(lambda: SYSTEM.wall_ms() * 1_000_000)


def open_on(network: Network, clock: Clock, config: Config, name: str = "simulated") -> NatsStore:
    """The room on a simulated server, opened with the background loop of this process."""
    before = play_background(NetworkBackground(network))
    try:
        return NatsStore(parse_url(f"nats://127.0.0.1:4222/{name}"), config, clock)
    finally:
        play_background(before)


# The server


@pytest.fixture(scope="module")
def sleepers() -> Iterator[Sleepers]:
    living = Sleepers()
    yield living
    living.close()


@pytest.mark.slow
@pytest.mark.parametrize("every", [12, pytest.param(1, marks=pytest.mark.long)])
@pytest.mark.parametrize("file", REPLAYS)
def test_a_room_on_the_simulated_server_does_what_the_specification_says(
    file: str, every: int, sleepers: Sleepers
) -> None:
    some = prove.read_corpora()[file].traces[::every]

    def open_room(clock: ManualClock) -> Store:
        return open_on(new_network(), clock, Config())

    assert replay(some, REPLAYS[file], open_room, sleepers, scheme="nats") == len(some) > 0


@pytest.mark.long  # a server of its own for each test, and as long as on a real one
class TestSimulatedNats(StoreContract):
    """The contract of stores, over the simulated server."""

    lacks = ("exact_fifo", "switchboard")
    networks: dict[Path, Network] = {}  # noqa: RUF012  one for each test

    def open(self, clock: Clock, config: Config) -> Store:
        self.folder.mkdir(exist_ok=True)
        return open_on(self.networks.setdefault(self.folder, new_network()), clock, config)


# The same requests to a real server and to the simulated one


class Asker:
    """Asks both servers the same, and compares what they reply."""

    def __init__(self, real: NatsStore, simulated: NatsStore, chance: Chance) -> None:
        self.wires = [store._room.wire for store in (real, simulated)]
        self.chance = chance
        self.seq = self.last_number()

    def last_number(self) -> int:
        numbers = {wire.info()["state"]["last_seq"] for wire in self.wires}
        assert len(numbers) == 1
        return int(numbers.pop())

    def ask_once(self) -> None:
        what = self.chance.choice(REQUESTS)
        request = getattr(self, what)()
        replies = [request(wire) for wire in self.wires]
        assert replies[0] == replies[1], what

    def write(self) -> Write:
        subject, other = (f"x.{letter}.y" for letter in self.chance.sample("abc", 2))
        on = other if self.chance.random() < 0.2 else None
        found = self.wires[1].last_now(on or subject)
        right, wrong = 0 if found is None else found.seq, self.chance.randrange(self.seq + 2)
        expect = self.chance.choice((None, right, right, right, wrong))
        data = self.chance.choice((b"", b"one", b"two"))
        return Write(subject, data, expect, on if expect is not None else None, self.chance.choice((0, 0, 60)))

    def put(self) -> Callable[[Wire], object]:
        write = self.write()
        if write.expect is None or not write.data:
            write = write._replace(name=f"n{self.chance.randrange(20)}")
        return partial(self.commit, [write])

    def put_many(self) -> Callable[[Wire], object]:
        found = {write.subject: write for write in (self.write() for _ in range(3))}
        on = {write.expect_on for write in found.values()}
        writes = [write._replace(expect_on=None) if on & {*found} else write for write in found.values()]
        return partial(self.commit, writes)

    def commit(self, writes: Sequence[Write], wire: Wire) -> object:
        try:
            seqs = wire._read_reply(wire.connection.call(*wire._messages(writes)), writes)
        except Changed:
            return "changed"
        self.seq = max(self.seq, *seqs)
        return seqs

    def last(self) -> Callable[[Wire], object]:
        subject = self.chance.choice(("x.a.y", "x.b.y", "x.c.y", "x.>", "x.a.>", "nothing", "nothing.>"))
        return lambda wire: _without_batch(wire.last_now(subject))

    def next(self) -> Callable[[Wire], object]:
        seq, pattern = self.chance.randrange(1, self.seq + 2), self.chance.choice(("x.>", "x.a.y", "x.b.>"))
        return lambda wire: _without_batch(wire.run(wire.next(seq, pattern)))

    def page(self) -> Callable[[Wire], object]:
        seq, size = self.chance.randrange(1, self.seq + 2), self.chance.choice((1, 2, 100))
        pattern = self.chance.choice(("x.>", "x.a.y", "x.b.>"))
        return lambda wire: wire.run(wire.page(seq, pattern, size))

    def delete(self) -> Callable[[Wire], object]:
        seq = self.chance.randrange(max(1, self.seq - 5), self.seq + 2)
        request = f"STREAM.MSG.DELETE.{self.wires[0].stream}"
        return lambda wire: wire.run(wire.api(request, seq=seq, no_erase=True)).get("success", False)

    def purge(self) -> Callable[[Wire], object]:
        pattern = f"pr.{self.wires[0].room}.{self.chance.choice(('x.a.y', 'x.b.>', 'z.none'))}"
        request = f"STREAM.PURGE.{self.wires[0].stream}"
        return lambda wire: wire.run(wire.api(request, filter=pattern)).get("purged", 0)

    def state(self) -> Callable[[Wire], object]:
        def look(wire: Wire) -> object:
            state = wire.info(subjects_filter=f"pr.{wire.room}.x.>")["state"]
            return [state.get(name) for name in ("messages", "first_seq", "last_seq", "num_subjects", "subjects")]

        return look


def _without_batch(entry: StoredEntry | None) -> object:
    """An entry with its headers, but for the name of the batch that it came in: a client makes that up."""
    if entry is None:
        return None
    lines = b64decode(entry.headers).decode().split("\r\n")
    return entry[:3], [line for line in lines if not line.startswith("Nats-Batch-Id")]


REQUESTS = ("put", "put", "put", "put_many", "put_many", "last", "next", "page", "delete", "purge", "state")


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2, *(pytest.param(seed, marks=pytest.mark.long) for seed in range(3, 40))])
def test_a_real_server_and_the_simulated_one_reply_the_same(seed: int) -> None:
    clock, name = ManualClock(), room_name()
    real = NatsStore(parse_url(f"nats://{shared_server().address}/{name}"), Config(), clock)
    simulated = open_on(new_network(), clock, Config(), name)
    try:
        asker = Asker(real, simulated, Chance(seed))
        for _ in range(150):
            asker.ask_once()
        assert asker.last_number() > 30
    finally:
        real.close()
        simulated.close()


# Schedules

#: In the suite; and in the long run, in parts.
SOME = 100
EVERY = 20_000
PARTS = 20
#: A fault of the product is found within so many schedules.
WITHIN = 1000
#: What the long run must have reached, each of its parts.
RARE_ON_NATS = (
    "a claim was taken over after a death",
    "a claim was taken over after its lease ended",
    "a compare-and-set was lost",
    "a connection broke before the reply",
    "a connection stalled",
    "a connection was cut",
    "a copy lagged",
    "a push was late",
    "a push was lost",
    "a push was repeated",
    "a reply was lost",
    "a request was late",
    "a request was lost",
    "a request was repeated",
    "an outcome was unknown",
    "died after a write, before it heard of it",
    "the server restarted",
    "there was no leader",
)


@pytest.mark.slow
def test_every_promise_holds_in_schedules_on_nats() -> None:
    hold_all(1, SOME, "nats")


@pytest.mark.long
@pytest.mark.parametrize("part", range(PARTS))
def test_every_promise_holds_in_many_schedules_on_nats_and_each_rare_state_is_reached(part: int) -> None:
    count = EVERY // PARTS
    reached = hold_all(1_000_000 + part * count, count, "nats")
    assert [state for state in RARE_ON_NATS if not reached[state]] == []


TRACES = """
from postroom.testing.simulation import simulate
for seed in range(12):
    print("\\n".join(simulate(seed, store="nats", traced=True).report()))
"""


def test_the_same_seed_is_the_same_run_on_nats_also_in_another_process() -> None:
    traces = [
        subprocess.run(
            [sys.executable, "-c", TRACES],
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for hash_seed in ("1", "2")
    ]
    assert len(traces[0]) > 10_000
    assert traces[0] == traces[1]


# Faults put into the product, each as it was before it was mended or as it might be made tomorrow


def claim_what_another_took(patch: pytest.MonkeyPatch) -> None:
    """As it was: a row that was chosen is looked at again when it is claimed, and may be another's claim by then."""
    pick = claims._picked

    @contextmanager
    def picked(room: NatsRoom, *args: Any) -> Iterator[Any]:
        with pick(room, *args) as found:
            rows = room.tables.rows
            yield found._replace(best=[rows.get(each.kept.entry.id, each) for each in found.best])

    patch.setattr(claims, "_picked", picked)


def take_silence_for_success(patch: pytest.MonkeyPatch) -> None:
    call = Connection.call

    def answered(self: Connection, *messages: Any) -> bytes:
        try:
            return call(self, *messages)
        except NoReply:
            return b'{"seq":1}'

    patch.setattr(Connection, "call", answered)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fault", "first"),  # the search begins not far before the seed that finds it
    [(claim_what_another_took, 2780), (take_silence_for_success, 1)],
)
def test_a_fault_of_the_store_is_found_and_shrinks(
    fault: Callable[[pytest.MonkeyPatch], None], first: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    fault(monkeypatch)
    outcomes = (simulate(seed, store="nats") for seed in range(first, first + WITHIN))
    found = next((each for each in outcomes if each.failure is not None), None)
    assert found is not None
    smaller = shrink(found, store="nats", most_runs=10)
    assert smaller.failure is not None
    assert any("FAILS" in line for line in smaller.trace)
    monkeypatch.undo()
    assert run(smaller.plan, store="nats").failure is None
