"""Eight processes send at once, and one receives: in which order?

The story. Every sender writes down when each send began and when it returned, by a clock that all of them share. One
receiver takes messages while they are still being sent.

The invariant. The order of the keys is the order of the commits: each sender's messages stand in its order, and a send
that returned before another began stands before it, whoever sent them. The receiver gets them in exactly that order.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.faults.programs.nursery import steady_ns

from .support import Look, Nursery, count

SENDERS = 8

#: An id, when its send began, when it returned.
Send = tuple[str, int, int]


def out_of_order(sends_by_key: list[Send]) -> list[tuple[Send, Send]]:
    """Pairs that stand in the wrong order: the later one had returned before the earlier one began."""
    wrong = []
    soonest: Send | None = None  # of all that stand behind, the one that returned first
    for send in reversed(sends_by_key):
        if soonest is not None and soonest[2] < send[1]:
            wrong.append((send, soonest))
        if soonest is None or send[2] < soonest[2]:
            soonest = send
    return wrong


def run(nursery: Nursery, folder: Path, messages: int, figure: Callable[[str], None]) -> None:
    place, each = folder.parent, -(-messages // SENDERS)
    each += -each % 10  # they send in rounds of ten: three in one step, then seven by themselves
    start_ns = steady_ns() + 300_000_000
    pids = [
        nursery.fork("order.sender", folder=str(folder), out=str(place / f"sent{number}"), number=number,
                     messages=each, start_ns=start_ns)
        for number in range(SENDERS)
    ]  # fmt: skip
    receiver = nursery.fork("order.receiver", folder=str(folder), out=str(place / "got"), messages=each * SENDERS)
    nursery.finish(*pids, receiver)
    took_s = (steady_ns() - start_ns) / 1e9
    sent: list[list[Send]] = [json.loads((place / f"sent{number}").read_text()) for number in range(SENDERS)]
    with Look(folder) as look:
        assert look.damage() == "ok"
        order = [id for (id,) in look.rows("SELECT id FROM messages ORDER BY key")]
    place_of = {id: number for number, id in enumerate(order)}
    assert len(order) == each * SENDERS
    for own in sent:
        places = [place_of[id] for id, _, _ in own]
        assert places == sorted(places), "a sender's messages do not stand in its order"
    by_key = sorted((send for own in sent for send in own), key=lambda send: place_of[send[0]])
    assert out_of_order(by_key) == []
    got = json.loads((place / "got").read_text())
    assert len(got) == len(order)
    assert [pair for pair in zip(got, order, strict=True) if pair[0] != pair[1]][:1] == [], "received in another order"
    figure(f"order: {len(order)} messages of {SENDERS} senders, sent and received in {took_s:.1f} s")


@pytest.mark.slow
def test_messages_of_many_senders_stand_and_come_in_commit_order(
    nursery: Nursery, folder: Path, figure: Callable[[str], None]
) -> None:
    run(nursery, folder, count("ORDER", 4_000), figure)


@pytest.mark.long
def test_a_million_messages_in_commit_order(nursery: Nursery, folder: Path, figure: Callable[[str], None]) -> None:
    run(nursery, folder, count("ORDER_LONG", 1_000_000), figure)


def test_the_check_of_order_sees_a_wrong_order() -> None:
    first, second, third = ("a", 1, 2), ("b", 3, 4), ("c", 5, 6)
    assert out_of_order([first, second, third]) == []
    assert out_of_order([second, first, third]) == [(second, first)]
    assert out_of_order([third, first, second]) == [(third, first)]
    assert out_of_order([("a", 1, 4), ("b", 3, 4)]) == out_of_order([("b", 3, 4), ("a", 1, 4)]) == []
