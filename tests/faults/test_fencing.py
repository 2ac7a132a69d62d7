"""Owners whose lease has ended act as if it had not, at the same moment as those who own the message now.

The story. A receiver was stopped for too long; its messages went to another. It wakes up and acks, retries, refuses,
answers or extends with its old tickets, ten thousand times, while the new owner acks. Then, with leases of a
millisecond, nobody knows who is late: owners race each other for every message.

The invariant. Of the ten thousand old tickets none counts and none changes anything; every new one counts. In the race
exactly one ack of each message counts, and it is the one with the last token that was given for it.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.faults.programs.nursery import steady_ns
from tests.faults.programs.rooms import UNTIRING, letter, open_room, want

from postroom.core.clock import ManualClock
from postroom.stores.contract import Ticket

from .support import ACKED, Look, Nursery, journal


def two_tickets_each(folder: Path, messages: int) -> tuple[list[Ticket], list[Ticket]]:
    """Messages that were claimed, lost by their lease, and claimed again: the old tickets and the new ones, in order."""
    clock = ManualClock()
    store = open_room(folder, clock=clock)
    store.put([letter(payload={"n": n}) for n in range(messages)])
    old = [delivery.ticket for delivery in store.claim(want(owner=None, lease_s=30, limit=messages)).deliveries]
    clock.advance(31)
    new = [delivery.ticket for delivery in store.claim(want(owner=None, lease_s=30, limit=messages)).deliveries]
    store.close()
    assert [ticket.id for ticket in old] == [ticket.id for ticket in new] and len(old) == messages
    return old, new


@pytest.mark.slow
@pytest.mark.parametrize("messages", [2_000, pytest.param(10_000, marks=pytest.mark.long)])
def test_stale_tickets_change_nothing(
    nursery: Nursery, folder: Path, tmp_path: Path, figure: Callable[[str], None], messages: int
) -> None:
    old, new = two_tickets_each(folder, messages)
    (tmp_path / "old").write_text(json.dumps(old))
    (tmp_path / "new").write_text(json.dumps(new))
    start_ns = steady_ns() + 300_000_000
    stale, rightful = tmp_path / "stale", tmp_path / "rightful"
    pids = [
        nursery.fork("fence.stale", folder=str(folder), tickets=str(tmp_path / "old"), out=str(stale),
                     start_ns=start_ns, seed=1),
        nursery.fork("fence.rightful", folder=str(folder), tickets=str(tmp_path / "new"), out=str(rightful),
                     start_ns=start_ns),
    ]  # fmt: skip
    nursery.finish(*pids)
    assert json.loads(stale.read_text()) == {"tried": messages, "counted": []}
    assert json.loads(rightful.read_text()) == {"tried": messages, "lost": []}
    with Look(folder) as look:
        assert look.damage() == "ok"
        rows = look.rows("SELECT state, token, count(*) FROM messages GROUP BY 1, 2")
        assert rows == [(ACKED, new[0].token, messages)], "nothing else was stored or changed"
        events = look.rows("SELECT DISTINCT json_extract(history, '$[#-1][0]') FROM messages")
        assert events == [("acked",)]
    figure(f"fencing: {messages} stale tickets beside {messages} rightful ones, 0 counted")


@pytest.mark.slow
@pytest.mark.parametrize("messages", [300, pytest.param(1_000, marks=pytest.mark.long)])
def test_of_all_who_race_for_a_message_one_ack_counts(
    nursery: Nursery, folder: Path, tmp_path: Path, figure: Callable[[str], None], messages: int
) -> None:
    notes = tmp_path / "journal"
    store = open_room(folder)
    ids = store.put([letter(max_deliveries=UNTIRING) for _ in range(messages)])
    store.close()
    start_ns = steady_ns() + 200_000_000
    pids = [
        nursery.fork("fence.hurried", folder=str(folder), journal=str(notes), seed=seed, start_ns=start_ns)
        for seed in range(6)
    ]
    nursery.finish(*pids)
    lines = journal.read(notes)
    acks = [line for line in lines if line.event == "acked"]
    counted = {line.details[0]: line.details[1] for line in acks if line.details[2]}
    late = [line for line in acks if not line.details[2]]
    assert Counter(line.details[0] for line in acks if line.details[2]) == Counter(ids)
    with Look(folder) as look:
        assert look.damage() == "ok"
        assert counted == dict(look.rows(f"SELECT id, token FROM messages WHERE state = {ACKED}"))
    claims = Counter((line.details[0], line.details[1]) for line in lines if line.event == "claimed")
    assert max(claims.values()) == 1, "a token was given twice"
    assert len(late) > messages / 10, "there was no race"
    figure(f"fencing: {messages} messages raced for, {len(claims)} claims, {len(late)} acks too late, none counted")
