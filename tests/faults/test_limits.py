"""Limits are never exceeded, whatever is killed, and what they allow is used.

The story. Eight receivers take messages from a limited channel, one or three at a time; now and then one is killed in
the middle of whatever it does, and another takes its place. They write down from when to when they held what.

The invariant. At no claim do living receivers hold more than the limits allow, in all and of each sender.
The claims of a limited rate, by the times in the room's own ledgers, never come faster than the rate and its burst. In the
end all messages are done.
"""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest
from tests.support.nats_servers import room_name, shared_server

import postroom
from postroom.core.states import State
from postroom.stores.contract import Query

from .support import Nursery, count, in_parts, journal, seed

RECEIVERS = 8
STORES = ("sqlite", "files")
#: How many messages may be held at once: in all, and of each sender.
MOST = {"": 5, "sender": 2}


@pytest.fixture
def nursery(tmp_path: Path) -> Iterator[Nursery]:
    nursery = Nursery(tmp_path / "log", "limits")
    yield nursery
    nursery.close()


def url_of(store: str, folder: Path) -> str:
    return f"nats://{shared_server().address}/{room_name()}" if store == "nats" else f"{store}:{folder}"


def wrong_in(lines: list[journal.Line], killed: Mapping[int, int], most: Mapping[str, int]) -> list[str]:
    """What the receivers' notes say against the promise. A kill ends what its victim held.

    Each note of a claim came after the claim, and each note of settling before the settling: between the two the message
    was held for certain.
    """
    ends = {(line.pid, *line.details[:2]): line.at_ns for line in lines if line.event == "settling"}
    events: list[tuple[int, int, str]] = []
    for line in lines:
        if line.event == "claimed":
            number, token, sender = line.details
            end_ns = ends.get((line.pid, number, token), killed.get(line.pid, line.at_ns))
            events += [(line.at_ns, 1, sender), (end_ns, -1, sender)]
    held: Counter[str] = Counter()
    wrong: list[str] = []
    for at_ns, change, sender in sorted(events):  # an end before a begin of the same moment
        for group, limit in (("", most[""]), (sender, most["sender"])):
            held[group] += change
            if change > 0 and held[group] > limit:
                wrong.append(f"{held[group]} of {group or 'all'} were held at {at_ns}")
    return wrong


def storm(nursery: Nursery, url: str, notes: Path, messages: int, kills: int) -> int:
    """Let eight receivers take all of them beside that many kills; how many instants were judged."""
    chance, born, killed = random.Random(seed()), 0, dict[int, int]()
    with postroom.open(url) as room:
        room.limit("work", concurrent=MOST[""])
        room.limit("work", concurrent=MOST["sender"], by="sender")
    sending = nursery.fork("limits.sender", url=url, messages=messages, senders=4)
    alive: list[int] = []
    for _ in range(kills):
        while len(alive) < RECEIVERS:
            alive.append(nursery.fork("limits.receiver", url=url, journal=str(notes), seed=seed() + born))
            born += 1
        time.sleep(chance.random() * 0.2)
        victim = alive.pop(chance.randrange(len(alive)))
        killed[victim] = nursery.kill(victim)
    nursery.finish(sending)
    alive += [nursery.fork("limits.receiver", url=url, journal=str(notes), seed=seed() + born)]
    nursery.finish(*alive)
    lines = journal.read(notes)
    assert wrong_in(lines, killed, MOST) == []
    with postroom.open(url) as room:
        assert room.store.count(Query(states=frozenset({State.ACKED}))) == messages
    return sum(line.event == "claimed" for line in lines)


@pytest.mark.slow
@pytest.mark.parametrize("store", STORES)
def test_no_more_are_held_at_once_than_the_limits_allow(
    nursery: Nursery, tmp_path: Path, figure: Callable[[str], None], store: str
) -> None:
    messages = count("LIMITED", 400)
    judged = storm(nursery, url_of(store, tmp_path / "room"), tmp_path / "notes", messages, count("LIMIT_KILLS", 4))
    figure(f"limits ({store}): {messages} messages, {judged} judged instants, never more than {MOST['']} at once")


@pytest.mark.long
@in_parts(10)
@pytest.mark.parametrize("store", STORES)
def test_a_hundred_thousand_instants_beside_kills_never_have_more_than_the_limits_allow(
    nursery: Nursery, tmp_path: Path, figure: Callable[[str], None], store: str, part: int
) -> None:
    messages = {"sqlite": 10_000, "files": 1_000, "nats": 1_000}[store]
    began = time.monotonic()
    judged = storm(nursery, url_of(store, tmp_path / "room"), tmp_path / "notes", messages, 40)
    took_s = time.monotonic() - began
    figure(f"limits ({store}), part {part}: {judged} judged instants beside 40 kills in {took_s:.0f} s")


