"""A channel that may have four messages claimed at once never has five, whoever is killed.

The story. Eight workers take messages of one channel, one or three at a time, and also with what they settle; some hold one
beyond its lease, and extend it then. Now and then one is killed in the middle of whatever it does, and another takes its
place. They write down from when to when they held what.

The invariant. No more than four are held at any moment, a killed worker's until its end. In the end all are done. On NATS a
judge also hears every change in the order of the servers, and counts the entries that say that they are claimed.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.support.nats_servers import room_name, shared_server

import postroom
from postroom.core.states import State
from postroom.stores.contract import LIMITS, Query
from postroom.stores.gates import ChannelLimits, LimitRule, Limits, limits_cell
from postroom.stores.nats.entries import is_there, unpack

from .programs.limits import AGENTS, CHANNEL
from .support import Nursery, count, in_parts, journal, seed

WORKERS = 8
AT_ONCE = 4
STORES = ("nats",)


@pytest.fixture
def nursery(tmp_path: Path) -> Iterator[Nursery]:
    nursery = Nursery(tmp_path / "log", "limits")
    yield nursery
    nursery.close()


def url_of(store: str, folder: Path) -> str:
    return f"nats://{shared_server().address}/{room_name()}" if store == "nats" else f"{store}:{folder}"


def most_at_once(lines: list[journal.Line], killed: dict[int, int]) -> int:
    """How many messages were held at once, by the workers' notes. A kill ends what its victim held."""
    ends = {(line.pid, *line.details): line.at_ns for line in lines if line.event == "settling"}
    moments: list[tuple[int, int]] = []
    for line in lines:
        if line.event == "claimed":
            end_ns = ends.get((line.pid, *line.details), killed.get(line.pid, line.at_ns))
            moments += [(line.at_ns, 1), (end_ns, -1)]
    held = most = 0
    for _, change in sorted(moments):  # at one moment, ends come first
        held += change
        most = max(most, held)
    return most


@contextmanager
def claims_counted(store: str, url: str) -> Iterator[list[int]]:
    """How many entries of a room on NATS were claimed at once, after each change of one."""
    counts: list[int] = []
    if store != "nats":
        yield counts
        return
    claimed: set[str] = set()

    def heard(subject: str, seq: int, data: bytes) -> None:
        id = subject.rpartition(".")[2]
        is_claimed = is_there(data) and unpack(seq, data).state is State.CLAIMED
        claimed.add(id) if is_claimed else claimed.discard(id)
        counts.append(len(claimed))

    with postroom.open(url) as room:
        wire = room.store._room.wire  # type: ignore[attr-defined]
        wire.run(wire.subscribe("m.o.>", heard))
        yield counts
        wire.run(wire.connection.client.flush())
        assert wire.connection.losses == 0, "the judge may have missed a change"


def run(nursery: Nursery, store: str, tmp_path: Path, messages: int, kills: int) -> str:
    """Let eight workers do all of it beside that many kills; what is to be told of it."""
    url, notes = url_of(store, tmp_path / "room"), tmp_path / "notes"
    chance, killed = random.Random(seed()), dict[int, int]()
    born = 0

    def give_birth() -> int:
        nonlocal born
        born += 1
        return nursery.fork(
            "limits.worker", url=url, agent=AGENTS[born % len(AGENTS)], journal=str(notes), seed=seed() + born
        )

    began = time.monotonic()
    with postroom.open(url) as room:
        room.store.cell_write(LIMITS, limits_cell(Limits({CHANNEL: ChannelLimits((LimitRule(concurrent=AT_ONCE),))})))
    with claims_counted(store, url) as counts:
        sending = nursery.fork("limits.sender", url=url, messages=messages)
        alive: list[int] = []
        for _ in range(kills):
            while len(alive) < WORKERS:
                alive.append(give_birth())
            time.sleep(chance.random() * 0.2)
            victim = alive.pop(chance.randrange(len(alive)))
            killed[victim] = nursery.kill(victim)
        nursery.finish(sending)
        with postroom.open(url) as room:
            room.store.cell_write("sent", True)
        alive += [give_birth() for _ in AGENTS]  # the others of one agent may all have been killed
        nursery.finish(*alive)
    lines = journal.read(notes)
    assert 1 < most_at_once(lines, killed) <= AT_ONCE
    assert not counts or max(counts) == AT_ONCE
    with postroom.open(url) as room:
        assert room.store.count(Query(states=frozenset({State.ACKED}))) == messages
    claims, took_s = sum(line.event == "claimed" for line in lines), time.monotonic() - began
    return (
        f"limits ({store}): {messages} messages, {claims} claims by {born} workers, {kills} killed, in {took_s:.0f} s"
    )


@pytest.mark.slow
@pytest.mark.parametrize("store", STORES)
def test_never_are_more_claimed_at_once_than_a_channel_allows_whoever_is_killed(
    nursery: Nursery, tmp_path: Path, figure: Callable[[str], None], store: str
) -> None:
    figure(run(nursery, store, tmp_path, count("LIMITED", 300), count("LIMIT_KILLS", 4)))


@pytest.mark.long
@in_parts(10)
@pytest.mark.parametrize("store", STORES)
def test_twenty_thousand_messages_pass_a_limit_beside_kills_and_it_is_never_exceeded(
    nursery: Nursery, tmp_path: Path, figure: Callable[[str], None], store: str, part: int
) -> None:
    del part
    figure(run(nursery, store, tmp_path, 2_000, 40))


def test_the_check_sees_five_at_once_and_lets_a_kill_end_what_its_victim_held() -> None:
    def line(event: str, pid: int, at_ns: int, number: int) -> journal.Line:
        return journal.Line(event, pid, at_ns, [number, 1])

    held = [line("claimed", pid, pid, pid) for pid in range(1, 6)]
    ended = [line("settling", pid, 10 + pid, pid) for pid in range(1, 6)]
    assert most_at_once([*held, *ended], {}) == 5
    assert most_at_once([*held, *ended[1:]], {1: 4}) == 4
    assert most_at_once([*held, line("settling", 1, 5, 1), *ended[1:]], {}) == 4
