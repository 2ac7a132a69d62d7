"""A channel that may have four messages claimed at once never has five, whoever is killed; and no rate is exceeded.

The story. Eight workers take messages of one channel, one or three at a time, and also with what they settle; some hold one
beyond its lease, and extend it then. Now and then one is killed in the middle of whatever it does, and another takes its
place. They write down from when to when they held what.

The invariant. No more than four are held at any moment, a killed worker's until its end. In the end all are done. On NATS a
judge also hears every change in the order of the servers, and counts the entries that say that they are claimed. The claims
of a limited rate, by the times in the ledgers, never come faster than the rate and its burst allow.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import postroom
from postroom.core.states import State
from postroom.stores.contract import Query
from postroom.stores.nats.entries import is_there, unpack

from .programs.limits import AGENTS, CHANNEL
from .support import Nursery, count, in_parts, journal, seed, url_of

WORKERS = 8
AT_ONCE = 4
STORES = ("sqlite", "files", "nats")


@pytest.fixture
def nursery(tmp_path: Path) -> Iterator[Nursery]:
    nursery = Nursery(tmp_path / "log", "limits")
    yield nursery
    nursery.close()


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


class Crowd:
    """Eight workers, some of which are killed and replaced; for each of those, the moment of its end."""

    def __init__(self, nursery: Nursery, url: str, notes: Path) -> None:
        self._nursery = nursery
        self._url = url
        self._notes = str(notes)
        self.born = 0
        self.killed: dict[int, int] = {}

    def work(self, messages: int, kills: int) -> None:
        """Send and do all of it, beside that many kills."""
        chance, nursery = random.Random(seed()), self._nursery
        sending = nursery.fork("limits.sender", url=self._url, messages=messages)
        alive = [self._give_birth() for _ in range(WORKERS)]
        for _ in range(kills):
            time.sleep(chance.random() * 0.2)
            victim = alive.pop(chance.randrange(len(alive)))
            self.killed[victim] = nursery.kill(victim)
            alive.append(self._give_birth())
        nursery.finish(sending)
        with postroom.open(self._url) as room:
            room.store.cell_write("sent", True)
        alive += [self._give_birth() for _ in AGENTS]  # the others of one agent may all have been killed
        nursery.finish(*alive)
        with postroom.open(self._url) as room:
            assert room.store.count(Query(states=frozenset({State.ACKED}))) == messages

    def _give_birth(self) -> int:
        self.born += 1
        agent = AGENTS[self.born % len(AGENTS)]
        return self._nursery.fork(
            "limits.worker", url=self._url, agent=agent, journal=self._notes, seed=seed() + self.born
        )


def run(nursery: Nursery, store: str, tmp_path: Path, messages: int, kills: int) -> str:
    """Let eight workers do all of it beside that many kills; what is to be told of it."""
    url, notes = url_of(store, tmp_path / "room"), tmp_path / "notes"
    began = time.monotonic()
    with postroom.open(url) as room:
        room.limit(CHANNEL, concurrent=AT_ONCE)
    crowd = Crowd(nursery, url, notes)
    with claims_counted(store, url) as counts:
        crowd.work(messages, kills)
    lines = journal.read(notes)
    assert 1 < most_at_once(lines, crowd.killed) <= AT_ONCE
    assert not counts or max(counts) == AT_ONCE
    claims, took_s = sum(line.event == "claimed" for line in lines), time.monotonic() - began
    return (
        f"limits ({store}): {messages} messages, {claims} judged claims by {crowd.born} workers, {kills} killed, "
        f"in {took_s:.0f} s"
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
def test_a_hundred_thousand_messages_pass_a_limit_beside_kills_and_it_is_never_exceeded(
    nursery: Nursery, tmp_path: Path, figure: Callable[[str], None], store: str, part: int
) -> None:
    del part
    figure(run(nursery, store, tmp_path, {"sqlite": 10_000, "files": 1_000, "nats": 2_000}[store], 40))


def test_the_check_sees_five_at_once_and_lets_a_kill_end_what_its_victim_held() -> None:
    def line(event: str, pid: int, at_ns: int, number: int) -> journal.Line:
        return journal.Line(event, pid, at_ns, [number, 1])

    held = [line("claimed", pid, pid, pid) for pid in range(1, 6)]
    ended = [line("settling", pid, 10 + pid, pid) for pid in range(1, 6)]
    assert most_at_once([*held, *ended], {}) == 5
    assert most_at_once([*held, *ended[1:]], {1: 4}) == 4
    assert most_at_once([*held, line("settling", 1, 5, 1), *ended[1:]], {}) == 4


# Rates


def too_fast(times_ms: list[int], per_s: float, burst: int) -> list[str]:
    """Where more was claimed than the rate and its burst allow. The ledger's times are whole milliseconds."""
    wrong, level, last_ms = [], 0.0, min(times_ms, default=0)
    for at_ms in sorted(times_ms):  # a bucket that leaks: each claim fills it by one
        level = max(0.0, level - (at_ms - last_ms) * per_s / 1000) + 1
        last_ms = at_ms
        if level > burst + 2 * per_s / 1000 + 1e-6:  # the ends of a window may be off by a millisecond each
            wrong.append(f"the bucket of {burst} holds {level:.2f} at {at_ms}")
    return wrong


def share_of_the_rate(nursery: Nursery, url: str, notes: Path, messages: int, per_s: float, kills: int) -> float:
    """Let eight workers do all of it at a limited rate, in bursts of ten; the share of the rate that was used."""
    burst = 10
    with postroom.open(url) as room:
        room.limit(CHANNEL, per_s=per_s, burst=burst)
    Crowd(nursery, url, notes).work(messages, kills)
    with postroom.open(url) as room:
        kept = [room.get(message.id) for message in room.store.find_all(Query(limit=1000))]
    times_ms = [entry.time_ms for message in kept for entry in message.ledger if entry.event == "claimed"]
    assert too_fast(times_ms, per_s, burst) == []
    took_s = (max(times_ms) - min(times_ms)) / 1000
    return len(times_ms) / (burst + per_s * took_s)


@pytest.mark.slow
@pytest.mark.parametrize("store", STORES)
def test_a_rate_is_never_exceeded(nursery: Nursery, tmp_path: Path, figure: Callable[[str], None], store: str) -> None:
    messages = count("RATED", 100)
    used = share_of_the_rate(nursery, url_of(store, tmp_path / "room"), tmp_path / "notes", messages, 100.0, 2)
    figure(f"rates ({store}): {messages} messages at 100 a second, never faster; {used:.0%} of the rate was used")


@pytest.mark.long
@pytest.mark.parametrize("store", STORES)
def test_a_rate_is_used_to_nineteen_twentieths(
    nursery: Nursery, tmp_path: Path, figure: Callable[[str], None], store: str
) -> None:
    used = share_of_the_rate(nursery, url_of(store, tmp_path / "room"), tmp_path / "notes", 1_000, 25.0, 0)
    figure(f"rates ({store}): 1,000 messages at 25 a second, eight workers: {used:.1%} of the rate was used")
    assert used >= 0.95


def test_the_check_sees_claims_that_come_too_fast() -> None:
    steady = [10 * number for number in range(100)]
    assert too_fast(steady, 100, 1) == []
    assert too_fast([0] * 5 + steady[5:], 100, 5) == []
    assert too_fast([*steady, 505], 100, 1)[:1] == ["the bucket of 1 holds 1.50 at 505"]