def test_the_check_sees_one_too_many_in_all_and_of_a_sender() -> None:
    def line(event: str, pid: int, at_ns: int, number: int, sender: str = "a") -> journal.Line:
        return journal.Line(event, pid, at_ns, [number, 1, *([sender] if event == "claimed" else [])])

    one = [line("claimed", 1, 10, 1), line("settling", 1, 20, 1)]
    after = [line("claimed", 2, 20, 2), line("settling", 2, 30, 2)]
    beside = [line("claimed", 2, 15, 2), line("settling", 2, 30, 2)]
    other = [line("claimed", 2, 15, 2, "b"), line("settling", 2, 30, 2)]
    most = {"": 1, "sender": 1}

    assert wrong_in([*one, *after], {}, most) == []
    assert wrong_in([*one, *beside], {}, most) == ["2 of all were held at 15", "2 of a were held at 15"]
    assert wrong_in([*one, *other], {}, {"": 2, "sender": 1}) == []
    assert wrong_in([*one, *other], {}, most) == ["2 of all were held at 15"]
    assert wrong_in([one[0], *beside], {1: 12}, most) == []


# Rates


def too_fast(times_ms: list[int], per_s: float, burst: int) -> list[str]:
    """Windows in which more was claimed than the rate and its burst allow. The ledger's times are whole milliseconds."""
    times_ms = sorted(times_ms)
    wrong, level, last_ms = [], 0.0, times_ms[0] if times_ms else 0
    for at_ms in times_ms:  # a bucket that leaks: each claim fills it by one
        level = max(0.0, level - (at_ms - last_ms) * per_s / 1000) + 1
        last_ms = at_ms
        if level > burst + 2 * per_s / 1000 + 1e-6:  # the ends of a window may be off by a millisecond each
            wrong.append(f"the bucket of {burst} holds {level:.2f} at {at_ms}")
    return wrong


def rate_storm(nursery: Nursery, url: str, notes: Path, messages: int, per_s: float, burst: int, kills: int) -> float:
    """Let eight receivers take all of them at a limited rate; the share of the allowed rate that was used."""
    chance = random.Random(seed())
    with postroom.open(url) as room:
        room.limit("work", per_s=per_s, burst=burst)
    nursery.finish(nursery.fork("limits.sender", url=url, messages=messages, senders=4))
    alive = [
        nursery.fork("limits.receiver", url=url, journal=str(notes), seed=seed() + born)
        for born in range(RECEIVERS + kills)
    ]
    for _ in range(kills):
        time.sleep(chance.random() * 0.2)
        nursery.kill(alive.pop(chance.randrange(len(alive))))
    nursery.finish(*alive)
    with postroom.open(url) as room:
        found = list(room.store.find_all(Query(limit=1000)))
        kept = [room.get(message.id) for message in found]
    assert {message.exact_state for message in kept} == {State.ACKED}
    times_ms = [entry.time_ms for message in kept for entry in message.ledger if entry.event == "claimed"]
    assert too_fast(times_ms, per_s, burst) == []
    took_s = (max(times_ms) - min(times_ms)) / 1000
    return len(times_ms) / (burst + per_s * took_s)


@pytest.mark.slow
@pytest.mark.parametrize("store", STORES)
def test_a_rate_is_never_exceeded(nursery: Nursery, tmp_path: Path, figure: Callable[[str], None], store: str) -> None:
    messages = count("RATED", 100)
    used = rate_storm(nursery, url_of(store, tmp_path / "room"), tmp_path / "notes", messages, 100.0, 10, 2)
    figure(f"rates ({store}): {messages} messages at 100 a second, never faster; {used:.0%} of the rate was used")


@pytest.mark.long
@pytest.mark.parametrize("store", STORES)
def test_a_rate_is_used_to_nineteen_twentieths(
    nursery: Nursery, tmp_path: Path, figure: Callable[[str], None], store: str
) -> None:
    used = rate_storm(nursery, url_of(store, tmp_path / "room"), tmp_path / "notes", 2_000, 50.0, 10, 0)
    figure(f"rates ({store}): 2,000 messages at 50 a second, eight receivers: {used:.1%} of the rate was used")
    assert used >= 0.95


def test_the_check_sees_claims_that_come_too_fast() -> None:
    steady = [10 * number for number in range(100)]
    assert too_fast(steady, 100, 1) == []
    assert too_fast([0] * 5 + steady[5:], 100, 5) == []
    assert too_fast([*steady, 505], 100, 1)[:1] == ["the bucket of 1 holds 1.50 at 505"]
