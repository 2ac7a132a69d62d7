"""What a process knows of a room on NATS, in memory alone: what limits count is derived when a limit first asks for it."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from postroom.core.message import Draft, check
from postroom.core.states import State
from postroom.stores.contract import Want
from postroom.stores.gates import Group
from postroom.stores.nats.entries import Kept, WriteTime, claimed, first_entry, make_id, settled
from postroom.stores.nats.tables import KnownEntries

WANT = Want(agent="bob", lease_s=30.0, channels=("jobs",))


def moment(seq: int) -> WriteTime:
    return WriteTime(seq, seq, f"w{seq}")


def waiting(seq: int, **fields: Any) -> Kept:
    """A message as it was put with that sequence."""
    draft = check(Draft(**{"from_agent": "ada", "to_agent": "bob", "channel": "jobs", "payload": {}, **fields}))
    id = make_id(seq, "ada", "jobs", 5, 0.5)
    entry = first_entry(draft, id, draft.to_agent, moment(seq), held_for=None)
    return Kept(seq, replace(entry, first=seq))


def claim(kept: Kept, seq: int) -> Kept:
    return Kept(seq, claimed(kept, WANT, moment(seq)))


def ack(kept: Kept, seq: int) -> Kept:
    return Kept(seq, settled(kept, "acked", "bob", None, 0, moment(seq)))


def learn(tables: KnownEntries, *kepts: Kept) -> None:
    for kept in kepts:
        tables.learn(kept.entry.id, kept.seq, kept)


@pytest.fixture
def tables() -> KnownEntries:
    return KnownEntries()


def test_limits_that_come_to_a_room_find_what_runs_and_waits_there(tables: KnownEntries) -> None:
    first, second = waiting(1), waiting(2, order_key="k")
    learn(tables, first, second, waiting(3), waiting(4, to_agent=None), waiting(5, channel="other"))
    learn(tables, claim(first, 6), claim(second, 7))

    assert tables.running("jobs") == {first.entry.id: Group("ada", None), second.entry.id: Group("ada", "k")}
    assert (tables.waiting("bob", "jobs"), tables.waiting(None, "jobs"), tables.waiting("bob", "other")) == (1, 1, 1)


def test_what_limits_count_goes_with_every_change_from_then_on(tables: KnownEntries) -> None:
    first, second = waiting(1), waiting(2)
    learn(tables, first)
    assert (tables.waiting("bob", "jobs"), dict(tables.running("jobs"))) == (1, {})

    learn(tables, second, claim(first, 3))
    assert (tables.waiting("bob", "jobs"), list(tables.running("jobs"))) == (1, [first.entry.id])

    learn(tables, ack(claim(first, 3), 4))
    tables.learn(second.entry.id, 5, None)
    assert (tables.waiting("bob", "jobs"), dict(tables.running("jobs"))) == (0, {})


def test_an_answer_is_claimed_without_being_counted(tables: KnownEntries) -> None:
    answer = waiting(1, answer_to=waiting(2).entry.id)
    learn(tables, answer, claim(answer, 3))
    assert dict(tables.running("jobs")) == {}
    learn(tables, ack(claim(answer, 3), 4))
    assert dict(tables.running("jobs")) == {}


def test_limits_that_come_back_find_what_changed_while_nothing_was_counted(tables: KnownEntries) -> None:
    first, second = waiting(1), waiting(2)
    learn(tables, first, second, claim(first, 3))
    assert len(tables.running("jobs")) == 1

    tables.stop_counting()
    learn(tables, ack(claim(first, 3), 4), claim(second, 5))

    assert list(tables.running("jobs")) == [second.entry.id]
    assert tables.waiting("bob", "jobs") == 0


def test_a_lease_that_has_ended_counts_as_running_until_that_is_written(tables: KnownEntries) -> None:
    first = waiting(1)
    learn(tables, first, claim(first, 2))
    tables.wind(40_000)
    assert list(tables.running("jobs")) == [first.entry.id]
    assert [row.kept.state for row in tables.ended_in(["jobs"])] == [State.CLAIMED]


def test_a_room_without_limits_counts_nothing(tables: KnownEntries) -> None:
    first = waiting(1)
    learn(tables, first, claim(first, 2))
    assert tables._counts is None
