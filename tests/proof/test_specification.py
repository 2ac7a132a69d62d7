"""The specification (spec/*.pml), exhausted by Spin, and its traces, replayed on every store.

spec/traces.txt.gz has traces with every transition of spec/message.pml, attempts that are refused among them, so that the
suite needs no Spin. With Spin, the long tests exhaust the specification, break it, and replay 10,000 traces on each store.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import count, islice
from pathlib import Path
from typing import Any

import pytest
from spec import prove
from tests.proof.replaying import Difference, Replay, Sleepers
from tests.support.nats_servers import room_name, shared_server

from postroom.core.clock import ManualClock
from postroom.core.config import Config, parse_url
from postroom.stores import open_store
from postroom.stores.contract import Claimed, Settled, Store, Ticket, Want
from postroom.stores.memory.store import MemoryStore

#: A room gets so many traces, one after the other, before there is a new one.
TRACES_IN_A_ROOM = 100
#: In the suite each store replays every so-manieth trace of the corpus: a step takes longer on some of them.
EVERY = {"memory": 1, "sqlite": 1, "files": 8, "nats": 12}
ALL_TRACES = 10_000
PARTS = {"memory": 1, "sqlite": 2, "files": 5, "nats": 20}

needs_spin = pytest.mark.skipif(bool(prove.missing()), reason=prove.missing() or "-")

Rooms = Callable[[ManualClock], Store]


@pytest.fixture(scope="module")
def sleepers() -> Iterator[Sleepers]:
    living = Sleepers()
    yield living
    living.close()


@pytest.fixture
def open_room(scheme: str, in_memory: Path) -> Rooms:
    """Opens a new room with each call."""
    numbers = count()

    def open_one(clock: ManualClock) -> Store:
        folder = in_memory / str(next(numbers))
        url = f"nats://{shared_server().address}/{room_name()}" if scheme == "nats" else f"{scheme}:{folder}"
        return open_store(parse_url("memory:" if scheme == "memory" else url), Config(), clock)

    return open_one


def replay(traces: Iterable[Sequence[str]], rooms: Rooms, sleepers: Sleepers, *, sweeps: bool = False) -> int:
    """Replay each of them; their number. Raises Difference at the first step of which a store says otherwise."""
    replayed = 0
    remaining = iter(traces)
    while some := list(islice(remaining, TRACES_IN_A_ROOM)):
        clock = ManualClock()
        store = rooms(clock)
        try:
            for trace in some:
                Replay(store, clock, sleepers, f"trace-{replayed}", sweeps=sweeps).play(trace)
                replayed += 1
        finally:
            store.close()
    return replayed


# The corpus


@pytest.fixture(scope="module")
def corpus() -> prove.Corpus:
    return prove.Corpus.read()


def test_the_traces_are_of_the_specification_as_it_is(corpus: prove.Corpus) -> None:
    said = "spec/message.pml has changed: make its traces anew with `python spec/prove.py --corpus`"
    assert corpus.fingerprint == prove.fingerprint(), said
    assert prove.CORPUS.stat().st_size < 200_000


def test_every_transition_of_the_specification_has_a_trace(corpus: prove.Corpus) -> None:
    assert len(corpus.transitions) > 300
    assert corpus.uncovered() == []
    assert prove.Corpus("", corpus.transitions, corpus.traces[:100]).uncovered() != [], "a missing one would be seen"


@pytest.mark.parametrize(
    "attempt",
    [
        "settle acked nothing claimed>claimed claimed>claimed no",  # another has it by now
        "settle acked nothing acked>acked acked>acked no",  # for the second time
        "settle answered nothing claimed>claimed claimed>claimed no",
        "settle retry nothing ready>ready ready>ready no",  # it was put back
        "extend no nothing claimed>claimed claimed>claimed no",
        "heartbeat no nothing dead>dead dead>dead no",
        "requeue no nothing claimed>claimed claimed>claimed no",
        "receive no nothing answered>answered answered>answered held",  # it is kept for its asker
    ],
)
def test_the_traces_have_attempts_that_are_refused(attempt: str, corpus: prove.Corpus) -> None:
    assert any(attempt in prove.transitions_of(step) for trace in corpus.traces for step in trace)


@pytest.mark.slow
@pytest.mark.parametrize("scheme", EVERY)
def test_a_store_does_what_the_specification_says(
    scheme: str, open_room: Rooms, sleepers: Sleepers, corpus: prove.Corpus
) -> None:
    some = corpus.traces[:: EVERY[scheme]]

    assert replay(some, open_room, sleepers, sweeps=scheme == "nats") == len(some) >= 30


# That a difference is seen


class Unfenced(MemoryStore):
    """A store with a fault: any ticket counts that names the message's last claim, whoever shows it."""

    def __init__(self, clock: ManualClock) -> None:
        super().__init__(Config(), clock)
        self.last: dict[str, Ticket] = {}

    def claim(self, want: Want) -> Claimed:
        claimed = super().claim(want)
        self.last |= {delivery.ticket.id: delivery.ticket for delivery in claimed.deliveries}
        return claimed

    def settle(self, ticket: Ticket, outcome: str, **said: Any) -> Settled:
        return super().settle(self.last[ticket.id], outcome, **said)


class Generous(MemoryStore):
    """A store with a fault: a lease that was extended is twice as long."""

    def __init__(self, clock: ManualClock) -> None:
        super().__init__(Config(), clock)

    def extend(self, ticket: Ticket, lease_s: float) -> bool:
        return super().extend(ticket, 2 * lease_s)


@pytest.mark.parametrize("store", [Unfenced, Generous])
def test_a_store_with_a_fault_is_found_by_the_traces(store: Rooms, sleepers: Sleepers, corpus: prove.Corpus) -> None:
    with pytest.raises(Difference, match="after the steps"):
        replay(corpus.traces, store, sleepers)


def test_a_step_that_is_told_otherwise_is_seen(sleepers: Sleepers, corpus: prove.Corpus) -> None:
    changed = 0
    for trace in corpus.traces[::20]:
        for number, line in enumerate(trace):
            words = line.split(" ", 5)
            if words[0] in ("settle", "extend", "heartbeat", "requeue", "fetch"):
                words[4] = "nothing" if words[4] == "yes" else "yes"
                with pytest.raises(Difference):
                    replay([[*trace[:number], " ".join(words)]], lambda clock: MemoryStore(Config(), clock), sleepers)
                changed += 1
                break

    assert changed >= 10


# With Spin


@pytest.mark.long
@needs_spin
def test_the_specification_holds_and_seeded_mistakes_in_it_are_found() -> None:
    assert prove.prove(prove.QUICK)
    assert prove.try_mutants()


@pytest.mark.long
@needs_spin
def test_the_transitions_of_the_corpus_are_all_that_the_specification_has(corpus: prove.Corpus) -> None:
    assert set(corpus.transitions) == prove.every_transition()


@pytest.mark.long
@needs_spin
@pytest.mark.parametrize(("scheme", "part"), [(scheme, part) for scheme in PARTS for part in range(PARTS[scheme])])
def test_a_store_does_what_ten_thousand_traces_say(
    scheme: str, part: int, open_room: Rooms, sleepers: Sleepers
) -> None:
    wanted = ALL_TRACES // PARTS[scheme]
    fresh = (trace for seed in count(1_000_000 + 1000 * part) for trace in prove.traces(seed))

    assert replay(islice(fresh, wanted), open_room, sleepers, sweeps=scheme == "nats") == wanted
