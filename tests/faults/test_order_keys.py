"""Messages of one order key are held one at a time and come in order, whatever is killed; a withdrawal or a claim wins.

The story. Eight receivers take messages of some keys from one channel, one or three at a time; now and then one is
killed in the middle of whatever it does, and another takes its place. They write down from when to when they held what.

The invariant. No two messages of one key are held by living receivers at the same time. The claims of a key, in the
order of their tokens' moments, never go back to an earlier message than one that is done. In the end all are done.
"""

from __future__ import annotations

import random
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path

import pytest
from tests.faults.programs.nursery import steady_ns

import postroom
from postroom.core.states import State
from postroom.stores.contract import Query

from .support import Nursery, count, in_parts, journal, seed, url_of

RECEIVERS = 8
STORES = ("sqlite", "files", "nats")


@pytest.fixture
def nursery(tmp_path: Path) -> Iterator[Nursery]:
    nursery = Nursery(tmp_path / "log", "keys")
    yield nursery
    nursery.close()


def wrong_in(lines: list[journal.Line], keys: int, killed: dict[int, int]) -> list[str]:
    """What the receivers' notes say against the promise. A kill ends what its victim held."""
    wrong: list[str] = []
    ends = {(line.pid, *line.details[:2]): line.at_ns for line in lines if line.event == "settling"}
    held: defaultdict[int, list[tuple[int, int, int]]] = defaultdict(list)
    for line in lines:
        if line.event == "claimed":
            number, token = line.details
            end_ns = ends.get((line.pid, number, token), killed.get(line.pid, line.at_ns))
            held[number % keys].append((line.at_ns, end_ns, number))
    for key, spans in held.items():
        spans.sort()
        for (_, end_ns, number), (begin_ns, _, after) in pairwise(spans):
            if begin_ns < end_ns:
                wrong.append(f"key {key}: {after} was claimed while {number} was held")
            if after < number:
                wrong.append(f"key {key}: {after} was claimed after {number}")
    return wrong


def run(nursery: Nursery, url: str, notes: Path, messages: int, keys: int, kills: int) -> tuple[int, int]:
    """Let eight receivers take all of them beside that many kills; how many claims there were, and of how many s."""
    chance, born, killed = random.Random(seed()), 0, dict[int, int]()
    began = time.monotonic()
    postroom.open(url).close()
    sending = nursery.fork("keys.sender", url=url, first=0, messages=messages, keys=keys)
    alive: list[int] = []
    for _ in range(kills):
        while len(alive) < RECEIVERS:
            alive.append(nursery.fork("keys.receiver", url=url, journal=str(notes), seed=seed() + born))
            born += 1
        time.sleep(chance.random() * 0.2)
        victim = alive.pop(chance.randrange(len(alive)))
        killed[victim] = nursery.kill(victim)
    nursery.finish(sending)
    alive += [nursery.fork("keys.receiver", url=url, journal=str(notes), seed=seed() + born)]
    nursery.finish(*alive)
    lines = journal.read(notes)
    assert wrong_in(lines, keys, killed) == []
    with postroom.open(url) as room:
        room.store.sweep()
        assert room.store.count(Query(states=frozenset({State.ACKED}))) == messages
    return sum(line.event == "claimed" for line in lines), round(time.monotonic() - began)


@pytest.mark.slow
@pytest.mark.parametrize("store", STORES)
def test_no_two_of_one_key_are_held_at_once_and_none_comes_before_its_turn(
    nursery: Nursery, tmp_path: Path, figure: Callable[[str], None], store: str
) -> None:
    messages = count("KEYED", 400)
    claims, _ = run(nursery, url_of(store, tmp_path / "room"), tmp_path / "notes", messages, 7, count("KEY_KILLS", 4))
    figure(f"order keys ({store}): {messages} messages of 7 keys in {claims} claims, none out of order")


@pytest.mark.long
@in_parts(10)
@pytest.mark.parametrize("store", STORES)
def test_a_hundred_thousand_messages_of_some_keys_come_in_order_beside_kills(
    nursery: Nursery, tmp_path: Path, figure: Callable[[str], None], store: str, part: int
) -> None:
    messages = {"sqlite": 10_000, "files": 500, "nats": 1_000}[store]
    keys = (1, 3, 16, 100, 1_000, 5, 50, 2, 300, 8)[part]
    claims, took_s = run(nursery, url_of(store, tmp_path / "room"), tmp_path / "notes", messages, keys, 40)
    figure(f"order keys ({store}): {messages} of {keys} keys, {claims} claims beside 40 kills in {took_s} s")


def test_the_check_sees_two_of_one_key_at_once_and_an_earlier_one_after_a_later() -> None:
    def line(event: str, pid: int, at_ns: int, *details: int) -> journal.Line:
        return journal.Line(event, pid, at_ns, list(details))

    good = [
        line("claimed", 1, 10, 0, 1), line("settling", 1, 20, 0, 1), line("claimed", 2, 21, 7, 1), line("settling", 2, 30, 7, 1),
    ]  # fmt: skip
    assert wrong_in(good, 7, {}) == []
    assert wrong_in([*good[:1], line("settling", 1, 25, 0, 1), *good[2:]], 7, {}) == [
        "key 0: 7 was claimed while 0 was held"
    ]
    assert wrong_in([line("claimed", 2, 1, 7, 1), line("settling", 2, 2, 7, 1), *good[:2]], 7, {}) == [
        "key 0: 0 was claimed after 7"
    ]
    assert wrong_in([good[0], line("claimed", 2, 15, 0, 2), line("settling", 2, 16, 0, 2)], 7, {1: 12}) == []


def race(nursery: Nursery, url: str, notes: Path, messages: int, figure: Callable[[str], None]) -> None:
    postroom.open(url).close()
    began_ns = steady_ns()
    pids = [
        nursery.fork("keys.racer", url=url, journal=str(notes), part=part, messages=messages // 2) for part in range(4)
    ]
    nursery.finish(*pids)
    told: defaultdict[str, set[str]] = defaultdict(set)
    for line in journal.read(notes):
        assert told[line.event].isdisjoint(line.details[0]), "one message was won twice"
        told[line.event].update(line.details[0])
    with postroom.open(url) as room:
        kept = {message.id: message.exact_state for message in room.store.find_all(Query(limit=1000))}
    assert len(kept) == messages
    assert {id for id, state in kept.items() if state is State.WITHDRAWN} == told["withdrawn"]
    assert {id for id, state in kept.items() if state is State.ACKED} == told["acked"]
    assert told["withdrawn"].isdisjoint(told["acked"])
    assert len(told["withdrawn"]) + len(told["acked"]) == messages
    took_s = (steady_ns() - began_ns) / 1e9
    figure(f"races: {messages} messages, {len(told['acked'])} claimed, the others withdrawn, in {took_s:.1f} s")


@pytest.mark.slow
@pytest.mark.parametrize("store", STORES)
def test_of_a_withdrawal_and_a_claim_one_wins_and_both_are_told_the_truth(
    nursery: Nursery, tmp_path: Path, figure: Callable[[str], None], store: str
) -> None:
    race(nursery, url_of(store, tmp_path / "room"), tmp_path / "notes", count("RACES", 400), figure)


@pytest.mark.long
@pytest.mark.parametrize("store", STORES)
def test_ten_thousand_races_of_withdrawals_and_claims(
    nursery: Nursery, tmp_path: Path, figure: Callable[[str], None], store: str
) -> None:
    race(nursery, url_of(store, tmp_path / "room"), tmp_path / "notes", 10_000, figure)
